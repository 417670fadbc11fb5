//! Digests: replacements for the older messages of a path in the model's context. The tree keeps the messages.
//!
//! A digest is attached to the last message it replaces, so exactly the paths through that message can use it.

use serde::{Deserialize, Serialize};

use crate::message::names;
use crate::{MessageId, Point, Time};

/// A replacement for the messages of a path from the root to `message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    /// The position of the last replaced message.
    pub at: Point,
    /// The id of the last replaced message.
    pub message: MessageId,
    /// The last prompt among the replaced messages. It is still sent to the model if it is the last prompt of the
    /// path.
    pub prompt: Option<MessageId>,
    /// The summary of the messages; `None` if there is no summary.
    pub summary: Option<String>,
    /// The number of replaced messages that the summary does not cover.
    pub left_out: u32,
    /// Models with a context window of at least this many tokens get the messages themselves.
    pub below_tokens: u64,
    /// When the digest was created.
    pub made_at: Time,
}

impl Digest {
    /// The number of replaced messages.
    pub const fn messages(&self) -> u32 {
        self.at.pos.saturating_add(1)
    }

    /// True when every replaced message is above `pen`, the position of the next message of a path through this digest.
    pub const fn lies_above(&self, pen: Point) -> bool {
        self.at.pos < pen.pos
    }

    /// The text that is sent to the model in place of the messages.
    pub fn text(&self) -> String {
        let left_out = match self.left_out {
            0 => None,
            1 => {
                Some("[1 earlier message of this conversation is left out, since it does not fit]".to_owned())
            }
            many => Some(format!(
                "[{many} earlier messages of this conversation are left out, since they do not fit]"
            )),
        };
        let summary = self.summary.as_ref().map(|summary| {
            format!("[The earlier part of this conversation is left out. This is its summary:]\n{summary}")
        });
        left_out.into_iter().chain(summary).collect::<Vec<_>>().join("\n")
    }
}

/// The author of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = DigestBy))]
#[serde(rename_all = "snake_case")]
pub enum DigestAuthor {
    /// A model summarised the messages.
    Summarizer,
    /// No summary could be made: the messages are left out, and the digest says how many.
    Fallback,
}
names!(DigestAuthor { Summarizer => "summarizer", Fallback => "fallback" });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LineId;

    fn digest(summary: Option<&str>, left_out: u32) -> Digest {
        Digest {
            at: Point { line: LineId(1), pos: 7 },
            message: MessageId::from_random([1; 16]),
            prompt: None,
            summary: summary.map(str::to_owned),
            left_out,
            below_tokens: 0,
            made_at: Time(1),
        }
    }

    #[test]
    fn a_digest_replaces_only_messages_above_the_pen() {
        let is_above = |pos| digest(None, 8).lies_above(Point { line: LineId(2), pos });
        assert_eq!((is_above(7), is_above(8), is_above(9)), (false, true, true));
    }

    #[test]
    fn the_text_says_how_many_messages_are_left_out() {
        assert_eq!(digest(None, 8).messages(), 8);
        assert!(digest(None, 8).text().starts_with("[8 earlier messages"));
        assert!(digest(None, 1).text().starts_with("[1 earlier message of"));
        let both = digest(Some("They met."), 3).text();
        assert!(both.contains("[3 earlier") && both.ends_with("\nThey met."), "{both}");
        assert!(!digest(Some("They met."), 0).text().contains("earlier messages"));
    }
}
