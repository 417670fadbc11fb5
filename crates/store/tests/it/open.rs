//! Opening: what is refused is named, and left as it was.

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

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Opens what must be refused, and makes sure that nothing changed.
fn refused(path: &Path) -> OpenError {
    let (bytes, files) = (fs::read(path).ok(), names(path.parent().unwrap()));
    let error = SqliteStore::open(path, SqliteOptions::default(), NOW).unwrap_err();
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    assert_eq!(fs::read(path).ok(), bytes, "{error}: the file changed");
    assert_eq!(names(path.parent().unwrap()), files, "{error}: a file came or went");
    error
}

#[test]
fn a_closed_store_is_one_file() {
    let (folder, _) = database();
    assert_eq!(names(folder.path()), ["test.sqlite3"]);
}

#[test]
fn a_folder_is_not_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.sqlite3");
    fs::create_dir(&path).unwrap();
    assert!(matches!(refused(&path), OpenError::NotAFile { .. }));
}

#[test]
fn a_text_is_not_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.sqlite3");
    for text in ["hello", &"dear diary, ".repeat(1000)] {
        fs::write(&path, text).unwrap();
        assert!(matches!(refused(&path), OpenError::NotADatabase { .. }));
    }
}

#[test]
fn the_database_of_another_program_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.sqlite3");
    let theirs = Connection::open(&path).unwrap();
    theirs.execute_batch("CREATE TABLE sessions (id TEXT); INSERT INTO sessions VALUES ('theirs')").unwrap();
    drop(theirs);
    assert!(matches!(refused(&path), OpenError::Foreign { .. }));
}

#[test]
fn a_newer_database_asks_for_an_upgrade() {
    let (_folder, path) = database();
    let newer = Connection::open(&path).unwrap();
    newer.pragma_update(None, "journal_mode", "DELETE").unwrap();
    newer.pragma_update(None, "user_version", SCHEMA_VERSION + 1).unwrap();
    drop(newer);
    let error = refused(&path);
    assert!(matches!(error, OpenError::Newer { found, .. } if found == SCHEMA_VERSION + 1), "{error:?}");
    assert!(error.to_string().contains("upgrade"), "{error}");
}

#[test]
fn damage_is_seen() {
    let (_folder, path) = database();
    let whole = fs::read(&path).unwrap();
    let mut overwritten = whole.clone();
    overwritten[100..4096].fill(0xA5);
    let damaged = [whole[..50].to_vec(), whole[..whole.len() / 2].to_vec(), overwritten];
    for bytes in damaged {
        fs::write(&path, bytes).unwrap();
        let error = refused(&path);
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
    assert!(matches!(refused(&path), OpenError::ReadOnly { .. }));
}

#[test]
fn a_missing_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/test.sqlite3");
    let error = SqliteStore::open(&path, SqliteOptions::default(), NOW).unwrap_err();
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
}

#[test]
fn an_empty_file_and_a_half_made_one_become_a_database() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("test.sqlite3"), "").unwrap();
    fs::write(folder.path().join("test.sqlite3.creating"), "half").unwrap();
    sqlite_open(folder.path()).close();
    assert_eq!(names(folder.path()), ["test.sqlite3"]);
}

#[test]
fn a_name_that_looks_like_a_query_is_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("50%?mode=memory#x.sqlite3");
    for _ in 0..2 {
        SqliteStore::open(&path, SqliteOptions::default(), NOW).unwrap().close();
    }
    assert_eq!(names(folder.path()), ["50%?mode=memory#x.sqlite3"]);
}
