//! Operations on pins: every reader of a session may pin it for themselves.

use mainspring_core::{Run, Session};

use super::{Caller, Kernel, Shared};
use crate::actor::Command;
use crate::error::Error;
use crate::pins::{MAX_PINS, mark};
use crate::store::{Pin, SessionRef};

impl Kernel {
    /// Pins a session for the caller, or removes the caller's pin. Changes neither the session's version nor its activity.
    pub async fn session_pin(
        &self,
        caller: &Caller,
        by: &SessionRef,
        is_pinned: bool,
    ) -> Result<Session, Error> {
        let session = self.session_get(caller, by).await?;
        caller.check_writes()?;
        let Some(pin) = self.pin_change(caller, &session, is_pinned).await? else { return Ok(session) };
        self.shared.call(session.id, |reply| Command::Session(vec![], None, Some(pin), reply)).await?;
        self.session_get(caller, &SessionRef::Id(session.id)).await
    }

    /// The change of the caller's pins; none if the session is already pinned, or not pinned, as asked.
    pub(super) async fn pin_change(
        &self,
        caller: &Caller,
        session: &Session,
        is_pinned: bool,
    ) -> Result<Option<Box<Pin>>, Error> {
        let pins = self.shared.pins.of(&*self.shared.store, &caller.owner).await?;
        if pins.contains_key(&session.id) == is_pinned {
            return Ok(None);
        }
        if is_pinned && pins.len() >= MAX_PINS {
            return Err(Error::TooMany { what: "pinned sessions", limit: MAX_PINS });
        }
        let at = is_pinned.then(|| self.shared.clock.now());
        Ok(Some(Box::new(Pin { owner: caller.owner.clone(), session: session.id, at })))
    }
}

impl Shared {
    /// Sets in `session` whether the caller has pinned it.
    pub(super) async fn marked(&self, caller: &Caller, mut session: Session) -> Result<Session, Error> {
        let pins = self.pins.of(&*self.store, &caller.owner).await?;
        mark(&mut session, &pins);
        Ok(session)
    }

    /// Sets in each listed session whether the caller has pinned it.
    pub(super) async fn mark_listed(
        &self,
        caller: &Caller,
        listed: &mut [(Session, Option<Run>)],
    ) -> Result<(), Error> {
        let pins = self.pins.of(&*self.store, &caller.owner).await?;
        listed.iter_mut().for_each(|(session, _)| mark(session, &pins));
        Ok(())
    }
}
