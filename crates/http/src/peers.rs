//! Requests between the servers of a cluster: a key that only these servers have proves that one of them sent the request.
//!
//! A server that forwards a request adds the proof to it. A server whose kernel needs something from the home of another
//! session sends the kernel's request to [`PATH`], which no other client can use.

use std::fmt;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_core::NodeId;
use mainspring_kernel::Kernel;
use mainspring_kernel::kernel::reach::{AskError, HomeAnswer, HomeRefusal, HomeRequest};
use tokio::sync::watch;

use crate::forward::{self, ForwardOptions};
use crate::{Problem, Servers};

/// The path of requests to the kernel of a server.
pub(super) const PATH: &str = "/cluster/requests";
/// The header with the proof.
const PROOF: HeaderName = HeaderName::from_static("mainspring-cluster-proof");
/// The purpose for which a request to a kernel is signed.
const HOME_REQUEST: &str = "home request";
/// The longest time until a kernel has answered. Calls of host tools have no limit.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(45);
/// The largest request to a kernel, as a multiple of the largest body of a prompt: delegated work holds its objective
/// several times.
const OBJECTIVE_COPIES: usize = 4;

/// The key that the servers of a cluster share.
#[derive(Clone)]
pub struct PeerKey([u8; 32]);

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerKey")
    }
}

impl PeerKey {
    /// Creates the key from the secret of a cluster.
    pub fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    pub(super) fn proof(&self, of: &str) -> blake3::Hash {
        blake3::keyed_hash(&self.0, of.as_bytes())
    }

    /// Adds the proof that a server of the cluster sends the request for the purpose `of`.
    pub(super) fn sign(&self, headers: &mut HeaderMap, of: &str) {
        if let Ok(proof) = HeaderValue::from_str(self.proof(of).to_hex().as_str()) {
            headers.insert(PROOF, proof);
        }
    }

    /// True if a server of the cluster sends the request for the purpose `of`.
    pub(super) fn is_signed(&self, headers: &HeaderMap, of: &str) -> bool {
        let proof = headers.get(PROOF).and_then(|value| value.to_str().ok());
        proof.is_some_and(|proof| self.is_proof(proof, of))
    }

    /// True if `proof` was made with this key for the purpose `of`.
    pub(super) fn is_proof(&self, proof: &str, of: &str) -> bool {
        // Hashes are compared in constant time.
        blake3::Hash::from_hex(proof).is_ok_and(|proof| proof == self.proof(of))
    }
}

/// The problem of a request that only a server of the cluster may send.
pub(super) fn not_a_peer(what: &str) -> Problem {
    let detail = format!(
        "{what} is for servers of the cluster, and this request does not prove that it comes from one: leave it out; \
         servers need the same secret in cluster.secret_file"
    );
    Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
}

/// Answers the kernel of another server. `limit` is the largest body of a prompt.
pub(super) async fn answer(
    kernel: &Kernel,
    key: Option<&PeerKey>,
    request: Request,
    limit: usize,
) -> Response {
    if request.method() != Method::POST
        || !key.is_some_and(|key| key.is_signed(request.headers(), HOME_REQUEST))
    {
        return not_a_peer("this endpoint").into_response();
    }
    let limit = limit.saturating_mul(OBJECTIVE_COPIES);
    let request = match read(request.into_body(), limit).await {
        Ok(request) => request,
        Err(problem) => return problem.into_response(),
    };
    let answer = Box::pin(kernel.home_answer(request)).await;
    match serde_json::to_vec(&answer) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn read(body: Body, limit: usize) -> Result<HomeRequest, Problem> {
    let bytes = axum::body::to_bytes(body, limit).await;
    let bytes = bytes.map_err(|error| Problem::invalid(format!("the body cannot be read: {error}")))?;
    serde_json::from_slice(&bytes).map_err(|error| Problem::invalid(format!("the body: {error}")))
}

/// Sends requests of a kernel to the kernels of other servers.
#[derive(Debug)]
pub struct PeerClient {
    client: reqwest::Client,
    servers: watch::Receiver<Servers>,
    key: PeerKey,
}

impl PeerClient {
    /// Sends requests to `servers`. Fails if the certificates cannot be used, or there is no key.
    pub fn new(servers: watch::Receiver<Servers>, options: &ForwardOptions) -> Result<Self, String> {
        let key = options.key.clone().ok_or("servers of a cluster need a secret")?;
        Ok(Self { client: forward::client(options)?, servers, key })
    }

    /// Sends a request to the kernel of the server `node`.
    pub async fn ask(&self, node: NodeId, request: &HomeRequest) -> Result<HomeAnswer, AskError> {
        let not_reached =
            || AskError::NotReached("the server at which the session has its home is not reachable".into());
        let address = self.servers.borrow().address(node).map(str::to_owned).ok_or_else(not_reached)?;
        let body = request_to_json(request).map_err(|error| AskError::NotReached(error.to_string()))?;
        let mut headers = HeaderMap::new();
        self.key.sign(&mut headers, HOME_REQUEST);
        let url = format!("{}{PATH}", address.trim_end_matches('/'));
        let mut sent = self.client.post(url).headers(headers).body(body);
        if !matches!(request, HomeRequest::HostCall { .. }) {
            sent = sent.timeout(ANSWER_TIMEOUT);
        }
        let sent = sent.send();
        let mut servers = self.servers.clone();
        let is_gone = servers.wait_for(|now| now.address(node).is_none());
        let not_answered =
            || AskError::NotAnswered("the server at which the session has its home did not answer".into());
        let answered = async {
            let response = sent.await.map_err(|error| {
                tracing::debug!(%error, %address, "a request to another server failed");
                if error.is_connect() { not_reached() } else { not_answered() }
            })?;
            match response.status() {
                StatusCode::OK => response.bytes().await.map_err(|_| not_answered()),
                // The request has not reached the kernel.
                status @ (StatusCode::BAD_REQUEST
                | StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND
                | StatusCode::SERVICE_UNAVAILABLE) => Err(AskError::NotReached(format!(
                    "the server at which the session has its home answers {status} to other servers"
                ))),
                _ => Err(not_answered()),
            }
        };
        let bytes = tokio::select! {
            bytes = answered => bytes?,
            Ok(_) = is_gone => return Err(not_answered()),
        };
        let answer = answer_from_json(&bytes).map_err(|_| not_answered())?;
        answer.map_err(AskError::Refused)
    }
}

// Rustc compiles the body of an async function again in each crate that awaits it. Functions that are not async are
// compiled in this crate only.

#[inline(never)]
fn request_to_json(request: &HomeRequest) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(request)
}

#[inline(never)]
fn answer_from_json(json: &[u8]) -> serde_json::Result<Result<HomeAnswer, HomeRefusal>> {
    serde_json::from_slice(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_key_and_one_purpose() {
        let (key, other) = (PeerKey::new([1; 32]), PeerKey::new([2; 32]));
        let mut headers = HeaderMap::new();
        assert!(!key.is_signed(&headers, "forwarded 1"));
        key.sign(&mut headers, "forwarded 1");
        assert!(key.is_signed(&headers, "forwarded 1"));
        assert!(!key.is_signed(&headers, "forwarded 2"));
        assert!(!other.is_signed(&headers, "forwarded 1"));
        headers.insert(PROOF, HeaderValue::from_static("x"));
        assert!(!key.is_signed(&headers, "forwarded 1"));
        assert_eq!(format!("{key:?}"), "PeerKey");
    }
}
