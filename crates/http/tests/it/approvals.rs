//! Approvals and grants over HTTP.

use axum::http::{Method, StatusCode};
use mainspring_test_support::{TestNode, asking_agent};
use serde_json::{Value, json};

use crate::world::{Server, send_request};

impl Server {
    /// Prompts the asking agent and returns the run, which waits for an approval.
    pub(crate) async fn ask(&self, session: &str, command: &str) -> Value {
        let body = json!({"prompt": command, "adapter": "asker", "session": {"key": session}});
        let request = self.request(Method::POST, "/v1/runs").header("prefer", "wait=30").json(&body);
        send_request(request).await.1
    }

    /// Answers an approval.
    async fn decide(&self, run: &Value, answer: Value) -> (StatusCode, Value) {
        let path = format!("/v1/runs/{}/answer", run["runId"].as_str().unwrap());
        self.post(&path, json!({"waitId": run["wait"]["waitId"], "answer": answer})).await
    }

    /// Lets the asking agent ask for a command and allows it for the session.
    pub(crate) async fn allow_for_session(&self, session: &str, command: &str) {
        let run = self.ask(session, command).await;
        let answer = json!({"kind": "approval", "decision": "allowed", "scope": "session"});
        let (status, answered) = self.decide(&run, answer).await;
        assert_eq!(status, StatusCode::OK, "{answered}");
        self.wait_ended(&run).await;
    }
}

#[tokio::test]
async fn an_approval_request_is_returned_as_data_and_its_answers_are_checked() {
    let server = Server::with(TestNode::builder().adapter(asking_agent())).await;
    let run = server.ask("a", "ls").await;
    assert_eq!(run["status"], "waiting_approval", "{run}");
    let wait = &run["wait"];
    let call = json!({"toolUseId": "t1", "name": "bash", "kind": "execute", "input": {"command": "ls"}});
    assert_eq!(wait["approval"]["call"], call);
    assert_eq!(
        wait["approval"]["answers"],
        json!(["allow_once", "allow_session", "deny", "deny_with_reason"])
    );
    let roles = json!(["member", "admin"]);
    assert_eq!(wait["approval"]["mayAnswer"]["roles"], roles);
    assert_eq!(wait["onExpiry"], "time_out");
    let supplied = json!({"kind": "approval", "decision": "supplied", "result": {"text": "x"}});
    let (status, problem) = server.decide(&run, supplied).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("answer_not_offered")), "{problem}");

    let denied = json!({"kind": "approval", "decision": "denied", "reason": "not here"});
    assert_eq!(server.decide(&run, denied.clone()).await.0, StatusCode::OK);
    // The refusal of the second answer says who answered first, and when.
    let (status, problem) = server.decide(&run, denied).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("already_answered")), "{problem}");
    assert_eq!(problem["answeredBy"]["kind"], "person", "{problem}");
    assert!(problem["answeredAtMs"].is_i64(), "{problem}");
    server.wait_ended(&run).await;
    let (_, messages) = server.get("/v1/sessions/a/messages").await;
    assert_eq!(messages["items"][1]["content"][0]["text"], "denied: not here");
}

#[tokio::test]
async fn a_grant_for_the_session_is_listed_and_revoked() {
    let server = Server::with(TestNode::builder().adapter(asking_agent())).await;
    server.allow_for_session("a", "ls").await;
    let (_, page) = server.get("/v1/grants?session=a").await;
    let grant = &page["items"][0];
    assert_eq!(
        (&grant["source"], &grant["constraints"]["input"]),
        (&json!("user"), &json!({"command": "ls"}))
    );
    assert_eq!(server.ask("a", "ls").await["status"], "succeeded", "the grant covers the second request");
    assert_eq!(server.ask("b", "ls").await["status"], "waiting_approval", "the grant is for one session");
    let path = format!("/v1/grants/{}/revoke", grant["grantId"].as_str().unwrap());
    let (status, revoked) = server.post(&path, json!({})).await;
    assert_eq!(status, StatusCode::OK, "{revoked}");
    assert!(revoked["revokedAtMs"].is_i64(), "{revoked}");
    assert_eq!(server.get("/v1/grants?session=a").await.1["items"], json!([]));
    assert_eq!(server.get("/v1/grants?session=a&all=true").await.1["items"], json!([revoked]));
    assert_eq!(server.ask("a", "ls").await["status"], "waiting_approval");
}
