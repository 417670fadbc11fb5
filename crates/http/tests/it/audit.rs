//! The audit log: which requests are recorded, what a record holds, and who reads it.

use axum::http::{Method, StatusCode};
use mainspring_kernel::adapter::{AttemptHandle, Capabilities};
use mainspring_test_support::{FnAgent, TestNode, asking_agent};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::world::{Server, send_request};

/// The records of the log, without those that the log writes about itself.
async fn records(server: &Server) -> Vec<Value> {
    let (status, page) = server.get("/v1/audit?limit=200").await;
    assert_eq!(status, StatusCode::OK, "{page}");
    let items = page["items"].as_array().unwrap().clone();
    items.into_iter().filter(|record| record["kind"] != "system").collect()
}

async fn last_record(server: &Server) -> Value {
    records(server).await.pop().unwrap()
}

async fn new_key(server: &Server, body: Value) -> (Value, String) {
    let (status, key) = server.post("/v1/keys", body).await;
    assert_eq!(status, StatusCode::CREATED, "{key}");
    let secret = key["secret"].as_str().unwrap().to_owned();
    (key, secret)
}

#[tokio::test]
async fn a_change_is_recorded_with_its_caller_its_objects_and_its_outcome() {
    let server = Server::start().await;
    let run = server.play("main", "say hi").await;
    let records = records(&server).await;
    let [sign_in, accepted] = &records[..] else { panic!("{records:?}") };
    assert_eq!(sign_in["kind"], "sign_in");
    assert_eq!(sign_in["by"], json!({"type": "person", "ownerId": "local"}));
    assert_eq!(accepted["kind"], "change");
    assert_eq!(accepted["operation"], "run_create");
    assert_eq!(accepted["ownerId"], "local");
    assert_eq!(accepted["status"], 202);
    assert_eq!(accepted["about"], json!([run["sessionId"], run["runId"]]));
    // Reads are not recorded.
    server.get("/v1/runs").await;
    assert_eq!(self::records(&server).await.len(), 2);
}

