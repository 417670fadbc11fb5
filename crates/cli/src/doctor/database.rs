//! Checks of a PostgreSQL database, and of an object store.

use std::time::Duration;

use mainspring::config::Config;
use mainspring_kernel::clock::Clock;
use mainspring_store::{FeedHolder, PostgresCheck, PostgresError, ServerRow};

use super::{Health, Report};

/// The longest wait for the database.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The age from which an open transaction that delays the feed of all sessions is worth a note.
const FEED_LAG_NOTE_MS: i64 = 10_000;
/// The difference of clocks that is worth a note. A difference does no harm: leases follow the database's clock.
const CLOCK_NOTE_MS: i64 = 2_000;
/// The time without a report after which a server of the cluster counts as not seen.
const SERVER_SEEN_MS: i64 = 15_000;
/// The duration of a commit that is worth a note.
const SLOW_COMMIT: Duration = Duration::from_millis(50);

/// Checks the PostgreSQL database of the configuration.
pub(super) async fn check_postgres(config: &Config, url: &str, report: &mut Report) {
    let name = config.database_name();
    let check = match tokio::time::timeout(ANSWER_TIMEOUT, PostgresCheck::read(url)).await {
        Ok(Ok(check)) => check,
        Ok(Err(error)) => return report.add(Health::Bad, "database", format!("{name}: {error}")),
        Err(_) => {
            let seconds = ANSWER_TIMEOUT.as_secs();
            return report.add(Health::Bad, "database", format!("{name}: no answer within {seconds} s"));
        }
    };
    add_server(&name, &check, report);
    add_durability(&check, report);
    add_feed(&check, report);
    add_clock(&check, report);
    if config.cluster.is_enabled() || !check.servers.is_empty() {
        add_servers(&check, report);
    }
}

fn add_server(name: &str, check: &PostgresCheck, report: &mut Report) {
    let mib = check.bytes as f64 / f64::from(1 << 20);
    report.add(Health::Ok, "database", format!("{name}, {mib:.1} MiB"));
    report.add(Health::Ok, "postgresql", check.version.clone());
    if check.is_read_only {
        let copy = "this server is a copy that cannot be written: name the primary in `store`";
        report.add(Health::Bad, "postgresql", copy.into());
    }
    let known = check.known_schema;
    match check.schema {
        _ if check.is_unfinished_copy => {
            report.add(Health::Bad, "schema", PostgresError::UnfinishedCopy.to_string());
        }
        Some(schema) if schema > known => {
            let newer = format!("{schema}, of a newer version: upgrade mainspring, which knows {known}");
            report.add(Health::Bad, "schema", newer);
        }
        Some(schema) if schema == known => report.add(Health::Ok, "schema", schema.to_string()),
        Some(schema) => {
            report.add(Health::Note, "schema", format!("{schema}; the next start migrates it to {known}"));
        }
        None => report.add(Health::Note, "schema", "no tables; the first start makes them".into()),
    }
    let (trip, commit) = (milliseconds(check.round_trip), milliseconds(check.commit));
    let health = if check.commit > SLOW_COMMIT { Health::Note } else { Health::Ok };
    report.add(health, "latency", format!("round trip {trip} ms, commit {commit} ms"));
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64() * 1e3)
}

/// Reports the settings without which an acknowledged change may be lost.
fn add_durability(check: &PostgresCheck, report: &mut Report) {
    let shown: Vec<String> = check.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let off: Vec<&str> =
        check.settings.iter().filter(|(_, value)| value == "off").map(|(name, _)| name.as_str()).collect();
    match off.is_empty() {
        true => report.add(Health::Ok, "durability", shown.join(", ")),
        false => {
            let lost = format!(
                "{}: a crash of the database may lose what was acknowledged; switch {} on",
                shown.join(", "),
                off.join(" and ")
            );
            report.add(Health::Note, "durability", lost);
        }
    }
}

/// Reports the transaction that holds back readers of all sessions.
fn add_feed(check: &PostgresCheck, report: &mut Report) {
    let oldest = check.holders.first().filter(|holder| holder.age_ms >= FEED_LAG_NOTE_MS);
    match oldest {
        Some(FeedHolder { pid, application, database, age_ms }) => {
            let seconds = age_ms / 1_000;
            let remedy = match pid {
                0 => "end it with COMMIT PREPARED or ROLLBACK PREPARED".to_owned(),
                pid => format!("end it, or run SELECT pg_terminate_backend({pid})"),
            };
            let held = format!(
                "events of all sessions are held back for {seconds} s by a transaction of process {pid} \
                 ({application}) in the database {database}: {remedy}"
            );
            report.add(Health::Note, "feed", held);
        }
        None if check.sees_own_only => {
            let unseen =
                "no old transaction of this user; those of others are seen with the role pg_read_all_stats";
            report.add(Health::Ok, "feed", unseen.into());
        }
        None => report.add(Health::Ok, "feed", "no transaction holds events back".into()),
    }
}

