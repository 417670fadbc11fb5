//! `delegate_agent`: a run delegates work to a child session.

use mainspring_client::{Client, Delegate as DelegateRequest, SessionTarget};
use mainspring_core::{
    Cost, Delegation, DelegationMode, DelegationResult, ExternalRef, Mode, RunId, RunLimits, RunOptions,
    SessionId,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{CLIENT, ToolContext, ToolResult, failed, forms, object, read};

/// The default budget of a child, in US dollars.
const DEFAULT_BUDGET_USD: f64 = 5.0;
/// The maximum budget of a child, in US dollars.
const MAX_BUDGET_USD: f64 = 10.0;

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Delegate {
    /// call: wait for the result. spawn: return at once. continue: give an earlier child more work, and wait.
    #[schema(inline)]
    mode: DelegationMode,
    /// The active run that delegates; default: the run you work for.
    parent_run_id: Option<String>,
    /// The objective of the work.
    objective: String,
    /// Context for the child, at most 4000 characters; the child sees nothing else of your session.
    context: Option<String>,
    /// The owner; must be the one that the caller acts for.
    owner_id: Option<String>,
    /// The child's session; required for continue.
    child_session_id: Option<String>,
    /// The surface kind of a new session; default: delegated_agent.
    child_surface_kind: Option<String>,
    /// The kind of the external object that a new session refers to.
    child_external_ref_kind: Option<String>,
    /// The id of the external object that a new session refers to.
    child_external_ref_id: Option<String>,
    /// The title of a new session.
    child_title: Option<String>,
    /// The agent runtime of this work; default: that of the session.
    adapter_id: Option<String>,
    /// The agent runtime of a new session; default: that of the parent.
    default_adapter_id: Option<String>,
    /// The working directory; default: that of the parent.
    cwd: Option<String>,
    /// The model.
    model: Option<String>,
    /// Whether the child may act or only answer; default: only answer.
    #[schema(inline)]
    run_mode: Option<Mode>,
    /// An idempotency id: repeating the call with it returns the same child.
    request_id: Option<String>,
    /// The client that the requestId belongs to.
    client_id: Option<String>,
    /// The maximum depth of delegation, from 1 to 5; default: 3.
    max_depth: Option<u32>,
    /// The budget of the child in US dollars, at most 10; default: 5.
    max_budget_usd: Option<f64>,
    /// Metadata of a new session.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
}

impl ToolContext<'_> {
    pub(super) async fn delegate(&self, input: Value) -> ToolResult {
        let input: Delegate = read(input)?;
        self.check_owner(input.owner_id.as_deref())?;
        let parent = self.parent(input.parent_run_id.as_deref()).await?;
        let request = json!({"mode": input.mode, "objective": input.objective, "context": input.context});
        let (mode, body) = (input.mode, self.delegate_request(input)?);
        let made = self.ask(|client| {
            let body = &body;
            async move { client.run_delegate(parent, body).await }
        });
        let made = made.await?;
        let (child, delegation) = (made.run.id, made.delegation.id);
        if mode != DelegationMode::Spawn {
            self.wait_until_ended(child).await?;
        }
        let settled = self.ask(|client| async move { client.delegation_get(delegation).await }).await?;
        let run = self.run(&child.to_string()).await?;
        let session = run.session.to_string();
        let session = self.ask(|client: Client| {
            let session = &session;
            async move { client.session_get(session).await }
        });
        let ended = run.state.status().is_ended();
        object(json!({
            "delegation": forms::delegation(&settled.delegation, &request),
            "childSession": forms::session(&session.await?),
            "childRun": self.run_form(&run).await?,
            "childAttempt": self.attempts(child).await?.last(),
            "adapterSessionId": self.native(&run).await?,
            "terminalStatus": ended.then_some(run.state.status()),
            "result": settled.outcome.as_ref().map(result),
        }))
    }

    /// Returns the run that delegates, which must belong to the calling session.
    async fn parent(&self, named: Option<&str>) -> Result<RunId, (String, String)> {
        if let Some(named) = named {
            let run = self.run(named).await?;
            return match self.session.is_none_or(|own| own == run.session) {
                true => Ok(run.id),
                false => Err(failed("not_found", format!("{named} is not a run of your session"))),
            };
        }
        let message = "name the run that delegates: parentRunId";
        let own = self.session.ok_or_else(|| failed("invalid_tool_input", message))?.to_string();
        let snapshot = self.ask(|client| {
            let own = &own;
            async move { client.session_snapshot(own).await }
        });
        let active = snapshot.await?.active_run;
        active.map(|run| run.id).ok_or_else(|| failed("invalid_tool_input", message))
    }

    fn delegate_request(&self, input: Delegate) -> Result<DelegateRequest, (String, String)> {
        let invalid = |message: String| failed("invalid_tool_input", message);
        let budget = input.max_budget_usd.unwrap_or(DEFAULT_BUDGET_USD);
        if !(budget > 0.0 && budget <= MAX_BUDGET_USD) {
            return Err(invalid(format!("maxBudgetUsd must be more than 0 and at most {MAX_BUDGET_USD}")));
        }
        let external_ref = match (input.child_external_ref_kind, input.child_external_ref_id) {
            (Some(kind), Some(id)) => Some(ExternalRef { kind, id }),
            (None, None) => None,
            _ => {
                return Err(invalid(
                    "childExternalRefKind and childExternalRefId must be given together".into(),
                ));
            }
        };
        let session_id = input.child_session_id.as_deref().map(str::parse::<SessionId>).transpose();
        let session_id = session_id.map_err(|_| {
            failed(
                "not_found",
                format!("no session {:?}", input.child_session_id.as_deref().unwrap_or_default()),
            )
        })?;
        let adapter = |name: String| self.aliases.get(&name).cloned().unwrap_or(name);
        let session = SessionTarget {
            session_id,
            external_ref,
            title: input.child_title,
            surface_kind: input.child_surface_kind,
            adapter: input.default_adapter_id.or(input.adapter_id.clone()).map(adapter),
            cwd: input.cwd.clone(),
            metadata: input.metadata.map(Value::Object),
            ..SessionTarget::default()
        };
        Ok(DelegateRequest {
            context: input.context,
            session,
            adapter: input.adapter_id.map(adapter),
            run_mode: input.run_mode.unwrap_or(Mode::Ask),
            options: RunOptions {
                model: input.model,
                cwd: input.cwd,
                limits: RunLimits { max_cost: Some(Cost::from(budget)), ..RunLimits::default() },
                ..RunOptions::default()
            },
            max_depth: input.max_depth,
            client_id: Some(input.client_id.unwrap_or_else(|| CLIENT.into())),
            request_id: Some(input.request_id.unwrap_or_else(|| self.ids.secret())),
            ..DelegateRequest::new(input.mode, input.objective)
        })
    }

    /// Returns the delegation that created a run, and those that the run created.
    pub(super) async fn delegations(&self, run: RunId) -> Result<(Value, Value), (String, String)> {
        let delegations = self.ask(|client| async move { client.run_delegations(run).await }).await?;
        let form = |delegation: &Delegation| forms::delegation(delegation, &json!({}));
        let list = |all: &[Delegation]| all.iter().map(form).collect::<Value>();
        Ok((delegations.parent.as_slice().iter().map(form).collect(), list(&delegations.children)))
    }
}

fn result(result: &DelegationResult) -> Value {
    json!({
        "summary": result.summary,
        "artifacts": result.artifacts.iter().map(forms::artifact).collect::<Vec<_>>(),
        "verifiedEffects": result.verified_effects,
        "openQuestions": result.open_questions,
        "usage": result.usage,
    })
}
