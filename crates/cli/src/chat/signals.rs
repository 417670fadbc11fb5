//! Signals: heard for as long as the conversation lasts, so that none is lost between two things that wait for it.

use std::io;

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use super::input::Read;

/// Tells the process to stop.
pub(super) enum Signal {
    /// By Ctrl-C.
    Interrupt,
    /// By whoever supervises it, or because the terminal has gone.
    Terminate,
}

impl From<Signal> for Read {
    fn from(signal: Signal) -> Self {
        match signal {
            Signal::Interrupt => Self::Interrupted,
            Signal::Terminate => Self::Ended,
        }
    }
}

pub(super) struct Signals {
    interrupt: Stream,
    terminate: Stream,
    hang_up: Stream,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next one, also if it came while nobody waited for it.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
            _ = self.hang_up.recv() => Signal::Terminate,
        }
    }
}
