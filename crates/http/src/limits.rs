//! Limits of the HTTP server. The kernel checks its own limits.

/// The limits of the HTTP edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// Requests handled concurrently; open streams do not count.
    pub requests: usize,
    /// Streams open at the same time.
    pub streams: usize,
    /// Streams of one session open at the same time.
    pub session_streams: usize,
    /// Bytes of the request line and headers.
    pub header_bytes: usize,
    /// Number of headers of a request.
    pub headers: usize,
    /// Milliseconds within which a request's headers must arrive.
    pub header_ms: u64,
    /// Milliseconds within which a request's body must arrive. An uploaded file may take longer, at the rate `body_rate`.
    pub body_ms: u64,
    /// Bytes per second at which an uploaded file must arrive, after `body_ms`.
    pub body_rate: u64,
    /// Connections open at the same time, on all sockets.
    pub connections: usize,
    /// Connections of one address open at the same time; those of this machine do not count.
    pub connections_per_address: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            requests: 1024,
            streams: 32_768,
            session_streams: 16_384,
            header_bytes: 64 << 10,
            headers: 100,
            header_ms: 30_000,
            body_ms: 30_000,
            body_rate: 4 << 10,
            connections: 40_000,
            connections_per_address: 20_000,
        }
    }
}
