//! Attacks on the real program by the holder of a member's key: the program goes on, and others are served.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http::{Server, send_request};

/// A server with two members that do not know each other.
struct Shared {
    server: Server,
    /// The key of the attacker.
    eve: String,
    /// The key of the working member.
    ada: String,
}

impl Shared {
    async fn start(settings: &[(&str, &str)]) -> Self {
        let server = Server::start_with(settings);
        let key = async |owner: &str| {
            let (status, made) = server.post("/v1/keys", json!({"name": owner, "ownerId": owner})).await;
            assert_eq!(status, 201, "{made}");
            made["secret"].as_str().unwrap().to_owned()
        };
        let (eve, ada) = (key("eve").await, key("ada").await);
        Self { server, eve, ada }
    }

    fn request(&self, key: &str, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.server.client.request(method, format!("{}{path}", self.server.url)).bearer_auth(key)
    }

    async fn post(&self, key: &str, path: &str, body: &Value) -> (u16, Value) {
        let (status, answer) = send_request(self.request(key, Method::POST, path).json(body)).await;
        (status.as_u16(), answer)
    }

    /// Runs a prompt of the working member to its end.
    async fn works(&self) {
        let body = json!({"prompt": "say hi", "session": {"key": "work"}});
        let request =
            self.request(&self.ada, Method::POST, "/v1/runs").header("prefer", "wait=30").json(&body);
        let (status, run) = send_request(request).await;
        assert_eq!((status.as_u16(), &run["status"]), (200, &json!("succeeded")), "{run}");
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.server.url.strip_prefix("http://").unwrap()).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_doubles_itself_does_not_end_the_program() {
    let shared = Shared::start(&[]).await;
    let doubling = |operation: &str| {
        let steps = format!("{{% set x = {operation} %}}").repeat(45);
        format!("{{% set x = 'aaaaaaaa' %}}{steps}{{{{ x }}}}")
    };
    let nested = format!("{{% set x = [1] %}}{}{{{{ x }}}}", "{% set x = [x, x] %}".repeat(20));
    let templates = [
        doubling("x ~ x"),
        doubling("x * 2"),
        doubling("x|replace('a', 'aa')"),
        doubling("[x, x]|join"),
        nested,
    ];
    for (n, system) in templates.iter().enumerate() {
        let id = format!("hostile{n}");
        let definition = json!({"id": id, "model": "scripted/any", "system": system});
        let (status, made) = shared.post(&shared.eve, "/v1/agents", &definition).await;
        assert_eq!(status, 201, "{made}");
        let body = json!({
            "prompt": "say hi", "adapter": "native", "session": {"key": id, "agentDefinition": id},
        });
        let request = shared.request(&shared.eve, Method::POST, "/v1/runs").header("prefer", "wait=60");
        let (_, run) = send_request(request.json(&body)).await;
        assert_eq!(run["status"], "failed", "{system}: {run}");
        assert_eq!(run["error"]["code"], "agent_template_failed", "{run}");
        let message = run["error"]["message"].as_str().unwrap();
        assert!(message.contains(&id) && message.contains("more than"), "{message}");
    }
    // A chain that a parser could turn into a tree of the same depth.
    for system in [
        "{{ x".to_owned() + &"|e".repeat(200_000) + " }}",
        "(".repeat(300_000),
        "{{ ".to_owned() + &"(".repeat(300_000),
    ] {
        let definition = json!({"id": "deep", "system": system});
        let (status, answer) = shared.post(&shared.eve, "/v1/agents", &definition).await;
        assert!([201, 400, 409].contains(&status), "{status} {answer}");
    }
    shared.works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_fills_the_queue_leaves_room_for_others() {
    let settings = [("MAINSPRING_LIMITS_QUEUE_TOTAL", "40"), ("MAINSPRING_MAX_IN_PROCESS_RUNS", "2")];
    let shared = Shared::start(&settings).await;
    let mut accepted = 0;
    let refused = loop {
        let body = json!({"prompt": "hang", "session": {"key": format!("s{accepted}")}});
        let (status, answer) = shared.post(&shared.eve, "/v1/runs", &body).await;
        if status != 202 {
            break (status, answer["code"].clone());
        }
        accepted += 1;
        assert!(accepted < 60, "the queue has no limit");
    };
    assert_eq!((accepted, refused), (21, (429, json!("quota_reached"))));
    shared.works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies_and_waits_of_a_member_do_not_starve_others() {
    let settings = [("MAINSPRING_HTTP_REQUESTS", "16"), ("MAINSPRING_HTTP_STREAMS", "16")];
    let shared = Shared::start(&settings).await;
    let mut held = vec![];
    for n in 0..40 {
        let mut slow = shared.connect().await;
        let (head, body) = match n % 2 {
            0 => ("content-length: 1000", String::new()),
            _ => (
                "prefer: wait=60",
                json!({"prompt": "hang", "session": {"key": format!("s{n}")}}).to_string(),
            ),
        };
        let length = if n % 2 == 0 { String::new() } else { format!("content-length: {}\r\n", body.len()) };
        let sent = format!(
            "POST /v1/runs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\n{length}{head}\r\n\r\n{body}",
            shared.eve
        );
        slow.write_all(sent.as_bytes()).await.unwrap();
        held.push(slow);
    }
    for _ in 0..3 {
        shared.works().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_connections_leave_room_for_others() {
    let shared = Shared::start(&[("MAINSPRING_HTTP_CONNECTIONS", "50")]).await;
    let mut half_open = vec![];
    for n in 0..300 {
        let mut connection = shared.connect().await;
        connection.write_all(["", "POST /v1/runs HTT"][n % 2].as_bytes()).await.unwrap();
        half_open.push(connection);
    }
    shared.works().await;
    for mut connection in half_open.drain(..240) {
        let closed = tokio::time::timeout(Duration::from_secs(20), connection.read(&mut [0; 16])).await;
        // End of file, or a reset because of the bytes that the server has not read.
        assert!(!matches!(closed.expect("closed in time"), Ok(1..)), "the oldest ones make room");
    }
}
