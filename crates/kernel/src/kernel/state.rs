//! Operations on the state of a session, a run or an owner.

use mainspring_core::limits::check_state_key;
use mainspring_core::{
    Expect, MessageId, Point, Rows, RunId, Session, StateChange, StateEntry, StateOutcome, StateWriter,
};
use serde_json::Value;

use super::{Caller, Kernel, Shared};
use crate::actor::{Command, StateWrite};
use crate::error::Error;
use crate::store::{OwnerState, SessionRef, StateAt, StateHistoryOf};

/// Selects a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateOf {
    /// State of a session, at the tip or as of a message.
    Session(SessionRef, Option<MessageId>),
    /// State of a run.
    Run(RunId),
    /// State of the caller's owner, across sessions.
    Owner,
}

impl Kernel {
    /// Gets the entry of a key.
    pub async fn state_get(&self, caller: &Caller, of: &StateOf, key: &str) -> Result<StateEntry, Error> {
        check_state_key(key)?;
        let at = self.state_at(caller, of).await?;
        let slot = self.shared.store.state_get(&at, key).await?;
        slot.entry.ok_or_else(|| Error::not_found("state", key))
    }

    /// Lists entries by key. `after` pages past that key.
    pub async fn state_list(
        &self,
        caller: &Caller,
        of: &StateOf,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Rows<StateEntry>, Error> {
        let at = self.state_at(caller, of).await?;
        Ok(self.shared.store.state_page(&at, after, self.page(limit)?).await?)
    }

    /// Sets a key, or removes it if `value` is none, provided that the present entry is as expected.
    ///
    /// State of a session is changed at the tip, while no run is active; state of a run until the run has ended.
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
                caller.check_writes()?;
                let by = caller.state_writer();
                return self.shared.owner_state_put(&caller.owner, key, value, expect, by).await;
            }
            StateOf::Session(_, Some(_)) => {
                return Err(Error::Invalid("state is changed where the path ends, not at a message".into()));
            }
            StateOf::Session(by, None) => (self.session_for_change(caller, by).await?.id, None),
            StateOf::Run(run) => (self.run_for_change(caller, *run).await?, Some(*run)),
        };
        let write = StateWrite { run, key: key.to_owned(), value, expect, by: caller.state_writer() };
        self.shared.call(session, |reply| Command::StateWrite(Box::new(write), reply)).await
    }

    /// Lists the changes of a key that are kept, newest first; with `before`, only those of earlier versions. The history
    /// of a session's key covers all branches, and begins with the session: a fork has a history of its own.
    pub async fn state_history(
        &self,
        caller: &Caller,
        of: &StateOf,
        key: &str,
        before: Option<u64>,
        limit: Option<usize>,
    ) -> Result<Rows<StateChange>, Error> {
        check_state_key(key)?;
        let of = match of {
            StateOf::Owner => StateHistoryOf::Owner(caller.owner.clone()),
            StateOf::Run(run) => StateHistoryOf::Run(self.run_readable(caller, *run).await?.id),
            StateOf::Session(by, _) => StateHistoryOf::Session(self.session_get(caller, by).await?.id),
        };
        Ok(self.shared.store.state_history(&of, key, before, self.page(limit)?).await?)
    }

    /// Resolves `of` to a place in the store, if the caller may read it.
    async fn state_at(&self, caller: &Caller, of: &StateOf) -> Result<StateAt, Error> {
        Ok(match of {
            StateOf::Owner => StateAt::Owner(caller.owner.clone()),
            StateOf::Run(run) => StateAt::Run(self.run_readable(caller, *run).await?.id),
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

    /// The point of a message in the session's tree.
    async fn point_of(&self, session: &Session, message: MessageId) -> Result<Point, Error> {
        let found = self.shared.store.message_get(session.id, message).await?;
        let point = found.and_then(|(placed, _)| placed.point);
        point.ok_or_else(|| Error::not_found("message", message))
    }
}

impl Shared {
    /// Refuses an invalid key or a value that is too large.
    pub(crate) fn check_state_entry(&self, key: &str, value: Option<&Value>) -> Result<(), Error> {
        check_state_key(key)?;
        let (size, limit) =
            (value.map_or(0, |value| value.to_string().len()), self.options.limits.state_value_bytes);
        if size > limit {
            return Err(Error::TooLarge { what: "the value", size, limit });
        }
        Ok(())
    }

    /// Refuses a new key if the limit on keys is reached. Returns the number of keys: `known`, else they are counted.
    pub(crate) async fn check_state_room(&self, at: &StateAt, known: Option<usize>) -> Result<usize, Error> {
        let limit = self.options.limits.state_keys;
        let count = match known {
            Some(count) => count,
            None => self.store.state_count(at).await?,
        };
        if count >= limit {
            return Err(Error::TooMany { what: "keys", limit });
        }
        Ok(count)
    }

    /// Sets or removes a key of an owner's state.
    pub(crate) async fn owner_state_put(
        &self,
        owner: &str,
        key: &str,
        value: Option<Value>,
        expect: Expect,
        by: StateWriter,
    ) -> Result<StateOutcome, Error> {
        let at = StateAt::Owner(owner.to_owned());
        let before = self.store.state_get(&at, key).await?.entry;
        if before.is_none() && value.is_some() {
            self.check_state_room(&at, None).await?;
        }
        let now = self.clock.now();
        let (owner, key, stored) = (owner.into(), key.into(), value.clone());
        let put = OwnerState { owner, key, value: stored, expect, at: now, by };
        let key = put.key.clone();
        match self.store.state_put(put).await {
            Err(error) if error.is_outcome_unknown() => {
                // The outcome is unknown: compare with what is stored now.
                let entry = self.store.state_get(&at, &key).await?.entry;
                let done = entry != before && entry.as_ref().map(|entry| &entry.value) == value.as_ref();
                match done {
                    true => Ok(StateOutcome { created: before.is_none() && entry.is_some(), entry }),
                    false => Err(error.into()),
                }
            }
            outcome => Ok(outcome?),
        }
    }
}
