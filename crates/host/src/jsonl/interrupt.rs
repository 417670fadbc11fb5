//! `interrupt`: a wish to stop, and what became of it.

use std::sync::Arc;

use mainspring_api::jsonl::{Code, Interrupt, Names, Reply};
use mainspring_client::{CancelOutcome, Client};
use mainspring_core::{RunId, SessionId};
use tokio::sync::OwnedSemaphorePermit;

use super::line::{Envelope, Version};
use super::live::Query;
use super::{CLIENT, Shared, told};

/// What is to be stopped.
enum Aim {
    /// A query of this host.
    Query(Arc<Query>),
    /// Any run of the owner.
    Run(RunId),
    /// Whatever a session does.
    Session(SessionId),
    /// Nothing that is known; why.
    Nothing(&'static str, String),
}

/// Passes a wish to stop on. The query's end is told after the answer.
pub(super) fn hear(shared: &Arc<Shared>, envelope: Envelope, line: Interrupt, weight: OwnedSemaphorePermit) {
    let aim = aim(shared, &envelope, &line);
    let query = match &aim {
        Aim::Query(query) => Some(query.clone()),
        _ => None,
    };
    // Whoever tells its end waits for this; if the end is being told already, there is nothing to wait for.
    let before_the_end = query.as_ref().and_then(|query| query.acknowledging.clone().try_read_owned().ok());
    let owner =
        query.as_ref().map_or_else(|| shared.owner(&envelope).to_owned(), |query| query.owner.clone());
    let shared = shared.clone();
    shared.tasks.clone().spawn(async move {
        let outcome = stop(&shared, &owner, aim).await;
        if envelope.version == Version::V2 {
            let names = match &query {
                Some(query) => query.names(None),
                None => names(&envelope, &line),
            };
            acknowledge(&shared, names, outcome).await;
        }
        drop((before_the_end, weight));
    });
}

fn aim(shared: &Shared, envelope: &Envelope, line: &Interrupt) -> Aim {
    let live = &shared.live;
    let owns = |query: &Query| envelope.owner.as_ref().is_none_or(|owner| *owner == query.owner);
    if let Some(run) = &line.run_id {
        let Ok(run) = run.parse() else {
            return Aim::Nothing("not_found", format!("no run {run:?}"));
        };
        let known = live.latest(|query| owns(query) && query.known().run == Some(run));
        return known.map_or(Aim::Run(run), Aim::Query);
    }
    if let Some(attempt) = &line.attempt_id {
        let fits = |query: &Query| query.known().attempt.is_some_and(|known| known.to_string() == *attempt);
        let known = live.latest(|query| owns(query) && fits(query));
        return known.map_or_else(
            || Aim::Nothing("not_found", format!("no attempt {attempt:?} is under way")),
            Aim::Query,
        );
    }
    if let Some(request) = &envelope.request {
        let fits = |query: &Query| query.request == *request && owns(query);
        let known = match &envelope.client {
            Some(client) => live.latest(|query| fits(query) && query.client == *client),
            None if live.only(fits).is_none() && live.latest(fits).is_some() => {
                let message = format!("several clients have a query {request:?}: name the clientId too");
                return Aim::Nothing("invalid_request", message);
            }
            None => live.only(fits),
        };
        return known.map_or_else(
            || Aim::Nothing("not_found", format!("no query {request:?} is under way")),
            Aim::Query,
        );
    }
    if let Some(session) = &line.session_id {
        let Ok(session) = session.parse() else {
            return Aim::Nothing("not_found", format!("no session {session:?}"));
        };
        let known = live.latest(|query| owns(query) && query.known().session == Some(session));
        return known.map_or(Aim::Session(session), Aim::Query);
    }
    let of_client = |client: &str| live.latest(|query| owns(query) && query.client == client);
    let (latest, none) = match &envelope.client {
        // Who says its name means its own query, not whatever another client happens to do.
        Some(client) => (of_client(client), format!("client {client:?} has no query under way")),
        None => (of_client(CLIENT).or_else(|| live.latest(owns)), "no query is under way".to_owned()),
    };
    latest.map_or_else(|| Aim::Nothing("not_found", none), Aim::Query)
}

async fn stop(shared: &Shared, owner: &str, aim: Aim) -> Result<CancelOutcome, (String, String)> {
    let run = match aim {
        Aim::Nothing(code, message) => return Err((code.to_owned(), message)),
        Aim::Run(run) => Some(run),
        Aim::Query(query) => query.run().await,
        Aim::Session(session) => {
            let ask = |client: Client| async move { client.session_snapshot(&session.to_string()).await };
            let snapshot = shared.link.ask(owner, ask).await.map_err(|error| told(&error))?;
            snapshot.active_run.map(|run| run.id)
        }
    };
    let run = run.ok_or_else(|| ("not_found".to_owned(), "no run is under way".to_owned()))?;
    let ask = |client: Client| async move { client.run_cancel(run).await };
    shared.link.ask(owner, ask).await.map_err(|error| told(&error))
}

/// Says that a wish to stop is not understood.
pub(super) async fn refuse(shared: &Shared, names: Names, code: &str, message: String) {
    acknowledge(shared, names, Err((code.to_owned(), message))).await;
}

async fn acknowledge(shared: &Shared, mut names: Names, outcome: Result<CancelOutcome, (String, String)>) {
    match outcome {
        Ok(done) => {
            names.run_id = Some(done.run_id);
            names.attempt_id = done.attempt_id.or(names.attempt_id);
            let ack = Reply::CancelAck {
                accepted: done.accepted,
                dispatch_attempted: done.dispatch_attempted,
                adapter_acknowledged: done.adapter_acknowledged,
                code: None,
                message: None,
            };
            shared.say(&ack, &names).await;
        }
        Err((code, message)) => {
            let ack = Reply::CancelAck {
                accepted: false,
                dispatch_attempted: false,
                adapter_acknowledged: false,
                code: Some(Code::of(&code)),
                message: Some((&message).into()),
            };
            shared.say(&ack, &names).await;
        }
    }
}

/// What the line itself names, where no query is known.
fn names(envelope: &Envelope, line: &Interrupt) -> Names {
    fn id<T: std::str::FromStr>(text: Option<&String>) -> Option<T> {
        text.and_then(|text| text.parse().ok())
    }
    Names {
        protocol_version: Some(2),
        request_id: envelope.request.clone(),
        client_id: envelope.client.clone(),
        session_id: id(line.session_id.as_ref()),
        run_id: id(line.run_id.as_ref()),
        attempt_id: id(line.attempt_id.as_ref()),
        ..Names::default()
    }
}
