//! Adapters, their logins, and models.

use axum::http::StatusCode;
use mainspring_kernel::adapter::{AttemptHandle, Capabilities, End, Executed};
use mainspring_test_support::{FnAgent, TestNode};
use serde_json::{Value, json};

use crate::world::Server;

async fn succeed(_: AttemptHandle) -> Executed {
    End::succeeded()
}

#[tokio::test]
async fn adapters_are_listed_and_their_agents_are_logged_in() {
    let capabilities = Capabilities { supports_authentication: true, ..Capabilities::minimal("agent") };
    let server = Server::with(TestNode::builder().adapter(FnAgent::new(capabilities, succeed))).await;
    let (_, listed) = server.get("/v1/adapters").await;
    let names: Vec<&Value> = listed.as_array().unwrap().iter().map(|one| &one["adapter"]).collect();
    assert_eq!(names, ["agent", "script"]);
    assert_eq!(listed[0]["supportsAuthentication"], true);
    assert_eq!(server.get("/v1/adapters/script/logins").await, (StatusCode::OK, json!([])));
    let (_, methods) = server.get("/v1/adapters/agent/logins").await;
    assert_eq!((&methods[0]["id"], &methods[0]["type"]), (&json!("token"), &json!("agent")));
    for (adapter, method, status, code) in [
        ("agent", "token", StatusCode::NO_CONTENT, Value::Null),
        ("agent", "guess", StatusCode::CONFLICT, json!("login_failed")),
        ("script", "token", StatusCode::BAD_REQUEST, json!("adapter_incompatible")),
        ("nobody", "token", StatusCode::BAD_REQUEST, json!("adapter_not_registered")),
    ] {
        let path = format!("/v1/adapters/{adapter}/logins");
        let (came, body) = server.post(&path, json!({"methodId": method})).await;
        assert_eq!((came, &body["code"]), (status, &code), "{adapter} {method}: {body}");
    }
    let (status, models) = server.get("/v1/models").await;
    assert_eq!((status, models), (StatusCode::OK, json!({"profiles": [], "providers": []})));
}
