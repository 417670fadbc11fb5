//! Copies the records of one kind in ranges. A range is written, read again, compared and kept in one transaction.

use super::{
    CopyError, CopyOptions, CopyStep, CopySteps, CopyTable, Mark, Position, Reads, Record, Source, TableMark,
    Target,
};

/// The approximate size of the records that one statement writes.
const BATCH_BYTES: usize = 4 << 20;
/// The approximate size of the records that are kept in one transaction.
const RANGE_BYTES: usize = 64 << 20;

/// Copies the records of a table that the mark does not count yet.
pub(super) fn copy(
    source: &mut dyn Source,
    target: &mut dyn Target,
    table: &'static CopyTable,
    mark: &mut Mark,
    options: CopyOptions,
    steps: &mut CopySteps<'_>,
) -> Result<(), CopyError> {
    let done = mark.tables.get(table.name).cloned().unwrap_or_default();
    if done.is_complete {
        return Ok(());
    }
    let after = done.read_to.clone();
    let mut copy = TableCopy {
        target,
        table,
        mark,
        options,
        steps,
        done,
        range: Fingerprint::default(),
        read_to: None,
        batch: vec![],
        batch_bytes: 0,
    };
    source.read(table, after.as_ref(), &mut |record, position| copy.add(record, position))?;
    copy.complete()
}

/// One table that is being copied.
struct TableCopy<'a, 'b> {
    target: &'a mut dyn Target,
    table: &'static CopyTable,
    mark: &'a mut Mark,
    options: CopyOptions,
    steps: &'a mut CopySteps<'b>,
    /// The ranges that were kept.
    done: TableMark,
    /// The records of this range.
    range: Fingerprint,
    /// The position of the last record that was read.
    read_to: Option<Position>,
    /// Records that are not written yet.
    batch: Vec<Record>,
    batch_bytes: usize,
}

impl TableCopy<'_, '_> {
    fn add(&mut self, record: Record, position: Position) -> Result<(), CopyError> {
        self.batch_bytes += self.range.add(&record);
        self.batch.push(record);
        self.read_to = Some(position);
        if self.batch.len() >= self.options.batch_records || self.batch_bytes >= BATCH_BYTES {
            self.write()?;
        }
        match self.range.records < self.options.range_records && self.range.bytes < RANGE_BYTES {
            true => Ok(()),
            false => self.keep(),
        }
    }

    fn write(&mut self) -> Result<(), CopyError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let written = self.done.records + self.range.records - self.batch.len() as u64;
        (self.steps)(CopyStep::Writes(self.table.name, written))?;
        self.batch_bytes = 0;
        self.target.write(self.table, std::mem::take(&mut self.batch))
    }

    /// Compares the written range with the records that were read, and keeps it.
    fn keep(&mut self) -> Result<(), CopyError> {
        self.write()?;
        let (copied, written_to) = read_back(self.target, self.table, self.done.written_to.as_ref())?;
        let read = std::mem::take(&mut self.range);
        let (read_records, copied_records) = (read.records, copied.records);
        if read.sum.finalize() != copied.sum.finalize() {
            let table = self.table.name;
            return Err(CopyError::Differs { table, read: read_records, copied: copied_records });
        }
        self.done.records += read_records;
        self.done.read_to = self.read_to.take();
        self.done.written_to = written_to;
        self.mark.tables.insert(self.table.name.into(), self.done.clone());
        self.target.keep(self.mark)?;
        (self.steps)(CopyStep::Keeps(self.table.name, self.done.records))
    }

    /// Keeps the last range, and notes in the mark that the table is complete. If the table has no last range, the mark
    /// is stored with the next range of another table.
    fn complete(mut self) -> Result<(), CopyError> {
        if self.range.records > 0 {
            self.done.is_complete = true;
            return self.keep();
        }
        // Nothing is left to write, but the target may have records that the source lacks.
        let (more, _) = read_back(self.target, self.table, self.done.written_to.as_ref())?;
        if more.records > 0 {
            return Err(CopyError::Differs { table: self.table.name, read: 0, copied: more.records });
        }
        self.done.is_complete = true;
        self.mark.tables.insert(self.table.name.into(), self.done);
        Ok(())
    }
}

/// Reads the records of the target after a position.
fn read_back(
    target: &mut dyn Target,
    table: &CopyTable,
    after: Option<&Position>,
) -> Result<(Fingerprint, Option<Position>), CopyError> {
    let (mut copied, mut last) = (Fingerprint::default(), None);
    let reads: &mut dyn Reads = target;
    reads.read(table, after, &mut |record, position| {
        copied.add(&record);
        last = Some(position);
        Ok(())
    })?;
    Ok((copied, last))
}

/// A hash of records, in order.
#[derive(Default)]
struct Fingerprint {
    records: u64,
    bytes: usize,
    sum: blake3::Hasher,
}

impl Fingerprint {
    /// Adds a record, and returns its approximate size.
    fn add(&mut self, record: &Record) -> usize {
        if let Record::Key(key) = record {
            // Added by itself, so that the comparison does not depend on the debug form of a key.
            self.sum.update(&key.hash);
        }
        let text = format!("{record:?}\n");
        self.sum.update(text.as_bytes());
        self.records += 1;
        self.bytes += text.len();
        text.len()
    }
}
