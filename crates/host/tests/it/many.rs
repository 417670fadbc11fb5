//! Many clients through one pipe: no line is torn, mixed or lost, even with interrupts.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mainspring_http::HttpLimits;
use mainspring_test_support::Rng;
use mainspring_test_support::jsonl::is_end;
use serde_json::{Value, json};

use crate::world::{Host, Server};

const CLIENTS: usize = 4;
const QUERIES: usize = 200;

/// Known state of a query.
#[derive(Default)]
struct QueryState {
    session: Option<Value>,
    run: Option<Value>,
    text: String,
    asked_to_stop: usize,
    acknowledged: usize,
    end: Option<Value>,
}

#[test]
fn lines_of_four_clients_with_two_hundred_queries_each_are_never_mixed() {
    answer_queries(HttpLimits::default());
}

#[test]
fn no_query_is_lost_when_the_server_closes_idle_connections_soon() {
    // Not sooner: about once in ten thousand cases, hyper loses a request that is sent at the moment at which the
    // server closes the connection (https://github.com/hyperium/hyper/issues/2312).
    answer_queries(HttpLimits { header_ms: 50, ..HttpLimits::default() });
}

/// Checks the lines of four clients whose queries are interrupted at random.
fn answer_queries(limits: HttpLimits) {
    let seed = u64::from(std::process::id()) | 1 << 40;
    eprintln!("seed {seed}");
    let mut rng = Rng::new(seed);
    let server = Server::with(|node| node.sqlite().limits(limits));
    let _shown = ShownOnPanic(server.clone());
    let mut host = Host::of(&server);
    let mut queries: BTreeMap<(String, String), QueryState> = BTreeMap::new();
    let (mut asked, mut ended) = (vec![0; CLIENTS], 0);
    // Each client has a few queries in progress, in its own sessions and in a shared one.
    while ended < CLIENTS * QUERIES {
        for (client, asked) in asked.iter_mut().enumerate() {
            while *asked < QUERIES && *asked < ended / CLIENTS + 12 {
                let line = random_query(client, *asked, &mut rng);
                queries.insert(
                    (line["clientId"].as_str().unwrap().into(), line["requestId"].as_str().unwrap().into()),
                    QueryState::default(),
                );
                host.send(&line);
                *asked += 1;
                if rng.below(4) == 0 {
                    interrupt(&mut host, &mut queries, client, &mut rng);
                }
            }
        }
        let line = host.receive();
        let name =
            (line["clientId"].as_str().unwrap().to_owned(), line["requestId"].as_str().unwrap().to_owned());
        let query = queries.get_mut(&name).unwrap_or_else(|| panic!("nobody asked for {line}"));
        ended += usize::from(record_line(query, &name, line));
    }
    // Interrupts of ended queries are still answered.
    for line in host.close() {
        assert_eq!(line["type"], "cancel_ack", "{line}");
        let name =
            (line["clientId"].as_str().unwrap().to_owned(), line["requestId"].as_str().unwrap().to_owned());
        queries.get_mut(&name).unwrap().acknowledged += 1;
    }
    let mut statuses: HashMap<String, usize> = HashMap::new();
    for (name, query) in &queries {
        assert_eq!(query.acknowledged, query.asked_to_stop, "{name:?}");
        let end = query.end.as_ref().unwrap();
        *statuses.entry(end["terminalStatus"].as_str().unwrap_or("error").to_owned()).or_default() += 1;
    }
    eprintln!("{statuses:?}");
    assert!(statuses["succeeded"] > 200 && statuses["cancelled"] > 20, "{statuses:?}");
}

/// Shows the unfinished runs of a server when the test fails.
struct ShownOnPanic(Arc<Server>);

impl Drop for ShownOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let runs = self.0.runs();
            let unfinished: Vec<_> = runs.iter().filter(|run| !run.state.status().is_ended()).collect();
            eprintln!("{} runs, unfinished: {unfinished:#?}", runs.len());
        }
    }
}

fn random_query(client: usize, no: usize, rng: &mut Rng) -> Value {
    let word = format!("c{client}q{no}");
    let prompt = match rng.below(6) {
        0 => format!("say {word}; tool echo {{\"text\":\"{word}\"}}; say {word}"),
        1 => format!("stream 30 every 1ms {word}"),
        2 => format!("say {word}; sleep 5ms; fail {word}"),
        3 => format!("stream 3000 {word}"),
        _ => format!("say {word}"),
    };
    let key = match rng.below(4) {
        0 => "shared".to_owned(),
        lane => format!("c{client}s{lane}"),
    };
    json!({
        "type": "query", "protocolVersion": 2, "requestId": format!("q{no}"), "clientId": format!("c{client}"),
        "legacySessionKey": key, "prompt": prompt, "systemPrompt": "",
    })
}

fn interrupt(
    host: &mut Host,
    queries: &mut BTreeMap<(String, String), QueryState>,
    client: usize,
    rng: &mut Rng,
) {
    let mine: Vec<_> = queries
        .iter()
        .filter(|((name, _), query)| *name == format!("c{client}") && query.end.is_none())
        .map(|(name, _)| name.clone())
        .collect();
    let (client, request) = &mine[usize::try_from(rng.below(mine.len() as u64)).unwrap()];
    host.send(&json!({"type": "interrupt", "protocolVersion": 2, "requestId": request, "clientId": client}));
    queries.get_mut(&(client.clone(), request.clone())).unwrap().asked_to_stop += 1;
}

/// Records a line; true if the line ends its query.
fn record_line(query: &mut QueryState, name: &(String, String), line: Value) -> bool {
    if line["type"] == "cancel_ack" {
        query.acknowledged += 1;
        // An acknowledgement after the end names no run.
        if let (Some(run), Some(acknowledged)) = (&query.run, line.get("runId")) {
            assert_eq!(run, acknowledged, "{name:?}: {line}");
        }
        return false;
    }
    assert!(query.end.is_none(), "{name:?} has ended before {line}");
    // All lines of a query name the same run.
    for (known, field) in [(&mut query.session, "sessionId"), (&mut query.run, "runId")] {
        assert_eq!(known.get_or_insert_with(|| line[field].clone()), &line[field], "{name:?}: {line}");
    }
    let word = format!("{}{}", name.0, name.1);
    match line["type"].as_str().unwrap() {
        "text_delta" => query.text.push_str(line["text"].as_str().unwrap()),
        "tool_result_display" => assert_eq!(line["output"], format!("{{\"text\":\"{word}\"}}")),
        "tool_activity" => assert_eq!(line["name"], "echo"),
        "result" => {
            assert_eq!(line["text"], query.text, "{name:?}: the streamed text is the final text");
            if line["terminalStatus"] == "cancelled" {
                assert!(query.asked_to_stop > 0, "{name:?} was cancelled without an interrupt");
            }
        }
        "error" => assert_eq!(line["message"], word, "{line}"),
        other => panic!("{other}"),
    }
    assert!(query.text.split_whitespace().all(|part| part == word), "{name:?} received {:?}", query.text);
    if is_end(&line) {
        query.end = Some(line);
        return true;
    }
    false
}
