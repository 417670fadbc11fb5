//! Lists: every list of the document is complete when it is read page by page.

use axum::http::{Method, StatusCode};
use mainspring_core::Limits;
use mainspring_kernel::kernel::Caller;
use mainspring_test_support::{OWNER, TestNode, asking_agent, native_agent};
use serde_json::{Value, json};

use crate::world::{Server, send_request};

/// Lists that have at most one item here.
const SHORT: [&str; 8] = [
    "binding_list",
    "run_artifacts",
    "run_attempts",
    "run_grants",
    "run_processes",
    "run_steps",
    "webhook_dead",
    "webhook_list",
];

/// An operation that answers with a page.
struct List {
    id: String,
    path: String,
    /// The parameter that takes the `next` of the previous page. Absent if there is only one page.
    start: Option<&'static str>,
}

fn lists() -> Vec<List> {
    let document = mainspring_http::document(&Limits::default());
    let mut found = vec![];
    for (path, methods) in document["paths"].as_object().unwrap() {
        let operation = &methods["get"];
        let answer = &operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"];
        if !answer.as_str().is_some_and(|name| name.contains("/Page_")) {
            continue;
        }
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let has = |name: &&&str| parameters.iter().any(|parameter| parameter["name"] == ***name);
        found.push(List {
            id: operation["operationId"].as_str().unwrap().to_owned(),
            path: path.clone(),
            start: ["before", "after"].iter().find(has).copied(),
        });
    }
    found
}

impl Server {
    /// Fills every list, and returns the run whose lists are filled.
    async fn fill(&self) -> String {
        let run = self.play("a", "say hello there; tool look {}; say hello again").await;
        let body = json!({"prompt": "go", "adapter": "agent", "session": {"key": "a"}});
        let (_, native) = self.post("/v1/runs", body).await;
        self.wait_ended(&native).await;
        self.play("b", "say hello elsewhere").await;
        for command in ["ls", "pwd"] {
            self.allow_for_session("c", command).await;
        }
        self.ask("d", "ls").await;
        let waits = self.prompt("a", "ask which?").await;
        let id = waits["runId"].as_str().unwrap().to_owned();
        for name in ["one", "two", "three"] {
            for path in
                ["/v1/state".to_owned(), "/v1/sessions/b/state".into(), format!("/v1/runs/{id}/state")]
            {
                // Each key changes twice, for its history.
                for value in [name, "other"] {
                    let put = self.request(Method::PUT, &format!("{path}/{name}")).json(&json!(value));
                    let (status, problem) = send_request(put).await;
                    assert!(status.is_success(), "{path}: {problem}");
                }
            }
            let path = format!("/v1/sessions/a/artifacts?name={name}");
            let upload = self.request(Method::POST, &path).header("content-type", "text/plain").body(name);
            assert_eq!(send_request(upload).await.0, StatusCode::CREATED);
            assert_eq!(self.post("/v1/keys", json!({"name": name})).await.0, StatusCode::CREATED);
            let agent = json!({"id": name, "version": 1, "system": "x"});
            let (status, problem) = self.post("/v1/agents", agent).await;
            assert_eq!(status, StatusCode::CREATED, "{problem}");
        }
        assert_eq!(run["status"], "succeeded");
        let (_, messages) = self.get("/v1/sessions/a/messages").await;
        for message in
            messages["items"].as_array().unwrap().iter().filter(|message| message["role"] == "assistant")
        {
            let path = format!("/v1/sessions/a/messages/{}/feedback", message["messageId"].as_str().unwrap());
            let (status, problem) =
                send_request(self.request(Method::PUT, &path).json(&json!({"sentiment": "positive"}))).await;
            assert!(status.is_success(), "{problem}");
        }
        id
    }

    async fn items(&self, path: &str) -> (Vec<Value>, Option<String>) {
        let (status, page) = self.get(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {page}");
        let items = page["items"].as_array().unwrap().clone();
        (items, page.get("next").map(|next| next.as_str().unwrap().to_owned()))
    }
}

#[tokio::test]
async fn every_list_can_be_read_page_by_page() {
    let server = Server::with(TestNode::builder().adapter(native_agent()).adapter(asking_agent())).await;
    let run = server.fill().await;
    let owner = Caller::new(OWNER);
    let webhook = server.node.kernel.webhook_create(&owner, "https://example.com/".into(), None);
    let webhook = webhook.await.unwrap().id.to_string();
    let lists = lists();
    assert!(lists.len() >= 19, "{}", lists.len());
    for List { id, path, start } in lists {
        // The session with state has no artifacts, and the other way round.
        let session = if id.starts_with("session_state") { "b" } else { "a" };
        let path = path.replace("{session}", session).replace("{run}", &run).replace("{webhook}", &webhook);
        let path = path.replace("{key}", "one");
        let query = if id == "session_search" { "q=hello&" } else { "" };
        let most = if start.is_some() { "limit=500" } else { "" };
        let (all, next) = server.items(&format!("{path}?{query}{most}")).await;
        assert!(all.len() > 1 || SHORT.contains(&id.as_str()), "{id} has {} items", all.len());
        assert_eq!(next, None, "{id}");
        let Some(start) = start else { continue };
        let (mut read, mut next) = server.items(&format!("{path}?{query}limit=1")).await;
        while let Some(from) = next {
            let (page, more) = server.items(&format!("{path}?{query}limit=1&{start}={from}")).await;
            assert!(page.len() <= 1, "{id}");
            read.extend(page);
            next = more;
        }
        // The messages of a page are in order, but the next page holds earlier ones.
        if id == "session_messages" {
            read.reverse();
        }
        assert_eq!(read, all, "{id}");
    }
}
