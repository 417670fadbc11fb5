//! Requests to other kernels that share the store: a run of this kernel prompts, cancels or delegates to a session whose home
//! is another one.
//!
//! ```text
//! kernel of the caller                               home of the session
//! decides, bounds, reserves ──── request ──────────▶ checks, accepts or cancels, commits
//! reads the run in the store ◀── answer ────────────
//! ```
//!
//! The consequences travel through the store: notes between the sessions, and the state of the run for its waiters.
//!
//! A request is repeated until it is answered, at whichever kernel the session has its home by then. The kernel of the caller
//! chooses the id of the run, and the actor of the session answers a repeated request with the run that it has accepted. So a
//! home that is killed in between neither loses the run nor makes it twice.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use mainspring_api::{Delegate, HostCall};
use mainspring_core::{DelegationId, NewDelegation, NodeId, Policy, Position, Refusal, RunId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::runs::{RunOrigin, fingerprint};
use super::{
    Accepted, Caller, CancelOutcome, Delegated, DelegationRequest, HostCallError, Kernel, RunRequest,
};
use crate::actor::{Command, Instant};
use crate::error::Error;
use crate::store::{DelegationsOf, SessionRef};

/// For how long a request is repeated. The sessions of a killed server have another home by then, unless leases were
/// configured to last longer.
const REPEAT_MS: u64 = 30_000;
/// The pause before a request is repeated.
const PAUSE_MS: u64 = 250;

/// A request to the home of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HomeRequest {
    /// Accepts a prompt or delegated work.
    RunAccept(Box<RelayedRun>),
    /// Cancels a run.
    RunCancel {
        /// The caller.
        caller: Caller,
        /// The run.
        run: RunId,
    },
    /// Delegates work of a run. The home of the run reserves the limits of its children.
    RunDelegate {
        /// The caller, who is no agent.
        caller: Caller,
        /// The run.
        run: RunId,
        /// The work.
        work: Box<Delegate>,
    },
    /// Names the hosts of runs whose sessions are going to move to the kernel: the runs that the hosts created, and the
    /// secret names of the hosts.
    Hosts(Vec<(RunId, String)>),
    /// Gives a call of an agent to a host. Sent to the kernel that leads, because hosts ask that kernel for their calls.
    HostCall {
        /// The secret name of the host.
        host: String,
        /// The call, without its number.
        call: Box<HostCall>,
    },
}

/// A prompt that another kernel has received.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RelayedRun {
    /// The id that the run gets.
    run: RunId,
    caller: Caller,
    request: RunRequest,
    fingerprint: [u8; 16],
    /// The delegation that the run is the child of.
    delegation: Option<NewDelegation>,
    /// The host of the run that delegates: the run that the host created, and the secret name of the host.
    host: Option<(RunId, String)>,
}

/// The answer of a home. The details are in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HomeAnswer {
    /// A run was accepted.
    Accepted {
        /// The run.
        run: RunId,
        /// The policy that took effect.
        policy: Policy,
        /// The session's position before the run.
        position: Position,
        /// True if an earlier request under the same name had created the run.
        replayed: bool,
    },
    /// A run is being cancelled, or had ended.
    Cancelled(CancelOutcome),
    /// Work was delegated.
    Delegated {
        /// The delegation.
        delegation: DelegationId,
        /// True if an earlier request under the same name had created the child.
        replayed: bool,
    },
    /// The result of a host's tool.
    HostResult(Value),
    /// The host no longer asks for calls.
    HostGone,
    /// The hosts of runs are known.
    HostsKnown,
}

/// Why a home has refused a request. The request changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeRefusal {
    code: String,
    message: String,
    retryable: bool,
    /// True if the session has its home at another kernel by now.
    is_elsewhere: bool,
}

impl From<&Error> for HomeRefusal {
    fn from(error: &Error) -> Self {
        Self {
            code: error.code().to_owned(),
            message: error.to_string(),
            retryable: error.is_retryable(),
            is_elsewhere: matches!(error, Error::Elsewhere { .. }),
        }
    }
}