#[tokio::test]
async fn a_key_and_its_owner_are_named_and_its_secret_is_not() {
    let server = Server::start().await;
    let (key, secret) = new_key(&server, json!({"name": "laptop", "ownerId": "ana", "orgId": "acme"})).await;
    let made = last_record(&server).await;
    assert_eq!(
        (&made["operation"], &made["ownerId"], &made["orgId"]),
        (&json!("key_create"), &json!("ana"), &json!("acme"))
    );
    assert_eq!(made["about"], json!([key["keyId"]]));
    let request = server.anonymous(Method::POST, "/v1/runs").bearer_auth(&secret);
    let prompt = "say the launch code is 0000";
    let (status, _) = send_request(request.json(&json!({"prompt": prompt, "session": {"key": "s"}}))).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let used = last_record(&server).await;
    assert_eq!(used["by"], json!({"type": "key", "ownerId": "ana", "keyId": key["keyId"]}));
    assert_eq!(used["orgId"], "acme");
    let (status, _) = server.delete(&format!("/v1/keys/{}", key["keyId"].as_str().unwrap())).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let revoked = last_record(&server).await;
    assert_eq!((&revoked["operation"], &revoked["ownerId"]), (&json!("key_revoke"), &json!("ana")));
    // Nothing secret or private is in the files.
    let mut text = String::new();
    for file in std::fs::read_dir(server.node.dir().join("audit")).unwrap() {
        text += &std::fs::read_to_string(file.unwrap().path()).unwrap();
    }
    assert!(text.contains("key_revoke"));
    for secret in [secret.as_str(), "launch code", mainspring_test_support::TOKEN] {
        assert!(!text.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn refusals_are_recorded() {
    let server = Server::start().await;
    let (_, viewer) = new_key(&server, json!({"name": "v", "ownerId": "eve", "role": "viewer"})).await;
    let run = server.prompt("main", "say hi").await;
    let run = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
    let refused = async |request: crate::world::RequestBuilder, status: StatusCode| {
        let (found, body) = send_request(request).await;
        assert_eq!(found, status, "{body}");
        let record = last_record(&server).await;
        assert_eq!((&record["kind"], &record["status"]), (&json!("refusal"), &json!(status.as_u16())));
        record
    };
    let none = refused(server.anonymous(Method::GET, "/v1/runs"), StatusCode::UNAUTHORIZED).await;
    assert_eq!((&none["operation"], &none["by"]["type"]), (&json!("run_list"), &json!("anonymous")));
    let guess = server.anonymous(Method::GET, "/v1/runs").bearer_auth("msk_guess");
    refused(guess, StatusCode::UNAUTHORIZED).await;
    let create = server.anonymous(Method::POST, "/v1/agents").bearer_auth(&viewer).json(&json!({"id": "a"}));
    let forbidden = refused(create, StatusCode::FORBIDDEN).await;
    assert_eq!((&forbidden["code"], &forbidden["ownerId"]), (&json!("forbidden"), &json!("eve")));
    // An object that a caller may not see is not found; the record names it.
    let foreign = server.anonymous(Method::GET, &run).bearer_auth(&viewer);
    let hidden = refused(foreign, StatusCode::NOT_FOUND).await;
    assert_eq!(hidden["about"], json!([run.rsplit('/').next().unwrap()]));
    let host = server.request(Method::GET, "/v1/runs").header("host", "evil.example");
    let host = refused(host, StatusCode::FORBIDDEN).await;
    assert_eq!(host["code"], "forbidden_host");
    // The text of a refused request is not recorded: it may be a secret in the wrong place.
    let misplaced = server.request(Method::GET, &format!("/v1/sessions/{viewer}"));
    assert_eq!(refused(misplaced, StatusCode::NOT_FOUND).await["about"], Value::Null);
}

#[tokio::test]
async fn requests_without_a_credential_cannot_flood_the_log() {
    let server = Server::start().await;
    for _ in 0..300 {
        send_request(server.anonymous(Method::GET, "/v1/runs")).await;
    }
    let refusals = records(&server).await.into_iter().filter(|record| record["kind"] == "refusal").count();
    assert_eq!(refusals, 10);
    // The next record that is admitted says how many were left out.
    server.node.clock.advance(60_000);
    send_request(server.anonymous(Method::GET, "/v1/runs")).await;
    let records = records(&server).await;
    let last = records.iter().rfind(|record| record["kind"] == "refusal").unwrap();
    let (_, page) = server.get("/v1/audit?limit=200").await;
    let counted = page["items"].as_array().unwrap().iter().filter_map(|record| record["count"].as_u64());
    assert_eq!(counted.sum::<u64>(), 290, "{last}");
}

#[tokio::test]
async fn the_record_of_a_decision_names_who_decided() {
    let server = Server::with(TestNode::builder().adapter(asking_agent())).await;
    let run = server.ask("s", "ls").await;
    let wait = run["wait"]["waitId"].clone();
    let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
    let answer = json!({"waitId": wait, "answer": {"kind": "approval", "decision": "denied"}});
    let (status, answered) = server.post(&format!("{path}/answer"), answer).await;
    assert_eq!(status, StatusCode::OK, "{answered}");
    let records = records(&server).await;
    let decision = records.iter().find(|record| record["kind"] == "decision").unwrap();
    assert_eq!(decision["decision"], "denied");
    assert_eq!(decision["by"], json!({"type": "person", "ownerId": "local"}));
    assert_eq!(decision["about"], json!([run["sessionId"], run["runId"], wait]));
    let answered = records.iter().find(|record| record["operation"] == "run_answer").unwrap();
    assert_eq!((&answered["kind"], &answered["status"]), (&json!("change"), &json!(200)));
}

#[tokio::test]
async fn a_request_whose_client_is_gone_is_recorded() {
    let server = Server::start().await;
    let body = json!({"prompt": "hang", "session": {"key": "main"}});
    let request = server.request(Method::POST, "/v1/runs").header("prefer", "wait=60").json(&body);
    let mut response = Box::pin(request.send());
    let accepted = async {
        loop {
            let (_, page) = server.get("/v1/runs").await;
            if !page["items"].as_array().unwrap().is_empty() {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = &mut response => panic!("the run has not ended"),
        () = accepted => {}
    }
    drop(response);
    let record = last_record(&server).await;
    assert_eq!((&record["operation"], &record["code"]), (&json!("run_create"), &json!("no_response")));
    assert_eq!(record["kind"], "change");
}

#[tokio::test]
async fn each_caller_reads_what_concerns_it_and_nobody_changes_the_log() {
    let server = Server::start().await;
    let (_, ana) = new_key(&server, json!({"name": "a", "ownerId": "ana", "orgId": "acme"})).await;
    let (_, boss) =
        new_key(&server, json!({"name": "b", "ownerId": "boss", "orgId": "acme", "role": "admin"})).await;
    let (_, eve) = new_key(&server, json!({"name": "e", "ownerId": "eve"})).await;
    let read = async |secret: &str| {
        let (status, page) =
            send_request(server.anonymous(Method::GET, "/v1/audit").bearer_auth(secret)).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        let items = page["items"].as_array().unwrap().clone();
        let mut owners: Vec<String> =
            items.iter().map(|record| record["ownerId"].as_str().unwrap_or("-").to_owned()).collect();
        owners.dedup();
        owners.sort();
        owners.dedup();
        owners
    };
    assert_eq!(read(&ana).await, ["ana"]);
    assert_eq!(read(&eve).await, ["eve"]);
    assert_eq!(read(&boss).await, ["ana", "boss"]);
    assert_eq!(read(mainspring_test_support::TOKEN).await, ["-", "ana", "boss", "eve", "local"]);
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        let (status, _) = send_request(server.request(method, "/v1/audit")).await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    }
}

#[tokio::test]
async fn the_log_is_read_in_pages_and_as_lines() {
    let server = Server::start().await;
    for n in 0..7 {
        server.prompt(&format!("s{n}"), "say hi").await;
    }
    let (mut seqs, mut after) = (vec![], 0);
    loop {
        let (_, page) = server.get(&format!("/v1/audit?limit=2&after={after}")).await;
        seqs.extend(page["items"].as_array().unwrap().iter().map(|record| record["seq"].as_u64().unwrap()));
        match page["next"].as_str() {
            Some(next) => after = next.parse().unwrap(),
            None => break,
        }
    }
    assert_eq!(seqs, (1..=9).collect::<Vec<_>>());
    let lines = server.request(Method::GET, "/v1/audit?operation=run_create");
    let response = lines.header("accept", "application/x-ndjson").send().await;
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let text = response.text().await;
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 7);
    let (_, none) = server.get("/v1/audit?kind=decision").await;
    assert_eq!(none["items"], json!([]));
    let (status, _) = server.get("/v1/audit?kind=secret").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn the_numbers_of_an_owners_records_reveal_nothing_about_other_owners() {
    let server = Server::start().await;
    let (_, ana) = new_key(&server, json!({"name": "k", "ownerId": "ana", "orgId": "acme"})).await;
    let boss = json!({"name": "k", "ownerId": "boss", "orgId": "acme", "role": "admin"});
    let (_, boss) = new_key(&server, boss).await;
    for n in 0..6 {
        let body = json!({"key": format!("s{n}")});
        let made = server.anonymous(Method::POST, "/v1/sessions").bearer_auth(&ana).json(&body);
        assert_eq!(send_request(made).await.0, StatusCode::CREATED);
        server.prompt("other", "say hi").await;
    }
    let page = async |secret: &str, query: &str| {
        let path = format!("/v1/audit?operation=session_resolve&{query}");
        let request = server.anonymous(Method::GET, &path).bearer_auth(secret);
        send_request(request).await.1
    };
    let seqs = |page: &Value| -> Vec<u64> {
        page["items"].as_array().unwrap().iter().map(|record| record["seq"].as_u64().unwrap()).collect()
    };
    let real = seqs(&page(mainspring_test_support::TOKEN, "limit=50").await);
    assert!(real.len() == 6 && real.is_sorted(), "{real:?}");
    for secret in [&ana, &boss] {
        let all = page(secret, "limit=50").await;
        let shown = seqs(&all);
        assert!(shown.len() == 6 && shown.iter().all(|seq| *seq > 1 << 20), "{shown:?}");
        assert!(all["items"].as_array().unwrap().iter().all(|record| record.get("hash").is_none()), "{all}");
        // Pages, and reading on after a record, work with these numbers.
        assert_eq!(seqs(&page(secret, &format!("after={}", shown[3])).await), shown[4..]);
        let (mut paged, mut after) = (vec![], "0".to_owned());
        loop {
            let next = page(secret, &format!("limit=2&after={after}")).await;
            paged.extend(seqs(&next));
            match next["next"].as_str() {
                Some(next) => after = next.to_owned(),
                None => break,
            }
        }
        assert_eq!(paged, shown);
    }
}

#[tokio::test]
async fn the_peer_of_a_connection_is_recorded() {
    let server = Server::start().await;
    let listening = server.node.listen().await;
    let url = format!("{}/v1/runs", listening.url());
    request_without_credential(&url).await;
    let records = records(&server).await;
    let record = records.iter().find(|record| record["kind"] == "refusal").unwrap();
    let address = record["from"]["address"].as_str().unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{record}");
}

/// Sends a request without a credential over a connection.
async fn request_without_credential(url: &str) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let address = url.strip_prefix("http://").unwrap().split('/').next().unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET /v1/runs HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[tokio::test]
async fn changes_are_refused_while_the_log_cannot_be_written() {
    let server = Server::with(TestNode::builder().audit(|options| options.file_bytes = 1)).await;
    server.prompt("main", "say hi").await;
    let (status, _) = server.get("/ready").await;
    assert_eq!(status, StatusCode::OK);
    // Each record begins a new file. A folder has the name of the file after the next one, so that the write of the
    // second record fails, as on a full disk.
    let folder = server.node.dir().join("audit");
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.strip_prefix("audit-")?.strip_suffix(".jsonl")?.parse::<u64>().ok()
    };
    let next = std::fs::read_dir(&folder).unwrap().filter_map(number).max().unwrap();
    std::fs::create_dir(folder.join(format!("audit-{:020}.jsonl", next + 1))).unwrap();
    server.prompt("main", "say hi").await;
    let (status, problem) =
        server.post("/v1/runs", json!({"prompt": "say hi", "session": {"key": "main"}})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("audit_failed")));
    let (status, problem) = server.get("/ready").await;
    assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("audit_failed")));
    // Reads are answered.
    let (status, _) = server.get("/v1/runs").await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn an_agent_answers_no_question_reads_no_audit_log_and_its_changes_are_recorded() {
    let (tokens, mut received) = mpsc::unbounded_channel();
    let execute = move |attempt: AttemptHandle| {
        let token = attempt.new_agent_token();
        attempt.attach_token(&token);
        tokens.send(token.secret().to_owned()).unwrap();
        async move {
            let _token = token;
            std::future::pending().await
        }
    };
    let agent = FnAgent::new(Capabilities::minimal("agent"), execute);
    let server = Server::with(TestNode::builder().adapter(agent).adapter(asking_agent())).await;
    let asking = server.ask("asks", "ls").await;
    let body = json!({"prompt": "go", "adapter": "agent", "mode": "act", "session": {"key": "own"}});
    let run = server.post("/v1/runs", body).await.1;
    let token = received.recv().await.unwrap();
    let path = format!("/v1/runs/{}/answer", asking["runId"].as_str().unwrap());
    let answer =
        json!({"waitId": asking["wait"]["waitId"], "answer": {"kind": "approval", "decision": "allowed"}});
    let request = server.anonymous(Method::POST, &path).bearer_auth(&token).json(&answer);
    assert_eq!(send_request(request).await.0, StatusCode::FORBIDDEN);
    let (status, _) = send_request(server.anonymous(Method::GET, "/v1/audit").bearer_auth(&token)).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let refused = last_record(&server).await;
    assert_eq!((&refused["by"]["type"], &refused["by"]["runId"]), (&json!("agent"), &run["runId"]));
    let work = json!({"objective": "say done", "adapterId": "script", "requestId": "r"});
    let made = server.call(&token, "delegate_agent", work).await;
    let records = records(&server).await;
    let delegated = records.iter().find(|record| record["operation"] == "run_delegate").unwrap();
    assert_eq!(delegated["by"]["runId"], run["runId"]);
    assert!(
        delegated["about"].as_array().unwrap().contains(&made["delegation"]["delegationId"]),
        "{delegated}"
    );
}
