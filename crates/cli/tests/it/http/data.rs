//! State and artifacts, over real sockets.

use std::collections::HashSet;
use std::path::PathBuf;

use reqwest::header::HeaderMap;

use super::*;

impl Server {
    async fn upload(&self, path: &str, kind: &str, bytes: &[u8]) -> (StatusCode, Value) {
        send_request(self.request(Method::POST, path).header("content-type", kind).body(bytes.to_vec())).await
    }

    async fn bytes(&self, artifact: &Value, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, Vec<u8>) {
        let path = format!("/v1/artifacts/{}/content", artifact["artifactId"].as_str().unwrap());
        let request = headers
            .iter()
            .fold(self.request(Method::GET, &path), |request, (name, value)| request.header(*name, *value));
        let response = request.send().await.unwrap();
        (response.status(), response.headers().clone(), response.bytes().await.unwrap().to_vec())
    }
}

#[tokio::test]
async fn state_of_every_scope_has_the_same_operations() {
    let server = Server::start();
    let run = server.prompt("a", "say hi; hang").await;
    let run = run["runId"].as_str().unwrap();
    server.post("/v1/sessions", json!({"key": "b"})).await;
    for root in ["/v1/sessions/b/state", &format!("/v1/runs/{run}/state"), "/v1/state"] {
        let path = format!("{root}/theme");
        let put = |headers: &[(&str, &str)], value: Value| {
            let request = server.request(Method::PUT, &path).json(&value);
            let request =
                headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            async move {
                let response = request.send().await.unwrap();
                let tag = response.headers().get("etag").map(|tag| tag.to_str().unwrap().to_owned());
                (response.status().as_u16(), tag, response.json::<Value>().await.unwrap())
            }
        };
        assert_eq!(server.get(&path).await.0, StatusCode::NOT_FOUND, "{root}");
        let (status, first, entry) = put(&[("if-none-match", "*")], json!({"dark": true})).await;
        assert_eq!((status, &entry["value"]), (201, &json!({"dark": true})), "{root}");
        let first = first.unwrap();
        assert_eq!(first, format!("\"{}\"", entry["version"]), "{root}");
        let (status, _, problem) = put(&[("if-none-match", "*")], json!(1)).await;
        assert_eq!((status, &problem["code"]), (412, &json!("version_conflict")), "{root}");
        let (status, second, _) = put(&[("if-match", &first)], Value::Null).await;
        assert_eq!(status, 200, "{root}");
        assert_eq!(put(&[("if-match", &first)], json!(2)).await.0, 412, "{root}");
        assert_eq!(put(&[("if-match", "soon")], json!(2)).await.0, 400, "{root}");
        assert_eq!(put(&[("if-match", "*"), ("if-none-match", "*")], json!(2)).await.0, 400, "{root}");
        let cached = server.request(Method::GET, &path).header("if-none-match", second.unwrap());
        assert_eq!(send_request(cached).await.0, StatusCode::NOT_MODIFIED, "{root}");
        assert_eq!(server.get(&path).await.1["value"], Value::Null, "{root}");

        for key in ["b", "a"] {
            let set = server.request(Method::PUT, &format!("{root}/{key}")).json(&json!(key));
            assert_eq!(send_request(set).await.0, StatusCode::CREATED, "{root}");
        }
        let (_, page) = server.get(&format!("{root}?limit=2")).await;
        assert_eq!((&page["items"][0]["key"], &page["next"]), (&json!("a"), &json!("b")), "{root}");
        let (_, rest) = server.get(&format!("{root}?after=b")).await;
        assert_eq!((&rest["items"][0]["key"], rest.get("next")), (&json!("theme"), None), "{root}");
        let stale = server.request(Method::DELETE, &path).header("if-match", &first);
        assert_eq!(send_request(stale).await.0, StatusCode::PRECONDITION_FAILED, "{root}");
        for _ in 0..2 {
            assert_eq!(
                send_request(server.request(Method::DELETE, &path)).await.0,
                StatusCode::NO_CONTENT,
                "{root}"
            );
        }
        let bad = server.request(Method::PUT, &format!("{root}/a%2Fb")).json(&json!(1));
        assert_eq!(send_request(bad).await.0, StatusCode::BAD_REQUEST, "{root}");
        let large = server.request(Method::PUT, &path).json(&"x".repeat(70_000));
        assert_eq!(send_request(large).await.1["code"], "too_large", "{root}");
    }
    let busy = send_request(server.request(Method::PUT, "/v1/sessions/a/state/k").json(&json!(1))).await;
    assert_eq!((busy.0, &busy.1["code"]), (StatusCode::CONFLICT, &json!("session_busy")));
    let misplaced = server.get(&format!("/v1/state?at=msg_{}", "0".repeat(32))).await;
    assert_eq!(misplaced.1["code"], "invalid_request");
}

