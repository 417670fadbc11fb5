//! Operations on bindings: the ties of a session to runtime-native sessions.

pub use mainspring_api::SessionAdopted;
use mainspring_core::limits::check_native_id;
use mainspring_core::{Binding, RunOptions, SessionId};
use tokio::sync::oneshot;

use super::sessions::OnNameTaken;
use super::{Caller, Kernel, Opening, SessionTarget, Shared};
use crate::actor::{Adoption, BindingChange, Command};
use crate::error::Error;
use crate::folders::check_folder_usable;
use crate::store::{NativeClaim, SessionRef};

/// An existing native session to adopt. If its folder or instructions differ from those of the next run, that run
/// opens another native session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Adopted {
    /// The runtime's id of the native session.
    pub native: String,
    /// The folder the native session was opened in; the session's if not given.
    pub cwd: Option<String>,
    /// The instructions the native session was opened with; the session's if not given.
    pub system_prompt: Option<String>,
}

/// The most sessions that are loaded at once to record that their bindings are stale.
const LOADED_AT_ONCE: usize = 256;

impl Kernel {
    /// Records that the process-local bindings of these sessions ended with their process.
    pub(super) async fn lose_process_local_bindings(&self, sessions: &[SessionId]) -> Result<(), Error> {
        for some in sessions.chunks(LOADED_AT_ONCE) {
            let mut losing = vec![];
            for session in some {
                let was_live = self.shared.is_live(*session);
                let (reply, lost) = oneshot::channel();
                self.shared.dispatch(*session, Command::LoseProcessLocalBindings(reply));
                losing.push((*session, was_live, lost));
            }
            for (session, was_live, lost) in losing {
                match lost.await.unwrap_or_else(|_| Err(Error::session_panicked(session))) {
                    // A session that cannot be loaded does not prevent the start; calls to it report the error.
                    Err(error) if error.is_of_server() => return Err(error),
                    _ => {}
                }
                if !was_live {
                    self.shared.unload_idle(session);
                }
            }
        }
        Ok(())
    }

    /// Lists the bindings of a session, by adapter, newest generation first. `after` pages past the binding of that
    /// adapter and generation.
    pub async fn binding_list(
        &self,
        caller: &Caller,
        session: &SessionRef,
        after: Option<(&str, u32)>,
        limit: Option<usize>,
    ) -> Result<Vec<Binding>, Error> {
        let session = self.session_get(caller, session).await?;
        Ok(self.shared.store.bindings(session.id, None, after, self.page(limit)?).await?)
    }

    /// Binds the session that `target` names to an existing native session, creating the session if there is none. A
    /// session that already has a binding of that adapter stays as it is.
    ///
    /// A new session is created and bound in one commit. Repeating the request changes nothing.
    pub async fn session_adopt(
        &self,
        caller: &Caller,
        target: &SessionTarget,
        adapter: &str,
        adopted: Adopted,
    ) -> Result<SessionAdopted, Error> {
        if let Some(found) = self.session_resolve(caller, target).await? {
            self.session_for_change(caller, &SessionRef::Id(found.id)).await?;
        }
        self.check_adopted(caller, adapter, &adopted).await?;
        let adopts = Some((adapter, &adopted));
        let made =
            self.session_open_or_create(caller, target, "session_adopt", None, OnNameTaken::Open, adopts);
        let (session, opening) = made.await?;
        let refusal = match opening {
            Opening::Created => None,
            _ => match self.binding_adopt(caller, &SessionRef::Id(session.id), adapter, adopted).await {
                Ok(binding) => return Ok(SessionAdopted { session, binding, adopted: true }),
                Err(refusal @ (Error::AlreadyBound { .. } | Error::Busy { .. })) => Some(refusal),
                Err(error) => return Err(error),
            },
        };
        let latest = self.shared.store.bindings(session.id, Some(adapter), None, 1).await?.into_iter().next();
        match (latest, refusal) {
            (Some(binding), refusal) => Ok(SessionAdopted { session, binding, adopted: refusal.is_none() }),
            (None, refusal) => Err(refusal.unwrap_or_else(|| Error::not_found("binding", adapter))),
        }
    }

