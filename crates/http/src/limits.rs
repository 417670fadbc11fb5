//! What is too much for this edge; what is too much for the kernel, the kernel says.

/// The limits of the HTTP edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// Requests that are worked on at once; streams are not among them.
    pub requests: usize,
    /// Streams that are open at once.
    pub streams: usize,
    /// Streams of one session that are open at once.
    pub session_streams: usize,
    /// Bytes of a request's line and headers.
    pub header_bytes: usize,
    /// Headers of a request.
    pub headers: usize,
    /// Milliseconds in which the headers of the next request must have come.
    pub header_ms: u64,
    /// Milliseconds in which a request's body must have come.
    pub body_ms: u64,
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
        }
    }
}
