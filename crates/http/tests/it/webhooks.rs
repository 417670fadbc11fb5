//! Webhooks: signed deliveries from the durable log, their retries, and dead letters.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::routing::post;
use mainspring_http::{WebhookSender, deliver_webhooks};
use mainspring_test_support::{TOKEN, TestNode};
use parking_lot::Mutex;
use ring::hmac;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::world::{Server, send_request};

/// A receiver of deliveries on this machine.
struct Receiver {
    url: String,
    received: mpsc::UnboundedReceiver<(HeaderMap, Bytes)>,
    /// The answers to the next deliveries; 200 after the last one.
    answers: Arc<Mutex<Vec<u16>>>,
    _server: JoinSet<()>,
}

type Shared = (mpsc::UnboundedSender<(HeaderMap, Bytes)>, Arc<Mutex<Vec<u16>>>);

async fn receive(State((sender, answers)): State<Shared>, headers: HeaderMap, body: Bytes) -> StatusCode {
    sender.send((headers, body)).unwrap();
    let mut answers = answers.lock();
    let answer = if answers.is_empty() { 200 } else { answers.remove(0) };
    StatusCode::from_u16(answer).unwrap()
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (sender, received) = mpsc::unbounded_channel();
        let answers = Arc::<Mutex<Vec<u16>>>::default();
        let router = Router::new().route("/hook", post(receive)).with_state((sender, answers.clone()));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, received, answers, _server: server }
    }

    /// Waits for the next delivery.
    async fn next(&mut self) -> (HeaderMap, Value, Bytes) {
        let next = tokio::time::timeout(std::time::Duration::from_secs(30), self.received.recv());
        let (headers, body) = next.await.expect("a delivery").unwrap();
        (headers, serde_json::from_slice(&body).unwrap(), body)
    }
}

/// A server that delivers, until it is dropped.
struct Delivering {
    server: Server,
    _delivers: JoinSet<()>,
}

async fn delivering(allows_private: bool) -> Delivering {
    let sender = WebhookSender::new(TOKEN, allows_private);
    let edge = sender.clone();
    let server = Server::with(TestNode::builder().edge(move |http| http.with_webhooks(edge))).await;
    let mut delivers = JoinSet::new();
    delivers.spawn(deliver_webhooks(server.node.kernel.clone(), sender, CancellationToken::new()));
    Delivering { server, _delivers: delivers }
}

impl Delivering {
    async fn add(&self, url: &str, types: Value) -> Value {
        let (status, made) = self.server.post("/v1/webhooks", json!({"url": url, "types": types})).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        made
    }