    /// Invalidates the session's binding of `adapter`. The next run opens a new native session.
    pub async fn binding_invalidate(
        &self,
        caller: &Caller,
        session: &SessionRef,
        adapter: &str,
    ) -> Result<Binding, Error> {
        let session = self.session_for_change(caller, session).await?;
        self.check_binds(adapter)?;
        let change = BindingChange::Invalidate(adapter.to_owned());
        self.shared.call(session.id, |reply| Command::Binding(change, reply)).await
    }

    /// Binds the session to an existing native session, as the first generation. Refused if the session already has a
    /// binding of this adapter.
    pub async fn binding_adopt(
        &self,
        caller: &Caller,
        session: &SessionRef,
        adapter: &str,
        adopted: Adopted,
    ) -> Result<Binding, Error> {
        let session = self.session_for_change(caller, session).await?;
        self.check_adopted(caller, adapter, &adopted).await?;
        Shared::check_listed_defaults(caller.lists.as_deref(), Some(adapter), &RunOptions::default())?;
        self.shared.check_folder(adapter, adopted.cwd.as_deref(), caller.folders.as_deref())?;
        check_folder_usable(adopted.cwd.as_deref())?;
        let change = BindingChange::Adopt(adoption(caller, adapter, adopted));
        self.shared.call(session.id, |reply| Command::Binding(change, reply)).await
    }

    async fn check_adopted(&self, caller: &Caller, adapter: &str, adopted: &Adopted) -> Result<(), Error> {
        self.check_binds(adapter)?;
        check_native_id(&adopted.native)?;
        self.shared.adapter(adapter)?.check_native(&adopted.native).map_err(Error::Invalid)?;
        if is_path(&adopted.native) && caller.check_server_admin().is_err() {
            return Err(Error::Invalid(format!(
                "the native session id {:?} is a path: only an admin without an org adopts a session by its path",
                adopted.native
            )));
        }
        if let Ok(own) = adopted.native.parse::<SessionId>()
            && self.is_known_session(caller, own).await?
        {
            return Err(Error::Invalid(format!("{own} is a session here, not one of the agent's own")));
        }
        let Adopted { cwd, system_prompt, .. } = adopted.clone();
        self.check_options(&RunOptions { cwd, system_prompt, ..RunOptions::default() })
    }

    /// True for a session that the caller may know of. The holder of a key must not learn which sessions others have.
    async fn is_known_session(&self, caller: &Caller, session: SessionId) -> Result<bool, Error> {
        match adoption_claim(caller) {
            NativeClaim::AdoptedAgain => Ok(self.session_get(caller, &SessionRef::Id(session)).await.is_ok()),
            _ => Ok(self.shared.store.session_exists(session).await?),
        }
    }

    /// Refuses an adapter without native sessions.
    fn check_binds(&self, adapter: &str) -> Result<(), Error> {
        self.shared.check_adapter(adapter)?;
        let known = self.shared.adapters.get(adapter);
        if known.is_some_and(|adapter| adapter.capabilities().uses_bindings) {
            return Ok(());
        }
        Err(Error::Unsupported { adapter: adapter.to_owned(), what: "tie a session to one of its own" })
    }
}

/// The adoption that `caller` asks for.
pub(super) fn adoption(caller: &Caller, adapter: &str, adopted: Adopted) -> Adoption {
    Adoption { adapter: adapter.to_owned(), adopted, claim: adoption_claim(caller) }
}

/// Returns which native sessions `caller` may adopt. The operator, and the program that embeds the kernel, may adopt a
/// native session that has no owner. The holder of a key only adopts sessions that agents opened for its owner: an
/// unknown id may be a session that the operator opened without mainspring, and is answered like a session of another
/// owner.
fn adoption_claim(caller: &Caller) -> NativeClaim {
    match caller.is_guest() && caller.check_server_admin().is_err() {
        true => NativeClaim::AdoptedAgain,
        false => NativeClaim::Adopted,
    }
}

/// True for an id that an agent could open as a file: it has a path separator, is `.` or `..`, or begins with `~`.
pub fn is_path(native: &str) -> bool {
    native.contains(['/', '\\']) || native == ".." || native == "." || native.starts_with('~')
}

/// Hash by which the instructions of native sessions are compared.
pub fn instructions_hash(system_prompt: Option<&str>) -> Option<String> {
    system_prompt.map(|text| blake3::hash(text.as_bytes()).to_hex().to_string())
}
