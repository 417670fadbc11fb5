//! Session actors: one task per live session serialises its commands, keeps its hot state, decides, commits, then
//! acts and publishes.
//!
//! ```text
//! command ─▶ draft (decide, apply on copies) ─▶ commit ─▶ take the copies over ─▶ publish ─▶ act ─▶ answer
//! ```
//!
//! Invariants: deltas apart, nothing is published or acted upon before its commit returned; one commit is in flight
//! per session; an idle session that no controller reads leaves memory.

use std::collections::VecDeque;
use std::sync::Arc;

use mainspring_core::run::Outcome;
use mainspring_core::{Attempt, Delegation, Message, Proof, Run, RunId, Time, Usage};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::adapter::{Holder, Record};
use crate::board::LiveStatus;
use crate::error::Error;
use crate::feed::Feed;
use crate::kernel::{CancelOutcome, Shared, Work};
use crate::scheduler::Permit;
use crate::store::{Fence, Loaded};

mod accept;
mod answer;
mod binding;
mod cancel;
mod command;
mod commit;
mod compact;
mod data;
mod draft;
mod execute;
mod inbox;
mod known;
mod lifetime;
mod limits;
mod recover;
mod session;
mod snapshot;
mod steer;
mod tree;
pub(crate) use binding::{BINDINGS, BindingChange};
pub(crate) use command::{AcceptOutcome, Command, Reply};
pub(crate) use data::{Data, StateWrite};
use draft::Draft;
pub(crate) use draft::{Hot, before};
pub(crate) use inbox::{Child, Waiter};
use session::created;
pub(crate) use session::{Begins, unborn};
pub(crate) use snapshot::Instant;

pub(crate) struct Actor {
    shared: Arc<Shared>,
    feed: Arc<Feed>,
    fence: Fence,
    tx: mpsc::UnboundedSender<Command>,
    rx: mpsc::UnboundedReceiver<Command>,
    hot: Hot,
    known: known::Known,
    /// False until the session's first commit.
    stored: bool,
    active: Option<Active>,
    /// Runs that wait their turn, the next first.
    queue: VecDeque<Run>,
    next_no: u32,
    /// The last tip that is known to owe no tool a result.
    answered: Option<mainspring_core::Point>,
    /// True while a permit is on order.
    ordered: bool,
    /// Until when no permit is ordered, because what it was for could not be started; and the pause after that.
    stalled: Option<(Time, u64)>,
    stay: lifetime::Stay,
    counted: Work,
    /// What the board was told last: status and title.
    shown: Option<(LiveStatus, Option<String>)>,
    /// Set when another writer has taken over or the session is deleted: the actor ends.
    over: bool,
    shutdown: Option<oneshot::Sender<()>>,
    /// Who waits for delegated work to end.
    waiters: Vec<Waiter>,
}

/// The run that has an attempt.
struct Active {
    run: Run,
    attempt: Attempt,
    permit: Option<Permit>,
    task: Option<AbortHandle>,
    cancel: CancellationToken,
    prompt: Arc<Message>,
    /// Adapters that wait for an answer while they hold their execution.
    held: Option<Holder>,
    /// Who wants to know how the cancellation was dispatched.
    cancelling: Vec<Reply<CancelOutcome>>,
    /// True while it is told to stop and what came of that is not recorded.
    telling: bool,
    /// When an attempt that was told to stop is killed.
    kill_at: Option<Time>,
    /// Set once the execution is given up: how the attempt ends when nothing acts for it any more.
    killing: Option<Outcome>,
    /// What its adapter left to be recorded when its execution ends.
    at_end: Vec<Record>,
    /// Tells its adapter whether a prompt waits to join it.
    steering: tokio::sync::watch::Sender<bool>,
}

