//! The path, the steps, the state and the definitions of a run, as its adapter reads them before a model call.
//!
//! They are read from the store once. After that the actor shares the messages and steps that the run has added, so the
//! cost of a call depends on the new data and not on the history.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::{AgentDefinition, AgentName, Message, Point, RunId, StateEntry, Step};
use serde_json::Value;

use super::AttemptHandle;
use crate::actor::Written;
use crate::adapter::{Context, HandleError};
use crate::error::Error;

/// The path, the steps and the state of the run, as this execution has read them.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The size of the model's context that the path was read for, and the path.
    context: Option<(Option<u64>, Context)>,
    steps: Option<Vec<Step>>,
    /// The number of changes of the run's state when it was read, and the state.
    run_state: Option<(u64, Vec<StateEntry>)>,
    /// The definitions that were looked up.
    agents: HashMap<AgentName, Option<AgentDefinition>>,
}

impl Known {
    /// Adds the messages and steps that the run has written since the last call. Without `written`, the known path and steps
    /// are dropped and read again; if its messages do not continue the known path, only the path.
    fn update(&mut self, head: Option<Point>, written: Option<Box<Written>>) {
        let Some(written) = written else {
            (self.context, self.steps) = (None, None);
            return;
        };
        if let Some(steps) = &mut self.steps {
            steps.extend(written.steps.into_iter().map(without_response));
        }
        self.context = self.context.take().filter(|(_, context)| {
            let known = context.messages.last().map(|(point, _)| *point);
            let points = known.into_iter().chain(written.messages.iter().map(|(point, _)| *point));
            let points: Vec<Point> = points.collect();
            points.windows(2).all(|pair| is_next(pair[0], pair[1])) && points.last().copied() == head
        });
        if let Some((_, context)) = &mut self.context {
            context.messages.extend(written.messages);
        }
    }
}

fn is_next(point: Point, next: Point) -> bool {
    point.line == next.line && next.pos == point.pos.saturating_add(1)
}

/// Drops the provider's response, which is only shown to people.
fn without_response(step: Step) -> Step {
    Step { raw: Value::Null, raw_usage: Value::Null, ..step }
}

impl AttemptHandle {
    /// The last `limit` messages of the run's path, root first.
    pub async fn path(&self, limit: usize) -> Result<Vec<Arc<Message>>, HandleError> {
        let Some(tip) = self.head()? else { return Ok(vec![]) };
        let path = self
            .parts
            .store
            .path(tip, None, limit)
            .await
            .map_err(Error::from)?
            .intact()
            .map_err(Error::from)?;
        Ok(path.into_iter().map(|placed| placed.message).collect())
    }

    /// The run's path, with a digest in place of its older messages if a model with a context of `tokens` needs that. Reads
    /// only the returned messages, not the history.
    pub async fn context(&self, tokens: Option<u64>) -> Result<Context, HandleError> {
        let mut known = self.known.lock().await;
        let head = self.update(&mut known)?;
        if let Some((read_for, context)) = &known.context
            && *read_for == tokens
        {
            return Ok(context.clone());
        }
        let context = match head {
            Some(tip) => self.context_at(tip, tokens).await?,
            None => Context::default(),
        };
        known.context = Some((tokens, context.clone()));
        Ok(context)
    }

    async fn context_at(&self, tip: Point, tokens: Option<u64>) -> Result<Context, HandleError> {
        let (store, session) = (&self.parts.store, self.assignment.session.id);
        let digest = store.digest(session, tip).await.map_err(Error::from)?;
        let digest = digest.filter(|digest| tokens.is_none_or(|tokens| tokens < digest.below_tokens));
        let count = digest.as_ref().map_or(usize::MAX, |digest| {
            usize::try_from(tip.pos.saturating_sub(digest.at.pos)).unwrap_or(usize::MAX)
        });
        let path = store.path(tip, None, count).await.map_err(Error::from)?.intact().map_err(Error::from)?;
        let placed = path.into_iter().filter_map(|placed| Some((placed.point?, placed.message)));
        let messages: Vec<(Point, Arc<Message>)> = placed.collect();
        let has_prompt = messages.iter().any(|(_, message)| message.is_prompt());
        let prompt = match digest.as_ref().and_then(|digest| digest.prompt).filter(|_| !has_prompt) {
            Some(prompt) => store.message_get(session, prompt).await.map_err(Error::from)?,
            None => None,
        };
        Ok(Context { digest, prompt: prompt.map(|(placed, _)| placed.message), messages })
    }

    /// Lists the model calls of the run so far, of all attempts, without the responses as their providers reported them.
    pub async fn steps(&self) -> Result<Vec<Step>, HandleError> {
        let mut known = self.known.lock().await;
        self.update(&mut known)?;
        if let Some(steps) = &known.steps {
            return Ok(steps.clone());
        }
        let steps = self.read_steps(self.assignment.run.id).await?;
        known.steps = Some(steps.clone());
        Ok(steps)
    }

    /// Lists the model calls of another run, whose messages are on the path, as [`Self::steps`] does.
    pub async fn steps_of(&self, run: RunId) -> Result<Vec<Step>, HandleError> {
        match run == self.assignment.run.id {
            true => self.steps().await,
            false => self.read_steps(run).await,
        }
    }

    /// Reads the whole state of this run, or of one that it delegated to.
    pub async fn run_state(&self, run: RunId) -> Result<Vec<StateEntry>, HandleError> {
        if run != self.assignment.run.id {
            return Ok(self.parts.shared.run_state(run).await?);
        }
        let mut known = self.known.lock().await;
        // Counted before the read, so that a change during the read makes the next call read again.
        let changes = self.parts.progress.state_changes();
        if let Some((read_at, entries)) = &known.run_state
            && *read_at == changes
        {
            return Ok(entries.clone());
        }
        let entries = self.parts.shared.run_state(run).await?;
        known.run_state = Some((changes, entries.clone()));
        Ok(entries)
    }

    /// Finds an agent definition made by the run's owner; the latest version if none is named. All calls of an execution
    /// return the same version.
    pub async fn agent(&self, name: &AgentName) -> Result<Option<AgentDefinition>, HandleError> {
        let mut known = self.known.lock().await;
        if let Some(found) = known.agents.get(name) {
            return Ok(found.clone());
        }
        let owner = &self.assignment.run.owner;
        let found = self.parts.store.agent_find(owner, &name.id, name.version).await.map_err(Error::from)?;
        let found = found.map(|row| row.definition);
        known.agents.insert(name.clone(), found.clone());
        Ok(found)
    }

    async fn read_steps(&self, run: RunId) -> Result<Vec<Step>, HandleError> {
        let steps = self.parts.store.steps(run).await.map_err(Error::from)?.intact().map_err(Error::from)?;
        Ok(steps.into_iter().map(without_response).collect())
    }

    /// Returns the end of the run's path. Fails if the attempt has lost its authority.
    pub(super) fn head(&self) -> Result<Option<Point>, HandleError> {
        self.parts.progress.head().ok_or_else(|| self.late())
    }

    /// Brings `known` up to date, and returns the end of the run's path.
    fn update(&self, known: &mut Known) -> Result<Option<Point>, HandleError> {
        let (head, written) = self.parts.progress.take_written().ok_or_else(|| self.late())?;
        known.update(head, written);
        Ok(head)
    }

    /// Counts a call of an attempt that has lost its authority.
    fn late(&self) -> HandleError {
        self.parts.feed.count_late();
        HandleError::Revoked
    }
}
