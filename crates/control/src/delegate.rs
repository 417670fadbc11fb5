//! `delegate_agent`: a run delegates work to a child session.

use mainspring_api::control::{ControlError, DelegateWork, DelegatedWork, DelegationResultForm};
use mainspring_api::{Delegate, SessionTarget};
use mainspring_core::{Cost, DelegationMode, ExternalRef, Mode, RunId, RunLimits, RunOptions};
use serde_json::Value;

use crate::{ControlTools, Input, invalid, run_id, session_id};

/// The default budget of a child in US dollars, for callers whose own limits are not known.
pub const DEFAULT_BUDGET_USD: f64 = 5.0;
/// The maximum budget of a child, in US dollars.
const MAX_BUDGET_USD: f64 = 10.0;

impl ControlTools<'_> {
    pub(crate) async fn delegate(&self, input: Input<DelegateWork>) -> Result<DelegatedWork, ControlError> {
        let input = input?;
        self.check_owner(input.owner_id.as_deref())?;
        let parent = self.parent(input.parent_run_id.as_deref()).await?;
        let mode = input.mode.unwrap_or(DelegationMode::Call);
        let work = self.work(mode, input)?;
        let made = self.plane.run_delegate(parent, &work).await?;
        let run = match mode.is_awaited() {
            true => self.plane.run_ended(made.run.id).await?,
            false => self.plane.run_get(made.run.id).await?,
        };
        let settled = self.plane.delegation_get(made.delegation.id).await?;
        let (status, attempt) = (run.state.status(), self.last_attempt(run.id).await?);
        Ok(DelegatedWork {
            delegation: settled.delegation.into(),
            child_session: self.plane.session_get(run.session).await?.into(),
            adapter_session_id: self.native_session(run.session, attempt.as_ref()).await?,
            child_attempt: attempt,
            terminal_status: status.is_ended().then_some(status),
            result: settled.outcome.map(DelegationResultForm::from),
            child_run: self.run_form(run).await?,
        })
    }

    /// Returns the run that delegates: the run that the input names, else the calling run. If the calling run is known,
    /// refuses every other named run. If only the calling session is known, refuses named runs of other sessions.
    async fn parent(&self, named: Option<&str>) -> Result<RunId, ControlError> {
        if let (Some(named), Some(calling)) = (named, self.run) {
            return match run_id(named)? == calling {
                true => Ok(calling),
                false => Err(ControlError::not_found(format!("{named} is not the run that you execute"))),
            };
        }
        if let Some(named) = named {
            let run = self.plane.run_get(run_id(named)?).await?;
            return match self.session.is_none_or(|own| own == run.session) {
                true => Ok(run.id),
                false => Err(ControlError::not_found(format!("{named} is not a run of your session"))),
            };
        }
        let unnamed = || invalid("name the run that delegates: parentRunId");
        self.calling_run().await?.ok_or_else(unnamed)
    }

    /// Returns the run that makes the call; `None` if the call comes from no run.
    pub(crate) async fn calling_run(&self) -> Result<Option<RunId>, ControlError> {
        match (self.run, self.session) {
            (Some(run), _) => Ok(Some(run)),
            (None, Some(own)) => Ok(self.plane.session_active_run(own).await?.map(|run| run.id)),
            (None, None) => Ok(None),
        }
    }

    /// Converts the input to a request of the API.
    fn work(&self, mode: DelegationMode, input: DelegateWork) -> Result<Delegate, ControlError> {
        let budget = input.max_budget_usd.or(self.default_budget_usd);
        if !budget.is_none_or(|budget| budget > 0.0 && budget <= MAX_BUDGET_USD) {
            return Err(invalid(format!("maxBudgetUsd must be more than 0 and at most {MAX_BUDGET_USD}")));
        }
        let external_ref = match (input.child_external_ref_kind, input.child_external_ref_id) {
            (Some(kind), Some(id)) => Some(ExternalRef { kind, id }),
            (None, None) => None,
            _ => return Err(invalid("childExternalRefKind and childExternalRefId must be given together")),
        };
        let adapter = input.adapter_id.map(|name| self.adapter(name));
        let default_adapter = input.default_adapter_id.map(|name| self.adapter(name));
        let session = SessionTarget {
            session_id: input.child_session_id.as_deref().map(session_id).transpose()?,
            external_ref,
            title: input.child_title,
            agent_definition: input.child_agent_definition,
            surface_kind: input.child_surface_kind,
            adapter: default_adapter.or_else(|| adapter.clone()),
            cwd: input.cwd.clone(),
            metadata: input.metadata.map(Value::Object),
            ..SessionTarget::default()
        };
        // The default budget is a precaution: an adapter that cannot enforce a budget is used nevertheless.
        let best_effort = (input.max_budget_usd.is_none() && budget.is_some()).then_some(true);
        let limits = RunLimits { max_cost: budget.map(Cost::from), best_effort, ..RunLimits::default() };
        let (client_id, request_id) = self.request_name(input.client_id, input.request_id);
        Ok(Delegate {
            context: input.context,
            session,
            adapter,
            run_mode: input.run_mode.unwrap_or(Mode::Ask),
            options: RunOptions {
                model: input.model,
                model_profile: input.model_profile,
                cwd: input.cwd,
                limits,
                ..RunOptions::default()
            },
            max_depth: input.max_depth,
            client_id,
            request_id,
            ..Delegate::new(mode, input.objective)
        })
    }
}
