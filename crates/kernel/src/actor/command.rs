//! What an actor is told, by callers, by adapters and by the kernel itself.

use mainspring_core::session::Command as SessionCommand;
use mainspring_core::{Answer, AttemptId, Binding, Point, Run, RunId, Session, WaitId};
use tokio::sync::oneshot;
use tokio::task::JoinError;

use super::BindingChange;
use crate::adapter::{Ask, Death, Dispatch, Executed, Holder, Record, Recording};
use crate::error::Error;
use crate::feed::Subscription;
use crate::kernel::{Accept, Accepted, Caller, CancelOutcome, Snapshot};
use crate::scheduler::Permit;
use crate::store::{Request, StoreError};

/// The answer to a command.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// What an actor is told.
pub(crate) enum Command {
    /// Accept a prompt.
    Accept(Box<Accept>, Reply<AcceptOutcome>),
    /// Create the session, if it is new, and remember the request that asked for it.
    Create(Option<Box<Request>>, Reply<Result<Session, StoreError>>),
    /// Stop a run.
    Cancel(RunId, Reply<CancelOutcome>),
    /// Try an ended run again.
    Retry(RunId, Reply<Run>),
    /// Answer a waiting run.
    Answer(RunId, WaitId, Answer, Reply<Run>),
    /// Change the session itself.
    Session(Vec<SessionCommand>, Option<u64>, Reply<Session>),
    /// Change what the session is bound to.
    Binding(BindingChange, Reply<Binding>),
    /// Begin to read, from a snapshot.
    Subscribe(Caller, Reply<(Snapshot, Subscription)>),
    /// An adapter records.
    Record { by: AttemptId, records: Vec<Record>, reply: Recording<()> },
    /// An adapter asks a person and waits.
    Ask { by: AttemptId, ask: Ask, holder: Holder },
    /// An adapter reads where its path ends.
    Head { by: AttemptId, reply: Recording<Option<Point>> },
    /// An execution has returned, panicked or been aborted.
    Executed(AttemptId, Result<Executed, JoinError>),
    /// An adapter was told to stop.
    Dispatched(AttemptId, Dispatch),
    /// An attempt that did not stop in time was killed.
    Killed(AttemptId, Death),
    /// A worker is free.
    Granted(Permit),
    /// Stop what runs, because the process stops.
    Shutdown(oneshot::Sender<()>),
}

impl Command {
    /// True for what a caller asks; false for what comes of an attempt of this very actor.
    pub(super) fn is_call(&self) -> bool {
        match self {
            Self::Accept(..) | Self::Create(..) | Self::Cancel(..) | Self::Retry(..) => true,
            Self::Answer(..) | Self::Session(..) | Self::Binding(..) | Self::Subscribe(..) => true,
            Self::Record { .. } | Self::Ask { .. } | Self::Head { .. } | Self::Executed(..) => false,
            Self::Dispatched(..) | Self::Killed(..) | Self::Granted(_) | Self::Shutdown(_) => false,
        }
    }

    /// Answers a command that nobody will carry out.
    pub(crate) fn refuse(self, error: &Error) {
        let error = error.clone();
        match self {
            Self::Accept(_, reply) => drop(reply.send(Err(error))),
            Self::Create(_, reply) => drop(reply.send(Err(error))),
            Self::Cancel(_, reply) => drop(reply.send(Err(error))),
            Self::Retry(_, reply) => drop(reply.send(Err(error))),
            Self::Answer(_, _, _, reply) => drop(reply.send(Err(error))),
            Self::Session(_, _, reply) => drop(reply.send(Err(error))),
            Self::Binding(_, reply) => drop(reply.send(Err(error))),
            Self::Subscribe(_, reply) => drop(reply.send(Err(error))),
            // Whoever executes has lost its authority and learns it by the closed channel.
            Self::Record { .. } | Self::Ask { .. } | Self::Head { .. } | Self::Executed(..) => {}
            Self::Dispatched(..) | Self::Killed(..) | Self::Granted(_) | Self::Shutdown(_) => {}
        }
    }
}

/// What came of an acceptance: accepted, or the name is taken and the caller looks who has it.
pub(crate) type AcceptOutcome = Result<Accepted, StoreError>;
