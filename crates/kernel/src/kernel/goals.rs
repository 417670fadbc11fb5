//! Operations on goal types, and the goals of a run that is accepted.
//!
//! An owner sees its own types and the shared ones: those that are built in and those of the configuration. An owner cannot
//! take the name of a shared type. A run keeps the type that it was accepted with.

use mainspring_api::{AgentScope, GoalTypeRecord, GoalsSnapshot, SessionGoal};
use mainspring_core::goal::{check_goal_type, prompt_of};
use mainspring_core::{Block, Body, Cursor, GoalType, Run, RunOptions, SessionId};

use super::{Caller, Kernel, RunRequest};
use crate::error::Error;
use crate::store::{GoalTypeRow, SessionRef};

/// Runs whose goals a snapshot holds: the last ones that have any.
const MAX_RUNS: usize = 1_000;
/// Events that are read to find out whether goals have changed. If there are more, a full snapshot is returned.
const MAX_EVENTS: usize = 2_000;

/// Goal types that an owner may make.
pub const GOAL_TYPES_PER_OWNER: usize = 1_000;

fn shared_record(goal_type: GoalType) -> GoalTypeRecord {
    GoalTypeRecord { goal_type, scope: AgentScope::Shared, created_at_ms: None, updated_at_ms: None }
}

fn owned_record(row: GoalTypeRow) -> GoalTypeRecord {
    let GoalTypeRow { goal_type, created_at, updated_at, .. } = row;
    let (created_at_ms, updated_at_ms) = (Some(created_at), Some(updated_at));
    GoalTypeRecord { goal_type, scope: AgentScope::Owner, created_at_ms, updated_at_ms }
}

impl Kernel {
    /// Makes a goal type, or replaces the caller's type of the same name. Returns true with it if the name is new. The
    /// same type again changes nothing.
    pub async fn goal_type_create(
        &self,
        caller: &Caller,
        goal_type: GoalType,
    ) -> Result<(GoalTypeRecord, bool), Error> {
        caller.check_writes()?;
        check_goal_type(&goal_type).map_err(|bad| Error::Invalid(bad.to_string()))?;
        self.check_schemas(&goal_type)?;
        if let Some(shared) = self.goal_type_shared(&goal_type.name) {
            return match shared == goal_type {
                true => Ok((shared_record(shared), false)),
                false => Err(Error::GoalTypeTaken { name: goal_type.name }),
            };
        }
        let own = self.shared.store.goal_types(&caller.owner).await?;
        let known = own.iter().find(|row| row.goal_type.name == goal_type.name);
        if let Some(known) = known.filter(|known| known.goal_type == goal_type) {
            return Ok((owned_record(known.clone()), false));
        }
        if known.is_none() && own.len() >= GOAL_TYPES_PER_OWNER {
            return Err(Error::TooMany { what: "goal types", limit: GOAL_TYPES_PER_OWNER });
        }
        let now = self.shared.clock.now();
        let created_at = known.map_or(now, |known| known.created_at);
        let row = GoalTypeRow { owner: caller.owner.clone(), goal_type, created_at, updated_at: now };
        let is_new = match self.shared.store.goal_type_write(&row).await {
            // The outcome is unknown: look it up.
            Err(error) if error.is_outcome_unknown() => {
                match self.shared.store.goal_types(&caller.owner).await?.contains(&row) {
                    true => known.is_none(),
                    false => return Err(error.into()),
                }
            }
            written => written?,
        };
        Ok((owned_record(row), is_new))
    }

    /// Reads the goals and tasks of a session. With `after`, unchanged goals or tasks are `None`.
    pub async fn session_goals(
        &self,
        caller: &Caller,
        by: &SessionRef,
        after: Option<Cursor>,
    ) -> Result<GoalsSnapshot, Error> {
        let session = self.session_get(caller, by).await?.id;
        let not_found = || Error::not_found("session", session);
        // Read before the runs: a change in between is in this snapshot and, again, in the next one.
        let loaded = self.shared.store.session_load(session).await?.ok_or_else(not_found)?;
        // Events up to the floor are pruned.
        let floor = loaded.floor.map_or(Cursor::START, |floor| floor.cursor);
        let known = after.filter(|after| (floor..=loaded.cursor).contains(after));
        let (goals, tasks) = match known {
            Some(after) => self.changed_since(session, after).await?,
            None => (true, true),
        };
        let mut snapshot = GoalsSnapshot { goals: None, tasks: None, cursor: loaded.cursor };
        if goals || tasks {
            let runs = self.shared.store.runs_planned(session, MAX_RUNS).await?.intact()?;
            let own = |run: &Run| {
                let goals = run.goals.clone().into_iter();
                goals.map(|goal| SessionGoal { run_id: run.id, goal }).collect::<Vec<_>>()
            };
            snapshot.goals = goals.then(|| runs.iter().flat_map(own).collect());
            let latest = runs.iter().rev().find(|run| !run.tasks.is_empty());
            snapshot.tasks = tasks.then(|| latest.map(|run| run.tasks.clone()).unwrap_or_default());
        }
        Ok(snapshot)
    }