impl Actor {
    /// An actor for a session that exists, or for `fresh` which its first commit creates.
    pub(crate) fn new(
        shared: Arc<Shared>,
        fence: Fence,
        feed: Arc<Feed>,
        loaded: Loaded,
        stored: bool,
        channel: (mpsc::UnboundedSender<Command>, mpsc::UnboundedReceiver<Command>),
    ) -> Self {
        let open = loaded.runs.iter().map(|(run, _)| run).find(|run| run.state.holder().is_some());
        feed.take_up(fence, &loaded, open.map(|run| run.id));
        if !loaded.inbox.is_empty() {
            // The other end is in this very actor.
            let _ = channel.0.send(Command::Inbox);
        }
        let (tasks, children): (Vec<Delegation>, Vec<Delegation>) =
            loaded.delegations.into_iter().partition(|delegation| delegation.child_session == fence.session);
        let hot = Hot {
            lines: loaded.lines.iter().map(|line| (line.id, *line)).collect(),
            effects: loaded.effects,
            unanswered: vec![],
            last_role: None,
            binding: None,
            state_at_pen: vec![],
            merged: loaded
                .runs
                .iter()
                .map(|(run, _)| run)
                .filter(|run| run.merged_into.is_some())
                .cloned()
                .collect(),
            // What an earlier process kept is not looked up, only erased once its run ends.
            turn_usage: Usage::default(),
            tasks,
            children: children.into_iter().map(Child::from).collect(),
            keeps_private: loaded.runs.iter().any(|(run, _)| run.pen.is_some()),
            session: loaded.session,
        };
        let latest = loaded.latest.as_ref();
        let waits = |run: &&Run| run.state.holder().is_none() && run.merged_into.is_none();
        let mut queue: Vec<Run> = loaded.runs.iter().map(|(run, _)| run).filter(waits).cloned().collect();
        // As they were put there: what has begun, then what steers, then the others.
        queue.sort_by_key(|run| (run.attempts == 0, !run.steers));
        Self {
            feed,
            fence,
            tx: channel.0,
            rx: channel.1,
            hot,
            known: known::Known::default(),
            stored,
            active: None,
            queue: queue.into(),
            next_no: latest.map_or(0, |run| run.no) + 1,
            answered: None,
            ordered: false,
            stalled: None,
            stay: lifetime::Stay::default(),
            counted: Work::default(),
            shown: None,
            over: false,
            shutdown: None,
            waiters: vec![],
            shared,
        }
    }

    /// Serves the session until it is idle, deleted or taken over.
    pub(crate) async fn serve(mut self: Box<Self>) {
        self.pump();
        self.count();
        loop {
            let deadline = self.deadline();
            let (clock, feed) = (self.shared.clock.clone(), self.feed.clone());
            let command = tokio::select! {
                biased;
                command = self.rx.recv() => command,
                () = feed.left() => Some(Command::Release),
                () = clock.sleep_until(deadline) => None,
            };
            match command {
                Some(command) => Box::pin(self.handle(command)).await,
                None => Box::pin(self.tick()).await,
            }
            self.count();
            // What is being killed has not ended yet, though its execution is gone.
            let acts = |active: &Active| active.task.is_some() || active.killing.is_some();
            if self.shutdown.is_some() && !self.active.as_ref().is_some_and(acts) {
                self.over = true;
            }
            if self.over || self.leave() {
                break;
            }
        }
        self.farewell().await;
    }

    async fn handle(&mut self, command: Command) {
        let changes = command.is_change();
        self.handle_only(command).await;
        self.pump();
        if changes {
            self.arm();
        } else {
            self.arm_loaded();
        }
    }

