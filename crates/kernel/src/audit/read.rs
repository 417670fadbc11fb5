//! Reads records of an audit log.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use mainspring_api::{AuditListQuery, AuditRecord};
use mainspring_core::{AccessRole, Time};

use super::files::{self, LogFile};
use crate::error::Error;
use crate::kernel::Caller;

/// Bytes of the log that are read for one page. A page that reaches this limit says where to continue.
const SCAN_BYTES: u64 = 32 << 20;
const BUFFER_BYTES: usize = 256 << 10;

/// The records that a caller may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditScope {
    /// All of them.
    All,
    /// Records that concern an org.
    Org(String),
    /// Records that concern an owner.
    Owner(String),
}

impl AuditScope {
    /// Returns the scope of a caller. Agents read nothing: a record reveals other sessions and other callers.
    pub(crate) fn of(caller: &Caller) -> Result<Self, Error> {
        if caller.agent.is_some() {
            return Err(Error::Forbidden("an agent does not read the audit log".into()));
        }
        Ok(match (caller.role, &caller.org) {
            (AccessRole::Admin, None) => Self::All,
            (AccessRole::Admin, Some(org)) => Self::Org(org.clone()),
            (AccessRole::Member | AccessRole::Viewer, _) => Self::Owner(caller.owner.clone()),
        })
    }

    fn contains(&self, record: &AuditRecord) -> bool {
        match self {
            Self::All => true,
            Self::Org(org) => record.org_id.as_ref() == Some(org),
            Self::Owner(owner) => concerns(record, owner),
        }
    }

    /// The text that every record of the scope contains, as JSON.
    fn text(&self) -> Option<String> {
        match self {
            Self::All => None,
            Self::Org(name) | Self::Owner(name) => serde_json::to_string(name).ok(),
        }
    }
}

/// True if `owner` acted, or if the record is about the owner's data.
fn concerns(record: &AuditRecord, owner: &str) -> bool {
    record.owner_id.as_deref() == Some(owner) || record.by.owner() == Some(owner)
}

fn matches(record: &AuditRecord, query: &AuditListQuery) -> bool {
    query.since_ms.is_none_or(|since| record.at_ms >= since)
        && query.kind.is_none_or(|kind| record.kind == kind)
        && query.operation.as_ref().is_none_or(|operation| record.operation == *operation)
        && query.owner.as_ref().is_none_or(|owner| concerns(record, owner))
        && query.about.as_ref().is_none_or(|about| record.about.contains(about))
}

/// A page of records, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuditPage {
    /// The records.
    pub records: Vec<AuditRecord>,
    /// The number of the last record that was looked at; `None` if the end of the log was reached.
    pub next: Option<u64>,
}

/// Reads the records of `scope` that `query` selects, at most `limit`.
pub(super) fn page(
    folder: &Path,
    scope: &AuditScope,
    query: &AuditListQuery,
    limit: usize,
) -> io::Result<AuditPage> {
    let after = query.after.unwrap_or(0);
    let (text, mut page, mut left) = (scope.text(), AuditPage::default(), SCAN_BYTES);
    for file in to_read(files::list(folder)?, after, query.since_ms) {
        // A file that was removed meanwhile has no records any more.
        let Ok(log) = File::open(&file.path) else { continue };
        let (mut lines, mut line) = (BufReader::with_capacity(BUFFER_BYTES, log), vec![]);
        loop {
            line.clear();
            let bytes = lines.read_until(b'\n', &mut line)? as u64;
            // The last line may be in the process of being written.
            let Some(line) = line.strip_suffix(b"\n") else { break };
            left = left.saturating_sub(bytes);
            let Some(seq) = seq_of(line).filter(|seq| *seq > after) else { continue };
            let is_relevant = text.as_ref().is_none_or(|text| contains(line, text.as_bytes()));
            let record = is_relevant.then(|| files::parse_line(line)).flatten();
            let wanted = record.filter(|record| scope.contains(record) && matches(record, query));
            page.records.extend(wanted);
            if page.records.len() >= limit || left == 0 {
                page.next = Some(seq);
                return Ok(page);
            }
        }
    }
    Ok(page)
}

/// Leaves out the files that end before `after` or `since`.
fn to_read(found: Vec<LogFile>, after: u64, since: Option<Time>) -> Vec<LogFile> {
    let is_passed = |next: &LogFile| {
        next.first <= after.saturating_add(1)
            || since.is_some_and(|since| first_time(next).is_some_and(|time| time < since))
    };
    let skipped = found.iter().skip(1).take_while(|next| is_passed(next)).count();
    found.into_iter().skip(skipped).collect()
}

fn first_time(file: &LogFile) -> Option<Time> {
    let mut line = vec![];
    BufReader::new(File::open(&file.path).ok()?).read_until(b'\n', &mut line).ok()?;
    files::parse_line(line.strip_suffix(b"\n")?).map(|record| record.at_ms)
}

/// Reads the number of a record from the beginning of its line.
fn seq_of(line: &[u8]) -> Option<u64> {
    let digits = line.strip_prefix(b"{\"seq\":")?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

fn contains(line: &[u8], text: &[u8]) -> bool {
    line.windows(text.len()).any(|window| window == text)
}
