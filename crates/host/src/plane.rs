//! The operations of the control tools over a link: each is a request to the current server.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_api::control::{ControlError, ControlPlane};
use mainspring_api::{
    CancelOutcome, Delegate, Delegated, DelegationView, ListedSession, Page, Prompt, RunDelegations,
};
use mainspring_client::{ArtifactListQuery, Client, Error, EventsQuery, Item, SessionListQuery};
use mainspring_core::{
    Artifact, ArtifactId, Attempt, AttemptId, Binding, DelegationId, Event, Message, MessageId, Position,
    Rows, Run, RunId, Session, SessionId, SessionStatus, Time,
};
use mainspring_system::clock::Clock;

use crate::link::Link;

/// The time until a refused stream is asked for again.
const RETRY_DELAY_MS: u64 = 100;

/// The operations of the control tools for one owner, over a link.
pub struct LinkPlane<'a> {
    link: &'a Link,
    owner: &'a str,
}

impl<'a> LinkPlane<'a> {
    /// Acts for `owner`.
    pub fn new(link: &'a Link, owner: &'a str) -> Self {
        Self { link, owner }
    }

    async fn ask<T, F>(&self, ask: impl Fn(Client) -> F) -> Result<T, ControlError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.link.ask(self.owner, ask).await.map_err(|error| control_error(&error))
    }
}

fn control_error(error: &Error) -> ControlError {
    ControlError::new(error.code().to_owned(), error.to_string())
}

/// Selects the first artifacts that are older than `before`.
fn artifact_query(before: Option<(Time, ArtifactId)>) -> ArtifactListQuery {
    ArtifactListQuery { limit: None, before: before.map(|(at, id)| format!("{}.{id}", at.0)) }
}

#[async_trait]
impl ControlPlane for LinkPlane<'_> {
    fn owner(&self) -> &str {
        self.owner
    }

    async fn session_list(
        &self,
        status: Option<SessionStatus>,
        surface_kind: Option<&str>,
        before: Option<(Time, SessionId)>,
        limit: usize,
    ) -> Result<Rows<ListedSession>, ControlError> {
        let query = &SessionListQuery {
            status,
            surface_kind: surface_kind.map(str::to_owned),
            limit: Some(limit),
            before: before.map(|(at, id)| format!("{}.{id}", at.0)),
            ..SessionListQuery::default()
        };
        Ok(self.ask(|client| async move { client.session_list(query).await }).await?.rows())
    }

    async fn session_get(&self, session: SessionId) -> Result<Session, ControlError> {
        self.ask(|client| async move { client.session_get(&session.to_string()).await }).await
    }

    async fn session_active_run(&self, session: SessionId) -> Result<Option<Run>, ControlError> {
        let snapshot = self.ask(|client| async move { client.session_snapshot(&session.to_string()).await });
        Ok(snapshot.await?.active_run)
    }

    async fn session_message(
        &self,
        session: SessionId,
        message: MessageId,
    ) -> Result<Arc<Message>, ControlError> {
        let found =
            self.ask(|client| async move { client.session_message(&session.to_string(), message).await });
        Ok(found.await?.node.message)
    }

    async fn session_bindings(&self, session: SessionId) -> Result<Vec<Binding>, ControlError> {
        self.ask(|client| async move { client.binding_list(&session.to_string()).await }).await
    }

    async fn session_artifacts(
        &self,
        session: SessionId,
        before: Option<(Time, ArtifactId)>,
    ) -> Result<Page<Artifact>, ControlError> {
        let query = &artifact_query(before);
        self.ask(|client| async move { client.session_artifacts(&session.to_string(), query).await }).await
    }

    async fn run_create(&self, prompt: &Prompt) -> Result<Run, ControlError> {
        Ok(self.ask(|client| async move { client.run_create(prompt).await }).await?.run)
    }

    async fn run_get(&self, run: RunId) -> Result<Run, ControlError> {
        self.ask(|client| async move { client.run_get(run).await }).await
    }

    async fn run_ended(&self, run: RunId) -> Result<Run, ControlError> {
        loop {
            let (client, server_no) = self.link.client(self.owner);
            let mut events = client.run_events(run, None).give_up_after(1);
            loop {
                match events.next().await {
                    None => return self.run_get(run).await,
                    Some(Ok(Item::Reset(_))) => {}
                    Some(Ok(_)) => continue,
                    Some(Err(error)) if error.is_not_responding() => continue,
                    Some(Err(error)) if error.is_gone() && self.link.renewed(server_no).await => break,
                    // The server may have no stream left, but answers requests.
                    Some(Err(error)) if error.is_retryable() && !error.is_gone() => {
                        Clock::system().sleep_for(RETRY_DELAY_MS).await;
                    }
                    Some(Err(error)) => return Err(control_error(&error)),
                }
                // The event that ended the run may have been pruned or missed.
                let now = self.run_get(run).await?;
                if now.state.status().is_ended() {
                    return Ok(now);
                }
            }
        }
    }

    async fn run_cancel(&self, run: RunId) -> Result<CancelOutcome, ControlError> {
        self.ask(|client| async move { client.run_cancel(run).await }).await
    }

    async fn run_attempts(&self, run: RunId) -> Result<Rows<Attempt>, ControlError> {
        self.ask(|client| async move { client.run_attempts(run).await }).await
    }

    async fn attempt_get(&self, attempt: AttemptId) -> Result<Attempt, ControlError> {
        self.ask(|client| async move { client.attempt_get(attempt).await }).await
    }

    async fn run_artifacts(
        &self,
        run: RunId,
        before: Option<(Time, ArtifactId)>,
    ) -> Result<Page<Artifact>, ControlError> {
        let query = &artifact_query(before);
        self.ask(|client| async move { client.run_artifacts(run, query).await }).await
    }

    async fn run_events(&self, run: RunId, after: Position) -> Result<Page<Event>, ControlError> {
        let query = &EventsQuery::after(after, None);
        self.ask(|client| async move { client.run_events_page(run, query).await }).await
    }

    async fn run_delegate(&self, run: RunId, work: &Delegate) -> Result<Delegated, ControlError> {
        self.ask(|client| async move { client.run_delegate(run, work).await }).await
    }

    async fn run_delegations(&self, run: RunId) -> Result<RunDelegations, ControlError> {
        self.ask(|client| async move { client.run_delegations(run).await }).await
    }

    async fn delegation_get(&self, delegation: DelegationId) -> Result<DelegationView, ControlError> {
        self.ask(|client| async move { client.delegation_get(delegation).await }).await
    }
}
