//! Servers that share the work: sessions live on all of them, any of them answers, and a session whose server ends
//! continues on another.

use super::*;

/// Waits until `is` returns a value.
pub(super) async fn until<T>(mut is: impl AsyncFnMut() -> Option<T>) -> T {
    loop {
        if let Some(value) = is().await {
            return value;
        }
        pause().await;
    }
}

impl Servers {
    /// The number of the server at which the session with this key has its home.
    pub(super) fn home(&self, key: &str) -> Option<usize> {
        let sql = format!(
            "SELECT n.name FROM sessions JOIN leases USING (session_id) JOIN node_leases USING (node_id)
               JOIN nodes AS n USING (node_id) WHERE key = '{key}'"
        );
        psql(&self.database, &sql).strip_prefix("server ").map(|n| n.parse().unwrap())
    }

    /// The id of the process of a server, as the database knows it.
    pub(super) fn node(&self, n: usize) -> String {
        let sql = format!(
            "SELECT encode(node_id, 'hex') FROM nodes JOIN node_leases USING (node_id) WHERE name = 'server {n}'"
        );
        psql(&self.database, &sql)
    }

    /// Waits until the sessions of a process have been given up or taken over.
    pub(super) fn wait_until_gone(&self, node: &str) {
        let sql = format!("SELECT count(*) FROM node_leases WHERE encode(node_id, 'hex') = '{node}'");
        while psql(&self.database, &sql) != "0" {}
    }

    /// Sends a prompt through the server `n` until it is accepted. Returns the run.
    pub(super) async fn prompt(&self, n: usize, key: &str, prompt: &str) -> Value {
        let body = json!({"prompt": prompt, "adapter": "script", "session": {"key": key}});
        until(async || send(self.request(n, Method::POST, "/v1/runs").json(&body)).await).await
    }

