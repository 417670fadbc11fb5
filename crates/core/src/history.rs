//! Histories: whether a reader's position belongs to the events that are stored.
//!
//! ```text
//! stored histories, by token:   a after cursor 0, b after 120, c after 300
//! position 290 with token b:    known: b ends at 300
//! position 310 with token b:    unknown: beyond the end of b
//! position 310 with token x:    unknown: no such history
//! ```
//!
//! Each process that opens a store begins a history, under a new token. If the store is replaced by an older copy of
//! itself, the histories begun after the copy was made are gone, and the last history of the copy ends where the next
//! process begins its own.

use crate::Cursor;

/// The events that one process has stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// The name of the history, unique among all.
    pub token: String,
    /// The last cursor before its events.
    pub after: Cursor,
}

/// True if a reader's position, `cursor` in the history `token`, belongs to `histories`, which are listed oldest first.
pub fn is_known(histories: &[History], token: &str, cursor: Cursor) -> bool {
    let Some(index) = histories.iter().position(|history| history.token == token) else { return false };
    histories.get(index + 1).is_none_or(|next| cursor <= next.after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_known_up_to_the_end_of_its_history() {
        let stored = [("a", 0), ("b", 120), ("c", 300)]
            .map(|(token, after)| History { token: token.into(), after: Cursor(after) });
        for (token, cursor, known) in [
            ("a", 100, true),
            ("a", 120, true),
            ("a", 121, false),
            ("b", 100, true),
            ("b", 300, true),
            ("b", 310, false),
            ("c", 310, true),
            ("x", 1, false),
        ] {
            assert_eq!(is_known(&stored, token, Cursor(cursor)), known, "{token} {cursor}");
        }
    }
}
