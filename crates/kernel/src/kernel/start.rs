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

use super::sessions::check_target;
use super::{Caller, Kernel, NewSession, SessionTarget, session_ref};
use crate::actor::Command;
use crate::error::Error;
use crate::store::{Request, SessionRef, StoreError, Unique};

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
    /// True when it was made.
    pub made: bool,
    /// What its prompts are to be sent with.
    pub options: RunOptions,
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
                Ok(Started { session, made: false, options })
            }
            (_, None) if start.messages => Err(Error::InitialMessages),
            (new, None) => {
                needs(&given)?;
                let target =
                    SessionTarget { key: new.flatten(), new: start.like, ..SessionTarget::default() };
                let (session, made) = self.session_make(caller, &target, idempotency_key).await?;
                Ok(Started { options: session.run_defaults(), session, made })
            }
        }
    }

    /// A new session, whose key must be free. Says whether it was made: the same request under the same idempotency
    /// key gives the session it made.
    async fn session_make(
        &self,
        caller: &Caller,
        target: &SessionTarget,
        idempotency_key: Option<&str>,
    ) -> Result<(Session, bool), Error> {
        check_target(self, caller, target)?;
        let asked =
            idempotency_key.map(|key| self.request_of(caller, "session_start", key, target)).transpose()?;
        loop {
            if let Some(asked) = &asked
                && let Some(answer) = self.request_known(asked).await?
            {
                return Ok((self.session_get(caller, &session_ref(&answer)?).await?, false));
            }
            caller.check_makes()?;
            let taken =
                || Error::AlreadyExists { name: format!("{:?}", target.key.as_deref().unwrap_or_default()) };
            if self.session_named(caller, target).await?.is_some() {
                return Err(taken());
            }
            let session = self.session_new(caller, target);
            let id = session.id;
            let request = asked.clone().map(|asked| Box::new(Request { answer: id.to_string(), ..asked }));
            self.shared.birth(session).await?;
            match self.shared.call(id, |reply| Command::Create(request, reply)).await? {
                Ok(session) => return Ok((session, true)),
                Err(StoreError::Conflict(Unique::RequestKey)) => {}
                Err(StoreError::Conflict(Unique::SessionName)) => return Err(taken()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
