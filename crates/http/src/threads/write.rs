//! Changes of threads. A change that must not be made twice runs under a request name that its repetitions share.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use mainspring_api::MessageAppend;
use mainspring_api::threads::{
    AgentContent, AgentGoal, AgentMessage, AgentRole, AgentThreadStatus, ChangedThread, ClientToolResult,
    ClientToolResultStatus, ClientToolSpec, ForkAgentThreadRequest, PinThreadRequest, SendMessageRequest,
    StartAgentThreadRequest, SubmitFeedbackRequest, SubmitToolResultsRequest, ThreadFeedbackRecord,
    ThreadVisibility, UpdateThreadVisibilityRequest, is_client_tool_name,
};
use mainspring_api::{Opening, PromptContent, ResultMessage, ResultsAppend};
use mainspring_core::{
    Answer, Block, ClientResult, ClientTool, DeclaredGoal, NewFeedback, Policy, Refusal, RequestName,
    ResultStatus, Role, RunOptions, Session, SessionId, Visibility,
};
use mainspring_kernel::Error;
use mainspring_kernel::kernel::{
    ForkRequest, NewSession, Repeatable, RunRequest, SessionPatch, SessionTarget,
};
use mainspring_kernel::store::SessionRef;
use serde_json::{Value, json};

use super::read::record;
use super::token::Token;
use super::view::View;
use super::views::view;
use super::{ADAPTER, ThreadBody, ThreadCaller, ThreadPath};
use crate::audit::About;
use crate::{Http, Problem};

/// The field of a session's metadata that this edge uses.
pub(super) const METADATA: &str = "threads";
/// Goals that one turn may declare.
const MAX_GOALS: usize = 5;

/// Settles a request: a refused request is forgotten, an accepted one keeps its name.
pub(super) async fn settle<T>(
    http: &Http,
    request: &Repeatable,
    outcome: Result<T, Problem>,
) -> Result<T, Problem> {
    if outcome.as_ref().is_err_and(|problem| !problem.status.is_server_error()) {
        http.kernel.repeat_refused(request).await;
    }
    outcome
}

/// Settles a change that is answered with the id of the thread.
async fn settle_change(
    http: &Http,
    caller: &ThreadCaller,
    path: &ThreadPath,
    request: &Repeatable,
    outcome: Result<(), Problem>,
) -> Result<Response, Problem> {
    settle(http, request, outcome).await?;
    Ok(changed(caller, path))
}

/// Answers a change that returns no record.
fn changed(caller: &ThreadCaller, path: &ThreadPath) -> Response {
    caller.answer(&ChangedThread { thread_id: path.0.to_string() })
}

/// `POST /v1/ai/threads`
pub(super) async fn thread_start(
    State(http): State<Http>,
    caller: ThreadCaller,
    ThreadBody(start, body): ThreadBody<StartAgentThreadRequest>,
) -> Result<Response, Problem> {
    let request = http.kernel.repeat_begin(&caller.caller, "thread_start", None, &body).await?;
    let started = start_thread(&http, &caller, &request, start, None).await;
    let started = settle(&http, &request, started).await?;
    started_response(&http, &caller, &request, started).await
}

/// A thread that was started, with the number of messages that it was started with.
pub(super) struct Started {
    thread: SessionId,
    messages: usize,
}

/// Answers with a new thread as it was started. The record holds only the messages that the request has sent. An answer
/// of the agent comes with the first delta, even if it exists before this response is sent.
pub(super) async fn started_response(
    http: &Http,
    caller: &ThreadCaller,
    request: &Repeatable,
    started: Started,
) -> Result<Response, Problem> {
    let Started { thread, messages } = started;
    http.kernel.repeat_created(request, thread).await?;
    let view = view(http, &caller.caller, thread).await?;
    let mut record = record(&view);
    if record.messages.len() > messages {
        record.messages.truncate(messages);
        record.continuation_token = Token::of_first(&view, messages).encode();
        record.status = AgentThreadStatus::RobotoTurn;
        record.activity = None;
    }
    Ok(About::ids([&thread]).with(caller.answer(&record)))
}

