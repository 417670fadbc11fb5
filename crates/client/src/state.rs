//! State as Rust values.

use std::collections::BTreeMap;

use mainspring_api::{Page, StateListQuery, StateQuery};
use mainspring_core::{Expect, RunId, StateEntry};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Client, Error};

/// The state of a session, a run or the caller's owner, with values of Rust types.
#[derive(Clone)]
pub struct State<'a> {
    client: &'a Client,
    of: Of<'a>,
}

#[derive(Clone)]
enum Of<'a> {
    Session(&'a str),
    Run(RunId),
    Owner,
}

impl<'a> State<'a> {
    /// Selects the state of a session at the end of its path. `session` is its id or key.
    pub fn of_session(client: &'a Client, session: &'a str) -> Self {
        Self { client, of: Of::Session(session) }
    }

    /// Selects the state of a run.
    pub fn of_run(client: &'a Client, run: RunId) -> Self {
        Self { client, of: Of::Run(run) }
    }

    /// Selects the state of the caller's owner, which all its sessions share.
    pub fn of_owner(client: &'a Client) -> Self {
        Self { client, of: Of::Owner }
    }

    /// Returns the value of a key; `None` if the key is absent.
    pub async fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Error> {
        Ok(self.get_versioned(key).await?.map(|(value, _)| value))
    }

    /// Returns the value of a key with its version, for [`Self::set_if`].
    pub async fn get_versioned<T: DeserializeOwned>(&self, key: &str) -> Result<Option<(T, u64)>, Error> {
        let Some(entry) = self.entry(key).await? else { return Ok(None) };
        Ok(Some((read(key, entry.value)?, entry.version)))
    }

    /// Sets a key and returns its version.
    pub async fn set(&self, key: &str, value: &impl Serialize) -> Result<u64, Error> {
        self.set_if(key, value, Expect::Any).await
    }

    /// Sets a key if its present entry is as expected, and returns its version.
    pub async fn set_if(&self, key: &str, value: &impl Serialize, expect: Expect) -> Result<u64, Error> {
        let value = serde_json::to_value(value)
            .map_err(|error| Error::Invalid(format!("the value of {key:?} is no JSON: {error}")))?;
        let entry = match &self.of {
            Of::Session(session) => self.client.session_state_set(session, key, &value, expect).await,
            Of::Run(run) => self.client.run_state_set(*run, key, &value, expect).await,
            Of::Owner => self.client.owner_state_set(key, &value, expect).await,
        };
        Ok(entry?.version)
    }

    /// True if the key has a value.
    pub async fn has(&self, key: &str) -> Result<bool, Error> {
        Ok(self.entry(key).await?.is_some())
    }

    /// Removes a key. An absent key is not an error.
    pub async fn delete(&self, key: &str) -> Result<(), Error> {
        self.delete_if(key, Expect::Any).await
    }

    /// Removes a key if its present entry is as expected.
    pub async fn delete_if(&self, key: &str, expect: Expect) -> Result<(), Error> {
        match &self.of {
            Of::Session(session) => self.client.session_state_delete(session, key, expect).await,
            Of::Run(run) => self.client.run_state_delete(*run, key, expect).await,
            Of::Owner => self.client.owner_state_delete(key, expect).await,
        }
    }

    /// Returns all entries by key.
    pub async fn all<T: DeserializeOwned>(&self) -> Result<BTreeMap<String, T>, Error> {
        let mut all = BTreeMap::new();
        let mut query = StateListQuery::default();
        loop {
            let page = self.page(&query).await?;
            for entry in page.items {
                let value = read(&entry.key, entry.value)?;
                all.insert(entry.key, value);
            }
            match page.next {
                Some(next) => query.after = Some(next),
                None => return Ok(all),
            }
        }
    }

    async fn entry(&self, key: &str) -> Result<Option<StateEntry>, Error> {
        let entry = match &self.of {
            Of::Session(session) => self.client.session_state_get(session, key, &StateQuery::default()).await,
            Of::Run(run) => self.client.run_state_get(*run, key).await,
            Of::Owner => self.client.owner_state_get(key).await,
        };
        match entry {
            Err(error) if error.is_not_found() => match self.page(&StateListQuery::default()).await {
                // The key is absent. An unknown session or run is an error.
                Ok(_) => Ok(None),
                Err(unknown) => Err(unknown),
            },
            entry => entry.map(Some),
        }
    }

    async fn page(&self, query: &StateListQuery) -> Result<Page<StateEntry>, Error> {
        match &self.of {
            Of::Session(session) => self.client.session_state_list(session, query).await,
            Of::Run(run) => self.client.run_state_list(*run, query).await,
            Of::Owner => self.client.owner_state_list(query).await,
        }
    }
}

fn read<T: DeserializeOwned>(key: &str, value: Value) -> Result<T, Error> {
    serde_json::from_value(value)
        .map_err(|error| Error::Invalid(format!("the value of {key:?} has another type: {error}")))
}
