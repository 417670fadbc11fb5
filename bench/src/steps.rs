//! Steps: accepting a run, two durable tool steps and its result, with the program's default settings.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::http::client::Client;
use crate::http::server::Server;
use crate::stats::{median, ms, percentile};
use crate::table::{Goal, Table};
use crate::world;

const ROUNDS: usize = 3;
const ROUND_TIME: Duration = Duration::from_secs(2);
const CLIENTS: [usize; 2] = [1, 32];

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let server = Server::daemon_with(&folder.file("state"), &[]);
    runtime.block_on(async {
        for clients in CLIENTS {
            let (mut rates, mut times) = (vec![], vec![]);
            for round in 0..ROUNDS {
                let (rate, of_round) = load(&server, clients, round).await;
                rates.push(rate);
                times.extend(of_round);
            }
            let clients = if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
            let measure = format!("accept, two durable tool steps, result: {clients}, default settings");
            table.line(measure.clone(), median(&rates), None, "/s", Goal::None);
            table.batched("commits of different sessions that wait for the disk share a transaction");
            table.line(format!("{measure}, p50"), percentile(&times, 0.5), None, "ms", Goal::None);
            table.batched("commits of different sessions that wait for the disk share a transaction");
        }
    });
}

/// Runs per second, and the duration of each in milliseconds.
pub(crate) async fn load(server: &Server, clients: usize, round: usize) -> (f64, Vec<f64>) {
    let (mut tasks, begin) = (JoinSet::new(), Instant::now());
    for no in 0..clients {
        let mut client = Client::open(server.port, &server.token).await;
        let step = |text: String| format!("tool echo {}", json!({"text": text}));
        let script = [step(world::text(200)), step(world::text(200)), "say done".into()].join("; ");
        let session = json!({"key": format!("{clients}-{round}-{no}")});
        let body = json!({"prompt": script, "adapter": "script", "session": session}).to_string();
        tasks.spawn(async move {
            let mut times = vec![];
            while begin.elapsed() < ROUND_TIME {
                let sent = Instant::now();
                let answer = client.send_waiting("/v1/runs", &body).await;
                times.push(ms(sent.elapsed()));
                assert!(answer.contains(r#""status":"succeeded""#), "{answer}");
            }
            times
        });
    }
    let times = tasks.join_all().await.concat();
    (times.len() as f64 / begin.elapsed().as_secs_f64(), times)
}
