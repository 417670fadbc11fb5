//! The last bytes of a stream that may be endless.

use std::collections::VecDeque;

/// Keeps the last bytes of what is pushed into it.
#[derive(Debug)]
pub(super) struct Tail {
    bytes: VecDeque<u8>,
    limit: usize,
}

impl Tail {
    /// Keeps at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { bytes: VecDeque::new(), limit }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(self.limit)..];
        let over = (self.bytes.len() + bytes.len()).saturating_sub(self.limit);
        self.bytes.drain(..over);
        self.bytes.extend(bytes);
    }

    /// What is kept, as text.
    pub(super) fn text(&self) -> String {
        let (front, back) = self.bytes.as_slices();
        String::from_utf8_lossy(&[front, back].concat()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_bytes_are_kept() {
        let mut tail = Tail::new(4);
        for (pushed, kept) in [("ab", "ab"), ("cd", "abcd"), ("e", "bcde"), ("123456", "3456"), ("", "3456")]
        {
            tail.push(pushed.as_bytes());
            assert_eq!(tail.text(), kept);
        }
    }
}
