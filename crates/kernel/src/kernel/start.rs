//! Starting a session: a new one, or an existing one.
//!
//! | field | new | load |
//! |---|---|---|
//! | model, model profile | as given | as stored if still configured, else as given |
//! | system prompt, model options, folder | as given | as given, else as stored |
//! | title, messages | title as given, no messages | as stored |
//! | tools | with each prompt | as stored, and with each prompt |
//!
//! Loading writes nothing: the resulting options are sent with each prompt.

use mainspring_core::{RunOptions, Session};

use super::sessions::OnNameTaken;
use super::{Caller, Kernel, NewSession, Opening, SessionTarget};
use crate::error::Error;
use crate::store::SessionRef;

/// A request to start a session.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SessionStart {
    /// Make a new session, with this key or without one.
    pub new: Option<Option<String>>,
    /// Load this session. With neither `new` nor `load`, a new session is made.
    pub load: Option<SessionRef>,
    /// Settings of a new session. For a loaded one, only the settings used by its runs apply.
    pub like: NewSession,
    /// True to refuse the start if no model is given or stored.
    pub model_required: bool,
    /// True if the request has initial messages. They are refused for a new session and ignored for a loaded one:
    /// messages enter only through the tree.
    pub messages: bool,
}

/// A session that was started.
#[derive(Debug, Clone, PartialEq)]
pub struct Started {
    /// The session.
    pub session: Session,
    /// Whether the session was made, loaded, or in memory before.
    pub opening: Opening,
    /// The options to send with each prompt.
    pub options: RunOptions,
}

impl Started {
    /// True if the session was made by this request.
    pub fn is_new(&self) -> bool {
        self.opening == Opening::Created
    }
}

impl Kernel {
    /// Returns the defaults of a session's runs, without a model that is not configured any more.
    fn usable_defaults(&self, session: &Session) -> RunOptions {
        let defaults = session.run_defaults();
        let (model, model_profile) = (defaults.model.clone(), defaults.model_profile.clone());
        let choice = RunOptions { model, model_profile, ..RunOptions::default() };
        let runtime = &self.shared.options.agents;
        let is_usable = runtime.check_options(&session.adapter, &choice).is_ok()
            && self.shared.check_profile(&session.adapter, choice.model_profile.as_deref()).is_ok();
        match is_usable {
            true => defaults,
            false => RunOptions { model: None, model_profile: None, ..defaults },
        }
    }

    /// Starts a session: makes one whose name must be free, or loads one that must exist.
    pub async fn session_start(
        &self,
        caller: &Caller,
        start: SessionStart,
        idempotency_key: Option<&str>,
    ) -> Result<Started, Error> {
        let given = start.like.run_defaults();
        let check_model = |options: &RunOptions| match start.model_required && !options.has_model() {
            true => Err(Error::NoModel),
            false => Ok(()),
        };
        match (start.new, start.load) {
            (Some(_), Some(_)) => Err(Error::AmbiguousMode),
            (None, Some(by)) => {
                self.check_options(&given)?;
                let session = self.session_get(caller, &by).await?;
                let options = given.resumed(&self.usable_defaults(&session));
                check_model(&options)?;
                let (session, opening) = self.session_load(caller, session.id).await?;
                Ok(Started { session, opening, options })
            }
            (_, None) if start.messages => Err(Error::InitialMessages),
            (new, None) => {
                check_model(&given)?;
                let target =
                    SessionTarget { key: new.flatten(), new: start.like, ..SessionTarget::default() };
                let made = self.session_open_or_create(
                    caller,
                    &target,
                    "session_start",
                    idempotency_key,
                    OnNameTaken::Refuse,
                    None,
                );
                let (session, opening) = made.await?;
                Ok(Started { options: session.run_defaults(), session, opening })
            }
        }
    }
}
