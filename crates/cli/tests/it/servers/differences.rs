//! Servers of a cluster whose settings differ: some are refused, others are named.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_differ_are_named_without_their_values() {
    let settings = vec![
        vec![],
        vec![
            ("MAINSPRING_LIMITS_PAGE", "7"),
            ("MAINSPRING_ON_ORPHAN", "retry"),
            ("MAINSPRING_MAX_WORKERS", "3"),
        ],
    ];
    let mut servers = Servers::prepare(settings, true, false);
    servers.spawn(0);
    servers.ready(0).await;
    servers.spawn(1);
    servers.ready(1).await;
    let cluster = send(servers.request(1, Method::GET, "/v1/cluster")).await.unwrap();
    let differs = |n: usize| cluster["servers"][n]["differs"].clone();
    assert_eq!((differs(0), differs(1)), (Value::Null, json!(["limits", "runs"])), "{cluster}");
    let log = servers.log(1);
    assert!(log.contains("limits, runs") && log.contains("server 1"), "{log}");
    assert!(!servers.log(0).contains("limits, runs"), "the difference was reported too early");
    for command in ["cluster status", "doctor"] {
        let output = servers.command(0).args(command.split(' ')).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let line = text.lines().find(|line| line.contains("limits, runs"));
        assert!(line.is_some_and(|line| line.contains("server 1")), "{command}: {text}");
    }
    let stored = psql(&servers.database, "SELECT settings FROM nodes");
    assert!(!stored.contains("retry"), "{stored}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_would_break_a_guarantee_of_the_others_is_refused() {
    let settings = vec![
        vec![("MAINSPRING_CLUSTER_MAX_WORKERS", "4")],
        vec![("MAINSPRING_CLUSTER_MAX_WORKERS", "5")],
        vec![("MAINSPRING_CLUSTER_MAX_WORKERS", "4"), ("MAINSPRING_CLUSTER_SPREAD", "false")],
    ];
    let mut servers = Servers::prepare(settings, true, false);
    servers.spawn(0);
    servers.ready(0).await;
    for (n, words) in
        [(1, ["`cluster.max_workers`", "4 on", "5 on"]), (2, ["`cluster.spread`", "true on", "false on"])]
    {
        let refused = servers.command(n).arg("serve").output().unwrap();
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{text}");
        let servers = ["server 0".to_owned(), format!("server {n}")];
        let missing: Vec<&str> = words
            .into_iter()
            .chain(servers.iter().map(String::as_str))
            .filter(|word| !text.contains(word))
            .collect();
        assert!(missing.is_empty(), "{missing:?} in {text}");
    }
    // The refused servers do not join the cluster, and the first server goes on.
    assert_eq!(psql(&servers.database, "SELECT name FROM nodes"), "server 0");
    servers.ready(0).await;
}
