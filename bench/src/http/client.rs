//! A lightweight client: one connection per client for requests, and streams that are read as they arrive.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection for consecutive requests.
pub(crate) struct Client {
    stream: TcpStream,
    port: u16,
    token: String,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) async fn open(port: u16, token: &str) -> Self {
        Self { stream: connect(port).await, port, token: token.into(), buffer: vec![] }
    }

    pub(crate) async fn get(&mut self, path: &str) -> String {
        self.send("GET", path, "").await
    }

    /// Returns the body of the response; any status but success aborts the benchmark.
    pub(crate) async fn send(&mut self, method: &str, path: &str, body: &str) -> String {
        self.exchange(method, path, "", body).await
    }

    /// Posts a prompt and returns its run when it has ended.
    pub(crate) async fn send_waiting(&mut self, path: &str, body: &str) -> String {
        self.exchange("POST", path, "prefer: wait=60\r\n", body).await
    }

    async fn exchange(&mut self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let request = format!(
            "{}{headers}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            head(method, path, self.port, &self.token, "1.1"),
            body.len(),
        );
        self.stream.write_all(request.as_bytes()).await.unwrap();
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end + 4;
            }
            self.read_more().await;
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let length: usize = length.trim().parse().unwrap();
        while self.buffer.len() < end + length {
            self.read_more().await;
        }
        let body = String::from_utf8(self.buffer[end..end + length].to_vec()).unwrap();
        self.buffer.drain(..end + length);
        assert!(head.starts_with("http/1.1 2"), "{method} {path}: {head}{body}");
        body
    }

    async fn read_more(&mut self) {
        assert!(
            self.stream.read_buf(&mut self.buffer).await.unwrap() > 0,
            "the server closed the connection"
        );
    }
}

/// A stream of server-sent events.
pub(crate) struct SseStream {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// The end of the data that was already returned.
    returned: usize,
}

impl SseStream {
    /// Requests a stream, and returns once the server has answered.
    pub(crate) async fn open(port: u16, token: &str, method: &str, path: &str, body: &str) -> Self {
        let mut stream = connect(port).await;
        // HTTP/1.0 makes the server send a plain byte stream without chunks.
        let request = format!(
            "{}accept: text/event-stream\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            head(method, path, port, token, "1.0"),
            body.len(),
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut frames = Self { stream, buffer: Vec::with_capacity(1 << 10), returned: 0 };
        let head =
            frames.read_until(b"\r\n\r\n").await.map(|(from, to)| frames.text(from, to)).unwrap_or_default();
        assert!(head.contains("200 OK"), "{method} {path}: {head}");
        frames
    }

    /// The next frame; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<&str> {
        let (from, to) = self.read_until(b"\n\n").await?;
        Some(str::from_utf8(&self.buffer[from..to]).unwrap())
    }

    async fn read_until(&mut self, end: &[u8]) -> Option<(usize, usize)> {
        loop {
            if let Some(found) = find(&self.buffer[self.returned..], end) {
                let from = self.returned;
                self.returned += found + end.len();
                return Some((from, from + found));
            }
            self.buffer.drain(..std::mem::take(&mut self.returned));
            if self.stream.read_buf(&mut self.buffer).await.unwrap() == 0 {
                return None;
            }
        }
    }

    fn text(&self, from: usize, to: usize) -> String {
        String::from_utf8_lossy(&self.buffer[from..to]).into_owned()
    }
}

fn head(method: &str, path: &str, port: u16, token: &str, version: &str) -> String {
    format!("{method} {path} HTTP/{version}\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {token}\r\n")
}

async fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// The text between `before` and `after`.
pub(crate) fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split_once(after).map(|(found, _)| found)
}
