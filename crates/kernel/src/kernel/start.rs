//! Starting a session: a new one, or one that exists, under rules that say whose word counts.
//!
//! | field | new | load |
//! |---|---|---|
//! | model, model profile | as given | what is stored, else as given |
//! | system prompt, model options, folder | as given | as given, else what is stored |
//! | title, messages | title as given, no messages | what is stored |
//! | tools | with each prompt | with each prompt |
//!
//! Loading writes nothing: what it works out goes along with the prompts, as their options.

use mainspring_core::{RunOptions, Session};

use super::sessions::Taken;
use super::{Caller, Kernel, NewSession, Opening, SessionTarget};
use crate::error::Error;
use crate::store::SessionRef;

/// How a session is started.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SessionStart {
    /// Make a new one: under this key, or under none.
    pub new: Option<Option<String>>,
    /// Take up the one that this names. Without either a new one is made.
    pub load: Option<SessionRef>,
    /// What a new one is like. Of one that is loaded, only what its runs use matters.
    pub like: NewSession,
    /// True when whoever starts it cannot do without a model.
    pub model_required: bool,
    /// True when messages were given to begin with: the tree is the only way in for messages.
    pub messages: bool,
}

/// A session that was started.
#[derive(Debug, Clone, PartialEq)]
pub struct Started {
    /// The session.
    pub session: Session,
    /// How it came into memory.
    pub opening: Opening,
    /// What its prompts are to be sent with.
    pub options: RunOptions,
}

impl Started {
    /// True when it was made.
    pub fn is_new(&self) -> bool {
        self.opening == Opening::Created
    }
}

impl Kernel {
    /// Starts a session: makes one whose name must be free, or loads one that must be there.
    pub async fn session_start(
        &self,
        caller: &Caller,
        start: SessionStart,
        idempotency_key: Option<&str>,
    ) -> Result<Started, Error> {
        let given = start.like.run_defaults();
        let needs = |options: &RunOptions| match start.model_required && !options.has_model() {
            true => Err(Error::NoModel),
            false => Ok(()),
        };
        match (start.new, start.load) {
            (Some(_), Some(_)) => Err(Error::AmbiguousMode),
            (None, Some(by)) => {
                self.check_options(&given)?;
                let session = self.session_get(caller, &by).await?;
                let options = given.resumed(&session.run_defaults());
                needs(&options)?;
                let (session, opening) = self.shared.open(session.id).await?;
                Ok(Started { session, opening, options })
            }
            (_, None) if start.messages => Err(Error::InitialMessages),
            (new, None) => {
                needs(&given)?;
                let target =
                    SessionTarget { key: new.flatten(), new: start.like, ..SessionTarget::default() };
                let made = self.session_made(
                    caller,
                    &target,
                    "session_start",
                    idempotency_key,
                    Taken::Refused,
                    None,
                );
                let (session, opening) = made.await?;
                Ok(Started { options: session.run_defaults(), session, opening })
            }
        }
    }
}
