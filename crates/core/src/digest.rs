//! Digests: what stands for the older messages of a path where a model is shown it. The tree keeps the messages.
//!
//! A digest lies with the last message it stands for, so every path through that message may use it, and no other.

use serde::{Deserialize, Serialize};

use crate::message::names;
use crate::{MessageId, Point, Time};

/// What stands for a path's messages from its root to one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    /// The last message it stands for.
    pub at: Point,
    /// The same, by id.
    pub message: MessageId,
    /// The last prompt among those that it stands for: a model is shown it if it is the last of all.
    pub prompt: Option<MessageId>,
    /// What was said; none if nobody summarised it.
    pub summary: Option<String>,
    /// How many of the messages no summary tells of.
    pub left_out: u32,
    /// Models that take at least this many tokens are shown the messages themselves.
    pub below: u64,
    /// When it was made.
    pub made_at: Time,
}

impl Digest {
    /// How many messages it stands for.
    pub const fn messages(&self) -> u32 {
        self.at.pos.saturating_add(1)
    }

    /// What a model is told instead of the messages.
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

/// Who decided what a digest says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DigestBy {
    /// A model summarised the messages.
    Summarizer,
    /// Nobody did: they are left out, and it says how many.
    Fallback,
}
names!(DigestBy { Summarizer => "summarizer", Fallback => "fallback" });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LineId;

    #[test]
    fn it_says_what_is_missing() {
        let digest = |summary: Option<&str>, left_out| Digest {
            at: Point { line: LineId(1), pos: 7 },
            message: MessageId::from_random([1; 16]),
            prompt: None,
            summary: summary.map(str::to_owned),
            left_out,
            below: 0,
            made_at: Time(1),
        };
        assert_eq!(digest(None, 8).messages(), 8);
        assert!(digest(None, 8).text().starts_with("[8 earlier messages"));
        assert!(digest(None, 1).text().starts_with("[1 earlier message of"));
        let both = digest(Some("They met."), 3).text();
        assert!(both.contains("[3 earlier") && both.ends_with("\nThey met."), "{both}");
        assert!(!digest(Some("They met."), 0).text().contains("earlier messages"));
    }
}
