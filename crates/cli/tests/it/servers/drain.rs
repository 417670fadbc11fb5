//! Servers that share the work are stopped: they hand their sessions over, and interrupt no run that can wait.

use futures_util::{StreamExt, future};
use tokio::sync::watch;

use super::*;

/// Settings of a server whose runs may finish for as long as a test takes.
fn patient(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [("MAINSPRING_DRAIN_MS", "600000")].iter().chain(more).copied().collect()
}

/// The readers of sessions, through all servers in turn.
struct Readers {
    reading: JoinSet<(String, Vec<u64>)>,
    is_settled: watch::Sender<bool>,
}

impl Readers {
    fn start(servers: &Servers, sessions: &[String]) -> Self {
        let urls: Vec<String> = servers.ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        let shared = Arc::new((servers.client.clone(), urls, servers.token()));
        let (mut reading, is_settled) = (JoinSet::new(), watch::Sender::new(false));
        for (n, session) in sessions.iter().enumerate() {
            let reader = Reader { session: session.clone(), after: (0, 0), cursors: vec![] };
            reading.spawn(reader.read(Arc::clone(&shared), n, is_settled.subscribe()));
        }
        Self { reading, is_settled }
    }

    /// Ends the readers once all runs have ended, and compares the events of each with what is stored.
    async fn end(mut self, database: &str) {
        self.is_settled.send_replace(true);
        while let Some(read) = self.reading.join_next().await {
            let (session, cursors) = read.unwrap();
            let (_, id) = session.split_once('_').unwrap();
            let stored =
                format!("SELECT cursor FROM events WHERE encode(session_id, 'hex') = '{id}' ORDER BY cursor");
            let stored = psql(database, &stored);
            let stored: Vec<u64> = stored.lines().map(|cursor| cursor.parse().unwrap()).collect();
            assert!(!stored.is_empty());
            assert_eq!(cursors, stored, "{session}: each event once, in order");
        }
    }
}

/// A reader that reads on after its last position whenever its stream ends.
struct Reader {
    session: String,
    /// The position of the last item.
    after: (u64, u64),
    cursors: Vec<u64>,
}

impl Reader {
    async fn read(
        mut self,
        servers: Arc<(Client, Vec<String>, String)>,
        mut turn: usize,
        mut is_settled: watch::Receiver<bool>,
    ) -> (String, Vec<u64>) {
        let (client, urls, token) = &*servers;
        loop {
            turn += 1;
            let url = format!("{}/v1/sessions/{}/events", urls[turn % urls.len()], self.session);
            let after = format!("{}.{}", self.after.0, self.after.1);
            let request = client.get(url).bearer_auth(token).query(&[("after", after)]);
            if *is_settled.borrow() {
                let Some(page) = send(request.query(&[("limit", "200")])).await else { continue };
                let items = page["items"].as_array().unwrap();
                for event in items {
                    let cursor = event["cursor"].as_u64().unwrap();
                    self.after = (cursor, event["pos"].as_u64().unwrap_or_default());
                    self.cursors.push(cursor);
                }
                if items.is_empty() {
                    return (self.session, self.cursors);
                }
                continue;
            }
            let request = request.header("accept", "text/event-stream");
            let Some(answer) = send_once(request).await else { continue };
            if !answer.status().is_success() {
                assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "{:?}", answer.text().await);
                continue;
            }
            let whole = answer.bytes_stream().take_while(|piece| future::ready(piece.is_ok()));
            let mut stream = EventStream::new(whole);
            loop {
                let frame = tokio::select! {
                    frame = stream.next() => frame,
                    _ = is_settled.wait_for(|is_settled| *is_settled) => None,
                };
                let Some(frame) = frame else { break };
                self.take(&frame.id.unwrap_or_default(), &frame.event, &frame.data);
            }
        }
    }

    fn take(&mut self, id: &str, event: &str, data: &Value) {
        let (cursor, pos) = id.split_once('.').unwrap_or_else(|| panic!("{event} {data}"));
        let at: (u64, u64) = (cursor.parse().unwrap(), pos.parse().unwrap());
        match event {
            "message.delta" => {
                let bytes = data["payload"]["text"].as_str().unwrap().len() as u64;
                assert_eq!(at.1 - bytes, self.after.1, "each byte once: {data}");
            }
            "reset" | "message.truncated" => panic!("{event}: {data}"),
            _ => self.cursors.push(at.0),
        }
        self.after = at;
    }
}

