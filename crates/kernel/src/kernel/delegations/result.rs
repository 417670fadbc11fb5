//! The result of a delegation, built from the child's run, messages, artifacts and events.

use mainspring_core::{
    Approval, Artifact, ArtifactRole, Body, Delegation, DelegationResult, DoneEffect, Run, WaitId,
};

use super::Shared;
use crate::error::Error;
use crate::store::ArtifactPage;

/// Characters of the child's last message that a result holds. The rest is in the child's session.
const SUMMARY_CHARS: usize = 8_000;
/// Tool calls, questions and artifacts that a result lists.
const LISTED: usize = 100;

impl Shared {
    /// Builds the result of a settled delegation; `None` if the child run was deleted.
    pub(crate) async fn delegation_result(
        &self,
        delegation: &Delegation,
    ) -> Result<Option<DelegationResult>, Error> {
        let Some(run) = self.store.run_get(delegation.child_run).await? else { return Ok(None) };
        let session = delegation.child_session;
        let last = match run.final_message {
            Some(message) => self.store.message_get(session, message).await?,
            None => None,
        };
        let text = last.map(|(placed, _)| placed.message.text()).unwrap_or_default();
        let summary: String = text.chars().take(SUMMARY_CHARS).collect();
        let page = ArtifactPage { session, run: Some(run.id), before: None, limit: LISTED };
        let work = self.work_of(&run).await?;
        Ok(Some(DelegationResult {
            status: run.state.status(),
            truncated: summary.len() < text.len(),
            summary,
            artifacts: self.store.artifact_page(&page).await?.intact()?,
            verified_effects: work.completed,
            open_questions: work.questions.into_iter().map(|(_, question)| question).collect(),
            events_pruned: work.is_pruned,
            error: run.state.error().cloned(),
            usage: run.usage,
        }))
    }

    /// Finds the newest artifact of `run` with this role. Skips damaged artifacts when it looks for a checkpoint, since an
    /// older checkpoint will do. Otherwise fails if one is damaged: an earlier result must not take its place.
    pub(crate) async fn newest_artifact(
        &self,
        run: &Run,
        role: ArtifactRole,
    ) -> Result<Option<Artifact>, Error> {
        let mut page = ArtifactPage { session: run.session, run: Some(run.id), before: None, limit: LISTED };
        loop {
            let found = self.store.artifact_page(&page).await?;
            let artifacts = match role {
                ArtifactRole::Checkpoint => found.items,
                _ => found.intact()?,
            };
            let Some(last) = artifacts.last() else { return Ok(None) };
            page.before = Some((last.created_at, last.id));
            if let Some(found) = artifacts.into_iter().find(|artifact| artifact.role == role) {
                return Ok(Some(found));
            }
        }
    }

    /// Collects the effects and open questions of `run` from its events. Events that were pruned are left out.
    async fn work_of(&self, run: &Run) -> Result<Work, Error> {
        let (mut work, mut events) = (Work::default(), self.run_events(run.session, run.id));
        let mut has_first = false;
        while let Some(page) = events.next_page().await? {
            has_first |= page.iter().any(|event| event.body.is_run_accepted());
            page.into_iter().for_each(|event| work.add(event.body));
        }
        // Events of the session that were pruned belong to earlier runs if the first event of this run remains.
        work.is_pruned = events.has_skipped() && !has_first;
        Ok(work)
    }
}

/// The effects and open questions that a run's events show.
#[derive(Default)]
struct Work {
    completed: Vec<DoneEffect>,
    /// Questions without an answer.
    questions: Vec<(WaitId, String)>,
    /// True if events of the run were pruned.
    is_pruned: bool,
}

impl Work {
    fn add(&mut self, body: Body) {
        match body {
            Body::ToolCompleted { tool_use_id, name, .. } if self.completed.len() < LISTED => {
                self.completed.push(DoneEffect { tool_use_id, name });
            }
            Body::InputRequested { wait_id, question, .. }
            | Body::ApprovalRequested { wait_id, question, .. }
                if self.questions.len() < LISTED =>
            {
                self.questions.push((wait_id, question));
            }
            Body::InputProvided { wait_id, input: Some(_), .. } => self.remove_question(wait_id),
            Body::ApprovalResolved { wait_id, decision: Approval::Allowed | Approval::Denied, .. } => {
                self.remove_question(wait_id);
            }
            _ => {}
        }
    }

    fn remove_question(&mut self, answered: WaitId) {
        self.questions.retain(|(wait, _)| *wait != answered);
    }
}
