//! Logins: authentication of adapter runtimes.

use mainspring_core::AuthMethod;

use super::{Caller, Kernel};
use crate::error::Error;

impl Kernel {
    /// Lists the authentication methods of an adapter's runtime; none before a runtime was started.
    pub fn login_list(&self, adapter: &str) -> Result<Vec<AuthMethod>, Error> {
        Ok(self.shared.adapter(adapter)?.auth_methods())
    }

    /// Authenticates an adapter's runtime by one of its methods, and waits for the result: a person may have to act
    /// elsewhere. Requires an admin, since the login applies to every user of the adapter.
    pub async fn login_create(&self, caller: &Caller, adapter: &str, method: &str) -> Result<(), Error> {
        caller.check_admin()?;
        let known = self.shared.adapter(adapter)?;
        if !known.capabilities().supports_authentication {
            return Err(Error::Unsupported { adapter: adapter.to_owned(), what: "be authenticated" });
        }
        mainspring_core::limits::check_text("an authentication method", method)?;
        let done = known.authenticate(method).await;
        done.map_err(|failure| Error::LoginFailed { adapter: adapter.to_owned(), why: failure.message })
    }
}
