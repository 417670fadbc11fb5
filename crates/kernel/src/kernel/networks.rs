//! Networks of agents: the decisions of routers, and the route of a run through its network.

use std::collections::BTreeMap;

use mainspring_api::{MemberCall, MemberTotal, RouteDecision, RunRoute};
use mainspring_core::network::BadNetwork;
use mainspring_core::{
    AgentDefinition, AgentName, Body, Delegation, Route, Run, RunId, SessionId, StateEntry, Step, Time, Usage,
};

use super::{Caller, Kernel, Shared};
use crate::error::Error;
use crate::store::{DelegationsOf, SessionRef, StateAt};

/// The number of state keys that are read at a time.
const STATE_PAGE: usize = 500;

impl Kernel {
    /// Refuses a network whose members do not exist, or are networks themselves.
    pub(super) async fn check_members(
        &self,
        caller: &Caller,
        definition: &AgentDefinition,
    ) -> Result<(), Error> {
        let Some(network) = &definition.network else { return Ok(()) };
        for (field, agent) in network.agents() {
            let refused = |reason: String| Error::Invalid(BadNetwork::new(&field, reason).to_string());
            let name: AgentName = agent.parse()?;
            match self.agent_get(caller, &name).await {
                Ok(found) if found.definition.network.is_some() => {
                    return Err(refused(format!("{name} is a network; the members of a network are agents")));
                }
                Ok(_) => {}
                Err(Error::NotFound { .. }) => {
                    return Err(refused(format!("there is no agent {name}; make it first")));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the route of a run through its network: every decision of the router, and the calls that followed.
    pub async fn run_route(&self, caller: &Caller, run: RunId) -> Result<RunRoute, Error> {
        let run = self.run_readable(caller, run).await?;
        let session = self.session_get(caller, &SessionRef::Id(run.session)).await?;
        let network = run.agent_definition(&session).to_owned();
        let routes = self.shared.routes(run.session, run.id).await?;
        let steps = self.shared.store.steps(run.id).await?.intact()?;
        let children = self.shared.store.delegations(&DelegationsOf::Parent(run.session, run.id)).await?;
        let mut decisions = vec![];
        for (at, (decided_at, route)) in routes.iter().enumerate() {
            let until = routes.get(at + 1).map_or(u32::MAX, |(_, next)| next.step);
            let is_own = |step: &Step| !is_routing(step, &network);
            let of_call = |step: &&Step| step.no > route.step && step.no <= until && is_own(step);
            let mut calls = vec![];
            for name in route.next.iter().flat_map(|stage| stage.names()) {
                let child = children.iter().find(|child| is_child(child, route, name));
                calls.push(match child {
                    Some(child) => self.child_call(name, child).await?,
                    None => call(name, steps.iter().filter(of_call)),
                });
            }
            decisions.push(RouteDecision { decided_at_ms: *decided_at, route: route.clone(), calls });
        }
        let routing = steps.iter().filter(|step| is_routing(step, &network));
        let routing = routing.filter_map(|step| step.usage).fold(Usage::default(), |all, one| all + one);
        let members = totals(&decisions);
        Ok(RunRoute { run_id: run.id, network, status: run.state.status(), decisions, members, routing })
    }

    /// The call of a member that worked in a child.
    async fn child_call(&self, member: &str, child: &Delegation) -> Result<MemberCall, Error> {
        let run: Option<Run> = self.shared.store.run_get(child.child_run).await?;
        let steps = self.shared.store.steps(child.child_run).await?.intact()?;
        let mut call = call(member, steps.iter());
        call.child_run_id = Some(child.child_run);
        call.started_at_ms = run.as_ref().and_then(|run| run.started_at).or(Some(child.created_at));
        call.completed_at_ms = child.completed_at;
        if let Some(run) = run {
            call.usage = run.usage;
        }
        Ok(call)
    }
}

/// True for the child of a member that `route` has called.
fn is_child(child: &Delegation, route: &Route, name: &str) -> bool {
    child.request.is_of_member(route.no, name)
}

/// True for a call of the routing model: it is named after the network and made no message.
fn is_routing(step: &Step, network: &str) -> bool {
    let id = network.split_once('@').map_or(network, |(id, _)| id);
    step.output.is_none() && step.agent.split_once('@').map_or(step.agent.as_str(), |(id, _)| id) == id
}

/// The call of a member that made these model calls.
fn call<'a>(member: &str, steps: impl Iterator<Item = &'a Step>) -> MemberCall {
    let mut call = MemberCall { member: member.to_owned(), ..MemberCall::default() };
    for step in steps.filter(|step| step.output.is_some() || step.error.is_some()) {
        call.agent = Some(step.agent.clone());
        call.steps += 1;
        call.started_at_ms = call.started_at_ms.or(Some(step.started_at));
        call.completed_at_ms = Some(step.completed_at);
        call.usage += step.usage.unwrap_or(Usage::UNKNOWN);
    }
    call
}

/// The calls of each member, summed, in the order of their first call.
fn totals(decisions: &[RouteDecision]) -> Vec<MemberTotal> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut totals: Vec<MemberTotal> = vec![];
    for call in decisions.iter().flat_map(|decision| &decision.calls) {
        let at = *places.entry(&call.member).or_insert(totals.len());
        if at == totals.len() {
            totals.push(MemberTotal { member: call.member.clone(), ..MemberTotal::default() });
        }
        let total = &mut totals[at];
        total.calls += 1;
        total.steps += call.steps;
        total.duration_ms += call.duration_ms();
        total.usage += call.usage;
    }
    totals
}

impl Shared {
    /// Reads the decisions of a network's router from the events of its run, in order. Skips pruned events.
    pub(crate) async fn routes(&self, session: SessionId, run: RunId) -> Result<Vec<(Time, Route)>, Error> {
        let (mut routes, mut events) = (vec![], self.run_events(session, run));
        while let Some(page) = events.next_page().await? {
            routes.extend(page.into_iter().filter_map(|event| match event.body {
                Body::RunRouted { route } => Some((event.at, *route)),
                _ => None,
            }));
        }
        Ok(routes)
    }

    /// Reads the whole state of a run.
    pub(crate) async fn run_state(&self, run: RunId) -> Result<Vec<StateEntry>, Error> {
        let (at, mut all) = (StateAt::Run(run), Vec::<StateEntry>::new());
        loop {
            let after = all.last().map(|entry| entry.key.clone());
            let page = self.store.state_page(&at, after.as_deref(), STATE_PAGE).await?.intact()?;
            let is_last = page.len() < STATE_PAGE;
            all.extend(page);
            if is_last {
                return Ok(all);
            }
        }
    }
}
