//! `delegate_agent`: a run hands work to a session of its own.

use mainspring_client::{Client, Delegate as Wanted, SessionTarget};
use mainspring_core::{
    Cost, Delegation, DelegationMode, DelegationResult, ExternalRef, Mode, RunId, RunLimits, RunOptions,
    SessionId,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{Answer, CLIENT, Reach, failed, forms, object, read};

/// What a child may cost if nothing is said, in US dollars.
const BUDGET: f64 = 5.0;
/// What it may cost at most.
const BUDGET_MOST: f64 = 10.0;

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Delegate {
    /// call: wait for the result. spawn: go on at once. continue: give an earlier child more to do, and wait.
    #[schema(inline)]
    mode: DelegationMode,
    /// The run that delegates, which is at work; the one you work for if not given.
    parent_run_id: Option<String>,
    /// What is to be achieved.
    objective: String,
    /// What the child needs to know for that, at most 4000 characters; it sees nothing else of you.
    context: Option<String>,
    /// Whose; must be the owner for whom the caller acts.
    owner_id: Option<String>,
    /// The child's session; needed to continue.
    child_session_id: Option<String>,
    /// The kind of surface of a new session; delegated_agent if not given.
    child_surface_kind: Option<String>,
    /// What a new session stands for: the kind of that.
    child_external_ref_kind: Option<String>,
    /// What a new session stands for: the id of that.
    child_external_ref_id: Option<String>,
    /// The title of a new session.
    child_title: Option<String>,
    /// The agent runtime of this work; the session's own if not given.
    adapter_id: Option<String>,
    /// The agent runtime of a new session; the parent's if not given.
    default_adapter_id: Option<String>,
    /// The folder it works in; the parent's if not given.
    cwd: Option<String>,
    /// The model.
    model: Option<String>,
    /// Whether the child may act or only answer; only answer if not given.
    #[schema(inline)]
    run_mode: Option<Mode>,
    /// A name for this: the same again is the same child.
    request_id: Option<String>,
    /// Whose name that is.
    client_id: Option<String>,
    /// How deep delegation may go, from 1 to 5; 3 if not given.
    max_depth: Option<u32>,
    /// What the child may cost in US dollars, at most 10; 5 if not given.
    max_budget_usd: Option<f64>,
    /// Your own data, kept with a new session.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
}

impl Reach<'_> {
    pub(super) async fn delegate(&self, input: Value) -> Answer {
        let input: Delegate = read(input)?;
        self.check_owner(input.owner_id.as_deref())?;
        let parent = self.parent(input.parent_run_id.as_deref()).await?;
        let asked = json!({"mode": input.mode, "objective": input.objective, "context": input.context});
        let (mode, wanted) = (input.mode, self.wanted(input)?);
        let made = self.ask(|client| {
            let wanted = &wanted;
            async move { client.run_delegate(parent, wanted).await }
        });
        let made = made.await?;
        let (child, delegation) = (made.run.id, made.delegation.id);
        if mode != DelegationMode::Spawn {
            self.ended(child).await?;
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
            "delegation": forms::delegation(&settled.delegation, &asked),
            "childSession": forms::session(&session.await?),
            "childRun": self.run_form(&run).await?,
            "childAttempt": self.attempts(child).await?.last(),
            "adapterSessionId": self.native(&run).await?,
            "terminalStatus": ended.then_some(run.state.status()),
            "result": settled.outcome.as_ref().map(result),
        }))
    }

    /// The run that delegates: one of the session that calls, and nobody else's.
    async fn parent(&self, named: Option<&str>) -> Result<RunId, (String, String)> {
        if let Some(named) = named {
            let run = self.run(named).await?;
            return match self.session.is_none_or(|own| own == run.session) {
                true => Ok(run.id),
                false => Err(failed("not_found", format!("{named} is no run of yours"))),
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

    fn wanted(&self, input: Delegate) -> Result<Wanted, (String, String)> {
        let invalid = |message: String| failed("invalid_tool_input", message);
        let budget = input.max_budget_usd.unwrap_or(BUDGET);
        if !(budget > 0.0 && budget <= BUDGET_MOST) {
            return Err(invalid(format!("maxBudgetUsd is more than 0 and at most {BUDGET_MOST}")));
        }
        let external_ref = match (input.child_external_ref_kind, input.child_external_ref_id) {
            (Some(kind), Some(id)) => Some(ExternalRef { kind, id }),
            (None, None) => None,
            _ => return Err(invalid("a reference has a kind and an id: name both or none".into())),
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
        Ok(Wanted {
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
            ..Wanted::new(input.mode, input.objective)
        })
    }

    /// The delegation that made a run, and those that it has made.
    pub(super) async fn kin(&self, run: RunId) -> Result<(Value, Value), (String, String)> {
        let kin = self.ask(|client| async move { client.run_delegations(run).await }).await?;
        let form = |delegation: &Delegation| forms::delegation(delegation, &json!({}));
        let list = |all: &[Delegation]| all.iter().map(form).collect::<Value>();
        Ok((kin.parent.as_slice().iter().map(form).collect(), list(&kin.children)))
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