    async fn handle_only(&mut self, command: Command) {
        match command {
            Command::Accept(accept, reply) => {
                let outcome = Box::pin(self.accept(*accept)).await;
                // A session that was to be made with this run was not made.
                self.over |= !self.stored;
                // Counted before it is told: whoever was told and then waits for idleness waits for this run too.
                self.count();
                let _ = reply.send(outcome);
            }
            Command::Create(request, begins, reply) => {
                let outcome = self.create(request, begins).await;
                self.over |= !self.stored;
                self.opened(true);
                let _ = reply.send(outcome);
            }
            Command::Cancel(run, reply) => Box::pin(self.cancel(run, reply)).await,
            Command::Retry(run, reply) => {
                let outcome = Box::pin(self.retry(run)).await;
                self.count();
                let _ = reply.send(outcome);
            }
            Command::Answer(run, wait, answer, reply) => {
                let outcome = Box::pin(self.answer(run, wait, answer)).await;
                self.count();
                let _ = reply.send(outcome);
            }
            Command::Session(commands, version, reply) => {
                let outcome = Box::pin(self.change_session(commands, version)).await;
                let _ = reply.send(outcome);
            }
            Command::Binding(change, reply) => {
                let outcome = self.change_binding(change).await;
                let _ = reply.send(outcome);
            }
            Command::Snapshot(reply) => {
                let _ = reply.send(Ok(self.instant()));
            }
            Command::Open { started, reply } => {
                self.opened(started);
                let _ = reply.send(Ok(self.hot.session.clone()));
            }
            Command::Close(reply) => self.stay.closing.push(reply),
            Command::Release => {}
            Command::Compact(before, reply) => {
                let outcome = self.compact(before).await;
                let _ = reply.send(outcome);
            }
            Command::Navigate(to, version, reply) => {
                let outcome = Box::pin(self.navigate(to, version)).await;
                let _ = reply.send(outcome);
            }
            Command::Fork(fork, reply) => {
                let outcome = Box::pin(self.fork(*fork)).await;
                let _ = reply.send(outcome);
            }
            Command::Data(data) => Box::pin(self.data(*data)).await,
            Command::RecordAtEnd { by, records, reply } => {
                let _ = reply.send(self.record_at_end(by, records));
            }
            Command::Record { by, records, reply } => {
                let outcome = self.record(by, records).await;
                let _ = reply.send(outcome);
            }
            Command::Steer { by, records, reply } => {
                let outcome = Box::pin(self.steer(by, records)).await;
                self.count();
                let _ = reply.send(outcome);
            }
            Command::Ask { by, ask, holder } => self.ask(by, ask, holder).await,
            Command::Head { by, reply } => {
                let _ = reply.send(self.head(by));
            }
            Command::Executed(by, executed) => Box::pin(self.executed(by, executed)).await,
            Command::Dispatched(by, dispatch) => self.dispatched(by, dispatch).await,
            Command::Killed(by, death) => Box::pin(self.killed(by, death)).await,
            Command::Granted(permit) => Box::pin(self.granted(permit)).await,
            Command::Inbox => Box::pin(self.process_inbox()).await,
            Command::Settled(delegation, waiter) => self.await_settled(delegation, waiter).await,
            Command::Shutdown(done) => self.shut_down(done).await,
        }
    }

    /// Does what is due: kills, expires, tries again.
    async fn tick(&mut self) {
        let now = self.shared.clock.now();
        if self.active.as_ref().and_then(|active| active.kill_at).is_some_and(|at| at <= now) {
            self.kill(Outcome::Stopped { proof: Proof::Killed });
        }
        if self.expiry().is_some_and(|at| at <= now) {
            self.expire().await;
        }
        if self.time_is_up().is_some_and(|at| at <= now) {
            self.hold_to_limits();
        }
        self.pump();
    }

    /// When something is due; far away if nothing is.
    fn deadline(&self) -> Time {
        let order = self.next_order().map(|(_, at)| at);
        let kill = self.active.as_ref().and_then(|active| active.kill_at);
        [self.unload_at(), order, kill, self.expiry(), self.time_is_up()]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(Time(i64::MAX))
    }

    /// When the open question of the active run expires.
    fn expiry(&self) -> Option<Time> {
        let active = self.active.as_ref().filter(|active| active.killing.is_none())?;
        active.run.state.wait().filter(|wait| wait.answer.is_none())?.expires_at
    }

