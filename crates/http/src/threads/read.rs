//! Reads of threads: records, deltas, lists, searches, model profiles.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use mainspring_api::threads::{
    AgentThreadDelta, AgentThreadRecord, AgentThreadStatus, ModelProfileResponse, SearchThreadsRequest,
    ThreadDeltaQuery, ThreadGetQuery, ThreadListQuery, ThreadOrigin, ThreadPage, ThreadVisibility,
};
use mainspring_core::{FailureCode, Run, RunState, Session, Visibility};
use mainspring_kernel::kernel::{Caller, Scope, SessionQuery};
use mainspring_kernel::store::SessionRef;

use super::token::{Client, MustReload, Token, unchanged};
use super::view::{View, client_wait};
use super::views::view;
use super::{ThreadBody, ThreadCaller, ThreadPath, ThreadQuery, json_of, json_response, org_id};
use crate::access::key_ended;
use crate::sessions::page_start;
use crate::watch::RequestSlot;
use crate::{Http, Problem};

/// How long a delta waits while the agent works. Short: a client's request fails after 30 s, and it checks
/// its overall timeout only between two deltas.
const HOLD: Duration = Duration::from_secs(8);
/// Threads in a page, unless the caller asks for fewer.
const PAGE_THREADS: usize = 50;

/// `GET /v1/ai/threads/{thread}`
pub(super) async fn thread_get(
    State(http): State<Http>,
    caller: ThreadCaller,
    path: ThreadPath,
    ThreadQuery(query): ThreadQuery<ThreadGetQuery>,
) -> Result<Response, Problem> {
    http.kernel.repeat_close(&caller.caller, path.0, None).await?;
    let view = view(&http, &caller.caller, path.0).await?;
    let mut record = record(&view);
    // Python writes `False`.
    if query.load_messages.is_some_and(|load| load.eq_ignore_ascii_case("false")) {
        record.messages = vec![];
        record.continuation_token = Token::start(&record.thread_id).encode();
    }
    Ok(caller.answer(&record))
}

/// Builds the record of a thread with all messages.
pub(super) fn record(view: &View) -> AgentThreadRecord {
    let session = &view.session;
    let forked_from = session.forked_from;
    AgentThreadRecord {
        messages: view.starting_at(0).map(|numbered| numbered.message.clone()).collect(),
        continuation_token: view.token().to_owned(),
        activity: view.activity.clone(),
        forked_from_message_sequence_num: forked_from.and_then(|origin| view.number_of(origin.message)),
        goals: Some(view.plan.goals.clone()),
        tasks: Some(view.plan.tasks.clone()),
        ..head(session, view.status)
    }
}

/// Builds the record of a thread without its messages.
fn head(session: &Session, status: AgentThreadStatus) -> AgentThreadRecord {
    let own =
        |name: &str| session.metadata.get(super::write::METADATA)?.get(name)?.as_str().map(str::to_owned);
    AgentThreadRecord {
        thread_id: session.id.to_string(),
        created: session.created_at.into(),
        created_by: session.owner.clone(),
        created_by_principal: Some(format!("user:{}", session.owner)),
        org_id: org_id(session.org.as_deref(), &session.owner),
        messages: vec![],
        continuation_token: Token::start(&session.id.to_string()).encode(),
        status,
        activity: None,
        title: session.title.clone(),
        model_profile: session.model_profile.clone(),
        forked_from_thread_id: session.forked_from.map(|origin| origin.session.to_string()),
        forked_from_message_sequence_num: None,
        visibility: match session.visibility {
            Visibility::Private => ThreadVisibility::Private,
            Visibility::Org => ThreadVisibility::Org,
        },
        // A fork has the metadata of its origin, but was not created from the agent.
        created_from_agent_id: own("agentId").filter(|_| session.forked_from.is_none()),
        created_from_trigger_id: None,
        origin: Some(ThreadOrigin::Api),
        pinned_at: None,
        goals: None,
        tasks: None,
    }
}

