//! Attacks on native sessions: sessions of the agent itself, which every adapter with the same command can resume.

use reqwest::Method;
use serde_json::{Value, json};

use super::Attack;
use crate::http::send_request;

const TWIN: &str = "[adapters.twin]\nkind = \"acp\"\ncommand = COMMAND";

/// Sends a request without a body.
async fn send_bare(attack: &Attack, key: &str, method: Method, path: &str) -> (u16, Value) {
    let request = attack.server.client.request(method, format!("{}{path}", attack.server.url));
    let (status, answer) = send_request(request.bearer_auth(key)).await;
    (status.as_u16(), answer)
}

/// Returns the id of the native session of a session of the key's owner.
async fn native_of(attack: &Attack, key: &str, session: &str) -> String {
    let path = format!("/v1/sessions/{session}/bindings");
    let (status, page) = send_bare(attack, key, Method::GET, &path).await;
    assert_eq!(status, 200, "{page}");
    page["items"][0]["adapterNativeSessionId"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_session_of_another_owner_is_not_adopted_through_a_second_adapter() {
    let attack = Attack::start(TWIN).await;
    let work = attack.path("work");
    let eve = json!({"name": "eve", "ownerId": "eve", "folders": [work]});
    let eve = Attack::make_key(&attack.server, eve).await;
    attack.run_locally("secret", &work, "remember the launch code").await;
    let native = native_of(&attack, &attack.token(), "secret").await;

    let adopt = async |key: &str, adapter: &str, native: &str| {
        let session = json!({"key": "mine", "cwd": work});
        let body =
            json!({"session": session, "adapter": adapter, "adapterNativeSessionId": native, "cwd": work});
        attack.with_key(key, Method::POST, "/v1/adopt", &body).await
    };
    let unknown = adopt(&eve, "agent", "00000000-0000-4000-8000-000000000000").await;
    assert_eq!((unknown.0, &unknown.1["code"]), (400, &json!("invalid_request")), "{}", unknown.1);
    let upper = native.to_uppercase();
    for adapter in ["agent", "twin"] {
        for spelling in [native.as_str(), &upper, &native.replace('-', ""), &format!("{{{native}}}")] {
            assert_eq!(adopt(&eve, adapter, spelling).await, unknown, "{adapter} {spelling}");
        }
        for spelling in
            [format!(" {native}"), format!("{native} "), format!("{native}\n"), format!("{native}\u{200b}")]
        {
            let (status, answer) = adopt(&eve, adapter, &spelling).await;
            assert_eq!(status, 400, "{adapter} {spelling:?}: {answer}");
        }
    }
    // The answer is the same after the other owner's session was deleted, and for an adoption into an existing session.
    let gone = send_bare(&attack, &attack.token(), Method::DELETE, "/v1/sessions/secret").await;
    assert!(gone.0 < 300, "{}", gone.1);
    assert_eq!(adopt(&eve, "twin", &native).await, unknown);
    let (status, made) = attack.with_key(&eve, Method::POST, "/v1/sessions", &json!({"key": "own"})).await;
    assert_eq!(status, 201, "{made}");
    let body = json!({"adapter": "twin", "adapterNativeSessionId": native});
    assert_eq!(attack.with_key(&eve, Method::POST, "/v1/sessions/own/bindings", &body).await, unknown);

    // A native session that a run of Eve opened belongs to Eve, also after its session is deleted.
    let body = json!({"prompt": "say hi", "session": {"key": "first"}, "options": {"cwd": work}});
    let request = attack.server.client.post(format!("{}/v1/runs", attack.server.url)).bearer_auth(&eve);
    let ended = send_request(request.header("prefer", "wait=60").json(&body)).await.1;
    assert_eq!(ended["status"], "succeeded", "{ended}");
    let own = native_of(&attack, &eve, "first").await;
    send_bare(&attack, &eve, Method::DELETE, "/v1/sessions/first").await;
    let (status, adopted) = adopt(&eve, "agent", &own).await;
    assert_eq!((status, &adopted["binding"]["adapterNativeSessionId"]), (201, &json!(own)), "{adopted}");
}