    /// Returns whether the goals and whether the tasks of a session have changed after an event.
    async fn changed_since(&self, session: SessionId, after: Cursor) -> Result<(bool, bool), Error> {
        let events = self.shared.store.events_after(session, None, after, MAX_EVENTS).await?;
        if events.len() == MAX_EVENTS {
            return Ok((true, true));
        }
        let is_damaged = events.iter().any(|event| matches!(event.body, Body::EventDamaged { .. }));
        let goals = events.iter().any(|event| event.body.changes_goals());
        let tasks = events.iter().any(|event| matches!(event.body, Body::TasksUpdated { .. }));
        Ok((goals || is_damaged, tasks || is_damaged))
    }

    /// Gets a goal type by its name.
    pub async fn goal_type_get(&self, caller: &Caller, name: &str) -> Result<GoalTypeRecord, Error> {
        if let Some(shared) = self.goal_type_shared(name) {
            return Ok(shared_record(shared));
        }
        let own = self.shared.store.goal_types(&caller.owner).await?;
        let found = own.into_iter().find(|row| row.goal_type.name == name);
        found.map(owned_record).ok_or_else(|| Error::not_found("goal type", name))
    }

    /// Lists the goal types that `caller` may use, by name.
    pub async fn goal_type_list(&self, caller: &Caller) -> Result<Vec<GoalTypeRecord>, Error> {
        let own = self.shared.store.goal_types(&caller.owner).await?;
        let shared = self.shared.options.goal_types.iter().cloned().map(shared_record);
        // Hides an owner's type if the configuration has a type of the same name by now.
        let is_free = |row: &GoalTypeRow| self.goal_type_shared(&row.goal_type.name).is_none();
        let mut all: Vec<_> = shared.chain(own.into_iter().filter(is_free).map(owned_record)).collect();
        all.sort_by(|a, b| a.goal_type.name.cmp(&b.goal_type.name));
        Ok(all)
    }

    fn goal_type_shared(&self, name: &str) -> Option<GoalType> {
        self.shared.options.goal_types.iter().find(|shared| shared.name == name).cloned()
    }

    fn check_schemas(&self, goal_type: &GoalType) -> Result<(), Error> {
        let catalog = &self.shared.options.agents;
        for (what, schema) in
            [("schema", Some(&goal_type.schema)), ("dataSchema", goal_type.data_schema.as_ref())]
        {
            let checked = schema.map_or(Ok(()), |schema| catalog.check_schema(schema));
            checked.map_err(|problem| Error::Invalid(format!("{what}: {problem}")))?;
        }
        Ok(())
    }

    /// Adds the types of the goals to the options of a run that is accepted. Refuses a goal whose type the caller does not
    /// have, or whose data do not fit it.
    pub(super) async fn resolve_goals(
        &self,
        caller: &Caller,
        mut options: RunOptions,
    ) -> Result<RunOptions, Error> {
        for goal in &mut options.goals {
            let found = self.goal_type_get(caller, &goal.goal_type).await.map_err(|error| match error {
                Error::NotFound { .. } => Error::Invalid(format!(
                    "there is no goal type {:?}: create it with POST /v1/goal-types, or name one of GET /v1/goal-types",
                    goal.goal_type
                )),
                other => other,
            })?;
            if let Some(schema) = &found.goal_type.data_schema {
                let data = serde_json::Value::Object(goal.data.clone());
                let fits = self.shared.options.agents.check_value(schema, &data);
                fits.map_err(|problem| {
                    Error::Invalid(format!("the data of the goal {:?}: {problem}", goal.goal_type))
                })?;
            }
            goal.definition = Some(Box::new(found.goal_type));
        }
        Ok(options)
    }
}

/// The prompt of a request: its own, or one that names its goals.
pub(super) fn prompt_or_goals(request: &RunRequest) -> Vec<Block> {
    match has_no_prompt(request) && !request.options.goals.is_empty() {
        true => vec![Block::text(prompt_of(&request.options.goals))],
        false => request.prompt.clone(),
    }
}

/// True when the prompt of a request holds nothing but blank text.
pub(super) fn has_no_prompt(request: &RunRequest) -> bool {
    let is_blank = |block: &Block| matches!(block, Block::Text { text } if text.trim().is_empty());
    request.prompt.iter().all(is_blank)
}