    /// Reads the stream of a session from its start through the server `n`, until a run has ended.
    async fn stream(&self, n: usize, session: &str, run: &str) -> Vec<(Option<String>, String)> {
        let request = self.request(n, Method::GET, &format!("/v1/sessions/{session}/events"));
        let request = request.query(&[("after", "0.0")]).header("accept", "text/event-stream");
        let answer = request.send().await.unwrap();
        assert!(answer.status().is_success(), "{n}: {}", answer.text().await.unwrap());
        let mut stream = EventStream::new(answer.bytes_stream());
        let mut durable = vec![];
        loop {
            let frame = stream.next().await.unwrap();
            let is_end = frame.event == "run.succeeded" && frame.data["runId"] == run;
            if frame.event.starts_with("run.") || frame.event == "message.completed" {
                durable.push((frame.id, frame.event));
            }
            if is_end {
                return durable;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_live_on_all_servers_and_any_server_answers_for_each() {
    let servers = Servers::start_with(3, true).await;
    let mut runs = vec![];
    for n in 0..3 {
        let run = servers.prompt(n, &format!("k{n}"), "stream 5 every 10ms x; say done").await;
        assert_eq!(servers.home(&format!("k{n}")), Some(n), "the server that received the request keeps it");
        runs.push(run);
    }
    for (home, run) in runs.iter().enumerate() {
        let (session, id) = (run["sessionId"].as_str().unwrap(), run["runId"].as_str().unwrap());
        let mut streams = vec![];
        for n in 0..3 {
            streams.push(servers.stream(n, session, id).await);
            let found = send(servers.request(n, Method::GET, &format!("/v1/runs/{id}"))).await.unwrap();
            assert_eq!(found["status"], "succeeded", "{n}");
            // The session is named by its key, in the body and in the path.
            let more = servers.prompt(n, &format!("k{home}"), "say more").await;
            assert_eq!(more["sessionId"], session);
            let path = format!("/v1/runs/{}", more["runId"].as_str().unwrap());
            let ended = async || {
                let run = send(servers.request((n + 1) % 3, Method::GET, &path)).await?;
                (run["status"] == "succeeded").then_some(())
            };
            until(ended).await;
            let by_key = format!("/v1/sessions/k{home}/snapshot");
            let snapshot = send(servers.request(n, Method::GET, &by_key)).await.unwrap();
            assert_eq!(snapshot["session"]["sessionId"], session, "{snapshot}");
            assert_eq!(servers.home(&format!("k{home}")), Some(home));
        }
        let first = &streams[0];
        assert!(first.len() >= 3 && streams.iter().all(|stream| stream.starts_with(first)), "{streams:?}");
    }
    // Every server returns the same list of sessions and the same events of all sessions.
    let mut feeds = vec![];
    for n in 0..3 {
        let listed = send(servers.request(n, Method::GET, "/v1/sessions")).await.unwrap();
        assert_eq!(listed["items"].as_array().unwrap().len(), 3, "{listed}");
        let path = "/v1/events?limit=500&after=0.0";
        feeds.push(send(servers.request(n, Method::GET, path)).await.unwrap()["items"].clone());
    }
    assert!(feeds[0].as_array().unwrap().len() > 30 && feeds.iter().all(|feed| *feed == feeds[0]));
    let status = send(servers.request(1, Method::GET, "/v1/cluster")).await.unwrap();
    let shown: Vec<(bool, bool)> = status["servers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|server| {
            (server["working"].as_bool().unwrap(), server["adapters"].to_string().contains("script"))
        })
        .collect();
    assert_eq!(shown, [(true, true); 3], "{status}");
    let leaders =
        status["servers"].as_array().unwrap().iter().filter(|server| server["active"] == true).count();
    assert_eq!(leaders, 1, "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_all_sessions_and_keys_see_changes_of_other_servers() {
    let servers = Servers::start_with(2, true).await;
    // A reader of all sessions sees events of sessions that live on either server.
    let request = servers.request(0, Method::GET, "/v1/events").header("accept", "text/event-stream");
    let mut feed = EventStream::new(request.send().await.unwrap().bytes_stream());
    for n in 0..2 {
        let run = servers.prompt(n, &format!("k{n}"), "say hi").await;
        loop {
            let frame = feed.next().await.unwrap();
            if frame.event == "run.succeeded" && frame.data["runId"] == run["runId"] {
                break;
            }
        }
    }
    // Both servers accept a key that one of them makes, and refuse it soon after it is revoked.
    let key = json!({"name": "a key", "role": "member"});
    let key = send(servers.request(0, Method::POST, "/v1/keys").json(&key)).await.unwrap();
    let (secret, id) = (key["secret"].as_str().unwrap(), key["keyId"].as_str().unwrap());
    let status = async |n: usize| {
        let request = servers.client.get(servers.url(n, "/v1/sessions/none"));
        request.bearer_auth(secret).send().await.unwrap().status()
    };
    for n in 0..2 {
        assert_eq!(status(n).await, StatusCode::NOT_FOUND, "{n}");
    }
    let revoked = servers.request(1, Method::DELETE, &format!("/v1/keys/{id}")).send().await.unwrap();
    assert_eq!(revoked.status(), StatusCode::NO_CONTENT);
    for n in 0..2 {
        until(async || (status(n).await == StatusCode::UNAUTHORIZED).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_share_the_work_neither_lose_nor_repeat_work_when_homes_end() {
    let mut servers = Servers::start_with(3, true).await;
    let load = Load::start(&servers);
    let mut homes = std::collections::BTreeSet::new();
    for writer in 0..3 {
        homes.insert(until(async || servers.home(&format!("s{writer}"))).await);
    }
    assert!(homes.len() > 1, "several servers work: {homes:?}");
    let mut through = 0;
    for fault in ["kill", "stop", "disconnect", "stop", "term"] {
        let ended = servers.run_agent(through, "hello").await;
        assert_eq!(ended["status"], "succeeded", "{fault}: {ended}\n{}", servers.log(through));
        servers.check_agents();
        let home = until(async || servers.home("coding")).await;
        let node = servers.node(home);
        through = (home + 1) % 3;
        match fault {
            "kill" => {
                servers.children.kill(home);
                servers.wait_until_gone(&node);
                servers.spawn(home);
            }
            "stop" => {
                servers.signal(home, Signal::STOP);
                servers.wait_until_gone(&node);
                // The guard has ended the agent of the stopped server, which could not do it.
                assert_eq!(servers.run_agent(through, "hello").await["status"], "succeeded");
                servers.check_agents();
                servers.signal(home, Signal::CONT);
            }
            "disconnect" => {
                servers.disconnect();
            }
            _ => {
                servers.signal(home, Signal::TERM);
                servers.children.get_mut(&home).unwrap().wait().unwrap();
                servers.wait_until_gone(&node);
                servers.spawn(home);
            }
        }
        servers.ready(home).await;
    }
    assert!(servers.check_agents() >= 4, "one for each server that was its home");
    load.end(&servers.database, 3).await;
}
