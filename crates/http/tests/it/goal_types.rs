//! Goal types: shared ones, and those of owners.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::world::{Server, send_request};

#[tokio::test]
async fn a_goal_type_is_created_and_replaced_and_belongs_to_its_owner() {
    let server = Server::start().await;
    let count = |description: &str| {
        let body = json!({"name": "count", "description": description, "schema": {"type": "object"}});
        server.post("/v1/goal-types", body)
    };
    let (status, made) = count("Counts.").await;
    assert_eq!((status, &made["scope"]), (StatusCode::CREATED, &json!("owner")), "{made}");
    assert_eq!(count("Counts.").await, (StatusCode::OK, made.clone()), "the same type can be sent again");
    let (status, changed) = count("Counts all.").await;
    assert_eq!((status, &changed["createdAtMs"]), (StatusCode::OK, &made["createdAtMs"]));
    assert_eq!(server.get("/v1/goal-types/count").await.1, changed);
    let (_, all) = server.get("/v1/goal-types").await;
    let names: Vec<_> = all["items"].as_array().unwrap().iter().map(|item| item["name"].clone()).collect();
    assert_eq!(names, ["count", "create_events", "dataset_summary", "dataset_triage"]);
    assert_eq!(server.get("/v1/goal-types/dataset_triage").await.1["scope"], "shared");
    let ben = |path: &str| send_request(server.request(Method::GET, path).header("mainspring-owner", "ben"));
    assert_eq!(ben("/v1/goal-types/count").await.0, StatusCode::NOT_FOUND);
    assert!(!ben("/v1/goal-types").await.1.to_string().contains("count\""));
    let taken = json!({"name": "dataset_summary", "schema": {"type": "object"}});
    let (status, problem) = server.post("/v1/goal-types", taken).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("goal_type_taken")));
    for wrong in [
        json!({"name": "A b", "schema": {}}),
        json!({"name": "x"}),
        json!({"name": "x", "schema": {"type": "array"}}),
        json!({"name": "x", "schema": {}, "colour": 1}),
    ] {
        let (status, problem) = server.post("/v1/goal-types", wrong.clone()).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::BAD_REQUEST, &json!("invalid_request")),
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn goals_need_an_agent_that_pursues_them_and_a_known_type() {
    let server = Server::start().await;
    let run = |adapter: &str, goal_type: &str| {
        let options = json!({"goals": [{"goalType": goal_type, "data": {"dataset_id": "d"}}]});
        server.post("/v1/runs", json!({"prompt": "say hi", "adapter": adapter, "options": options}))
    };
    let (status, problem) = run("script", "dataset_summary").await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("option_not_used")), "{problem}");
    let (status, problem) = run("script", "nothing").await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_request")), "{problem}");
    let mut definition = json!({"goalType": "dataset_summary", "definition": {}});
    definition["data"] = json!({});
    let body = json!({"prompt": "x", "options": {"goals": [definition]}});
    let (status, problem) = server.post("/v1/runs", body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(problem["detail"].as_str().unwrap().contains("definition"), "only the server sets it: {problem}");
}
