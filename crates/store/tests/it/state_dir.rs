//! The state directory: one owner, and clear errors for other processes.

use std::fs;

use mainspring_store::{StateDir, StateDirError};

use crate::fixtures::*;

#[test]
fn opening_creates_a_private_folder_and_owns_it() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("a/state");
    let owned = StateDir::open(&path, NOW, node_id(1)).unwrap();
    assert_eq!(owned.path(), path);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    }
    let owner = StateDir::peek(&path).unwrap().unwrap();
    assert_eq!((owner.pid, owner.since, owner.node), (std::process::id(), NOW, Some(node_id(1))));
}

#[test]
fn the_lock_file_names_a_database_that_is_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let store = || StateDir::peek(folder.path()).unwrap().and_then(|owner| owner.store);
    let owned = StateDir::open_for(folder.path(), NOW, node_id(1), Some("postgres://db/main")).unwrap();
    assert_eq!(store().as_deref(), Some("postgres://db/main"));
    drop(owned);
    let _owned = StateDir::open(folder.path(), NOW, node_id(1)).unwrap();
    assert_eq!(store(), None);
}

#[test]
fn the_error_of_a_second_owner_names_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let _owned = StateDir::open(folder.path(), NOW, node_id(1)).unwrap();
    let before = fs::read(folder.path().join("mainspring.lock")).unwrap();
    let error = StateDir::open(folder.path(), NOW.plus(1), node_id(2)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, StateDirError::Busy { .. }));
    assert!(text.contains(&folder.path().display().to_string()), "{text}");
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    assert_eq!(fs::read(folder.path().join("mainspring.lock")).unwrap(), before);
}

#[test]
fn ownership_ends_with_the_owner() {
    let folder = tempfile::tempdir().unwrap();
    drop(StateDir::open(folder.path(), NOW, node_id(1)).unwrap());
    assert_eq!(StateDir::peek(folder.path()).unwrap(), None);
    StateDir::open(folder.path(), NOW, node_id(2)).unwrap();
}

#[test]
fn the_lock_file_of_a_crashed_owner_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mainspring.lock"), r#"{"pid":1,"version":"0","sinceMs":0,"node":null}"#)
        .unwrap();
    assert_eq!(StateDir::peek(folder.path()).unwrap(), None);
    StateDir::open(folder.path(), NOW, node_id(2)).unwrap();
}

#[test]
fn peeking_creates_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("missing");
    assert_eq!(StateDir::peek(&path).unwrap(), None);
    assert!(!path.exists());
}

#[test]
fn a_file_is_not_a_folder() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("file");
    fs::write(&path, "mine").unwrap();
    for path in [path.clone(), path.join("beneath")] {
        let error = StateDir::open(&path, NOW, node_id(1)).unwrap_err();
        assert!(matches!(error, StateDirError::NotAFolder { .. }), "{error:?}");
        assert!(error.to_string().contains("--state-dir"), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}
