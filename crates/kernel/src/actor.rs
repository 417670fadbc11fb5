//! Session actors: one task per live session executes the session's commands one after the other.
//!
//! ```text
//! input ─▶ draft (decide, apply to copies) ─▶ commit ─▶ take the copies over ─▶ publish ─▶ act ─▶ answer
//! ```
//!
//! Invariants: except for streamed text, nothing is published or acted upon before its commit has returned; at most one
//! commit per session is in flight; an idle session without a controller is unloaded.

use std::sync::Arc;

use mainspring_core::run::Outcome;
use mainspring_core::{Proof, Run, Session, Time};
use mainspring_system::contain::contain;

use crate::adapter::SessionMemory;
use crate::clock::Moment;
use crate::feed::Feed;
use crate::kernel::Shared;
use crate::store::{Fence, Loaded};

mod accept;
mod active;
mod agent;
mod answer;
mod append;
mod binding;
mod cache;
mod cancel;
mod command;
mod commit;
mod compact;
mod data;
mod delegations;
mod draft;
mod execute;
mod fail;
mod feedback;
mod goals;
mod grant;
mod hand_over;
mod hot;
mod inbox;
mod inputs;
mod lifetime;
mod limits;
mod patience;
mod permit;
mod permit_order;
mod progress;
mod questions;
mod queue;
mod recover;
mod reported;
mod retry;
mod session;
mod snapshot;
mod status;
mod steer;
mod stop;
mod tree;
mod unload;
use active::Active;
pub(crate) use agent::AgentSetting;
pub(crate) use append::Append;
pub(crate) use binding::{Adoption, BindingChange, MAX_BINDINGS_READ};
pub(crate) use command::{Command, Input, Reply, Report, Signal};
pub(crate) use data::StateWrite;
pub(crate) use draft::check_size;
use draft::{AttemptDraft, Draft, SessionDraft, Subject};
use hot::Hot;
pub(crate) use inputs::{Receiver, Sender};
pub(crate) use progress::{Progress, Written};
pub(crate) use retry::Retry;
use session::created;
pub(crate) use session::{SessionSeed, new_loaded};
pub(crate) use snapshot::Instant;

/// A time later than any other.
const NEVER: Time = Time(i64::MAX);

/// One live session. `shared`, `feed` and `fence` never change. The state of every other field changes only
/// in the methods of that field.
pub(crate) struct Actor {
    shared: Arc<Shared>,
    feed: Arc<Feed>,
    fence: Fence,
    inputs: inputs::Inputs,
    hot: Box<Hot>,
    cache: cache::Cache,
    active: Option<Active>,
    queue: queue::Queue,
    permit_order: permit_order::PermitOrder,
    lifetime: lifetime::Lifetime,
    reported: reported::Reported,
    waiters: delegations::Waiters,
    /// An embedder's data, which lives as long as this actor.
    memory: SessionMemory,
}

impl Actor {
    /// Makes the actor of a stored session, or of a new session, which the actor's first commit stores.
    pub(crate) fn new(
        shared: Arc<Shared>,
        fence: Fence,
        feed: Arc<Feed>,
        loaded: Loaded,
        stored: bool,
        channel: (Sender, Receiver),
    ) -> Self {
        let executing = loaded.runs.iter().map(|(run, _)| run).find(|run| run.state.holder().is_some());
        feed.attach_actor(fence, &loaded, executing.map(|run| run.id));
        if !loaded.inbox.is_empty() {
            // The receiver is in this actor, so sending cannot fail.
            let _ = channel.0.send(Command::Inbox.into());
        }
        let latest_no = loaded.latest.as_ref().map_or(0, |run| run.no);
        let is_queued = |run: &&Run| run.state.holder().is_none() && run.merged_into.is_none();
        let queue = loaded.runs.iter().map(|(run, _)| run).filter(is_queued).cloned().collect();
        let unfinished = loaded.runs.iter().map(|(run, _)| Arc::new(run.clone())).collect();
        let hot = Box::new(Hot::restore(loaded, stored));
        if stored {
            shared.images.insert(&hot.session.shared(), unfinished, latest_no);
        }
        Self {
            feed,
            fence,
            inputs: inputs::Inputs::new(channel),
            hot,
            cache: cache::Cache::default(),
            active: None,
            queue: queue::Queue::restore(queue, latest_no),
            permit_order: permit_order::PermitOrder::default(),
            lifetime: lifetime::Lifetime::default(),
            reported: reported::Reported::restore(shared.failures.contains(fence.session)),
            waiters: delegations::Waiters::default(),
            memory: SessionMemory::default(),
            shared,
        }
    }

    /// Serves the session until it is idle, deleted or taken over by another writer. A panic ends this actor alone.
    pub(crate) async fn serve(mut self: Box<Self>) {
        match contain(Box::pin(self.serve_inputs())).await {
            Ok(()) => self.stop_serving().await,
            Err(panic) => self.fail(&panic).await,
        }
    }

