//! A server of a cluster that stands by forwards to the active one.

use axum::Router;
use axum::http::{Method, StatusCode};
use mainspring_http::{Forward, ForwardOptions, PeerKey};
use mainspring_test_support::{Listening, TestNode};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::world::{RequestBuilder, Server, send_request};

/// The address of the standby, which the active server does not know.
const HOST: &str = "standby.example:7433";
const ORIGIN: &str = "https://standby.example:7433";

/// An active server, and one that forwards to it.
struct Cluster {
    active: Server,
    standby: Router,
    _listening: Listening,
    _address: watch::Sender<Option<String>>,
}

impl Cluster {
    /// Starts the servers. The standby signs with the key `standby_key`.
    async fn start(standby_key: [u8; 32]) -> Self {
        let key = |key| Some(PeerKey::new(key));
        let active =
            Server::with(TestNode::builder().edge(move |http| http.with_peer_key(key([7; 32])))).await;
        let listening = active.node.listen().await;
        let address = watch::Sender::new(Some(listening.url()));
        let options = ForwardOptions {
            hosts: vec!["standby.example".into()],
            is_tls: true,
            key: key(standby_key),
            ..ForwardOptions::default()
        };
        let standby = Forward::new(address.subscribe(), options).unwrap().router();
        Self { active, standby, _listening: listening, _address: address }
    }

    async fn ticket(&self) -> Value {
        send_request(self.active.request(Method::POST, "/v1/tickets")).await.1["ticket"].take()
    }

    /// Builds a request of a browser to the standby.
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        RequestBuilder::new(self.standby.clone(), method, path).header("host", HOST)
    }

    fn redeem(&self, ticket: &Value, origin: &str) -> RequestBuilder {
        let request = self.request(Method::POST, "/v1/tickets/redeem").header("origin", origin);
        send_json(request, &json!({"ticket": ticket}))
    }
}

/// Adds a body, with its length as a connection has it.
fn send_json(request: RequestBuilder, body: &Value) -> RequestBuilder {
    request.header("content-length", body.to_string().len()).json(body)
}

#[tokio::test]
async fn a_browser_signs_in_through_a_server_that_forwards_and_changes_something() {
    let cluster = Cluster::start([7; 32]).await;
    let ticket = cluster.ticket().await;
    let (status, problem) = send_request(cluster.redeem(&ticket, "https://evil.example")).await;
    assert_eq!((status, &problem["code"]), (StatusCode::FORBIDDEN, &json!("forbidden_origin")));
    let answer = cluster.redeem(&ticket, ORIGIN).send().await;
    assert_eq!(answer.status(), StatusCode::OK);
    let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.starts_with("mainspring-page-7433=") && cookie.ends_with("; Secure"), "{cookie}");
    let secret = answer.json().await["secret"].as_str().unwrap().to_owned();
    let signed_in = |request: RequestBuilder| {
        request.header("cookie", cookie.split(';').next().unwrap()).header("mainspring-page", &secret)
    };
    let me = send_request(signed_in(cluster.request(Method::GET, "/v1/me"))).await;
    assert_eq!((me.0, &me.1["role"]), (StatusCode::OK, &json!("admin")));
    let create = || send_json(signed_in(cluster.request(Method::POST, "/v1/sessions")), &json!({"key": "a"}));
    assert_eq!(send_request(create()).await.0, StatusCode::UNAUTHORIZED, "a change needs an Origin");
    assert_eq!(send_request(create().header("origin", "null")).await.0, StatusCode::FORBIDDEN);
    assert_eq!(send_request(create().header("origin", ORIGIN)).await.0, StatusCode::CREATED);
}

#[tokio::test]
async fn only_a_server_of_the_cluster_says_how_a_browser_came() {
    let cluster = Cluster::start([7; 32]).await;
    let ticket = cluster.ticket().await;
    let visit = format!("{} {HOST} {ORIGIN}", "0".repeat(64));
    // The standby replaces the visit that a client claims, also if the client has no Origin.
    let to_standby = cluster.request(Method::POST, "/v1/tickets/redeem");
    let to_active = cluster.active.anonymous(Method::POST, "/v1/tickets/redeem").header("host", "localhost");
    for request in [to_standby, to_active] {
        let request = send_json(request.header("mainspring-visit", &visit), &json!({"ticket": ticket}));
        let (status, problem) = send_request(request).await;
        assert_eq!((status, &problem["code"]), (StatusCode::UNAUTHORIZED, &json!("authentication")));
    }
    assert_eq!(
        send_request(cluster.redeem(&ticket, ORIGIN)).await.0,
        StatusCode::OK,
        "the ticket was not used"
    );
    // A server with another secret is no server of the cluster.
    let other = Cluster::start([8; 32]).await;
    let ticket = other.ticket().await;
    assert_eq!(send_request(other.redeem(&ticket, ORIGIN)).await.0, StatusCode::UNAUTHORIZED);
}
