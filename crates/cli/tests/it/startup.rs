//! Refusals at the start of the program, with the reason and the remedy: folders of other users, links, exposed keys,
//! and paths that are not files.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use mainspring_test_support::tls_file;
use rustix::process::geteuid;
use serde_json::Value;

use crate::cli::{CommandOutput, bare_command, command_output, run};

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// The code and the message of the error that a command ends with.
fn error(output: &CommandOutput) -> (String, String) {
    let line = output.err.lines().next_back().unwrap_or_default();
    let error: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{}{}", output.out, output.err));
    let text = |name: &str| error["error"][name].as_str().unwrap().to_owned();
    (text("code"), text("message"))
}

/// Sends a prompt, which must be refused because the state directory is not private. Returns the message.
fn exposed(home: &Path) -> String {
    let output = run(home, &["prompt", "say hi", "--json"]);
    let (code, message) = error(&output);
    assert_eq!((output.code, code.as_str()), (5, "state_dir_exposed"), "{message}");
    message
}

#[test]
fn a_state_directory_of_another_user_is_refused_even_by_root() {
    // Only root can give a file away.
    if !geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (home, state) = (dir.path(), dir.path().join("state"));
    assert_eq!(run(home, &["prompt", "say hi"]).code, 0);
    for name in ["", "token", "mainspring.sqlite3", "audit"] {
        let path = state.join(name);
        chown(&path, Some(65_534), None).unwrap();
        let message = exposed(home);
        assert!(message.contains("belongs to another user"), "{name}: {message}");
        assert!(message.contains("chown"), "{name}: {message}");
        chown(&path, Some(0), None).unwrap();
    }
    assert_eq!(run(home, &["prompt", "say hi"]).code, 0);
}

#[test]
fn a_parent_folder_in_which_others_can_rename_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    for above in [dir.path(), &home] {
        set_mode(above, 0o777);
        let message = exposed(&home);
        assert!(message.contains("who could put another state directory in the place of yours"), "{message}");
        // As in /tmp: other users can rename only their own files.
        set_mode(above, 0o1777);
        assert_eq!(run(&home, &["prompt", "say hi"]).code, 0);
        set_mode(above, 0o755);
    }
}

#[test]
fn folders_and_databases_behind_links_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (home, state) = (dir.path(), dir.path().join("state"));
    assert_eq!(run(home, &["prompt", "say hi"]).code, 0);
    for name in ["audit", "artifacts", "keys", "mainspring.sqlite3"] {
        let (path, elsewhere) = (state.join(name), home.join("elsewhere"));
        if !path.exists() {
            fs::create_dir(&path).unwrap();
        }
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        let message = exposed(home);
        assert!(message.contains(name) && message.contains("is a symbolic link"), "{message}");
        fs::remove_file(&path).unwrap();
        fs::rename(&elsewhere, &path).unwrap();
    }
    assert_eq!(run(home, &["prompt", "say hi"]).code, 0);
}

/// Starts a server with this certificate and key, which must be refused. Returns the code and the message.
fn refused_tls(home: &Path, cert: &Path, key: &Path) -> (String, String) {
    let mut command = bare_command(home);
    command.env("MAINSPRING_TLS_CERT", cert).env("MAINSPRING_TLS_KEY", key);
    let output =
        command_output(command.args(["serve", "--listen", "127.0.0.1:0", "--json"]).output().unwrap());
    assert_ne!(output.code, 0);
    error(&output)
}

#[test]
fn a_key_that_others_can_read_and_paths_that_are_not_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    let (cert, key) = (home.join("cert.pem"), home.join("key.pem"));
    fs::copy(tls_file("one.cert.pem"), &cert).unwrap();
    fs::copy(tls_file("one.key.pem"), &key).unwrap();
    for mode in [0o644, 0o604, 0o620, 0o602] {
        set_mode(&key, mode);
        let (code, message) = refused_tls(home, &cert, &key);
        assert_eq!(code, "tls_unusable");
        assert!(message.contains(&format!("mode {mode:04o}")) && message.contains("chmod 600"), "{message}");
    }
    set_mode(&key, 0o640);
    let zero = Path::new("/dev/zero");
    for (cert, key) in [(zero, key.as_path()), (cert.as_path(), zero), (home, key.as_path())] {
        let (code, message) = refused_tls(home, cert, key);
        assert_eq!(code, "tls_unusable", "{message}");
        assert!(message.contains("not a regular file"), "{message}");
    }
    let large = home.join("large.pem");
    fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
    assert!(refused_tls(home, &large, &key).1.contains("larger than"));
}

#[test]
fn a_configuration_that_is_not_a_regular_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    let pipe = home.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for file in [Path::new("/dev/zero"), &pipe] {
        let mut command = bare_command(home);
        command.env("MAINSPRING_CONFIG", file).args(["config", "show", "--json"]);
        let output = command_output(command.output().unwrap());
        assert_ne!(output.code, 0, "{}", file.display());
        assert!(output.err.contains("not a regular file"), "{}: {}", file.display(), output.err);
    }
    assert_eq!(run(home, &["prompt", "say hi"]).code, 0);
    let token = home.join("state/token");
    fs::remove_file(&token).unwrap();
    assert!(std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&token).status().unwrap().success());
    let output = run(home, &["prompt", "say hi", "--json"]);
    assert_ne!(output.code, 0);
    assert!(output.err.contains("regular file"), "{}", output.err);
}
