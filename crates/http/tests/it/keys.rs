//! Keys, orgs and owners.

use axum::http::{Method, StatusCode};
use mainspring_test_support::{EventStream, NOW, TestNode};
use serde_json::{Value, json};

use crate::world::{RequestBuilder, Server, send_request};

/// A client with an API key.
struct KeyClient<'a> {
    server: &'a Server,
    id: String,
    secret: String,
}

impl Server {
    /// Creates a key with the state directory's token.
    async fn create_key(&self, body: Value) -> KeyClient<'_> {
        let (status, key) = self.post("/v1/keys", body).await;
        assert_eq!(status, StatusCode::CREATED, "{key}");
        let text = |name: &str| key[name].as_str().unwrap().to_owned();
        KeyClient { server: self, id: text("keyId"), secret: text("secret") }
    }

    /// Creates a member's key.
    async fn create_member_key(&self, owner: &str, org: &str) -> KeyClient<'_> {
        self.create_key(json!({"name": owner, "ownerId": owner, "orgId": org})).await
    }

    async fn revoke(&self, key: &str) -> StatusCode {
        send_request(self.request(Method::DELETE, &format!("/v1/keys/{key}"))).await.0
    }
}

impl KeyClient<'_> {
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.server.anonymous(method, path).bearer_auth(&self.secret)
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        let (status, body) = send_request(self.request(method, path).json(&body)).await;
        (status.as_u16(), body)
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let (status, body) = send_request(self.request(Method::GET, path)).await;
        (status.as_u16(), body)
    }

    /// Opens a session's stream and waits for its beginning.
    async fn stream(&self, path: &str) -> EventStream {
        let request = self.request(Method::GET, path).header("accept", "text/event-stream");
        request.send().await.frames()
    }
}

