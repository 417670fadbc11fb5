//! `/v1/audit`: the audit log. It is only read here: records are written by the middleware and by the kernel.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use mainspring_api::{AuditListQuery, AuditRecord, Page};
use mainspring_kernel::Error;

use crate::access::Authenticated;
use crate::body::{Json, QueryParams};
use crate::{Http, Problem};

mod record;
pub(super) use record::{About, RequestCaller, record_request};

/// The media type of one JSON object per line.
const NDJSON: &str = "application/x-ndjson";

/// Lists the audit records that concern the caller, oldest first; as JSON lines, all of them if no limit is given
#[utoipa::path(
    get, path = "/v1/audit", params(AuditListQuery),
    responses((status = 200, description = "Audit records in order",
        content((Page<AuditRecord> = "application/json"), (String = "application/x-ndjson")))),
    extensions(("x-problems" = json!(["forbidden", "too_many_streams"]))),
)]
pub(super) async fn audit_list(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    headers: HeaderMap,
    QueryParams(query): QueryParams<AuditListQuery>,
) -> Result<Response, Problem> {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let is_lines =
        accepts.split(',').any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == NDJSON));
    let first = http.kernel.audit_list(&caller, query.clone()).await?;
    if !is_lines {
        return Ok(Json(first).into_response());
    }
    let permit = http.streams.acquire(&http.kernel, &caller.owner, None)?;
    let is_limited = query.limit.is_some();
    let start = (Some(first), query, permit);
    let pages = stream::try_unfold(start, move |(page, mut query, permit)| {
        let (kernel, caller) = (http.kernel.clone(), caller.clone());
        async move {
            let Some(page) = page else { return Ok::<_, Error>(None) };
            let next = page.next.as_ref().filter(|_| !is_limited).and_then(|next| next.parse().ok());
            query.after = next;
            let following = match next {
                Some(_) => Some(kernel.audit_list(&caller, query.clone()).await?),
                None => None,
            };
            Ok(Some((lines(&page.items), (following, query, permit))))
        }
    });
    let mut response = Body::from_stream(pages).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    Ok(response)
}

fn lines(records: &[AuditRecord]) -> String {
    let line = |record| serde_json::to_string(record).map(|line| line + "\n").unwrap_or_default();
    records.iter().map(line).collect()
}
