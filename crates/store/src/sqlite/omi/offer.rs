//! Detects a database of the original daemon in the state directory.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use super::{OmiError, check_empty, copy};

/// Where a database of the original daemon, found beside a store, can be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OmiOffer {
    /// The store beside the database, which is empty.
    Here,
    /// The store of another state directory, since the store beside the database has been used.
    Elsewhere,
}

/// True if the folder holds a database of the original daemon.
fn has_original(folder: &Path) -> bool {
    fs::metadata(folder.join(copy::DATABASE)).is_ok_and(|file| file.is_file() && file.len() > 0)
}

/// Finds a database of the original that lies beside the store at `database` and was not imported into that store.
/// `connection` reads the store; `None` if there is no store yet.
pub(in super::super) fn offer(database: &Path, connection: Option<&Connection>) -> Option<OmiOffer> {
    if !database.parent().is_some_and(has_original) {
        return None;
    }
    match connection.map_or(Ok(()), |connection| check_empty(connection, database)) {
        Ok(()) => Some(OmiOffer::Here),
        Err(OmiError::NotEmpty { .. }) => Some(OmiOffer::Elsewhere),
        // The database was imported before, or the store cannot be read.
        Err(_) => None,
    }
}

/// Finds a database of the original in the folder of a store that does not exist yet.
pub fn omi_offer_without_store(database: &Path) -> Option<OmiOffer> {
    offer(database, None)
}
