//! `mainspring webhook`, against a server and a receiver on this machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use serde_json::{Value, json};

use crate::cli::{CommandOutput, json_lines, run};
use crate::http::Server;

/// Answers each delivery with the next of these statuses, 200 after the last, and passes its body on.
fn receive(listener: &TcpListener, statuses: &[u16], bodies: &Sender<Value>) {
    let mut statuses = statuses.iter();
    for connection in listener.incoming() {
        let status = statuses.next().copied().unwrap_or(200);
        let Ok(body) = connection.and_then(|connection| answer(connection, status)) else { return };
        if bodies.send(body).is_err() {
            return;
        }
    }
}

fn answer(mut connection: TcpStream, status: u16) -> std::io::Result<Value> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line)? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    write!(connection, "HTTP/1.1 {status} Test\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?;
    Ok(serde_json::from_slice(&body)?)
}

/// Starts a receiver. Returns its address and the bodies that it receives.
fn receiver(statuses: &'static [u16]) -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (sender, bodies) = channel();
    thread::spawn(move || receive(&listener, statuses, &sender));
    (url, bodies)
}

#[tokio::test]
async fn a_webhook_is_added_tested_retried_and_removed_on_the_command_line() {
    let server = Server::start_with(&[("MAINSPRING_WEBHOOKS_PRIVATE", "true")]);
    let webhook =
        |arguments: &[&str]| -> CommandOutput { run(server.dir.path(), &[&["webhook"], arguments].concat()) };
    assert!(webhook(&["list"]).err.contains("mainspring webhook add URL"));
    // The first delivery is the test, the second one is refused.
    let (url, bodies) = receiver(&[200, 400]);
    let added = webhook(&["add", &url, "--types", "run.failed,approval"]);
    assert_eq!(added.code, 0, "{}", added.err);
    assert!(
        added.out.starts_with("whsec_") && added.out.lines().count() == 1,
        "only the secret: {}",
        added.out
    );
    let listed = json_lines(&webhook(&["list", "--json"]));
    assert_eq!((listed.len(), &listed[0]["url"]), (1, &json!(url)));
    assert_eq!(listed[0]["types"], json!(["run.failed", "approval"]));
    let id = listed[0]["webhookId"].as_str().unwrap();
    // A unique prefix of the id is enough.
    let short = &id[..id.len() - 20];
    let tested = webhook(&["test", short]);
    assert_eq!((tested.code, tested.out.trim()), (0, "the test event was delivered"), "{}", tested.err);
    assert_eq!(bodies.recv().unwrap()["type"], "webhook.test");
    let nameless = webhook(&["test", "hook_"]);
    assert!(nameless.err.contains("give some digits"), "{}", nameless.err);
    assert_eq!(webhook(&["dead", short]).err.trim(), "every event was delivered");
    let failed = server.prompt("a", "fail no milk").await;
    server.wait_ended(&failed).await;
    let sent = bodies.recv().unwrap();
    assert_eq!((&sent["type"], &sent["runId"]), (&json!("run.failed"), &failed["runId"]));
    // The letter is written after the answer has arrived.
    let dead = loop {
        let dead = json_lines(&webhook(&["dead", short, "--json"]));
        if !dead.is_empty() {
            break dead;
        }
    };
    assert_eq!((&dead[0]["eventType"], &dead[0]["attempts"]), (&json!("run.failed"), &json!(1)));
    assert!(webhook(&["list"]).out.contains("the receiver answers 400"));
    let retried = webhook(&["retry", short]);
    assert_eq!(retried.code, 0, "{} {}", retried.out, retried.err);
    assert_eq!(bodies.recv().unwrap()["eventId"], sent["eventId"]);
    assert_eq!(webhook(&["dead", short]).err.trim(), "every event was delivered");
    let unknown = webhook(&["remove", "--yes", "hook_ffff"]);
    assert!(unknown.code != 0 && unknown.err.contains("mainspring webhook list"), "{}", unknown.err);
    assert_eq!(webhook(&["remove", "--yes", id]).code, 0);
    assert!(json_lines(&webhook(&["list", "--json"])).is_empty());
}

#[test]
fn an_address_of_this_machine_is_refused_unless_it_is_allowed() {
    let server = Server::start();
    let refused = run(server.dir.path(), &["webhook", "add", "http://127.0.0.1:9/hook"]);
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("webhooks_private"), "{}", refused.err);
}
