//! A host gets the same service from the owner of the sessions and from a guest, and correct results when one of them
//! exits.

use mainspring_test_support::jsonl::query;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::Host;
use crate::cli::{command, json_lines, run};
use crate::full_disk::limit_files;
use crate::guests::{Process, serve};

fn statuses(dir: &std::path::Path) -> Vec<String> {
    let listed = run(dir, &["run", "list", "--json", "--owner", "desktop-local-user"]);
    json_lines(&listed).iter().map(|run| run["status"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_guests_runs_continue_after_it_exits() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _) = serve(dir.path());
    let mut host = Host::start_with(dir.path(), &[], &[("MAINSPRING_DRAIN_MS", "1")]);
    host.query("r", "k", "say hello; tool add {\"a\":1,\"b\":2}");
    assert_eq!(host.receive_end("r")["text"], "hello\n");
    host.query("long", "k", "say here; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    let (rest, code) = host.close();
    assert_eq!((rest.len(), code), (1, 0));
    assert_eq!((&rest[0]["reason"], &rest[0]["requestId"]), (&"shutting_down".into(), &"long".into()));
    assert_eq!(
        statuses(dir.path()),
        ["running", "succeeded"],
        "a host that disconnects does not cancel its run"
    );
}

#[test]
fn a_guest_takes_over_from_a_killed_server_and_continues() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(dir.path());
    let mut host = Host::start(dir.path());
    host.query("active", "a", "say half; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    host.query("queued", "a", "say later");
    host.query("other", "b", "say other");
    host.receive_end("other");
    drop(server);
    let orphaned = host.receive_end("active");
    assert_eq!((&orphaned["type"], &orphaned["reason"]), (&"error".into(), &"executor_lost".into()));
    assert_eq!(host.receive_end("queued")["text"], "later\n");
    host.query("new", "a", "say new");
    assert_eq!(host.receive_end("new")["text"], "new\n");
}

#[test]
fn a_stopped_owner_is_reported_and_the_queries_go_on_when_it_continues() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(dir.path());
    let mut host = Host::start(dir.path());
    host.query("active", "a", "say half; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    let owner = Pid::from_raw(server.id().try_into().unwrap()).unwrap();
    kill_process(owner, Signal::STOP).unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", server.id())).unwrap();
    while !state().contains(") T ") {}
    host.query("new", "b", "say new");
    for request in ["active", "new"] {
        let status = host.receive();
        assert_eq!((&status["type"], &status["available"]), (&json!("status"), &json!(false)), "{status}");
        assert_eq!((&status["requestId"], &status["reason"]), (&json!(request), &json!("not_responding")));
        assert_eq!(status["code"], "runtime_not_ready");
    }
    // A host that starts meanwhile gets the status as well.
    let mut late = Host::spawn(dir.path(), &[], &[]);
    assert_eq!(late.receive()["reason"], "not_responding");
    kill_process(owner, Signal::CONT).unwrap();
    late.receive_init();
    let goes_on = |line: &Value| line["type"] == "status" && line["requestId"] == "active";
    let lines = host.receive_until(goes_on);
    assert_eq!(lines.last().unwrap()["available"], true, "{lines:?}");
    let is_end = |line: &Value| line["requestId"] == "new" && line["type"] == "result";
    let end = lines.into_iter().find(is_end).unwrap_or_else(|| host.receive_end("new"));
    assert_eq!(end["text"], "new\n");
    host.send(&json!({"type": "interrupt", "protocolVersion": 2, "requestId": "active", "clientId": "test"}));
    let end = host.receive_end("active");
    assert_eq!((&end["terminalStatus"], &end["text"]), (&"cancelled".into(), &"half\n".into()), "{end}");
    assert_eq!(statuses(dir.path()), ["succeeded", "cancelled"], "nothing lost, nothing twice");
}

#[test]
fn an_owner_that_ends_finishes_its_queries_and_new_ones_wait_for_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = command(dir.path());
    command.args(["serve", "--listen", "127.0.0.1:0"]).env("MAINSPRING_DRAIN_MS", "6000");
    let server = Process::serve_command(command);
    let mut host = Host::start(dir.path());
    host.query("active", "a", "say half; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    kill_process(Pid::from_raw(server.id().try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
    while dir.path().join("state/mainspring.sock").exists() {}
    host.query("new", "b", "say new");
    let lines = host.receive_query("new");
    let told: Vec<_> = lines
        .iter()
        .filter(|line| line["type"] == "status")
        .map(|line| (line["requestId"].as_str().unwrap(), line["available"] == true, line["reason"].as_str()))
        .collect();
    assert_eq!(told[0], ("new", false, Some("shutting_down")), "{lines:?}");
    assert!(told.iter().all(|(request, ..)| *request == "new"), "the active query goes on: {lines:?}");
    assert_eq!(lines.last().unwrap()["text"], "new\n");
    let end = lines.iter().find(|line| line["requestId"] == "active" && line["type"] == "result").unwrap();
    assert_eq!((&end["terminalStatus"], &end["text"]), (&"cancelled".into(), &"half\n".into()), "{end}");
}

#[test]
fn a_full_disk_is_reported_and_the_queries_go_on_when_there_is_space() {
    for is_guest in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let server = is_guest.then(|| serve(dir.path()).0);
        let mut host = Host::start(dir.path());
        let owner = server.as_ref().map_or(host.child.id(), |server| server.id());
        let owner = Pid::from_raw(owner.try_into().unwrap()).unwrap();
        host.query("active", "a", "say half; hang");
        host.receive_until(|line| line["type"] == "text_delta");
        limit_files(owner, Some(1));
        host.query("new", "b", "say new");
        let (mut refused, mut told) = (false, false);
        while !(refused && told) {
            let line = host.receive();
            let (kind, request) = (line["type"].as_str().unwrap(), line["requestId"].as_str().unwrap());
            assert_eq!(line["code"], "runtime_not_ready", "{line}");
            match (kind, request) {
                ("error", "new") => refused = true,
                ("status", "active") => told = line["available"] == false,
                // The status may arrive before the refusal.
                ("status", "new") => {}
                _ => panic!("{line}"),
            }
        }
        limit_files(owner, None);
        let status = host.receive();
        assert_eq!(
            (&status["requestId"], &status["available"]),
            (&json!("active"), &json!(true)),
            "{status}"
        );
        host.query("new", "b", "say new");
        assert_eq!(host.receive_end("new")["text"], "new\n");
        host.send(
            &json!({"type": "interrupt", "protocolVersion": 2, "requestId": "active", "clientId": "test"}),
        );
        assert_eq!(host.receive_end("active")["text"], "half\n");
        assert_eq!(statuses(dir.path()), ["succeeded", "cancelled"], "guest: {is_guest}");
    }
}

#[test]
fn a_host_goes_on_when_a_serve_takes_over_from_its_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::start(dir.path());
    host.query("before", "a", "say before");
    host.receive_end("before");
    let (server, _) = serve(dir.path());
    host.query("after", "a", "say after");
    assert_eq!(host.receive_end("after")["text"], "after\n");
    let doctor = run(dir.path(), &["doctor"]);
    assert!(doctor.out.contains(&format!("in use by process {}", server.id())), "{}", doctor.out);
}