impl From<HomeRefusal> for Error {
    fn from(refusal: HomeRefusal) -> Self {
        let mut codes = Self::CODES.iter().chain(Refusal::CODES);
        // A newer version may have other codes.
        let code = codes.find(|code| **code == refusal.code).copied().unwrap_or(UNAVAILABLE);
        Self::AtHome { code, message: refusal.message, retryable: refusal.retryable }
    }
}

const UNAVAILABLE: &str = "unavailable";

/// Why a request to another kernel failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskError {
    /// The home has refused the request.
    Refused(HomeRefusal),
    /// The home was not reached and has not received the request.
    NotReached(String),
    /// The home may have received the request, and has not answered.
    NotAnswered(String),
}

/// Sends a request to another kernel.
type Ask = Arc<dyn Fn(NodeId, HomeRequest) -> BoxFuture<'static, Result<HomeAnswer, AskError>> + Send + Sync>;

/// The way to the other kernels.
#[derive(Clone)]
pub struct Peers(Ask);

impl Peers {
    /// Sends requests with `ask`.
    pub fn new(
        ask: impl Fn(NodeId, HomeRequest) -> BoxFuture<'static, Result<HomeAnswer, AskError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Arc::new(ask))
    }

    pub(super) async fn ask(&self, node: NodeId, request: HomeRequest) -> Result<HomeAnswer, AskError> {
        (self.0)(node, request).await
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").finish_non_exhaustive()
    }
}

impl Kernel {
    /// Answers a request of another kernel that shares the store. The caller has authenticated that kernel.
    pub async fn home_answer(&self, request: HomeRequest) -> Result<HomeAnswer, HomeRefusal> {
        let answer = match request {
            HomeRequest::RunAccept(relayed) => {
                Box::pin(self.relayed_accept(&relayed)).await.map(|accepted| HomeAnswer::Accepted {
                    run: accepted.run.id,
                    policy: accepted.policy,
                    position: accepted.position,
                    replayed: accepted.replayed,
                })
            }
            HomeRequest::RunCancel { caller, run } => {
                self.run_cancel(&caller, run).await.map(HomeAnswer::Cancelled)
            }
            HomeRequest::RunDelegate { caller, run, work } => {
                let delegated = match DelegationRequest::try_from(*work) {
                    Ok(work) => Box::pin(self.run_delegate(&caller, run, work)).await,
                    Err(error) => Err(error),
                };
                delegated.map(|made| HomeAnswer::Delegated {
                    delegation: made.delegation.id,
                    replayed: made.replayed,
                })
            }
            HomeRequest::Hosts(hosts) => {
                let known = &self.shared.host_calls;
                hosts.iter().for_each(|(run, host)| known.register(*run, Some(host)));
                Ok(HomeAnswer::HostsKnown)
            }
            HomeRequest::HostCall { host, call } => match self.shared.host_call_place(host, *call).await {
                Ok(result) => Ok(HomeAnswer::HostResult(result)),
                Err(HostCallError::Kernel(error)) => Err(error),
                Err(HostCallError::HostGone | HostCallError::NoHost) => Ok(HomeAnswer::HostGone),
            },
        };
        answer.map_err(|error| HomeRefusal::from(&error))
    }

    /// Accepts a prompt for a session of any home.
    pub(super) async fn run_create_anywhere(
        &self,
        caller: &Caller,
        request: RunRequest,
    ) -> Result<Accepted, Error> {
        // Checked here, because the home is not told that the caller is an agent.
        caller.check_writes()?;
        match self.target_elsewhere(caller, &request.session).await? {
            Some(_) => self.run_create_elsewhere(caller, request).await,
            None => match self.run_create(caller, request.clone()).await {
                // The session has moved meanwhile.
                Err(Error::Elsewhere { .. }) => Box::pin(self.run_create_elsewhere(caller, request)).await,
                created => created,
            },
        }
    }

    /// Sends a prompt for an existing session to the session's home, which accepts it.
    async fn run_create_elsewhere(&self, caller: &Caller, request: RunRequest) -> Result<Accepted, Error> {
        let Some(session) = self.session_resolve(caller, &request.session).await? else {
            return self.run_create(caller, request).await;
        };
        let fingerprint = fingerprint(&request);
        let relayed = RelayedRun {
            run: self.shared.ids.run(),
            caller: caller.clone(),
            request,
            fingerprint,
            delegation: None,
            host: None,
        };
        self.run_relay(session.id, relayed).await
    }

