//! Feedback: a reader's opinion on a message of a session.
//!
//! A reader has one feedback per message; giving it again replaces the content and keeps the id and the time of creation.

use serde::{Deserialize, Serialize};

use crate::message::names;
use crate::{Body, FeedbackId, MessageId, SessionId, Time};

/// Maximum characters of the notes.
pub const MAX_NOTES_CHARS: usize = 4000;
/// The categories of negative feedback, besides `other`.
pub const NEGATIVE: [&str; 7] =
    ["formatting", "incomplete", "incorrect", "refused_valid_request", "slow", "tool_failure", "unsafe"];
/// The categories of positive feedback, besides `other`.
pub const POSITIVE: [&str; 3] = ["correct", "good_tool_use", "helpful"];
/// A category of both sentiments. Feedback with this category needs notes.
pub const OTHER: &str = "other";

/// Whether feedback is positive or negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Sentiment {
    /// The message is good.
    Positive,
    /// The message is bad.
    Negative,
}
names!(Sentiment { Positive => "positive", Negative => "negative" });

/// The content of feedback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewFeedback {
    /// Whether the feedback is positive or negative.
    pub sentiment: Sentiment,
    /// The categories, which belong to the sentiment; see docs/http.md.
    #[serde(default)]
    pub categories: Vec<String>,
    /// A comment. Blank notes count as none.
    #[serde(default)]
    pub notes: Option<String>,
}

/// Feedback on a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Feedback {
    /// The id.
    #[serde(rename = "feedbackId")]
    pub id: FeedbackId,
    /// The session in which the feedback was given.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// The message.
    #[serde(rename = "messageId")]
    pub message: MessageId,
    /// The owner that gave the feedback.
    #[serde(rename = "ownerId")]
    pub owner: String,
    /// Whether the feedback is positive or negative.
    pub sentiment: Sentiment,
    /// The categories, sorted, each once.
    pub categories: Vec<String>,
    /// A comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// When the feedback was first given.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When the feedback was last given.
    #[serde(rename = "updatedAtMs")]
    pub updated_at: Time,
}

/// Why feedback is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFeedback {
    /// A category does not belong to the sentiment.
    #[error("{category:?} is no category of {sentiment} feedback; there is {known}")]
    Category {
        /// The category.
        category: String,
        /// The sentiment.
        sentiment: Sentiment,
        /// The categories of the sentiment.
        known: String,
    },
    /// The category `other` was given without notes.
    #[error("the category \"other\" needs notes")]
    NoNotes,
    /// The notes are too long.
    #[error("the notes have {0} characters; at most {MAX_NOTES_CHARS} are allowed")]
    TooLong(usize),
}

/// Checks feedback and normalizes it: sorted categories, each once, and no blank notes.
pub fn normalized(new: NewFeedback) -> Result<NewFeedback, BadFeedback> {
    let NewFeedback { sentiment, mut categories, notes } = new;
    let known: &[&str] = match sentiment {
        Sentiment::Positive => &POSITIVE,
        Sentiment::Negative => &NEGATIVE,
    };
    let is_known = |category: &String| known.contains(&category.as_str()) || category == OTHER;
    if let Some(category) = categories.iter().find(|category| !is_known(category)) {
        let known = known.iter().copied().chain([OTHER]).collect::<Vec<_>>().join(", ");
        let category = category.chars().take(80).collect();
        return Err(BadFeedback::Category { category, sentiment, known });
    }
    categories.sort();
    categories.dedup();
    let notes = notes.map(|notes| notes.trim().to_owned()).filter(|notes| !notes.is_empty());
    let chars = notes.as_ref().map_or(0, |notes| notes.chars().count());
    if chars > MAX_NOTES_CHARS {
        return Err(BadFeedback::TooLong(chars));
    }
    if notes.is_none() && categories.iter().any(|category| category == OTHER) {
        return Err(BadFeedback::NoNotes);
    }
    Ok(NewFeedback { sentiment, categories, notes })
}

/// Replaces the content of `earlier`, or creates feedback with `id`. The event is absent if nothing changes.
pub fn give(
    earlier: Option<Feedback>,
    (session, message, owner): (SessionId, MessageId, String),
    id: FeedbackId,
    new: NewFeedback,
    at: Time,
) -> (Feedback, Option<Body>) {
    let NewFeedback { sentiment, categories, notes } = new;
    let content =
        |feedback: &Feedback| (feedback.sentiment, feedback.categories.clone(), feedback.notes.clone());
    let wanted = (sentiment, categories.clone(), notes.clone());
    if let Some(same) = earlier.as_ref().filter(|earlier| content(earlier) == wanted) {
        return (same.clone(), None);
    }
    let id = earlier.as_ref().map_or(id, |earlier| earlier.id);
    let created_at = earlier.map_or(at, |earlier| earlier.created_at);
    let feedback =
        Feedback { id, session, message, owner, sentiment, categories, notes, created_at, updated_at: at };
    let event = Body::FeedbackGiven { feedback: Box::new(feedback.clone()) };
    (feedback, Some(event))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(sentiment: Sentiment, categories: &[&str], notes: Option<&str>) -> NewFeedback {
        let categories = categories.iter().map(|&category| category.to_owned()).collect();
        NewFeedback { sentiment, categories, notes: notes.map(str::to_owned) }
    }

    #[test]
    fn categories_are_sorted_and_belong_to_the_sentiment() {
        let sorted =
            normalized(new(Sentiment::Negative, &["slow", "incorrect", "slow"], Some("  "))).unwrap();
        assert_eq!(sorted, new(Sentiment::Negative, &["incorrect", "slow"], None));
        let wrong = normalized(new(Sentiment::Positive, &["slow"], None)).unwrap_err().to_string();
        assert_eq!(
            wrong,
            "\"slow\" is no category of positive feedback; there is correct, good_tool_use, helpful, other"
        );
        assert_eq!(normalized(new(Sentiment::Positive, &["other"], Some(" "))), Err(BadFeedback::NoNotes));
        assert!(normalized(new(Sentiment::Negative, &["other"], Some("why"))).is_ok());
        let long = "x".repeat(MAX_NOTES_CHARS + 1);
        let long = normalized(new(Sentiment::Negative, &[], Some(&long)));
        assert_eq!(long, Err(BadFeedback::TooLong(MAX_NOTES_CHARS + 1)));
    }

    #[test]
    fn feedback_given_again_keeps_its_id_and_its_time() {
        let place = || (SessionId::from_random([1; 16]), MessageId::from_random([2; 16]), "ann".to_owned());
        let id = |n: u8| FeedbackId::from_random([n; 16]);
        let good = || new(Sentiment::Positive, &["helpful"], None);
        let (first, event) = give(None, place(), id(1), good(), Time(1));
        assert_eq!(event.map(|event| event.kind()), Some("feedback.given"));
        let (same, event) = give(Some(first.clone()), place(), id(2), good(), Time(2));
        assert_eq!((same, event), (first.clone(), None), "repeated feedback changes nothing");
        let (second, _) =
            give(Some(first.clone()), place(), id(3), new(Sentiment::Negative, &[], None), Time(3));
        assert_eq!((second.id, second.created_at, second.updated_at), (first.id, Time(1), Time(3)));
        assert_eq!(second.sentiment, Sentiment::Negative);
    }
}
