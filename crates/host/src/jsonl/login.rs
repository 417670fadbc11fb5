//! `auth_required` and `authenticate`: an agent wants the user to authenticate, and the user does.

use std::sync::Arc;

use mainspring_api::jsonl::{Authenticate, Names, Reply};
use mainspring_client::Client;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use super::line::{Envelope, Version};
use super::live::Query;
use super::{Shared, told};

/// Which adapter's agent has asked last: a host says how, and not for whom.
#[derive(Default)]
pub(super) struct Logins(Mutex<Option<String>>);

/// Tells the host how the agent of a query can be authenticated.
pub(super) async fn demand(shared: &Shared, query: &Query) {
    *shared.logins.0.lock() = Some(query.adapter.clone());
    required(shared, &query.owner, &query.adapter).await;
}

async fn required(shared: &Shared, owner: &str, adapter: &str) {
    let ask = |client: Client| async move { client.login_list(adapter).await };
    // Without the ways the host still learns that it must be done; the error that follows says the rest.
    let methods = shared.link.ask(owner, ask).await.unwrap_or_else(|error| {
        tracing::warn!(%error, adapter, "the ways to authenticate are not known");
        vec![]
    });
    shared.say(&Reply::AuthRequired { methods: (&methods).into(), auth_url: None }, &Names::default()).await;
}

/// Authenticates the agent that asked for it last, else that of queries that name none.
pub(super) fn hear(
    shared: &Arc<Shared>,
    envelope: Envelope,
    line: Authenticate,
    weight: OwnedSemaphorePermit,
) {
    let shared = shared.clone();
    shared.tasks.clone().spawn(async move {
        let asked = shared.logins.0.lock().clone();
        let named = &shared.options.adapter;
        let adapter = asked.unwrap_or_else(|| shared.options.aliases.get(named).unwrap_or(named).clone());
        let ask = |client: Client| {
            let (adapter, method) = (&adapter, &line.method_id);
            async move { client.login_create(adapter, method).await }
        };
        let (owner, names) = (shared.owner(&envelope), Names::from(&envelope));
        match (shared.link.ask(owner, ask).await, envelope.version) {
            (Ok(()), _) => shared.say(&Reply::AuthSuccess {}, &names).await,
            (Err(error), Version::V2) => {
                let (code, message) = told(&error);
                shared.say(&Reply::error(&code, &message), &names).await;
            }
            // A host of version 1 would take an error for the end of a query.
            (Err(error), Version::V1) => {
                tracing::warn!(%error, adapter, "the agent was not authenticated");
                required(&shared, owner, &adapter).await;
            }
        }
        drop(weight);
    });
}
