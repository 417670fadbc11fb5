//! Signals: received from the registration on, so that no signal is lost between two waits.

use std::io;

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// A request to stop the process.
pub(super) enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM, or SIGHUP because the terminal was closed.
    Terminate,
}

pub(super) struct Signals {
    interrupt: Stream,
    terminate: Stream,
    hang_up: Stream,
}

impl Signals {
    pub(super) fn register() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal; returns at once for a signal that arrived since the last call.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
            _ = self.hang_up.recv() => Signal::Terminate,
        }
    }
}
