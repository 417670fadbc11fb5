//! Turns: what every one of them has, whatever the agent speaks.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::Pin;

use mainspring_kernel::adapter::{AttemptHandle, End, HandleError};

/// How much of what a tool says, or is asked with, is kept in an event.
const EXCERPT: usize = 16 << 10;

/// How a turn ended.
pub(crate) enum Turned {
    /// The agent has ended it and can take another.
    Ended(End),
    /// What the agent does now is not known; its process must end.
    Broken(End),
    /// The agent does not know the native session, and has done nothing.
    Unknown(String),
}

/// The text of an agent, block by block.
pub(crate) struct Voice<'a> {
    attempt: &'a AttemptHandle,
    block: u32,
    /// True when text goes into the next block.
    breaks: bool,
    /// True when something was said that is not part of a message.
    said: bool,
}

impl<'a> Voice<'a> {
    pub(crate) fn new(attempt: &'a AttemptHandle) -> Self {
        Self { attempt, block: 0, breaks: false, said: false }
    }

    pub(crate) fn say(&mut self, text: &str) -> Result<(), HandleError> {
        if text.is_empty() {
            return Ok(());
        }
        if std::mem::take(&mut self.breaks) {
            self.block += 1;
        }
        self.said = true;
        self.attempt.delta(self.block, text)
    }

    /// What was said becomes a message; false if there is nothing. What is said next is another one.
    pub(crate) fn seals(&mut self) -> bool {
        (self.block, self.breaks) = (0, false);
        std::mem::take(&mut self.said)
    }

    /// Something came between: what is said next is another block.
    pub(crate) fn pause(&mut self) {
        self.breaks = true;
    }
}

/// A question that is put, decided, and answered to the agent.
type Question = Pin<Box<dyn Future<Output = Result<(), HandleError>> + Send>>;

/// What an agent asks. A run waits for one answer at a time, so the first goes before the second is put.
#[derive(Default)]
pub(crate) struct Questions(VecDeque<(Question, bool)>);

impl Questions {
    /// Another question. One that `lapses` is settled sooner or later, whatever people do.
    pub(crate) fn push(
        &mut self,
        question: impl Future<Output = Result<(), HandleError>> + Send + 'static,
        lapses: bool,
    ) {
        self.0.push_back((Box::pin(question), lapses));
    }

    /// Resolves once the first question was answered; never while there is none.
    pub(crate) async fn answered(&mut self) -> Result<(), HandleError> {
        let Some((first, _)) = self.0.front_mut() else { return pending().await };
        let answered = first.await;
        self.0.pop_front();
        answered
    }

    /// True when there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The agent has gone on: what lapses has lapsed when this returns.
    pub(crate) async fn lapsed(&mut self) {
        while self.0.front().is_some_and(|(_, lapses)| *lapses) {
            // An attempt that may ask no more has none that is open.
            let _ = self.answered().await;
        }
    }
}

/// The beginning of a text that may be endless.
pub(crate) fn excerpt(mut text: String) -> String {
    if text.len() > EXCERPT {
        text.truncate(text.floor_char_boundary(EXCERPT));
        text.push('…');
    }
    text
}
