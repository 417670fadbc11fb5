//! Feedback on messages.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::world::{Server, send_request};

#[tokio::test]
async fn feedback_is_an_upsert_and_an_event() {
    let server = Server::start().await;
    let run = server.play("s", "say hi").await;
    let put = |path: &str, body: Value| send_request(server.request(Method::PUT, path).json(&body));
    let (session, message) = (run["sessionId"].as_str().unwrap(), run["finalMessageId"].as_str().unwrap());
    let path = format!("/v1/sessions/{session}/messages/{message}/feedback");
    let body = json!({"sentiment": "negative", "categories": ["slow", "incorrect", "slow"], "notes": " "});
    let (status, given) = put(&path, body).await;
    assert_eq!(status, StatusCode::OK, "{given}");
    assert_eq!(given["categories"], json!(["incorrect", "slow"]));
    assert_eq!((given.get("notes"), &given["messageId"]), (None, &json!(message)));
    let (_, changed) = put(&path, json!({"sentiment": "positive"})).await;
    assert_eq!((&changed["feedbackId"], &changed["sentiment"]), (&given["feedbackId"], &json!("positive")));
    let (_, list) = server.get(&format!("/v1/sessions/{session}/feedback")).await;
    assert_eq!(list["items"], json!([changed]));
    let (_, events) = server.get(&format!("/v1/sessions/{session}/events?limit=500")).await;
    let given = events["items"].as_array().unwrap().iter().filter(|event| event["type"] == "feedback.given");
    let sentiments: Vec<_> = given.map(|event| event["payload"]["sentiment"].clone()).collect();
    assert_eq!(sentiments, ["negative", "positive"]);
    for wrong in [
        json!({}),
        json!({"sentiment": "mixed"}),
        json!({"sentiment": "positive", "categories": ["slow"]}),
        json!({"sentiment": "negative", "categories": ["other"]}),
        json!({"sentiment": "negative", "stars": 1}),
    ] {
        let (status, problem) = put(&path, wrong.clone()).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::BAD_REQUEST, &json!("invalid_request")),
            "{wrong}"
        );
    }
}