/// `GET /v1/ai/threads/{thread}/delta`
///
/// While the agent works, the answer waits for a change: the request then counts as a stream.
pub(super) async fn thread_delta(
    State(http): State<Http>,
    caller: ThreadCaller,
    path: ThreadPath,
    slot: RequestSlot,
    ThreadQuery(query): ThreadQuery<ThreadDeltaQuery>,
) -> Result<Response, Problem> {
    http.kernel.repeat_close(&caller.caller, path.0, None).await?;
    let present = view(&http, &caller.caller, path.0).await?;
    let text = query.next_token.as_deref().filter(|token| !token.is_empty());
    if present.status != AgentThreadStatus::RobotoTurn && text == Some(present.token()) {
        return Ok(json_response(present.unchanged(|| json_of(&unchanged(&present)))));
    }
    let thread = path.0.to_string();
    let token = match text {
        None => Token::start(&thread),
        Some(token) => Token::decode(token, &thread).ok_or_else(|| {
            Problem::invalid("next_token is not a continuation token of this thread: load the thread again")
        })?,
    };
    let delta = delta(&http, &caller, &token, &present).await?;
    if present.status != AgentThreadStatus::RobotoTurn || !is_empty(&delta) {
        return Ok(caller.answer(&delta));
    }
    // If no more streams are allowed, the request is answered at once.
    let Ok(_permit) = http.streams.acquire(&http.kernel, &caller.caller.owner, None) else {
        return Ok(caller.answer(&delta));
    };
    slot.release();
    if let Some(delta) = hold(&http, &caller, &path, &token, &present).await? {
        return Ok(caller.answer(&delta));
    }
    let present = view(&http, &caller.caller, path.0).await?;
    Ok(caller.answer(&self::delta(&http, &caller, &token, &present).await?))
}

/// Waits up to [`HOLD`] for a delta that is not empty, or for another status or activity. `None` if nothing has changed
/// by then.
async fn hold(
    http: &Http,
    caller: &ThreadCaller,
    path: &ThreadPath,
    token: &Token,
    seen: &View,
) -> Result<Option<AgentThreadDelta>, Problem> {
    let mut events = http.kernel.session_observe(&caller.caller, &path.by(), Some(seen.position)).await?;
    let changed = async {
        while let Some(Ok(_)) = events.next().await {
            let present = view(http, &caller.caller, path.0).await?;
            let delta = delta(http, caller, token, &present).await?;
            if !is_empty(&delta) || present.status != seen.status || present.activity != seen.activity {
                return Ok(Some(delta));
            }
        }
        Ok::<_, Problem>(None)
    };
    tokio::select! {
        changed = changed => changed,
        () = http.kernel.sleep(HOLD) => Ok(None),
        () = http.stop.cancelled() => Ok(None),
        () = key_ended(http, &caller.caller) => Ok(None),
    }
}

fn is_empty(delta: &AgentThreadDelta) -> bool {
    delta.messages_by_idx.is_empty()
        && delta.reset_from_message_sequence_num.is_none()
        && delta.title.is_none()
        && delta.goals.is_none()
        && delta.tasks.is_none()
}

/// Builds the delta for a client.
async fn delta(
    http: &Http,
    caller: &ThreadCaller,
    token: &Token,
    view: &View,
) -> Result<AgentThreadDelta, Problem> {
    let resets = caller.resets();
    let has_own_message = !resets && token.held() > 0 && is_own(http, caller, view, token.held()).await?;
    token.delta(view, Client { resets, has_own_message }).map_err(|MustReload| {
        Problem::invalid("the messages of the thread have changed: load the thread again")
    })
}

/// True if the message of this number was sent with the caller's key.
async fn is_own(http: &Http, caller: &ThreadCaller, view: &View, number: usize) -> Result<bool, Problem> {
    let Some(run) = view.path.get(number).and_then(|message| message.run) else {
        return Ok(false);
    };
    let run = http.kernel.run_get(&caller.caller, run).await?;
    Ok(run.owner == caller.caller.owner && run.request.client_id == Some(caller.client_id(true)))
}

/// `GET /v1/ai/threads`: the caller's threads, the latest activity first
pub(super) async fn thread_list(
    State(http): State<Http>,
    caller: ThreadCaller,
    ThreadQuery(query): ThreadQuery<ThreadListQuery>,
) -> Result<Response, Problem> {
    let pinned = query.pinned.map(|pinned| pinned.eq_ignore_ascii_case("true"));
    // A reader may have pinned threads of others.
    let scope = if pinned == Some(true) { Scope::All } else { Scope::Own };
    let page = page(&http, &caller.caller, scope, pinned, query.limit, query.page_token).await?;
    Ok(caller.answer(&page))
}

