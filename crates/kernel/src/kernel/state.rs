//! Verbs on state: of a session, a run or an owner.

use mainspring_core::limits::check_state_key;
use mainspring_core::{Expect, MessageId, Point, RunId, Session, StateEntry, StateOutcome};
use serde_json::Value;

use super::{Caller, Kernel, Shared};
use crate::actor::{Command, StateWrite};
use crate::error::Error;
use crate::store::{OwnerState, SessionRef, StateAt, StoreError};

/// Whose state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateOf {
    /// A session's: where its path ends, or as of a message.
    Session(SessionRef, Option<MessageId>),
    /// A run's.
    Run(RunId),
    /// The caller's own, across sessions.
    Owner,
}

impl Kernel {
    /// What a key holds.
    pub async fn state_get(&self, caller: &Caller, of: &StateOf, key: &str) -> Result<StateEntry, Error> {
        check_state_key(key)?;
        let at = self.state_at(caller, of).await?;
        let slot = self.shared.store.state_get(&at, key).await?;
        slot.entry.ok_or_else(|| Error::not_found("state", key))
    }

    /// Entries in the order of their keys, those after `after`.
    pub async fn state_list(
        &self,
        caller: &Caller,
        of: &StateOf,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Vec<StateEntry>, Error> {
        let at = self.state_at(caller, of).await?;
        Ok(self.shared.store.state_page(&at, after, self.page(limit)?).await?)
    }

    /// Sets a key, or removes it, if what is expected is there.
    ///
    /// A session's state is changed where its path ends, while no run acts there; a run's until it has ended.
    pub async fn state_set(
        &self,
        caller: &Caller,
        of: &StateOf,
        key: &str,
        value: Option<Value>,
        expect: Expect,
    ) -> Result<StateOutcome, Error> {
        self.shared.check_state_entry(key, value.as_ref())?;
        let (session, run) = match of {
            StateOf::Owner => {
                caller.check_makes()?;
                return self.shared.owner_state_put(&caller.owner, key, value, expect).await;
            }
            StateOf::Session(_, Some(_)) => {
                return Err(Error::Invalid("state is changed where the path ends, not at a message".into()));
            }
            StateOf::Session(by, None) => (self.session_changed(caller, by).await?.id, None),
            StateOf::Run(run) => (self.run_changed(caller, *run).await?, Some(*run)),
        };
        let write = StateWrite { run, key: key.to_owned(), value, expect };
        self.shared.call(session, |reply| Command::StateWrite(Box::new(write), reply)).await
    }

    /// Where the state is that `of` names, if the caller may see it.
    async fn state_at(&self, caller: &Caller, of: &StateOf) -> Result<StateAt, Error> {
        Ok(match of {
            StateOf::Owner => StateAt::Owner(caller.owner.clone()),
            StateOf::Run(run) => StateAt::Run(self.run_get(caller, *run).await?.id),
            StateOf::Session(by, message) => {
                let session = self.session_get(caller, by).await?;
                let at = match message {
                    Some(message) => Some(self.point_of(&session, *message).await?),
                    None => session.tip,
                };
                StateAt::Session { session: session.id, at }
            }
        })
    }

    /// The place of a message of the session.
    async fn point_of(&self, session: &Session, message: MessageId) -> Result<Point, Error> {
        let found = self.shared.store.message_get(session.id, message).await?;
        let point = found.and_then(|(placed, _)| placed.point);
        point.ok_or_else(|| Error::not_found("message", message))
    }
}

impl Shared {
    /// Refuses a key or a value that does not fit.
    pub(crate) fn check_state_entry(&self, key: &str, value: Option<&Value>) -> Result<(), Error> {
        check_state_key(key)?;
        let (size, limit) =
            (value.map_or(0, |value| value.to_string().len()), self.options.limits.state_value_bytes);
        if size > limit {
            return Err(Error::TooLarge { what: "the value", size, limit });
        }
        Ok(())
    }

    /// Refuses one more key where there are enough.
    pub(crate) async fn check_state_room(&self, at: &StateAt) -> Result<(), Error> {
        let limit = self.options.limits.state_keys;
        if self.store.state_count(at).await? >= limit {
            return Err(Error::TooMany { what: "keys", limit });
        }
        Ok(())
    }

    /// Changes state of an owner.
    pub(crate) async fn owner_state_put(
        &self,
        owner: &str,
        key: &str,
        value: Option<Value>,
        expect: Expect,
    ) -> Result<StateOutcome, Error> {
        let at = StateAt::Owner(owner.to_owned());
        let before = self.store.state_get(&at, key).await?.entry;
        if before.is_none() && value.is_some() {
            self.check_state_room(&at).await?;
        }
        let now = self.clock.now();
        let put = OwnerState { owner: owner.into(), key: key.into(), value: value.clone(), expect, at: now };
        match self.store.state_put(put).await {
            Err(StoreError::Unavailable(why)) => {
                // Whether it was done is not known: what is there now says it.
                let entry = self.store.state_get(&at, key).await?.entry;
                let done = entry != before && entry.as_ref().map(|entry| &entry.value) == value.as_ref();
                match done {
                    true => Ok(StateOutcome { created: before.is_none() && entry.is_some(), entry }),
                    false => Err(Error::Unavailable(why)),
                }
            }
            outcome => Ok(outcome?),
        }
    }
}