    async fn serve_inputs(&mut self) {
        self.order_permit();
        self.report_status();
        loop {
            let (deadline, moment) = (self.deadline(), self.deadline_moment());
            let (clock, feed) = (self.shared.clock.clone(), self.feed.clone());
            let input = tokio::select! {
                biased;
                input = self.inputs.next() => input,
                () = feed.last_controller_left() => Some(Signal::Release.into()),
                // A wait without end would still set a timer, and wake the actor for nothing.
                () = clock.sleep_until(deadline), if deadline != NEVER => None,
                () = clock.sleep_until_moment(moment), if moment != Moment::NEVER => None,
            };
            match input {
                Some(input) => Box::pin(self.handle(input)).await,
                None => Box::pin(self.tick()).await,
            }
            self.report_status();
            if self.shared.is_draining() {
                Box::pin(self.hand_over()).await;
            }
            if self.lifetime.is_shutting_down() && !self.active.as_ref().is_some_and(Active::is_acting) {
                self.lifetime.end();
            }
            if self.lifetime.is_over() || self.unload_if_unneeded() {
                break;
            }
        }
    }

    async fn handle(&mut self, input: Box<Input>) {
        let (changes, shows_health) = (input.is_change(), input.shows_health());
        match *input {
            Input::Command(command) => self.handle_command(command).await,
            // Boxed: it holds a whole draft.
            Input::Report(report) => Box::pin(self.handle_report(report)).await,
            Input::Signal(Signal::Granted(permit)) => Box::pin(self.granted(permit)).await,
            Input::Signal(Signal::Shutdown(done)) => self.shut_down(done).await,
            Input::Signal(Signal::HandOver(done)) => {
                Box::pin(self.hand_over()).await;
                drop(done);
            }
            Input::Signal(Signal::Release) => {}
        }
        self.order_permit();
        if self.reported.has_failed() && shows_health {
            self.clear_failure();
        }
        if changes {
            self.arm();
        } else {
            self.arm_loaded();
        }
    }

    async fn handle_command(&mut self, command: Command) {
        match command {
            Command::Accept(accept, reply) => {
                let outcome = Box::pin(self.accept(accept)).await;
                self.end_if_not_stored();
                self.announce_work();
                let _ = reply.send(outcome);
            }
            Command::Create(request, seed, reply) => {
                let outcome = self.create(request, seed).await;
                self.end_if_not_stored();
                self.opened(true);
                let _ = reply.send(outcome);
            }
            Command::Cancel(run, reply) => Box::pin(self.cancel(run, reply)).await,
            Command::Retry(run, change, reply) => {
                let outcome = Box::pin(self.retry(run, *change)).await;
                self.announce_work();
                let _ = reply.send(outcome);
            }
            Command::Answer(run, wait, answer, by, reply) => {
                let outcome = Box::pin(self.answer(run, wait, answer, by)).await;
                self.announce_work();
                let _ = reply.send(outcome);
            }
            Command::Feedback(message, owner, new, reply) => {
                drop(reply.send(Box::pin(self.feedback_give(message, owner, *new)).await));
            }
            Command::GrantRevoke(grant, by, reply) => {
                drop(reply.send(Box::pin(self.grant_revoke(grant, by)).await));
            }
            Command::Session(commands, version, pin, reply) => {
                let outcome = Box::pin(self.change_session(commands, version, pin)).await;
                let _ = reply.send(outcome);
            }
            Command::SetAgent(setting, version, reply) => {
                drop(reply.send(Box::pin(self.set_agent(*setting, version)).await));
            }
            Command::Binding(change, reply) => drop(reply.send(self.change_binding(change).await)),
            Command::LoseProcessLocalBindings(reply) => {
                drop(reply.send(Box::pin(self.lose_process_local_bindings()).await));
            }
            Command::Snapshot(reply) => drop(reply.send(Ok(self.instant()))),
            Command::Open { started, reply } => {
                self.opened(started);
                let _ = reply.send(Ok(Session::clone(&self.hot.session)));
            }
            Command::Close(reply) => self.lifetime.close(reply),
            Command::Compact(before, reply) => drop(reply.send(self.compact(before).await)),
            Command::Navigate(to, version, reply) => {
                drop(reply.send(Box::pin(self.navigate(to, version)).await));
            }
            Command::Append(append, reply) => drop(reply.send(Box::pin(self.append(*append)).await)),
            Command::Fork(fork, reply) => drop(reply.send(Box::pin(self.fork(*fork)).await)),
            Command::StateWrite(write, reply) => {
                drop(reply.send(Box::pin(self.state_write(*write)).await));
            }
            Command::ArtifactAdd(artifact, request, reply) => {
                drop(reply.send(Box::pin(self.artifact_add(artifact, request)).await));
            }
            Command::ArtifactChange(artifact, reply) => {
                drop(reply.send(Box::pin(self.artifact_change(artifact)).await));
            }
            Command::ArtifactDelete(artifact, reply) => {
                drop(reply.send(Box::pin(self.artifact_delete(artifact)).await));
            }
            Command::Title(title, used, reply) => {
                drop(reply.send(Box::pin(self.title(title, used)).await));
            }
            Command::Inbox => Box::pin(self.process_inbox()).await,
        }
    }

