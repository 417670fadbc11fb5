//! Tokens of agents. An agent that is given the control tools gets a token with them instead of the state directory's: it
//! acts for the owner of the session that the agent works for, and for nobody else.
//!
//! Tokens are kept in memory only, one for each session: agents end with this process.

use std::collections::HashMap;

use mainspring_core::{Session, SessionId};
use parking_lot::Mutex;

use super::keys::hash;
use super::{Caller, Kernel};
use crate::ids::Ids;

/// The tokens of the agents of this process.
#[derive(Default)]
pub(crate) struct AgentTokens(Mutex<TokenState>);

#[derive(Default)]
struct TokenState {
    by_session: HashMap<SessionId, String>,
    /// The callers, by the hash of their token.
    callers: HashMap<[u8; 32], Caller>,
}

impl AgentTokens {
    /// Returns the token of the agents that work for `session`.
    pub(crate) fn token_for(&self, session: &Session, ids: &Ids) -> String {
        let TokenState { by_session, callers } = &mut *self.0.lock();
        let token = by_session.entry(session.id).or_insert_with(|| ids.secret()).clone();
        let caller = Caller::new(session.owner.clone());
        callers.insert(hash(&token), Caller { org: session.org.clone(), agent: Some(session.id), ..caller });
        token
    }
}

impl Kernel {
    /// The caller that an agent's token identifies; none if there is no such token.
    pub fn caller_by_agent_token(&self, token: &str) -> Option<Caller> {
        // Looked up by its hash, so that timing reveals nothing about tokens.
        self.shared.agent_tokens.0.lock().callers.get(&hash(token)).cloned()
    }
}
