//! The processes that may use an endpoint.

use rustix::process::geteuid;
use tokio::net::UnixStream;

/// The processes that may use an endpoint.
#[derive(Debug, Clone)]
pub(crate) enum Peers {
    /// The processes under the guard with this mark.
    Guarded(String),
    /// This process: its agent has no process of its own.
    Own,
}

impl Peers {
    /// Reports whether the process at the other end may use the endpoint. The operating system reports its pid and
    /// user.
    pub(super) fn admit(&self, agent: &UnixStream) -> bool {
        let Ok(peer) = agent.peer_cred() else { return false };
        peer.uid() == geteuid().as_raw() && self.has(peer.pid())
    }

    #[cfg(target_os = "linux")]
    fn has(&self, pid: Option<i32>) -> bool {
        use crate::process::{guard_of, mark_of};
        use rustix::process::{Pid, getpid};
        let Some(pid) = pid.and_then(Pid::from_raw) else { return false };
        match self {
            Self::Own => pid == getpid(),
            // An agent can choose its own mark, but not that of its guard, which this process has started.
            Self::Guarded(mark) => guard_of(pid).and_then(mark_of).as_ref() == Some(mark),
        }
    }

    /// Without `/proc` the ancestors of a process are unknown: only the user and the secret path protect the
    /// endpoint.
    #[cfg(not(target_os = "linux"))]
    fn has(&self, _pid: Option<i32>) -> bool {
        true
    }
}
