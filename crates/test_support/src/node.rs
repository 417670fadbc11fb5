//! The kernel, the router in front of it, and its sockets.

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use mainspring_adapters::ScriptAdapter;
use mainspring_core::Time;
use mainspring_http::{Access, Http, HttpLimits};
use mainspring_kernel::adapter::Adapter;
use mainspring_kernel::audit::{Audit, AuditOptions};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::store::Store;
use mainspring_kernel::{Kernel, Options};
use mainspring_reference_store::MemoryStore;
use mainspring_store::{Durability, SqliteOptions, SqliteStore};
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The token that acts for any owner.
pub const TOKEN: &str = "the-token-of-the-state-directory";
/// The owner of requests that name none.
pub const OWNER: &str = "local";
/// The time at which the manual clock starts.
pub const NOW: Time = Time(1_800_000_000_000);

/// A kernel and its HTTP router. The script agent is the default adapter.
pub struct TestNode {
    /// The kernel.
    pub kernel: Kernel,
    /// The kernel's clock.
    pub clock: Clock,
    /// Ends all streams when cancelled.
    pub stop: CancellationToken,
    router: Router,
    limits: HttpLimits,
    /// Holds the bytes of artifacts, the audit log, and the database if there is one.
    dir: TempDir,
}

/// Options of a [`TestNode`].
#[must_use]
pub struct NodeBuilder {
    options: Options,
    limits: HttpLimits,
    clock: Clock,
    store: StoreChoice,
    adapters: Vec<Arc<dyn Adapter>>,
    edge: Box<dyn FnOnce(Http) -> Http + Send>,
    change_audit: fn(&mut AuditOptions),
}

/// The store of a node.
enum StoreChoice {
    Given(Arc<dyn Store>),
    /// A database in the node's folder.
    Sqlite,
}

impl NodeBuilder {
    /// Changes the options of the kernel.
    pub fn options(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// Sets the limits of the HTTP edge.
    pub fn limits(mut self, limits: HttpLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Uses the system's clock, for scripts that sleep and for time limits.
    pub fn system_clock(mut self) -> Self {
        self.clock = Clock::system();
        self
    }

    /// Uses this store instead of the one in memory.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = StoreChoice::Given(store);
        self
    }

    /// Uses SQLite, in the node's folder. For tests with much data: the store in memory is simple, not fast.
    pub fn sqlite(mut self) -> Self {
        self.store = StoreChoice::Sqlite;
        self
    }

    /// Changes the options of the audit log.
    pub fn audit(mut self, change: fn(&mut AuditOptions)) -> Self {
        self.change_audit = change;
        self
    }

    /// Adds an adapter.
    pub fn adapter(mut self, adapter: impl Adapter) -> Self {
        self.adapters.push(Arc::new(adapter));
        self
    }

    /// Changes the HTTP edge.
    pub fn edge(mut self, change: impl FnOnce(Http) -> Http + Send + 'static) -> Self {
        self.edge = Box::new(change);
        self
    }

    /// Starts the kernel.
    pub async fn start(self) -> TestNode {
        let Self { mut options, limits, clock, store, adapters, edge, change_audit } = self;
        let dir = tempfile::tempdir().unwrap();
        options.artifacts = Some(dir.path().join("artifacts"));
        let mut audit = AuditOptions::new(dir.path().join("audit"));
        change_audit(&mut audit);
        options.audit = Some(Arc::new(Audit::open(audit, clock.clone()).unwrap()));
        let store = match store {
            StoreChoice::Given(store) => store,
            StoreChoice::Sqlite => {
                // No test crashes the machine, so a commit need not be synced to disk.
                let options = SqliteOptions { durability: Durability::Normal, ..SqliteOptions::default() };
                let file = dir.path().join("test.sqlite3");
                Arc::new(SqliteStore::open(&file, options, clock.now()).unwrap())
            }
        };
        let kernel = Kernel::start(store, adapters, options, clock.clone(), Ids::system()).await.unwrap();
        let stop = CancellationToken::new();
        let http = Http::new(kernel.clone(), Access::new(TOKEN, OWNER), limits, stop.clone());
        let router = edge(http).router();
        TestNode { kernel, clock, stop, router, limits, dir }
    }
}

impl TestNode {
    /// Returns a builder of a node with a store in memory and a manual clock.
    pub fn builder() -> NodeBuilder {
        NodeBuilder {
            options: Options { owner: Some(OWNER.into()), ..Options::default() },
            limits: HttpLimits::default(),
            clock: Clock::manual(NOW),
            store: StoreChoice::Given(Arc::new(MemoryStore::default())),
            adapters: vec![Arc::new(ScriptAdapter)],
            edge: Box::new(|http| http),
            change_audit: |_| {},
        }
    }

    /// Starts a node with the options of [`TestNode::builder`].
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Returns the router, to be called without a socket.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// A folder that is deleted with the node.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Serves the router on a free port of this machine.
    pub async fn listen(&self) -> Listening {
        self.listen_on("127.0.0.1:0").await
    }

    /// Serves the router on an address such as `127.0.0.1:7433`.
    pub async fn listen_on(&self, address: &str) -> Listening {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut task = JoinSet::new();
        task.spawn(mainspring_http::serve(listener, self.router(), self.limits, CancellationToken::new()));
        Listening { address, _task: task }
    }

    /// Serves the router on a Unix socket at this path.
    pub fn listen_unix(&self, path: &Path) -> Listening {
        let listener = mainspring_http::UnixPeers(UnixListener::bind(path).unwrap());
        let mut task = JoinSet::new();
        task.spawn(mainspring_http::serve(listener, self.router(), self.limits, CancellationToken::new()));
        Listening { address: path.display().to_string(), _task: task }
    }
}

/// A socket in front of a node. Dropping it closes the socket and every connection.
pub struct Listening {
    /// The address: host and port, or the path of a Unix socket.
    pub address: String,
    _task: JoinSet<()>,
}

impl Listening {
    /// Returns the address as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Returns the path of a file of the test certificates: `ca.pem`, `one.cert.pem`, `one.key.pem`, `two.cert.pem` or
/// `two.key.pem`. The CA has signed both certificates, for `localhost` and 127.0.0.1.
pub fn tls_file(name: &str) -> std::path::PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tls").join(name);
    if name.ends_with(".key.pem") {
        // git keeps no permissions, and a key that others can read is refused.
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, private).expect("the key of the tests can be made private");
    }
    path
}
