//! `invalidate_session`: the agent's own session is not used again. The session stays as it is.

use std::sync::Arc;

use mainspring_api::jsonl::{InvalidateSession, Names, Reply};
use mainspring_client::{Client, Error, SessionListQuery};
use mainspring_core::BindingStatus;
use tokio::sync::OwnedSemaphorePermit;

use super::line::{Envelope, Version};
use super::{Shared, query, told};

/// Sees to it that what the session of a key is tied to is not used again, before any query that comes after this.
pub(super) fn hear(
    shared: &Arc<Shared>,
    envelope: Envelope,
    line: InvalidateSession,
    weight: OwnedSemaphorePermit,
) {
    let owner = shared.owner(&envelope).to_owned();
    shared.hints.forget(&owner, &line.session_key);
    let turn = shared.lanes.enter(query::lane_of(&owner, query::SCOPE, &line.session_key));
    let shared = shared.clone();
    shared.tasks.clone().spawn(async move {
        let mut turn = turn;
        turn.come().await;
        if let Err(error) = invalidate(&shared, &owner, &line.session_key).await {
            let (code, message) = told(&error);
            tracing::warn!(key = line.session_key, code, message, "a session was not invalidated");
            // A host of version 1 would take it for the end of its query.
            if envelope.version == Version::V2 {
                shared.say(&Reply::error(&code, &message), &Names::from(&envelope)).await;
            }
        }
        drop(weight);
    });
}

async fn invalidate(shared: &Shared, owner: &str, key: &str) -> Result<(), Error> {
    let list = SessionListQuery {
        legacy_scope: Some(query::SCOPE.into()),
        legacy_key: Some(key.to_owned()),
        ..SessionListQuery::default()
    };
    let ask = |client: Client| {
        let list = &list;
        async move { client.session_list(list).await }
    };
    let Some(found) = shared.link.ask(owner, ask).await?.items.pop() else { return Ok(()) };
    let session = found.session.id.to_string();
    let ask = |client: Client| {
        let session = &session;
        async move { client.binding_list(session).await }
    };
    let bindings = shared.link.ask(owner, ask).await?;
    for binding in bindings.iter().filter(|binding| binding.status == BindingStatus::Active) {
        let ask = |client: Client| {
            let (session, adapter) = (&session, &binding.adapter);
            async move { client.binding_invalidate(session, adapter).await }
        };
        shared.link.ask(owner, ask).await?;
    }
    Ok(())
}
