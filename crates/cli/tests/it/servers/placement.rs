//! Where and when sessions of servers that share the work are executed: labels, and limits of all servers together.

use super::*;

/// A setting of a server with labels.
fn labels(labels: &'static str) -> Vec<(&'static str, &'static str)> {
    vec![("MAINSPRING_CLUSTER_LABELS", labels)]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_labels_is_executed_by_a_server_that_has_them_or_waits_for_one() {
    let mut servers =
        Servers::start_with_settings(vec![labels(""), labels("gpu,eu"), labels("gpu")], true).await;
    let sees_all = async || {
        let status = send(servers.request(0, Method::GET, "/v1/cluster")).await?;
        (status["servers"].as_array()?.iter().filter(|server| server["working"] == true).count() == 3)
            .then_some(status)
    };
    let status = until(sees_all).await;
    let shown: Vec<&Value> =
        status["servers"].as_array().unwrap().iter().map(|server| &server["labels"]).collect();
    assert_eq!(shown, [&json!([]), &json!(["gpu", "eu"]), &json!(["gpu"])]);
    let printed = servers.command(2).args(["cluster", "status"]).output().unwrap();
    assert!(String::from_utf8_lossy(&printed.stdout).contains("gpu, eu"), "{printed:?}");
    let ask = async |n: usize, key: &str, labels: &[&str], prompt: &str| {
        let body = json!({"prompt": prompt, "adapter": "script", "session": {"key": key, "labels": labels}});
        servers.request(n, Method::POST, "/v1/runs").json(&body).send().await.unwrap()
    };
    // The same through any server, and on the command line.
    for (n, key) in [(0, "k0"), (1, "k1"), (2, "k2")] {
        let answer = ask(n, key, &["eu", "gpu"], "say hi").await;
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        assert_eq!(servers.home(key), Some(1), "{key}");
    }
    let prompted = servers
        .command(0)
        .args(["prompt", "--adapter", "script", "--label", "eu", "--session", "k3", "say hi"])
        .output()
        .unwrap();
    assert!(prompted.status.success(), "{prompted:?}");
    assert_eq!(servers.home("k3"), Some(1));
    let refused = ask(0, "none", &["eu", "tpu"], "say hi").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let problem: Value = refused.json().await.unwrap();
    let why = "no server has the label `tpu` that the session needs: server 0 has none; server 1 has gpu, eu; server 2 has gpu";
    assert!(problem["detail"].as_str().unwrap().starts_with(why), "{problem}");
    assert_eq!((&problem["code"], &problem["retryable"]), (&json!("unavailable"), &json!(true)));
    // A session that only server 1 may execute, and one that server 2 may execute too, with queued runs.
    let mut queued = vec![];
    for (key, labels) in [("only", vec!["eu"]), ("both", vec!["gpu"])] {
        let first = ask(1, key, &labels, "sleep 60m").await;
        assert!(first.status().is_success(), "{}", first.text().await.unwrap());
        let next: Value = ask(1, key, &labels, "say after").await.json().await.unwrap();
        queued.push(next["runId"].as_str().unwrap().to_owned());
        assert_eq!(servers.home(key), Some(1));
    }
    let node = servers.node(1);
    let mut child = servers.children.remove(&1).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    servers.wait_until_gone(&node);
    let status = async |servers: &Servers, run: &str| {
        let run = send(servers.request(0, Method::GET, &format!("/v1/runs/{run}"))).await?;
        Some(run["status"].as_str()?.to_owned())
    };
    until(async || (status(&servers, &queued[1]).await? == "succeeded").then_some(())).await;
    assert_eq!(servers.home("both"), Some(2));
    // The other session waits, and names the label for which it waits.
    let waiting = until(async || {
        let status = send(servers.request(2, Method::GET, "/v1/cluster")).await?;
        status["waiting"].is_array().then(|| status["waiting"].clone())
    })
    .await;
    assert_eq!(waiting, json!([{"labels": ["eu"], "sessions": 1}]));
    assert_eq!(status(&servers, &queued[0]).await.as_deref(), Some("queued"));
    let body = json!({"prompt": "say more", "session": {"key": "only"}});
    let refused = servers.request(0, Method::POST, "/v1/runs").json(&body).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let problem: Value = refused.json().await.unwrap();
    assert!(problem["detail"].as_str().unwrap().starts_with("no server has the label `eu`"), "{problem}");
    // The session waits until such a server has joined again.
    servers.spawn(1);
    servers.ready(1).await;
    until(async || (status(&servers, &queued[0]).await? == "succeeded").then_some(())).await;
    assert_eq!(servers.home("only"), Some(1));
    let status = send(servers.request(0, Method::GET, "/v1/cluster")).await.unwrap();
    assert!(status["waiting"].is_null(), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_servers_together_respect_the_limit_of_active_runs() {
    let limit = vec![("MAINSPRING_CLUSTER_MAX_IN_PROCESS_RUNS", "2")];
    let mut servers = Servers::start_with_settings(vec![limit; 3], true).await;
    let active = |servers: &Servers| -> u64 {
        let sql = "SELECT count(*) FROM runs WHERE status IN ('starting', 'running')";
        psql(&servers.database, sql).parse().unwrap()
    };
    for n in 0..9 {
        servers.prompt(n % 3, &format!("k{n}"), "sleep 300ms; say done").await;
    }
    let mut most = 0;
    let ended = "SELECT count(*) FROM runs WHERE status = 'succeeded'";
    while psql(&servers.database, ended) != "9" {
        most = most.max(active(&servers));
        assert!(most <= 2, "{most} runs are active at the same time");
    }
    assert_eq!(most, 2, "the limit is used");
    // One server has all permits, and is killed: the others get them when it is taken over.
    for key in ["long1", "long2"] {
        servers.prompt(1, key, "sleep 60m").await;
    }
    until(async || (active(&servers) == 2).then_some(())).await;
    let status = send(servers.request(0, Method::GET, "/v1/cluster")).await.unwrap();
    let blocks: Vec<u64> = status["servers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|server| server["inProcessRuns"].as_u64().unwrap())
        .collect();
    assert_eq!(blocks, [0, 2, 0], "{status}");
    let waits = servers.prompt(0, "waits", "say done").await;
    let node = servers.node(1);
    let mut child = servers.children.remove(&1).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let path = format!("/v1/runs/{}", waits["runId"].as_str().unwrap());
    let run = send(servers.request(0, Method::GET, &path)).await.unwrap();
    assert_eq!(run["status"], "queued", "its server may still act");
    servers.wait_until_gone(&node);
    until(async || {
        let run = send(servers.request(0, Method::GET, &path)).await?;
        (run["status"] == "succeeded").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quota_of_an_owner_holds_over_all_servers() {
    let quotas = vec![("MAINSPRING_QUOTAS_ACTIVE_RUNS", "2"), ("MAINSPRING_QUOTAS_QUEUED_PROMPTS", "3")];
    let mut servers = Servers::start_with_settings(vec![quotas; 2], true).await;
    let count = |servers: &Servers, status: &str| -> u64 {
        let sql = format!("SELECT count(*) FROM runs WHERE status IN ({status})");
        psql(&servers.database, &sql).parse().unwrap()
    };
    // Six runs over both servers; each is sent again while the owner has three queued ones.
    let (mut most_active, mut most_queued) = (0, 0);
    let mut watch = |servers: &Servers| {
        most_active = most_active.max(count(servers, "'starting', 'running'"));
        most_queued = most_queued.max(count(servers, "'queued'"));
        assert!(most_active <= 2, "{most_active} runs are active at the same time");
        assert!(most_queued <= 3, "{most_queued} prompts are queued at the same time");
    };
    for n in 0..6 {
        let body = json!({
            "prompt": "sleep 300ms; say done", "adapter": "script", "session": {"key": format!("k{n}")},
        });
        until(async || {
            watch(&servers);
            send(servers.request(n % 2, Method::POST, "/v1/runs").json(&body)).await
        })
        .await;
    }
    while count(&servers, "'succeeded'") < 6 {
        watch(&servers);
    }
    assert_eq!(most_active, 2, "the quota is used");
    // One server has the whole quota and is killed: the other one gets it when that server is taken over.
    for key in ["long1", "long2"] {
        servers.prompt(1, key, "sleep 60m").await;
    }
    until(async || (count(&servers, "'running'") == 2).then_some(())).await;
    let waits = servers.prompt(0, "waits", "say done").await;
    assert_eq!(waits["status"], "queued");
    let node = servers.node(1);
    servers.children.kill(1);
    let path = format!("/v1/runs/{}", waits["runId"].as_str().unwrap());
    let run = send(servers.request(0, Method::GET, &path)).await;
    assert!(run.is_none_or(|run| run["status"] == "queued"), "its server may still act");
    servers.wait_until_gone(&node);
    until(async || {
        let run = send(servers.request(0, Method::GET, &path)).await?;
        (run["status"] == "succeeded").then_some(())
    })
    .await;
}
