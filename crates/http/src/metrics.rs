//! Metrics: what Prometheus reads at `/metrics`, in the OpenMetrics text format.
//!
//! What the kernel counts is asked of it at each reading; only what this edge alone knows is counted here.

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

use crate::access::Known;
use crate::streams::Streams;
use crate::{Http, Problem};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The upper edges of the buckets that requests are sorted into by how long they took, in seconds.
const REQUEST_SECONDS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 60.0];

/// What this edge counts.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    requests: Family<Answer, Counter>,
    seconds: Family<Asked, Histogram, fn() -> Histogram>,
    /// The operation of requests that meet none.
    pub(super) nothing: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    operation: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    operation: Arc<str>,
    status: u16,
}

impl Metrics {
    pub(super) fn new(kernel: Kernel, streams: Arc<Streams>) -> Self {
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
        registry.register_collector(Box::new(Asking { kernel, streams }));
        Self { registry, requests, seconds, nothing: "none".into() }
    }

    /// A request was answered.
    pub(super) fn answered(&self, operation: &Arc<str>, status: StatusCode, took: Duration) {
        let operation = operation.clone();
        self.seconds.get_or_create(&Asked { operation: operation.clone() }).observe(took.as_secs_f64());
        self.requests.get_or_create(&Answer { operation, status: status.as_u16() }).inc();
    }
}

/// What is asked of others at each reading.
struct Asking {
    kernel: Kernel,
    streams: Arc<Streams>,
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asking")
    }
}

impl Collector for Asking {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.kernel.counts();
        let encoder = &mut encoder;
        gauge(encoder, "uptime_seconds", "Time since the start", counts.uptime)?;
        gauge(encoder, "sessions_in_memory", "Sessions in memory", self.kernel.sessions_in_memory() as f64)?;
        gauge(encoder, "subscribers", "Readers of sessions", counts.subscribers as f64)?;
        gauge(encoder, "http_streams", "Streams that are open", self.streams.open() as f64)?;
        self.work(encoder)?;
        counter(encoder, "runs_accepted", "Prompts that became runs", counts.runs_accepted)?;
        counter(encoder, "queue_refusals", "Prompts refused because too many wait", counts.queue_refusals)?;
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

impl Asking {
    fn work(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
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
    let mut metric = encoder.encode_descriptor("commit_seconds", help, None, MetricType::Histogram)?;
    let edges = COMMIT_SECONDS.into_iter().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = edges.zip(counts.commit_buckets).collect();
    // The buckets were read one after the other; their sum is the count that fits them.
    let count = counts.commit_buckets.iter().sum();
    metric.encode_histogram::<NoLabelSet>(counts.commit_seconds, count, &buckets, None)
}

/// What Prometheus reads
#[utoipa::path(
    get, path = "/metrics",
    responses((status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text")),
)]
pub(super) async fn metrics(
    State(http): State<Http>,
    Known(_): Known,
) -> Result<([(HeaderName, &'static str); 1], String), Problem> {
    let mut page = String::new();
    // Writing to a text does not fail.
    let _ = text::encode(&mut page, &http.metrics.registry);
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], page))
}