#[test]
fn end_of_input_waits_for_open_queries() {
    for is_guest in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let _server = is_guest.then(|| serve(dir.path()));
        let mut host = Host::start(dir.path());
        host.query("one", "a", "sleep 50ms; say one");
        host.query("two", "a", "say two");
        let (rest, code) = host.close();
        let ends: Vec<&Value> =
            rest.iter().filter(|line| line["type"] == "result").map(|line| &line["text"]).collect();
        assert_eq!((ends, code), (vec![&json!("one\n"), &json!("two\n")], 0), "{rest:?}");
    }
}

#[test]
fn end_of_input_waits_no_longer_than_the_drain_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::start_with(dir.path(), &[], &[("MAINSPRING_DRAIN_MS", "50")]);
    host.query("active", "a", "say half; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    host.query("queued", "a", "say later");
    let (rest, code) = host.close();
    assert_eq!((rest.len(), code), (2, 0), "one end each: {rest:?}");
    let line_of = |request: &str| rest.iter().find(|line| line["requestId"] == request).unwrap();
    let cut_off = line_of("active");
    assert_eq!(
        (&cut_off["type"], &cut_off["terminalStatus"]),
        (&"result".into(), &"cancelled".into()),
        "{cut_off}"
    );
    assert_eq!(cut_off["text"], "half\n");
    assert_eq!(line_of("queued")["reason"], "shutting_down");
    assert_eq!(statuses(dir.path()), ["queued", "cancelled"], "the statuses are those of the lines");
    // The accepted query is executed by the next process.
    let mut host = Host::start(dir.path());
    host.send(&query("queued", "a", "say later"));
    assert_eq!(host.receive_end("queued")["text"], "later\n");
    // The first process stopped the active run, and recorded that.
    host.send(&query("active", "a", "say half; hang"));
    let end = host.receive_end("active");
    assert_eq!((&end["terminalStatus"], &end["text"]), (&"cancelled".into(), &"half\n".into()), "{end}");
    assert_eq!(end["runId"], cut_off["runId"]);
}

