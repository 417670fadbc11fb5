//! Servers that speak TLS with each other: prompts, streams, uploads and downloads through a server that is not the home of
//! the session, and through one that stands by.

use futures_util::{Stream, stream};
use tokio::sync::oneshot;

use super::*;

/// More than the part of a body that a server buffers to send it again.
const UPLOAD_BYTES: usize = 3 << 20;

impl Servers {
    async fn start_tls(count: usize, spread: bool) -> Self {
        let mut servers = Self::prepare(vec![vec![]; count], spread, true);
        servers.start_all().await;
        servers
    }

    /// The number of incomplete uploads at a server.
    fn parts(&self, n: usize) -> usize {
        let staging = self.folder.path().join(format!("state{n}/artifacts/staging"));
        let folders = fs::read_dir(staging).into_iter().flatten().flatten();
        let files = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten());
        files.filter(|file| file.path().extension().is_some_and(|ending| ending == "part")).count()
    }

    fn upload(&self, n: usize, session: &str) -> RequestBuilder {
        let path = format!("/v1/sessions/{session}/artifacts");
        self.request(n, Method::POST, &path).header("content-type", "application/octet-stream")
    }

    /// Reads events of a session through a server from `after`, until a run has ended or `limit` events were read.
    async fn events(
        &self,
        n: usize,
        session: &str,
        after: &str,
        limit: usize,
    ) -> Vec<(Option<String>, String)> {
        let request = self.request(n, Method::GET, &format!("/v1/sessions/{session}/events"));
        let request = request.query(&[("after", after)]).header("accept", "text/event-stream");
        let answer = request.send().await.unwrap();
        assert!(answer.status().is_success(), "{n}: {}", answer.text().await.unwrap());
        let (mut stream, mut durable) = (EventStream::new(answer.bytes_stream()), vec![]);
        while durable.len() < limit {
            let frame = stream.next().await.unwrap();
            let is_end = frame.event == "run.succeeded";
            if frame.event.starts_with("run.") || frame.event == "message.completed" {
                durable.push((frame.id, frame.event));
            }
            if is_end {
                break;
            }
        }
        durable
    }
}

fn content() -> Vec<u8> {
    (0..UPLOAD_BYTES as u32 / 4).flat_map(u32::to_le_bytes).collect()
}

/// A body whose second part is sent once `go` gets a message, or never if the sender of `go` is dropped.
fn halting(
    content: &[u8],
    go: oneshot::Receiver<()>,
) -> impl Stream<Item = std::io::Result<Vec<u8>>> + Send + use<> {
    let rest = content[UPLOAD_BYTES / 2..].to_vec();
    let first = content[..UPLOAD_BYTES / 2].to_vec();
    let waiting = async move {
        match go.await {
            Ok(()) => Ok(rest),
            Err(_) => std::future::pending().await,
        }
    };
    use futures_util::StreamExt;
    stream::iter([Ok(first)]).chain(stream::once(waiting))
}

/// Checks prompts, streams, uploads and downloads through the server `through`, for a session of the server `home`.
async fn check_everything(servers: &Servers, home: usize, through: usize) {
    let run = servers.prompt(home, "theirs", "say hello").await;
    let session = run["sessionId"].as_str().unwrap();
    servers.events(home, session, "0.0", usize::MAX).await;
    // A prompt, its stream, and the stream resumed after its second event.
    let before = servers.events(home, session, "0.0", usize::MAX).await;
    let after = before.last().unwrap().0.clone().unwrap();
    servers.prompt(through, "theirs", "stream 5 every 10ms x; say done").await;
    let first = servers.events(through, session, &after, 2).await;
    let rest = servers.events(through, session, first[1].0.as_deref().unwrap(), usize::MAX).await;
    let whole = servers.events(home, session, &after, usize::MAX).await;
    assert_eq!([first, rest].concat(), whole);
    check_uploads(servers, home, through, session).await;
}

async fn check_uploads(servers: &Servers, home: usize, through: usize, session: &str) {
    let content = content();
    for by in [session, "theirs"] {
        let whole = servers.upload(through, by).header("expect", "100-continue").body(content.clone());
        let made = send(whole).await.unwrap();
        assert_eq!(made["sizeBytes"], UPLOAD_BYTES, "{by}: {made}");
        // In pieces without a length: the home has the first ones before the last ones are sent.
        let (go, gone) = oneshot::channel();
        let body = reqwest::Body::wrap_stream(halting(&content, gone));
        let mut slow = JoinSet::new();
        slow.spawn(servers.upload(through, by).body(body).send());
        until(async || (servers.parts(home) > 0).then_some(())).await;
        go.send(()).unwrap();
        let answer = slow.join_next().await.unwrap().unwrap().unwrap();
        assert_eq!(answer.status(), StatusCode::CREATED, "{by}");
        // An upload that is cancelled leaves nothing.
        let (never, gone) = oneshot::channel();
        let body = reqwest::Body::wrap_stream(halting(&content, gone));
        let mut cancelled = JoinSet::new();
        cancelled.spawn(servers.upload(through, by).body(body).send());
        until(async || (servers.parts(home) > 0).then_some(())).await;
        cancelled.abort_all();
        until(async || (servers.parts(home) == 0).then_some(())).await;
        drop(never);
        let path = format!("/v1/artifacts/{}/content", made["artifactId"].as_str().unwrap());
        let read = servers.request(through, Method::GET, &path).send().await.unwrap();
        assert!(read.bytes().await.unwrap() == content, "{by}");
        let range = servers.request(through, Method::GET, &path).header("range", "bytes=2000000-2000999");
        let read = range.send().await.unwrap();
        assert_eq!(read.status(), StatusCode::PARTIAL_CONTENT);
        assert_eq!(read.bytes().await.unwrap(), content[2_000_000..2_001_000]);
    }
    let listed = servers.request(through, Method::GET, &format!("/v1/sessions/{session}/artifacts"));
    assert_eq!(send(listed).await.unwrap()["items"].as_array().unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_over_tls_through_a_server_that_is_not_the_home() {
    let servers = Servers::start_tls(2, true).await;
    // The leader answers for artifacts by their id, and has the bytes of its own sessions only: the servers share no folder.
    let leader = servers.active().unwrap();
    check_everything(&servers, leader, 1 - leader).await;
    assert_eq!(servers.home("theirs"), Some(leader));
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_over_tls_through_a_server_that_stands_by() {
    let servers = Servers::start_tls(2, false).await;
    let active = servers.active().unwrap();
    check_everything(&servers, active, 1 - active).await;
}
