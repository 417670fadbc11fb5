//! Control tools: what an agent may do with sessions and runs, by the names and in the form that its tools know.
//!
//! An answer is `{"ok": true, …}` or `{"ok": false, "error": {"code", "message"}}`.

#![allow(unused_qualifications, reason = "what is derived for an inlined field has them")]

use std::collections::HashMap;

use mainspring_api::jsonl::Code;
use mainspring_client::{
    ArtifactListQuery, Client, EventsQuery, Prompt, PromptContent, SessionListQuery, SessionTarget,
};
use mainspring_core::{
    ArtifactRole, AttemptId, Mode, Position, Role, RunId, RunOptions, SessionId, SessionStatus,
};
use mainspring_system::ids::Ids;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::jsonl::{said, told};
use crate::link::Link;

mod delegate;
mod forms;

/// The client of messages that agents send and that name none.
const CLIENT: &str = "omi-control-tools";

/// A tool, as those are told of it who may call it.
pub(crate) struct Told {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    /// The JSON Schema of what it is given.
    pub(crate) schema: Value,
}

/// The tools, what they are for, and what they take.
type Table = [(&'static str, &'static str, fn() -> RefOr<Schema>); 6];
const TOLD: Table = [
    (
        "list_agent_sessions",
        "Lists agent sessions, the latest activity first, each with its latest and its active run.",
        List::schema,
    ),
    (
        "get_agent_run",
        "Shows a run: its session, attempts, artifacts and events, what it was asked and what it said.",
        Get::schema,
    ),
    ("cancel_agent_run", "Cancels a run. Cancelled means stopped.", Cancel::schema),
    (
        "inspect_agent_artifacts",
        "Lists the artifacts of a session, a run or an attempt: name exactly one.",
        Inspect::schema,
    ),
    (
        "send_agent_message",
        "Sends a prompt to another agent session and waits for its answer. Not to the session that calls.",
        Send::schema,
    ),
    (
        "delegate_agent",
        "Hands work to an agent session of its own, which sees only the objective and the context you give it.",
        delegate::Delegate::schema,
    ),
];

/// Every tool.
pub(crate) fn tools() -> Vec<Told> {
    let told = |(name, description, schema): (_, _, fn() -> RefOr<Schema>)| {
        let mut schema = serde_json::to_value(schema()).unwrap_or_default();
        // What it is called here is nobody's matter.
        schema.as_object_mut().map(|schema| schema.remove("description"));
        Told { name, description, schema }
    };
    TOLD.into_iter().map(told).collect()
}

/// Whom a tool acts for, and what it needs for that.
pub(crate) struct Reach<'a> {
    pub(crate) link: &'a Link,
    pub(crate) owner: &'a str,
    /// The session whose run calls it.
    pub(crate) session: Option<SessionId>,
    /// What those who call it name adapters, and what they are called here.
    pub(crate) aliases: &'a HashMap<String, String>,
    pub(crate) ids: &'a Ids,
    /// Which run an attempt is one of, as far as that is known here.
    pub(crate) run_of: &'a (dyn Fn(AttemptId) -> Option<RunId> + std::marker::Send + Sync),
}

/// True for a tool that is answered here and not by the host.
pub(crate) fn is_control_tool(name: &str) -> bool {
    TOLD.iter().any(|(known, ..)| *known == name)
}

/// What a tool answers, or a stable code and a sentence.
type Answer = Result<Map<String, Value>, (String, String)>;

/// Carries a tool out: what it answers, and whether it is what was asked for.
pub(crate) async fn call(tools: &Reach<'_>, name: &str, input: Value) -> (String, bool) {
    let answer = match name {
        "list_agent_sessions" => tools.list(input).await,
        "get_agent_run" => tools.get(input).await,
        "cancel_agent_run" => tools.cancel(input).await,
        "inspect_agent_artifacts" => tools.artifacts(input).await,
        "send_agent_message" => Box::pin(tools.send(input)).await,
        "delegate_agent" => Box::pin(tools.delegate(input)).await,
        other => Err(failed("unknown_control_tool", format!("there is no control tool {other:?}"))),
    };
    match answer {
        Ok(mut answer) => {
            answer.insert("ok".into(), true.into());
            (Value::Object(answer).to_string(), true)
        }
        Err((code, message)) => (refused(&code, &message).to_string(), false),
    }
}

