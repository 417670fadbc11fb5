//! Kernels that share a PostgreSQL: an agent of one reaches sessions of another.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use mainspring_adapters::ScriptAdapter;
use mainspring_api::control::{ControlError, ControlPlane};
use mainspring_api::{Delegate, Prompt, PromptContent};
use mainspring_core::placement::Offer;
use mainspring_core::{
    Body, Cost, Cursor, DelegationMode, DelegationStatus, LeaseTimes, Mode, NodeId, Run, RunId, RunLimits,
    RunOptions, RunStatus, SessionId,
};
use mainspring_kernel::adapter::{End, Executed, HandleError};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::homes::Homes;
use mainspring_kernel::kernel::reach::{AskError, HomeRequest, Peers};
use mainspring_kernel::kernel::{
    Caller, Delegated, DelegationRequest, HostCallError, KernelPlane, RunRequest, SessionTarget,
};
use mainspring_kernel::store::Store;
use mainspring_kernel::{Error, Kernel, Options};
use mainspring_store::{LocalServer, PostgresOptions, Standby};
use parking_lot::Mutex;
use serde_json::json;

use crate::cluster::database;
use crate::puppet::{Execution, PuppetBehavior, PuppetControl, puppet, puppet_request};
use crate::world::{NOW, with_timeout};

/// Faults of the connection between the kernels.
#[derive(Default)]
struct Faults {
    /// Number of answers that get lost from now on.
    lost_answers: Mutex<u32>,
    /// True while no request reaches another kernel.
    is_cut: AtomicBool,
    /// Number of requests that did not reach another kernel.
    unreached: AtomicUsize,
    /// The requests that were sent.
    sent: Mutex<Vec<HomeRequest>>,
}

type Kernels = Arc<Mutex<HashMap<NodeId, Kernel>>>;

struct Server {
    standby: Standby,
    kernel: Kernel,
    clock: Clock,
    control: PuppetControl,
}

struct Group {
    servers: [Server; 2],
    faults: Arc<Faults>,
    me: Caller,
}

fn node(n: u8) -> NodeId {
    NodeId::from_random([n; 16])
}

async fn ask(
    kernels: Kernels,
    faults: Arc<Faults>,
    node: NodeId,
    request: HomeRequest,
) -> Result<mainspring_kernel::kernel::reach::HomeAnswer, AskError> {
    let known = kernels.lock().get(&node).cloned();
    let Some(kernel) = known.filter(|_| !faults.is_cut.load(Ordering::Acquire)) else {
        faults.unreached.fetch_add(1, Ordering::AcqRel);
        return Err(AskError::NotReached("it is not there".into()));
    };
    faults.sent.lock().push(request.clone());
    // Requests travel as JSON.
    let request = serde_json::from_slice(&serde_json::to_vec(&request).unwrap()).unwrap();
    let answer = Box::pin(kernel.home_answer(request)).await;
    let answer = serde_json::from_slice::<Result<_, _>>(&serde_json::to_vec(&answer).unwrap()).unwrap();
    let is_lost = {
        let mut lost = faults.lost_answers.lock();
        let is_lost = *lost > 0;
        *lost = lost.saturating_sub(1);
        is_lost
    };
    match is_lost {
        true => Err(AskError::NotAnswered("the answer is lost".into())),
        false => answer.map_err(AskError::Refused),
    }
}

