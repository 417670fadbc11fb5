//! `inspect_agent_artifacts`.

use mainspring_api::Page;
use mainspring_api::control::{ArtifactForm, ArtifactList, ControlError, InspectArtifacts};
use mainspring_core::{Artifact, ArtifactId, AttemptId, RunId, SessionId, Time};

use crate::bounds::{self, PageBudget};
use crate::damaged::DamagedRows;
use crate::{ControlTools, Input, cursor, invalid, limit, run_id, session_id};

/// The session or run whose artifacts are read.
enum Source {
    Session(SessionId),
    Run(RunId),
}

impl ControlTools<'_> {
    pub(crate) async fn inspect(&self, input: Input<InspectArtifacts>) -> Result<ArtifactList, ControlError> {
        let input = input?;
        self.check_owner(input.owner_id.as_deref())?;
        let most = limit(input.limit, 50, 200)?;
        let mut before = input.cursor.as_deref().map(cursor).transpose()?;
        let (source, attempt) = match (&input.session_id, &input.run_id, &input.attempt_id) {
            (Some(session), None, None) => (Source::Session(session_id(session)?), None),
            (None, Some(run), None) => (Source::Run(run_id(run)?), None),
            (None, None, Some(attempt)) => {
                let attempt = self.plane.attempt_get(attempt_id(attempt)?).await?;
                (Source::Run(attempt.run), Some(attempt.id))
            }
            _ => return Err(invalid("name exactly one of sessionId, runId and attemptId")),
        };
        let is_wanted = |artifact: &Artifact| {
            input.role.is_none_or(|role| role == artifact.role)
                && attempt.is_none_or(|attempt| artifact.attempt == Some(attempt))
        };
        let (mut artifacts, mut last, mut budget) = (vec![], None, PageBudget::after(0));
        let (mut damaged, mut unlisted) = (vec![], DamagedRows::default());
        loop {
            let page = self.artifact_page(&source, before).await?;
            let is_last = page.next.is_none();
            before = page.items.last().map(|artifact| (artifact.created_at, artifact.id));
            unlisted.next_page(page.damaged);
            for (place, artifact) in page.items.into_iter().enumerate() {
                if !is_wanted(&artifact) {
                    continue;
                }
                let at = format!("{}.{}", artifact.created_at.0, artifact.id);
                let form = ArtifactForm::from(artifact);
                if artifacts.len() == most || !budget.admits(bounds::ARTIFACTS.size_of(&form)) {
                    return Ok(ArtifactList { artifacts, next_cursor: last, truncated: vec![], damaged });
                }
                damaged.extend(unlisted.before(place, artifacts.len()));
                artifacts.push(form);
                last = Some(at);
            }
            if is_last {
                damaged.extend(unlisted.rest(artifacts.len()));
                return Ok(ArtifactList { artifacts, next_cursor: None, truncated: vec![], damaged });
            }
        }
    }

    async fn artifact_page(
        &self,
        source: &Source,
        before: Option<(Time, ArtifactId)>,
    ) -> Result<Page<Artifact>, ControlError> {
        match source {
            Source::Session(id) => self.plane.session_artifacts(*id, before).await,
            Source::Run(id) => self.plane.run_artifacts(*id, before).await,
        }
    }
}

fn attempt_id(text: &str) -> Result<AttemptId, ControlError> {
    text.parse().map_err(|_| ControlError::not_found(format!("no attempt {text:?}")))
}
