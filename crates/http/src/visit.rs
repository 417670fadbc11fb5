//! How a browser came to this server: the host that it used, and the origin of the page that sends the request.
//!
//! Only the server that the browser is connected to can compare the two. When it forwards the request, it tells the next
//! server what it has found, signed with the key of the cluster: other clients cannot claim a visit.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::guard::Site;
use crate::peers::PeerKey;

/// The header in which a server that forwards a request describes the visit: `PROOF HOST ORIGIN`.
const HEADER: HeaderName = HeaderName::from_static("mainspring-visit");
/// Stands for the origin in a request that has none.
const NO_ORIGIN: &str = "-";
/// Stands for the origin of another site.
const FOREIGN_ORIGIN: &str = "null";

/// The address that a browser used, and the page that sends the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Visit<'a> {
    /// The `Host` of the request.
    pub(super) host: &'a str,
    /// The `Origin` of the request.
    pub(super) origin: PageOrigin<'a>,
}

/// The origin of the page that sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageOrigin<'a> {
    /// The request names none: no browser sends it, or it only reads.
    None,
    /// The page of the server that the browser is connected to.
    Own(&'a str),
    /// A page of another site.
    Foreign,
}

impl<'a> Visit<'a> {
    /// Reads the visit from the request itself if the browser is connected to this server, else from what the server that
    /// it is connected to has signed with `key`.
    pub(super) fn read(headers: &'a HeaderMap, site: Site<'_>, key: Option<&PeerKey>) -> Option<Self> {
        key.and_then(|key| Self::forwarded(headers, key)).or_else(|| Self::direct(headers, site))
    }

    fn direct(headers: &'a HeaderMap, site: Site<'_>) -> Option<Self> {
        let host = headers.get(header::HOST)?.to_str().ok()?;
        let origin = match headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or_default()) {
            None => PageOrigin::None,
            Some(origin) if site.is_own_origin(origin, host) => PageOrigin::Own(origin),
            Some(_) => PageOrigin::Foreign,
        };
        Some(Self { host, origin })
    }

    fn forwarded(headers: &'a HeaderMap, key: &PeerKey) -> Option<Self> {
        let (proof, visit) = headers.get(HEADER)?.to_str().ok()?.split_once(' ')?;
        let (host, origin) = visit.split_once(' ').filter(|_| key.is_proof(proof, &proof_of(visit)))?;
        let origin = match origin {
            NO_ORIGIN => PageOrigin::None,
            FOREIGN_ORIGIN => PageOrigin::Foreign,
            own => PageOrigin::Own(own),
        };
        Some(Self { host, origin })
    }
}

/// Replaces the visit in `headers`, which are sent to another server, by that of the request with the headers `received`
/// from a browser.
pub(super) fn describe(headers: &mut HeaderMap, received: &HeaderMap, site: Site<'_>, key: Option<&PeerKey>) {
    headers.remove(HEADER);
    let Some((key, Visit { host, origin })) = key.zip(Visit::direct(received, site)) else { return };
    let origin = match origin {
        PageOrigin::None => NO_ORIGIN,
        PageOrigin::Own(origin) => origin,
        PageOrigin::Foreign => FOREIGN_ORIGIN,
    };
    let visit = format!("{host} {origin}");
    if let Ok(value) = HeaderValue::try_from(format!("{} {visit}", key.proof(&proof_of(&visit)))) {
        headers.insert(HEADER, value);
    }
}

/// The purpose for which a visit is signed.
fn proof_of(visit: &str) -> String {
    format!("visit {visit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(host: &str, origin: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        origin.map(|origin| headers.insert(header::ORIGIN, origin.parse().unwrap()));
        headers
    }

    #[test]
    fn a_forwarded_visit_is_what_the_first_server_has_found() {
        let (key, hosts) = (PeerKey::new([1; 32]), ["standby.example".to_owned()]);
        let first = Site { hosts: &hosts, is_tls: true };
        // The next server has other names and no TLS.
        let next = Site { hosts: &[], is_tls: false };
        for (origin, found) in [
            (None, PageOrigin::None),
            (Some("https://standby.example:7433"), PageOrigin::Own("https://standby.example:7433")),
            (Some("http://standby.example:7433"), PageOrigin::Foreign),
            (Some("https://evil.example"), PageOrigin::Foreign),
            (Some("-"), PageOrigin::Foreign),
        ] {
            let received = headers("standby.example:7433", origin);
            let mut sent = headers("10.0.0.7:7433", None);
            describe(&mut sent, &received, first, Some(&key));
            let visit = Visit { host: "standby.example:7433", origin: found };
            assert_eq!(Visit::read(&sent, next, Some(&key)), Some(visit), "{origin:?}");
        }
    }

    #[test]
    fn a_visit_without_a_valid_proof_is_ignored_and_not_forwarded() {
        let (key, other) = (PeerKey::new([1; 32]), PeerKey::new([2; 32]));
        let site = Site { hosts: &[], is_tls: false };
        let received = headers("localhost:1", Some("http://localhost:1"));
        let mut forged = headers("localhost:2", None);
        describe(&mut forged, &received, site, Some(&other));
        let direct = Visit { host: "localhost:2", origin: PageOrigin::None };
        assert_eq!(Visit::read(&forged, site, Some(&key)), Some(direct));
        assert_eq!(Visit::read(&forged, site, None), Some(direct));
        // The proof of one visit is none of another.
        let signed = forged[HEADER].to_str().unwrap().replace("localhost:1", "localhost:3");
        forged.insert(HEADER, signed.parse().unwrap());
        assert_eq!(Visit::read(&forged, site, Some(&other)), Some(direct));
        let mut sent = forged.clone();
        describe(&mut sent, &forged, site, None);
        assert!(!sent.contains_key(HEADER));
    }
}
