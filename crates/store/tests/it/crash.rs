//! A PostgreSQL that crashes at COMMIT: it reuses the number of the lost transaction.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use mainspring_core::*;
use mainspring_kernel::store::{Commit, Fence, Row, Store};
use mainspring_store::{PostgresOptions, PostgresStore};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::cluster::{bin, psql, run_script};
use crate::fixtures::*;

/// Starts a cluster that writes its log only at commits. It ends with the test process.
const START: &str = r#"
set -e
trap '' INT TERM HUP
folder=$(mktemp -d "$base/mainspring-postgres-XXXXXX")
trap 'rm -rf "$folder"' EXIT
new_data "$1" "$folder/data"
cat >>"$folder/data/postgresql.conf" <<END
unix_socket_directories = '$folder'
listen_addresses = ''
fsync = off
full_page_writes = off
autovacuum = off
max_wal_senders = 0
wal_level = minimal
wal_writer_delay = 10s
END
"$1/pg_ctl" -D "$folder/data" -l "$folder/log" -w start >/dev/null
echo "$folder"
read -r _ || true
"$1/pg_ctl" -D "$folder/data" -m immediate stop >/dev/null
"#;

/// Ends the cluster as a crash does, and starts it again.
const CRASH: &str = r#"
set -e
set -- $1
"$1/pg_ctl" -D "$2/data" -m immediate stop >/dev/null
"$1/pg_ctl" -D "$2/data" -l "$2/log" -w start >/dev/null
echo "$2"
"#;

/// The fault at the next COMMIT.
enum Cut {
    /// COMMIT does not reach the database. `reached` reports that the client has sent COMMIT; a message to `close` ends
    /// the client's connection.
    Before { reached: oneshot::Sender<()>, close: oneshot::Receiver<()> },
    /// COMMIT is executed, but its answer is lost.
    After,
}

/// A database behind a proxy that can cut connections.
struct Proxied {
    socket: String,
    folder: tempfile::TempDir,
    cut: Arc<Mutex<Option<Cut>>>,
    _script: std::process::Child,
    _connections: JoinSet<()>,
}

impl Proxied {
    fn start() -> Self {
        let (socket, script) = run_script(START, bin().as_ref());
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
        let cut = Arc::default();
        let (upstream, cuts) = (format!("{socket}/.s.PGSQL.5432"), Arc::clone(&cut));
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, cuts) = (upstream.clone(), Arc::clone(&cuts));
                connections.spawn(async move {
                    // The database may be down: the client's connection ends then.
                    if let Ok(database) = UnixStream::connect(upstream).await {
                        pass(client, database, &cuts).await;
                    }
                });
            }
        });
        Self { socket, folder, cut, _script: script, _connections: accepting }
    }

    /// Opens a store whose connections go through the proxy. It has one writer, so that only one transaction is open.
    fn store(&self) -> PostgresStore {
        let options = PostgresOptions { writers: 1, takes_lock: false, feed_wait_ms: 0 };
        let url = format!("postgres://postgres@/postgres?host={}", self.folder.path().display());
        PostgresStore::open(&url, options).unwrap()
    }

    fn sql(&self, sql: &str) -> String {
        psql(&format!("postgres://postgres@/postgres?host={}", self.socket), sql)
    }

    fn crash(&self) {
        let argument = format!("{} {}", bin().display(), self.socket);
        run_script(CRASH, argument.as_ref()).1.wait().unwrap();
    }
}

