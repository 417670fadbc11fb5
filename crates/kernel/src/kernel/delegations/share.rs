//! The share of a child: the limits that it gets from what its parent has left.
//!
//! Children of one run that are made at the same time must not each get all of the rest. So the share of a child is
//! reserved from the check until its commit; from then on the store has it.

use std::sync::Arc;

use mainspring_core::{AgentLimits, Cost, Delegation, Run, RunId, RunLimits, SessionId, Usage, UsageReports};
use parking_lot::Mutex;

use super::Shared;
use crate::error::Error;
use crate::store::DelegationsOf;

/// The shares of children that are not committed yet.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Makes the check of the parent's remaining limits and the reservation atomic.
    checking: tokio::sync::Mutex<()>,
    reserved: Mutex<Vec<Share>>,
}

#[derive(Debug, Clone, Copy)]
struct Share {
    parent: RunId,
    child: RunId,
    limits: RunLimits,
}

/// The limits that a child is to have, and those that follow from its parent's agent and its own adapter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// The limits of the child: those of the request, completed by those of its agent.
    pub limits: RunLimits,
    /// The limits of the parent's agent.
    pub parent_agent: AgentLimits,
    /// Whether the child's adapter counts model calls.
    pub counts_steps: bool,
}

/// The share of a child that is being committed. Dropping it ends the reservation.
#[derive(Debug)]
pub(crate) struct ReservedShare {
    shares: Arc<Shares>,
    child: RunId,
    /// The limits of the child.
    pub limits: RunLimits,
}

impl Drop for ReservedShare {
    fn drop(&mut self) {
        self.shares.reserved.lock().retain(|share| share.child != self.child);
    }
}

impl Shares {
    fn of_parent(&self, parent: RunId) -> Vec<Share> {
        self.reserved.lock().iter().filter(|share| share.parent == parent).copied().collect()
    }

    fn reserve(self: &Arc<Self>, share: Share) -> ReservedShare {
        self.reserved.lock().push(share);
        ReservedShare { shares: self.clone(), child: share.child, limits: share.limits }
    }
}

/// The children of a run: how many have not ended, and the usage of all. Those that have not ended count with at
/// least their limits.
#[derive(Debug, Default)]
struct Children {
    living: usize,
    usage: Usage,
}

impl Children {
    fn add(&mut self, usage: Usage, is_settled: bool, limits: &RunLimits) {
        self.usage += match is_settled {
            true => usage,
            false => at_least(usage, limits),
        };
        self.living += usize::from(!is_settled);
    }
}

/// Raises the usage of a run that has not ended to its limits, since it may still use all of them.
fn at_least(mut usage: Usage, limits: &RunLimits) -> Usage {
    usage.cost = usage.cost.max(limits.max_cost.unwrap_or_default());
    usage.output_tokens += limits.max_tokens.unwrap_or(0).saturating_sub(usage.tokens());
    usage
}

impl Shared {
    /// Reserves the share of the new run `child` of `parent`: the wanted limits, but no more than its parent has left.
    pub(super) async fn reserve_share(
        &self,
        parent: &Run,
        child: RunId,
        adapter: &str,
        wanted: Wanted,
    ) -> Result<ReservedShare, Error> {
        let _atomic = self.shares.checking.lock().await;
        let children = self.children(parent.session, parent.id).await?;
        let limit = self.options.limits.children_per_run;
        if children.living >= limit {
            return Err(Error::TooManyChildren { limit });
        }
        let mut left = parent.limits_left(wanted.parent_agent, &children.usage, self.clock.now());
        if left.is_used_up() {
            return Err(used_up());
        }
        if left.max_steps.is_some() && !wanted.counts_steps {
            // The model calls of such an adapter are not counted.
            if wanted.limits.best_effort != Some(true) {
                let known = self.adapter(adapter).map(|adapter| adapter.capabilities().usage_reports);
                let reports = known.unwrap_or(UsageReports::Never);
                return Err(Error::LimitNotKept { adapter: adapter.to_owned(), limit: "maxSteps", reports });
            }
            left.max_steps = None;
        }
        // Limits that come only from the parent are best effort: the child's adapter enforces what it can.
        let is_given = left.has_no_amount() || !wanted.limits.has_no_amount();
        let best_effort = wanted.limits.best_effort.or((!is_given).then_some(true));
        let limits = RunLimits { best_effort, ..wanted.limits.share_of(&left) };
        Ok(self.shares.reserve(Share { parent: parent.id, child, limits }))
    }

    /// Reduces the limits requested for a retry of `child` to the rest of its parent's. The earlier usage of the child
    /// counts against the limits of the retry too.
    pub(crate) async fn retried_child_limits(
        &self,
        parent: &Run,
        child: &Run,
        wanted: RunLimits,
    ) -> Result<RunLimits, Error> {
        let used = self.spent_by_children(parent.session, parent.id).await?;
        let rest = parent.limits_left(AgentLimits::default(), &used, self.clock.now());
        if rest.is_used_up() {
            return Err(used_up());
        }
        let tokens = rest.max_tokens.map(|max| max.saturating_add(child.usage.tokens()));
        let cost = rest.max_cost.map(|max| Cost(max.0.saturating_add(child.usage.cost.0)));
        Ok(wanted.within(&RunLimits { max_steps: None, max_tokens: tokens, max_cost: cost, ..rest }))
    }

    /// Sums the usage of the children of a run. Children that have not ended count with their limits.
    pub(crate) async fn spent_by_children(&self, session: SessionId, run: RunId) -> Result<Usage, Error> {
        Ok(self.children(session, run).await?.usage)
    }

    async fn children(&self, session: SessionId, run: RunId) -> Result<Children, Error> {
        // Read before the store: a share that is gone later is committed or refused.
        let reserved = self.shares.of_parent(run);
        let stored = self.store.delegations(&DelegationsOf::Parent(session, run)).await?;
        let mut children = Children::default();
        for Delegation { child_run, status, .. } in &stored {
            let Some(child) = self.store.run_get(*child_run).await? else { continue };
            let beneath = Box::pin(self.spent_by_children(child.session, child.id)).await?;
            children.add(child.usage + beneath, status.is_settled(), &child.options.limits);
        }
        let is_stored = |share: &Share| stored.iter().any(|delegation| delegation.child_run == share.child);
        for share in reserved.iter().filter(|share| !is_stored(share)) {
            children.add(Usage::default(), false, &share.limits);
        }
        Ok(children)
    }
}

fn used_up() -> Error {
    Error::Invalid(
        "the run that would delegate has used up its own limits, or given them to others: wait for those"
            .into(),
    )
}
