//! Control tools: list, inspect, message, delegate and cancel sessions and runs, in the form of docs/jsonl.md.
//!
//! A result is `{"ok": true, …}` or `{"ok": false, "error": {"code", "message"}}`.

#![allow(unused_qualifications, reason = "the derive for inlined fields generates them")]

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

use crate::jsonl::{assistant_text, code_and_message};
use crate::link::Link;

mod delegate;
mod forms;

/// The client id of calls without one.
const CLIENT: &str = "omi-control-tools";

/// The public description of a tool.
pub(crate) struct ToolSpec {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    /// The JSON Schema of the input.
    pub(crate) schema: Value,
}

/// Name, description and input schema of each tool.
type Table = [(&'static str, &'static str, fn() -> RefOr<Schema>); 6];
const TOOLS: Table = [
    (
        "list_agent_sessions",
        "Lists agent sessions, latest activity first, each with its latest and its active run.",
        List::schema,
    ),
    (
        "get_agent_run",
        "Returns a run with its session, attempts, artifacts and events, its prompt and its final text.",
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
        "Sends a prompt to another agent session and waits for its answer. The session must not be the caller's own.",
        Send::schema,
    ),
    (
        "delegate_agent",
        "Delegates work to a child agent session, which sees only the objective and the context you give it.",
        delegate::Delegate::schema,
    ),
];

/// Returns the descriptions of all tools.
pub(crate) fn tools() -> Vec<ToolSpec> {
    let spec = |(name, description, schema): (_, _, fn() -> RefOr<Schema>)| {
        let mut schema = serde_json::to_value(schema()).unwrap_or_default();
        // Drops Rust doc comments from the public schema.
        schema.as_object_mut().map(|schema| schema.remove("description"));
        ToolSpec { name, description, schema }
    };
    TOOLS.into_iter().map(spec).collect()
}

/// The context of a tool call.
pub(crate) struct ToolContext<'a> {
    pub(crate) link: &'a Link,
    pub(crate) owner: &'a str,
    /// The session whose run makes the call.
    pub(crate) session: Option<SessionId>,
    /// Adapter names by the aliases that callers use.
    pub(crate) aliases: &'a HashMap<String, String>,
    pub(crate) ids: &'a Ids,
    /// Returns the run of an attempt, if known to this process.
    pub(crate) run_of: &'a (dyn Fn(AttemptId) -> Option<RunId> + std::marker::Send + Sync),
}

/// True for a control tool; other tools are run by the host.
pub(crate) fn is_control_tool(name: &str) -> bool {
    TOOLS.iter().any(|(known, ..)| *known == name)
}

/// A tool's result, or a stable code and a message.
type ToolResult = Result<Map<String, Value>, (String, String)>;

/// Calls a tool. Returns the JSON result and whether the call succeeded.
pub(crate) async fn call(tools: &ToolContext<'_>, name: &str, input: Value) -> (String, bool) {
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
        Err((code, message)) => (error_result(&code, &message).to_string(), false),
    }
}

/// Builds the error result of a tool.
pub(crate) fn error_result(code: &str, message: &str) -> Value {
    let code = serde_json::to_value(Code::new(code)).unwrap_or_default();
    let mut answer = json!({"ok": false, "error": {"message": message}});
    if let (Some(error), Value::Object(code)) = (answer["error"].as_object_mut(), code) {
        error.extend(code);
    }
    answer
}

fn failed(code: &str, message: impl Into<String>) -> (String, String) {
    (code.to_owned(), message.into())
}

fn object(value: Value) -> ToolResult {
    match value {
        Value::Object(object) => Ok(object),
        _ => Ok(Map::new()),
    }
}

fn read<T: DeserializeOwned>(input: Value) -> Result<T, (String, String)> {
    let input = if input.is_null() { json!({}) } else { input };
    serde_json::from_value(input).map_err(|error| failed("invalid_tool_input", error.to_string()))
}

