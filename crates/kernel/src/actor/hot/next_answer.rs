//! Facts about the next message of the active run's agent: its author, and the usage that it will report.
//!
//! Invariant: the usage of a turn is reported by one message, which completes the turn.

use mainspring_core::{Step, Usage};

/// The author and the usage of the active run's next answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct NextAnswer {
    /// The agent that the messages are from, if the adapter names it.
    agent: Option<String>,
    /// Usage of the active run since its last answer.
    usage: Usage,
}

impl NextAnswer {
    /// Restores the usage since the last answer from all steps of the active run.
    pub(crate) fn restore_usage(&mut self, steps: &[Step]) {
        self.usage = steps.iter().fold(Usage::default(), |used, step| match step.ends_turn() {
            true => Usage::default(),
            false => used + step.usage.unwrap_or(Usage::UNKNOWN),
        });
    }

    /// The agent that the messages are from, if it is known.
    pub(crate) fn agent(&self) -> Option<&String> {
        self.agent.as_ref()
    }

    /// Sets the agent that the messages are from.
    pub(crate) fn set_agent(&mut self, agent: String) {
        self.agent = Some(agent);
    }

    /// Forgets the agent of an earlier attempt.
    pub(crate) fn forget_agent(&mut self) {
        self.agent = None;
    }

    /// Adds usage that the next answer will report.
    pub(crate) fn add_usage(&mut self, usage: Usage) {
        self.usage += usage;
    }

    /// Drops usage that no answer will report.
    pub(crate) fn drop_usage(&mut self) {
        self.usage = Usage::default();
    }

    /// Takes the usage of the turn that ends here, unless there was none.
    pub(crate) fn take_usage(&mut self) -> Option<Usage> {
        let used = std::mem::take(&mut self.usage);
        (!used.is_zero()).then_some(used)
    }
}
