//! `mainspring cluster`

use clap::Subcommand;
use mainspring_api::ClusterServer;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};

/// A server that has not reported for this long is listed as not seen. Servers report several times in this time,
/// unless the lease is much longer than the default.
const SILENT_MS: u64 = 15_000;

/// Show the servers that share the database
#[derive(Subcommand)]
pub(super) enum Cluster {
    /// Show the servers that share the database, and which of them is active
    Status,
}

impl Cluster {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let Self::Status = self;
        let work = async |connection: &mut Connection<'_>| {
            connection.request(async |client| client.cluster_status().await).await
        };
        let (cluster, output) = (context.with_connection(Purpose::Records, work).await?, context.output);
        if output.json {
            output.print_json(&cluster)?;
            return Ok(Exit::Done);
        }
        if cluster.servers.is_empty() {
            output.print_note("this server is not one of a cluster: see docs/cluster.md")?;
            return Ok(Exit::Done);
        }
        // Only servers that share the work report their adapters.
        let shares_work = cluster.servers.iter().any(|server| !server.adapters.is_empty());
        let notes = cluster.servers.iter().filter_map(block);
        let notes: Vec<String> = notes.chain(cluster.servers.iter().filter_map(differences)).collect();
        let rows = cluster.servers.into_iter().map(|server| {
            let role = match (server.active, server.working) {
                (_, true) if server.draining => "draining",
                (true, _) if shares_work => "leads",
                (true, _) => "active",
                (false, true) => "at work",
                (false, false) if server.seen_ms > SILENT_MS => "not seen",
                (false, false) if shares_work => "not at work",
                (false, false) => "standing by",
            };
            vec![
                server.name,
                role.to_owned(),
                server.sessions.to_string(),
                server.labels.join(", "),
                server.address,
                server.version,
                seconds(server.up_ms),
                seconds(server.seen_ms),
            ]
        });
        output.print_table(
            &["server", "role", "sessions", "labels", "address", "version", "up", "seen"],
            rows.collect(),
        )?;
        output.print_note(format_args!("takeovers: {}", cluster.takeovers))?;
        for note in notes {
            output.print_note(note)?;
        }
        for waiting in cluster.waiting {
            output.print_note(format_args!(
                "sessions that wait for a server with the labels {}: {}",
                waiting.labels.join(", "),
                waiting.sessions
            ))?;
        }
        Ok(Exit::Done)
    }
}

/// Describes the block of a server: its part of the permits that all servers share.
fn block(server: &ClusterServer) -> Option<String> {
    let kinds = [(server.workers, "with a process"), (server.in_process_runs, "without a process")];
    let counts: Vec<String> =
        kinds.into_iter().filter_map(|(runs, kind)| Some(format!("{} {kind}", runs?))).collect();
    (!counts.is_empty())
        .then(|| format!("active runs that {} may have now: {}", server.name, counts.join(", ")))
}

/// Describes the settings in which a server differs from the active one.
fn differences(server: &ClusterServer) -> Option<String> {
    let (name, groups) = (&server.name, server.differs.join(", "));
    let note = format!("settings of {name} that differ from those of the active server: {groups}");
    (!server.differs.is_empty()).then_some(note)
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1_000, ms % 1_000 / 100)
}
