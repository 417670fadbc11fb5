//! The daemon process of a state directory, shared by all handles of this application.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use mainspring_core::AuthMethod;
use tokio::sync::{broadcast, watch};

use super::shared::{Shared, lock};
use super::supervise::supervise;
use super::{AgentBridge, BridgeError, BridgeOptions, Launch};
use crate::{Client, Error};

/// The owner that the daemon assumes if none is named.
const DEFAULT_OWNER: &str = "desktop-local-user";

/// A daemon process, restarted when it dies. Cheap to clone; dropping the last clone asks the process to stop.
#[derive(Clone)]
pub struct RuntimeProcess(Arc<ProcessOwner>);

/// The health of the process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// The current phase.
    pub phase: Phase,
    /// The process id, while a process runs.
    pub pid: Option<u32>,
    /// Number of restarts.
    pub restarts: u32,
    /// Number of consecutive failures.
    pub failures: u32,
    /// The reason why the last process ended.
    pub reason: Option<String>,
}

/// The lifecycle phase of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// The process is starting.
    #[default]
    Starting,
    /// The process accepts queries.
    Ready,
    /// The process died and will be restarted.
    Restarting,
    /// The process cannot be started, or died too often in a row. The next query starts it again.
    Failed,
    /// The process was stopped by this application.
    Stopped,
}

/// A message of the process that does not belong to a query.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// An agent wants the user to authenticate.
    AuthRequired {
        /// The available methods.
        methods: Vec<AuthMethod>,
        /// The page on which to authenticate.
        auth_url: Option<String>,
    },
    /// The user has authenticated.
    AuthSuccess,
    /// A request without a reply of its own was refused, for example invalidating a busy session.
    Refused {
        /// The request id.
        request_id: String,
        /// The client id of the handle that sent the request.
        client_id: String,
        /// A stable code in snake_case.
        code: String,
        /// A message for people.
        message: String,
    },
}

/// The identity of a process: its program and state directory.
type ProcessKey = (PathBuf, PathBuf);

/// The running processes of this application.
static PROCESSES: LazyLock<Mutex<HashMap<ProcessKey, Weak<ProcessOwner>>>> = LazyLock::new(Mutex::default);

/// Stops the process when the last clone of its [`RuntimeProcess`] is dropped.
struct ProcessOwner {
    shared: Arc<Shared>,
    key: ProcessKey,
}

impl Drop for ProcessOwner {
    fn drop(&mut self) {
        self.shared.stop.send_replace(true);
        let mut processes = lock(&PROCESSES);
        if processes.get(&self.key).is_some_and(|known| known.strong_count() == 0) {
            processes.remove(&self.key);
        }
    }
}

impl RuntimeProcess {
    /// Returns the running process of this program and state directory, or starts one. Resolves once the process is
    /// ready or has failed.
    pub async fn start(launch: Launch) -> Result<Self, BridgeError> {
        let process = Self::find_or_spawn(launch)?;
        process.0.shared.restart_if_given_up();
        process.ready().await?;
        Ok(process)
    }

    fn find_or_spawn(launch: Launch) -> Result<Self, BridgeError> {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        // A program without a folder is found through `PATH`, so its path stays as it is.
        let program = match launch.program.components().count() {
            1 => launch.program.clone(),
            _ => absolute(&launch.program),
        };
        let key = (program, absolute(&launch.state_dir));
        let mut processes = lock(&PROCESSES);
        let known = processes.get(&key).and_then(Weak::upgrade);
        if let Some(known) = &known
            && !*known.shared.stop.borrow()
        {
            // Dropping the last reference to a `ProcessOwner` takes this lock, so release it first.
            drop(processes);
            let state_dir = launch.state_dir.display().to_string();
            return match known.shared.launch == launch {
                true => Ok(Self(known.clone())),
                false => Err(BridgeError::LaunchConflict { state_dir }),
            };
        }
        let owner = Arc::new(ProcessOwner { shared: Arc::new(Shared::new(launch)), key: key.clone() });
        processes.insert(key, Arc::downgrade(&owner));
        drop(processes);
        spawn(supervise(owner.shared.clone()));
        Ok(Self(owner))
    }

    /// Waits until the process is ready or has failed.
    pub async fn ready(&self) -> Result<(), BridgeError> {
        let mut health = self.health();
        let settled = |health: &Health| matches!(health.phase, Phase::Ready | Phase::Failed | Phase::Stopped);
        match health.wait_for(settled).await {
            Ok(health) if health.phase == Phase::Ready => Ok(()),
            Ok(health) if health.phase == Phase::Failed => {
                Err(BridgeError::Lost { reason: health.reason.clone().unwrap_or_default() })
            }
            _ => Err(BridgeError::Stopped),
        }
    }

    /// Watches the health of the process.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.0.shared.health.subscribe()
    }

    /// Returns the end of the standard error of the current process, or of the last one.
    pub fn stderr(&self) -> String {
        lock(&self.0.shared.stderr).text()
    }

    /// Subscribes to later messages that do not belong to a query.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.0.shared.notices.subscribe()
    }

    /// Creates a handle with a generated client id.
    pub fn bridge(&self) -> AgentBridge {
        self.bridge_with(BridgeOptions::default())
    }

    /// Creates a handle with `options`.
    pub fn bridge_with(&self, options: BridgeOptions) -> AgentBridge {
        AgentBridge::new(self.clone(), options)
    }

    /// Creates an HTTP client of the same sessions, on the state directory's socket, for the owner of the queries.
    pub fn client(&self) -> Result<Client, Error> {
        let launch = &self.0.shared.launch;
        let client = Client::from_state_dir(&launch.state_dir)?;
        Ok(client.for_owner(launch.owner.as_deref().unwrap_or(DEFAULT_OWNER)))
    }

    /// Stops the process for all handles: active queries are cancelled and end. Returns once the process has exited.
    pub async fn stop(&self) {
        self.0.shared.stop.send_replace(true);
        // The sender lives as long as `self`, so the wait cannot fail.
        let _ = self.health().wait_for(|health| health.phase == Phase::Stopped).await;
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.0.shared
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a client does not have the kernel's tasks; this task outlives its handles on purpose, to stop the process cleanly"
)]
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}