    /// Waits until `is_so` holds for the only webhook, and lets time pass.
    async fn wait_until(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let wait = async {
            loop {
                let (_, page) = self.server.get("/v1/webhooks").await;
                if is_so(&page["items"][0]) {
                    return page["items"][0].clone();
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), wait)
            .await
            .expect("the state of the webhook")
    }
}

#[tokio::test]
async fn events_are_delivered_in_order_with_a_signature() {
    let (mut receiver, delivering) = (Receiver::start().await, delivering(true).await);
    delivering.server.play("before", "say hi").await;
    let made = delivering.add(&receiver.url, json!(["run"])).await;
    let run = delivering.server.play("a", "say hi").await;
    let mut types = vec![];
    while types.last() != Some(&json!("run.succeeded")) {
        let (headers, event, body) = receiver.next().await;
        assert_eq!(event["runId"], run["runId"], "events before the webhook are not sent");
        assert_eq!(headers["mainspring-webhook"].to_str().unwrap(), made["webhookId"]);
        assert_eq!(headers["mainspring-event"].to_str().unwrap(), event["eventId"]);
        let timestamp = headers["mainspring-timestamp"].to_str().unwrap();
        let signature = headers["mainspring-signature"].to_str().unwrap().strip_prefix("v1=").unwrap();
        let signature: Vec<u8> =
            (0..32).map(|at| u8::from_str_radix(&signature[2 * at..2 * at + 2], 16).unwrap()).collect();
        let key = hmac::Key::new(hmac::HMAC_SHA256, made["secret"].as_str().unwrap().as_bytes());
        let signed = [timestamp.as_bytes(), b".", &body].concat();
        hmac::verify(&key, &signed, &signature).unwrap();
        types.push(event["type"].clone());
    }
    assert_eq!(types[0], "run.queued");
    let webhook = delivering.wait_until(|webhook| webhook["deliveredAtMs"].is_i64()).await;
    assert_eq!((&webhook["secret"], &webhook["failures"]), (&Value::Null, &json!(0)));
}

#[tokio::test]
async fn a_failed_delivery_is_repeated_and_a_refused_one_is_dead_until_it_is_retried() {
    let (mut receiver, delivering) = (Receiver::start().await, delivering(true).await);
    let server = &delivering.server;
    let made = delivering.add(&receiver.url, json!(["run.succeeded"])).await;
    let id = made["webhookId"].as_str().unwrap();
    receiver.answers.lock().extend([503, 200, 400]);
    let first = server.play("a", "say one").await;
    receiver.next().await;
    delivering.wait_until(|webhook| webhook["failures"] == 1).await;
    server.node.clock.advance(1_000);
    let (_, again, _) = receiver.next().await;
    assert_eq!(again["runId"], first["runId"], "the same event, again");
    // The next one is refused for good.
    let second = server.play("a", "say two").await;
    assert_eq!(receiver.next().await.1["runId"], second["runId"]);
    delivering.wait_until(|webhook| webhook["lastError"] == "the receiver answers 400").await;
    let (_, dead) = server.get(&format!("/v1/webhooks/{id}/dead")).await;
    let letter = &dead["items"][0];
    assert_eq!((&letter["eventType"], &letter["attempts"]), (&json!("run.succeeded"), &json!(1)), "{dead}");
    // A later event is delivered, and a person sends the dead one again.
    let third = server.play("a", "say three").await;
    assert_eq!(receiver.next().await.1["runId"], third["runId"]);
    let retry = format!("/v1/webhooks/{id}/dead/{}/retry", letter["cursor"]);
    receiver.answers.lock().push(500);
    let (_, failed) = server.post(&retry, json!({})).await;
    assert_eq!(failed, json!({"delivered": false, "error": "the receiver answers 500"}));
    let (status, sent) = server.post(&retry, json!({})).await;
    assert_eq!((status, &sent["delivered"]), (StatusCode::OK, &json!(true)), "{sent}");
    assert_eq!(server.get(&format!("/v1/webhooks/{id}/dead")).await.1["items"], json!([]));
    assert_eq!(server.post(&retry, json!({})).await.0, StatusCode::NOT_FOUND);
    // A removed webhook receives nothing.
    assert_eq!(server.delete(&format!("/v1/webhooks/{id}")).await.0, StatusCode::NO_CONTENT);
    assert_eq!(server.get("/v1/webhooks").await.1["items"], json!([]));
}

#[tokio::test]
async fn private_addresses_are_refused_also_behind_a_name() {
    let (receiver, delivering) = (Receiver::start().await, delivering(false).await);
    let server = &delivering.server;
    let (status, problem) = server.post("/v1/webhooks", json!({"url": receiver.url})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_request")));
    assert!(problem["detail"].as_str().unwrap().contains("webhooks_private"), "{problem}");
    // A name is resolved when the connection is made.
    let named = receiver.url.replace("127.0.0.1", "localhost");
    let made = delivering.add(&named, json!(["run"])).await;
    let test = format!("/v1/webhooks/{}/test", made["webhookId"].as_str().unwrap());
    let (_, sent) = server.post(&test, json!({})).await;
    assert_eq!(sent["delivered"], false, "{sent}");
    assert!(sent["error"].as_str().unwrap().contains("private network"), "{sent}");
    // A retry would not make the address public: the event is dead at once.
    server.play("a", "say hi").await;
    delivering.wait_until(|webhook| webhook["lastError"].is_string() && webhook["failures"] == 0).await;
}

#[tokio::test]
async fn a_test_event_is_sent_and_types_are_checked() {
    let (mut receiver, delivering) = (Receiver::start().await, delivering(true).await);
    let server = &delivering.server;
    for types in [json!([]), json!(["nothing"]), json!(["run", "store.failed"])] {
        let (status, _) = server.post("/v1/webhooks", json!({"url": receiver.url, "types": types})).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
    }
    let (_, made) = server.post("/v1/webhooks", json!({"url": receiver.url})).await;
    assert!(made["types"].as_array().unwrap().contains(&json!("approval.requested")), "{made}");
    let test = format!("/v1/webhooks/{}/test", made["webhookId"].as_str().unwrap());
    assert_eq!(server.post(&test, json!({})).await.1, json!({"delivered": true}));
    let test = receiver.next().await.1;
    assert_eq!((&test["type"], &test["webhookId"]), (&json!("webhook.test"), &made["webhookId"]), "{test}");
    assert!(test["timestampMs"].is_u64(), "{test}");
}

#[tokio::test]
async fn a_webhook_ends_with_the_key_that_made_it() {
    let (mut receiver, delivering) = (Receiver::start().await, delivering(true).await);
    let server = &delivering.server;
    let (_, key) = server.post("/v1/keys", json!({"name": "ci"})).await;
    let request = server.anonymous(Method::POST, "/v1/webhooks").bearer_auth(key["secret"].as_str().unwrap());
    let (status, made) =
        send_request(request.json(&json!({"url": receiver.url, "types": ["run.succeeded"]}))).await;
    assert_eq!((status, &made["keyId"]), (StatusCode::CREATED, &key["keyId"]), "{made}");
    server.play("a", "say one").await;
    receiver.next().await;
    server.delete(&format!("/v1/keys/{}", key["keyId"].as_str().unwrap())).await;
    server.play("a", "say two").await;
    // A delivery to another webhook shows that the events were processed.
    delivering.add(&receiver.url.replace("/hook", "/hook?other"), json!(["run.succeeded"])).await;
    let last = server.play("a", "say three").await;
    assert_eq!(
        receiver.next().await.1["runId"],
        last["runId"],
        "the webhook of the revoked key gets no more events"
    );
}
