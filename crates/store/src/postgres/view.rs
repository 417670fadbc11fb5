//! A read-only handle on a database, for backups and verification. It changes nothing, and works while servers use the
//! database.

use std::path::Path;

use mainspring_core::Time;
use mainspring_kernel::store::StoreError;

use super::PostgresError;
use super::copy::PostgresDatabase;
use super::values::{get, get_u64, sql_limit};
use crate::copy::{CopyError, snapshot_copy};
use crate::{CopySummary, Verification};

/// A database at one instant.
pub struct PostgresView {
    database: PostgresDatabase,
}

impl PostgresView {
    /// Opens the database at `url`, which must have the tables of this version. Returns `None` if it has none.
    pub fn open(url: &str) -> Result<Option<Self>, PostgresError> {
        Ok(PostgresDatabase::snapshot(url)?.map(|database| Self { database }))
    }

    /// Returns hashes and sizes of the contents of artifacts, ordered by hash, after `after`.
    pub fn blob_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, u64)>, StoreError> {
        let rows = self.database.rows(super::read::records::BLOB_PAGE, &[&after, &sql_limit(limit)]);
        let rows = rows.map_err(|error| super::error::read_error(&error))?;
        rows.iter().map(|row| Ok((get(row, 0)?, get_u64(row, 1)?))).collect()
    }

    /// Copies the database into the new SQLite file `to`, without API keys, and compares both.
    pub fn copy_to(&mut self, to: &Path, now: Time) -> Result<CopySummary, CopyError> {
        snapshot_copy(&mut self.database, to, now)
    }

    /// Verifies the whole database.
    pub fn verify(&self) -> Result<Vec<Verification>, CopyError> {
        self.database.verify_all()
    }
}

impl std::fmt::Debug for PostgresView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresView").finish_non_exhaustive()
    }
}
