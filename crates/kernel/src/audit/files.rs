//! The files of an audit log: their names, the lines in them, and the head.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mainspring_api::AuditRecord;
use serde::{Deserialize, Serialize};

pub(super) const HEAD: &str = "head.json";
/// The text between a record and its hash.
const HASH_FIELD: &[u8] = b",\"hash\":\"";
const HASH_HEX_BYTES: usize = 64;
/// The bytes of a line after the hashed part, without the line break.
const TAIL_BYTES: usize = HASH_FIELD.len() + HASH_HEX_BYTES + 2;

/// The hash of a record, and of all before it.
pub(super) type Hash = [u8; 32];
/// The hash before the first record.
pub(super) const START: Hash = [0; 32];

/// The latest record that was synced to the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) seq: u64,
    pub(super) hash: String,
}

impl Head {
    pub(super) fn new(seq: u64, hash: &Hash) -> Self {
        Self { seq, hash: to_hex(hash) }
    }

    /// Reads the head of the log; `None` if there is none or it cannot be understood.
    pub(super) fn read(folder: &Path) -> io::Result<Option<Self>> {
        match fs::read(folder.join(HEAD)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the head of the log atomically. A power loss may bring the earlier head back.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let part = folder.join("head.json.part");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_data()?;
        fs::rename(&part, folder.join(HEAD))
    }
}

/// One file of the log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogFile {
    /// The number of its first record.
    pub(super) first: u64,
    pub(super) path: PathBuf,
}

impl LogFile {
    pub(super) fn new(folder: &Path, first: u64) -> Self {
        Self { first, path: folder.join(format!("audit-{first:020}.jsonl")) }
    }

    /// Opens the file for appending, and creates it if it is missing.
    pub(super) fn open(&self) -> io::Result<File> {
        OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path)
    }
}

/// Creates the folder of the log.
pub(super) fn folder_make(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Lists the files of the log, oldest first. A missing folder has none.
pub(super) fn list(folder: &Path) -> io::Result<Vec<LogFile>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries?,
    };
    let mut files = vec![];
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix("audit-").and_then(|name| name.strip_suffix(".jsonl"));
        if let Some(first) = number.and_then(|number| number.parse().ok()) {
            files.push(LogFile { first, path });
        }
    }
    files.sort();
    Ok(files)
}

/// Appends `record` to `lines`, chained to the record with the hash `before`. Returns its hash.
pub(super) fn push_line(lines: &mut Vec<u8>, record: &AuditRecord, before: &Hash) -> Hash {
    let start = lines.len();
    // Cannot fail: a record has only text and numbers, and is written to memory.
    let _ = serde_json::to_writer(&mut *lines, record);
    // Removes the closing brace: the hash follows the record within the object.
    lines.pop();
    let hash = chain(before, &lines[start..]);
    lines.extend_from_slice(HASH_FIELD);
    lines.extend_from_slice(to_hex(&hash).as_bytes());
    lines.extend_from_slice(b"\"}\n");
    hash
}

/// Reads the record of a line without its line break, if the line has the form of a record.
pub(super) fn parse_line(line: &[u8]) -> Option<AuditRecord> {
    serde_json::from_slice(line).ok()
}

/// Returns the hash that a line states, and whether that hash is correct after a record with the hash
/// `before`.
pub(super) fn check_line(line: &[u8], before: &Hash) -> Option<(Hash, bool)> {
    let (hashed, tail) = line.split_at_checked(line.len().checked_sub(TAIL_BYTES)?)?;
    let stated = tail.strip_prefix(HASH_FIELD)?.strip_suffix(b"\"}")?;
    let stated = from_hex(std::str::from_utf8(stated).ok()?)?;
    Some((stated, chain(before, hashed) == stated))
}

fn chain(before: &Hash, hashed: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before);
    hasher.update(hashed);
    *hasher.finalize().as_bytes()
}

pub(super) fn to_hex(hash: &Hash) -> String {
    blake3::Hash::from_bytes(*hash).to_hex().to_string()
}

pub(super) fn from_hex(text: &str) -> Option<Hash> {
    blake3::Hash::from_hex(text).ok().map(|hash| *hash.as_bytes())
}

/// Makes new and removed names in `folder` durable.
pub(super) fn folder_sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
