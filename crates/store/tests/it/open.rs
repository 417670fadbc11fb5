//! Opening a database: a refused file is reported and unchanged.

use std::fs;
use std::path::{Path, PathBuf};

use mainspring_store::{OpenError, SCHEMA_VERSION, SqliteOptions, SqliteStore};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::fixtures::*;

fn database() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    sqlite_open(folder.path()).close();
    let path = folder.path().join("test.sqlite3");
    (folder, path)
}

fn file_names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Opens a database that must be refused, and checks that nothing changed.
fn open_error(path: &Path) -> OpenError {
    let (bytes, files) = (fs::read(path).ok(), file_names(path.parent().unwrap()));
    let error = SqliteStore::open(path, SqliteOptions::default(), NOW).unwrap_err();
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    assert_eq!(fs::read(path).ok(), bytes, "{error}: the file changed");
    assert_eq!(file_names(path.parent().unwrap()), files, "{error}: a file was added or removed");
    error
}

#[test]
fn a_closed_store_is_one_file_and_its_history() {
    let (folder, _) = database();
    assert_eq!(file_names(folder.path()), ["test.sqlite3", "test.sqlite3-history"]);
}

#[test]
fn a_folder_is_not_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.sqlite3");
    fs::create_dir(&path).unwrap();
    assert!(matches!(open_error(&path), OpenError::NotAFile { .. }));
}

#[test]
fn a_text_file_is_not_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.sqlite3");
    for text in ["hello", &"dear diary, ".repeat(1000)] {
        fs::write(&path, text).unwrap();
        assert!(matches!(open_error(&path), OpenError::NotADatabase { .. }));
    }
}

#[test]
fn the_database_of_another_program_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.sqlite3");
    let foreign = Connection::open(&path).unwrap();
    foreign.execute_batch("CREATE TABLE sessions (id TEXT); INSERT INTO sessions VALUES ('theirs')").unwrap();
    drop(foreign);
    assert!(matches!(open_error(&path), OpenError::Foreign { .. }));
}

#[test]
fn the_error_for_a_newer_database_asks_for_an_upgrade() {
    let (_folder, path) = database();
    let newer = Connection::open(&path).unwrap();
    newer.pragma_update(None, "journal_mode", "DELETE").unwrap();
    newer.pragma_update(None, "user_version", SCHEMA_VERSION + 1).unwrap();
    drop(newer);
    let error = open_error(&path);
    assert!(matches!(error, OpenError::Newer { found, .. } if found == SCHEMA_VERSION + 1), "{error:?}");
    assert!(error.to_string().contains("upgrade"), "{error}");
}

#[test]
fn a_damaged_database_is_refused() {
    let (_folder, path) = database();
    let intact = fs::read(&path).unwrap();
    let mut overwritten = intact.clone();
    overwritten[100..4096].fill(0xA5);
    let damaged = [intact[..50].to_vec(), intact[..intact.len() / 2].to_vec(), overwritten];
    for bytes in damaged {
        fs::write(&path, bytes).unwrap();
        let error = open_error(&path);
        assert!(matches!(error, OpenError::Corrupt { .. }), "{error:?}");
        assert!(error.to_string().contains("backup"), "{error}");
    }
}

#[test]
fn a_read_only_database_is_refused() {
    let (_folder, path) = database();
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();
    assert!(matches!(open_error(&path), OpenError::ReadOnly { .. }));
}

#[test]
fn the_error_for_a_missing_folder_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/test.sqlite3");
    let error = SqliteStore::open(&path, SqliteOptions::default(), NOW).unwrap_err();
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
}

#[test]
fn an_empty_file_and_an_unfinished_one_are_replaced_by_a_database() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("test.sqlite3"), "").unwrap();
    fs::write(folder.path().join("test.sqlite3.creating"), "half").unwrap();
    sqlite_open(folder.path()).close();
    assert_eq!(file_names(folder.path()), ["test.sqlite3", "test.sqlite3-history"]);
}

#[test]
fn a_file_name_that_looks_like_a_uri_is_used_as_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("50%?mode=memory#x.sqlite3");
    for _ in 0..2 {
        SqliteStore::open(&path, SqliteOptions::default(), NOW).unwrap().close();
    }
    let names = file_names(folder.path());
    assert_eq!(names, ["50%?mode=memory#x.sqlite3", "50%?mode=memory#x.sqlite3-history"]);
}
