//! The questions of the active run's execution.
//!
//! An execution asks one question at a time: while it waits for an answer, its further questions are queued. Every
//! question is answered or refused.

use std::collections::VecDeque;

use crate::adapter::{Ask, AskReply, HandleError};

/// The open question and the queued ones.
#[derive(Default)]
pub(super) struct Questions {
    /// An execution that waits for an answer.
    held: Option<AskReply>,
    /// Further questions of the execution, which are asked one after the other.
    queued: VecDeque<(Ask, AskReply)>,
}

impl Questions {
    /// The execution that waits for an answer.
    pub(super) fn held(&self) -> Option<&AskReply> {
        self.held.as_ref()
    }

    /// Sets the execution that waits for an answer; `None` if only the store holds the wait.
    pub(super) fn hold(&mut self, held: Option<AskReply>) {
        self.held = held;
    }

    /// Takes the execution that waits for an answer: it gets the answer.
    pub(super) fn take_held(&mut self) -> Option<AskReply> {
        self.held.take()
    }

    /// Queues a question of an execution that waits for another answer.
    pub(super) fn push(&mut self, ask: Ask, holder: AskReply) {
        self.queued.push_back((ask, holder));
    }

    /// Takes the next queued question.
    pub(super) fn take_next(&mut self) -> Option<(Ask, AskReply)> {
        self.queued.pop_front()
    }

    /// Refuses the queued questions that the execution has ended.
    pub(super) fn refuse_ended(&mut self) {
        let (ended, open): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.queued).into_iter().partition(|(_, holder)| holder.is_ended());
        self.queued = open;
        for (_, holder) in ended {
            let _ = holder.reply.send(Err(HandleError::Revoked));
        }
    }

    /// Refuses all questions: the execution is to stop.
    pub(super) fn refuse_all(&mut self) {
        let queued = self.queued.drain(..).map(|(_, holder)| holder);
        for holder in self.held.take().into_iter().chain(queued) {
            let _ = holder.reply.send(Err(HandleError::Revoked));
        }
    }
}
