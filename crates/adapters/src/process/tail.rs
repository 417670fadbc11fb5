//! A buffer of the last bytes of a stream.

use std::collections::VecDeque;

/// Keeps the last bytes pushed into it.
#[derive(Debug)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
    limit: usize,
    truncated: bool,
}

impl Tail {
    /// Creates a buffer of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { bytes: VecDeque::new(), limit, truncated: false }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let last = &bytes[bytes.len().saturating_sub(self.limit)..];
        let over = (self.bytes.len() + last.len()).saturating_sub(self.limit);
        self.truncated |= over > 0 || last.len() < bytes.len();
        self.bytes.drain(..over);
        self.bytes.extend(last);
    }

    /// Reports whether bytes have been dropped.
    pub(crate) fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Returns the kept bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }

    /// Returns the kept bytes as text, without incomplete characters at either end.
    pub(crate) fn text(&self) -> String {
        let bytes = self.bytes();
        let is_continuation = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
        let start = match self.truncated {
            true => bytes.iter().take(3).take_while(|byte| is_continuation(byte)).count(),
            false => 0,
        };
        let continuation = bytes.iter().rev().take(3).take_while(|byte| is_continuation(byte)).count();
        let first = bytes.len().checked_sub(continuation + 1).filter(|at| *at >= start);
        let end = match first.map(|at| (at, bytes[at])) {
            Some((at, byte)) if byte.leading_ones() as usize > continuation + 1 => at,
            _ => bytes.len(),
        };
        String::from_utf8_lossy(&bytes[start..end]).into_owned()
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
            assert_eq!(tail.is_truncated(), pushed != "ab" && pushed != "cd", "{pushed}");
        }
    }

    #[test]
    fn text_holds_only_complete_characters() {
        for limit in 0..20 {
            let mut tail = Tail::new(limit);
            tail.push("aé漢🦀é漢🦀".as_bytes());
            let text = tail.text();
            assert!("aé漢🦀é漢🦀".ends_with(&text) && text.len() + 4 > limit.min(18), "{limit}: {text}");
        }
        // The rest of the last character is still to come.
        for (bytes, text) in
            [(&"é漢".as_bytes()[..4], "é"), (&"🦀".as_bytes()[..3], ""), (&b"a\xffb"[..], "a\u{fffd}b")]
        {
            let mut tail = Tail::new(100);
            tail.push(bytes);
            assert_eq!(tail.text(), text);
        }
    }
}
