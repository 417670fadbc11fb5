//! Tool calls whose results no message holds yet.
//!
//! Invariant: all calls that have ended wait for the same message, which gets its id when the first of them ends.

use std::sync::Arc;

use mainspring_core::run::round;
use mainspring_core::{CallResult, ClientResult, MessageId};

use crate::store::{EndedToolCall, OpenToolCall};

/// The open tool calls of the active run, in the order in which they began.
#[derive(Debug, Clone)]
pub(crate) struct OpenCalls {
    calls: Vec<OpenToolCall>,
    /// The id of the message that will hold the results of the calls that have ended.
    results_message: Option<MessageId>,
}

impl OpenCalls {
    /// Restores the stored calls.
    pub(crate) fn restore(calls: Vec<OpenToolCall>) -> Self {
        let results_message = calls.iter().find_map(|call| Some(call.ended.as_ref()?.message));
        Self { calls, results_message }
    }

    /// The open calls, for an execution.
    pub(crate) fn to_vec(&self) -> Vec<OpenToolCall> {
        self.calls.clone()
    }

    /// Adds a call that has begun.
    pub(crate) fn add(&mut self, call: OpenToolCall) {
        self.calls.push(call);
    }

    fn unfinished_index(&self, tool_use_id: &str) -> Option<usize> {
        self.calls.iter().position(|call| call.tool_use_id == tool_use_id && call.ended.is_none())
    }

    /// Finds a call that has not ended.
    pub(crate) fn unfinished(&self, tool_use_id: &str) -> Option<&OpenToolCall> {
        self.unfinished_index(tool_use_id).map(|index| &self.calls[index])
    }

    /// Removes a call that ends without a place in a message.
    pub(crate) fn remove_unfinished(&mut self, tool_use_id: &str) -> Option<OpenToolCall> {
        self.unfinished_index(tool_use_id).map(|index| self.calls.remove(index))
    }

    /// Ends a call. Its result is kept until a message holds it; `new_id` makes the id of that message. Returns the ended
    /// call.
    pub(crate) fn end(
        &mut self,
        tool_use_id: &str,
        result: CallResult,
        new_id: impl FnOnce() -> MessageId,
    ) -> Option<&OpenToolCall> {
        let index = self.unfinished_index(tool_use_id)?;
        let message = *self.results_message.get_or_insert_with(new_id);
        let call = &mut self.calls[index];
        call.ended = Some(EndedToolCall { result: Arc::new(result), message });
        Some(call)
    }

    /// Takes the calls that have not ended.
    pub(crate) fn take_unfinished(&mut self) -> Vec<OpenToolCall> {
        round::take_unfinished(&mut self.calls)
    }

    /// Takes the calls that have ended, and the id of the message that holds their results from now on.
    pub(crate) fn take_ended(&mut self) -> (Option<MessageId>, Vec<OpenToolCall>) {
        (self.results_message.take(), round::take_ended(&mut self.calls))
    }

    /// The results that no message holds yet: those of ended calls, then those that the caller has `given`.
    pub(crate) fn known_results(&self, given: &[ClientResult]) -> Vec<(String, CallResult)> {
        round::known_results(&self.calls, given)
    }
}
