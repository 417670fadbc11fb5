//! The inputs of an actor: commands from callers and other sessions, reports from its own attempts, and signals from
//! the kernel.

use std::sync::Arc;

use mainspring_core::session::Command as SessionCommand;
use mainspring_core::{
    Answer, Artifact, ArtifactId, AttemptId, Binding, Cursor, Decider, Delegation, DelegationId, Feedback,
    Grant, GrantId, Message, MessageId, NewFeedback, Position, Run, RunId, Session, StateOutcome, Usage,
    WaitId,
};
use tokio::sync::oneshot;

use super::{AgentSetting, Append, BindingChange, Instant, Retry, SessionSeed, StateWrite};
use crate::adapter::{Ask, AskReply, Death, Dispatch, Executed, HandleReply, Record};
use crate::error::{CreateError, Error};
use crate::kernel::{Accept, Accepted, CancelOutcome, Forking};
use crate::scheduler::Permit;
use crate::store::{Pin, Request};

/// The answer to a command.
pub(crate) type Reply<T, E = Error> = oneshot::Sender<Result<T, E>>;

/// Everything that an actor receives.
pub(crate) enum Input {
    Command(Command),
    Report(Report),
    Signal(Signal),
}

/// A command from a caller or from another session. A stopping actor forwards it to its successor.
pub(crate) enum Command {
    /// Accepts a prompt.
    Accept(Box<Accept>, Reply<Accepted, CreateError>),
    /// Creates the session, if it is new, and records the request.
    Create(Option<Box<Request>>, SessionSeed, Reply<Session, CreateError>),
    /// Stops a run.
    Cancel(RunId, Reply<CancelOutcome>),
    /// Retries an ended run.
    Retry(RunId, Box<Retry>, Reply<Run>),
    /// Answers a waiting run.
    Answer(RunId, WaitId, Answer, Decider, Reply<Run>),
    /// Records the feedback of an owner on a message.
    Feedback(MessageId, String, Box<NewFeedback>, Reply<Feedback>),
    /// Revokes a grant of the session.
    GrantRevoke(GrantId, Decider, Reply<Grant>),
    /// Changes the session; with a version, only if the session still has it.
    Session(Vec<SessionCommand>, Option<u64>, Option<Box<Pin>>, Reply<Session>),
    /// Sets the agent of the idle session; with a version, only if the session still has it.
    SetAgent(Box<AgentSetting>, Option<u64>, Reply<Session>),
    /// Changes a binding of the session.
    Binding(BindingChange, Reply<Binding>),
    /// Records that the process-local bindings of earlier processes are stale.
    LoseProcessLocalBindings(Reply<()>),
    /// Reads the session at one instant.
    Snapshot(Reply<Instant>),
    /// Keeps the session in memory for a caller that opened it; `started` if the session was not in memory before.
    Open { started: bool, reply: Reply<Session> },
    /// Unloads the session now.
    Close(Reply<()>),
    /// Prunes the events before a cursor.
    Compact(Cursor, Reply<Position>),
    /// Changes state of the session or of one of its runs.
    StateWrite(Box<StateWrite>, Reply<StateOutcome>),
    /// Adds an artifact whose bytes are stored.
    ArtifactAdd(Box<Artifact>, Option<Box<Request>>, Reply<(), CreateError>),
    /// Changes the description of an artifact.
    ArtifactChange(Box<Artifact>, Reply<()>),
    /// Deletes an artifact.
    ArtifactDelete(ArtifactId, Reply<()>),
    /// Sets the title that a model proposed, if any, and counts the usage of the model.
    Title(Option<String>, Usage, Reply<()>),
    /// Moves the active path; with a version, only if the session still has it.
    Navigate(Option<MessageId>, Option<u64>, Reply<Session>),
    /// Appends messages that another program has written; false if they were appended before.
    Append(Box<Append>, Reply<(Vec<Arc<Message>>, bool)>),
    /// Creates a session that continues from a message of this one.
    Fork(Box<Forking>, Reply<Session, CreateError>),
    /// Processes the notes from other sessions.
    Inbox,
}

/// A report from an attempt of this actor, or about its execution. Without the actor the attempt has lost its authority,
/// and the report is dropped.
pub(crate) enum Report {
    /// Makes records durable.
    Record { by: AttemptId, records: Vec<Record>, reply: HandleReply<()> },
    /// Keeps records for the commit that ends the execution.
    RecordAtEnd { by: AttemptId, records: Vec<Record> },
    /// Makes records durable, and takes the prompts that wait to join the run.
    Steer { by: AttemptId, records: Vec<Record>, reply: HandleReply<Vec<Arc<Message>>> },
    /// Asks a person and waits.
    Ask { by: AttemptId, ask: Ask, holder: AskReply },
    /// Withdraws questions of the attempt whose asker no longer waits.
    Withdraw { by: AttemptId },
    /// The execution has ended some of its questions, and goes on without their answers.
    EndAsking { by: AttemptId },
    /// Changes state of the session or of the attempt's run.
    StateWrite { by: AttemptId, write: Box<StateWrite>, reply: HandleReply<StateOutcome> },
    /// Adds an artifact whose bytes are stored.
    ArtifactAdd { by: AttemptId, artifact: Box<Artifact>, reply: HandleReply<()> },
    /// Waits until a delegation is settled.
    DelegationWait { delegation: DelegationId, reply: HandleReply<Delegation> },
    /// The execution has returned, or it panicked or was aborted for the reason in the text.
    Executed(AttemptId, Result<Executed, String>),
    /// The adapter was asked to stop.
    Dispatched(AttemptId, Dispatch),
    /// The attempt did not stop in time and was killed.
    Killed(AttemptId, Death),
}

