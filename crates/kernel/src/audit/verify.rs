//! Verifies the hashes of an audit log.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use super::PRUNE_OPERATION;
use super::files::{self, Hash, Head};

/// Maximum number of findings; further ones are dropped.
const MAX_FINDINGS: usize = 100;

/// The result of verifying an audit log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuditVerified {
    /// Complete lines that were checked.
    pub checked: u64,
    /// A sentence for each record that was changed, inserted or removed.
    pub findings: Vec<String>,
    /// The number and the hash of the last record. Kept at another place, they show later whether the log was rewritten.
    pub last: Option<(u64, String)>,
}

/// The records that were read so far.
struct Chain {
    /// The hash of the last record of each removed file, by the number of that record.
    pruned: HashMap<u64, Hash>,
    /// The number and the line of the first record. It is checked at the end: the hash before it may be in a later
    /// record, the one about the removal of older files.
    first: Option<(u64, Vec<u8>)>,
    seq: u64,
    hash: Hash,
    /// The number of the record that `head.json` names.
    head_seq: u64,
    /// The hash of that record in the log, if the record was found.
    at_head: Option<Hash>,
}

/// Recomputes the hashes of the log in `folder`. A process may be writing it.
pub fn verify(folder: &Path) -> io::Result<AuditVerified> {
    let head = Head::read(folder)?;
    let found = files::list(folder)?;
    let mut verified = AuditVerified::default();
    let head_seq = head.as_ref().map_or(0, |head| head.seq);
    let (pruned, hash) = (HashMap::new(), files::START);
    let mut chain = Chain { pruned, first: None, seq: 0, hash, head_seq, at_head: None };
    for (index, file) in found.iter().enumerate() {
        let (mut lines, mut line) = (BufReader::new(File::open(&file.path)?), vec![]);
        while lines.read_until(b'\n', &mut line)? > 0 {
            match line.strip_suffix(b"\n") {
                Some(line) => chain.add(line, &mut verified),
                // The last line of the last file may be in the process of being written.
                None if index + 1 == found.len() => {}
                None => verified.find(format!("the record after {} is incomplete", chain.seq)),
            }
            line.clear();
        }
    }
    chain.check_start(&mut verified);
    match head {
        Some(head) if head.seq > chain.seq => {
            verified.find(format!("the records {} to {} at the end are missing", chain.seq + 1, head.seq));
        }
        Some(head) if chain.at_head.is_none_or(|hash| files::to_hex(&hash) != head.hash) => {
            verified.find(format!("the record {} is not the one that was synced to the disk", head.seq));
        }
        None if chain.seq > 0 => verified.find("head.json is missing or damaged".to_owned()),
        _ => {}
    }
    verified.last = (chain.seq > 0).then(|| (chain.seq, files::to_hex(&chain.hash)));
    Ok(verified)
}

impl AuditVerified {
    fn find(&mut self, finding: String) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
        }
    }
}

impl Chain {
    fn add(&mut self, line: &[u8], verified: &mut AuditVerified) {
        verified.checked += 1;
        let (record, hash) = (files::parse_line(line), files::check_line(line, &self.hash));
        let (Some(record), Some((stated, is_chained))) = (record, hash) else {
            return verified.find(format!("the line after the record {} is no record", self.seq));
        };
        let (seq, expected) = (record.seq, self.seq.saturating_add(1));
        if self.first.is_none() {
            self.first = Some((seq, line.to_vec()));
        } else if seq > expected {
            verified.find(format!("the records {expected} to {} are missing", seq - 1));
        } else if seq < expected {
            verified.find(format!("the record {seq} follows the record {}", self.seq));
        } else if !is_chained {
            verified.find(format!("the record {seq} was changed, or the record before it was replaced"));
        }
        if record.operation == PRUNE_OPERATION
            && let [seq, hash] = &record.about[..]
            && let (Ok(seq), Some(hash)) = (seq.parse(), files::from_hex(hash))
        {
            self.pruned.insert(seq, hash);
        }
        (self.seq, self.hash) = (seq, stated);
        if seq == self.head_seq {
            self.at_head = Some(stated);
        }
    }

    /// Checks that the log begins with record 1, or with the record after a removed file, and that the log records the
    /// removal.
    fn check_start(&self, verified: &mut AuditVerified) {
        let Some((seq, line)) = &self.first else { return };
        let before = match seq {
            1 => Some(files::START),
            seq => self.pruned.get(&seq.saturating_sub(1)).copied(),
        };
        match before.map(|before| files::check_line(line, &before)) {
            None => verified.find(format!("the records before {seq} are missing, and no record says so")),
            Some(Some((_, true))) => {}
            Some(_) => {
                verified.find(format!("the record {seq} was changed, or the record before it was replaced"));
            }
        }
    }
}