/// Starts a kernel with the agents `puppet` and `script`; the second one also has the agent `other`.
async fn server(url: &str, n: u8, kernels: &Kernels, faults: &Arc<Faults>) -> Server {
    let local = LocalServer {
        node: node(n),
        name: format!("server {n}"),
        address: format!("http://server{n}"),
        place: None,
        times: LeaseTimes::new(60_000),
        limit_file: None,
        settings: mainspring_store::AnnouncedSettings::default(),
        offer: Offer::default(),
    };
    let standby = Standby::join(url, PostgresOptions::default(), local).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(standby.work().await.unwrap());
    standby.homes().wait_for(|homes| homes.leader.is_some()).await.unwrap();
    let known = standby.homes();
    let homes = Homes::new(Vec::new).with_leader(move || known.borrow().leader);
    let (known, failing) = (Arc::clone(kernels), Arc::clone(faults));
    let homes = homes.with_peers(Peers::new(move |node, request| {
        Box::pin(ask(Arc::clone(&known), Arc::clone(&failing), node, request))
    }));
    let options = Options { node: Some(node(n)), homes: Some(homes), max_workers: 1, ..Options::default() };
    let rules = vec!["deny terminal run rm*".parse().unwrap()];
    let behavior = PuppetBehavior { obeys: true, rules, ..PuppetBehavior::default() };
    let (agent, control) = puppet(&store, behavior.clone());
    let mut agents: Vec<Arc<dyn mainspring_kernel::adapter::Adapter>> = vec![agent, Arc::new(ScriptAdapter)];
    if n == 2 {
        agents.push(puppet(&store, PuppetBehavior { name: "other", ..behavior }).0);
    }
    let clock = Clock::manual(NOW);
    let kernel = Kernel::start(store, agents, options, clock.clone(), Ids::seeded(n.into())).await.unwrap();
    kernels.lock().insert(node(n), kernel.clone());
    Server { standby, kernel, clock, control }
}

impl Group {
    async fn start() -> Self {
        let (url, kernels, faults) = (database(), Kernels::default(), Arc::<Faults>::default());
        let first = server(&url, 1, &kernels, &faults).await;
        let second = server(&url, 2, &kernels, &faults).await;
        Self { servers: [first, second], faults, me: Caller::new("ada") }
    }