/// Starts a thread. `agent` is the id of the agent that it was launched from.
pub(super) async fn start_thread(
    http: &Http,
    caller: &ThreadCaller,
    request: &Repeatable,
    mut start: StartAgentThreadRequest,
    agent: Option<&str>,
) -> Result<Started, Problem> {
    check_no_skills(start.invoke_skills.as_deref())?;
    check_no_skills(start.available_skills.as_deref())?;
    let goals = declared(start.goals.take())?;
    let tools = client_tools(start.client_tools.take())?;
    let mut seeded = seeds(&start.messages)?;
    if seeded.is_empty() && goals.is_empty() {
        return Err(Problem::invalid("a thread starts with at least one message or goal"));
    }
    let messages = seeded.len().max(1);
    let new = new_session(&start, agent);
    // The last message of a person is the prompt. Without one the thread waits for a message.
    let prompt = match seeded.last() {
        Some((Role::User, _)) => seeded.pop().map(|(_, text)| text),
        _ => None,
    };
    let by = (caller, request.name.as_str());
    if seeded.is_empty() && tools.is_empty() {
        let target = SessionTarget { new, ..SessionTarget::default() };
        return Ok(Started { thread: prompt_run(http, by, target, prompt, goals).await?, messages });
    }
    let target = SessionTarget { new, ..SessionTarget::default() };
    let name = format!("{}.thread", request.name);
    let (session, opening) = http.kernel.session_open(&caller.caller, &target, Some(&name)).await?;
    let filled = fill(http, by, &session, tools, seeded, prompt, goals).await;
    // A refused start leaves nothing behind.
    if opening == Opening::Created && filled.as_ref().is_err_and(|problem| !problem.status.is_server_error())
    {
        http.kernel.session_delete(&caller.caller, &SessionRef::Id(session.id)).await?;
    }
    filled.map(|()| Started { thread: session.id, messages })
}

/// Adds the tools, the messages and the first run to a new thread.
async fn fill(
    http: &Http,
    (caller, name): (&ThreadCaller, &str),
    session: &Session,
    tools: Vec<ClientTool>,
    seeded: Vec<(Role, String)>,
    prompt: Option<String>,
    goals: Vec<DeclaredGoal>,
) -> Result<(), Problem> {
    let thread = SessionRef::Id(session.id);
    // All tools are there before the first message. A repeated request must not replace tools that were changed since.
    if session.tip.is_none() {
        put_tools(http, caller, &thread, tools).await?;
    }
    // A message that an earlier arrival of this request has appended is not appended again.
    for (number, (role, text)) in seeded.into_iter().enumerate() {
        append(http, caller, &thread, format!("{name}.{number}"), role, text).await?;
    }
    if prompt.is_some() || !goals.is_empty() {
        let target = SessionTarget { id: Some(session.id), ..SessionTarget::default() };
        prompt_run(http, (caller, name), target, prompt, goals).await?;
    }
    Ok(())
}

fn new_session(start: &StartAgentThreadRequest, agent: Option<&str>) -> NewSession {
    let scope = start.analysis_scope.as_ref().map(|scope| json!(scope));
    let own = json!({"agentId": agent, "analysisScope": scope, "systemPrompt": start.system_prompt});
    NewSession {
        surface_kind: Some("threads".into()),
        adapter: Some(ADAPTER.into()),
        model_profile: start.model_profile.clone(),
        system_prompt: instructions(start.system_prompt.as_deref(), scope.as_ref()),
        visibility: Some(match start.visibility.unwrap_or_default() {
            ThreadVisibility::Private => Visibility::Private,
            ThreadVisibility::Org => Visibility::Org,
        }),
        metadata: Some(json!({METADATA: own})),
        ..NewSession::default()
    }
}