/// A signal from the kernel.
pub(crate) enum Signal {
    /// The permit that the actor has ordered.
    Granted(Permit),
    /// The last controller has left.
    Release,
    /// The process drains: hand the session over if nothing acts for it.
    HandOver(oneshot::Sender<()>),
    /// The process stops: stop the active run.
    Shutdown(oneshot::Sender<()>),
}

impl Input {
    /// False for inputs that do not restart the session's idle time: reads, tries to hand the session over, and commands
    /// that open, create or close it.
    pub(super) fn is_change(&self) -> bool {
        match self {
            Self::Command(command) => !matches!(
                command,
                Command::Snapshot(_) | Command::Create(..) | Command::Open { .. } | Command::Close(_)
            ),
            Self::Report(_) => true,
            Self::Signal(signal) => !matches!(signal, Signal::HandOver(_)),
        }
    }

    /// True for inputs after which a session that has failed counts as working: a caller's command or an attempt's report.
    pub(super) fn shows_health(&self) -> bool {
        match self {
            Self::Command(command) => !matches!(command, Command::Inbox),
            Self::Report(_) => true,
            Self::Signal(_) => false,
        }
    }

    pub(crate) fn into_command(self) -> Option<Command> {
        match self {
            Self::Command(command) => Some(command),
            Self::Report(_) | Self::Signal(_) => None,
        }
    }

    /// Refuses a command. An attempt learns from the closed channel that it has lost its authority.
    pub(crate) fn refuse(self, error: &Error) {
        if let Some(command) = self.into_command() {
            command.refuse(error);
        }
    }
}

impl From<Command> for Box<Input> {
    fn from(command: Command) -> Self {
        Self::new(Input::Command(command))
    }
}

impl From<Report> for Box<Input> {
    fn from(report: Report) -> Self {
        Self::new(Input::Report(report))
    }
}

impl From<Signal> for Box<Input> {
    fn from(signal: Signal) -> Self {
        Self::new(Input::Signal(signal))
    }
}

impl Command {
    /// Answers the command with `error`: it is not executed.
    pub(crate) fn refuse(self, error: &Error) {
        let error = error.clone();
        match self {
            Self::Accept(_, reply) => drop(reply.send(Err(error.into()))),
            Self::Create(_, _, reply) => drop(reply.send(Err(error.into()))),
            Self::Cancel(_, reply) => drop(reply.send(Err(error))),
            Self::Retry(_, _, reply) => drop(reply.send(Err(error))),
            Self::Answer(_, _, _, _, reply) => drop(reply.send(Err(error))),
            Self::Feedback(_, _, _, reply) => drop(reply.send(Err(error))),
            Self::GrantRevoke(_, _, reply) => drop(reply.send(Err(error))),
            Self::Session(_, _, _, reply) => drop(reply.send(Err(error))),
            Self::SetAgent(_, _, reply) => drop(reply.send(Err(error))),
            Self::Binding(_, reply) => drop(reply.send(Err(error))),
            Self::LoseProcessLocalBindings(reply) => drop(reply.send(Err(error))),
            Self::Snapshot(reply) => drop(reply.send(Err(error))),
            Self::Open { reply, .. } => drop(reply.send(Err(error))),
            Self::Close(reply) => drop(reply.send(Err(error))),
            Self::Compact(_, reply) => drop(reply.send(Err(error))),
            Self::StateWrite(_, reply) => drop(reply.send(Err(error))),
            Self::ArtifactAdd(_, _, reply) => drop(reply.send(Err(error.into()))),
            Self::ArtifactChange(_, reply) => drop(reply.send(Err(error))),
            Self::ArtifactDelete(_, reply) => drop(reply.send(Err(error))),
            Self::Title(_, _, reply) => drop(reply.send(Err(error))),
            Self::Navigate(_, _, reply) => drop(reply.send(Err(error))),
            Self::Append(_, reply) => drop(reply.send(Err(error))),
            Self::Fork(_, reply) => drop(reply.send(Err(error.into()))),
            // The notes are in the store, for the next load of the session.
            Self::Inbox => {}
        }
    }
}
