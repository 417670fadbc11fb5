//! Servers that speak TLS with each other: prompts, streams, uploads and downloads through a server that is not the home of
//! the session, and through one that stands by.

use futures_util::{Stream, stream};
use tokio::sync::oneshot;

use super::spread::until;
use super::*;

/// More than a server keeps of a body in order to send it again.
const UPLOAD_BYTES: usize = 3 << 20;

impl Servers {
    async fn start_tls(count: usize, spread: bool) -> Self {
        let mut servers = Self::prepare(vec![vec![]; count], spread, true);
        servers.share_artifacts();
        servers.start_all().await;
        servers
    }

    /// Makes one folder the folder of artifacts of all servers. Returns it.
    fn share_artifacts(&self) -> std::path::PathBuf {
        let shared = self.folder.path().join("shared");
        fs::create_dir(&shared).unwrap();
        for n in 0..self.ports.len() {
            let state = self.folder.path().join(format!("state{n}"));
            fs::create_dir(&state).unwrap();
            fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::symlink(&shared, state.join("artifacts")).unwrap();
        }
        shared
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

/// A body of which the rest is sent when `go` says so, or never if `go` is dropped without a word.
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

/// Does everything through the server `through` for a session that the server `home` executes.
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
    check_everything(&servers, 1, 0).await;
    assert_eq!(servers.home("theirs"), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_over_tls_through_a_server_that_stands_by() {
    let servers = Servers::start_tls(2, false).await;
    let active = servers.active().unwrap();
    check_everything(&servers, active, 1 - active).await;
}

/// Stores the same content in a session and deletes it, again and again. Requests that get no answer are left alone.
async fn churn(
    (client, url, token): (Client, String, String),
    session: String,
    is_over: Arc<AtomicBool>,
) -> usize {
    let (put, mut rounds) = (format!("{url}/v1/sessions/{session}/artifacts"), 0);
    while !is_over.load(Ordering::Acquire) {
        let put = client.post(&put).bearer_auth(&token).body("the same content");
        let Some(made) = send(put.timeout(std::time::Duration::from_secs(40))).await else { continue };
        rounds += 1;
        let path = format!("{url}/v1/artifacts/{}", made["artifactId"].as_str().unwrap());
        let deleted = client.delete(path).bearer_auth(&token).send().await;
        if let Ok(deleted) = deleted {
            let status = deleted.status();
            assert!(status.is_success() || status == StatusCode::SERVICE_UNAVAILABLE, "{status}");
        }
    }
    rounds
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_between_bytes_and_row_leaves_no_artifact_without_bytes() {
    let mut servers = Servers::prepare(vec![vec![]; 2], true, false);
    let shared = servers.share_artifacts();
    servers.start_all().await;
    let leader = servers.active().unwrap();
    let killed = 1 - leader;
    let mut sessions = vec![];
    for n in 0..2 {
        let run = servers.prompt(n, &format!("k{n}"), "say hello").await;
        sessions.push(run["sessionId"].as_str().unwrap().to_owned());
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let mut churns = JoinSet::new();
    for (n, session) in sessions.iter().enumerate() {
        let at = (servers.client.clone(), servers.url(leader, ""), servers.token());
        // Through the leader, whose connections last.
        churns.spawn(churn(at, session.clone(), Arc::clone(&is_over)));
        assert_eq!(servers.home(&format!("k{n}")), Some(n));
    }
    for round in 0..2 {
        // An upload that the server has not read to its end.
        let run = servers.prompt(killed, &format!("half-{round}"), "say hello").await;
        let session = run["sessionId"].as_str().unwrap();
        let (never, gone) = oneshot::channel();
        let body = reqwest::Body::wrap_stream(halting(&content(), gone));
        let mut half = JoinSet::new();
        half.spawn(servers.upload(killed, session).body(body).send());
        let node = servers.node(killed);
        let staging = shared.join(format!("staging/node_{node}"));
        let has_part = || {
            let files = fs::read_dir(&staging).into_iter().flatten().flatten();
            files
                .map(|file| fs::metadata(file.path()).map_or(0, |file| file.len()))
                .any(|bytes| bytes > 1 << 20)
        };
        until(async || has_part().then_some(())).await;
        servers.children.kill(killed);
        drop(never);
        // The leader takes over, and removes what the server has left.
        until(async || (!staging.exists()).then_some(())).await;
        servers.spawn(killed);
        servers.ready(killed).await;
        until(async || send(servers.upload(leader, &sessions[killed]).body("more")).await).await;
    }
    is_over.store(true, Ordering::Release);
    let rounds = churns.join_all().await;
    assert!(rounds.iter().all(|rounds| *rounds > 2), "{rounds:?}");
    for session in &sessions {
        let listed = servers.request(leader, Method::GET, &format!("/v1/sessions/{session}/artifacts"));
        for artifact in send(listed).await.unwrap()["items"].as_array().unwrap() {
            let path = format!("/v1/artifacts/{}/content", artifact["artifactId"].as_str().unwrap());
            let read = servers.request(leader, Method::GET, &path).send().await.unwrap();
            assert_eq!(read.status(), StatusCode::OK, "{artifact}: {}", read.text().await.unwrap());
        }
    }
}