    async fn handle_report(&mut self, report: Report) {
        match report {
            Report::Record { by, records, reply } => {
                let outcome = self.record(by, records).await;
                let _ = reply.send(outcome);
            }
            Report::RecordAtEnd { by, records } => self.record_at_end(by, records),
            Report::Steer { by, records, reply } => {
                let outcome = Box::pin(self.steer(by, records)).await;
                self.report_status();
                let _ = reply.send(outcome);
            }
            Report::Ask { by, ask, holder } => self.ask(by, ask, holder).await,
            Report::Withdraw { by } => Box::pin(self.withdraw(by)).await,
            Report::EndAsking { by } => Box::pin(self.end_asking(by)).await,
            Report::StateWrite { by, write, reply } => {
                drop(reply.send(Box::pin(self.state_write_by(by, *write)).await));
            }
            Report::ArtifactAdd { by, artifact, reply } => {
                drop(reply.send(Box::pin(self.artifact_add_by(by, artifact)).await));
            }
            Report::DelegationWait { delegation, reply } => self.await_settled(delegation, reply).await,
            Report::Executed(by, executed) => Box::pin(self.executed(by, executed)).await,
            Report::Dispatched(by, dispatch) => Box::pin(self.dispatched(by, dispatch)).await,
            Report::Killed(by, death) => Box::pin(self.killed(by, death)).await,
        }
    }

    /// Orders the permit of a new or continued run and counts the run as work, before its caller is answered: a run that
    /// the caller creates next, in any session, starts later, and a caller that then waits for idleness waits for this run.
    fn announce_work(&mut self) {
        self.order_permit();
        self.report_status();
    }

    /// Ends the actor of a new session whose first commit has failed.
    fn end_if_not_stored(&mut self) {
        if !self.hot.session.is_stored() {
            self.lifetime.end();
        }
    }

    /// Does everything that is due: kills attempts, expires waits, enforces time limits, orders permits.
    async fn tick(&mut self) {
        let (now, moment) = (self.shared.clock.now(), self.shared.clock.moment());
        if self.kill_at().is_some_and(|at| at <= moment) {
            self.kill(Outcome::Stopped { proof: Proof::Killed });
        }
        if self.expiry().is_some_and(|at| at <= now) {
            Box::pin(self.expire()).await;
        }
        if self.time_limit().is_some_and(|at| at <= moment) {
            self.enforce_limits();
        }
        self.order_permit();
    }

    /// Returns the time of the next due action; the far future if there is none.
    fn deadline(&self) -> Time {
        let order = self.next_order().map(|(_, at)| at);
        [order, self.expiry()].into_iter().flatten().min().unwrap_or(NEVER)
    }

    /// Returns the moment of the next action that is due after a duration; [`Moment::NEVER`] if there is none.
    fn deadline_moment(&self) -> Moment {
        let due = [self.kill_at(), self.time_limit(), self.unload_at()];
        due.into_iter().flatten().min().unwrap_or(Moment::NEVER)
    }

    /// Stops, and forwards the commands that arrive meanwhile. An idle session is loaded again for them; a deleted one
    /// is not.
    async fn stop_serving(mut self) {
        let is_over = self.lifetime.is_over();
        if is_over {
            // Before a successor can take the session's place on the board.
            self.remove_from_board();
            self.shared.images.remove(self.fence.session);
        }
        if self.reported.has_failed() && !self.lifetime.is_shutting_down() {
            self.clear_failure();
        }
        let moved_to = self.lifetime.moved_to();
        // When the process stops, the last streamed text is written after this, under the lease.
        if !self.lifetime.is_shutting_down() && moved_to.is_none() {
            self.shared.lease_release(self.fence).await;
        }
        self.inputs.close();
        self.report_no_work();
        if is_over {
            self.shared.remove_actor(self.fence.session, self.inputs.sender());
            self.feed.authorize(None);
            match moved_to {
                Some(node) => self.feed.moved(node),
                None => self.feed.close(),
            }
            if let Some(active) = self.active.as_ref().filter(|active| active.is_executing()) {
                // The outcome is not recorded any more, but nothing may go on acting.
                active.abort();
                self.kill_remains(&active.run().adapter, active.attempt().id);
            }
        }
        while let Some(input) = self.inputs.next().await {
            match input.into_command() {
                Some(Command::Close(reply)) => self.lifetime.close(reply),
                Some(command) => self.shared.dispatch(self.fence.session, command),
                None => {}
            }
        }
        self.lifetime.answer_waiting();
    }
}