#[tokio::test]
async fn the_state_as_of_a_message() {
    let server = Server::start();
    let set = async |value: Value| {
        send_request(server.request(Method::PUT, "/v1/sessions/a/state/k").json(&value)).await.0
    };
    server.post("/v1/sessions", json!({"key": "a"})).await;
    set(json!("before")).await;
    for value in ["one", "two"] {
        let run = server.prompt("a", "say hi").await;
        server.wait_ended(&run).await;
        assert_eq!(set(json!(value)).await, StatusCode::OK);
    }
    let (_, messages) = server.get("/v1/sessions/a/messages").await;
    for (at, value) in [(0, "before"), (1, "one"), (2, "one"), (3, "two")] {
        let message = messages["items"][at]["messageId"].as_str().unwrap();
        let (_, entry) = server.get(&format!("/v1/sessions/a/state/k?at={message}")).await;
        assert_eq!(entry["value"], value, "{at}");
        let (_, page) = server.get(&format!("/v1/sessions/a/state?at={message}")).await;
        assert_eq!(page["items"][0], entry, "{at}");
    }
    let (_, events) = server.get("/v1/sessions/a/events?limit=500").await;
    let changed = events["items"].as_array().unwrap().iter().filter(|event| event["type"] == "state.changed");
    assert_eq!(
        changed.map(|event| event["payload"].clone()).collect::<Vec<_>>()[1],
        json!({"scope": "session", "key": "k", "version": 2, "by": "caller", "deleted": false, "value": "one"})
    );
}

