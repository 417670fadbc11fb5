use std::time::Duration;

use futures_util::poll;
use tokio::io::{AsyncBufReadExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};

use super::*;

/// Pi's end of a connection over pipes in memory.
struct FakePi {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    output: WriteHalf<DuplexStream>,
}

impl FakePi {
    async fn receive(&mut self) -> Value {
        let line = soon(self.lines.next_line()).await.unwrap().expect("the connection is closed");
        serde_json::from_str(&line).unwrap()
    }

    async fn write(&mut self, bytes: &[u8]) {
        soon(self.output.write_all(bytes)).await.unwrap();
    }

    async fn send(&mut self, record: &Value) {
        self.write(format!("{record}\n").as_bytes()).await;
    }

    async fn respond(&mut self, command: &Value, data: &Value) {
        let response = json!({"type": "response", "id": command["id"], "success": true, "data": data});
        self.send(&response).await;
    }
}

struct Fixture {
    connection: Connection,
    pi: FakePi,
    ignored: Arc<AtomicU64>,
    tasks: Tasks,
}

impl Fixture {
    fn new() -> Self {
        let (client, pi) = tokio::io::duplex(1 << 16);
        let (stdout, stdin) = tokio::io::split(client);
        let (input, output) = tokio::io::split(pi);
        let (ignored, tasks) = (Arc::default(), Tasks::default());
        let connection = Connection::open((stdin, stdout), Arc::clone(&ignored), &tasks);
        Self { connection, pi: FakePi { lines: BufReader::new(input).lines(), output }, ignored, tasks }
    }

    /// Waits until the connection has read everything sent so far.
    async fn sync(&mut self) {
        let pi = &mut self.pi;
        let respond = async {
            let command = pi.receive().await;
            assert_eq!(command["type"], "sync");
            pi.respond(&command, &Value::Null).await;
        };
        let call = self.connection.call(command("sync"));
        soon(async { tokio::join!(call, respond) }).await.0.unwrap();
    }

    fn ignored(&self) -> u64 {
        self.ignored.load(Ordering::Relaxed)
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), Box::pin(future)).await.expect("timed out")
}

#[tokio::test]
async fn responses_reach_their_calls_in_any_order() {
    let Fixture { connection, mut pi, tasks: _tasks, .. } = Fixture::new();
    let (one, two) = (connection.call(command("one")), connection.call(command("two")));
    let respond = async {
        let (first, second) = (pi.receive().await, pi.receive().await);
        assert_eq!((&first["type"], &second["type"]), (&json!("one"), &json!("two")));
        pi.respond(&second, &json!("b")).await;
        pi.respond(&first, &json!("a")).await;
    };
    let (one, two, ()) = soon(async { tokio::join!(one, two, respond) }).await;
    assert_eq!((one.unwrap(), two.unwrap()), (json!("a"), json!("b")));
}

#[tokio::test]
async fn a_refused_command_has_the_message_of_pi() {
    let Fixture { connection, mut pi, tasks: _tasks, .. } = Fixture::new();
    for (error, message) in [(json!("busy"), "busy"), (Value::Null, "the agent refused without saying why")] {
        let call = connection.call(command("prompt"));
        let respond = async {
            let id = pi.receive().await["id"].clone();
            pi.send(&json!({"type": "response", "id": id, "success": false, "error": error})).await;
        };
        let refused = soon(async { tokio::join!(call, respond) }).await.0.unwrap_err();
        assert!(matches!(&refused, CallError::Refused(text) if text == message), "{refused:?}");
    }
}

#[tokio::test]
async fn lines_that_are_not_records_are_ignored() {
    let mut fixture = Fixture::new();
    let mut inbound = fixture.connection.subscribe();
    fixture.pi.write(b"plain text\n\xff\xfe{\n[1, 2]\n\"text\"\n{\"type\": \n\r\n").await;
    // Only a line feed ends a record, not every Unicode line separator.
    fixture.pi.write("{\"type\": \"event\", \"text\": \"a\u{2028}b\\u0085\"}\r\n".as_bytes()).await;
    assert_eq!(soon(inbound.recv()).await.unwrap()["text"], "a\u{2028}b\u{85}");
    assert_eq!(fixture.ignored(), 6);
}