/// A tool's answer that says why there is none.
pub(crate) fn refused(code: &str, message: &str) -> Value {
    let code = serde_json::to_value(Code::of(code)).unwrap_or_default();
    let mut answer = json!({"ok": false, "error": {"message": message}});
    if let (Some(error), Value::Object(code)) = (answer["error"].as_object_mut(), code) {
        error.extend(code);
    }
    answer
}

fn failed(code: &str, message: impl Into<String>) -> (String, String) {
    (code.to_owned(), message.into())
}

fn object(value: Value) -> Answer {
    match value {
        Value::Object(object) => Ok(object),
        _ => Ok(Map::new()),
    }
}

fn read<T: DeserializeOwned>(input: Value) -> Result<T, (String, String)> {
    let input = if input.is_null() { json!({}) } else { input };
    serde_json::from_value(input).map_err(|error| failed("invalid_tool_input", error.to_string()))
}

/// How many of something, at most `most`.
fn limit(given: Option<usize>, default: usize, most: usize) -> Result<usize, (String, String)> {
    match given {
        None => Ok(default),
        Some(limit) if (1..=most).contains(&limit) => Ok(limit),
        Some(_) => Err(failed("invalid_tool_input", format!("a limit is from 1 to {most}"))),
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct List {
    /// Whose; must be the owner for whom the caller acts.
    owner_id: Option<String>,
    /// Only those of this status.
    #[schema(inline)]
    status: Option<SessionStatus>,
    /// Only those of this kind of surface.
    surface_kind: Option<String>,
    /// How many, at most 200; 50 if not given.
    limit: Option<usize>,
    /// Only those that were active before this moment.
    before_updated_at_ms: Option<i64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Get {
    /// The run.
    run_id: String,
    /// Whose; must be the owner for whom the caller acts.
    owner_id: Option<String>,
    /// Whether its events are shown; true if not given.
    include_events: Option<bool>,
    /// How many of its last events, at most 500; 100 if not given.
    event_limit: Option<usize>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Cancel {
    /// The run.
    run_id: String,
    /// Whose; must be the owner for whom the caller acts.
    owner_id: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Inspect {
    /// The session.
    session_id: Option<String>,
    /// The run.
    run_id: Option<String>,
    /// The attempt.
    attempt_id: Option<String>,
    /// Whose; must be the owner for whom the caller acts.
    owner_id: Option<String>,
    /// Only those of this role.
    #[schema(inline)]
    role: Option<ArtifactRole>,
    /// How many, at most 200; 50 if not given.
    limit: Option<usize>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Send {
    /// The session.
    session_id: String,
    /// What it is told.
    prompt: String,
    /// Whose; must be the owner for whom the caller acts.
    owner_id: Option<String>,
    /// Whether the agent may act or only answer; only answer if not given.
    #[schema(inline)]
    mode: Option<Mode>,
    /// The agent runtime; the session's own if not given.
    adapter_id: Option<String>,
    /// The folder it works in.
    cwd: Option<String>,
    /// The model.
    model: Option<String>,
    /// A name for this message: the same again is the same run.
    request_id: Option<String>,
    /// Whose name that is.
    client_id: Option<String>,
}

impl Reach<'_> {
    async fn list(&self, input: Value) -> Answer {
        let input: List = read(input)?;
        self.check_owner(input.owner_id.as_deref())?;
        let list = SessionListQuery {
            status: input.status,
            surface_kind: input.surface_kind,
            limit: Some(limit(input.limit, 50, 200)?),
            // The smallest id there is: everything strictly before this moment.
            before: input.before_updated_at_ms.map(|at| format!("{at}.ses_{:032x}", 0)),
            ..SessionListQuery::default()
        };
        let page = self.ask(|client| {
            let list = &list;
            async move { client.session_list(list).await }
        });
        let mut sessions = vec![];
        for listed in page.await?.items {
            let latest = match &listed.latest_run {
                Some(run) => self.run_form(run).await?,
                None => Value::Null,
            };
            let active = match &listed.latest_run {
                Some(run) if !run.state.status().is_ended() => {
                    let id = listed.session.id.to_string();
                    let snapshot = self.ask(|client| {
                        let id = &id;
                        async move { client.session_snapshot(id).await }
                    });
                    match snapshot.await?.active_run {
                        Some(run) => self.run_form(&run).await?,
                        None => Value::Null,
                    }
                }
                _ => Value::Null,
            };
            sessions.push(json!({
                "session": forms::session(&listed.session),
                "latestRun": latest,
                "activeRun": active,
                "adapterBindings": self.bindings(listed.session.id).await?,
            }));
        }
        object(json!({"sessions": sessions}))
    }

    async fn get(&self, input: Value) -> Answer {
        let input: Get = read(input)?;
        self.check_owner(input.owner_id.as_deref())?;
        let events = match input.include_events.unwrap_or(true) {
            true => limit(input.event_limit, 100, 500)?,
            false => 0,
        };
        let run = self.run(&input.run_id).await?;
        let session = run.session.to_string();
        let session = self.ask(|client| {
            let session = &session;
            async move { client.session_get(session).await }
        });
        let id = run.id;
        let (parents, children) = self.kin(id).await?;
        object(json!({
            "session": forms::session(&session.await?),
            "run": self.run_form(&run).await?,
            "attempts": self.attempts(id).await?,
            "adapterBindings": self.bindings(run.session).await?,
            "artifacts": self.run_artifacts(id, 200).await?.iter().map(forms::artifact).collect::<Vec<_>>(),
            "events": self.events(id, events).await?,
            "parentDelegations": parents,
            "childDelegations": children,
        }))
    }

    async fn cancel(&self, input: Value) -> Answer {
        let input: Cancel = read(input)?;
        self.check_owner(input.owner_id.as_deref())?;
        let run = self.run(&input.run_id).await?.id;
        let cancellation = self.ask(|client| async move { client.run_cancel(run).await }).await?;
        let run = self.run(&input.run_id).await?;
        object(json!({
            "cancellation": cancellation,
            "run": self.run_form(&run).await?,
            "attempts": self.attempts(run.id).await?,
        }))
    }

    async fn artifacts(&self, input: Value) -> Answer {
        let input: Inspect = read(input)?;
        self.check_owner(input.owner_id.as_deref())?;
        let most = limit(input.limit, 50, 200)?;
        let found = match (&input.session_id, &input.run_id, &input.attempt_id) {
            (Some(session), None, None) => {
                let session: SessionId =
                    session.parse().map_err(|_| failed("not_found", format!("no session {session:?}")))?;
                let session = session.to_string();
                let page = self.ask(|client| {
                    let session = &session;
                    async move { client.session_artifacts(session, &first(200)).await }
                });
                page.await?.items
            }
            (None, Some(run), None) => self.run_artifacts(run_id(run)?, 200).await?,
            (None, None, Some(attempt)) => {
                let id: AttemptId =
                    attempt.parse().map_err(|_| failed("not_found", format!("no attempt {attempt:?}")))?;
                let run = (self.run_of)(id).ok_or_else(|| {
                    failed("not_found", format!("{attempt} is not one of the latest here; name its run"))
                })?;
                let mut found = self.run_artifacts(run, 200).await?;
                found.retain(|artifact| artifact.attempt == Some(id));
                found
            }
            _ => {
                let message = "name exactly one of sessionId, runId and attemptId";
                return Err(failed("invalid_tool_input", message));
            }
        };
        let fits =
            |artifact: &&mainspring_core::Artifact| input.role.is_none_or(|role| role == artifact.role);
        let artifacts: Vec<Value> = found.iter().filter(fits).take(most).map(forms::artifact).collect();
        object(json!({"artifacts": artifacts}))
    }

    async fn send(&self, input: Value) -> Answer {
        let input: Send = read(input)?;
        self.check_owner(input.owner_id.as_deref())?;
        let session: SessionId = input
            .session_id
            .parse()
            .map_err(|_| failed("not_found", format!("no session {:?}", input.session_id)))?;
        if self.session == Some(session) {
            let message = "a run cannot wait for another of its own session: it would wait for itself";
            return Err(failed("would_deadlock", message));
        }
        let adapter = input.adapter_id.map(|name| self.aliases.get(&name).cloned().unwrap_or(name));
        let prompt = Prompt {
            session: SessionTarget { session_id: Some(session), ..SessionTarget::default() },
            prompt: Some(PromptContent::Text(input.prompt)),
            adapter,
            mode: input.mode.unwrap_or(Mode::Ask),
            options: RunOptions { model: input.model, cwd: input.cwd, ..RunOptions::default() },
            client_id: Some(input.client_id.unwrap_or_else(|| CLIENT.into())),
            request_id: Some(input.request_id.unwrap_or_else(|| self.ids.secret())),
            ..Prompt::default()
        };
        let accepted = self.ask(|client| {
            let prompt = &prompt;
            async move { client.run_create(prompt).await }
        });
        let run = accepted.await?.run.id;
        self.ended(run).await?;
        let ended = self.run(&run.to_string()).await?;
        let session = session.to_string();
        let session = self.ask(|client| {
            let session = &session;
            async move { client.session_get(session).await }
        });
        let attempts = self.attempts(run).await?;
        let text = said(self.link, self.owner, &ended).await.map_err(|error| told(&error))?;
        object(json!({
            "session": forms::session(&session.await?),
            "run": self.run_form(&ended).await?,
            "attempt": attempts.last(),
            "adapterSessionId": self.native(&ended).await?,
            "terminalStatus": ended.state.status(),
            "text": text,
        }))
    }

    /// Resolves once a run has ended.
    async fn ended(&self, run: RunId) -> Result<(), (String, String)> {
        loop {
            let (client, no) = self.link.client(self.owner);
            let mut events = client.run_events(run, None).give_up_after(1);
            loop {
                match events.next().await {
                    None => return Ok(()),
                    Some(Ok(_)) => {}
                    Some(Err(error)) if error.is_gone() && self.link.renewed(no).await => break,
                    Some(Err(error)) => return Err(told(&error)),
                }
            }
        }
    }

    /// Refuses another owner than the one the agent acts for: what is another's is not found.
    fn check_owner(&self, named: Option<&str>) -> Result<(), (String, String)> {
        match named {
            Some(named) if named != self.owner => Err(failed("not_found", format!("no owner {named:?}"))),
            _ => Ok(()),
        }
    }

    async fn ask<T, F>(&self, ask: impl Fn(Client) -> F) -> Result<T, (String, String)>
    where
        F: Future<Output = Result<T, mainspring_client::Error>>,
    {
        self.link.ask(self.owner, ask).await.map_err(|error| told(&error))
    }

    async fn run(&self, id: &str) -> Result<mainspring_core::Run, (String, String)> {
        let id = run_id(id)?;
        self.ask(|client| async move { client.run_get(id).await }).await
    }

    async fn attempts(&self, run: RunId) -> Result<Vec<Value>, (String, String)> {
        let attempts = self.ask(|client| async move { client.run_attempts(run).await }).await?;
        Ok(attempts.iter().map(forms::attempt).collect())
    }

    async fn run_artifacts(
        &self,
        run: RunId,
        limit: usize,
    ) -> Result<Vec<mainspring_core::Artifact>, (String, String)> {
        Ok(self.ask(|client| async move { client.run_artifacts(run, &first(limit)).await }).await?.items)
    }

    /// The last `limit` events of a run.
    async fn events(&self, run: RunId, limit: usize) -> Result<Vec<Value>, (String, String)> {
        let (mut last, mut after) = (vec![], Position::START);
        if limit == 0 {
            return Ok(vec![]);
        }
        loop {
            let query = EventsQuery::after(after, Some(500));
            let page = self.ask(|client| {
                let query = &query;
                async move { client.run_events_page(run, query).await }
            });
            let page = page.await?;
            last.extend(page.items);
            last.drain(..last.len().saturating_sub(limit));
            match page.next.and_then(|next| next.parse().ok()) {
                Some(next) => after = next,
                None => break,
            }
        }
        Ok(last.iter().map(forms::event).collect())
    }

    async fn bindings(&self, session: SessionId) -> Result<Vec<Value>, (String, String)> {
        let ask = |client: Client| async move { client.binding_list(&session.to_string()).await };
        Ok(self.ask(ask).await?.iter().map(forms::binding).collect())
    }

    /// The agent's own name for the session of a run.
    async fn native(&self, run: &mainspring_core::Run) -> Result<Option<String>, (String, String)> {
        let (id, session) = (run.id, run.session);
        let attempts = self.ask(|client| async move { client.run_attempts(id).await }).await?;
        let used = attempts.last().and_then(|attempt| attempt.binding);
        let ask = |client: Client| async move { client.binding_list(&session.to_string()).await };
        let bindings = self.ask(ask).await?;
        Ok(bindings.into_iter().find(|binding| Some(binding.id) == used).and_then(|binding| binding.native))
    }

    /// A run, with what it was asked and what it said.
    async fn run_form(&self, run: &mainspring_core::Run) -> Result<Value, (String, String)> {
        let session = run.session.to_string();
        let text = async |message: Option<mainspring_core::MessageId>, role: Role| {
            let Some(message) = message else { return Ok(None) };
            let ask = |client: Client| {
                let session = &session;
                async move { client.session_message(session, message).await }
            };
            match self.link.ask(self.owner, ask).await {
                Ok(found) => {
                    Ok(Some(found.node.message).filter(|one| one.role == role).map(|one| one.text()))
                }
                // A prompt that waits its turn has no place in the tree yet.
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(told(&error)),
            }
        };
        // What it has said last is its last word only once it has ended.
        let last = run.final_message.filter(|_| run.state.status().is_ended());
        let (prompt, last) = (text(run.prompt, Role::User).await?, text(last, Role::Assistant).await?);
        Ok(forms::run(run, prompt.as_deref(), last.as_deref()))
    }
}

/// Selects the first `limit` artifacts.
fn first(limit: usize) -> ArtifactListQuery {
    ArtifactListQuery { limit: Some(limit), before: None }
}

fn run_id(text: &str) -> Result<RunId, (String, String)> {
    text.parse().map_err(|_| failed("not_found", format!("no run {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_control_tools_are_answered_here() {
        assert!(TOLD.iter().all(|(name, ..)| is_control_tool(name)));
        assert!(!is_control_tool("execute_sql"));
    }

    #[test]
    fn every_tool_says_what_it_takes() {
        let told = tools();
        assert!(told.iter().all(|tool| is_control_tool(tool.name)));
        let schema = |name: &str| &told.iter().find(|tool| tool.name == name).unwrap().schema;
        let whose = "Whose; must be the owner for whom the caller acts.";
        let cancel = json!({"type": "object", "required": ["runId"], "properties": {
            "ownerId": {"type": ["string", "null"], "description": whose},
            "runId": {"type": "string", "description": "The run."},
        }});
        assert_eq!(*schema("cancel_agent_run"), cancel);
        assert_eq!(schema("send_agent_message")["required"], json!(["sessionId", "prompt"]));
        let all = told.iter().map(|tool| tool.schema.to_string()).collect::<String>();
        assert!(!all.contains("$ref"), "whoever reads it has nothing else to read: {all}");
    }

    #[test]
    fn limits_are_refused_rather_than_cut() {
        assert_eq!(limit(None, 50, 200), Ok(50));
        assert_eq!(limit(Some(200), 50, 200), Ok(200));
        for beyond in [0, 201] {
            assert_eq!(limit(Some(beyond), 50, 200).unwrap_err().0, "invalid_tool_input");
        }
    }
}
