//! A state directory is private: files that other users could read or write are refused at start, and no file is made
//! readable for other users.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::Value;

use crate::cli::{bare_command, command_output, run};
use crate::http::Server;
use crate::kill::example;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

/// Sends a prompt, which must be refused, and returns the message of the error.
fn refusal(home: &Path) -> String {
    let output = run(home, &["prompt", "say hi", "--json"]);
    assert_eq!(output.code, 5, "{}{}", output.out, output.err);
    let error: Value = serde_json::from_str(output.err.lines().next_back().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "state_dir_exposed", "{error}");
    error["error"]["message"].as_str().unwrap().to_owned()
}

/// Runs the command that a message names.
fn follow_remedy(message: &str) {
    let command = message.split('`').nth(1).unwrap();
    assert!(Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
}

#[test]
fn a_token_that_others_can_write_in_a_folder_that_others_can_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (home, state) = (dir.path(), dir.path().join("state"));
    assert_eq!(run(home, &["prompt", "say hi"]).code, 0);
    let token = state.join("token");
    set_mode(&token, 0o666);
    set_mode(&state, 0o777);
    let message = refusal(home);
    assert!(message.contains("mode 0777"), "{message}");
    follow_remedy(&message);
    let message = refusal(home);
    assert!(message.contains("token") && message.contains("mode 0666"), "{message}");
    follow_remedy(&message);
    assert_eq!(run(home, &["prompt", "say hi"]).code, 0);
}

#[test]
fn secrets_that_others_can_read_are_refused_and_other_files_made_private() {
    let dir = tempfile::tempdir().unwrap();
    let (home, state) = (dir.path(), dir.path().join("state"));
    assert_eq!(run(home, &["prompt", "say hi"]).code, 0);
    fs::create_dir(state.join("keys")).unwrap();
    fs::write(state.join("keys/acme.key"), "key").unwrap();
    for secret in ["token", "keys/acme.key"] {
        let secret = state.join(secret);
        set_mode(&secret, 0o644);
        let message = refusal(home);
        assert!(message.contains("is a secret that other users can read"), "{message}");
        follow_remedy(&message);
    }
    let database = state.join("mainspring.sqlite3");
    for writable in [&database, &state.join("audit"), &state.join("artifacts")] {
        if !writable.exists() {
            fs::create_dir(writable).unwrap();
        }
        set_mode(writable, 0o772);
        let message = refusal(home);
        assert!(message.contains("can be written by other users"), "{message}");
        follow_remedy(&message);
    }
    set_mode(&database, 0o644);
    set_mode(&state, 0o755);
    assert_eq!(run(home, &["prompt", "say hi"]).code, 0);
    assert_eq!((mode(&database), mode(&state)), (0o600, 0o700));
}

#[test]
fn a_token_behind_a_link_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (home, token) = (dir.path(), dir.path().join("state/token"));
    assert_eq!(run(home, &["prompt", "say hi"]).code, 0);
    fs::rename(&token, home.join("elsewhere")).unwrap();
    symlink(home.join("elsewhere"), &token).unwrap();
    let message = refusal(home);
    assert!(message.contains("is a symbolic link"), "{message}");
    follow_remedy(&message);
    assert_eq!(run(home, &["prompt", "say hi"]).code, 0);
    assert!(fs::symlink_metadata(&token).unwrap().is_file());
}

#[tokio::test]
async fn everything_in_the_state_directory_is_private_with_any_umask() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let home = dir.path();
    let server = Server::start_in_shell(dir.clone(), "umask 000");
    let run = server.prompt("a", "say hi").await;
    server.wait_ended(&run).await;
    let session = run["sessionId"].as_str().unwrap();
    let path = format!("/v1/sessions/{session}/artifacts?kind=file&name=a.txt");
    let put = server.request(reqwest::Method::POST, &path).body("bytes").send().await.unwrap();
    assert!(put.status().is_success(), "{}", put.text().await.unwrap());
    let mut folders = vec![home.join("state")];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 8, "{seen}");
}

/// The content of a prompt and its answer stays out of the log, even with the most verbose filter.
#[test]
fn prompts_and_answers_are_not_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    fs::create_dir(home.join("agent")).unwrap();
    let command = serde_json::json!([example("acp_agent"), home.join("agent"), "resume"]);
    let config = format!("[adapters.agent]\nkind = \"acp\"\ncommand = {command}\n");
    fs::write(home.join("mainspring.toml"), config).unwrap();
    for adapter in ["script", "agent"] {
        let mut command = bare_command(home);
        command.env("MAINSPRING_LOG", "trace").env("PATH", std::env::var("PATH").unwrap());
        command.args(["prompt", "--adapter", adapter, "say the-private-word"]);
        let output = command_output(command.output().unwrap());
        assert_eq!(output.code, 0, "{adapter}: {}", output.err);
        assert!(output.out.contains("the-private-word"), "{adapter}: {}", output.out);
        assert!(output.err.contains("the state directory is open"), "{adapter}: nothing was logged");
        let line = output.err.lines().find(|line| line.contains("the-private-word"));
        assert_eq!(line, None, "{adapter}");
    }
}

/// A process whose memory is hidden belongs to root in `/proc`, whichever user started it. For root that makes no
/// difference, so as root the test starts the server as another user.
#[cfg(target_os = "linux")]
#[test]
fn the_memory_and_the_variables_of_a_server_are_hidden() {
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_mainspring");
    let mut command = match rustix::process::geteuid().is_root() {
        false => Command::new(program),
        true => {
            std::os::unix::fs::chown(dir.path(), Some(65_534), Some(65_534)).unwrap();
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
            // Folders above the program may be closed to other users.
            command.args(["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search", program]);
            command
        }
    };
    command.env_clear().env("PATH", std::env::var("PATH").unwrap()).env("HOME", dir.path());
    command.env("MAINSPRING_STATE_DIR", dir.path().join("state")).current_dir(dir.path());
    command.args(["serve", "--listen", "127.0.0.1:0"]).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stderr.take().unwrap()), &mut line)
        .unwrap();
    let owner = fs::metadata(format!("/proc/{}/environ", child.id())).map(|found| found.uid());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("http://"), "{line}");
    assert_eq!(owner.unwrap(), 0);
}
