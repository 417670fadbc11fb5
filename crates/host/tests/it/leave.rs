//! The end of a conversation: the host disconnects, or its server ends.

use std::convert::Infallible;
use std::future::{pending, ready};

use mainspring_client::Client;
use mainspring_core::RunStatus;
use mainspring_host::Successor;
use mainspring_system::clock::Clock;
use mainspring_test_support::TOKEN;
use serde_json::{Value, json};

use crate::world::{Host, Server};

#[test]
fn the_end_of_the_input_waits_for_the_answers() {
    let mut host = Host::start();
    host.query("one", "a", "sleep 50ms; say one");
    host.query("two", "a", "say two");
    let rest = host.close();
    let ends: Vec<&Value> =
        rest.iter().filter(|line| line["type"] == "result").map(|line| &line["text"]).collect();
    assert_eq!(ends, [&json!("one\n"), &json!("two\n")], "{rest:?}");
}

#[test]
fn stop_cancels_open_queries_latest_first() {
    let mut host = Host::start();
    let server = host.server.clone();
    host.query("active", "a", "say half; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    host.query("queued", "a", "say never");
    while server.runs().len() < 2 {}
    let rest = host.stop();
    let ends: Vec<_> = rest
        .iter()
        .map(|line| (line["requestId"].as_str().unwrap(), line["terminalStatus"].as_str().unwrap()))
        .collect();
    assert_eq!(ends, [("queued", "cancelled"), ("active", "cancelled")]);
    assert!(server.runs().iter().all(|run| run.state.status() == RunStatus::Cancelled));
}

#[test]
fn nothing_starts_after_stop() {
    // One worker, and queries of different sessions: the first one runs, the others are queued.
    let server = Server::with(|builder| builder.options(|options| options.max_workers = 1));
    let mut host = Host::of(&server);
    host.query("0", "s0", "say begun; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    for no in 1..8 {
        host.query(&no.to_string(), &format!("s{no}"), "say never");
    }
    while server.runs().len() < 8 {}
    let rest = host.stop();
    assert!(rest.iter().all(|line| line["type"] == "result"), "{rest:?}");
    let runs = server.runs();
    assert!(runs.iter().all(|run| run.state.status() == RunStatus::Cancelled), "{runs:?}");
    assert_eq!(runs.iter().filter(|run| run.attempts > 0).count(), 1, "{runs:?}");
}

#[test]
fn queries_of_different_sessions_start_in_the_order_of_their_lines() {
    let server = Server::with(|builder| builder.options(|options| options.max_workers = 1));
    let mut host = Host::of(&server);
    for no in 0..32 {
        host.query(&no.to_string(), &format!("s{no}"), "say done");
    }
    let rest = host.close();
    let ends: Vec<_> = rest.iter().filter(|line| line["type"] == "result").collect();
    assert_eq!(ends.len(), 32);
    let mut runs = server.runs();
    runs.sort_by_key(|run| run.request.request_id.as_ref().unwrap().parse::<u32>().unwrap());
    let started: Vec<_> = runs.iter().map(|run| run.started_at).collect();
    assert!(started.is_sorted(), "{started:?}");
}

#[test]
fn a_query_goes_on_when_another_server_takes_over() {
    let server = Server::start();
    let first = server.runtime.block_on(server.node.listen());
    let client = Client::over_tcp(&first.url(), TOKEN).unwrap();
    let (mut host, mut keeper) = Host::through(&server, client, |_| {});
    host.query("r", "k", "say before; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    drop(first);
    server.runtime.block_on(keeper.lost());
    keeper.found(server.client(), Successor::Other);
    host.query("next", "other", "say after");
    assert_eq!(host.receive_end("next")["text"], "after\n");
    host.send(&json!({"type": "interrupt", "protocolVersion": 2, "requestId": "r", "clientId": "test"}));
    let end = host.receive_end("r");
    assert_eq!((&end["terminalStatus"], &end["text"]), (&json!("cancelled"), &json!("before\n")), "{end}");
    assert_eq!(server.runs().len(), 2, "each query is one run");
}

#[test]
fn a_query_fails_when_no_server_follows() {
    let server = Server::start();
    let first = server.runtime.block_on(server.node.listen());
    let client = Client::over_tcp(&first.url(), TOKEN).unwrap();
    let (mut host, mut keeper) = Host::through(&server, client, |_| {});
    drop(first);
    host.query("r", "k", "say never");
    server.runtime.block_on(keeper.lost());
    keeper.give_up();
    let end = host.receive_end("r");
    assert_eq!((&end["type"], &end["code"]), (&json!("error"), &json!("transport_interruption")), "{end}");
    // The query found no server, or used an old connection that was closing.
    assert!(["unreachable", "connection_broken"].iter().any(|reason| end["reason"] == *reason), "{end}");
    assert_eq!(server.runs(), []);
}

#[test]
fn a_query_goes_on_after_every_broken_connection_to_the_own_server() {
    let server = Server::start();
    let listen = || server.runtime.block_on(server.node.listen());
    let [first, second] = [listen(), listen()];
    let client = |url: &str| Client::over_tcp(url, TOKEN).unwrap();
    let (mut host, mut keeper) = Host::through(&server, client(&first.url()), |_| {});
    keeper.found(client(&first.url()), Successor::Local);
    let mut clients = [client(&second.url()), server.client()].into_iter();
    server.runtime.spawn(async move {
        let next = move || ready(Ok::<_, Infallible>((clients.next().unwrap(), Successor::Local)));
        keeper.renew_until(&Clock::system(), pending::<()>(), next).await
    });
    host.query("r", "k", "say before; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    for (name, listening) in [("one", first), ("two", second)] {
        drop(listening);
        host.query(name, name, "say after");
        assert_eq!(host.receive_end(name)["text"], "after\n");
    }
    host.send(&json!({"type": "interrupt", "protocolVersion": 2, "requestId": "r", "clientId": "test"}));
    let end = host.receive_end("r");
    assert_eq!((&end["terminalStatus"], &end["text"]), (&json!("cancelled"), &json!("before\n")), "{end}");
}

#[test]
fn a_query_goes_on_when_a_server_at_another_address_answers_again() {
    let server = Server::start();
    let first = server.runtime.block_on(server.node.listen());
    let address = first.address.clone();
    let client = Client::over_tcp(&first.url(), TOKEN).unwrap();
    let (mut host, mut keeper) = Host::through(&server, client.clone(), |_| {});
    keeper.found(client.clone(), Successor::Remote);
    server.runtime.spawn(async move {
        let next = move || ready(Ok::<_, Infallible>((client.clone(), Successor::Remote)));
        keeper.renew_until(&Clock::system(), pending::<()>(), next).await
    });
    host.query("r", "k", "say before; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    drop(first);
    // The host learns that the server is away, and a new query is refused.
    host.query("next", "other", "say never");
    let (mut is_away, mut is_refused) = (false, false);
    while !(is_away && is_refused) {
        let line = host.receive();
        is_away |= line["requestId"] == "r" && line["reason"] == "not_responding";
        is_refused |= line["requestId"] == "next" && line["reason"] == "unreachable";
    }
    let _again = server.runtime.block_on(server.node.listen_on(&address));
    host.receive_until(|line| line["requestId"] == "r" && line["available"] == true);
    host.send(&json!({"type": "interrupt", "protocolVersion": 2, "requestId": "r", "clientId": "test"}));
    let end = host.receive_end("r");
    assert_eq!((&end["terminalStatus"], &end["text"]), (&json!("cancelled"), &json!("before\n")), "{end}");
}

#[test]
fn a_query_fails_when_the_own_server_does_not_answer() {
    let server = Server::start();
    let first = server.runtime.block_on(server.node.listen());
    let client = Client::over_tcp(&first.url(), TOKEN).unwrap();
    let (mut host, mut keeper) = Host::through(&server, client.clone(), |_| {});
    keeper.found(client.clone(), Successor::Local);
    drop(first);
    server.runtime.spawn(async move {
        let next = move || ready(Ok::<_, Infallible>((client.clone(), Successor::Local)));
        keeper.renew_until(&Clock::system(), pending::<()>(), next).await
    });
    host.query("r", "k", "say never");
    assert_eq!(host.receive_end("r")["code"], "transport_interruption");
    assert_eq!(server.runs(), []);
}