/// Passes bytes in both directions, until a COMMIT is cut off.
async fn pass(mut client: UnixStream, mut database: UnixStream, cuts: &Mutex<Option<Cut>>) {
    let (mut sent, mut answered) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        tokio::select! {
            read = client.read(&mut sent) => {
                let Ok(count @ 1..) = read else { return };
                let has_commit = sent[..count].windows(7).any(|part| part == b"COMMIT\0");
                let cut = if has_commit { cuts.lock().take() } else { None };
                match cut {
                    Some(Cut::Before { reached, close }) => {
                        reached.send(()).unwrap();
                        return close.await.unwrap();
                    }
                    Some(Cut::After) => {
                        database.write_all(&sent[..count]).await.unwrap();
                        // The database closes the connection after everything before the end is done.
                        database.shutdown().await.unwrap();
                        while matches!(database.read(&mut answered).await, Ok(1..)) {}
                        return;
                    }
                    None => if database.write_all(&sent[..count]).await.is_err() { return },
                }
            }
            read = database.read(&mut answered) => {
                let Ok(count @ 1..) = read else { return };
                if client.write_all(&answered[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Builds a commit that renames session `n`, and that stores an event too if `has_event`.
fn renaming_commit(fence: Fence, n: u64, has_event: bool, title: &str) -> Arc<Commit> {
    let session = Session { title: Some(title.into()), ..session(n) };
    let events = if has_event { vec![progress(n)] } else { vec![] };
    Arc::new(Commit { fence, events, rows: vec![Row::Session(Arc::new(session))] })
}

async fn title(store: &PostgresStore, n: u64) -> Option<String> {
    // Connections of readers may have ended with the database.
    loop {
        if let Ok(loaded) = store.session_load(session_id(n)).await {
            return loaded.unwrap().session.title;
        }
    }
}

/// The state of the lost transaction's number when the writer asks about its commit.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Number {
    /// Another transaction has the number, and is committed.
    Reused,
    /// No transaction has the number yet.
    Free,
}

/// Crashes the database at the COMMIT of a batch. Returns the result of the commit, or `None` if the database happens
/// to remember the number.
async fn crash_at_commit(
    database: &Proxied,
    store: &Arc<PostgresStore>,
    commit: Arc<Commit>,
    number: Number,
) -> Option<Result<Vec<Cursor>, mainspring_kernel::store::StoreError>> {
    let (reached, is_reached) = oneshot::channel();
    let (closes, close) = oneshot::channel();
    *database.cut.lock() = Some(Cut::Before { reached, close });
    let mut committing = JoinSet::new();
    let writer = Arc::clone(store);
    committing.spawn(async move { writer.commit(commit).await });
    is_reached.await.unwrap();
    let lost = "SELECT backend_xid FROM pg_stat_activity WHERE backend_xid IS NOT NULL";
    let lost: u64 = database.sql(lost).parse().unwrap();
    database.crash();
    let next = || database.sql("SELECT pg_current_xact_id()").parse::<u64>().unwrap();
    let is_lost = match number {
        Number::Free => {
            database.sql("SELECT pg_snapshot_xmax(pg_current_snapshot())").parse::<u64>().unwrap() <= lost
        }
        Number::Reused => loop {
            let xid = next();
            if xid >= lost {
                break xid == lost;
            }
        },
    };
    closes.send(()).unwrap();
    let answer = committing.join_next().await.unwrap().unwrap();
    is_lost.then_some(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_transaction_is_not_mistaken_for_one_that_reuses_its_number() {
    let database = Proxied::start();
    let store = Arc::new(database.store());
    let mut n = 0;
    for number in [Number::Reused, Number::Free] {
        for has_event in [true, false] {
            loop {
                n += 1;
                let fence = create_session(&*store, n).await;
                let name = format!("title {n}");
                let answer =
                    crash_at_commit(&database, &store, renaming_commit(fence, n, has_event, &name), number)
                        .await;
                let Some(answer) = answer else { continue };
                // The commit is written again.
                assert_eq!(answer.map(|cursors| cursors.len()), Ok(usize::from(has_event)), "{number:?}");
                assert_eq!(title(&store, n).await, Some(name), "{number:?}, event: {has_event}");
                assert_eq!(events(&*store, n).await.len(), usize::from(has_event), "{number:?}");
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_written_once() {
    let database = Proxied::start();
    let store = Arc::new(database.store());
    for (n, has_event) in [(1, true), (2, false)] {
        let fence = create_session(&*store, n).await;
        let before = database.sql("SELECT pg_current_xact_id()").parse::<u64>().unwrap();
        *database.cut.lock() = Some(Cut::After);
        let cursors = store.commit(renaming_commit(fence, n, has_event, "new")).await.unwrap();
        let after = database.sql("SELECT pg_current_xact_id()").parse::<u64>().unwrap();
        assert_eq!(cursors.len(), usize::from(has_event));
        assert_eq!(title(&store, n).await.as_deref(), Some("new"));
        assert_eq!(events(&*store, n).await.len(), usize::from(has_event));
        assert_eq!(after - before, 2, "there was one transaction, and no second one");
    }
}