/// `POST /v1/ai/threads/search`: threads that the caller may read, by words of their messages and titles
pub(super) async fn thread_search(
    State(http): State<Http>,
    caller: ThreadCaller,
    ThreadBody(search, _): ThreadBody<SearchThreadsRequest>,
) -> Result<Response, Problem> {
    let text = search.query.unwrap_or_default();
    if text.trim().is_empty() {
        let page = page(&http, &caller.caller, Scope::All, None, search.limit, search.page_token).await?;
        return Ok(caller.answer(&page));
    }
    let token = search.page_token.filter(|token| !token.is_empty());
    let before = token.map(|token| token.parse()).transpose();
    let before =
        before.map_err(|_| Problem::invalid("page_token is not the next_token of an earlier page"))?;
    let query =
        mainspring_kernel::kernel::SearchQuery { text, scope: Scope::All, before, limit: search.limit };
    let found = http.kernel.session_search(&caller.caller, &query).await?;
    let mut items: Vec<AgentThreadRecord> = vec![];
    for hit in &found.hits {
        if !items.iter().any(|known| known.thread_id == hit.session_id.to_string()) {
            let session = http.kernel.session_get(&caller.caller, &SessionRef::Id(hit.session_id)).await?;
            let latest = http.kernel.run_latest(&session).await?;
            items.push(listed(&session, latest.as_ref()));
        }
    }
    Ok(caller.answer(&ThreadPage { items, next_token: found.next.map(|next| next.to_string()) }))
}

async fn page(
    http: &Http,
    caller: &Caller,
    scope: Scope,
    pinned: Option<bool>,
    limit: Option<usize>,
    token: Option<String>,
) -> Result<ThreadPage<AgentThreadRecord>, Problem> {
    let limit = limit.unwrap_or(PAGE_THREADS).clamp(1, PAGE_THREADS);
    let before = page_start(token.filter(|token| !token.is_empty()))?;
    let query = SessionQuery { scope, pinned, before, limit: Some(limit), ..SessionQuery::default() };
    let sessions = http.kernel.session_list(caller, query).await?.items;
    let next = sessions.last().filter(|_| sessions.len() == limit);
    let next_token = next.map(|(last, _)| format!("{}.{}", last.last_activity_at.0, last.id));
    let items = sessions.iter().map(|(session, latest)| listed(session, latest.as_ref())).collect();
    Ok(ThreadPage { items, next_token })
}

/// Builds the record of a listed thread.
fn listed(session: &Session, latest: Option<&Run>) -> AgentThreadRecord {
    let pinned_at = session.pinned_at.map(Into::into);
    AgentThreadRecord { pinned_at, ..head(session, status_of(session, latest)) }
}

/// The side that has the turn in a thread, without loading messages.
fn status_of(session: &Session, latest: Option<&Run>) -> AgentThreadStatus {
    let Some(run) = latest else {
        return match session.tip {
            Some(_) => AgentThreadStatus::UserTurn,
            None => AgentThreadStatus::NotStarted,
        };
    };
    match &run.state {
        state if client_wait(state).is_some() => AgentThreadStatus::ClientToolTurn,
        RunState::Failed { error } if error.code == FailureCode::GoalsFailed => {
            AgentThreadStatus::GoalsFailed
        }
        state if state.status().is_ended() => AgentThreadStatus::UserTurn,
        _ => AgentThreadStatus::RobotoTurn,
    }
}

/// `GET /v1/ai/model-profiles`
pub(super) async fn thread_profiles(State(http): State<Http>, caller: ThreadCaller) -> Response {
    let profiles = http.kernel.models().profiles.into_iter().map(|profile| ModelProfileResponse {
        label: profile.label.unwrap_or_else(|| profile.profile.clone()),
        description: profile.description.unwrap_or_else(|| format!("{}/{}", profile.provider, profile.model)),
        is_default: profile.is_default,
        id: profile.profile,
    });
    caller.answer(&profiles.collect::<Vec<_>>())
}