impl Servers {
    /// Waits until a session has its home at another server than `before`.
    async fn moved(&self, key: &str, before: usize) {
        until(async || self.home(key).filter(|home| *home != before)).await;
    }

    /// Waits until a run has this status, through the server `n`. Returns the run.
    async fn run_is(&self, n: usize, run: &Value, status: &str) -> Value {
        let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
        until(async || {
            let run = send(self.request(n, Method::GET, &path)).await?;
            (run["status"] == status).then_some(run)
        })
        .await
    }

    /// Prompts the native agent, which then waits for the result of a tool. Returns the run.
    async fn wait_for_tool(&self, n: usize, key: &str) -> Value {
        let tool = json!({"name": "weather", "description": "", "inputSchema": {"type": "object"}});
        let body = json!({
            "prompt": "tool weather {}\nsay dry", "adapter": "native",
            "session": {"key": key, "agentDefinition": "asker"}, "options": {"tools": [tool]},
        });
        let definition = json!({"id": "asker", "model": "scripted/any"});
        send(self.request(n, Method::POST, "/v1/agents").json(&definition)).await.unwrap();
        let run = send(self.request(n, Method::POST, "/v1/runs").json(&body)).await.unwrap();
        self.run_is(n, &run, "waiting_input").await
    }

    /// Fails if a run was interrupted, or a server was taken over. The test has cancelled some runs.
    fn check_uninterrupted(&self, cancelled: usize) {
        let other = "SELECT count(*) FROM runs WHERE status <> 'succeeded'";
        assert_eq!(psql(&self.database, other), cancelled.to_string(), "every other run succeeds");
        let counts = "SELECT (SELECT count(*) FROM runs) = (SELECT count(*) FROM attempts)";
        assert_eq!(psql(&self.database, counts), "t", "every run is executed once");
        assert_eq!(psql(&self.database, "SELECT takeovers FROM server_lease"), "0");
    }
}