/// Checks a limit; `most` is its maximum.
fn limit(given: Option<usize>, default: usize, most: usize) -> Result<usize, (String, String)> {
    match given {
        None => Ok(default),
        Some(limit) if (1..=most).contains(&limit) => Ok(limit),
        Some(_) => Err(failed("invalid_tool_input", format!("limit must be from 1 to {most}"))),
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct List {
    /// The owner; must be the one that the caller acts for.
    owner_id: Option<String>,
    /// Only sessions with this status.
    #[schema(inline)]
    status: Option<SessionStatus>,
    /// Only sessions with this surface kind.
    surface_kind: Option<String>,
    /// The maximum number of results, at most 200; default: 50.
    limit: Option<usize>,
    /// Only sessions last active before this time.
    before_updated_at_ms: Option<i64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Get {
    /// The run.
    run_id: String,
    /// The owner; must be the one that the caller acts for.
    owner_id: Option<String>,
    /// Whether to include events; default: true.
    include_events: Option<bool>,
    /// The number of latest events, at most 500; default: 100.
    event_limit: Option<usize>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Cancel {
    /// The run.
    run_id: String,
    /// The owner; must be the one that the caller acts for.
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
    /// The owner; must be the one that the caller acts for.
    owner_id: Option<String>,
    /// Only artifacts with this role.
    #[schema(inline)]
    role: Option<ArtifactRole>,
    /// The maximum number of results, at most 200; default: 50.
    limit: Option<usize>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Send {
    /// The session.
    session_id: String,
    /// The prompt.
    prompt: String,
    /// The owner; must be the one that the caller acts for.
    owner_id: Option<String>,
    /// Whether the agent may act or only answer; default: only answer.
    #[schema(inline)]
    mode: Option<Mode>,
    /// The agent runtime; default: that of the session.
    adapter_id: Option<String>,
    /// The working directory.
    cwd: Option<String>,
    /// The model.
    model: Option<String>,
    /// An idempotency id: repeating the message with it returns the same run.
    request_id: Option<String>,
    /// The client that the requestId belongs to.
    client_id: Option<String>,
}

impl ToolContext<'_> {
    async fn list(&self, input: Value) -> ToolResult {
        let input: List = read(input)?;
        self.check_owner(input.owner_id.as_deref())?;
        let list = SessionListQuery {
            status: input.status,
            surface_kind: input.surface_kind,
            limit: Some(limit(input.limit, 50, 200)?),
            // The smallest possible id selects everything strictly before this time.
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

    async fn get(&self, input: Value) -> ToolResult {
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
        let (parents, children) = self.delegations(id).await?;
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

    async fn cancel(&self, input: Value) -> ToolResult {
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

    async fn artifacts(&self, input: Value) -> ToolResult {
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
                    failed("not_found", format!("{attempt} is not among the latest attempts; name its run"))
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
        let has_role =
            |artifact: &&mainspring_core::Artifact| input.role.is_none_or(|role| role == artifact.role);
        let artifacts: Vec<Value> = found.iter().filter(has_role).take(most).map(forms::artifact).collect();
        object(json!({"artifacts": artifacts}))
    }

    async fn send(&self, input: Value) -> ToolResult {
        let input: Send = read(input)?;
        self.check_owner(input.owner_id.as_deref())?;
        let session: SessionId = input
            .session_id
            .parse()
            .map_err(|_| failed("not_found", format!("no session {:?}", input.session_id)))?;
        if self.session == Some(session) {
            let message = "a run cannot wait for another run of its own session: it would deadlock";
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
        self.wait_until_ended(run).await?;
        let ended = self.run(&run.to_string()).await?;
        let session = session.to_string();
        let session = self.ask(|client| {
            let session = &session;
            async move { client.session_get(session).await }
        });
        let attempts = self.attempts(run).await?;
        let text =
            assistant_text(self.link, self.owner, &ended).await.map_err(|error| code_and_message(&error))?;
        object(json!({
            "session": forms::session(&session.await?),
            "run": self.run_form(&ended).await?,
            "attempt": attempts.last(),
            "adapterSessionId": self.native(&ended).await?,
            "terminalStatus": ended.state.status(),
            "text": text,
        }))
    }

    /// Waits until a run has ended.
    async fn wait_until_ended(&self, run: RunId) -> Result<(), (String, String)> {
        loop {
            let (client, no) = self.link.client(self.owner);
            let mut events = client.run_events(run, None).give_up_after(1);
            loop {
                match events.next().await {
                    None => return Ok(()),
                    Some(Ok(_)) => {}
                    Some(Err(error)) if error.is_gone() && self.link.renewed(no).await => break,
                    Some(Err(error)) => return Err(code_and_message(&error)),
                }
            }
        }
    }

    /// Refuses any owner but the one that the caller acts for, as not found.
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
        self.link.ask(self.owner, ask).await.map_err(|error| code_and_message(&error))
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

    /// Returns the last `limit` events of a run.
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

    /// Returns the native session id of a run's last attempt.
    async fn native(&self, run: &mainspring_core::Run) -> Result<Option<String>, (String, String)> {
        let (id, session) = (run.id, run.session);
        let attempts = self.ask(|client| async move { client.run_attempts(id).await }).await?;
        let used = attempts.last().and_then(|attempt| attempt.binding);
        let ask = |client: Client| async move { client.binding_list(&session.to_string()).await };
        let bindings = self.ask(ask).await?;
        Ok(bindings.into_iter().find(|binding| Some(binding.id) == used).and_then(|binding| binding.native))
    }

    /// Returns the form of a run with its prompt and final text.
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
                // A queued prompt is not in the tree yet.
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(code_and_message(&error)),
            }
        };
        // The last message is the final one only once the run has ended.
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
    fn only_control_tools_are_recognized() {
        assert!(TOOLS.iter().all(|(name, ..)| is_control_tool(name)));
        assert!(!is_control_tool("execute_sql"));
    }

    #[test]
    fn every_tool_has_an_input_schema() {
        let specs = tools();
        assert!(specs.iter().all(|tool| is_control_tool(tool.name)));
        let schema = |name: &str| &specs.iter().find(|tool| tool.name == name).unwrap().schema;
        let owner = "The owner; must be the one that the caller acts for.";
        let cancel = json!({"type": "object", "required": ["runId"], "properties": {
            "ownerId": {"type": ["string", "null"], "description": owner},
            "runId": {"type": "string", "description": "The run."},
        }});
        assert_eq!(*schema("cancel_agent_run"), cancel);
        assert_eq!(schema("send_agent_message")["required"], json!(["sessionId", "prompt"]));
        let all = specs.iter().map(|tool| tool.schema.to_string()).collect::<String>();
        assert!(!all.contains("$ref"), "the schema must be self-contained: {all}");
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