    /// The run that needs a permit next, and from when on; none while one is on order.
    ///
    /// Time passes between two looks at the clock: what was not due when permits were ordered is due as soon as the
    /// actor rests, be it past by then.
    fn next_order(&self) -> Option<(&Run, Time)> {
        let Shared { options, tasks, .. } = &*self.shared;
        if self.ordered || self.over || !options.execute || tasks.is_stopping() {
            return None;
        }
        let (run, at) = match (&self.active, self.queue.front()) {
            (Some(active), _) => {
                let answered = active.run.state.wait().is_some_and(|wait| wait.answer.is_some());
                let needs = answered && active.permit.is_none() && active.killing.is_none();
                needs.then_some((&active.run, Time(0)))?
            }
            (None, Some(run)) => match run.state {
                mainspring_core::RunState::Queued { retry_at } => (run, retry_at.unwrap_or(Time(0))),
                _ => return None,
            },
            (None, None) => return None,
        };
        Some((run, self.stalled.map_or(at, |(until, _)| at.max(until))))
    }

    /// Orders a permit if there is work that could run.
    fn pump(&mut self) {
        let now = self.shared.clock.now();
        let Some((run, _)) = self.next_order().filter(|(_, at)| *at <= now) else { return };
        let (adapter, lender) = (run.adapter.clone(), self.lender(run.id));
        self.ordered = true;
        let tx = self.tx.clone();
        self.shared.scheduler.enqueue(&self.hot.session.owner, &adapter, lender, move |permit| {
            tx.send(Command::Granted(permit)).map_err(|refused| match refused.0 {
                Command::Granted(permit) => permit,
                _ => unreachable!("what could not be sent comes back"),
            })
        });
    }

    /// The run that does nothing until `run` has ended, and so does not need its permit meanwhile.
    fn lender(&self, run: RunId) -> Option<RunId> {
        let task = self.hot.tasks.iter().find(|task| task.child_run == run)?;
        task.mode.is_awaited().then_some(task.parent_run)
    }

    /// What a permit was for could not be started: it is tried again after a pause, not at once and for ever.
    fn stall(&mut self) {
        let pause = self.stalled.map_or(50, |(_, pause)| (pause * 2).min(5_000));
        self.stalled = Some((self.shared.clock.now().plus(pause), pause));
    }

    /// Keeps the kernel's count of work up to date.
    pub(crate) fn count(&mut self) {
        let waits = |active: &Active| active.run.state.wait().is_some_and(|wait| wait.answer.is_none());
        let now = match &self.active {
            Some(active) if waits(active) => Work { blocked: self.queue.len(), ..Work::default() },
            active => Work { queued: self.queue.len(), active: active.is_some().into(), blocked: 0 },
        };
        self.shared.work_changed(std::mem::replace(&mut self.counted, now), now);
        self.show();
    }

    fn is_idle(&self) -> bool {
        self.active.is_none() && self.queue.is_empty()
    }

    /// Ends before it has begun: whoever called is told why.
    pub(crate) async fn abandon(mut self, error: &Error) {
        self.shared.forget(self.fence.session, &self.tx);
        self.feed.fail(error);
        self.rx.close();
        while let Some(command) = self.rx.recv().await {
            command.refuse(error);
        }
    }

    /// Hands on what arrived after the actor had decided to end.
    async fn farewell(mut self) {
        if self.over {
            // Before anybody can take its place.
            self.unshow();
        }
        self.rx.close();
        self.shared.work_changed(self.counted, Work::default());
        if self.over {
            self.shared.forget(self.fence.session, &self.tx);
            self.feed.authorize(None);
            self.feed.close();
            if let Some(active) = self.active.as_ref().filter(|active| active.task.is_some()) {
                // Nobody records what comes of it any more, but nothing goes on acting either.
                active.task.iter().for_each(AbortHandle::abort);
                self.bury(&active.run.adapter, active.attempt.id);
            }
        }
        while let Some(command) = self.rx.recv().await {
            match command {
                Command::Close(reply) => self.stay.closing.push(reply),
                // A deleted session stays gone; an idle one is loaded again. What came from an attempt was for this actor.
                command if command.is_call() => self.shared.dispatch(self.fence.session, command),
                _ => {}
            }
        }
        for reply in self.stay.closing {
            let _ = reply.send(Ok(()));
        }
        if let Some(done) = self.shutdown {
            let _ = done.send(());
        }
    }
}