fn id_of(run: &Value) -> String {
    run["sessionId"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_hands_over_inactive_sessions_at_once() {
    let few = patient(&[("MAINSPRING_MAX_IN_PROCESS_RUNS", "3")]);
    let mut servers = Servers::start_with_settings(vec![few; 3], true).await;
    let stopped = servers.active().unwrap();
    let other = (stopped + 1) % 3;
    let idle = servers.prompt(stopped, "idle", "say hello").await;
    servers.run_is(stopped, &idle, "succeeded").await;
    let asks = servers.wait_for_tool(stopped, "asks").await;
    let hangs = servers.prompt(stopped, "hangs", "hang").await;
    let after = servers.prompt(stopped, "hangs", "say after").await;
    let mut sessions = vec![id_of(&idle), id_of(&asks), id_of(&hangs)];
    let mut hanging = vec![hangs];
    for key in ["full1", "full2"] {
        hanging.push(servers.prompt(stopped, key, "hang").await);
    }
    for run in &hanging {
        servers.run_is(other, run, "running").await;
    }
    // Every permit is in use.
    let queued = servers.prompt(stopped, "queued", "stream 5 every 10ms x; say done").await;
    assert_eq!((servers.home("queued"), &queued["status"]), (Some(stopped), &json!("queued")));
    sessions.push(id_of(&queued));
    let readers = Readers::start(&servers, &sessions);

    servers.signal(stopped, Signal::TERM);
    let draining = async || {
        let status = send(servers.request(other, Method::GET, "/v1/cluster")).await?;
        let server = status["servers"].as_array()?.iter().find(|server| server["draining"] == true)?.clone();
        Some(server["name"].as_str()?.to_owned())
    };
    assert_eq!(until(draining).await, format!("server {stopped}"));
    let printed = servers.command(other).args(["cluster", "status"]).output().unwrap();
    assert!(String::from_utf8_lossy(&printed.stdout).contains("draining"), "{printed:?}");
    for key in ["idle", "asks", "queued"] {
        servers.moved(key, stopped).await;
    }
    servers.run_is(other, &queued, "succeeded").await;
    // The stopped server still answers requests for sessions that it has handed over, and for new ones.
    let body = json!({
        "waitId": asks["wait"]["waitId"],
        "answer": {"kind": "tools", "results": [
            {"toolUseId": asks["wait"]["calls"][0]["toolUseId"], "content": "no rain"},
        ]},
    });
    let path = format!("/v1/runs/{}/answer", asks["runId"].as_str().unwrap());
    until(async || send(servers.request(stopped, Method::POST, &path).json(&body)).await).await;
    let answered = servers.run_is(stopped, &asks, "succeeded").await;
    assert_eq!(answered["attempts"], 1, "{answered}");
    for key in ["idle", "new"] {
        let run = servers.prompt(stopped, key, "say more").await;
        assert_ne!(servers.home(key), Some(stopped), "{key}");
        servers.run_is(stopped, &run, "succeeded").await;
    }
    let ready = servers.client.get(servers.url(stopped, "/ready")).send().await.unwrap();
    assert_eq!(ready.status(), StatusCode::SERVICE_UNAVAILABLE);
    // An active run stays at its server until it ends. The prompt queued behind it runs at another server.
    assert_eq!(servers.home("hangs"), Some(stopped));
    assert!(servers.children.get_mut(&stopped).unwrap().try_wait().unwrap().is_none());
    for run in &hanging {
        let path = format!("/v1/runs/{}/cancel", run["runId"].as_str().unwrap());
        until(async || send(servers.request(other, Method::POST, &path)).await).await;
    }
    let after = servers.run_is(other, &after, "succeeded").await;
    assert_eq!(after["attempts"], 1, "{after}");
    assert!(servers.children.get_mut(&stopped).unwrap().wait().unwrap().success());
    servers.ready(servers.active().unwrap_or(other)).await;
    readers.end(&servers.database).await;
    servers.check_uninterrupted(hanging.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_restarted_one_after_the_other_interrupt_no_run() {
    let mut servers = Servers::start_with_settings(vec![patient(&[]); 3], true).await;
    let asks = servers.wait_for_tool(0, "asks").await;
    let load = Load::start(&servers);
    let mut sessions = vec![id_of(&asks)];
    for writer in 0..3 {
        until(async || servers.home(&format!("s{writer}"))).await;
        let by_key = servers.request(0, Method::GET, &format!("/v1/sessions/s{writer}"));
        sessions.push(id_of(&until(async || send(by_key.try_clone().unwrap()).await).await));
    }
    let readers = Readers::start(&servers, &sessions);
    for n in 0..3 {
        let node = servers.node(n);
        // More work than one server can do, with runs that take a while and prompts queued behind them.
        for session in 0..4 {
            for prompt in ["sleep 200ms; say first", "say second", "stream 5 every 10ms x"] {
                servers.prompt(n, &format!("k{n}{session}"), prompt).await;
            }
        }
        servers.signal(n, Signal::TERM);
        let ended = servers.children.get_mut(&n).unwrap().wait().unwrap();
        assert!(ended.success(), "{}", servers.log(n));
        servers.wait_until_gone(&node);
        servers.spawn(n);
        servers.ready(n).await;
    }
    let body = json!({
        "waitId": asks["wait"]["waitId"],
        "answer": {"kind": "tools", "results": [
            {"toolUseId": asks["wait"]["calls"][0]["toolUseId"], "content": "no rain"},
        ]},
    });
    let path = format!("/v1/runs/{}/answer", asks["runId"].as_str().unwrap());
    until(async || send(servers.request(0, Method::POST, &path).json(&body)).await).await;
    load.end(&servers.database, 0).await;
    readers.end(&servers.database).await;
    servers.check_uninterrupted(0);
}
