//! The end of the process's standard error.

use std::collections::VecDeque;

/// Maximum number of bytes kept.
const MAX_TAIL_BYTES: usize = 8 << 10;

/// The last bytes of a stream.
#[derive(Debug, Default)]
pub(super) struct Tail(VecDeque<u8>);

impl Tail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend(&bytes[bytes.len().saturating_sub(MAX_TAIL_BYTES)..]);
        let excess = self.0.len().saturating_sub(MAX_TAIL_BYTES);
        self.0.drain(..excess);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the kept text without a line that was cut off at its start.
    pub(super) fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.0.iter().copied().collect::<Vec<u8>>()).into_owned();
        match (self.0.len() < MAX_TAIL_BYTES, text.split_once('\n')) {
            (false, Some((_, complete))) => complete.to_owned(),
            _ => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_whole() {
        let mut tail = Tail::default();
        tail.push(b"one\n");
        assert_eq!(tail.text(), "one\n");
        for no in 0..2_000 {
            tail.push(format!("line {no}\n").as_bytes());
        }
        let text = tail.text();
        assert!(
            text.len() <= MAX_TAIL_BYTES && text.starts_with("line ") && text.ends_with("line 1999\n"),
            "{text}"
        );
        tail.push(&[b'x'; 3 * MAX_TAIL_BYTES]);
        assert_eq!(tail.text().len(), MAX_TAIL_BYTES);
    }
}
