//! Finding ids by their beginning.

use axum::http::StatusCode;
use serde_json::json;

use crate::world::Server;

#[tokio::test]
async fn an_id_is_found_by_its_beginning() {
    let server = Server::start().await;
    let run = server.wait_ended(&server.prompt("a", "say hi").await).await;
    let [run, message] = [&run["runId"], &run["finalMessageId"]].map(|id| id.as_str().unwrap());
    for prefix in [&run[..12], &run[4..12], &run[4..12].to_uppercase(), run] {
        let (status, found) = server.get(&format!("/v1/ids?kind=run&prefix={prefix}")).await;
        assert_eq!((status, found), (StatusCode::OK, json!({"ids": [run]})), "{prefix}");
    }
    let (_, found) = server.get(&format!("/v1/ids?kind=message&session=a&prefix={}", &message[..20])).await;
    assert_eq!(found, json!({"ids": [message]}));
    let (_, none) = server.get("/v1/ids?kind=artifact&prefix=0").await;
    assert_eq!(none, json!({"ids": []}));
    for (query, why) in [
        ("kind=message&prefix=1", "name the session of the message"),
        ("kind=run&prefix=1&session=a", "leave the session out"),
        ("kind=run&prefix=ses_1", "not the beginning of a run id"),
        ("kind=goal&prefix=1", "kind"),
        ("kind=run", "prefix"),
    ] {
        let (status, problem) = server.get(&format!("/v1/ids?{query}")).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::BAD_REQUEST, &json!("invalid_request")),
            "{query}"
        );
        assert!(problem["detail"].as_str().unwrap().contains(why), "{query}: {problem}");
    }
}

#[tokio::test]
async fn the_documented_prefix_is_that_of_every_kind() {
    let server = Server::start().await;
    let document = server.get("/openapi.json").await.1;
    let parameters = document["paths"]["/v1/ids"]["get"]["parameters"].as_array().unwrap();
    let schema =
        |name: &str| &parameters.iter().find(|parameter| parameter["name"] == name).unwrap()["schema"];
    let validator = jsonschema::validator_for(schema("prefix")).unwrap();
    assert_eq!(schema("kind")["enum"].as_array().unwrap().len(), 7);
    for prefix in ["ses_1a", "run_1a", "msg_1a", "art_1a", "del_1a", "grant_1a", "key_1a", "1A"] {
        assert!(validator.is_valid(&json!(prefix)), "{prefix}");
    }
    let (status, found) = server.get("/v1/ids?kind=grant&prefix=grant_1a").await;
    assert_eq!((status, found), (StatusCode::OK, json!({"ids": []})));
}