#[tokio::test]
async fn an_org_member_can_read_shared_sessions_but_not_change_them() {
    let server = Server::start().await;
    let (ada, bob) =
        (server.create_member_key("ada", "acme").await, server.create_member_key("bob", "acme").await);
    let eve = server.create_member_key("eve", "beta").await;
    let body = json!({"prompt": "say hi", "session": {"key": "a", "visibility": "org"}});
    let (status, run) = ada.send(Method::POST, "/v1/runs", body).await;
    assert_eq!(status, 202, "{run}");
    let session = format!("/v1/sessions/{}", run["sessionId"].as_str().unwrap());
    let run = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
    let (_, hidden) = ada.send(Method::POST, "/v1/sessions", json!({"key": "b"})).await;
    assert_eq!((&hidden["orgId"], &hidden["visibility"]), (&json!("acme"), &json!("private")));
    let hidden = format!("/v1/sessions/{}", hidden["sessionId"].as_str().unwrap());

    for path in [&session, &run, &format!("{session}/events"), &format!("{session}/tree")] {
        let came = [ada.get(path).await.0, bob.get(path).await.0, eve.get(path).await.0];
        assert_eq!(came, [200, 200, 404], "{path}");
    }
    assert_eq!([ada.get(&hidden).await.0, bob.get(&hidden).await.0], [200, 404]);
    for (method, path, body) in [
        (Method::PATCH, session.clone(), json!({"title": "mine"})),
        (Method::DELETE, session.clone(), json!({})),
        (Method::POST, format!("{session}/runs"), json!({"prompt": "say no"})),
        (Method::POST, format!("{run}/cancel"), json!({})),
    ] {
        let (status, problem) = bob.send(method.clone(), &path, body.clone()).await;
        assert_eq!((status, &problem["code"]), (403, &json!("forbidden")), "{method} {path}");
        assert_eq!(eve.send(method, &path, body).await.0, 404, "{path}");
    }
    let listed = |page: Value| page["items"].as_array().unwrap().len();
    assert_eq!(listed(ada.get("/v1/sessions").await.1), 2);
    assert_eq!(listed(bob.get("/v1/sessions").await.1), 0);
    assert_eq!(listed(bob.get("/v1/sessions?scope=org").await.1), 1);
    assert_eq!(listed(eve.get("/v1/sessions?scope=org").await.1), 0);
    assert_eq!(server.get("/v1/sessions?scope=org").await.0, StatusCode::BAD_REQUEST);

    let mut stream = bob.stream(&format!("{session}/events?after=0.0")).await;
    assert!(stream.next().await.is_some());
    assert_eq!(ada.send(Method::PATCH, &session, json!({"visibility": "private"})).await.0, 200);
    while let Some(frame) = stream.next().await {
        assert_ne!(
            frame.data["payload"]["changed"], "visibility",
            "no event follows once the session is private"
        );
    }
    assert_eq!(bob.get(&session).await.0, 404);
    let (status, problem) = server.post("/v1/sessions", json!({"visibility": "org"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("no_org")));
}

#[tokio::test]
async fn an_expired_or_revoked_key_is_refused_and_its_streams_end() {
    let server = Server::start().await;
    let ada = server.create_member_key("ada", "acme").await;
    assert_eq!(ada.send(Method::POST, "/v1/sessions", json!({"key": "a"})).await.0, 201);
    let mut adas = ada.stream("/v1/sessions/a/events").await;
    let mut feed = ada.stream("/v1/feed").await;
    assert_eq!(feed.next().await.unwrap().event, "snapshot");
    for _ in 0..2 {
        assert_eq!(server.revoke(&ada.id).await, StatusCode::NO_CONTENT);
    }
    // The streams end once the key is revoked.
    assert!(adas.next().await.is_none() && feed.next().await.is_none());
    let (status, problem) = ada.get("/v1/sessions/a").await;
    assert_eq!((status, &problem["code"]), (401, &json!("authentication")));

    let soon = json!({"name": "brief", "ownerId": "ada", "expiresAtMs": NOW.plus(300)});
    let brief = server.create_key(soon).await;
    let mut briefs = brief.stream("/v1/sessions/a/events").await;
    assert_eq!(brief.get("/v1/sessions/a").await.0, 200);
    server.node.clock.advance(300);
    assert!(briefs.next().await.is_none());
    assert_eq!(brief.get("/v1/sessions/a").await.0, 401);
    let unknown = "key_00000000000040008000000000000000";
    assert_eq!(server.revoke(unknown).await, StatusCode::NOT_FOUND);
    assert_eq!(server.revoke("key_1").await, StatusCode::BAD_REQUEST);
    let past = json!({"name": "past", "expiresAtMs": 1});
    assert_eq!(server.post("/v1/keys", past).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn roles_are_enforced() {
    let server = Server::start().await;
    let admin = json!({"name": "boss", "ownerId": "boss", "orgId": "acme", "role": "admin"});
    let boss = server.create_key(admin).await;
    let other = server.create_member_key("eve", "beta").await;
    server.node.clock.advance(1);
    let (status, made) =
        boss.send(Method::POST, "/v1/keys", json!({"name": "v", "ownerId": "ada", "role": "viewer"})).await;
    assert_eq!((status, &made["orgId"]), (201, &json!("acme")));
    let secret = made["secret"].as_str().unwrap().to_owned();
    let viewer = KeyClient { server: &server, id: made["keyId"].as_str().unwrap().to_owned(), secret };

    assert_eq!(viewer.get("/v1/sessions").await.0, 200);
    assert_eq!(viewer.send(Method::POST, "/v1/sessions", json!({"key": "a"})).await.0, 403);
    let prompt = json!({"prompt": "say hi"});
    assert_eq!(viewer.send(Method::POST, "/v1/runs", prompt).await.1["code"], "forbidden");
    assert_eq!((viewer.get("/v1/keys").await.0, other.get("/v1/keys").await.0), (403, 403));
    for body in [
        json!({"name": "x", "orgId": "beta"}),
        json!({"name": "x", "ownerId": "eve"}),
        json!({"name": "x", "ownerId": "local"}),
    ] {
        assert_eq!(boss.send(Method::POST, "/v1/keys", body.clone()).await.0, 403, "{body}");
    }
    let hers = format!("/v1/keys/{}", other.id);
    assert_eq!(boss.send(Method::DELETE, &hers, json!({})).await.0, 404);
    let (_, page) = boss.get("/v1/keys?limit=1").await;
    assert_eq!(page["items"][0]["keyId"], json!(viewer.id));
    let (_, page) = boss.get(&format!("/v1/keys?limit=1&before={}", page["next"].as_str().unwrap())).await;
    assert_eq!(page["items"][0]["keyId"], json!(boss.id));
    let (_, all) = server.get("/v1/keys").await;
    assert_eq!(all["items"].as_array().unwrap().len(), 3);
    assert!(!all.to_string().contains("secret") && !all.to_string().contains("hash"), "{all}");
}

#[tokio::test]
async fn the_token_acts_for_any_owner_and_a_key_for_its_own() {
    let server = Server::start().await;
    let ada = server.create_member_key("ada", "acme").await;
    assert_eq!(ada.send(Method::POST, "/v1/sessions", json!({"key": "a"})).await.0, 201);
    let asked = |request: RequestBuilder, owner: &'static str| async move {
        send_request(request.header("mainspring-owner", owner)).await
    };
    let get = || server.request(Method::GET, "/v1/sessions/a");
    assert_eq!(send_request(get()).await.0, StatusCode::NOT_FOUND);
    let (status, session) = asked(get(), "ada").await;
    assert_eq!((status, &session["ownerId"]), (StatusCode::OK, &json!("ada")));
    assert_eq!(asked(get(), "").await.0, StatusCode::BAD_REQUEST);
    let get = || ada.request(Method::GET, "/v1/sessions/a");
    assert_eq!(asked(get(), "ada").await.0, StatusCode::OK);
    let (status, problem) = asked(get(), "local").await;
    assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &json!("not_found")));
}