#[tokio::test]
async fn a_turn_receives_events_and_responses_in_order() {
    let mut fixture = Fixture::new();
    let mut inbound = fixture.connection.subscribe();
    let id = fixture.connection.send(command("prompt"));
    let prompt = fixture.pi.receive().await;
    fixture.pi.send(&json!({"type": "before"})).await;
    fixture.pi.respond(&prompt, &Value::Null).await;
    fixture.pi.send(&json!({"type": "after"})).await;
    assert_eq!(soon(inbound.recv()).await.unwrap()["type"], "before");
    let response = soon(inbound.recv()).await.unwrap();
    assert_eq!(response_id(&response), Some(id));
    assert_eq!(response_id(&json!({"type": "event", "id": "1"})), None);
    assert_eq!(soon(inbound.recv()).await.unwrap()["type"], "after");
    fixture.connection.unsubscribe();
    fixture.pi.send(&json!({"type": "too late"})).await;
    fixture.sync().await;
    assert!(soon(inbound.recv()).await.is_none());
    assert_eq!(fixture.ignored(), 1);
}

#[tokio::test]
async fn a_dialog_without_a_turn_is_dismissed() {
    let mut fixture = Fixture::new();
    for (method, dismissed) in [("confirm", true), ("notify", false), ("vendor_dialog", true)] {
        let request = json!({"type": "extension_ui_request", "id": method, "method": method});
        fixture.pi.send(&request).await;
        if dismissed {
            let response = fixture.pi.receive().await;
            assert_eq!(response, json!({"type": "extension_ui_response", "id": method, "cancelled": true}));
        }
    }
    // The next record that pi receives is not a response to the notice.
    fixture.sync().await;
    assert_eq!(fixture.ignored(), 3);
    fixture.connection.record_sender()(&json!({"type": "extension_ui_response", "id": "x"}));
    assert_eq!(fixture.pi.receive().await["id"], "x");
}

#[tokio::test]
async fn a_slow_turn_makes_pi_wait() {
    let Fixture { connection, mut pi, tasks, .. } = Fixture::new();
    let mut inbound = connection.subscribe();
    let total = MAX_QUEUED_RECORDS * 4;
    let writer = tasks.spawn(async move {
        for no in 0..total {
            pi.send(&json!({"type": "event", "no": no, "padding": "x".repeat(1_000)})).await;
        }
        pi
    });
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    assert!(!writer.is_finished(), "the queue of the turn is bounded");
    for no in 0..total {
        assert_eq!(soon(inbound.recv()).await.unwrap()["no"], no);
    }
    soon(writer).await.unwrap();
}

#[tokio::test]
async fn a_closed_connection_ends_calls_and_turns() {
    let Fixture { connection, pi, tasks: _tasks, .. } = Fixture::new();
    let mut inbound = connection.subscribe();
    let mut call = Box::pin(connection.call(command("get_state")));
    assert!(poll!(&mut call).is_pending());
    drop(pi);
    assert!(matches!(soon(call).await, Err(CallError::Disconnected)));
    assert!(soon(inbound.recv()).await.is_none());
    soon(connection.closed()).await;
    assert!(!connection.is_open());
    assert!(soon(connection.subscribe().recv()).await.is_none(), "a later turn ends at once");
    assert!(matches!(soon(connection.call(command("x"))).await, Err(CallError::Disconnected)));
}

#[tokio::test]
async fn an_oversized_record_closes_the_connection() {
    let Fixture { connection, mut pi, tasks: _tasks, .. } = Fixture::new();
    let chunk = vec![b'x'; 1 << 20];
    let flood = async {
        loop {
            pi.output.write_all(&chunk).await.unwrap();
        }
    };
    let closed = async {
        tokio::select! { () = connection.closed() => {}, () = flood => {} }
    };
    soon(closed).await;
    assert!(!connection.is_open());
}

#[tokio::test]
async fn a_dropped_connection_ends_its_tasks() {
    let Fixture { connection, mut pi, tasks, .. } = Fixture::new();
    drop(connection);
    soon(tasks.wait()).await;
    assert_eq!(soon(pi.lines.next_line()).await.unwrap(), None);
}
