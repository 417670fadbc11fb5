//! Sessions.

use futures_util::Stream;
use mainspring_api::{
    ChangesQuery, ClosedSession, Compacted, Compaction, EventsQuery, KeptForForks, ListedSession,
    OpenedSession, Page, SessionChanges, SessionDetails, SessionListQuery, SessionPatch, SessionTarget,
    SessionUsage, Snapshot,
};
use mainspring_core::{Event, Position, Session};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{Client, if_version, with_json};
use crate::{Error, Events};

impl Client {
    /// Finds and loads the session that `target` names, or creates it. With `new` the key must be free, with `load` the
    /// session must exist. Repeated with the same `idempotency_key`, returns the same session.
    pub async fn session_resolve(
        &self,
        target: &SessionTarget,
        idempotency_key: Option<&str>,
    ) -> Result<OpenedSession, Error> {
        self.post_idempotent(&["v1", "sessions"], target, idempotency_key).await
    }

    /// Reads a session, by id or key.
    pub async fn session_get(&self, session: &str) -> Result<Session, Error> {
        self.get(&["v1", "sessions", session], &()).await
    }

    /// Reads a session with its activity, the step of its active run and its usage.
    pub async fn session_view(&self, session: &str) -> Result<SessionDetails, Error> {
        self.get(&["v1", "sessions", session], &()).await
    }

    /// Lists sessions, the latest activity first.
    pub async fn session_list(&self, query: &SessionListQuery) -> Result<Page<ListedSession>, Error> {
        self.get(&["v1", "sessions"], query).await
    }

    /// Reads a session as it is at one instant.
    pub async fn session_snapshot(&self, session: &str) -> Result<Snapshot, Error> {
        self.get(&["v1", "sessions", session, "snapshot"], &()).await
    }

    /// Sums tokens and cost of all runs of a session, on every branch.
    pub async fn session_usage(&self, session: &str) -> Result<SessionUsage, Error> {
        self.get(&["v1", "sessions", session, "usage"], &()).await
    }

    /// Lists the changes of files that tool calls on the active path have recorded.
    pub async fn session_changes(
        &self,
        session: &str,
        query: &ChangesQuery,
    ) -> Result<SessionChanges, Error> {
        self.get(&["v1", "sessions", session, "changes"], query).await
    }

    /// Changes a session; with `version`, only if that is still the session's version.
    pub async fn session_patch(
        &self,
        session: &str,
        patch: &SessionPatch,
        version: Option<u64>,
    ) -> Result<Session, Error> {
        let request = with_json(self.request(Method::PATCH, &["v1", "sessions", session]), patch)?;
        self.read(self.send(if_version(request, version)).await?).await
    }

    /// Deletes a session. Returns the forks that still read its messages.
    pub async fn session_delete(&self, session: &str) -> Result<KeptForForks, Error> {
        let response = self.send(self.request(Method::DELETE, &["v1", "sessions", session])).await?;
        match response.status() {
            StatusCode::NO_CONTENT => Ok(KeptForForks::default()),
            _ => self.read(response).await,
        }
    }

    /// Unloads an idle session from memory.
    pub async fn session_close(&self, session: &str) -> Result<ClosedSession, Error> {
        self.post(&["v1", "sessions", session, "close"], &json!({})).await
    }

    /// Prunes the events before a position. Messages and the events of unfinished runs stay.
    pub async fn session_compact(&self, session: &str, before: Position) -> Result<Compacted, Error> {
        let body = Compaction { before: before.to_string() };
        self.post(&["v1", "sessions", session, "compact"], &body).await
    }

    /// Exports a session as JSON Lines, chunk by chunk. A file without its last line is incomplete.
    pub async fn session_export(
        &self,
        session: &str,
    ) -> Result<impl Stream<Item = Result<Vec<u8>, Error>> + Send + use<>, Error> {
        let response = self.send(self.request(Method::GET, &["v1", "sessions", session, "export"])).await?;
        Ok(self.body_chunks(response))
    }

    /// Creates a session from an exported file: all of it or nothing.
    pub async fn session_import(&self, file: Vec<u8>) -> Result<Session, Error> {
        let request = self.request(Method::POST, &["v1", "import"]).header(CONTENT_TYPE, "application/jsonl");
        self.read(self.send_unlimited(request.body(file)).await?).await
    }

    /// Reads a page of a session's events.
    pub async fn session_events_page(
        &self,
        session: &str,
        query: &EventsQuery,
    ) -> Result<Page<Event>, Error> {
        self.get(&["v1", "sessions", session, "events"], query).await
    }

    /// Follows a session after `from`, streamed text included.
    pub fn session_events(&self, session: &str, from: Position) -> Events {
        Events::of_session(self.clone(), session, from)
    }
}
