//! Agent definitions: versions that never change, each of its owner.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::world::{Server, send_request};

#[tokio::test]
async fn a_version_of_an_agent_is_created_once_and_belongs_to_its_owner() {
    let server = Server::start().await;
    let poet = |version: u32, description: &str| {
        server.post("/v1/agents", json!({"id": "poet", "version": version, "description": description}))
    };
    let (status, made) = poet(1, "Rhymes.").await;
    assert_eq!((status, &made["scope"]), (StatusCode::CREATED, &json!("owner")), "{made}");
    assert_eq!(
        poet(1, "Rhymes.").await,
        (StatusCode::OK, made.clone()),
        "the same version can be sent again"
    );
    let (status, problem) = poet(1, "Sings.").await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("agent_taken")));
    let (_, second) = poet(2, "Sings.").await;
    assert_eq!(server.get("/v1/agents/poet").await.1, second, "the latest");
    assert_eq!(server.get("/v1/agents/poet@1").await.1, made);
    let (_, page) = server.get("/v1/agents?limit=1").await;
    assert_eq!((&page["items"], &page["next"]), (&json!([made]), &json!("poet@1")));
    let (_, rest) = server.get("/v1/agents?after=poet@1").await;
    assert_eq!((&rest["items"], rest.get("next")), (&json!([second]), None));
    let bens = |method: Method, path: &str| {
        send_request(server.request(method, path).header("mainspring-owner", "ben"))
    };
    assert_eq!(bens(Method::GET, "/v1/agents/poet").await.0, StatusCode::NOT_FOUND);
    assert_eq!(bens(Method::GET, "/v1/agents").await.1["items"], json!([]));
    assert_eq!(bens(Method::DELETE, "/v1/agents/poet@2").await.0, StatusCode::NOT_FOUND);
    assert_eq!(
        server.delete("/v1/agents/poet@2").await,
        (StatusCode::NO_CONTENT, Value::String(String::new()))
    );
    assert_eq!(server.get("/v1/agents/poet").await.1, made);
    for wrong in [json!({"id": "a b"}), json!({"id": "x", "version": 0}), json!({"id": "x", "colour": 1})] {
        let (status, problem) = server.post("/v1/agents", wrong.clone()).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::BAD_REQUEST, &json!("invalid_request")),
            "{wrong}"
        );
    }
}
