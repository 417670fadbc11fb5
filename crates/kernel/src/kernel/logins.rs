//! Logins: authentication of adapter runtimes.

use mainspring_core::AuthMethod;

use super::{Caller, Kernel};
use crate::error::Error;

impl Kernel {
    /// Lists the authentication methods of an adapter's runtime; empty before its first process has started.
    pub fn login_list(&self, adapter: &str) -> Result<Vec<AuthMethod>, Error> {
        Ok(self.shared.adapter(adapter)?.login().map(|login| login.methods()).unwrap_or_default())
    }

    /// Authenticates an adapter's runtime and waits until that is done, possibly for a person. Needs an admin, since the
    /// login holds for everybody who uses the adapter.
    pub async fn login_create(&self, caller: &Caller, adapter: &str, method: &str) -> Result<(), Error> {
        caller.check_admin()?;
        let login = self.shared.adapter(adapter)?.login();
        let login = login
            .ok_or_else(|| Error::Unsupported { adapter: adapter.to_owned(), what: "be authenticated" })?;
        mainspring_core::limits::check_text("an authentication method", method)?;
        let done = login.authenticate(method).await;
        done.map_err(|failure| Error::LoginFailed { adapter: adapter.to_owned(), why: failure.message })
    }
}
