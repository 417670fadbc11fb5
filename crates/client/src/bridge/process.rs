//! The one daemon process of a state directory, shared by all handles of this application.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use mainspring_core::AuthMethod;
use tokio::sync::{broadcast, watch};

use super::shared::{Shared, lock};
use super::supervise::supervise;
use super::{AgentBridge, BridgeError, BridgeOptions, Launch};
use crate::{Client, Error};

/// The owner that the daemon assumes where none is named.
const OWNER: &str = "desktop-local-user";

/// A daemon process, started again when it dies. Cheap to clone; when the last handle to it is gone, it is asked to stop.
#[derive(Clone)]
pub struct RuntimeProcess(Arc<Owned>);

/// How the process is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// What it is doing.
    pub phase: Phase,
    /// Its process id, while there is one.
    pub pid: Option<u32>,
    /// How often it was started again.
    pub restarts: u32,
    /// How many failures in a row there were.
    pub failures: u32,
    /// What ended the last one.
    pub why: Option<String>,
}

/// What the process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// It starts.
    #[default]
    Starting,
    /// It answers.
    Ready,
    /// It died, and will be started again.
    Restarting,
    /// It died too often. The next query tries again.
    Failed,
    /// It was stopped by this side.
    Stopped,
}

/// What the process says that is no part of a query.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// An agent wants the user to authenticate.
    AuthRequired {
        /// How the user can.
        methods: Vec<AuthMethod>,
        /// Where.
        auth_url: Option<String>,
    },
    /// The user has.
    AuthSuccess,
    /// Something that has no answer otherwise was refused, such as invalidating a session that is busy.
    Refused {
        /// What.
        request_id: String,
        /// Whose.
        client_id: String,
        /// Stable, snake_case.
        code: String,
        /// For people.
        message: String,
    },
}

/// Whose process: the program and the state directory.
type Key = (PathBuf, PathBuf);

/// The processes of this application.
static PROCESSES: LazyLock<Mutex<HashMap<Key, Weak<Owned>>>> = LazyLock::new(Mutex::default);

struct Owned {
    shared: Arc<Shared>,
    key: Key,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.shared.stop.send_replace(true);
        let mut processes = lock(&PROCESSES);
        if processes.get(&self.key).is_some_and(|known| known.strong_count() == 0) {
            processes.remove(&self.key);
        }
    }
}

impl RuntimeProcess {
    /// The process of this program and state directory: the one that lives, else a new one. Resolves once it is ready, or
    /// cannot be.
    pub async fn start(launch: Launch) -> Result<Self, BridgeError> {
        let process = Self::find(launch)?;
        process.0.shared.want();
        process.ready().await?;
        Ok(process)
    }

    fn find(launch: Launch) -> Result<Self, BridgeError> {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        // A program without a folder is found by the system's search path, not here.
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
            // Whoever goes last takes the lock.
            drop(processes);
            let state_dir = launch.state_dir.display().to_string();
            return match known.shared.launch == launch {
                true => Ok(Self(known.clone())),
                false => Err(BridgeError::Launched { state_dir }),
            };
        }
        let owned = Arc::new(Owned { shared: Arc::new(Shared::new(launch)), key: key.clone() });
        processes.insert(key, Arc::downgrade(&owned));
        drop(processes);
        spawn(supervise(owned.shared.clone()));
        Ok(Self(owned))
    }

    /// Resolves once the process is ready, or cannot be.
    pub async fn ready(&self) -> Result<(), BridgeError> {
        let mut health = self.health();
        let settled = |health: &Health| matches!(health.phase, Phase::Ready | Phase::Failed | Phase::Stopped);
        match health.wait_for(settled).await {
            Ok(health) if health.phase == Phase::Ready => Ok(()),
            Ok(health) if health.phase == Phase::Failed => {
                Err(BridgeError::Lost { why: health.why.clone().unwrap_or_default() })
            }
            _ => Err(BridgeError::Stopped),
        }
    }

    /// How it is, and how it will be.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.0.shared.health.subscribe()
    }

    /// The end of what the process that is running, or ran last, said on its standard error.
    pub fn stderr(&self) -> String {
        lock(&self.0.shared.stderr).text()
    }

    /// What the process says from now on that is no part of a query.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.0.shared.notices.subscribe()
    }

    /// A handle that asks, with a name of its own.
    pub fn bridge(&self) -> AgentBridge {
        self.bridge_with(BridgeOptions::default())
    }

    /// A handle that asks as `options` say.
    pub fn bridge_with(&self, options: BridgeOptions) -> AgentBridge {
        AgentBridge::new(self.clone(), options)
    }

    /// A client of the same sessions over HTTP, on the state directory's socket, for the owner of its queries.
    pub fn client(&self) -> Result<Client, Error> {
        let launch = &self.0.shared.launch;
        let client = Client::of_state_dir(&launch.state_dir)?;
        Ok(client.for_owner(launch.owner.as_deref().unwrap_or(OWNER)))
    }

    /// Stops it for everybody: what is under way is cancelled and told, and this returns once the process has ended.
    pub async fn stop(&self) {
        self.0.shared.stop.send_replace(true);
        // What is watched lives as long as this.
        let _ = self.health().wait_for(|health| health.phase == Phase::Stopped).await;
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.0.shared
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a client has no kernel's tasks; this one outlives its handles on purpose, to stop the process in good order"
)]
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}
