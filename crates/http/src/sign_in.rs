//! Sign-in of browsers: a one-time ticket becomes an API key that is split into two halves.
//!
//! ```text
//! POST /v1/tickets ──▶ ticket (60 s, once) ──▶ POST /v1/tickets/redeem ──▶ new key K = cookie XOR secret
//! ```
//!
//! Cookies ignore ports: every server on 127.0.0.1 receives them. So the cookie is only one half of the key, HttpOnly
//! and SameSite=Strict, and the page keeps the other half in its own storage and sends it as a header. Neither half
//! alone reveals anything about the key. The server stores nothing but the key's hash: the sign-in survives a restart, and it
//! ends, with its open streams, when the key expires or is revoked.
//!
//! The browser may be connected to another server of a cluster, which forwards its requests: cookie and Origin belong to
//! the address that the browser used (`visit.rs`).

use std::collections::HashMap;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use mainspring_api::{Me, PageSecret, Ticket, TicketRedemption};
use mainspring_core::{AccessRole, Time};
use mainspring_kernel::Error;
use mainspring_kernel::kernel::{Caller, NewKey, Secret};
use parking_lot::Mutex;

use crate::access::Authenticated;
use crate::audit::{About, RequestCaller};
use crate::body::{Json, JsonObject};
use crate::visit::{PageOrigin, Visit};
use crate::{Http, Problem};

/// The paths at which a browser signs in, without any other credential.
pub(super) const SIGN_IN_PATHS: [&str; 2] = ["/v1/tickets/redeem", "/v1/sign-in/oidc"];
/// The largest body with which a browser signs in: a ticket is short, and the code of an identity provider has to fit in an
/// address.
pub(super) const BODY_MAX_BYTES: usize = 16 << 10;
/// The header with the page's half of the key.
pub(super) const PAGE_HEADER: &str = "mainspring-page";
/// The header in which a browser names the site whose page sends the request.
pub(super) const SITE_HEADER: &str = "sec-fetch-site";
const TICKET_LIFETIME: Duration = Duration::from_secs(60);
/// Tickets that may be open at once; further ones replace the oldest.
const MAX_TICKETS: usize = 64;
/// Seconds that a browser stays signed in.
const SIGN_IN_SECONDS: i64 = 30 * 24 * 3600;

/// Tickets that were not redeemed yet, by their hash. A restart forgets them.
#[derive(Default)]
pub(super) struct Tickets(Mutex<HashMap<[u8; 32], Pending>>);

struct Pending {
    caller: Caller,
    /// The kernel's monotonic time at which the ticket expires.
    expires: Duration,
}

impl Tickets {
    fn add(&self, ticket: &str, caller: Caller, now: Duration, lifetime: Duration) {
        let mut tickets = self.0.lock();
        tickets.retain(|_, pending| pending.expires > now);
        if tickets.len() >= MAX_TICKETS {
            let oldest = tickets.iter().min_by_key(|(_, pending)| pending.expires).map(|(hash, _)| *hash);
            if let Some(hash) = oldest {
                tickets.remove(&hash);
            }
        }
        tickets.insert(hash(ticket), Pending { caller, expires: now.saturating_add(lifetime) });
    }

    /// Takes a ticket, so that it works only once.
    fn take(&self, ticket: &str, now: Duration) -> Option<Caller> {
        let pending = self.0.lock().remove(&hash(ticket))?;
        (pending.expires > now).then_some(pending.caller)
    }
}

/// Tickets are found by their hash, so that the time of a lookup reveals nothing about them.
fn hash(ticket: &str) -> [u8; 32] {
    *blake3::hash(ticket.as_bytes()).as_bytes()
}

/// Returns the caller of this request: its owner, org, role and key
#[utoipa::path(get, path = "/v1/me", responses((status = 200, description = "The caller", body = Me)))]
pub(super) async fn me(Authenticated(caller): Authenticated) -> Json<Me> {
    Json(Me { owner_id: caller.owner, org_id: caller.org, role: caller.role, key_id: caller.key })
}

/// Creates a one-time ticket with which a browser signs in as the caller; for admins
#[utoipa::path(
    post, path = "/v1/tickets",
    responses((status = 201, description = "The ticket", body = Ticket)),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn ticket_create(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
) -> Result<(StatusCode, Json<Ticket>), Problem> {
    // A ticket becomes a key, and only admins make keys.
    if caller.role != AccessRole::Admin || caller.agent.is_some() {
        let detail = "only an admin makes tickets: sign in with the key itself";
        return Err(Error::Forbidden(detail.into()).into());
    }
    if caller.lists.as_ref().is_some_and(|lists| lists.spend_per_day.is_some()) {
        let detail =
            "a ticket becomes a key, and a key with a spend per day makes none: sign in with the key itself";
        return Err(Error::Forbidden(detail.into()).into());
    }
    // A ticket ends with the key that makes it.
    let end = http.kernel.key_end(&caller).await?.unwrap_or(Time(0));
    let lifetime = Duration::from_millis(end.since(http.kernel.now())).min(TICKET_LIFETIME);
    let ticket = http.kernel.secret();
    http.tickets.add(&ticket, caller, http.kernel.elapsed(), lifetime);
    let expires_in_ms = u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX);
    Ok((StatusCode::CREATED, Json(Ticket { ticket, expires_in_ms })))
}

