//! The parts of the server's shared state.

use std::sync::{Arc, OnceLock};

use mainspring_kernel::Kernel;
use mainspring_kernel::quotas::Pool;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::cluster::ClusterReader;
use crate::connections::Connections;
use crate::endpoint::Operations;
use crate::limits::HttpLimits;
use crate::listeners::ListenerRequests;
use crate::oidc::Oidc;
use crate::peers::PeerKey;
use crate::webhooks::WebhookSender;
use crate::{document, mcp, metrics, sign_in, streams, threads};

/// The fields of [`Http`](crate::Http).
#[derive(Clone)]
pub struct Shared {
    pub(crate) kernel: Kernel,
    pub(crate) access: Arc<Access>,
    /// Host names accepted besides localhost and loopback addresses.
    pub(crate) hosts: Arc<[String]>,
    /// True if the TCP listener speaks HTTPS.
    pub(crate) is_tls: bool,
    /// Origins whose web pages may call the API.
    pub(crate) origins: Arc<[String]>,
    /// Accepts tokens of an identity provider.
    pub(crate) oidc: Option<Arc<Oidc>>,
    pub(crate) stop: CancellationToken,
    pub(crate) limits: HttpLimits,
    pub(crate) body_bytes: usize,
    /// One permit per request that may be handled concurrently.
    pub(crate) requests: Arc<Pool>,
    pub(crate) connections: Connections,
    pub(crate) streams: Arc<streams::Streams>,
    pub(crate) tickets: Arc<sign_in::Tickets>,
    /// Opens a TCP address on request; `None` if this server cannot.
    pub(crate) listeners: Option<ListenerRequests>,
    /// Reads the servers of the cluster; `None` if this server is not one of several.
    pub(crate) cluster: Option<ClusterReader>,
    /// The key that the servers of the cluster share.
    pub(crate) peer_key: Option<PeerKey>,
    /// Sends test events and dead letters; `None` if this server delivers no webhooks.
    pub(crate) webhooks: Option<WebhookSender>,
    pub(crate) mcp: Arc<mcp::Service>,
    pub(crate) operations: Arc<Operations>,
    /// Built on first use.
    pub(crate) document: Arc<OnceLock<document::Document>>,
    pub(crate) metrics: Arc<metrics::Metrics>,
    /// The threads that were read last.
    pub(crate) threads: Arc<threads::Views>,
    /// True if this server serves `/v1/ai`.
    pub(crate) serves_threads: bool,
}