/// The instructions of a thread: its system prompt, and the scope that it is limited to.
fn instructions(system_prompt: Option<&str>, scope: Option<&Value>) -> Option<String> {
    let scope = scope.filter(|scope| !scope.is_null());
    let scope = scope.map(|scope| format!("The analysis is limited to this scope: {scope}"));
    let parts: Vec<_> = system_prompt.map(str::to_owned).into_iter().chain(scope).collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

/// Sends a prompt, or goals without one. Repeating the same name creates no second run.
async fn prompt_run(
    http: &Http,
    (caller, name): (&ThreadCaller, &str),
    session: SessionTarget,
    prompt: Option<String>,
    goals: Vec<DeclaredGoal>,
) -> Result<SessionId, Problem> {
    let has_message = prompt.is_some();
    let request = RunRequest {
        session,
        prompt: prompt.map(Block::text).into_iter().collect(),
        options: RunOptions { goals, ..RunOptions::default() },
        policy: Policy::Reject,
        name: RequestName {
            client_id: Some(caller.client_id(has_message)),
            idempotency_key: Some(name.to_owned()),
            ..RequestName::default()
        },
        ..RunRequest::default()
    };
    Ok(http.kernel.run_create(&caller.caller, request).await?.run.session)
}

/// Appends a message that a client seeds its thread with.
async fn append(
    http: &Http,
    caller: &ThreadCaller,
    thread: &SessionRef,
    id: String,
    role: Role,
    text: String,
) -> Result<(), Error> {
    match role {
        Role::User => {
            http.kernel.message_append(&caller.caller, thread, MessageAppend::text(id, text)).await?;
        }
        Role::Assistant => {
            let messages = vec![ResultMessage::new(role, PromptContent::Text(text))];
            let results = ResultsAppend { id, messages, ..ResultsAppend::default() };
            drop(http.kernel.results_append(&caller.caller, thread, results).await?);
        }
    }
    Ok(())
}

/// Reads the messages that a thread starts with: text of people and of the agent.
fn seeds(messages: &[AgentMessage]) -> Result<Vec<(Role, String)>, Problem> {
    let seed = |message: &AgentMessage| {
        let role = match message.role {
            AgentRole::User => Role::User,
            AgentRole::Assistant => Role::Assistant,
            AgentRole::Roboto => return Err(Problem::invalid("a message of the role roboto cannot be sent")),
        };
        Ok((role, text_of(message)?))
    };
    messages.iter().map(seed).collect()
}

/// Returns the text of a message. Refuses a message with other content, or without text.
fn text_of(message: &AgentMessage) -> Result<String, Problem> {
    let is_text = |content: &AgentContent| matches!(content, AgentContent::Text(_));
    let text = message.all_text();
    match !text.trim().is_empty() && message.content.iter().all(is_text) {
        true => Ok(text),
        false => Err(Problem::invalid(
            "a message holds at least one block of text, and only text: results of tools go to …/tool-results",
        )),
    }
}

fn check_no_skills(skills: Option<&[Value]>) -> Result<(), Problem> {
    match skills.is_none_or(<[Value]>::is_empty) {
        true => Ok(()),
        false => {
            Err(Problem::invalid("this server has no skills: leave invoke_skills and available_skills out"))
        }
    }
}

fn declared(goals: Option<Vec<AgentGoal>>) -> Result<Vec<DeclaredGoal>, Problem> {
    let goals = goals.unwrap_or_default();
    if goals.len() > MAX_GOALS {
        return Err(Problem::invalid(format!("a turn has at most {MAX_GOALS} goals")));
    }
    let goal = |AgentGoal { goal_type, data }| DeclaredGoal { goal_type, data, definition: None };
    Ok(goals.into_iter().map(goal).collect())
}

fn client_tools(tools: Option<Vec<ClientToolSpec>>) -> Result<Vec<ClientTool>, Problem> {
    let tool = |ClientToolSpec { name, description, input_schema }| match is_client_tool_name(&name) {
        true => Ok(ClientTool {
            name,
            description,
            input_schema: Value::Object(input_schema),
            ..ClientTool::default()
        }),
        false => Err(Problem::invalid(format!(
            "the client tool {name:?}: a name is `client_`, a lower-case letter, then lower-case letters, digits and underscores"
        ))),
    };
    tools.unwrap_or_default().into_iter().map(tool).collect()
}

/// Adds tools to a thread, or replaces those of the same names.
async fn put_tools(
    http: &Http,
    caller: &ThreadCaller,
    thread: &SessionRef,
    tools: Vec<ClientTool>,
) -> Result<(), Error> {
    if tools.is_empty() {
        return Ok(());
    }
    let known = http.kernel.session_get(&caller.caller, thread).await?.tools;
    for tool in tools.into_iter().filter(|tool| !known.contains(tool)) {
        http.kernel.session_tool_put(&caller.caller, thread, tool).await?;
    }
    Ok(())
}

/// Refuses a reader who may not change the thread.
fn check_owner(caller: &ThreadCaller, view: &View) -> Result<(), Problem> {
    match view.session.owner == caller.caller.owner {
        true => Ok(()),
        false => {
            let detail = "only the creator of the thread may do this: fork it to continue it";
            Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail))
        }
    }
}