    /// Accepts the child of a delegation at `session`, which another kernel is the home of.
    pub(super) async fn child_relay(
        &self,
        caller: &Caller,
        session: SessionId,
        request: RunRequest,
        fingerprint: [u8; 16],
        delegation: NewDelegation,
    ) -> Result<Accepted, Error> {
        let parent = self.shared.run_find(delegation.parent_run).await?;
        let host = match &parent {
            Some(parent) => self.shared.host_run(parent).await?.map(|(run, host)| (run.id, host)),
            None => None,
        };
        let run = delegation.child_run;
        let relayed = RelayedRun {
            run,
            caller: caller.as_owner(),
            request,
            fingerprint,
            delegation: Some(delegation),
            host,
        };
        self.run_relay(session, relayed).await
    }

    /// Finds the session that a request names, if another kernel is its home.
    pub(super) async fn target_elsewhere(
        &self,
        caller: &Caller,
        target: &super::SessionTarget,
    ) -> Result<Option<SessionId>, Error> {
        if self.shared.peers().is_none() {
            return Ok(None);
        }
        let Some(session) = self.session_resolve(caller, target).await? else { return Ok(None) };
        Ok(self.session_home(session.id).await?.map(|_| session.id))
    }

    /// Sends a run to the home of `session`, which accepts it. The home may be this kernel by now.
    async fn run_relay(&self, session: SessionId, relayed: RelayedRun) -> Result<Accepted, Error> {
        let request = HomeRequest::RunAccept(Box::new(relayed.clone()));
        match self.ask_home(session, &request, Repeat::UntilAnswered).await? {
            Some(HomeAnswer::Accepted { run, policy, position, replayed }) => {
                let session = self.session_get(&relayed.caller, &SessionRef::Id(session)).await?;
                let run = self.run_get(&relayed.caller, run).await?;
                Ok(Accepted { session, run, policy, position, replayed })
            }
            Some(_) => Err(wrong_answer()),
            None => Box::pin(self.relayed_accept(&relayed)).await,
        }
    }

    async fn relayed_accept(&self, relayed: &RelayedRun) -> Result<Accepted, Error> {
        let RelayedRun { run, caller, request, fingerprint, delegation, host } = relayed;
        self.check_request(caller, request)?;
        if let Some((run, host)) = host {
            self.shared.host_calls.register(*run, Some(host));
        }
        let origin = RunOrigin { delegation: delegation.as_ref(), relayed: Some(*run) };
        self.run_accept_once(caller, request, *fingerprint, origin).await
    }

    /// Cancels a run of any home. An agent's right to do so is decided and recorded here.
    pub(super) async fn run_cancel_anywhere(
        &self,
        caller: &Caller,
        run: RunId,
    ) -> Result<CancelOutcome, Error> {
        let session = self.run_cancel_authorize(caller, run).await?;
        let cancel = async || self.shared.call(session, |reply| Command::Cancel(run, reply)).await;
        match cancel().await {
            Err(Error::Elsewhere { .. }) => {}
            outcome => return outcome,
        }
        let request = HomeRequest::RunCancel { caller: caller.as_owner(), run };
        match self.ask_home(session, &request, Repeat::UntilAnswered).await? {
            Some(HomeAnswer::Cancelled(outcome)) => Ok(outcome),
            Some(_) => Err(wrong_answer()),
            None => cancel().await,
        }
    }

