//! Steering: a prompt that was meant for the run that is active joins it at a step boundary of its agent. From then on
//! it follows that run; a prompt that found no boundary runs next, by itself.

use std::sync::Arc;

use mainspring_core::{AttemptId, Message, Policy, RunId, RunOptions, RunStatus};

use super::{Actor, execute};
use crate::adapter::{HandleError, Record};
use crate::error::Error;
use crate::kernel::Accept;

impl Actor {
    /// Whether the prompt may join the run that is at work.
    pub(super) fn check_steer(&self, accept: &Accept, adapter: &str) -> Result<(), Error> {
        let at_work = self.active.as_ref().map(|active| &active.run).or_else(|| self.queue.front());
        let joins = at_work.is_some_and(|run| {
            let adapter_of = self.shared.adapters.get(&run.adapter);
            run.adapter == adapter && adapter_of.is_some_and(|it| it.capabilities().supports_steering)
        });
        if !joins {
            return Err(Error::Unsupported {
                adapter: adapter.to_owned(),
                what: "take a prompt while it works",
            });
        }
        let own =
            accept.options != RunOptions::default() || at_work.is_some_and(|run| run.mode != accept.mode);
        if own {
            return Err(Error::Invalid(
                "a prompt that steers joins a run as it is: leave its options out and its mode the same"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Where in the queue a prompt waits. One that steers comes before those that do not, after what has begun.
    pub(super) fn turn_of(&self, policy: Policy) -> usize {
        let before = self.queue.iter().take_while(|run| run.steers || run.attempts > 0).count();
        if policy == Policy::Steer { before } else { self.queue.len() }
    }

    /// True while a prompt waits to join the run that is active.
    pub(super) fn is_steered(&self) -> bool {
        self.queue.iter().any(|run| run.steers && run.attempts == 0)
    }

    /// Makes `records` durable, and the prompts that wait to join the active run part of it: gives those.
    pub(super) async fn steer(
        &mut self,
        by: AttemptId,
        records: Vec<Record>,
    ) -> Result<Vec<Arc<Message>>, HandleError> {
        let active = self.authority(by).ok_or(HandleError::Revoked)?;
        if active.run.state.status() != RunStatus::Running {
            return Err(HandleError::Revoked);
        }
        let steering: Vec<_> =
            self.queue.iter().filter(|run| run.steers && run.attempts == 0).cloned().collect();
        let mut prompts = vec![];
        for run in &steering {
            prompts.push(self.prompt_of(run).await?);
        }
        let mut draft = self.recording(by, records)?;
        for (run, prompt) in steering.iter().zip(&prompts) {
            if let Err(refusal) = draft.merge(run.clone(), prompt.clone()) {
                self.give_up();
                return Err(HandleError::Kernel(refusal.into()));
            }
        }
        self.take_over(draft).await.map_err(Error::from)?;
        let merged: Vec<RunId> = steering.iter().map(|run| run.id).collect();
        self.queue.retain(|run| !merged.contains(&run.id));
        if let Some(active) = &self.active {
            active.steering.send_replace(false);
        }
        Ok(prompts)
    }

    /// A draft of the active run that holds `records`.
    pub(super) fn recording(
        &mut self,
        by: AttemptId,
        records: Vec<Record>,
    ) -> Result<super::Draft, HandleError> {
        let limit = self.shared.options.limits.message_bytes;
        let active = self.authority(by).ok_or(HandleError::Revoked)?;
        let (run, attempt) = (active.run.clone(), active.attempt.clone());
        execute::check_size(&records, limit)?;
        let seals = records.iter().any(|record| matches!(record, Record::Message { .. }));
        let (draft, text) = self.draft(seals);
        let mut draft = draft.with_run(run, Some(attempt)).with_text(text);
        for record in records {
            if let Err(error) = execute::apply(&mut draft, self.shared.node, by, record) {
                self.give_up();
                return Err(HandleError::Kernel(error));
            }
        }
        Ok(draft)
    }
}
