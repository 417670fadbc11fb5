//! Tokens of agent processes. A token acts for the attempt that its process serves at the moment: for the owner, the
//! session and the run of that attempt, and for nobody else. Between attempts it is refused.
//!
//! Tokens are kept in memory only: agents end with this process.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use secrecy::zeroize::Zeroizing;

use super::keys::hash;
use super::{Caller, Kernel};
use crate::error::Error;
use crate::ids::Ids;

/// The callers behind the tokens of this process, by the hash of the token; `None` between attempts.
#[derive(Default)]
pub(crate) struct AgentTokens(Mutex<HashMap<[u8; 32], Option<Caller>>>);

/// The token of one agent process. Dropping it revokes it.
pub struct AgentToken {
    secret: Zeroizing<String>,
    tokens: Arc<AgentTokens>,
}

impl AgentToken {
    pub(crate) fn new(tokens: Arc<AgentTokens>, ids: &Ids) -> Self {
        let secret = Zeroizing::new(ids.secret());
        tokens.0.lock().insert(hash(&secret), None);
        Self { secret, tokens }
    }

    /// The secret that the agent gets.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Sets the caller that the token stands for; `None` between attempts.
    pub(crate) fn set_caller(&self, caller: Option<Caller>) {
        self.tokens.0.lock().insert(hash(&self.secret), caller);
    }

    /// Removes the caller of the token, whose process serves no attempt any more.
    pub fn detach(&self) {
        self.set_caller(None);
    }
}

impl Drop for AgentToken {
    fn drop(&mut self) {
        self.tokens.0.lock().remove(&hash(&self.secret));
    }
}

impl Kernel {
    /// The caller that an agent's token identifies; none if there is no such token. Fails between the attempts of the
    /// agent's process.
    pub fn caller_by_agent_token(&self, token: &str) -> Result<Option<Caller>, Error> {
        // Looked up by its hash, so that timing reveals nothing about tokens.
        match self.shared.agent_tokens.0.lock().get(&hash(token)) {
            None => Ok(None),
            Some(None) => Err(Error::NoLiveAttempt),
            Some(Some(caller)) => Ok(Some(caller.clone())),
        }
    }
}
