//! Metrics for Prometheus at `/metrics`, in the OpenMetrics text format.
//!
//! The kernel's counters are read at each scrape; this module counts only HTTP requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use mainspring_kernel::Kernel;
use mainspring_kernel::meters::{COMMIT_SECONDS, Counts};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::access::Authenticated;
use crate::connections::Connections;
use crate::streams::Streams;
use crate::{Http, Problem};

mod database_metrics;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds of the request duration buckets, in seconds.
const REQUEST_SECONDS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 60.0];

/// The metrics registry and the HTTP counters.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    seconds: Family<OperationLabel, Histogram, fn() -> Histogram>,
    /// The label of requests that match no operation.
    pub(super) no_operation: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    operation: Arc<str>,
    status: u16,
}

impl Metrics {
    pub(super) fn new(kernel: Kernel, streams: Arc<Streams>, connections: Connections) -> Self {
        let mut registry = Registry::with_prefix("mainspring");
        let requests = Family::default();
        let seconds = Family::new_with_constructor((|| Histogram::new(REQUEST_SECONDS)) as fn() -> Histogram);
        registry.register("build", "What is running", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        registry.register("http_requests", "Requests, by operation and status", requests.clone());
        registry.register(
            "http_request_seconds",
            "Time until a request was answered, until its headers for a stream",
            seconds.clone(),
        );
        registry.register_collector(Box::new(KernelCollector { kernel, streams, connections }));
        Self { registry, requests, seconds, no_operation: "none".into() }
    }

    /// Counts a request and its duration.
    pub(super) fn record_request(&self, operation: &Arc<str>, status: StatusCode, took: Duration) {
        let operation = operation.clone();
        self.seconds
            .get_or_create(&OperationLabel { operation: operation.clone() })
            .observe(took.as_secs_f64());
        self.requests.get_or_create(&RequestLabels { operation, status: status.as_u16() }).inc();
    }
}

/// Reads the counters of the kernel, of the streams and of the connections at each scrape.
struct KernelCollector {
    kernel: Kernel,
    streams: Arc<Streams>,
    connections: Connections,
}

impl fmt::Debug for KernelCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KernelCollector")
    }
}

impl Collector for KernelCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.kernel.counts();
        let encoder = &mut encoder;
        gauge(encoder, "uptime_seconds", "Time since the start", counts.uptime)?;
        gauge(encoder, "sessions_in_memory", "Sessions in memory", self.kernel.sessions_in_memory() as f64)?;
        let failed = self.kernel.failed_session_count();
        gauge(encoder, "sessions_failed", "Sessions in whose work the server has failed", failed as f64)?;
        gauge(encoder, "subscribers", "Readers of sessions", counts.subscribers as f64)?;
        gauge(encoder, "http_streams", "Streams that are open", self.streams.open() as f64)?;
        gauge(encoder, "http_connections", "Connections that are open", self.connections.count() as f64)?;
        counter(
            encoder,
            "http_connections_dropped",
            "Connections that made room for others, or found none",
            self.connections.dropped(),
        )?;
        self.encode_runs(encoder)?;
        counter(encoder, "runs_accepted", "Prompts that became runs", counts.runs_accepted)?;
        counter(encoder, "queue_refusals", "Prompts refused because too many wait", counts.queue_refusals)?;
        quota_refusals(encoder, &counts)?;
        runs_ended(encoder, &counts)?;
        counter(encoder, "commits", "Changes made durable", counts.commits)?;
        counter(
            encoder,
            "commit_failures",
            "Changes that could not be made durable",
            counts.commit_failures,
        )?;
        counter(encoder, "events", "Events made durable", counts.events)?;
        commit_seconds(encoder, &counts)?;
        counter(encoder, "deltas", "Pieces of text that agents streamed", counts.deltas)?;
        counter(encoder, "streamed_bytes", "Bytes of text that agents streamed", counts.streamed_bytes)?;
        counter(encoder, "late_calls", "Refused calls of attempts without authority", counts.late_calls)
    }
}

impl KernelCollector {
    fn encode_runs(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let work = *self.kernel.work().borrow();
        let help = "Runs that are executed (active), wait their turn (queued), or wait behind one that waits for a person (blocked)";
        let mut runs = encoder.encode_descriptor("runs", help, None, MetricType::Gauge)?;
        for (state, count) in [("active", work.active), ("queued", work.queued), ("blocked", work.blocked)] {
            let labels = [("state", state)];
            ConstGauge::new(count as f64).encode(runs.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    ConstGauge::new(value).encode(metric)
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}

fn quota_refusals(encoder: &mut DescriptorEncoder<'_>, counts: &Counts) -> fmt::Result {
    let help = "Requests refused because their owner had its share or its quota, by resource";
    let mut metric = encoder.encode_descriptor("quota_refusals", help, None, MetricType::Counter)?;
    for (resource, count) in &counts.quota_refusals {
        let labels = [("resource", resource.name())];
        ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

fn runs_ended(encoder: &mut DescriptorEncoder<'_>, counts: &Counts) -> fmt::Result {
    let help = "Runs that ended, by adapter and how";
    let mut metric = encoder.encode_descriptor("runs_ended", help, None, MetricType::Counter)?;
    for ((adapter, status), count) in &counts.runs_ended {
        let labels = [("adapter", adapter.as_str()), ("status", status)];
        ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

fn commit_seconds(encoder: &mut DescriptorEncoder<'_>, counts: &Counts) -> fmt::Result {
    let help = "Time that a change took to become durable";
    histogram(encoder, "commit_seconds", help, counts.commit_seconds, counts.commit_buckets)
}

/// Encodes a histogram with the buckets of [`COMMIT_SECONDS`].
fn histogram(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    seconds: f64,
    counts: [u64; COMMIT_SECONDS.len() + 1],
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    let bounds = COMMIT_SECONDS.into_iter().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
    // The buckets were read one by one, so their sum is the only count consistent with them.
    let count = counts.iter().sum();
    metric.encode_histogram::<NoLabelSet>(seconds, count, &buckets, None)
}

/// Metrics for Prometheus, for admins without an org
#[utoipa::path(
    get, path = "/metrics",
    responses((status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text")),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn metrics(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
) -> Result<([(HeaderName, &'static str); 1], String), Problem> {
    // The counters reveal the work of every owner.
    caller.check_server_admin()?;
    let database = http.kernel.database_meters().await;
    let mut page = String::new();
    // Writing to a String does not fail.
    let _ = text::encode_registry(&mut page, &http.metrics.registry);
    if let Some(meters) = database {
        let _ = text::encode_registry(&mut page, &database_metrics::registry(meters));
    }
    let _ = text::encode_eof(&mut page);
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], page))
}
