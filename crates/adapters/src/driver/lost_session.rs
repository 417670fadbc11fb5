//! Lost sessions: decides whether a failure means that the agent no longer has its native session.
//!
//! Agents report a missing session in many ways: with various codes, only at the next prompt, by a crash, or not at
//! all. So every failure of a session that existed before the attempt counts as its loss, unless the agent has produced
//! output, or the failure has another known cause. The kernel then opens the next generation in the same run. A session
//! that the attempt itself opened is never lost, so a run replaces its session at most once.

use super::model_error::ModelError;

/// The step of an attempt that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Resuming the native session.
    Resume {
        /// Whether the agent's process was started for this attempt.
        is_new_process: bool,
    },
    /// Setting the model or mode of the native session.
    Configure,
    /// The turn.
    Turn {
        /// Whether the agent has produced text, a thought, a tool call or a question.
        has_output: bool,
    },
}

/// The cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The run was cancelled.
    Cancelled,
    /// The agent does not know the native session.
    UnknownSession,
    /// The agent or its model reported an error.
    Reported(ModelError),
    /// The agent accepted the prompt and did nothing.
    Nothing,
    /// The agent did not answer in time.
    TimedOut,
    /// The agent's process has ended, or closed its connection.
    Disconnected,
}

impl Cause {
    /// The cause of an error that the agent reported with this text.
    pub(crate) fn reported(message: &str) -> Self {
        match is_unknown_session(message) {
            true => Self::UnknownSession,
            false => Self::Reported(ModelError::of(message)),
        }
    }
}

/// Decides whether a failure means the loss of the native session. `existed`: whether the session existed before the
/// attempt.
pub(crate) fn is_session_lost(existed: bool, stage: Stage, cause: Cause) -> bool {
    if !existed || stage == (Stage::Turn { has_output: true }) {
        return false;
    }
    match (cause, stage) {
        (Cause::Cancelled, _) => false,
        (Cause::UnknownSession, _) => true,
        (Cause::Reported(ModelError::Unauthenticated), _) => false,
        // A wrong setting is the caller's error.
        (_, Stage::Configure) => false,
        // A reused process may have ended for another reason. The next attempt has a new process: if
        // that process ends too, the session is lost.
        (Cause::Disconnected, Stage::Resume { is_new_process }) => is_new_process,
        // Resuming a session calls no model, so the error is about the session.
        (_, Stage::Resume { .. }) => true,
        // The error is about the model, so the session is kept for a later run.
        (
            Cause::Reported(
                ModelError::QuotaExceeded
                | ModelError::Interrupted
                | ModelError::TimedOut
                | ModelError::Refused,
            ),
            _,
        ) => false,
        (Cause::Reported(_) | Cause::Nothing | Cause::TimedOut | Cause::Disconnected, _) => true,
    }
}

/// Reports whether the text of an error says that the native session is unknown.
fn is_unknown_session(message: &str) -> bool {
    let text = message.to_lowercase();
    let contains_any = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let missing = ["not found", "unknown", "no such", "does not exist", "doesn't exist", "invalid session"];
    text.contains("no conversation found") || (text.contains("session") && contains_any(&missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: Stage = Stage::Turn { has_output: false };
    const RESUME: Stage = Stage::Resume { is_new_process: true };
    const REUSED: Stage = Stage::Resume { is_new_process: false };

    #[test]
    fn a_lost_session_is_recognised_by_stage_and_cause() {
        let reported = Cause::reported;
        for (stage, cause, lost) in [
            (SILENT, reported("No conversation found with session ID: 1"), true),
            (SILENT, reported("Method not found"), true),
            (SILENT, reported("Internal error"), true),
            (SILENT, reported("400: prompt is too long"), true),
            (SILENT, Cause::Nothing, true),
            (SILENT, Cause::Disconnected, true),
            (SILENT, Cause::Cancelled, false),
            (SILENT, reported("401: bad key"), false),
            (SILENT, reported("Internal error: rate limit reached"), false),
            (SILENT, reported("API Error: 529 overloaded_error"), false),
            (SILENT, reported("fetch failed"), false),
            (SILENT, reported("the model refused to answer"), false),
            (Stage::Turn { has_output: true }, reported("Session not found"), false),
            (Stage::Turn { has_output: true }, Cause::Disconnected, false),
            (RESUME, reported("Internal error"), true),
            (RESUME, reported("the connection to the store failed"), true),
            (RESUME, Cause::TimedOut, true),
            (RESUME, Cause::Disconnected, true),
            (REUSED, Cause::Disconnected, false),
            (REUSED, reported("Session not found"), true),
            (RESUME, Cause::Cancelled, false),
            (RESUME, reported("Authentication required"), false),
            (Stage::Configure, reported("Session not found"), true),
            (Stage::Configure, reported("no such model"), false),
            (Stage::Configure, Cause::Disconnected, false),
        ] {
            assert_eq!(is_session_lost(true, stage, cause), lost, "{stage:?} {cause:?}");
            assert!(!is_session_lost(false, stage, cause), "a new session: {stage:?} {cause:?}");
        }
    }

    #[test]
    fn an_unknown_session_is_recognised_by_its_message() {
        for message in [
            "Session not found",
            "unknown session abc",
            "No such session",
            "Invalid session id",
            "No conversation found with session ID: 0f",
        ] {
            assert!(is_unknown_session(message), "{message}");
        }
        for message in
            ["file not found", "the session is busy", "unknown model", "your session has expired, log in"]
        {
            assert!(!is_unknown_session(message), "{message}");
        }
    }
}
