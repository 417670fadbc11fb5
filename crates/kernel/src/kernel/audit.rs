//! Reading the audit log.

use mainspring_api::{AuditListQuery, AuditRecord, Page};
use mainspring_core::limits::check_text;

use super::{Caller, Kernel};
use crate::audit::{AuditPage, AuditScope};
use crate::error::Error;

impl Kernel {
    /// Lists the audit records that concern the caller, oldest first: an admin without an org reads all records, an admin
    /// of an org those of the org, others those of their owner.
    pub async fn audit_list(
        &self,
        caller: &Caller,
        query: AuditListQuery,
    ) -> Result<Page<AuditRecord>, Error> {
        let scope = AuditScope::of(caller)?;
        let limit = self.page(query.limit)?;
        let texts =
            [("an operation", &query.operation), ("an owner", &query.owner), ("an object", &query.about)];
        for (what, text) in texts {
            text.as_deref().map_or(Ok(()), |text| check_text(what, text))?;
        }
        let Some(audit) = self.audit() else { return Ok(Page::single(vec![])) };
        let AuditPage { records, next } = audit.page(scope, query, limit).await?;
        Ok(Page { items: records, next: next.map(|next| next.to_string()), damaged: vec![] })
    }
}
