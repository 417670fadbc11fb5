//! What an agent writes to its standard error: its beginning and its end, without its secrets.

use std::sync::Arc;

use parking_lot::Mutex;

use super::tail::Tail;

/// How much of the beginning is kept.
const HEAD: usize = 16 << 10;
/// How much of the end is kept.
const TAIL: usize = 48 << 10;
/// Values that are shorter are no secrets, and are in everything.
const SECRET: usize = 6;

/// What was written to a standard error since its log began. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Log(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Names of variables, and the values that must not be shown.
    secrets: Vec<(String, String)>,
    /// The length of the longest: so much more is read than shown, so that none is shown in part.
    margin: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
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
    /// An empty one that never shows the values of these variables.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut secrets: Vec<_> =
            variables.into_iter().filter(|(_, value)| value.trim().len() >= SECRET).collect();
        // A value that contains another goes first.
        secrets.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
        let margin = secrets.first().map_or(0, |(_, value)| value.len());
        let state = Mutex::new(State::new(margin));
        Self(Arc::new(Shared { secrets, margin, state }))
    }

    /// Begins anew: what was written before belongs to something that is over.
    pub fn begin(&self) {
        *self.0.state.lock() = State::new(self.0.margin);
    }

    pub(super) fn push(&self, bytes: &[u8]) {
        let mut state = self.0.state.lock();
        let room = (HEAD + self.0.margin).saturating_sub(state.head.len()).min(bytes.len());
        state.head.extend_from_slice(&bytes[..room]);
        state.tail.push(bytes);
        state.written += bytes.len();
    }

    /// A line that was written elsewhere.
    pub(crate) fn line(&self, line: &str) {
        self.push(line.as_bytes());
        self.push(b"\n");
    }

    /// What was written: all of it, or its beginning and its end.
    pub fn text(&self) -> String {
        let state = self.0.state.lock();
        let (head, tail) = (&state.head, state.tail.bytes());
        if state.written <= head.len() + tail.len() {
            let rest = &tail[tail.len() - (state.written - head.len())..];
            let whole = [head, rest].concat();
            return self.shown(&whole, 0, whole.len());
        }
        let left_out = state.written - HEAD - TAIL;
        let (head, tail) = (self.shown(head, 0, HEAD), self.shown(&tail, self.0.margin, tail.len()));
        format!("{head}\n[… {left_out} bytes are left out …]\n{tail}")
    }

    /// The bytes from `from` to `to`, with a name in place of each secret that reaches into them.
    fn shown(&self, bytes: &[u8], from: usize, to: usize) -> String {
        let mut shown = vec![];
        let mut at = 0;
        while at < to {
            let secret = self.0.secrets.iter().find(|(_, value)| bytes[at..].starts_with(value.as_bytes()));
            match secret {
                Some((name, value)) => {
                    at += value.len();
                    if at > from {
                        shown.extend_from_slice(format!("${{{name}}}").as_bytes());
                    }
                }
                None => {
                    if at >= from {
                        shown.push(bytes[at]);
                    }
                    at += 1;
                }
            }
        }
        String::from_utf8_lossy(&shown).into_owned()
    }
}

impl State {
    fn new(margin: usize) -> Self {
        Self { head: vec![], tail: Tail::new(TAIL + margin), written: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(variables: &[(&str, &str)]) -> Log {
        Log::new(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn what_is_short_is_kept_whole_and_what_is_long_at_both_ends() {
        let log = log(&[]);
        log.push(b"one\n");
        log.push(b"two\n");
        assert_eq!(log.text(), "one\ntwo\n");
        log.begin();
        log.push(&[b'a'; HEAD]);
        log.push(&[b'b'; TAIL]);
        assert_eq!(log.text().len(), HEAD + TAIL);
        log.push(&[b'c'; 10]);
        let text = log.text();
        assert!(text.starts_with("aaa") && text.ends_with("bcccccccccc"));
        assert!(text.contains("a\n[… 10 bytes are left out …]\nb"), "{}", text.len());
    }

    #[test]
    fn secrets_are_never_shown_wherever_the_log_is_cut() {
        let secret = "hunter2-hunter2";
        for offset in 0..40 {
            let log = log(&[("KEY", secret), ("MODE", "on")]);
            log.push(&vec![b'.'; HEAD - 20 + offset]);
            log.push(secret.as_bytes());
            log.push(&vec![b'.'; 100_000]);
            log.push(secret.as_bytes());
            log.push(&vec![b'.'; TAIL - 20 + offset]);
            log.push(b"on");
            let text = log.text();
            assert!(!text.contains("hunter") && !text.contains("ter2"), "{offset}");
            assert!(text.ends_with("on"), "what is short is no secret");
        }
    }

    #[test]
    fn a_secret_is_told_by_its_name() {
        let log = log(&[("SHORT", "secret"), ("LONG", "secret-and-more")]);
        log.push(b"key=secret-and-more key=secret key=secre");
        assert_eq!(log.text(), "key=${LONG} key=${SHORT} key=secre");
    }
}
