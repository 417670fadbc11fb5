//! State of sessions, runs and owners: the same five operations for each.

use mainspring_api::{Page, StateHistoryQuery, StateListQuery, StateQuery};
use mainspring_core::{Expect, RunId, StateChange, StateEntry};
use reqwest::header::{IF_MATCH, IF_NONE_MATCH};
use reqwest::{Method, RequestBuilder};
use serde_json::Value;

use super::{Client, if_version, with_json};
use crate::Error;

impl Client {
    /// Lists the state of a session, by key.
    pub async fn session_state_list(
        &self,
        session: &str,
        query: &StateListQuery,
    ) -> Result<Page<StateEntry>, Error> {
        self.get(&["v1", "sessions", session, "state"], query).await
    }

    /// Reads one entry of a session's state.
    pub async fn session_state_get(
        &self,
        session: &str,
        key: &str,
        query: &StateQuery,
    ) -> Result<StateEntry, Error> {
        self.get(&["v1", "sessions", session, "state", key], query).await
    }

    /// Sets one entry of a session's state.
    pub async fn session_state_set(
        &self,
        session: &str,
        key: &str,
        value: &Value,
        expect: Expect,
    ) -> Result<StateEntry, Error> {
        self.state_set(&["v1", "sessions", session, "state", key], value, expect).await
    }

    /// Removes one entry of a session's state.
    pub async fn session_state_delete(&self, session: &str, key: &str, expect: Expect) -> Result<(), Error> {
        self.state_delete(&["v1", "sessions", session, "state", key], expect).await
    }

    /// Lists the state of a run, by key.
    pub async fn run_state_list(
        &self,
        run: RunId,
        query: &StateListQuery,
    ) -> Result<Page<StateEntry>, Error> {
        self.get(&["v1", "runs", &run.to_string(), "state"], query).await
    }

    /// Reads one entry of a run's state.
    pub async fn run_state_get(&self, run: RunId, key: &str) -> Result<StateEntry, Error> {
        self.get(&["v1", "runs", &run.to_string(), "state", key], &()).await
    }

    /// Sets one entry of a run's state.
    pub async fn run_state_set(
        &self,
        run: RunId,
        key: &str,
        value: &Value,
        expect: Expect,
    ) -> Result<StateEntry, Error> {
        self.state_set(&["v1", "runs", &run.to_string(), "state", key], value, expect).await
    }

    /// Removes one entry of a run's state.
    pub async fn run_state_delete(&self, run: RunId, key: &str, expect: Expect) -> Result<(), Error> {
        self.state_delete(&["v1", "runs", &run.to_string(), "state", key], expect).await
    }

    /// Lists the caller's own state, by key.
    pub async fn owner_state_list(&self, query: &StateListQuery) -> Result<Page<StateEntry>, Error> {
        self.get(&["v1", "state"], query).await
    }

    /// Reads one entry of the caller's own state.
    pub async fn owner_state_get(&self, key: &str) -> Result<StateEntry, Error> {
        self.get(&["v1", "state", key], &()).await
    }

    /// Sets one entry of the caller's own state.
    pub async fn owner_state_set(
        &self,
        key: &str,
        value: &Value,
        expect: Expect,
    ) -> Result<StateEntry, Error> {
        self.state_set(&["v1", "state", key], value, expect).await
    }

    /// Removes one entry of the caller's own state.
    pub async fn owner_state_delete(&self, key: &str, expect: Expect) -> Result<(), Error> {
        self.state_delete(&["v1", "state", key], expect).await
    }

    /// Lists the last changes of an entry of a session's state, newest first.
    pub async fn session_state_history(
        &self,
        session: &str,
        key: &str,
        query: &StateHistoryQuery,
    ) -> Result<Page<StateChange>, Error> {
        self.get(&["v1", "sessions", session, "state", key, "history"], query).await
    }

    /// Lists the last changes of an entry of a run's state, newest first.
    pub async fn run_state_history(
        &self,
        run: RunId,
        key: &str,
        query: &StateHistoryQuery,
    ) -> Result<Page<StateChange>, Error> {
        self.get(&["v1", "runs", &run.to_string(), "state", key, "history"], query).await
    }

    /// Lists the last changes of an entry of the caller's own state, newest first.
    pub async fn owner_state_history(
        &self,
        key: &str,
        query: &StateHistoryQuery,
    ) -> Result<Page<StateChange>, Error> {
        self.get(&["v1", "state", key, "history"], query).await
    }

    async fn state_set(&self, path: &[&str], value: &Value, expect: Expect) -> Result<StateEntry, Error> {
        let request = with_json(self.request(Method::PUT, path), value)?;
        self.read(self.send(conditional(request, expect)).await?).await
    }

    async fn state_delete(&self, path: &[&str], expect: Expect) -> Result<(), Error> {
        self.send(conditional(self.request(Method::DELETE, path), expect)).await.map(drop)
    }
}

fn conditional(request: RequestBuilder, expect: Expect) -> RequestBuilder {
    match expect {
        Expect::Any => request,
        Expect::Present => request.header(IF_MATCH, "*"),
        Expect::Absent => request.header(IF_NONE_MATCH, "*"),
        Expect::Version(version) => if_version(request, Some(version)),
    }
}
