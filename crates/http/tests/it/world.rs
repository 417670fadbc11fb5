//! Requests to the router of a node, without a socket.

use axum::Router;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use mainspring_test_support::{EventStream, NodeBuilder, TOKEN, TestNode};
use serde::Serialize;
use serde_json::{Value, json};
use tower::ServiceExt;

/// A node whose router is called directly.
pub(crate) struct Server {
    pub(crate) node: TestNode,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(TestNode::builder()).await
    }

    pub(crate) async fn with(builder: NodeBuilder) -> Self {
        Self { node: builder.start().await }
    }

    /// Builds a request with the token.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.anonymous(method, path).bearer_auth(TOKEN)
    }

    /// Builds a request without credentials.
    pub(crate) fn anonymous(&self, method: Method, path: &str) -> RequestBuilder {
        RequestBuilder::new(self.node.router(), method, path)
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        send_request(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        send_request(self.request(Method::POST, path).json(&body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> (StatusCode, Value) {
        send_request(self.request(Method::DELETE, path)).await
    }

    /// Sends a script to the session of this key.
    pub(crate) async fn prompt(&self, session: &str, text: &str) -> Value {
        let body = json!({"prompt": text, "session": {"key": session}});
        let (status, run) = self.post("/v1/runs", body).await;
        assert!(status.is_success(), "{run}");
        run
    }

    /// Waits for the end of the run on its event stream.
    pub(crate) async fn wait_ended(&self, run: &Value) -> Value {
        let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
        let mut stream = self.stream(&format!("{path}/events"), None).await;
        while stream.next().await.is_some() {}
        self.get(&path).await.1
    }

    /// Sends a script and waits for the run's end.
    pub(crate) async fn play(&self, session: &str, text: &str) -> Value {
        let run = self.prompt(session, text).await;
        self.wait_ended(&run).await
    }

    /// Opens a stream of server-sent events after the event `last`.
    pub(crate) async fn stream(&self, path: &str, last: Option<&str>) -> EventStream {
        let request = self.request(Method::GET, path).header("accept", "text/event-stream");
        match last {
            Some(last) => request.header("last-event-id", last).send().await.frames(),
            None => request.send().await.frames(),
        }
    }
}

/// A request that is being built.
#[derive(Debug)]
pub(crate) struct RequestBuilder {
    router: Router,
    request: Request<Body>,
}

impl RequestBuilder {
    /// Begins a request to a router.
    pub(crate) fn new(router: Router, method: Method, path: &str) -> Self {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap();
        Self { router, request }
    }

    pub(crate) fn header<N, V>(mut self, name: N, value: V) -> Self
    where
        N: TryInto<HeaderName, Error: std::fmt::Debug>,
        V: TryInto<HeaderValue, Error: std::fmt::Debug>,
    {
        self.request.headers_mut().append(name.try_into().unwrap(), value.try_into().unwrap());
        self
    }

    pub(crate) fn bearer_auth(self, secret: &str) -> Self {
        self.header(header::AUTHORIZATION, format!("Bearer {secret}"))
    }

    pub(crate) fn body(mut self, body: impl Into<Body>) -> Self {
        *self.request.body_mut() = body.into();
        self
    }

    pub(crate) fn json(self, body: &impl Serialize) -> Self {
        let body = serde_json::to_vec(body).unwrap();
        self.header(header::CONTENT_TYPE, "application/json").body(body)
    }

    pub(crate) async fn send(self) -> Response {
        Response(self.router.oneshot(self.request).await.unwrap())
    }
}

/// A response whose body may not have arrived yet.
pub(crate) struct Response(axum::response::Response);

impl Response {
    pub(crate) fn status(&self) -> StatusCode {
        self.0.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.0.headers()
    }

    pub(crate) async fn bytes(self) -> Bytes {
        axum::body::to_bytes(self.0.into_body(), usize::MAX).await.unwrap()
    }

    pub(crate) async fn text(self) -> String {
        String::from_utf8(self.bytes().await.to_vec()).unwrap()
    }

    pub(crate) async fn json(self) -> Value {
        serde_json::from_slice(&self.bytes().await).unwrap()
    }

    /// The body as it arrives.
    pub(crate) fn pieces(self) -> BodyDataStream {
        self.0.into_body().into_data_stream()
    }

    /// Reads the body as server-sent events.
    pub(crate) fn frames(self) -> EventStream {
        assert_eq!(self.headers()["content-type"], "text/event-stream");
        EventStream::new(self.pieces())
    }
}

/// Sends a request and returns its status and body: JSON, or the text as a string.
pub(crate) async fn send_request(request: RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await;
    let status = response.status();
    let text = response.text().await;
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}
