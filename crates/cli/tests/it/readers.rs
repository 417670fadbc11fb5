//! Commands about goal types, feedback and pins.

use serde_json::{Value, json};

use crate::cli::run;
use crate::http::Server;
use crate::state::{done, objects};

#[test]
fn goal_types_are_stored_listed_and_printed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let file = dir.join("type.json");
    let goal_type =
        json!({"name": "bug_report", "description": "Reports the bug.", "schema": {"type": "object"}});
    std::fs::write(&file, goal_type.to_string()).unwrap();
    assert!(done(dir, &["goal-type", "put", file.to_str().unwrap()]).contains("stored bug_report"));
    let listed = objects(dir, &["goal-type", "list"]);
    let own: Vec<_> = listed.iter().filter(|record| record["scope"] == "owner").collect();
    assert_eq!((own.len(), &own[0]["name"]), (1, &json!("bug_report")));
    assert!(done(dir, &["goal-type", "list"]).contains("dataset_summary"), "shared types are listed, too");
    let printed = &objects(dir, &["goal-type", "get", "bug_report"])[0];
    assert_eq!(
        (&printed["schema"], &printed["description"]),
        (&goal_type["schema"], &goal_type["description"])
    );
    assert_eq!(run(dir, &["goal-type", "get", "no_such"]).code, 3);
    std::fs::write(&file, "{}").unwrap();
    assert_eq!(run(dir, &["goal-type", "put", file.to_str().unwrap()]).code, 2);
}

#[test]
fn feedback_is_given_and_listed_and_a_session_pinned() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    done(dir, &["prompt", "--adapter", "script", "--session", "a", "say hi"]);
    let message = objects(dir, &["run", "list"])[0]["finalMessageId"].as_str().unwrap().to_owned();
    let put = |sentiment: &'static str| {
        let args = ["feedback", "put", "a", &message, sentiment, "--categories", "other", "--notes", "so so"];
        objects(dir, &args)
    };
    let first = put("positive");
    let second = put("negative");
    assert_eq!(first[0]["feedbackId"], second[0]["feedbackId"], "it replaces the earlier one");
    assert_eq!(objects(dir, &["feedback", "list", "a"]), second);
    assert!(done(dir, &["feedback", "list", "a"]).contains("so so"));
    assert_eq!(run(dir, &["feedback", "put", "a", &message, "positive", "--categories", "slow"]).code, 2);
    let pinned = &objects(dir, &["session", "pin", "a"])[0];
    assert_eq!((&pinned["pinned"], pinned["pinnedAtMs"].is_i64()), (&json!(true), true));
    assert_eq!(objects(dir, &["session", "unpin", "a"])[0]["pinned"], false);
}

#[tokio::test]
async fn sessions_of_the_org_are_listed_and_searched_by_scope() {
    let server = Server::start();
    let mut keys = vec![];
    for owner in ["ann", "ben"] {
        let new = json!({"name": owner, "ownerId": owner, "orgId": "acme", "role": "member"});
        keys.push(server.post("/v1/keys", new).await.1["secret"].as_str().unwrap().to_owned());
    }
    let far = tempfile::tempdir().unwrap();
    let by = |key: &str, arguments: &[&str]| -> Vec<Value> {
        objects(far.path(), &[&["--url", &server.url, "--key", key], arguments].concat())
    };
    for (key, name) in [(&keys[0], "of-ann"), (&keys[1], "of-ben")] {
        by(key, &["prompt", "--adapter", "script", "--session", name, "say walnut"]);
    }
    by(&keys[1], &["session", "set", "of-ben", "--visibility", "org"]);
    let listed = |scope: &[&str]| -> Vec<String> {
        let all = by(&keys[0], &[&["session", "list"], scope].concat());
        all.iter().map(|session| session["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(&[]), ["of-ann"], "one's own, without the flag");
    assert_eq!(listed(&["--scope", "own"]), ["of-ann"]);
    assert_eq!(listed(&["--scope", "org"]), ["of-ben"]);
    assert_eq!(listed(&["--scope", "all"]), ["of-ben", "of-ann"]);
    let found = |scope: &str| {
        let hits = by(&keys[0], &["session", "search", "walnut", "--scope", scope]);
        hits.iter().map(|hit| hit["sessionId"].clone()).collect::<std::collections::HashSet<_>>().len()
    };
    assert_eq!((found("own"), found("org"), found("all")), (1, 1, 2));
    let key = keys[0].as_str();
    let table = done(far.path(), &["--url", &server.url, "--key", key, "session", "list", "--scope", "all"]);
    assert!(table.contains("OWNER") && table.contains("ben"), "{table}");
    // The token of the state directory belongs to no org.
    assert_eq!(run(server.dir.path(), &["session", "list", "--scope", "org"]).code, 2);
}
