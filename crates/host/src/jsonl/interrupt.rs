//! `interrupt`: cancels a query and acknowledges the cancellation.

use std::sync::Arc;

use mainspring_api::jsonl::{Code, Interrupt, LineIds, Reply};
use mainspring_client::{CancelOutcome, Client};
use mainspring_core::{RunId, SessionId};
use tokio::sync::OwnedSemaphorePermit;

use super::line::{Envelope, Version};
use super::live::Query;
use super::{DEFAULT_CLIENT_ID, Shared, code_and_message};

/// The target of an interrupt.
enum Target {
    /// A query of this host.
    Query(Arc<Query>),
    /// A run of the owner that is no query of this host.
    Run(RunId),
    /// The active run of a session.
    Session(SessionId),
    /// Nothing: the code and message of the refusal.
    Nothing(&'static str, String),
}

/// Cancels the target. The query's end is sent after the acknowledgement.
pub(super) fn handle(
    shared: &Arc<Shared>,
    envelope: Envelope,
    line: Interrupt,
    permit: OwnedSemaphorePermit,
) {
    let target = target_of(shared, &envelope, &line);
    let query = match &target {
        Target::Query(query) => Some(query.clone()),
        _ => None,
    };
    // The query's end waits for this lock; if the end is already being sent, the lock is not available.
    let ack_lock = query.as_ref().and_then(|query| query.acknowledging.clone().try_read_owned().ok());
    let owner =
        query.as_ref().map_or_else(|| shared.owner(&envelope).to_owned(), |query| query.owner.clone());
    let shared = shared.clone();
    shared.tasks.clone().spawn(async move {
        let outcome = stop(&shared, &owner, target).await;
        if envelope.version == Version::V2 {
            let line_ids = match &query {
                Some(query) => query.line_ids(None),
                None => line_ids(&envelope, &line),
            };
            acknowledge(&shared, line_ids, outcome).await;
        }
        drop((ack_lock, permit));
        if let Some(query) = query {
            super::login::interrupted(&shared, &query).await;
        }
    });
}

fn target_of(shared: &Shared, envelope: &Envelope, line: &Interrupt) -> Target {
    let live = &shared.live;
    let owns = |query: &Query| envelope.owner.as_ref().is_none_or(|owner| *owner == query.owner);
    if let Some(run) = &line.run_id {
        let Ok(run) = run.parse() else {
            return Target::Nothing("not_found", format!("no run {run:?}"));
        };
        let known = live.latest(|query| owns(query) && query.details().run == Some(run));
        return known.map_or(Target::Run(run), Target::Query);
    }
    if let Some(attempt) = &line.attempt_id {
        let fits = |query: &Query| query.details().attempt.is_some_and(|known| known.to_string() == *attempt);
        let known = live.latest(|query| owns(query) && fits(query));
        return known.map_or_else(
            || Target::Nothing("not_found", format!("no attempt {attempt:?} is under way")),
            Target::Query,
        );
    }
    if let Some(request) = &envelope.request {
        let fits = |query: &Query| query.request == *request && owns(query);
        let known = match &envelope.client {
            Some(client) => live.latest(|query| fits(query) && query.client == *client),
            None if live.only(fits).is_none() && live.latest(fits).is_some() => {
                let message = format!("several clients have a query {request:?}: name the clientId too");
                return Target::Nothing("invalid_request", message);
            }
            None => live.only(fits),
        };
        return known.map_or_else(
            || Target::Nothing("not_found", format!("no query {request:?} is under way")),
            Target::Query,
        );
    }
    if let Some(session) = &line.session_id {
        let Ok(session) = session.parse() else {
            return Target::Nothing("not_found", format!("no session {session:?}"));
        };
        let known = live.latest(|query| owns(query) && query.details().session == Some(session));
        return known.map_or(Target::Session(session), Target::Query);
    }
    let of_client = |client: &str| live.latest(|query| owns(query) && query.client == client);
    let (latest, none) = match &envelope.client {
        // An interrupt that names its client selects only a query of that client.
        Some(client) => (of_client(client), format!("client {client:?} has no query under way")),
        None => {
            (of_client(DEFAULT_CLIENT_ID).or_else(|| live.latest(owns)), "no query is under way".to_owned())
        }
    };
    latest.map_or_else(|| Target::Nothing("not_found", none), Target::Query)
}

async fn stop(shared: &Shared, owner: &str, target: Target) -> Result<CancelOutcome, (String, String)> {
    let run = match target {
        Target::Nothing(code, message) => return Err((code.to_owned(), message)),
        Target::Run(run) => Some(run),
        Target::Query(query) => query.run().await,
        Target::Session(session) => {
            let ask = |client: Client| async move { client.session_snapshot(&session.to_string()).await };
            let snapshot = shared.link.ask(owner, ask).await.map_err(|error| code_and_message(&error))?;
            snapshot.active_run.map(|run| run.id)
        }
    };
    let run = run.ok_or_else(|| ("not_found".to_owned(), "no run is under way".to_owned()))?;
    let ask = |client: Client| async move { client.run_cancel(run).await };
    shared.link.ask(owner, ask).await.map_err(|error| code_and_message(&error))
}

/// Acknowledges an invalid interrupt as refused.
pub(super) async fn refuse(shared: &Shared, line_ids: LineIds, code: &str, message: String) {
    acknowledge(shared, line_ids, Err((code.to_owned(), message))).await;
}

async fn acknowledge(
    shared: &Shared,
    mut line_ids: LineIds,
    outcome: Result<CancelOutcome, (String, String)>,
) {
    match outcome {
        Ok(done) => {
            line_ids.run_id = Some(done.run_id);
            line_ids.attempt_id = done.attempt_id.or(line_ids.attempt_id);
            let ack = Reply::CancelAck {
                accepted: done.accepted,
                dispatch_attempted: done.dispatch_attempted,
                adapter_acknowledged: done.adapter_acknowledged,
                code: None,
                message: None,
            };
            shared.reply(&ack, &line_ids).await;
        }
        Err((code, message)) => {
            let ack = Reply::CancelAck {
                accepted: false,
                dispatch_attempted: false,
                adapter_acknowledged: false,
                code: Some(Code::new(&code)),
                message: Some((&message).into()),
            };
            shared.reply(&ack, &line_ids).await;
        }
    }
}

/// Returns the ids in the line, for a line without a known query.
fn line_ids(envelope: &Envelope, line: &Interrupt) -> LineIds {
    fn id<T: std::str::FromStr>(text: Option<&String>) -> Option<T> {
        text.and_then(|text| text.parse().ok())
    }
    LineIds {
        protocol_version: Some(2),
        request_id: envelope.request.clone(),
        client_id: envelope.client.clone(),
        session_id: id(line.session_id.as_ref()),
        run_id: id(line.run_id.as_ref()),
        attempt_id: id(line.attempt_id.as_ref()),
        ..LineIds::default()
    }
}