    /// Polls `what` while both kernels learn of each other's writes and the clock advances.
    fn drive<'a, T: 'a>(
        &'a self,
        what: impl Future<Output = T> + 'a,
    ) -> Pin<Box<dyn Future<Output = T> + 'a>> {
        let turn = async {
            loop {
                for server in &self.servers {
                    server.clock.advance(50);
                    // A server that has left cannot read any more.
                    let _ = server.kernel.homes_poll().await;
                }
                tokio::task::yield_now().await;
            }
        };
        let done = async {
            tokio::select! {
                done = what => done,
                () = turn => unreachable!(),
            }
        };
        Box::pin(with_timeout(done))
    }

    /// Starts a run of the puppet in a session of a server.
    async fn start_run(&mut self, at: usize, key: &str) -> (Run, Execution) {
        let server = &mut self.servers[at];
        let run = server.kernel.run_create(&self.me, puppet_request(key, "go")).await.unwrap().run;
        loop {
            let execution = server.control.next().await;
            // A child that is about to be cancelled may have begun before.
            if execution.handle.assignment().run.id == run.id {
                return (run, execution);
            }
        }
    }

    /// Makes an idle session at a server.
    async fn make_session(&self, at: usize, key: &str, prompt: &str) -> SessionId {
        let kernel = &self.servers[at].kernel;
        let run = Box::pin(kernel.run_create(&self.me, RunRequest::text(key, prompt))).await.unwrap().run;
        Box::pin(self.drive(kernel.run_wait_ended(&self.me, run.id))).await.unwrap();
        run.session
    }

    /// Waits until a run has this status, as the first server reads it.
    async fn reaches(&self, run: RunId, status: RunStatus) {
        let kernel = &self.servers[0].kernel;
        self.drive(async {
            while kernel.run_status(&self.me, run).await.unwrap() != status {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Counts the runs of a session.
    async fn runs(&self, session: SessionId) -> usize {
        let query = mainspring_kernel::kernel::RunQuery { session: Some(session), ..Default::default() };
        self.servers[0].kernel.run_list(&self.me, query).await.unwrap().len()
    }
}

fn continues(session: SessionId, objective: &str) -> DelegationRequest {
    let session = SessionTarget { id: Some(session), ..SessionTarget::default() };
    DelegationRequest { session, ..DelegationRequest::new(DelegationMode::Continue, objective) }
}

async fn delegate(execution: &Execution, request: DelegationRequest) -> Result<Delegated, Error> {
    match execution.handle.delegate(request).await {
        Ok(delegated) => Ok(delegated),
        Err(HandleError::Kernel(error)) => Err(error),
        Err(error) => panic!("{error:?}"),
    }
}

fn ended() -> Executed {
    End::succeeded()
}

fn code(error: &ControlError) -> &str {
    &error.code
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_delegates_to_a_session_of_another_server_and_gets_the_result() {
    let mut group = Group::start().await;
    let session = group.make_session(1, "theirs", "say hello").await;
    let (run, execution) = group.start_run(0, "mine").await;
    let options = RunOptions {
        limits: RunLimits {
            max_cost: Some(Cost::from(1.0)),
            best_effort: Some(true),
            ..RunLimits::default()
        },
        ..RunOptions::default()
    };
    let request = DelegationRequest { options, ..continues(session, "say done; usage 3 4 0.5") };
    let made = group.drive(delegate(&execution, request)).await.unwrap();
    assert_eq!((made.run.parent, made.run.session, made.replayed), (Some(run.id), session, false));
    assert_eq!(made.run.options.limits.max_cost, Some(Cost::from(1.0)));
    let bounds = made.run.options.bounds.concat();
    assert!(
        bounds.iter().any(|rule| rule.contains("rm*")),
        "the rules of the parent bind the child: {bounds:?}"
    );
    assert_eq!(group.servers[0].kernel.session_home(session).await, Ok(Some(node(2))), "it stays there");
    // Both ways of waiting: by notes between the sessions, and by reading the run.
    let (settled, result) = group.drive(execution.handle.settled(made.delegation.id)).await.unwrap();
    assert_eq!(settled.status, DelegationStatus::Succeeded);
    assert_eq!(result.unwrap().summary, "done\n");
    let plane = execution.handle.control().unwrap();
    let child = group.drive(plane.run_ended(made.run.id)).await.unwrap();
    assert_eq!((child.state.status(), child.final_text.as_deref()), (RunStatus::Succeeded, Some("done\n")));
    // The session of the parent gets a note, and records the event after it.
    let recorded = async {
        loop {
            let kernel = &group.servers[0].kernel;
            let events = kernel.run_events(&group.me, run.id, Cursor::START, None).await.unwrap();
            let kinds = events.iter().map(|event| event.body.kind());
            let kinds: Vec<_> = kinds.filter(|kind| kind.starts_with("delegation")).collect();
            if kinds.len() > 1 {
                return kinds;
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(group.drive(recorded).await, ["delegation.created", "delegation.completed"]);
    assert_eq!(group.runs(session).await, 2);
    execution.end(ended());
    group.reaches(run.id, RunStatus::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_of_another_server_may_do_no_more_than_its_parent() {
    let mut group = Group::start().await;
    let session = group.make_session(1, "theirs", "say hello").await;
    let mut asking = puppet_request("asks", "go");
    asking.mode = Mode::Ask;
    let kernel = group.servers[0].kernel.clone();
    let parent = kernel.run_create(&group.me, asking).await.unwrap().run;
    let execution = group.servers[0].control.next().await;
    let act = DelegationRequest { run_mode: Mode::Act, ..continues(session, "say x") };
    assert_eq!(group.drive(delegate(&execution, act)).await.unwrap_err().code(), "forbidden");
    // An agent cannot prompt a session directly, neither here nor at another server.
    let plane = execution.handle.control().unwrap();
    let prompt = Prompt {
        session: mainspring_api::SessionTarget::id(session),
        prompt: Some(PromptContent::Text("say x".into())),
        ..Prompt::default()
    };
    assert_eq!(code(&group.drive(plane.run_create(&prompt)).await.unwrap_err()), "forbidden");
    // A run that only answers cancels nothing that it has not delegated.
    let (other, _running) = group.start_run(1, "busy").await;
    assert_eq!(code(&group.drive(plane.run_cancel(other.id)).await.unwrap_err()), "forbidden");
    // Refusals of the home are returned unchanged.
    let unknown = DelegationRequest { adapter: Some("none".into()), ..continues(session, "say x") };
    let refused = group.drive(delegate(&execution, unknown)).await.unwrap_err();
    assert_eq!(refused.code(), "adapter_not_registered");
    assert_eq!(group.runs(session).await, 1, "nothing was made");
    assert_eq!(kernel.run_status(&group.me, parent.id).await, Ok(RunStatus::Running));
    // An agent that only the other server has is reached.
    let only_there = DelegationRequest { adapter: Some("other".into()), ..continues(session, "go") };
    let made = group.drive(delegate(&execution, only_there)).await.unwrap();
    assert_eq!(made.run.adapter, "other");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_prompts_reads_and_cancels_runs_of_any_server() {
    let mut group = Group::start().await;
    let (run, execution) = group.start_run(1, "theirs").await;
    let plane = KernelPlane::new(group.servers[0].kernel.clone(), group.me.clone());
    let active = group.drive(plane.session_active_run(run.session)).await.unwrap().unwrap();
    assert_eq!((active.id, active.state.status()), (run.id, RunStatus::Running));
    let prompt = Prompt {
        session: mainspring_api::SessionTarget { key: Some("theirs".into()), ..Default::default() },
        prompt: Some(PromptContent::Text("go on".into())),
        ..Prompt::default()
    };
    let queued = group.drive(plane.run_create(&prompt)).await.unwrap();
    assert_eq!((queued.session, queued.state.status()), (run.session, RunStatus::Queued));
    // Work of a run of another server is delegated at that server, which shares the run's limits among its children.
    let work = Delegate {
        client_id: Some("c".into()),
        request_id: Some("r".into()),
        ..Delegate::new(DelegationMode::Spawn, "go")
    };
    let child = group.drive(plane.run_delegate(run.id, &work)).await.unwrap();
    assert_eq!(group.servers[0].kernel.session_home(child.run.session).await, Ok(Some(node(2))));
    let again = group.drive(plane.run_delegate(run.id, &work)).await.unwrap();
    assert_eq!((again.run.id, again.replayed), (child.run.id, true));
    group.drive(plane.run_cancel(queued.id)).await.unwrap();
    group.reaches(queued.id, RunStatus::Cancelled).await;
    let refused = group.drive(plane.run_cancel(queued.id)).await.unwrap_err();
    assert_eq!(code(&refused), "run_ended");
    // Runs of another owner are not found.
    let stranger = KernelPlane::new(group.servers[0].kernel.clone(), Caller::new("eve"));
    assert!(group.drive(stranger.run_cancel(run.id)).await.unwrap_err().is_not_found());
    assert!(group.drive(stranger.session_active_run(run.session)).await.unwrap_err().is_not_found());
    execution.end(ended());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_answer_is_lost_makes_one_run() {
    let mut group = Group::start().await;
    let session = group.make_session(1, "theirs", "say hello").await;
    let (_, execution) = group.start_run(0, "mine").await;
    *group.faults.lost_answers.lock() = 2;
    let made = group.drive(delegate(&execution, continues(session, "say once"))).await.unwrap();
    assert_eq!(group.faults.sent.lock().len(), 3, "it was sent until it was answered");
    let (settled, _) = group.drive(execution.handle.settled(made.delegation.id)).await.unwrap();
    assert_eq!((settled.status, settled.child_run), (DelegationStatus::Succeeded, made.run.id));
    assert_eq!(group.runs(session).await, 2);
    // A server that is never reached is named, and nothing was made.
    group.faults.is_cut.store(true, Ordering::Release);
    let refused = group.drive(delegate(&execution, continues(session, "say never"))).await.unwrap_err();
    assert_eq!((refused.code(), refused.is_retryable()), ("unavailable", true));
    assert!(refused.to_string().ends_with("the request was not carried out; try again"), "{refused}");
    assert_eq!(group.runs(session).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegation_is_settled_after_the_end_of_the_childs_server() {
    let mut group = Group::start().await;
    let session = group.make_session(1, "theirs", "say hello").await;
    let (_, execution) = group.start_run(0, "mine").await;
    // The answer is lost and then the server ends: the server that takes over finds the run.
    *group.faults.lost_answers.lock() = u32::MAX;
    let made = async {
        let made = delegate(&execution, continues(session, "sleep 60m")).await.unwrap();
        execution.handle.settled(made.delegation.id).await.unwrap()
    };
    let takeover = async {
        while group.runs(session).await < 2 || group.faults.sent.lock().len() < 2 {
            tokio::task::yield_now().await;
        }
        group.faults.is_cut.store(true, Ordering::Release);
        group.servers[1].standby.leave().await.unwrap();
        group.servers[0].kernel.homes_recover().await.unwrap();
    };
    let ((settled, _), ()) = Box::pin(group.drive(async { tokio::join!(made, takeover) })).await;
    assert_eq!(settled.status, DelegationStatus::Failed, "its run is orphaned");
    assert_eq!(group.runs(session).await, 2);
    let child = group.servers[0].kernel.run_status(&group.me, settled.child_run).await.unwrap();
    assert_eq!(child, RunStatus::Orphaned);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_lost_its_home_gets_the_asking_server_as_its_home() {
    let mut group = Group::start().await;
    let session = group.make_session(1, "theirs", "say hello").await;
    let (_, execution) = group.start_run(0, "mine").await;
    group.faults.is_cut.store(true, Ordering::Release);
    let leave = async {
        while group.faults.unreached.load(Ordering::Acquire) == 0 {
            tokio::task::yield_now().await;
        }
        group.servers[1].standby.leave().await.unwrap();
    };
    let request = continues(session, "say here");
    let (made, ()) = group.drive(async { tokio::join!(delegate(&execution, request), leave) }).await;
    let (settled, result) = group.drive(execution.handle.settled(made.unwrap().delegation.id)).await.unwrap();
    assert_eq!((settled.status, result.unwrap().summary.as_str()), (DelegationStatus::Succeeded, "here\n"));
    assert_eq!(group.servers[0].kernel.session_home(session).await, Ok(None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_parent_cancels_its_child_at_another_server() {
    let mut group = Group::start().await;
    let session = group.make_session(1, "theirs", "say hello").await;
    let (run, execution) = group.start_run(0, "mine").await;
    let made = group.drive(delegate(&execution, continues(session, "sleep 60m"))).await.unwrap();
    group.reaches(made.run.id, RunStatus::Running).await;
    group.servers[0].kernel.run_cancel(&group.me, run.id).await.unwrap();
    group.reaches(made.run.id, RunStatus::Cancelled).await;
    group.reaches(run.id, RunStatus::Cancelled).await;
    let (delegation, _) =
        group.servers[0].kernel.delegation_get(&group.me, made.delegation.id).await.unwrap();
    assert_eq!(delegation.status, DelegationStatus::Cancelled);
    let events =
        group.servers[1].kernel.run_events(&group.me, made.run.id, Cursor::START, None).await.unwrap();
    assert!(events.iter().any(|event| matches!(event.body, Body::RunCancelled { .. })), "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_two_servers_do_not_wait_for_each_other() {
    let mut group = Group::start().await;
    let (first, here) = group.start_run(0, "here").await;
    let (second, there) = group.start_run(1, "there").await;
    let made = group.drive(delegate(&here, continues(second.session, "say x"))).await.unwrap();
    let refused = group.drive(delegate(&there, continues(first.session, "say y"))).await.unwrap_err();
    assert_eq!(refused.code(), "would_deadlock");
    assert_eq!(group.runs(first.session).await, 1, "a refused delegation leaves nothing");
    // The child has its turn when its session is idle.
    there.end(ended());
    let child = group.servers[1].control.next().await;
    assert_eq!(child.handle.assignment().run.id, made.run.id);
    child.end(ended());
    group.drive(here.handle.settled(made.delegation.id)).await.unwrap();
    here.end(ended());
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_that_two_servers_begin_at_the_same_time_close_no_cycle() {
    let mut group = Group::start().await;
    for round in 0..10 {
        let (first, here) = group.start_run(0, &format!("here{round}")).await;
        let (second, there) = group.start_run(1, &format!("there{round}")).await;
        let both = async {
            tokio::join!(
                delegate(&here, continues(second.session, "say x")),
                delegate(&there, continues(first.session, "say y"))
            )
        };
        let outcomes: [Result<Delegated, Error>; 2] = Box::pin(group.drive(both)).await.into();
        let refused: Vec<&Error> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        assert!(!refused.is_empty(), "both wait for each other in round {round}");
        assert!(refused.iter().all(|error| error.code() == "would_deadlock"), "{refused:?}");
        for (run, server) in [(first, 0), (second, 1)] {
            group.servers[server].kernel.run_cancel(&group.me, run.id).await.unwrap();
            group.reaches(run.id, RunStatus::Cancelled).await;
        }
        for made in outcomes.iter().flatten() {
            // The child holds the only worker until the note of its parent has arrived.
            group.reaches(made.run.id, RunStatus::Cancelled).await;
        }
    }
    // An announcement that is withdrawn leaves nothing behind.
    let (first, here) = group.start_run(0, "last-here").await;
    let (second, there) = group.start_run(1, "last-there").await;
    group.drive(delegate(&there, continues(first.session, "say y"))).await.unwrap();
    drop((second, here));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_runs_on_the_permit_of_its_parent_at_another_server() {
    let mut group = Group::start().await;
    let session = group.make_session(1, "theirs", "say hello").await;
    // The only worker of the other server is busy.
    let (_, _busy) = group.start_run(1, "busy").await;
    let (_, execution) = group.start_run(0, "mine").await;
    let made = group.drive(delegate(&execution, continues(session, "say now"))).await.unwrap();
    let (settled, _) = group.drive(execution.handle.settled(made.delegation.id)).await.unwrap();
    assert_eq!(settled.status, DelegationStatus::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_runs_tools_for_sessions_of_any_server() {
    let mut group = Group::start().await;
    let host = Some("a secret name".to_owned());
    let leader = group.servers[0].kernel.clone();
    // Answers the next call of an agent, as the host that asks the leader.
    let me = group.me.clone();
    let answer = async |result: &str| {
        let calls = leader.host_calls(&me, "a secret name", 0, 10_000).await.unwrap();
        let [call] = &calls[..] else { panic!("{calls:?}") };
        assert!(leader.host_call_answer(&me, "a secret name", call.no, json!(result)).unwrap());
        call.clone()
    };
    let request = RunRequest { host: host.clone(), ..puppet_request("theirs", "go") };
    let run = group.servers[1].kernel.run_create(&group.me, request).await.unwrap().run;
    let there = group.servers[1].control.next().await;
    let both =
        async { tokio::join!(there.handle.call_host("c1", "open", json!({"a": 1})), answer("opened")) };
    let (result, call) = group.drive(both).await;
    assert_eq!((result, call.run_id, call.host_run_id), (Ok(json!("opened")), run.id, run.id));
    assert_eq!((call.name.as_str(), &call.input), ("open", &json!({"a": 1})));
    there.end(ended());
    // A prompt with a host is not answered by a server that is not the home, even if it was accepted before.
    let named = |host: Option<String>| {
        let mut request = RunRequest { host, ..puppet_request("theirs", "again") };
        (request.name.client_id, request.name.request_id) = (Some("c".into()), Some("r".into()));
        request
    };
    group.servers[1].kernel.run_create(&group.me, named(host.clone())).await.unwrap();
    let again = leader.run_create(&group.me, named(host.clone())).await.map(drop);
    assert_eq!(again, Err(Error::Elsewhere { node: node(2) }));
    assert!(leader.run_create(&group.me, named(None)).await.unwrap().replayed);
    group.servers[1].control.next().await.end(ended());
    // Work that a run of the host delegates to another server has the same host.
    let session = run.session;
    let request = RunRequest { host, ..puppet_request("mine", "go") };
    let parent = leader.run_create(&group.me, request).await.unwrap().run;
    let here = group.servers[0].control.next().await;
    let made = group.drive(delegate(&here, continues(session, "go"))).await.unwrap();
    let child = group.servers[1].control.next().await;
    let both = async { tokio::join!(child.handle.call_host("c2", "open", json!({})), answer("again")) };
    let (result, call) = group.drive(both).await;
    assert_eq!((result, call.run_id, call.host_run_id), (Ok(json!("again")), made.run.id, parent.id));
    // The host no longer asks for calls.
    let gone = group.drive(child.handle.call_host("c3", "open", json!({}))).await;
    assert_eq!(gone, Err(HostCallError::HostGone));
}