#[tokio::test]
async fn creation_is_idempotent_and_secrets_are_neither_stored_nor_shown_again() {
    let server = Server::with(TestNode::builder().sqlite()).await;
    let once = |path: &str, body: Value| {
        send_request(server.request(Method::POST, path).header("idempotency-key", "k1").json(&body))
    };
    let (status, mut session) = once("/v1/sessions", json!({"title": "tea"})).await;
    assert_eq!(status, StatusCode::CREATED);
    session["opening"] = json!("existing");
    let (status, again) = once("/v1/sessions", json!({"title": "tea"})).await;
    assert_eq!((status, &again), (StatusCode::OK, &session));
    let (status, problem) = once("/v1/sessions", json!({"title": "coffee"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("request_conflict")));

    let (status, mut key) = once("/v1/keys", json!({"name": "ci"})).await;
    assert_eq!((status, &key["replayed"]), (StatusCode::CREATED, &json!(false)));
    let secret = key.as_object_mut().unwrap().remove("secret").unwrap();
    let (status, again) = once("/v1/keys", json!({"name": "ci"})).await;
    key["replayed"] = json!(true);
    assert_eq!((status, again), (StatusCode::OK, key));
    assert_eq!(once("/v1/keys", json!({"name": "cd"})).await.0, StatusCode::CONFLICT);

    let secret = secret.as_str().unwrap().strip_prefix("msk_").unwrap();
    let mut looked = 0;
    for entry in std::fs::read_dir(server.node.dir()).unwrap() {
        let Ok(bytes) = std::fs::read(entry.unwrap().path()) else { continue };
        looked += bytes.len();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()));
    }
    assert!(looked > 4096, "the search read the database");
}

#[tokio::test]
async fn the_limits_of_a_key_are_kept_and_listed() {
    let server = Server::start().await;
    let limits = json!({
        "name": "ada", "ownerId": "ada", "adapters": ["script"], "models": ["small"], "tools": [], "spendPerDayUsd": 0.5,
    });
    let ada = server.create_key(limits.clone()).await;
    let (_, listed) = server.get("/v1/keys").await;
    for name in ["adapters", "models", "tools", "spendPerDayUsd"] {
        assert_eq!(listed["items"][0][name], limits[name], "{name}");
    }
    let (status, problem) = ada.send(Method::POST, "/v1/runs", json!({"prompt": "say hi"})).await;
    assert_eq!((status, &problem["code"]), (403, &json!("not_allowed_by_key")));
    assert!(problem["detail"].as_str().unwrap().contains("`models`"), "{problem}");
    // A request cannot bring lists of its own.
    let own = json!({"prompt": "say hi", "options": {"key": {"keyId": ada.id}}});
    assert_eq!(ada.send(Method::POST, "/v1/runs", own).await.0, 400);

    let bob = server.create_key(json!({"name": "bob", "ownerId": "bob", "spendPerDayUsd": 0.5})).await;
    let run = json!({"prompt": "usage 1 1 0.6; say hi"});
    let request = bob.request(Method::POST, "/v1/runs").header("prefer", "wait=30").json(&run);
    let (_, run) = send_request(request).await;
    assert_eq!(run["error"]["code"], "spend_limit_reached", "{run}");
    let (status, problem) = bob.send(Method::POST, "/v1/runs", json!({"prompt": "say hi"})).await;
    assert_eq!((status, &problem["code"]), (429, &json!("spend_limit_reached")));
}