/// `POST /v1/ai/threads/{thread}/messages`
pub(super) async fn thread_send(
    State(http): State<Http>,
    caller: ThreadCaller,
    path: ThreadPath,
    ThreadBody(send, body): ThreadBody<SendMessageRequest>,
) -> Result<Response, Problem> {
    let request = http.kernel.repeat_begin(&caller.caller, "thread_send", Some(path.0), &body).await?;
    let sent = send_message(&http, &caller, &path, &request, send).await;
    settle_change(&http, &caller, &path, &request, sent).await
}

async fn send_message(
    http: &Http,
    caller: &ThreadCaller,
    path: &ThreadPath,
    request: &Repeatable,
    send: SendMessageRequest,
) -> Result<(), Problem> {
    check_no_skills(send.invoke_skills.as_deref())?;
    let (goals, tools) = (declared(send.goals)?, client_tools(send.client_tools)?);
    let prompt = match &send.message {
        Some(message) if message.role != AgentRole::User => {
            return Err(Problem::invalid("only messages of the role user can be sent"));
        }
        Some(message) => Some(text_of(message)?),
        None if goals.is_empty() => return Err(Problem::invalid("send a message or goals")),
        None => None,
    };
    let present = view(http, &caller.caller, path.0).await?;
    check_owner(caller, &present)?;
    let is_busy = matches!(present.status, AgentThreadStatus::RobotoTurn | AgentThreadStatus::ClientToolTurn);
    // A repeated request finds its own run, whatever the status of that run is.
    if is_busy && !request.is_repeated {
        return Err(Problem::invalid(match present.status {
            AgentThreadStatus::ClientToolTurn => {
                "the thread waits for results of client tools: submit them first"
            }
            _ => "the agent is at work: wait for the user's turn, or cancel",
        }));
    }
    if !is_busy {
        put_tools(http, caller, &path.by(), tools).await?;
        if let Some(scope) = &send.analysis_scope {
            put_scope(http, caller, &present, json!(scope)).await?;
        }
    }
    let target = SessionTarget { id: Some(path.0), ..SessionTarget::default() };
    prompt_run(http, (caller, &request.name), target, prompt, goals).await?;
    Ok(())
}

/// Replaces the scope of a thread.
async fn put_scope(http: &Http, caller: &ThreadCaller, view: &View, scope: Value) -> Result<(), Error> {
    let session = &view.session;
    let mut metadata = session.metadata.clone();
    if !metadata[METADATA].is_object() {
        // Whoever created the session through another API may have stored anything here.
        metadata[METADATA] = json!({});
    }
    let own = &mut metadata[METADATA];
    if own["analysisScope"] == scope {
        return Ok(());
    }
    let system_prompt = own["systemPrompt"].as_str().map(str::to_owned);
    own["analysisScope"] = scope.clone();
    let patch = SessionPatch {
        metadata: Some(metadata),
        system_prompt: Some(instructions(system_prompt.as_deref(), Some(&scope))),
        ..SessionPatch::default()
    };
    http.kernel.session_patch(&caller.caller, &SessionRef::Id(session.id), patch).await?;
    Ok(())
}

/// `POST /v1/ai/threads/{thread}/tool-results`
pub(super) async fn thread_results(
    State(http): State<Http>,
    caller: ThreadCaller,
    path: ThreadPath,
    ThreadBody(submitted, body): ThreadBody<SubmitToolResultsRequest>,
) -> Result<Response, Problem> {
    let request = http.kernel.repeat_begin(&caller.caller, "thread_results", Some(path.0), &body).await?;
    let outcome = submit_results(&http, &caller, &path, &request, submitted).await;
    settle_change(&http, &caller, &path, &request, outcome).await
}