#[tokio::test]
async fn an_artifact_is_returned_unchanged_and_never_rendered_as_a_page() {
    let server = Server::start_with(&[("MAINSPRING_LIMITS_ARTIFACT_BYTES", "300000")]);
    server.post("/v1/sessions", json!({"key": "a"})).await;
    let html = b"<script>alert(1)</script>".repeat(4000);
    let path = "/v1/sessions/a/artifacts?name=..%2Fp%C3%A4ge.html&kind=report&role=result";
    let (status, artifact) = server.upload(path, "text/html; charset=utf-8", &html).await;
    assert_eq!(status, StatusCode::CREATED, "{artifact}");
    assert_eq!(
        (&artifact["kind"], &artifact["role"], &artifact["sizeBytes"], &artifact["name"]),
        (&json!("report"), &json!("result"), &json!(html.len()), &json!("../p\u{e4}ge.html"))
    );
    let (status, headers, bytes) = server.bytes(&artifact, &[]).await;
    assert_eq!((status, bytes == html), (StatusCode::OK, true));
    let tag = format!("\"{}\"", artifact["contentHash"].as_str().unwrap());
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("content-length", "100000"),
        ("content-disposition", "attachment; filename=\"_p_ge.html\"; filename*=UTF-8''_p%C3%A4ge.html"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; sandbox"),
        ("accept-ranges", "bytes"),
        ("etag", &tag),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
    let (status, headers, bytes) =
        server.bytes(&artifact, &[("range", "bytes=99990-"), ("if-range", &tag)]).await;
    assert_eq!((status, &bytes[..]), (StatusCode::PARTIAL_CONTENT, &html[99_990..]));
    assert_eq!(headers["content-range"], "bytes 99990-99999/100000");
    let (status, headers, _) = server.bytes(&artifact, &[("range", "bytes=100000-")]).await;
    assert_eq!(
        (status, &headers["content-range"]),
        (StatusCode::RANGE_NOT_SATISFIABLE, &"bytes */100000".parse().unwrap())
    );
    assert_eq!(server.bytes(&artifact, &[("if-none-match", &tag)]).await.0, StatusCode::NOT_MODIFIED);

    let (status, problem) = server.upload("/v1/sessions/a/artifacts", "image/png", &vec![7; 300_001]).await;
    assert_eq!((status, &problem["code"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("too_large")));
    let (status, _) = server.upload("/v1/sessions/a/artifacts", "nonsense", b"x").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let once = |bytes: &'static str| {
        let request = server.request(Method::POST, "/v1/sessions/a/artifacts").header("idempotency-key", "k");
        send_request(request.body(bytes))
    };
    let (first, again, other) = (once("once").await, once("once").await, once("other").await);
    assert_eq!((first.0, again.0, other.0.as_u16()), (StatusCode::CREATED, StatusCode::OK, 409));
    assert_eq!(first.1["artifactId"], again.1["artifactId"]);
    assert_eq!(
        (&first.1["role"], &first.1["mimeType"]),
        (&json!("input"), &json!("application/octet-stream"))
    );

    let (_, page) = server.get("/v1/sessions/a/artifacts?limit=1").await;
    let (_, rest) =
        server.get(&format!("/v1/sessions/a/artifacts?before={}", page["next"].as_str().unwrap())).await;
    assert_eq!((&page["items"][0], &rest["items"]), (&first.1, &json!([artifact])));
    let block = json!({"type": "attachment", "artifact": first.1["artifactId"]});
    let (_, run) = server.post("/v1/runs", json!({"prompt": [block], "session": {"key": "b"}})).await;
    server.wait_ended(&run).await;
    let (_, messages) = server.get("/v1/sessions/b/messages").await;
    assert_eq!(messages["items"][0]["content"][0]["mimeType"], "application/octet-stream");
    assert_eq!(
        server.get(&format!("/v1/runs/{}/artifacts", run["runId"].as_str().unwrap())).await.1["items"],
        json!([])
    );
    let path = format!("/v1/artifacts/{}", artifact["artifactId"].as_str().unwrap());
    assert_eq!(server.get(&path).await.1, artifact);
    assert_eq!(send_request(server.request(Method::DELETE, &path)).await.0, StatusCode::NO_CONTENT);
    assert_eq!(send_request(server.request(Method::DELETE, &path)).await.0, StatusCode::NOT_FOUND);
    assert_eq!(server.bytes(&artifact, &[]).await.0, StatusCode::NOT_FOUND);
}

/// Kills the server repeatedly during uploads: acknowledged artifacts exist, existing artifacts are complete, and after
/// the next start no other file is left.
#[tokio::test]
async fn a_kill_between_blob_and_row_loses_nothing_and_leaves_no_orphan() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mut acknowledged: HashMap<String, String> = HashMap::new();
    for round in 0..8_usize {
        let mut server = Server::start_in(dir.clone(), &[]);
        server.post("/v1/sessions", json!({"key": "a"})).await;
        check_acknowledged(&server, &acknowledged).await;
        let mut uploads = tokio::task::JoinSet::new();
        let (client, token) = (server.client.clone(), server.token.clone());
        let address = format!("{}/v1/sessions/a/artifacts", server.url);
        let upload = |no: usize| {
            // Every third upload repeats the same content.
            let text = format!("round {round} content {}", if no.is_multiple_of(3) { 0 } else { no });
            let request = client.post(&address).bearer_auth(&token).body(text.clone());
            async move {
                let artifact: Value = request.send().await.ok()?.json().await.ok()?;
                Some((artifact["artifactId"].as_str()?.to_owned(), text))
            }
        };
        let mut next = 0..;
        uploads.spawn(upload(0));
        (0..6).zip(&mut next).for_each(|(_, no)| drop(uploads.spawn(upload(no))));
        let mut answers = 0;
        while let Some(answer) = uploads.join_next().await {
            if let Some((id, text)) = answer.unwrap() {
                acknowledged.insert(id, text);
                answers += 1;
                if answers <= round * 3 {
                    uploads.spawn(upload(next.next().unwrap()));
                } else if answers == round * 3 + 1 {
                    // Five uploads are in progress.
                    server.child.kill().unwrap();
                }
            }
        }
    }
    let server = Server::start_in(dir.clone(), &[]);
    check_acknowledged(&server, &acknowledged).await;
    let (_, page) = server.get("/v1/sessions/a/artifacts?limit=500").await;
    let mut hashes = HashSet::new();
    for artifact in page["items"].as_array().unwrap() {
        let (status, _, bytes) = server.bytes(artifact, &[]).await;
        assert_eq!((status, bytes.len() as u64), (StatusCode::OK, artifact["sizeBytes"].as_u64().unwrap()));
        hashes.insert(artifact["contentHash"].as_str().unwrap().to_owned());
    }
    drop(server);
    let files = |folder: PathBuf| -> Vec<PathBuf> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let root = dir.path().join("state/artifacts");
    let (staging, kept): (Vec<_>, Vec<_>) =
        files(root).into_iter().partition(|path| path.ends_with("staging"));
    assert_eq!(staging.into_iter().flat_map(files).count(), 0, "nothing is half done");
    let kept: HashSet<String> = kept
        .into_iter()
        .flat_map(files)
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(kept, hashes, "every row has its bytes, and no bytes are without a row");
    let checked = mainspring(dir.path()).args(["doctor", "--thorough"]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

async fn check_acknowledged(server: &Server, acknowledged: &HashMap<String, String>) {
    for (id, text) in acknowledged {
        let (status, _, bytes) = server.bytes(&json!({"artifactId": id}), &[]).await;
        assert_eq!((status, bytes), (StatusCode::OK, text.clone().into_bytes()), "{id}");
    }
}