    /// Delegates work of a run of any home. An agent delegates only work of its own run, which is here.
    pub(super) async fn run_delegate_anywhere(
        &self,
        caller: &Caller,
        run: RunId,
        work: &Delegate,
    ) -> Result<Delegated, Error> {
        let parent = self.run_readable(caller, run).await?;
        let is_here = self.shared.peers().is_none() || self.session_home(parent.session).await?.is_none();
        if is_here || caller.agent.is_some() {
            return self.run_delegate(caller, run, DelegationRequest::try_from(work.clone())?).await;
        }
        let request = HomeRequest::RunDelegate { caller: caller.clone(), run, work: Box::new(work.clone()) };
        let is_named = work.request_id.is_some() || work.idempotency_key.is_some();
        // Without a name, a repeated request would create a second child.
        let repeat = if is_named { Repeat::UntilAnswered } else { Repeat::UntilReached };
        match self.ask_home(parent.session, &request, repeat).await? {
            Some(HomeAnswer::Delegated { delegation, replayed }) => {
                let not_found = || Error::not_found("delegation", delegation);
                let of = DelegationsOf::Id(delegation);
                let delegation = self.shared.store.delegations(&of).await?.pop().ok_or_else(not_found)?;
                let session = self.session_get(caller, &SessionRef::Id(delegation.child_session)).await?;
                let run = self.run_get(caller, delegation.child_run).await?;
                Ok(Delegated { delegation, session, run, replayed })
            }
            Some(_) => Err(wrong_answer()),
            None => self.run_delegate(caller, run, DelegationRequest::try_from(work.clone())?).await,
        }
    }

    /// Returns the active run of a session of any home. Its state is as it was stored last.
    pub(super) async fn session_active_run(
        &self,
        caller: &Caller,
        session: SessionId,
    ) -> Result<Option<mainspring_core::Run>, Error> {
        let by = SessionRef::Id(session);
        match self.session_snapshot(caller, &by).await {
            Err(Error::Elsewhere { .. }) => {}
            snapshot => return Ok(snapshot?.active_run),
        }
        self.session_get(caller, &by).await?;
        let loaded = self.shared.store.session_load(session).await?;
        Ok(loaded.and_then(|loaded| Instant::of(loaded).active))
    }

    /// Sends a request to the home of `session` until it is answered; `None` if this kernel is the home, or the session has
    /// no home.
    async fn ask_home(
        &self,
        session: SessionId,
        request: &HomeRequest,
        repeat: Repeat,
    ) -> Result<Option<HomeAnswer>, Error> {
        let until = self.shared.clock.moment().plus(REPEAT_MS);
        let mut is_unknown = false;
        loop {
            let Some(node) = self.session_home(session).await? else { return Ok(None) };
            let Some(peers) = self.shared.peers() else { return Err(Error::Elsewhere { node }) };
            let why = match peers.ask(node, request.clone()).await {
                Ok(answer) => return Ok(Some(answer)),
                Err(AskError::Refused(refusal)) if !refusal.is_elsewhere => return Err(refusal.into()),
                Err(AskError::Refused(_)) => "the session has changed its home".to_owned(),
                Err(AskError::NotReached(why)) => why,
                Err(AskError::NotAnswered(why)) => {
                    is_unknown = true;
                    why
                }
            };
            let may_repeat = !is_unknown || repeat == Repeat::UntilAnswered;
            if !may_repeat || self.shared.clock.moment() >= until {
                return Err(unanswered(&why, is_unknown));
            }
            tracing::debug!(%session, %node, why, "a request to another server is sent again");
            tokio::select! {
                () = self.sleep(Duration::from_millis(PAUSE_MS)) => {}
                () = self.shared.tasks.stopping() => return Err(unanswered(&why, is_unknown)),
            }
        }
    }
}

impl super::Shared {
    /// The way to the other kernels, if there is one.
    pub(super) fn peers(&self) -> Option<&Peers> {
        self.options.homes.as_ref().and_then(|homes| homes.peers())
    }

    /// The kernel that leads and the way to it, if it is another one.
    pub(super) fn leader_elsewhere(&self) -> Option<(NodeId, &Peers)> {
        let homes = self.options.homes.as_ref()?;
        let leader = homes.leader().filter(|leader| *leader != self.node)?;
        Some((leader, homes.peers()?))
    }
}

/// When a request to another kernel may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// Until a kernel may have got it.
    UntilReached,
    /// Until it is answered: repeating it has no second effect.
    UntilAnswered,
}

fn unanswered(why: &str, is_unknown: bool) -> Error {
    let outcome = match is_unknown {
        true => "whether the request was carried out is unknown",
        false => "the request was not carried out; try again",
    };
    Error::AtHome { code: UNAVAILABLE, message: format!("{why}: {outcome}"), retryable: true }
}

fn wrong_answer() -> Error {
    let message =
        "the home of the session has answered another request: whether this one was carried out is unknown";
    Error::AtHome { code: UNAVAILABLE, message: message.into(), retryable: true }
}
