//! The outcome of a turn.

use mainspring_core::{Failure, FailureCode, Usage};
use mainspring_kernel::adapter::End;

use super::PiTurn;
use crate::driver::{Cause, ModelError, TurnOutcome};
use crate::pi::wire::CallError;

impl PiTurn<'_> {
    /// The outcome after pi has refused a prompt.
    pub(super) fn refused(&self, error: &CallError) -> TurnOutcome {
        let failure = self.turn.worker.failure(error);
        if self.accepted {
            // A steering prompt: it already belongs to the run, but pi did not take it.
            return TurnOutcome::Broken(self.failed(failure, false));
        }
        // Pi has done nothing for this prompt.
        if self.turn.attempt.is_cancelled() {
            return TurnOutcome::Ended(End::Stopped { usage: self.usage });
        }
        let (outcome, cause) = match error {
            CallError::Disconnected => (TurnOutcome::Ended(self.failed(failure, false)), Cause::Disconnected),
            CallError::Refused(message) => {
                let outcome = match ModelError::of(message) {
                    // Pi is busy with work that no attempt has requested. A retry uses another process.
                    ModelError::Other => TurnOutcome::Broken(self.failed(failure, true)),
                    _ => TurnOutcome::Ended(self.failed(failure, false)),
                };
                (outcome, Cause::reported(message))
            }
        };
        self.unless_lost(outcome, cause)
    }

    pub(super) fn unless_lost(&self, outcome: TurnOutcome, cause: Cause) -> TurnOutcome {
        outcome.unless_lost(&self.turn, self.has_output, cause)
    }

    /// The outcome after pi has settled.
    pub(super) fn outcome(&self) -> TurnOutcome {
        let usage = self.usage;
        let failed = |code: FailureCode, message: &str| self.failed(Failure::new(code, message), false);
        let (reason, message) = match &self.last_stop {
            Some((reason, message)) => (reason.as_str(), message.as_str()),
            None if self.turn.attempt.is_cancelled() => ("aborted", ""),
            None if self.may_be_handled => ("stop", ""),
            // Silence is not success. The process is killed in case the agent starts after all.
            None => {
                let message = "the agent took the prompt and did nothing with it";
                let outcome = TurnOutcome::Broken(failed(FailureCode::AdapterExecutionFailed, message));
                return self.unless_lost(outcome, Cause::Nothing);
            }
        };
        TurnOutcome::Ended(match reason {
            // A tool may end a turn.
            "stop" | "toolUse" => End::Succeeded { usage },
            // The aborted model call reports no usage.
            "aborted" => End::Stopped { usage: usage + Usage::UNKNOWN },
            // An abort between two tokens may be reported as an error of the model.
            "error" if self.turn.attempt.is_cancelled() => End::Stopped { usage: usage + Usage::UNKNOWN },
            "error" => {
                let outcome =
                    TurnOutcome::Ended(self.failed(ModelError::of(message).failure(message), false));
                return self.unless_lost(outcome, Cause::reported(message));
            }
            "length" => {
                let message = "the agent reached the most tokens it may write";
                End::Failed { error: Failure::new("max_tokens", message), retryable: false, usage }
            }
            other => failed(
                "unknown_stop_reason".into(),
                &format!("the agent stopped for a reason unknown here: {other}"),
            ),
        })
    }

    /// Builds the end of a failed turn. Once pi has accepted the prompt, a model call of unknown usage may have been
    /// cut off.
    pub(super) fn failed(&self, error: Failure, retryable: bool) -> End {
        let usage = if self.accepted { self.usage + Usage::UNKNOWN } else { self.usage };
        End::Failed { error, retryable, usage }
    }
}
