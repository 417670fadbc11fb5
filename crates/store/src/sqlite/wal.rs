//! Decides whether a `-wal` file belongs to the database beside it, from the bytes of both files.
//!
//! SQLite replays any WAL that lies beside a database, also one of another database or of an earlier copy. Therefore the
//! first transaction of every WAL renews the row of `wal_token`:
//!
//! ```text
//! database: token A          the WAL starts:    previous A, token B     belongs
//! database: token B          (after a checkpoint)                       belongs
//! database: token C          (restored, replaced)                       stale
//! ```
//!
//! The schema cookie is compared too: a backup made by SQLite has the token of its source but another cookie.
//!
//! Invariant: no change of the schema or of page numbers goes through a WAL (see [`super::open`]), so that the row is on
//! the same page in the database and in its WAL.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use rusqlite::Connection;

use super::open::sibling;

/// The first migration whose databases have a token.
pub(super) const FIRST_VERSION: u32 = 17;
/// `MSPRWAL1`, in the row of the token.
const MARK: &[u8; 8] = b"MSPRWAL1";
const FILE_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
const READ_BYTES: usize = 1 << 20;

/// The content of a WAL, seen from the database beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wal {
    /// There is no file. The database was closed normally, or copied alone.
    Absent,
    /// The file has no complete transaction: SQLite replays nothing.
    Empty,
    /// The file continues this database.
    Belongs,
    /// The file continues another database, or another copy of this one.
    Stale,
}

/// The header fields of a database that a WAL is compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base {
    pub(super) page_size: u64,
    pub(super) schema_cookie: u32,
    pub(super) schema_version: u32,
}

/// The row of `wal_token`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Token {
    token: [u8; 16],
    previous: [u8; 16],
    schema_cookie: u32,
}

/// The `-shm` file of an open database, in which SQLite counts the frames of the WAL.
///
/// Must be dropped after the last connection: closing a file releases all locks of the process on it.
#[derive(Debug)]
pub(super) struct WalIndex(File);

impl WalIndex {
    /// Opens the file of the database at `path`, which is open.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        File::open(sibling(path, "-shm")).map(Self)
    }

    /// Counts the frames in the WAL and the frames that are merged into the database; `None` if they cannot be read.
    ///
    /// A transaction restarts the WAL only if all of its frames were merged when the transaction began. A transaction
    /// calls this after it has begun: another thread may still merge frames, but none are added. So a frame that is
    /// not merged now was not merged when the transaction began.
    pub(super) fn frames(&self) -> Option<FrameCounts> {
        // Two copies of a header of 48 bytes that must be equal, then the number of merged frames.
        const HEADER: usize = 48;
        let mut bytes = [0; 2 * HEADER + 4];
        read_at_start(&self.0, &mut bytes).ok()?;
        let number = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let is_complete = bytes[12] == 1 && bytes[..HEADER] == bytes[HEADER..2 * HEADER];
        is_complete.then(|| FrameCounts { written: number(16), merged: number(2 * HEADER) })
    }
}

/// The frames of a WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FrameCounts {
    pub(super) written: u32,
    /// The frames that are merged into the database.
    pub(super) merged: u32,
}

impl FrameCounts {
    /// Returns true if a transaction that has begun may restart the WAL or create it, and must renew the token.
    pub(super) fn may_restart(self) -> bool {
        self.written == self.merged
    }
}

#[cfg(unix)]
fn read_at_start(file: &File, bytes: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, 0)
}

#[cfg(not(unix))]
fn read_at_start(_: &File, _: &mut [u8]) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Renews the token, in the transaction that is open.
pub(super) fn token_renew(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "UPDATE wal_token SET previous = token, token = randomblob(16),
               schema_cookie = (SELECT schema_version FROM pragma_schema_version)",
        )?
        .execute([])
        .map(drop)
}

/// Compares the WAL at `wal` with `database`. Changes nothing.
pub(super) fn examine(database: &mut File, base: Base, wal: &Path) -> io::Result<Wal> {
    let file = match File::open(wal) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Wal::Absent),
        Err(error) => return Err(error),
    };
    let Some(mut frames) = Frames::open(BufReader::with_capacity(READ_BYTES, file))? else {
        return Ok(Wal::Empty);
    };
    let (mut tokens, mut replayed) = (vec![], 0);
    // The token in the database, read once its page is known from the WAL.
    let mut stored = None;
    while let Some(frame) = frames.next()? {
        tokens.extend(token_of(&frames.page).map(|token| (frame.page_number, token)));
        if !frame.ends_transaction {
            continue;
        }
        let Some((page, first)) = tokens.first() else {
            // Earlier versions wrote WALs without a token, for databases without one.
            return Ok(if base.schema_version < FIRST_VERSION { Wal::Belongs } else { Wal::Stale });
        };
        let fits = base.schema_version >= FIRST_VERSION
            && base.page_size == frames.page.len() as u64
            && base.schema_cookie == first.schema_cookie;
        if !fits {
            return Ok(Wal::Stale);
        }
        if stored.is_none() {
            stored = token_at(database, base.page_size, *page)?;
        }
        let Some(stored) = stored else { return Ok(Wal::Stale) };
        let continues = stored == first.previous
            || tokens[replayed..].iter().any(|(at, token)| at == page && token.token == stored);
        if continues {
            return Ok(Wal::Belongs);
        }
        replayed = tokens.len();
    }
    Ok(if replayed == 0 { Wal::Empty } else { Wal::Stale })
}

