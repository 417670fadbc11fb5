//! `invalidate_session`: invalidates the agent's native session. The session itself is unchanged.

use std::sync::Arc;

use mainspring_api::jsonl::{InvalidateSession, LineIds, Reply};
use mainspring_client::{Client, Error, SessionListQuery};
use mainspring_core::BindingStatus;
use tokio::sync::OwnedSemaphorePermit;

use super::line::{Envelope, Version};
use super::{Shared, code_and_message, query};

/// Invalidates the active bindings of a key's session, before any later query of that key starts.
pub(super) fn handle(
    shared: &Arc<Shared>,
    envelope: Envelope,
    line: InvalidateSession,
    permit: OwnedSemaphorePermit,
) {
    let owner = shared.owner(&envelope).to_owned();
    shared.hints.forget(&owner, &line.session_key);
    // Queries before this line use the old native session, those after it a new one.
    let mut turn = shared.intake.enter();
    let shared = shared.clone();
    shared.tasks.clone().spawn(async move {
        turn.wait().await;
        if let Err(error) = invalidate(&shared, &owner, &line.session_key).await {
            let (code, message) = code_and_message(&error);
            tracing::warn!(key = line.session_key, code, message, "session was not invalidated");
            // A version 1 host would interpret an error as the end of its query.
            if envelope.version == Version::V2 {
                shared.reply(&Reply::error(&code, &message), &LineIds::from(&envelope)).await;
            }
        }
        drop((turn, permit));
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
