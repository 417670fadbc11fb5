//! Steering: a prompt for the active run joins it at a step boundary of its agent, and then follows that run. A prompt
//! that finds no boundary becomes the next run.

use std::sync::Arc;

use mainspring_core::{AttemptId, Message, Run, RunOptions, RunStatus};

use super::Actor;
use crate::adapter::{HandleError, Record};
use crate::error::Error;
use crate::kernel::Accept;

impl Actor {
    /// Refuses a prompt that cannot join the run that is active or next.
    pub(super) fn check_steer(&self, accept: &Accept, adapter: &str) -> Result<(), Error> {
        let target = self.active.as_ref().map(|active| active.run().as_ref()).or_else(|| self.queue.first());
        let joins = target.is_some_and(|run| {
            let adapter_of = self.shared.adapters.get(&run.adapter);
            run.adapter == adapter
                && adapter_of.is_some_and(|adapter| adapter.capabilities().supports_steering)
        });
        if !joins {
            return Err(Error::Unsupported {
                adapter: adapter.to_owned(),
                what: "take a prompt while it works",
            });
        }
        // The folders come from the caller's key. The prompt joins a run that has a folder already, so that folder
        // must be among them.
        let folders = accept.options.folders.clone();
        if let Some(run) = target {
            self.shared.check_run_folder(&run.adapter, run.options.cwd.as_deref(), folders.as_deref())?;
        }
        // The run is charged to its own key, so another limited key cannot make it go on.
        let key = accept.options.key.clone();
        if key.is_some() && target.is_some_and(|run| run.options.key != key) {
            return Err(Error::Forbidden(
                "the run was started with another key, and yours is limited: send the prompt as the next run"
                    .into(),
            ));
        }
        let is_changed = accept.options != RunOptions { folders, key, ..RunOptions::default() }
            || target.is_some_and(|run| run.mode != accept.mode);
        if is_changed {
            return Err(Error::Invalid(
                "a prompt that steers joins a run as it is: leave its options out and its mode the same"
                    .into(),
            ));
        }
        Ok(())
    }

    /// True while a prompt waits to join the active run.
    pub(super) fn is_steered(&self) -> bool {
        self.queue.steering().next().is_some()
    }

    /// Makes `records` durable, merges the prompts that wait into the active run, and returns these prompts.
    pub(super) async fn steer(
        &mut self,
        by: AttemptId,
        records: Vec<Record>,
    ) -> Result<Vec<Arc<Message>>, HandleError> {
        let active = self.authority(by).ok_or(HandleError::Revoked)?;
        if active.status() != RunStatus::Running {
            return Err(HandleError::Revoked);
        }
        let steering: Vec<Run> = self.queue.steering().cloned().collect();
        let mut prompts = vec![];
        for run in &steering {
            prompts.push(self.prompt_of(run).await?);
        }
        let mut draft = self.draft_with_records(by, records)?;
        for (run, prompt) in steering.iter().zip(&prompts) {
            self.give_up_on_error(draft.merge(run.clone(), prompt.clone())).map_err(Error::from)?;
        }
        self.commit_active(draft).await.map_err(Error::from)?;
        steering.iter().for_each(|run| self.queue.remove(run.id));
        if let Some(active) = &self.active {
            active.set_steered(false);
        }
        Ok(prompts)
    }
}
