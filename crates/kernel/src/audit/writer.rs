//! Writes the files of an audit log.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use mainspring_api::AuditRecord;
use mainspring_core::Time;
use parking_lot::Mutex;

use super::files::{self, Hash, Head, LogFile};
use super::{AuditError, AuditOptions, PRUNE_OPERATION, system_record};

/// Bytes of records that are kept in memory while they cannot be written. Later records are dropped and counted.
const MAX_UNWRITTEN_BYTES: usize = 1 << 20;
/// Bytes that are read at the end of a file to find its last record. A record is much shorter.
const TAIL_BYTES: u64 = 256 << 10;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// Appends records to the last file of an audit log.
#[derive(Debug)]
pub(super) struct Writer {
    current: LogFile,
    file: Arc<File>,
    written: u64,
    last_seq: u64,
    last_hash: Hash,
    /// Lines that could not be written yet.
    unwritten: Vec<u8>,
    /// Records that were dropped because too many could not be written.
    lost: u64,
    failure: Option<Failure>,
    /// Files that were completed since the last sync.
    completed: Vec<Arc<File>>,
    synced_seq: u64,
}

/// Why the log cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) why: String,
    /// True if there is no space.
    pub(super) is_full: bool,
}

/// The state in which a log was found.
#[derive(Debug, Default)]
pub(super) struct Opened {
    pub(super) is_without_head: bool,
    /// The code of the damage that was found.
    pub(super) code: Option<String>,
    /// The number of missing records.
    pub(super) count: Option<u64>,
}

impl Writer {
    /// The number of the last record.
    pub(super) fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Opens the log in the folder of `options`.
    pub(super) fn open(options: &AuditOptions) -> Result<(Self, Opened), AuditError> {
        let folder = &options.folder;
        let failed = || AuditError::io(folder);
        files::folder_make(folder).map_err(failed())?;
        let head = Head::read(folder).map_err(failed())?;
        let found = files::list(folder).map_err(failed())?;
        let mut opened = Opened { is_without_head: head.is_none(), ..Opened::default() };
        let (mut last_seq, mut last_hash) = (0, files::START);
        for file in &found {
            // The last file has no record if the process died right after it created the file.
            if let Some(end) = read_end(file, &mut opened)? {
                (last_seq, last_hash) = end;
            }
        }
        if head.is_none() && last_seq > 0 {
            opened.code.get_or_insert("head_missing".into());
        }
        if let Some((head, hash)) = head.and_then(|head| Some((head.seq, files::from_hex(&head.hash)?)))
            && head > last_seq
        {
            // The number of the next record shows the gap to everybody who reads the log.
            opened.code = Some("records_missing".into());
            opened.count = Some(head - last_seq);
            (last_seq, last_hash) = (head, hash);
        }
        let current = found.into_iter().next_back().unwrap_or_else(|| LogFile::new(folder, last_seq + 1));
        let file = current.open().map_err(AuditError::io(&current.path))?;
        let written = file.metadata().map_err(AuditError::io(&current.path))?.len();
        let writer = Self {
            current,
            file: Arc::new(file),
            written,
            last_seq,
            last_hash,
            unwritten: vec![],
            lost: 0,
            failure: None,
            completed: vec![],
            synced_seq: 0,
        };
        Ok((writer, opened))
    }

    /// Appends a record and writes it.
    pub(super) fn append(&mut self, record: AuditRecord, file_bytes: u64) {
        if self.unwritten.len() > MAX_UNWRITTEN_BYTES {
            self.lost += 1;
        } else {
            self.push(record);
        }
        self.write(file_bytes);
    }

    fn push(&mut self, mut record: AuditRecord) {
        self.last_seq += 1;
        record.seq = self.last_seq;
        self.last_hash = files::push_line(&mut self.unwritten, &record, &self.last_hash);
    }

