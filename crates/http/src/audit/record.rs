//! Middleware: records requests that change something, and requests that are refused.
//!
//! The record is written before the response is sent. A request whose client disconnects is recorded too: the change
//! may have been made.

use std::sync::{Arc, OnceLock};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mainspring_api::{AuditActor, AuditKind, AuditOrigin, AuditRecord};
use mainspring_kernel::audit::{Audit, audit_name};
use mainspring_kernel::kernel::Caller;

use crate::problem::ProblemCode;
use crate::{Http, Problem, mcp};

/// The caller of a request, known once the request is authenticated.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestCaller(Arc<OnceLock<Caller>>);

impl RequestCaller {
    pub(crate) fn set(&self, caller: &Caller) {
        // A request has one caller.
        let _ = self.0.set(caller.clone());
    }
}

/// The objects that a request is about besides those in its path, as an extension of the response.
#[derive(Debug, Clone, Default)]
pub(crate) struct About {
    /// The ids of the objects.
    pub(crate) ids: Vec<String>,
    /// Their owner, if that is not the caller.
    pub(crate) owner: Option<String>,
    /// Their org, if that is not the caller's.
    pub(crate) org: Option<String>,
}

impl About {
    /// Names objects of the caller.
    pub(crate) fn ids<const N: usize>(ids: [&dyn ToString; N]) -> Self {
        Self { ids: ids.map(|id| id.to_string()).into(), ..Self::default() }
    }

    /// Adds this to a response.
    pub(crate) fn with(self, response: impl IntoResponse) -> Response {
        let mut response = response.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Records the request, and refuses a change while the audit log cannot be written.
pub(crate) async fn record_request(State(http): State<Http>, mut request: Request, next: Next) -> Response {
    let Some(audit) = http.kernel.audit().cloned() else {
        return next.run(request).await;
    };
    let path = request.extensions().get::<MatchedPath>().cloned();
    let operation =
        path.as_ref().and_then(|path| http.operations.id(request.method(), path.as_str())).cloned();
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    // The control tools record their own changes.
    let is_change = !is_read && operation.as_deref().is_some_and(|operation| operation != mcp::OPERATION);
    if is_change && let Err(error) = audit.check_change() {
        return Problem::from(error).into_response();
    }
    let caller = RequestCaller::default();
    request.extensions_mut().insert(caller.clone());
    let from = request.extensions().get::<AuditOrigin>().copied();
    let uri = request.uri().clone();
    let mut pending = Pending { audit, operation, is_change, path, uri, from, caller, is_answered: false };
    let response = next.run(request).await;
    pending.is_answered = true;
    pending.record(&response);
    response
}

/// A request that has no response yet.
struct Pending {
    audit: Arc<Audit>,
    operation: Option<Arc<str>>,
    is_change: bool,
    path: Option<MatchedPath>,
    uri: Uri,
    from: Option<AuditOrigin>,
    caller: RequestCaller,
    is_answered: bool,
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Nothing is changed for a client that is not authenticated.
        if !self.is_answered && self.is_change && self.caller.0.get().is_some() {
            let code = Some("no_response".into());
            self.audit.append(AuditRecord { code, ..self.new_record(AuditKind::Change) });
        }
    }
}

impl Pending {
    fn record(&self, response: &Response) {
        let status = response.status();
        let code = response.extensions().get().map(|ProblemCode(code)| *code);
        let is_refused = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => true,
            // An object that the caller may not see is reported as not found.
            StatusCode::NOT_FOUND => self.operation.is_some() && code == Some("not_found"),
            _ => self.is_change && status.is_client_error(),
        };
        if !is_refused && !self.is_change {
            return;
        }
        let kind = if is_refused { AuditKind::Refusal } else { AuditKind::Change };
        let mut record = self.new_record(kind);
        record.status = Some(status.as_u16());
        record.code = code.map(str::to_owned);
        if let Some(About { ids, owner, org }) = response.extensions().get() {
            record.about.extend(ids.iter().cloned());
            record.owner_id = owner.clone().or(record.owner_id);
            record.org_id = org.clone().or(record.org_id);
        }
        let location = response.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
        record.about.extend(location.and_then(|location| location.rsplit('/').next()).map(str::to_owned));
        record.about.dedup();
        match is_refused {
            true => self.audit.append_refusal(record),
            false => self.audit.append(record),
        }
    }

    fn new_record(&self, kind: AuditKind) -> AuditRecord {
        let caller = self.caller.0.get();
        let by = caller.map_or(AuditActor::Anonymous {}, AuditActor::from);
        let operation = self.operation.as_deref().unwrap_or("-");
        AuditRecord {
            about: self.names_in_path(kind),
            from: self.from,
            org_id: caller.and_then(|caller| caller.org.clone()),
            ..AuditRecord::new(kind, operation, by)
        }
    }

    /// Returns the parameters of the path; for a refused request only ids, because other parameters are arbitrary text
    /// of the client.
    fn names_in_path(&self, kind: AuditKind) -> Vec<String> {
        let Some(path) = &self.path else { return vec![] };
        let parts = path.as_str().split('/').zip(self.uri.path().split('/'));
        let names = parts.filter(|(template, _)| template.starts_with('{')).map(|(_, name)| name);
        names.filter(|name| kind != AuditKind::Refusal || is_id(name)).filter_map(audit_name).collect()
    }
}

/// True for a text that has the form of an id, a kind and 32 hexadecimal digits, and does not begin like a secret.
fn is_id(text: &str) -> bool {
    text.split_once('_').is_some_and(|(kind, digits)| {
        let is_kind = !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_lowercase());
        is_kind && kind != "msk" && digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}
