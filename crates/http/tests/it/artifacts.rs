//! Artifacts: bytes that come back as they were sent.

use axum::http::{HeaderMap, Method, StatusCode};
use mainspring_test_support::TestNode;
use serde_json::{Value, json};

use crate::world::{Server, send_request};

impl Server {
    async fn upload(&self, path: &str, kind: &str, bytes: &[u8]) -> (StatusCode, Value) {
        send_request(self.request(Method::POST, path).header("content-type", kind).body(bytes.to_vec())).await
    }

    async fn bytes(&self, artifact: &Value, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, Vec<u8>) {
        let path = format!("/v1/artifacts/{}/content", artifact["artifactId"].as_str().unwrap());
        let request = headers
            .iter()
            .fold(self.request(Method::GET, &path), |request, (name, value)| request.header(*name, *value));
        let response = request.send().await;
        (response.status(), response.headers().clone(), response.bytes().await.to_vec())
    }
}

#[tokio::test]
async fn an_artifact_is_returned_unchanged_and_never_rendered_as_a_page() {
    let server =
        Server::with(TestNode::builder().options(|options| options.limits.artifact_bytes = 300_000)).await;
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

    server.node.clock.advance(1);
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
    assert_eq!((&first.1["role"], &first.1["mimeType"]), (&json!("input"), &json!("text/plain")));

    let (_, page) = server.get("/v1/sessions/a/artifacts?limit=1").await;
    let (_, rest) =
        server.get(&format!("/v1/sessions/a/artifacts?before={}", page["next"].as_str().unwrap())).await;
    assert_eq!((&page["items"][0], &rest["items"]), (&first.1, &json!([artifact])));
    let block = json!({"type": "attachment", "artifact": first.1["artifactId"]});
    let (_, run) = server.post("/v1/runs", json!({"prompt": [block], "session": {"key": "b"}})).await;
    server.wait_ended(&run).await;
    let (_, messages) = server.get("/v1/sessions/b/messages").await;
    assert_eq!(messages["items"][0]["content"][0]["mimeType"], "text/plain");
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

#[tokio::test]
async fn an_artifact_keeps_the_metadata_of_its_upload() {
    let server = Server::start().await;
    server.post("/v1/sessions", json!({"key": "a"})).await;
    let upload = async |metadata: &str| {
        let path = format!("/v1/sessions/a/artifacts?metadata={metadata}");
        server.upload(&path, "image/png", b"x").await
    };
    let (status, artifact) = upload("%7B%22page%22%3A1%7D").await;
    assert_eq!((status, &artifact["metadata"]), (StatusCode::CREATED, &json!({"page": 1})));
    let (_, listed) = server.get("/v1/sessions/a/artifacts").await;
    assert_eq!(listed["items"], json!([artifact]));
    for bad in ["x", "1", "%5B%5D"] {
        let (status, problem) = upload(bad).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{bad}");
        assert!(problem["detail"].as_str().unwrap().contains("metadata must be a JSON object"), "{problem}");
    }
}
