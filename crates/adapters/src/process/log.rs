//! The log of an agent's standard error: its beginning and its end, with secrets redacted.

use std::sync::Arc;

use parking_lot::Mutex;

use super::tail::Tail;

/// The number of bytes that are kept of the beginning.
const HEAD_BYTES: usize = 16 << 10;
/// The number of bytes that are kept of the end.
const TAIL_BYTES: usize = 48 << 10;
/// Shorter values are not treated as secrets: they occur in ordinary text.
const MIN_SECRET_BYTES: usize = 6;

/// A bounded log of an agent's standard error. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Log(Arc<LogInner>);

#[derive(Debug)]
struct LogInner {
    /// Names of variables and their values, which must not appear in the text.
    secrets: Vec<(String, String)>,
    /// The length of the longest secret. The head and the tail each keep that many more bytes than they return, so that
    /// a secret at the cut is recognised.
    margin: usize,
    buffer: Mutex<LogBuffer>,
}

#[derive(Debug)]
struct LogBuffer {
    head: Vec<u8>,
    tail: Tail,
    written: usize,
}

impl Default for Log {
    fn default() -> Self {
        Self::new([])
    }
}

impl Log {
    /// Creates an empty log that redacts the values of `variables`.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut secrets: Vec<_> =
            variables.into_iter().filter(|(_, value)| value.trim().len() >= MIN_SECRET_BYTES).collect();
        // Longest first: one value may contain another.
        secrets.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
        let margin = secrets.first().map_or(0, |(_, value)| value.len());
        let buffer = Mutex::new(LogBuffer::new(margin));
        Self(Arc::new(LogInner { secrets, margin, buffer }))
    }

    /// Drops everything logged so far, because it belongs to an earlier attempt.
    pub fn clear(&self) {
        *self.0.buffer.lock() = LogBuffer::new(self.0.margin);
    }

    pub(super) fn push(&self, bytes: &[u8]) {
        let mut buffer = self.0.buffer.lock();
        let room = (HEAD_BYTES + self.0.margin).saturating_sub(buffer.head.len()).min(bytes.len());
        buffer.head.extend_from_slice(&bytes[..room]);
        buffer.tail.push(bytes);
        buffer.written += bytes.len();
    }

    /// Appends a line of the agent's standard output that is not a protocol message.
    pub(crate) fn push_line(&self, line: &str) {
        self.push(line.as_bytes());
        self.push(b"\n");
    }

    /// Returns the whole log, or its beginning and end if it is too long, with secrets redacted.
    pub fn text(&self) -> String {
        let buffer = self.0.buffer.lock();
        let (head, tail) = (&buffer.head, buffer.tail.bytes());
        if buffer.written <= head.len() + tail.len() {
            let rest = &tail[tail.len() - (buffer.written - head.len())..];
            let whole = [head, rest].concat();
            return self.redact(&whole, 0, whole.len());
        }
        let left_out = buffer.written - HEAD_BYTES - TAIL_BYTES;
        let head = self.redact(head, 0, HEAD_BYTES);
        let tail = self.redact(&tail, self.0.margin, tail.len());
        format!("{head}\n[… {left_out} bytes are left out …]\n{tail}")
    }

    /// Returns the bytes from `from` to `to`, replacing each secret that overlaps them by `${NAME}`.
    fn redact(&self, bytes: &[u8], from: usize, to: usize) -> String {
        let mut redacted = vec![];
        let mut at = 0;
        while at < to {
            let secret = self.0.secrets.iter().find(|(_, value)| bytes[at..].starts_with(value.as_bytes()));
            match secret {
                Some((name, value)) => {
                    at += value.len();
                    if at > from {
                        redacted.extend_from_slice(format!("${{{name}}}").as_bytes());
                    }
                }
                None => {
                    if at >= from {
                        redacted.push(bytes[at]);
                    }
                    at += 1;
                }
            }
        }
        String::from_utf8_lossy(&redacted).into_owned()
    }
}

impl LogBuffer {
    fn new(margin: usize) -> Self {
        Self { head: vec![], tail: Tail::new(TAIL_BYTES + margin), written: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(variables: &[(&str, &str)]) -> Log {
        Log::new(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn a_short_log_is_kept_whole_and_a_long_one_at_both_ends() {
        let log = log(&[]);
        log.push(b"one\n");
        log.push(b"two\n");
        assert_eq!(log.text(), "one\ntwo\n");
        log.clear();
        log.push(&[b'a'; HEAD_BYTES]);
        log.push(&[b'b'; TAIL_BYTES]);
        assert_eq!(log.text().len(), HEAD_BYTES + TAIL_BYTES);
        log.push(&[b'c'; 10]);
        let text = log.text();
        assert!(text.starts_with("aaa") && text.ends_with("bcccccccccc"));
        assert!(text.contains("a\n[… 10 bytes are left out …]\nb"), "{}", text.len());
    }

    #[test]
    fn secrets_are_redacted_wherever_the_log_is_cut() {
        let secret = "hunter2-hunter2";
        for offset in 0..40 {
            let log = log(&[("KEY", secret), ("MODE", "on")]);
            log.push(&vec![b'.'; HEAD_BYTES - 20 + offset]);
            log.push(secret.as_bytes());
            log.push(&vec![b'.'; 100_000]);
            log.push(secret.as_bytes());
            log.push(&vec![b'.'; TAIL_BYTES - 20 + offset]);
            log.push(b"on");
            let text = log.text();
            assert!(!text.contains("hunter") && !text.contains("ter2"), "{offset}");
            assert!(text.ends_with("on"), "a short value is not a secret");
        }
    }

    #[test]
    fn a_secret_is_replaced_by_its_name() {
        let log = log(&[("SHORT", "secret"), ("LONG", "secret-and-more")]);
        log.push(b"key=secret-and-more key=secret key=secre");
        assert_eq!(log.text(), "key=${LONG} key=${SHORT} key=secre");
    }
}
