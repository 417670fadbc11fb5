//! Logins: how the runtimes of adapters are authenticated.

use mainspring_core::AuthMethod;

use super::{Caller, Kernel};
use crate::error::Error;

impl Kernel {
    /// The ways to authenticate that an adapter's runtime has named; none before one has been started.
    pub fn login_list(&self, adapter: &str) -> Result<Vec<AuthMethod>, Error> {
        Ok(self.shared.adapter(adapter)?.auth_methods())
    }

    /// Authenticates an adapter's runtime by one of its ways, and waits until that is done: a person may have to do
    /// something elsewhere. It holds for everybody who uses the adapter, so it is an admin's to do.
    pub async fn login_create(&self, caller: &Caller, adapter: &str, method: &str) -> Result<(), Error> {
        caller.check_admin()?;
        let known = self.shared.adapter(adapter)?;
        if !known.capabilities().supports_authentication {
            return Err(Error::Unsupported { adapter: adapter.to_owned(), what: "be authenticated" });
        }
        mainspring_core::limits::check_text("a way to authenticate", method)?;
        let done = known.authenticate(method).await;
        done.map_err(|failure| Error::LoginFailed { adapter: adapter.to_owned(), why: failure.message })
    }
}