#[tokio::test]
async fn names_that_look_like_others_are_refused_unless_they_exist() {
    let server = Server::start().await;
    for name in ["\u{430}da", "ada\u{202e}", "a\u{200b}da", " ada", "jo\u{308}rg"] {
        for body in
            [json!({"name": "k", "ownerId": name}), json!({"name": "k", "ownerId": "ada", "orgId": name})]
        {
            let (status, problem) = server.post("/v1/keys", body).await;
            assert_eq!(
                (status, &problem["code"]),
                (StatusCode::BAD_REQUEST, &json!("invalid_name")),
                "{name:?}"
            );
        }
        // A header has no spaces around its value.
        if name.starts_with(' ') {
            continue;
        }
        let value = axum::http::HeaderValue::from_bytes(name.as_bytes()).unwrap();
        let request = server.request(Method::GET, "/v1/sessions").header("mainspring-owner", value);
        let (status, problem) = send_request(request).await;
        assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_name")), "{name:?}");
    }
    let old = "\u{430}da";
    let caller = mainspring_kernel::kernel::Caller::new(old);
    let target = mainspring_kernel::kernel::SessionTarget { key: Some("a".into()), ..Default::default() };
    server.node.kernel.session_open(&caller, &target, None).await.unwrap();
    let value = axum::http::HeaderValue::from_bytes(old.as_bytes()).unwrap();
    let request = server.request(Method::GET, "/v1/sessions/a").header("mainspring-owner", value);
    assert_eq!(send_request(request).await.0, StatusCode::OK, "an owner of an earlier version");
    let (status, _) = server.post("/v1/keys", json!({"name": "k", "ownerId": old})).await;
    assert_eq!(status, StatusCode::CREATED);
}

#[tokio::test]
async fn a_key_does_not_outlive_the_key_that_makes_it() {
    let server = Server::start().await;
    let end = server.node.clock.now().0 + 90_000;
    let boss = json!({"name": "boss", "ownerId": "boss", "role": "admin", "expiresAtMs": end});
    let boss = server.post("/v1/keys", boss).await.1["secret"].as_str().unwrap().to_owned();
    let make = async |end: Option<i64>| {
        let mut body = json!({"name": "k", "ownerId": "ana", "role": "admin"});
        end.inspect(|end| body["expiresAtMs"] = json!(end));
        send_request(server.anonymous(Method::POST, "/v1/keys").bearer_auth(&boss).json(&body)).await
    };
    let (status, problem) = make(Some(end + 1)).await;
    assert_eq!((status, &problem["code"]), (StatusCode::FORBIDDEN, &json!("forbidden")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains(&end.to_string()), "{problem}");
    // Without a time, the answer says when the key ends.
    assert_eq!(make(None).await.1["expiresAtMs"], end);
    let (_, sooner) = make(Some(end - 1)).await;
    assert_eq!(sooner["expiresAtMs"], end - 1);
    // A ticket does not outlive its key either, and its answer says how long it is valid.
    server.node.clock.advance(50_000);
    let ticket = server.anonymous(Method::POST, "/v1/tickets").bearer_auth(&boss);
    assert_eq!(send_request(ticket).await.1["expiresInMs"], 40_000);
    // The token of the state directory and a key that does not expire create keys that do not expire.
    let (_, free) =
        server.post("/v1/keys", json!({"name": "free", "ownerId": "free", "role": "admin"})).await;
    let body = json!({"name": "k", "ownerId": "ana2"});
    let made = server.anonymous(Method::POST, "/v1/keys").bearer_auth(free["secret"].as_str().unwrap());
    let (status, made) = send_request(made.json(&body)).await;
    assert_eq!((status, made.get("expiresAtMs")), (StatusCode::CREATED, None), "{made}");
}
