//! `mainspring open`: the server that it starts, and the address with a ticket.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use mainspring_store::StateDir;
use reqwest::StatusCode;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::cli::{CommandOutput, command, command_output};
use crate::guests::Process;

/// A state directory whose server, if there is one, is ended on drop.
struct Served(tempfile::TempDir);

impl Served {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn pid(&self) -> Option<u32> {
        StateDir::peek(&self.path().join("state")).unwrap().map(|owner| owner.pid)
    }

    fn open(&self, arguments: &[&str], settings: &[(&str, &str)]) -> CommandOutput {
        let mut command = command(self.path());
        command.env("MAINSPRING_LISTEN", "127.0.0.1:0").envs(settings.iter().copied());
        command_output(command.arg("open").args(arguments).output().unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let pid = StateDir::peek(&self.path().join("state")).ok().flatten().map(|owner| owner.pid);
        if let Some(pid) = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Signs in with the ticket of an address, as the page does.
async fn redeem(url: &str) -> (StatusCode, Value) {
    mainspring::install_tls();
    let (base, ticket) = url.trim().split_once("/#ticket=").unwrap();
    let request = reqwest::Client::new().post(format!("{base}/v1/tickets/redeem")).header("origin", base);
    let answer = request.json(&json!({"ticket": ticket})).send().await.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

#[tokio::test]
async fn open_starts_a_server_and_prints_an_address_that_signs_in_once() {
    let served = Served::new();
    let first = served.open(&["--print"], &[]);
    assert_eq!(first.code, 0, "{}", first.err);
    assert!(first.out.starts_with("http://127.0.0.1:"), "{}", first.out);
    let (status, signed_in) = redeem(&first.out).await;
    assert_eq!(status, StatusCode::OK, "{signed_in}");
    assert_eq!(redeem(&first.out).await.0, StatusCode::UNAUTHORIZED);
    // A running server is used again.
    let pid = served.pid().unwrap();
    let second: Value = serde_json::from_str(&served.open(&["--json"], &[]).out).unwrap();
    let base = |url: &str| url.split("/#").next().unwrap().to_owned();
    assert_eq!(base(second["url"].as_str().unwrap()), base(&first.out));
    assert_eq!((served.pid().unwrap(), &second["opened"]), (pid, &json!(false)), "there is no display");
    assert_eq!(redeem(second["url"].as_str().unwrap()).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_process_that_serves_its_socket_only_opens_an_address() {
    let served = Served::new();
    let mut owner = Process::start(served.path(), &["feed", "--json"]);
    owner.read_line();
    let printed = served.open(&["--print"], &[]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert_eq!(redeem(&printed.out).await.0, StatusCode::OK);
    assert_eq!(served.pid(), Some(owner.id()), "no other server was started");
}

#[test]
fn a_stopped_owner_is_named() {
    let served = Served::new();
    let mut owner = Process::start(served.path(), &["feed", "--json"]);
    owner.read_line();
    owner.stop();
    let opened = served.open(&["--print"], &[]);
    assert_eq!(opened.code, 5, "{}", opened.err);
    let message =
        format!("error[not_responding]: process {}, which serves the sessions, does not answer", owner.id());
    assert!(opened.err.contains(&message), "{}", opened.err);
}

#[tokio::test]
async fn a_browser_gets_a_private_file_and_no_ticket_in_its_arguments() {
    let served = Served::new();
    let programs = served.path().join("bin");
    std::fs::create_dir(&programs).unwrap();
    let seen = served.path().join("seen");
    let script = format!("#!/bin/sh\nprintf '%s' \"$*\" > {}\n", seen.display());
    std::fs::write(programs.join("xdg-open"), script).unwrap();
    std::fs::set_permissions(programs.join("xdg-open"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let path = format!("{}:/usr/bin:/bin", programs.display());
    let opened = served.open(&[], &[("PATH", path.as_str()), ("DISPLAY", ":0")]);
    assert_eq!((opened.code, opened.out.as_str()), (0, ""), "{}", opened.err);
    let file = std::fs::read_to_string(&seen).unwrap();
    assert_eq!(Path::new(&file), served.path().join("state/open.html"));
    let html = std::fs::read_to_string(&file).unwrap();
    let url = html.split("url=").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(redeem(url).await.0, StatusCode::OK);
    // A browser that fails, or none: the address is printed.
    let none = served.open(&[], &[("PATH", "/nowhere"), ("DISPLAY", ":0")]);
    assert!(none.out.starts_with("http://127.0.0.1:"), "{} {}", none.out, none.err);
}

#[test]
fn waits_and_usage_are_listed_for_all_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| command_output(command(dir.path()).args(arguments).output().unwrap());
    assert_eq!(run(&["wait", "list"]).err.trim(), "nobody waits for you");
    run(&["prompt", "--session", "paid", "usage 10 5 0.5; say hi"]);
    assert_eq!(run(&["prompt", "--session", "asks", "ask Tea or coffee?"]).code, 7);
    let waits = run(&["wait", "list"]);
    assert!(waits.out.contains("asks") && waits.out.contains("Tea or coffee?"), "{}", waits.out);
    let usage = run(&["usage", "--by", "agent"]);
    assert!(usage.out.contains("script") && usage.out.contains("$0.5000"), "{} {}", usage.out, usage.err);
    let report: Value =
        serde_json::from_str(&run(&["usage", "--by", "session", "--days", "1", "--json"]).out).unwrap();
    assert_eq!((&report["total"]["runs"], report["groups"].as_array().map(Vec::len)), (&json!(2), Some(2)));
}