#[test]
fn a_bad_configuration_is_reported_on_the_protocol() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::spawn(dir.path(), &[], &[("MAINSPRING_MAX_WORKERS", "many")]);
    let (lines, code) = host.wait_ended();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&line["type"], &line["reason"]), (&"error".into(), &"invalid_config".into()), "{line}");
    assert!(line["message"].as_str().unwrap().contains("max_workers"), "{line}");
    assert_eq!(code, 2);
}

#[test]
fn stop_cancels_open_queries_and_reports_them() {
    for how in ["line", "signal", "guest"] {
        let dir = tempfile::tempdir().unwrap();
        let _server = (how == "guest").then(|| serve(dir.path()));
        let mut host = Host::start(dir.path());
        host.query("active", "a", "say half; hang");
        host.receive_until(|line| line["type"] == "text_delta");
        host.query("queued", "a", "say never");
        while statuses(dir.path()).len() < 2 {}
        match how {
            "signal" => kill_process(Pid::from_child(&host.child), Signal::TERM).unwrap(),
            _ => host.send(&json!({"type": "stop"})),
        }
        let (rest, code) = host.wait_ended();
        let ends: Vec<_> = rest
            .iter()
            .map(|line| (line["requestId"].as_str().unwrap(), line["terminalStatus"].as_str().unwrap()))
            .collect();
        assert_eq!(ends, [("queued", "cancelled"), ("active", "cancelled")], "{how}: {rest:?}");
        assert_eq!(code, 0, "{how}");
        assert_eq!(statuses(dir.path()), ["cancelled", "cancelled"], "{how}");
    }
}

#[test]
fn shutdown_does_not_wait_for_a_host_that_stopped_reading() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::start_with(dir.path(), &[], &[("MAINSPRING_DRAIN_MS", "50")]);
    host.query("r", "a", "stream 100000 every 1ms x");
    host.receive_until(|line| line["type"] == "text_delta");
    // A pipe whose other end is closed.
    host.output = std::io::BufReader::new(crate::jsonl::empty_pipe());
    assert!(host.child.wait().unwrap().success());
    assert_eq!(statuses(dir.path()), ["cancelled"]);
}

#[test]
fn a_host_receives_the_reason_of_a_failed_start() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("state"), "no folder").unwrap();
    let mut host = Host::spawn(dir.path(), &[], &[]);
    let line = host.receive();
    assert_eq!((&line["type"], &line["reason"]), (&"error".into(), &"state_dir_unusable".into()), "{line}");
    assert_eq!(host.wait_ended(), (vec![], 5));
}

#[test]
fn a_host_can_use_a_remote_server_with_a_key() {
    let (near, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_server, url) = serve(far.path());
    let made = json_lines(&run(far.path(), &["key", "create", "host", "--for", "ann", "--json"]));
    let key = made[0]["secret"].as_str().unwrap();
    let mut host = Host::start_with(near.path(), &["--url", &url], &[("MAINSPRING_KEY", key)]);
    host.query("mine", "k", "say mine");
    assert_eq!(host.receive_end("mine")["text"], "mine\n");
    let mut line = query("other", "k", "say x");
    line["ownerId"] = "ben".into();
    host.send(&line);
    assert_eq!(host.receive_end("other")["code"], "not_found", "a key is one owner's");
    let listed = json_lines(&run(far.path(), &["session", "list", "--json", "--owner", "ann"]));
    assert_eq!(listed.len(), 1);
}
