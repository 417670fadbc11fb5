//! `auth_required` and `authenticate`: an agent requires a login, and the user completes it.

use std::sync::Arc;

use mainspring_api::jsonl::{Authenticate, LineIds, Reply};
use mainspring_client::Client;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use super::line::{Envelope, Version};
use super::live::Query;
use super::{Shared, code_and_message};

/// The adapter that last required a login: `authenticate` names a method but no adapter.
#[derive(Default)]
pub(super) struct Logins(Mutex<Option<String>>);

/// Sends `auth_required` with the login methods of a query's adapter.
pub(super) async fn require(shared: &Shared, query: &Query) {
    *shared.logins.0.lock() = Some(query.adapter.clone());
    send_auth_required(shared, &query.owner, &query.adapter, &query.line_ids(None)).await;
}

async fn send_auth_required(shared: &Shared, owner: &str, adapter: &str, line_ids: &LineIds) {
    let ask = |client: Client| async move { client.login_list(adapter).await };
    // The host must learn that a login is required even if the methods are unknown; an error follows anyway.
    let methods = shared.link.ask(owner, ask).await.unwrap_or_else(|error| {
        tracing::warn!(%error, adapter, "login methods are not available");
        vec![]
    });
    shared.reply(&Reply::AuthRequired { methods: (&methods).into(), auth_url: None }, line_ids).await;
}

/// Authenticates the adapter that last required a login, else the default adapter.
pub(super) fn handle(
    shared: &Arc<Shared>,
    envelope: Envelope,
    line: Authenticate,
    permit: OwnedSemaphorePermit,
) {
    let shared = shared.clone();
    shared.tasks.clone().spawn(async move {
        let required = shared.logins.0.lock().clone();
        let default = &shared.options.adapter;
        let adapter =
            required.unwrap_or_else(|| shared.options.aliases.get(default).unwrap_or(default).clone());
        let ask = |client: Client| {
            let (adapter, method) = (&adapter, &line.method_id);
            async move { client.login_create(adapter, method).await }
        };
        let (owner, line_ids) = (shared.owner(&envelope), LineIds::from(&envelope));
        match (shared.link.ask(owner, ask).await, envelope.version) {
            (Ok(()), _) => shared.reply(&Reply::AuthSuccess {}, &line_ids).await,
            (Err(error), Version::V2) => {
                let (code, message) = code_and_message(&error);
                shared.reply(&Reply::error(&code, &message), &line_ids).await;
            }
            // A version 1 host would take an error for the end of a query.
            (Err(error), Version::V1) => {
                tracing::warn!(%error, adapter, "login failed");
                send_auth_required(&shared, owner, &adapter, &LineIds::default()).await;
            }
        }
        drop(permit);
    });
}