    /// Writes all lines that are not written yet. If only a part of a line could be written, the next call writes the
    /// rest.
    pub(super) fn write(&mut self, file_bytes: u64) {
        while !self.unwritten.is_empty() {
            match (&*self.file).write(&self.unwritten) {
                Ok(0) => return self.fail(&io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    self.written += bytes as u64;
                    self.unwritten.drain(..bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.fail(&error),
            }
        }
        if self.failure.take().is_some() {
            tracing::info!("the audit log can be written again");
        }
        if self.written >= file_bytes
            && let Err(error) = self.next_file()
        {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &io::Error) {
        if self.failure.is_none() {
            tracing::error!(%error, path = %self.current.path.display(), "the audit log cannot be written");
        }
        let why = format!("{}: {error}", self.current.path.display());
        let is_full = matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        );
        self.failure = Some(Failure { why, is_full });
    }

    fn next_file(&mut self) -> io::Result<()> {
        let folder = self.current.path.parent().unwrap_or(Path::new("."));
        let next = LogFile::new(folder, self.last_seq + 1);
        let file = Arc::new(next.open()?);
        self.completed.push(std::mem::replace(&mut self.file, file));
        (self.current, self.written) = (next, 0);
        Ok(())
    }

    /// Replaces the open file, and returns it.
    #[cfg(test)]
    pub(super) fn replace_file(&mut self, file: File) -> File {
        let before = std::mem::replace(&mut self.file, Arc::new(file));
        before.try_clone().unwrap()
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }
}

/// Writes the pending lines, then syncs the files and the head. Other threads can append during the sync. Returns
/// whether a file was completed since the last sync.
pub(super) fn sync(writer: &Mutex<Writer>, options: &AuditOptions, now: Time) -> bool {
    let (files, head, is_new_file) = {
        let mut writer = writer.lock();
        writer.write(options.file_bytes);
        if writer.failure.is_none() && writer.lost > 0 {
            let count = Some(std::mem::take(&mut writer.lost));
            writer.push(AuditRecord { at_ms: now, count, ..system_record("audit_lost") });
            writer.write(options.file_bytes);
        }
        if writer.last_seq == writer.synced_seq || writer.failure.is_some() {
            return false;
        }
        let is_new_file = !writer.completed.is_empty() || writer.synced_seq == 0;
        let files: Vec<_> = writer.completed.iter().chain([&writer.file]).cloned().collect();
        (files, Head::new(writer.last_seq, &writer.last_hash), is_new_file)
    };
    let synced = (|| {
        files.iter().try_for_each(|file| file.sync_data())?;
        if is_new_file {
            files::folder_sync(&options.folder)?;
        }
        head.write(&options.folder)
    })();
    let mut writer = writer.lock();
    match synced {
        Ok(()) => {
            writer.synced_seq = head.seq;
            let is_unsynced = |file: &Arc<File>| !files.iter().any(|synced| Arc::ptr_eq(synced, file));
            writer.completed.retain(is_unsynced);
        }
        Err(error) => writer.fail(&error),
    }
    files.len() > 1
}

/// Removes old files, each after a record of its removal.
pub(super) fn prune(writer: &Mutex<Writer>, options: &AuditOptions, now: Time) -> io::Result<()> {
    let found = files::list(&options.folder)?;
    let sizes = found.iter().map(|file| Ok(file.path.metadata()?.len())).collect::<io::Result<Vec<_>>>()?;
    let is_too_much = |index: usize| sizes[index..].iter().sum::<u64>() > options.keep_bytes;
    let is_removed = |index: &usize| is_too_much(*index) || is_older(&found[*index], options.keep_days, now);
    // The newest file is being written, and stays.
    let newest = found.len().saturating_sub(1);
    let count = (0..newest).rev().find(is_removed).map_or(0, |index| index + 1);
    for (file, next) in found.iter().zip(found.iter().skip(1)).take(count) {
        let Some((seq, hash)) = last_record(&file.path)?.and_then(|(line, _)| end_of(&line)) else {
            return Err(io::Error::other(format!("{} does not end with a record", file.path.display())));
        };
        let record = AuditRecord {
            at_ms: now,
            about: vec![seq.to_string(), files::to_hex(&hash)],
            count: Some(next.first - file.first),
            ..system_record(PRUNE_OPERATION)
        };
        writer.lock().append(record, options.file_bytes);
        sync(writer, options, now);
        if writer.lock().failure.is_some() {
            return Ok(());
        }
        std::fs::remove_file(&file.path)?;
    }
    Ok(())
}

/// True if the last record of the file is older than `days`.
fn is_older(file: &LogFile, days: u64, now: Time) -> bool {
    let last = last_record(&file.path).ok().flatten().and_then(|(line, _)| files::parse_line(&line));
    last.is_some_and(|record| now.since(record.at_ms) > days.saturating_mul(DAY_MS))
}

/// Reads the number and hash of the last record, if the file has one. Removes an incomplete last line.
fn read_end(file: &LogFile, opened: &mut Opened) -> Result<Option<(u64, Hash)>, AuditError> {
    let failed = || AuditError::io(&file.path);
    let bytes = file.path.metadata().map_err(failed())?.len();
    let last = last_record(&file.path).map_err(failed())?;
    let complete = last.as_ref().map_or(0, |(_, end)| *end);
    if complete < bytes {
        let log = file.open().map_err(failed())?;
        log.set_len(complete).map_err(failed())?;
        opened.code = Some("incomplete_record_removed".into());
    }
    match last {
        Some((line, _)) => match end_of(&line) {
            Some(end) => Ok(Some(end)),
            None => Err(AuditError::Damaged { path: file.path.clone() }),
        },
        None => Ok(None),
    }
}

fn end_of(line: &[u8]) -> Option<(u64, Hash)> {
    let record = files::parse_line(line)?;
    Some((record.seq, files::from_hex(&record.hash)?))
}

/// Reads the last complete line of a file, and the byte offset after it.
pub(super) fn last_record(path: &Path) -> io::Result<Option<(Vec<u8>, u64)>> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let start = bytes.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = vec![];
    file.take(TAIL_BYTES).read_to_end(&mut tail)?;
    let Some(end) = tail.iter().rposition(|byte| *byte == b'\n') else { return Ok(None) };
    tail.truncate(end);
    let line = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |before| before + 1);
    Ok(Some((tail.split_off(line), start + end as u64 + 1)))
}
