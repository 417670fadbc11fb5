//! Metrics of a database server (PostgreSQL), read from the database at each scrape.

use std::fmt;

use mainspring_kernel::store::DatabaseMeters;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::{counter, gauge, histogram};

/// Makes a registry of the meters.
pub(super) fn registry(meters: DatabaseMeters) -> Registry {
    let mut registry = Registry::with_prefix("mainspring");
    registry.register_collector(Box::new(DatabaseCollector(meters)));
    registry
}

#[derive(Debug)]
struct DatabaseCollector(DatabaseMeters);

impl Collector for DatabaseCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (meters, encoder) = (&self.0, &mut encoder);
        encode_connections(meters, encoder)?;
        let help = "Time of a transaction of a writer";
        histogram(encoder, "database_batch_seconds", help, meters.batch_seconds, meters.batch_buckets)?;
        let help = "Changes that the transactions of writers made durable";
        counter(encoder, "database_batch_commits", help, meters.batch_commits)?;
        if let Some(lag) = meters.feed_lag_seconds {
            let help = "Age of the oldest open transaction that has written";
            gauge(encoder, "feed_lag_seconds", help, lag)?;
        }
        if let Some(left) = meters.lease_left_seconds {
            gauge(
                encoder,
                "lease_left_seconds",
                "Time for which this server may act without a renewal",
                left,
            )?;
        }
        if let Some(takeovers) = meters.takeovers {
            let help = "Servers that took over from another which had not handed over";
            counter(encoder, "takeovers", help, takeovers)?;
        }
        Ok(())
    }
}

fn encode_connections(meters: &DatabaseMeters, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Connections of the pool that are used or idle, and callers that wait for one (awaited)";
    let mut metric = encoder.encode_descriptor("database_connections", help, None, MetricType::Gauge)?;
    for (state, count) in [
        ("used", meters.connections_used),
        ("idle", meters.connections_idle),
        ("awaited", meters.connections_awaited),
    ] {
        let labels = [("state", state)];
        ConstGauge::new(count as f64).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}
