//! What an actor is told, by callers, by adapters and by the kernel itself.

use std::sync::Arc;

use mainspring_core::session::Command as SessionCommand;
use mainspring_core::{
    Answer, AttemptId, Binding, Cursor, Delegation, DelegationId, Message, MessageId, Point, Position, Run,
    RunId, Session, WaitId,
};
use tokio::sync::oneshot;
use tokio::task::JoinError;

use super::{Begins, BindingChange, Data, Instant};
use crate::adapter::{Ask, AskReply, Death, Dispatch, Executed, HandleReply, Record};
use crate::error::{CreateError, Error};
use crate::kernel::{Accept, Accepted, CancelOutcome, Forking};
use crate::scheduler::Permit;
use crate::store::Request;

/// The answer to a command.
pub(crate) type Reply<T, E = Error> = oneshot::Sender<Result<T, E>>;

/// What an actor is told.
pub(crate) enum Command {
    /// Accept a prompt.
    Accept(Box<Accept>, Reply<Accepted, CreateError>),
    /// Create the session, if it is new, and remember the request that asked for it.
    Create(Option<Box<Request>>, Begins, Reply<Session, CreateError>),
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
    /// Say how things stand.
    Snapshot(Reply<Instant>),
    /// Be in memory for whoever opened the session; `started` if it was not before.
    Open { started: bool, reply: Reply<Session> },
    /// Leave memory now.
    Close(Reply<()>),
    /// Whoever kept the session in memory does so no more.
    Release,
    /// Prune events before this one.
    Compact(Cursor, Reply<Position>),
    /// Change state or artifacts.
    Data(Box<Data>),
    /// Move the active path.
    Navigate(Option<MessageId>, Option<u64>, Reply<Session>),
    /// Make a session that goes on from a message of this one.
    Fork(Box<Forking>, Reply<Session, CreateError>),
    /// An adapter records.
    Record { by: AttemptId, records: Vec<Record>, reply: HandleReply<()> },
    /// An adapter leaves what is recorded when its execution ends.
    RecordAtEnd { by: AttemptId, records: Vec<Record>, reply: HandleReply<()> },
    /// An adapter records, and takes the prompts that wait to join its run.
    Steer { by: AttemptId, records: Vec<Record>, reply: HandleReply<Vec<Arc<Message>>> },
    /// An adapter asks a person and waits.
    Ask { by: AttemptId, ask: Ask, holder: AskReply },
    /// An adapter reads where its path ends.
    Head { by: AttemptId, reply: HandleReply<Option<Point>> },
    /// An execution has returned, panicked or been aborted.
    Executed(AttemptId, Result<Executed, JoinError>),
    /// An adapter was told to stop.
    Dispatched(AttemptId, Dispatch),
    /// An attempt that did not stop in time was killed.
    Killed(AttemptId, Death),
    /// A worker is free.
    Granted(Permit),
    /// Other sessions have left something.
    Inbox,
    /// An adapter wants to know when delegated work has ended.
    Settled(DelegationId, HandleReply<Delegation>),
    /// Stop what runs, because the process stops.
    Shutdown(oneshot::Sender<()>),
}

impl Command {
    /// True for what a caller asks; false for what comes of an attempt of this very actor.
    pub(super) fn is_call(&self) -> bool {
        match self {
            Self::Accept(..) | Self::Create(..) | Self::Cancel(..) | Self::Retry(..) => true,
            Self::Answer(..) | Self::Session(..) | Self::Snapshot(_) | Self::Compact(..) => true,
            Self::Open { .. } | Self::Close(_) | Self::Inbox => true,
            Self::Settled(..) => false,
            Self::Release | Self::Record { .. } | Self::RecordAtEnd { .. } | Self::Ask { .. } => false,
            Self::Head { .. } | Self::Executed(..) | Self::Steer { .. } => false,
            Self::Data(data) => data.is_call(),
            Self::Navigate(..) | Self::Fork(..) | Self::Binding(..) => true,
            Self::Dispatched(..) | Self::Killed(..) | Self::Granted(_) | Self::Shutdown(_) => false,
        }
    }

    /// False for what only looks, and so does not prolong the session's stay in memory.
    pub(super) fn is_change(&self) -> bool {
        !matches!(
            self,
            Self::Snapshot(_) | Self::Head { .. } | Self::Create(..) | Self::Open { .. } | Self::Close(_)
        )
    }

    /// Answers a command that nobody will carry out.
    pub(crate) fn refuse(self, error: &Error) {
        let error = error.clone();
        match self {
            Self::Accept(_, reply) => drop(reply.send(Err(error.into()))),
            Self::Create(_, _, reply) => drop(reply.send(Err(error.into()))),
            Self::Cancel(_, reply) => drop(reply.send(Err(error))),
            Self::Retry(_, reply) => drop(reply.send(Err(error))),
            Self::Answer(_, _, _, reply) => drop(reply.send(Err(error))),
            Self::Session(_, _, reply) => drop(reply.send(Err(error))),
            Self::Binding(_, reply) => drop(reply.send(Err(error))),
            Self::Snapshot(reply) => drop(reply.send(Err(error))),
            Self::Open { reply, .. } => drop(reply.send(Err(error))),
            Self::Close(reply) => drop(reply.send(Err(error))),
            Self::Compact(_, reply) => drop(reply.send(Err(error))),
            Self::Data(data) => data.refuse(error),
            Self::Navigate(_, _, reply) => drop(reply.send(Err(error))),
            Self::Fork(_, reply) => drop(reply.send(Err(error.into()))),
            // Whoever executes has lost its authority and learns it by the closed channel.
            Self::Release
            | Self::Record { .. }
            | Self::RecordAtEnd { .. }
            | Self::Ask { .. }
            | Self::Steer { .. }
            | Self::Head { .. }
            | Self::Settled(..)
            | Self::Executed(..) => {}
            // It is in the store, for whoever loads the session next.
            Self::Inbox => {}
            Self::Dispatched(..) | Self::Killed(..) | Self::Granted(_) | Self::Shutdown(_) => {}
        }
    }
}
