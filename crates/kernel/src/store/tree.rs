//! Messages of a session's tree as the store reads them.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainspring_core::{Line, LineId, Message, MessageId, Point, Rows, SessionId};

/// A message and its point in the tree; none for a prompt whose run has not started.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedMessage {
    /// The message.
    pub message: Arc<Message>,
    /// The message's point.
    pub point: Option<Point>,
}

/// A message found by search.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundMessage {
    /// Number of the message in the order of arrival.
    pub arrival: u64,
    /// The session of the message.
    pub session: SessionId,
    /// The message.
    pub message: Arc<Message>,
    /// Title of the session.
    pub title: Option<String>,
}

/// The messages that one read of the search index has found.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundMessages {
    /// The messages, newest first.
    pub rows: Rows<FoundMessage>,
    /// Messages with a lower arrival number were not searched, because one read searches a bounded number of messages.
    /// None if all were searched, or the page is full.
    pub searched_to: Option<u64>,
}

/// A line of the tree, with the cursors that one session has on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionLine {
    /// The line.
    pub line: Line,
    /// True if the session has opened the line.
    pub own: bool,
    /// The session's cursors: by depth, the line to follow from there, if it is another one.
    pub cursors: BTreeMap<u32, LineId>,
}

/// A message of a session's tree, with its neighbours.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeRow {
    /// The message.
    pub message: Arc<Message>,
    /// The message's point.
    pub point: Point,
    /// True if the message's line was rolled back.
    pub abandoned: bool,
    /// The parent message; none for a root.
    pub parent: Option<MessageId>,
    /// The parent's point.
    pub parent_point: Option<Point>,
    /// True if a cursor of the session leads from the parent to this message.
    pub followed: bool,
    /// The child that the session's cursor leads to, else the next message on the same line.
    pub cursor: Option<MessageId>,
}