/// Signs a browser in: one half of a new key is the cookie, the other half the answer
#[utoipa::path(
    post, path = "/v1/tickets/redeem", request_body = TicketRedemption,
    responses((status = 200, description = "The page's half of the key", body = PageSecret, headers(("Set-Cookie" = String)))),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn ticket_redeem(
    State(http): State<Http>,
    known: Option<Extension<RequestCaller>>,
    headers: HeaderMap,
    JsonObject(body): JsonObject<TicketRedemption>,
) -> Result<Response, Problem> {
    let refused = |detail: &str| Problem::new(StatusCode::UNAUTHORIZED, "authentication", detail);
    let Some(Visit { host, origin: PageOrigin::Own(origin) }) = visit(&http, &headers) else {
        return Err(refused("a ticket is redeemed by the page of this server, with its Origin"));
    };
    let caller = http.tickets.take(&body.ticket, http.kernel.elapsed());
    let caller = caller.ok_or_else(|| {
        refused("this ticket was used, has expired or never existed: make another one, or sign in with a key")
    })?;
    if let Some(Extension(known)) = known {
        known.set(&caller);
    }
    // The key that made the ticket may have ended since. The page's key does not outlive it.
    let end = http.kernel.key_end(&caller).await?;
    let end = end.ok_or_else(|| refused("the key that made this ticket was revoked or has expired"))?;
    let now = http.kernel.now();
    let end = Time(now.0.saturating_add(SIGN_IN_SECONDS * 1000)).min(end);
    let new = NewKey {
        name: "page".into(),
        owner: Some(caller.owner.clone()),
        org: http.kernel.org_of(&caller).await?,
        role: caller.role,
        expires_at: Some(end),
        folders: caller.folders.clone(),
        // `key_create` gives the new key the caller's lists.
        ..NewKey::default()
    };
    let (made, key) = http.kernel.key_create(&caller, new, None).await?;
    let key = key.ok_or_else(|| Problem::invalid("the key was created before"))?;
    let secret = http.kernel.secret();
    let digits = key.reveal().trim_start_matches(Secret::PREFIX);
    let cookie = combine(digits, &secret).ok_or_else(|| Problem::invalid("the key cannot be split"))?;
    let secure = if origin.starts_with("https://") { "; Secure" } else { "" };
    let cookie = format!(
        "{}={cookie}; Path=/v1; HttpOnly; SameSite=Strict; Max-Age={}{secure}",
        cookie_name(host),
        end.since(now) / 1000
    );
    let cookie = HeaderValue::try_from(cookie).map_err(|_| Problem::invalid("the Host is not a host"))?;
    Ok(About::ids([&made.id]).with(([(header::SET_COOKIE, cookie)], Json(PageSecret { secret }))))
}

/// Returns the key of a request that the page sent: its cookie and its header combined. A request that may change
/// something must carry the Origin of this server. Refuses a request that the browser sends for another site.
pub(super) fn page_key(http: &Http, method: &Method, headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(secret) = text(headers, HeaderName::from_static(PAGE_HEADER)) else { return Ok(None) };
    let Some(visit) = visit(http, headers) else { return Ok(None) };
    let Some(cookie) = page_cookie(headers, visit.host) else { return Ok(None) };
    let site = text(headers, HeaderName::from_static(SITE_HEADER)).unwrap_or("none");
    if !["same-origin", "none"].contains(&site) {
        let detail =
            "the browser sends this request for another site: only the page of this server uses its sign-in";
        return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden_origin", detail));
    }
    let is_read = method == Method::GET || method == Method::HEAD;
    Ok(match visit.origin {
        PageOrigin::Foreign => None,
        PageOrigin::None if !is_read => None,
        PageOrigin::None | PageOrigin::Own(_) => {
            combine(cookie, secret).map(|digits| format!("{}{digits}", Secret::PREFIX))
        }
    })
}

/// Returns the cookie's half of the key. `host` is the one that the browser used.
fn page_cookie<'a>(headers: &'a HeaderMap, host: &str) -> Option<&'a str> {
    let name = cookie_name(host);
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(known, _)| *known == name).map(|(_, cookie)| cookie)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn visit<'a>(http: &Http, headers: &'a HeaderMap) -> Option<Visit<'a>> {
    Visit::read(headers, http.site(), http.peer_key.as_ref())
}

/// Returns the Origin of a request if it is that of the server which the browser is connected to: the scheme, and exactly
/// the host that the browser used.
pub(super) fn own_origin<'a>(http: &Http, headers: &'a HeaderMap) -> Option<&'a str> {
    match visit(http, headers)?.origin {
        PageOrigin::Own(origin) => Some(origin),
        PageOrigin::None | PageOrigin::Foreign => None,
    }
}

/// Names the cookie after the port: servers on other ports of the same host receive it too, and must not replace it.
fn cookie_name(host: &str) -> String {
    let port = host.rsplit_once(':').map(|(_, port)| port);
    let port = port.filter(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    format!("mainspring-page-{}", port.unwrap_or("default"))
}

/// Combines two texts of hexadecimal digits by exclusive or. Returns `None` if a text is empty or has other characters,
/// or if their lengths differ.
fn combine(left: &str, right: &str) -> Option<String> {
    let digits = |text: &str| text.chars().map(|digit| digit.to_digit(16)).collect::<Option<Vec<_>>>();
    let (left, right) = (digits(left)?, digits(right)?);
    if left.len() != right.len() || left.is_empty() {
        return None;
    }
    left.into_iter().zip(right).map(|(left, right)| char::from_digit(left ^ right, 16)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combining_twice_gives_the_key_again() {
        let (key, secret) = ("00ff1234", "a5a5ffff");
        let cookie = combine(key, secret).unwrap();
        assert_eq!(cookie, "a55aedcb");
        assert_eq!(combine(&cookie, secret).as_deref(), Some(key));
        for (left, right) in [("", ""), ("ab", "abc"), ("xy", "ab"), ("ab", "é")] {
            assert_eq!(combine(left, right), None, "{left} {right}");
        }
    }
}
