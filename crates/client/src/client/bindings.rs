//! Bindings: the native sessions that a session is tied to.

use mainspring_api::{
    BindingAdoption, BindingListQuery, Page, SessionAdopted, SessionAdoption, SessionTarget,
};
use mainspring_core::Binding;
use reqwest::Method;

use super::Client;
use crate::Error;

impl Client {
    /// Lists all bindings of a session by adapter, the newest generation first.
    pub async fn binding_list(&self, session: &str) -> Result<Vec<Binding>, Error> {
        let (mut bindings, mut query) = (vec![], BindingListQuery::default());
        loop {
            let page = self.binding_page(session, &query).await?;
            bindings.extend(page.items);
            query.after = page.next;
            if query.after.is_none() {
                return Ok(bindings);
            }
        }
    }

    /// Reads a page of the bindings of a session.
    pub async fn binding_page(
        &self,
        session: &str,
        query: &BindingListQuery,
    ) -> Result<Page<Binding>, Error> {
        self.get(&["v1", "sessions", session, "bindings"], query).await
    }

    /// Finds or creates a session and ties it to an existing native session, unless it already has a binding of that
    /// adapter. Idempotent.
    pub async fn session_adopt(
        &self,
        session: &SessionTarget,
        adoption: &BindingAdoption,
    ) -> Result<SessionAdopted, Error> {
        self.post(&["v1", "adopt"], &SessionAdoption::new(session.clone(), adoption.clone())).await
    }

    /// Ties a session to an existing native session, unless it already has a binding of that adapter.
    pub async fn binding_adopt(&self, session: &str, adoption: &BindingAdoption) -> Result<Binding, Error> {
        self.post(&["v1", "sessions", session, "bindings"], adoption).await
    }

    /// Invalidates a binding: its native session is not used again. The session stays.
    pub async fn binding_invalidate(&self, session: &str, adapter: &str) -> Result<Binding, Error> {
        let request = self.request(Method::DELETE, &["v1", "sessions", session, "bindings", adapter]);
        self.read(self.send(request).await?).await
    }
}
