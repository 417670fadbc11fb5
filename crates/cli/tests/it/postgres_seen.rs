//! Reports about the database of a server on PostgreSQL: `doctor`, metrics, and the demo of a cluster.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::cli::{json_lines, run};
use crate::http::Server;
use crate::postgres_cluster::database;

/// The findings of `doctor` about a subject: health and text.
fn findings<'a>(report: &'a [Value], subject: &str) -> Vec<(&'a str, &'a str)> {
    let of_subject = report.iter().filter(|finding| finding["what"] == subject);
    of_subject
        .map(|finding| (finding["health"].as_str().unwrap(), finding["found"].as_str().unwrap()))
        .collect()
}

#[test]
fn doctor_examines_a_postgresql_and_changes_nothing() {
    let (dir, url) = (tempfile::tempdir().unwrap(), database());
    let doctor = run(dir.path(), &["--store", &url, "doctor", "--json"]);
    let report = json_lines(&doctor);
    assert_eq!(doctor.code, 0, "{}{}", doctor.out, doctor.err);
    let [(health, text)] = findings(&report, "schema")[..] else { panic!("{}", doctor.out) };
    assert!(health == "note" && text.contains("no tables"), "{text}");
    // The PostgreSQL of the tests does not wait for the disk.
    let [(health, text)] = findings(&report, "durability")[..] else { panic!("{}", doctor.out) };
    assert!(health == "note" && text.contains("fsync off") && text.contains("switch fsync"), "{text}");
    for (subject, part) in [
        ("database", "MiB"),
        ("postgresql", "."),
        ("latency", "commit"),
        ("feed", "no transaction"),
        ("database clock", "this machine"),
    ] {
        let [(health, text)] = findings(&report, subject)[..] else { panic!("{subject}: {}", doctor.out) };
        assert!(health == "ok" && text.contains(part), "{subject}: {text}");
    }
    assert!(findings(&report, "server").is_empty(), "there is no cluster: {}", doctor.out);
    assert_eq!(run(dir.path(), &["--store", &url, "prompt", "--adapter", "script", "say hi"]).code, 0);
    let doctor = run(dir.path(), &["--store", &url, "doctor", "--json"]);
    let report = json_lines(&doctor);
    assert_eq!(findings(&report, "schema")[0].0, "ok", "{}", doctor.out);

    let away = url.replace("?host=", "?host=/nowhere");
    let doctor = run(dir.path(), &["--store", &away, "doctor", "--json"]);
    assert_eq!(doctor.code, 5, "{}", doctor.out);
    assert_eq!(findings(&json_lines(&doctor), "database")[0].0, "bad", "{}", doctor.out);
}

#[tokio::test]
async fn the_documented_metrics_of_postgresql_match_the_server() {
    let url = database();
    let server = Server::start_with(&[("MAINSPRING_STORE", &url)]);
    let run = server.prompt("a", "say hi").await;
    server.wait_ended(&run).await;
    let answer = server.request(reqwest::Method::GET, "/metrics").send().await.unwrap();
    let page = answer.text().await.unwrap();
    assert!(page.ends_with("# EOF\n"), "{page}");
    let value = |name: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}: {page}")).parse().unwrap()
    };
    let (batches, commits) =
        (value("mainspring_database_batch_seconds_count"), value("mainspring_database_batch_commits_total"));
    assert!(batches >= 1.0 && commits >= batches, "{commits} commits in {batches} transactions");
    assert!(value("mainspring_database_connections{state=\"idle\"}") >= 1.0, "{page}");
    assert!(value("mainspring_feed_lag_seconds") < 60.0, "{page}");
    let document = |name: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        std::fs::read_to_string(path).unwrap()
    };
    let rows = |text: &str| -> BTreeSet<String> {
        let rows =
            text.lines().filter_map(|line| line.strip_prefix("| `mainspring_")?.split(['`', '{']).next());
        rows.map(|name| format!("mainspring_{name}")).collect()
    };
    let shown: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        })
        .collect();
    let mut documented = rows(&document("metrics.md"));
    documented.extend(rows(&document("postgresql.md")));
    // A server on its own has no lease.
    assert!(
        documented.remove("mainspring_lease_left_seconds") && documented.remove("mainspring_takeovers_total")
    );
    assert_eq!(shown, documented);
}

#[test]
fn the_demo_of_a_cluster_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let demo = run(dir.path(), &["demo", "--cluster"]);
    assert_eq!(demo.code, 0, "{}{}", demo.out, demo.err);
    for part in ["stands by", "kill -9 of server", "in attempt 2", "nothing is lost: 6 prompts"] {
        assert!(demo.out.contains(part), "{part}: {}", demo.out);
    }
}