async fn submit_results(
    http: &Http,
    caller: &ThreadCaller,
    path: &ThreadPath,
    request: &Repeatable,
    submitted: SubmitToolResultsRequest,
) -> Result<(), Problem> {
    let tools = client_tools(submitted.client_tools)?;
    let present = view(http, &caller.caller, path.0).await?;
    check_owner(caller, &present)?;
    let results = submitted.tool_results;
    let is_double = |(at, result): (usize, &ClientToolResult)| {
        results[..at].iter().any(|other| other.tool_use_id == result.tool_use_id)
    };
    if let Some(double) = results.iter().enumerate().find(|result| is_double(*result)) {
        return Err(Problem::invalid(format!("the result of {:?} is given twice", double.1.tool_use_id)));
    }
    if results.is_empty() {
        return Ok(put_tools(http, caller, &path.by(), tools).await?);
    }
    let Some((run, wait)) = present.client_wait() else {
        // The first arrival of this request has already delivered the results.
        return match request.is_repeated {
            true => Ok(()),
            false => Err(Problem::invalid("the thread does not wait for results of client tools")),
        };
    };
    let result = |result: ClientToolResult| ClientResult {
        tool_use_id: result.tool_use_id,
        content: result.output.map_or(Value::Null, Value::Object),
        is_error: result.status != ClientToolResultStatus::Success,
        status: Some(match result.status {
            ClientToolResultStatus::Success => ResultStatus::Success,
            ClientToolResultStatus::Error => ResultStatus::Error,
            ClientToolResultStatus::Declined => ResultStatus::Declined,
        }),
        runtime_ms: Some(result.runtime_ms),
    };
    put_tools(http, caller, &path.by(), tools).await?;
    let answer = Answer::Tools { results: results.into_iter().map(result).collect() };
    http.kernel.run_answer(&caller.caller, run.id, wait.id, answer).await?;
    Ok(())
}