fn add_clock(check: &PostgresCheck, report: &mut Report) {
    let ahead_ms = check.now_ms - Clock::system().now().0;
    match ahead_ms.abs() < CLOCK_NOTE_MS {
        true => report.add(Health::Ok, "database clock", "as that of this machine".into()),
        false => {
            let way = if ahead_ms > 0 { "ahead of" } else { "behind" };
            let differs = format!("{:.1} s {way} that of this machine", ahead_ms.abs() as f64 / 1e3);
            report.add(Health::Note, "database clock", differs);
        }
    }
}

/// Reports the servers of the cluster and the lease.
fn add_servers(check: &PostgresCheck, report: &mut Report) {
    for ServerRow { name, address, version, seen_ms, is_active, differs } in &check.servers {
        let role = if *is_active { "active" } else { "stands by" };
        match *seen_ms > SERVER_SEEN_MS {
            true => {
                let seconds = seen_ms / 1_000;
                report.add(Health::Note, "server", format!("{name} at {address}: not seen for {seconds} s"));
            }
            false => report.add(Health::Ok, "server", format!("{name} at {address}: {role}, {version}")),
        }
        if !differs.is_empty() {
            let groups = differs.join(", ");
            let text = format!("{name} differs from the active server in {groups}: make them equal");
            report.add(Health::Note, "settings", text);
        }
    }
    let takeovers = check.takeovers;
    match check.lease_left_ms.filter(|left| *left > 0) {
        Some(left) => {
            let lease = format!("{:.1} s left, {takeovers} takeovers", left as f64 / 1e3);
            report.add(Health::Ok, "lease", lease);
        }
        None => report.add(Health::Note, "lease", format!("no server has it, {takeovers} takeovers")),
    }
}

/// Checks the object store of the configuration.
pub(super) async fn check_object_store(config: &Config, report: &mut Report) {
    match mainspring::artifact_store::probe(config).await {
        Ok(Some(name)) => report.add(Health::Ok, "object store", name),
        Ok(None) => {}
        Err(error) => report.add(Health::Bad, "object store", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check() -> PostgresCheck {
        PostgresCheck {
            version: "15.1".into(),
            schema: Some(6),
            is_unfinished_copy: false,
            known_schema: 6,
            bytes: 1 << 20,
            round_trip: Duration::from_micros(100),
            commit: Duration::from_millis(1),
            settings: vec![("fsync".into(), "on".into())],
            is_read_only: false,
            holders: vec![],
            sees_own_only: false,
            now_ms: 0,
            takeovers: 2,
            lease_left_ms: Some(1_500),
            servers: vec![],
        }
    }

    fn found(examine: impl Fn(&mut Report)) -> Vec<(bool, String)> {
        let mut report = Report::default();
        examine(&mut report);
        report.0.into_iter().map(|finding| (finding.health == Health::Ok, finding.detail)).collect()
    }

    #[test]
    fn the_transaction_that_holds_events_back_is_named_with_its_remedy() {
        let holder =
            |pid, age_ms| FeedHolder { pid, application: "psql".into(), database: "other".into(), age_ms };
        let young = PostgresCheck { holders: vec![holder(7, 900)], ..check() };
        assert!(found(|report| add_feed(&young, report))[0].0);
        let old = PostgresCheck { holders: vec![holder(7, 65_000), holder(8, 900)], ..check() };
        let (is_ok, text) = found(|report| add_feed(&old, report)).remove(0);
        assert!(!is_ok);
        for part in ["65 s", "process 7", "psql", "other", "pg_terminate_backend(7)"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn unseen_servers_and_a_lease_without_a_holder_are_noted() {
        let server = |name: &str, seen_ms, is_active| ServerRow {
            name: name.into(),
            address: "http://a".into(),
            version: "1".into(),
            seen_ms,
            is_active,
            differs: vec![],
        };
        let servers = vec![server("a", 100, true), server("b", 60_000, false)];
        let seen =
            found(|report| add_servers(&PostgresCheck { servers: servers.clone(), ..check() }, report));
        let health: Vec<bool> = seen.iter().map(|(is_ok, _)| *is_ok).collect();
        assert_eq!(health, [true, false, true], "{seen:?}");
        assert!(seen[2].1.contains("2 takeovers"), "{seen:?}");
        let differs = ServerRow { differs: vec!["models".into(), "rules".into()], ..server("c", 100, false) };
        let seen =
            found(|report| add_servers(&PostgresCheck { servers: vec![differs.clone()], ..check() }, report));
        assert!(!seen[1].0 && seen[1].1.contains("models, rules"), "{seen:?}");
        let without_lease = PostgresCheck { lease_left_ms: None, ..check() };
        assert!(!found(|report| add_servers(&without_lease, report))[0].0);
    }
}