/// Reads the token on a page of the database.
fn token_at(database: &mut File, page_size: u64, page: u32) -> io::Result<Option<[u8; 16]>> {
    let mut bytes = vec![0; usize::try_from(page_size).unwrap_or_default()];
    database.seek(SeekFrom::Start((u64::from(page) - 1) * page_size))?;
    match database.read_exact(&mut bytes) {
        Ok(()) => Ok(token_of(&bytes).map(|token| token.token)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses a page of SQLite: a leaf of a table whose only row is a token.
fn token_of(page: &[u8]) -> Option<Token> {
    const LEAF: u8 = 0x0D;
    // The serial types of the mark, the token and the previous token: blobs of 8 and 16 bytes.
    const TYPES: [u8; 3] = [8 * 2 + 12, 16 * 2 + 12, 16 * 2 + 12];
    if page.first() != Some(&LEAF) || page.get(3..5)? != [0, 1] {
        return None;
    }
    let cell = page.get(usize::from(u16::from_be_bytes([page[8], page[9]]))..)?;
    // The length of the record, the row id 1, the length of the header, the type of the row id's column.
    let [_, 1, 6, 0, mark, token, previous, cookie_type, values @ ..] = cell else { return None };
    if [*mark, *token, *previous] != TYPES || values.get(..8)? != MARK {
        return None;
    }
    let cookie = match cookie_type {
        8 => 0,
        9 => 1,
        bytes @ 1..=4 => {
            let bytes = values.get(40..40 + usize::from(*bytes))?;
            bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
        }
        _ => return None,
    };
    Some(Token {
        token: values.get(8..24)?.try_into().ok()?,
        previous: values.get(24..40)?.try_into().ok()?,
        schema_cookie: cookie,
    })
}

/// The valid frames of a WAL, as SQLite finds them: each checksum covers everything before it.
struct Frames<R> {
    file: R,
    salt: [u8; 8],
    big_endian: bool,
    sum: (u32, u32),
    /// The page of the latest frame.
    page: Vec<u8>,
}

struct Frame {
    page_number: u32,
    ends_transaction: bool,
}

impl<R: Read> Frames<R> {
    /// Reads the header of the file, `None` if SQLite would ignore the file.
    fn open(mut file: R) -> io::Result<Option<Self>> {
        let mut header = [0; FILE_HEADER];
        if !read_all(&mut file, &mut header)? {
            return Ok(None);
        }
        let (magic, page_size) = (number(&header, 0), number(&header, 8));
        let is_wal = magic & !1 == 0x377F_0682 && number(&header, 4) == 3_007_000;
        if !is_wal || !page_size.is_power_of_two() || !(512..=65536).contains(&page_size) {
            return Ok(None);
        }
        let big_endian = magic & 1 == 1;
        let sum = checksum(big_endian, (0, 0), &header[..24]);
        if sum != (number(&header, 24), number(&header, 28)) {
            return Ok(None);
        }
        let salt = [16, 17, 18, 19, 20, 21, 22, 23].map(|at: usize| header[at]);
        Ok(Some(Self { file, salt, big_endian, sum, page: vec![0; page_size as usize] }))
    }

    /// Reads the next frame into `page`, `None` after the last valid one.
    fn next(&mut self) -> io::Result<Option<Frame>> {
        let mut header = [0; FRAME_HEADER];
        if !read_all(&mut self.file, &mut header)? || !read_all(&mut self.file, &mut self.page)? {
            return Ok(None);
        }
        let sum = checksum(self.big_endian, self.sum, &header[..8]);
        self.sum = checksum(self.big_endian, sum, &self.page);
        let is_valid = header[8..16] == self.salt
            && self.sum == (number(&header, 16), number(&header, 20))
            && number(&header, 0) != 0;
        let frame = Frame { page_number: number(&header, 0), ends_transaction: number(&header, 4) != 0 };
        Ok(is_valid.then_some(frame))
    }
}

/// Fills `bytes`. Returns false if the file ends before.
fn read_all(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Continues the checksum of a WAL over `bytes`, whose length is a multiple of 8.
fn checksum(big_endian: bool, (mut one, mut two): (u32, u32), bytes: &[u8]) -> (u32, u32) {
    let word =
        |bytes: [u8; 4]| if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
    for pair in bytes.chunks_exact(8) {
        one = one.wrapping_add(word([pair[0], pair[1], pair[2], pair[3]])).wrapping_add(two);
        two = two.wrapping_add(word([pair[4], pair[5], pair[6], pair[7]])).wrapping_add(one);
    }
    (one, two)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wal_index_has_the_counts_that_sqlite_reports() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.sqlite3");
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (n)").unwrap();
        let index = WalIndex::open(&path).unwrap();
        let steps = [
            ("INSERT INTO t VALUES (1)", false),
            ("PRAGMA wal_checkpoint(PASSIVE)", true),
            ("INSERT INTO t VALUES (2)", false),
            ("PRAGMA wal_checkpoint(TRUNCATE)", true),
            ("INSERT INTO t VALUES (3)", false),
        ];
        for (sql, wanted) in steps {
            connection.execute_batch(sql).unwrap();
            let by_sqlite = connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| {
                Ok(FrameCounts { written: row.get(1)?, merged: row.get(2)? })
            });
            let frames = index.frames().unwrap();
            assert_eq!(frames, by_sqlite.unwrap(), "{sql}");
            assert_eq!(frames.may_restart(), wanted, "{sql}");
        }
        drop(connection);
    }
}