/// `POST /v1/ai/threads/{thread}/cancel`: cancels the active and the queued runs, and answers with the thread
pub(super) async fn thread_cancel(
    State(http): State<Http>,
    caller: ThreadCaller,
    path: ThreadPath,
) -> Result<Response, Problem> {
    http.kernel.repeat_close(&caller.caller, path.0, None).await?;
    let present = view(&http, &caller.caller, path.0).await?;
    check_owner(&caller, &present)?;
    for run in present.queued.iter().chain(&present.active) {
        match http.kernel.run_cancel(&caller.caller, run.id).await {
            Ok(_) => {}
            // The run has ended since the view was read.
            Err(Error::Refused(Refusal::Ended { .. } | Refusal::Merged { .. })) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let view = view(&http, &caller.caller, path.0).await?;
    Ok(caller.answer(&record(&view)))
}

/// `DELETE /v1/ai/threads/{thread}`
pub(super) async fn thread_delete(
    State(http): State<Http>,
    caller: ThreadCaller,
    path: ThreadPath,
) -> Result<Response, Problem> {
    let request = http.kernel.repeat_begin(&caller.caller, "thread_delete", Some(path.0), &[]).await?;
    let deleted = match http.kernel.session_delete(&caller.caller, &path.by()).await {
        Err(Error::NotFound { .. }) if request.is_repeated => Ok(()),
        deleted => deleted.map(drop).map_err(Problem::from),
    };
    settle_change(&http, &caller, &path, &request, deleted).await
}

/// `POST /v1/ai/threads/{thread}/fork`
pub(super) async fn thread_fork(
    State(http): State<Http>,
    caller: ThreadCaller,
    path: ThreadPath,
    ThreadBody(fork, body): ThreadBody<ForkAgentThreadRequest>,
) -> Result<Response, Problem> {
    let request = http.kernel.repeat_begin(&caller.caller, "thread_fork", Some(path.0), &body).await?;
    let forked = fork_thread(&http, &caller, &path, &request, &fork).await;
    let thread = settle(&http, &request, forked).await?;
    let view = view(&http, &caller.caller, thread).await?;
    Ok(About::ids([&thread]).with(caller.answer(&record(&view))))
}

async fn fork_thread(
    http: &Http,
    caller: &ThreadCaller,
    path: &ThreadPath,
    request: &Repeatable,
    fork: &ForkAgentThreadRequest,
) -> Result<SessionId, Problem> {
    let source = view(http, &caller.caller, path.0).await?;
    let number = usize::try_from(fork.message_sequence_num).ok();
    let message = number.and_then(|number| source.path.get(number)?.id).ok_or_else(|| {
        let last = source.path.len().saturating_sub(1);
        Problem::invalid(format!("message_sequence_num must name a complete message, 0 to {last}"))
    })?;
    let fork = ForkRequest { message, key: None, title: None };
    Ok(http.kernel.session_fork(&caller.caller, &path.by(), fork, Some(&request.name)).await?.0.id)
}

/// `POST /v1/ai/threads/{thread}/visibility`
pub(super) async fn thread_visibility(
    State(http): State<Http>,
    caller: ThreadCaller,
    path: ThreadPath,
    ThreadBody(change, _): ThreadBody<UpdateThreadVisibilityRequest>,
) -> Result<Response, Problem> {
    http.kernel.repeat_close(&caller.caller, path.0, None).await?;
    let present = view(&http, &caller.caller, path.0).await?;
    check_owner(&caller, &present)?;
    let visibility = match change.visibility {
        ThreadVisibility::Private => Visibility::Private,
        ThreadVisibility::Org => Visibility::Org,
    };
    if present.session.visibility != visibility {
        let patch = SessionPatch { visibility: Some(visibility), ..SessionPatch::default() };
        http.kernel.session_patch(&caller.caller, &path.by(), patch).await?;
    }
    let view = view(&http, &caller.caller, path.0).await?;
    Ok(caller.answer(&record(&view)))
}

/// `POST /v1/ai/threads/{thread}/pin`
pub(super) async fn thread_pin(
    State(http): State<Http>,
    caller: ThreadCaller,
    path: ThreadPath,
    ThreadBody(pin, _): ThreadBody<PinThreadRequest>,
) -> Result<Response, Problem> {
    http.kernel.repeat_close(&caller.caller, path.0, None).await?;
    http.kernel.session_pin(&caller.caller, &path.by(), pin.pinned).await?;
    Ok(changed(&caller, &path))
}

/// `POST /v1/ai/threads/{thread}/messages/{number}/feedback`
pub(super) async fn thread_feedback(
    State(http): State<Http>,
    caller: ThreadCaller,
    path: ThreadPath,
    ThreadBody(given, _): ThreadBody<SubmitFeedbackRequest>,
) -> Result<Response, Problem> {
    http.kernel.repeat_close(&caller.caller, path.0, None).await?;
    let view = view(&http, &caller.caller, path.0).await?;
    let number: Option<usize> = path.1.as_deref().and_then(|number| number.parse().ok());
    let no_message =
        || Problem::new(StatusCode::NOT_FOUND, "not_found", "the thread has no message of that number");
    let number = number.filter(|number| *number < view.len()).ok_or_else(no_message)?;
    let message = view.path.get(number).and_then(|stored| stored.id).ok_or_else(|| {
        Problem::invalid("the message is still being generated: give feedback when it is complete")
    })?;
    let SubmitFeedbackRequest { sentiment, categories, notes } = given;
    let new = NewFeedback { sentiment, categories: categories.unwrap_or_default(), notes };
    let feedback = http.kernel.feedback_give(&caller.caller, &path.by(), message, new).await?;
    let session = &view.session;
    Ok(caller.answer(&ThreadFeedbackRecord {
        feedback_id: feedback.id.to_string(),
        thread_id: path.0.to_string(),
        message_sequence_num: number,
        org_id: super::org_id(session.org.as_deref(), &session.owner),
        created: feedback.created_at.into(),
        created_by: feedback.owner.clone(),
        modified: feedback.updated_at.into(),
        modified_by: feedback.owner,
        sentiment: feedback.sentiment,
        categories: feedback.categories,
        notes: feedback.notes,
    }))
}
