//! Parts of a turn that every dialect needs.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::Pin;

use mainspring_kernel::adapter::{AttemptHandle, End, HandleError};

use super::TurnContext;
use super::lost_session::{Cause, Stage, is_session_lost};

/// The largest tool output or question that goes into an event.
pub(super) const EXCERPT_BYTES: usize = 16 << 10;
/// How often the progress of a tool is recorded. Agents repeat the whole output with each update.
pub(crate) const TOOL_UPDATE_INTERVAL_MS: u64 = 1_000;

/// How a turn ended.
pub(crate) enum TurnOutcome {
    /// The agent ended it and can run another turn.
    Ended(End),
    /// The agent may still be working; its process must be killed.
    Broken(End),
    /// The agent no longer has the native session and has done nothing.
    Lost {
        /// The agent's message.
        reason: String,
        /// Whether the agent may still be working; then its process must be killed.
        is_broken: bool,
    },
}

impl TurnOutcome {
    /// Turns a failure of `cause` into the loss of the native session, if the failure means that the session is lost.
    pub(crate) fn unless_lost<W>(self, turn: &TurnContext<'_, W>, has_output: bool, cause: Cause) -> Self {
        let cause = if turn.attempt.is_cancelled() { Cause::Cancelled } else { cause };
        let is_lost = is_session_lost(!turn.is_new_session, Stage::Turn { has_output }, cause);
        match self {
            Self::Ended(End::Failed { error, .. }) if is_lost => {
                Self::Lost { reason: error.message, is_broken: false }
            }
            Self::Broken(End::Failed { error, .. }) if is_lost => {
                Self::Lost { reason: error.message, is_broken: true }
            }
            outcome => outcome,
        }
    }
}

/// Streams an agent's text into numbered blocks of one message.
pub(crate) struct TextBlocks<'a> {
    attempt: &'a AttemptHandle,
    block: u32,
    /// Whether the next text starts a new block.
    starts_new_block: bool,
    /// Whether text was streamed that is not yet part of a recorded message.
    has_text: bool,
}

impl<'a> TextBlocks<'a> {
    pub(crate) fn new(attempt: &'a AttemptHandle) -> Self {
        Self { attempt, block: 0, starts_new_block: false, has_text: false }
    }

    /// Streams `text` into the current block.
    pub(crate) fn push(&mut self, text: &str) -> Result<(), HandleError> {
        if text.is_empty() {
            return Ok(());
        }
        if std::mem::take(&mut self.starts_new_block) {
            self.block += 1;
        }
        self.has_text = true;
        self.attempt.delta(self.block, text)
    }

    /// Ends the message; later text belongs to the next one. Returns whether the message has any text.
    pub(crate) fn end_message(&mut self) -> bool {
        (self.block, self.starts_new_block) = (0, false);
        std::mem::take(&mut self.has_text)
    }

    /// Ends the block; later text belongs to the next one.
    pub(crate) fn end_block(&mut self) {
        self.starts_new_block = true;
    }
}

/// Asks a question, waits for the decision and sends it to the agent.
type Question = Pin<Box<dyn Future<Output = Result<(), HandleError>> + Send>>;

/// Questions of an agent. A run waits for one answer at a time, so they are asked in order.
#[derive(Default)]
pub(crate) struct QuestionQueue(VecDeque<(Question, bool)>);

impl QuestionQueue {
    /// Adds a question. One that `expires` resolves by itself after some time.
    pub(crate) fn push(
        &mut self,
        question: impl Future<Output = Result<(), HandleError>> + Send + 'static,
        expires: bool,
    ) {
        self.0.push_back((Box::pin(question), expires));
    }

    /// Waits until the first question is answered and removes it. Never resolves while the queue is empty.
    pub(crate) async fn next_answered(&mut self) -> Result<(), HandleError> {
        let Some((first, _)) = self.0.front_mut() else { return pending().await };
        let answered = first.await;
        self.0.pop_front();
        answered
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits until the expiring questions at the front have expired. The agent has ended its turn without their
    /// answers.
    pub(crate) async fn wait_for_expired(&mut self) {
        while self.0.front().is_some_and(|(_, expires)| *expires) {
            // An error means that the attempt may not ask any more, so no question is open.
            let _ = self.next_answered().await;
        }
    }
}

/// Truncates a text to the size that an event may hold.
pub(crate) fn excerpt(mut text: String) -> String {
    if text.len() > EXCERPT_BYTES {
        text.truncate(text.floor_char_boundary(EXCERPT_BYTES));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::poll;
    use tokio::sync::{Semaphore, oneshot};

    use super::*;

    #[tokio::test]
    async fn questions_are_asked_one_after_the_other() {
        let mut queue = QuestionQueue::default();
        assert!(poll!(Box::pin(queue.next_answered())).is_pending(), "an empty queue never resolves");
        let asked = Arc::new(Semaphore::new(0));
        let (first, answer) = oneshot::channel::<()>();
        let count = asked.clone();
        let question = async move {
            count.add_permits(1);
            answer.await.map_err(|_| HandleError::Revoked)
        };
        queue.push(question, false);
        let count = asked.clone();
        let second = async move {
            count.add_permits(1);
            Err(HandleError::Revoked)
        };
        queue.push(second, false);
        assert!(poll!(Box::pin(queue.next_answered())).is_pending());
        assert_eq!(asked.available_permits(), 1, "the second question waits for the first");
        first.send(()).unwrap();
        assert_eq!(queue.next_answered().await, Ok(()));
        assert_eq!(queue.next_answered().await, Err(HandleError::Revoked));
        assert!(queue.is_empty() && asked.available_permits() == 2);
    }

    #[tokio::test]
    async fn only_expiring_questions_at_the_front_are_waited_for() {
        let mut queue = QuestionQueue::default();
        queue.push(async { Err(HandleError::Revoked) }, true);
        queue.push(async { Ok(()) }, true);
        queue.push(pending(), false);
        queue.wait_for_expired().await;
        assert_eq!(queue.0.len(), 1);
    }

    #[test]
    fn an_excerpt_ends_at_a_character() {
        assert_eq!(excerpt("short".into()), "short");
        let long = excerpt("漢".repeat(EXCERPT_BYTES));
        assert!(long.len() <= EXCERPT_BYTES + '…'.len_utf8() && long.ends_with("漢…"), "{}", long.len());
    }
}
