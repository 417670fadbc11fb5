//! Every operation, called with credentials that do not suffice: ended ones, those of another server, and those of a
//! viewer.

use mainspring_test_support::NOW;

use super::*;

/// Operations other than `GET` that only read here: `session_resolve` finds the session, which exists.
const READS: &[&str] = &["session_resolve"];

/// A server with an issuer, and a session with a run of the owner `them`.
struct World {
    server: Server,
    issuer: Issuer,
    key: Value,
    run: Value,
}

impl World {
    async fn start() -> Self {
        let issuer = Issuer::start(Signer::ed25519(1)).await;
        let server = Server::with(issuer.accepted_by(TestNode::builder().adapter(asking_agent()))).await;
        let body = json!({"name": "them", "ownerId": "them", "orgId": "theirs"});
        let key = server.post("/v1/keys", body).await.1;
        let prompt = json!({"prompt": "say hi", "session": {"key": "theirs"}});
        let request = server.anonymous(Method::POST, "/v1/runs").header("prefer", "wait=30").json(&prompt);
        let (_, run) = send_request(request.bearer_auth(key["secret"].as_str().unwrap())).await;
        assert_eq!(run["status"], "succeeded", "{run}");
        Self { server, issuer, key, run }
    }

    fn names(&self) -> Names<'_> {
        let text = |value: &'_ Value| value.as_str().unwrap().to_owned().leak() as &'static str;
        Names {
            session: text(&self.run["sessionId"]),
            run: text(&self.run["runId"]),
            attempt: text(&self.run["lastAttemptId"]),
            key: text(&self.key["keyId"]),
            message: text(&self.run["promptMessageId"]),
            artifact: "art_00000000000040008000000000000000",
            agent: "a@1",
            delegation: "del_00000000000040008000000000000000",
            grant: "grant_00000000000040008000000000000000",
        }
    }

    /// Makes a key of the owner `them`.
    async fn make_key(&self, more: Value) -> (String, String) {
        let mut body = json!({"name": "k", "ownerId": "them", "orgId": "theirs"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (_, key) = self.server.post("/v1/keys", body).await;
        let text = |name: &str| key[name].as_str().unwrap().to_owned();
        (text("keyId"), text("secret"))
    }

    /// Everything that the owner sees.
    async fn state(&self) -> Vec<(StatusCode, Value)> {
        let session = format!("/v1/sessions/{}", self.run["sessionId"].as_str().unwrap());
        let mut seen = vec![];
        for path in ["/v1/sessions", "/v1/runs", "/v1/agents", "/v1/state", "/v1/keys", &session] {
            seen.push(send_request(self.as_owner(path)).await);
        }
        seen
    }

    fn as_owner(&self, path: &str) -> RequestBuilder {
        self.server.request(Method::GET, path).header("mainspring-owner", "them")
    }
}

#[tokio::test]
async fn no_operation_accepts_a_credential_that_has_ended_or_is_for_another_server() {
    let world = World::start().await;
    let (server, issuer) = (&world.server, &world.issuer);
    let (revoked, revoked_secret) = world.make_key(json!({"role": "admin"})).await;
    assert_eq!(server.delete(&format!("/v1/keys/{revoked}")).await.0, StatusCode::NO_CONTENT);
    let expires = json!({"role": "admin", "expiresAtMs": NOW.0 + 1_000});
    let (_, expired_secret) = world.make_key(expires).await;
    server.node.clock.advance(1_000);
    let claims = issuer.claims("them", Some("theirs"));
    let with = |name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        issuer.sign(&claims)
    };
    let header = json!({"alg": "EdDSA", "kid": "first"});
    let credentials = [
        ("a revoked key", revoked_secret),
        ("an expired key", expired_secret),
        ("a token of another audience", with("aud", json!("another"))),
        ("a token of another issuer", with("iss", json!("https://another.example"))),
        ("an expired token", with("exp", json!(NOW.0 / 1_000 - 3_600))),
        ("a token that another key has signed", Signer::ed25519(2).token_with(&header, &claims)),
    ];
    let (before, names) = (world.state().await, world.names());
    for operation in operations(server).await.iter().filter(|operation| !operation.is_open) {
        for (name, secret) in &credentials {
            for (request, _) in requests(server, operation, &names) {
                let (status, problem) = send_request(request.bearer_auth(secret)).await;
                assert_eq!(status, StatusCode::UNAUTHORIZED, "{name}: {} {problem}", operation.id);
                assert_eq!(problem["code"], "authentication", "{name}: {}", operation.id);
            }
        }
    }
    assert_eq!(world.state().await, before, "nothing was changed");
}

#[tokio::test]
async fn no_operation_lets_a_viewer_change_anything() {
    let world = World::start().await;
    let (_, secret) = world.make_key(json!({"role": "viewer"})).await;
    let mut claims = world.issuer.claims("them", Some("theirs"));
    claims["role"] = json!("viewer");
    let token = world.issuer.sign(&claims);
    let (before, names) = (world.state().await, world.names());
    for operation in operations(&world.server).await.iter().filter(|operation| !operation.is_open) {
        if operation.method == Method::GET || READS.contains(&operation.id.as_str()) {
            continue;
        }
        for credential in [&secret, &token] {
            for (request, _) in requests(&world.server, operation, &names) {
                let (status, body) = send_request(request.bearer_auth(credential)).await;
                assert!(status.is_client_error(), "{}: {status} {body}", operation.id);
            }
        }
    }
    assert_eq!(world.state().await, before, "nothing was changed");
}

/// Every operation that streams, in the OpenAPI document.
async fn streams(server: &Server) -> Vec<Operation> {
    let document = server.get("/openapi.json").await.1;
    let is_stream = |operation: &Operation| {
        let path = &document["paths"][&operation.path][operation.method.as_str().to_lowercase()];
        let content = path["responses"]["200"]["content"].as_object();
        content.is_some_and(|content| content.contains_key("text/event-stream"))
    };
    operations(server).await.into_iter().filter(is_stream).collect()
}

#[tokio::test]
async fn every_stream_ends_with_the_key_or_token_that_opened_it() {
    let world = World::start().await;
    let server = &world.server;
    let prompt = json!({"prompt": "ask Tea?", "session": {"key": "waits"}});
    let request = server.request(Method::POST, "/v1/runs").header("mainspring-owner", "them");
    let (_, waiting) = send_request(request.header("prefer", "wait=30").json(&prompt)).await;
    // The stream of a run that has ended ends by itself.
    let waiting = World { run: waiting, ..world };
    let (server, names) = (&waiting.server, waiting.names());
    let found = streams(server).await;
    assert!(found.len() >= 4, "feed, owner_events, run_events, session_events");
    for operation in &found {
        let (id, secret) = waiting.make_key(json!({})).await;
        let mut claims = waiting.issuer.claims("them", Some("theirs"));
        claims["exp"] = json!(server.node.clock.now().0 / 1_000 + 3_600);
        let token = waiting.issuer.sign(&claims);
        let mut open = vec![];
        for credential in [&secret, &token] {
            let (request, _) = requests(server, operation, &names).next().unwrap();
            let request = request.header("accept", "text/event-stream").bearer_auth(credential);
            open.push(request.send().await.frames());
        }
        let mut of_token = open.pop().unwrap();
        let mut of_key = open.pop().unwrap();
        assert_eq!(server.delete(&format!("/v1/keys/{id}")).await.0, StatusCode::NO_CONTENT);
        while of_key.next().await.is_some() {}
        server.node.clock.advance(3_600_000 + 60_000);
        while of_token.next().await.is_some() {}
    }
}
