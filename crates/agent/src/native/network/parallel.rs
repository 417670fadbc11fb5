//! Parallel members: each works in a child session of its own, by delegation.
//!
//! The children are created under names derived from the decision, so that an execution that starts again finds them.
//! Each starts with a copy of the run's state. When all have ended, one commit holds their results in the order of the
//! members and the state that the reducer made of their changes.

use futures_util::future::join_all;
use mainspring_core::network::{MemberChange, reduce};
use mainspring_core::{
    Block, Delegation, DelegationMode, DelegationResult, DelegationStatus, Message, NetworkMember,
    RequestName, Route, RunOptions, StateEntry, StateScope, Time,
};
use mainspring_kernel::adapter::{End, HandleError, Record};
use mainspring_kernel::kernel::{DelegationRequest, MAX_CONTEXT_CHARS, NewSession, SessionTarget};
use serde_json::{Map, Value};

use super::super::Exit;
use super::super::execution::Execution;
use super::super::plan::{MEMBER_SURFACE, find_agent, read_state};
use super::{NetworkRun, member_system, view};
use crate::network::LastResult;

/// The client of the requests that create members.
const CLIENT: &str = "mainspring.network";

/// The end of one member.
struct Ended {
    name: String,
    text: Result<String, String>,
    changes: Vec<MemberChange>,
}

impl Execution<'_> {
    /// Runs a parallel stage: creates its children or finds them, waits for all, and records their results.
    pub(super) async fn run_parallel(&mut self, names: &[String]) -> Result<(), Exit> {
        let Some(route) = self.network.as_ref().and_then(|network| network.route.clone()) else {
            return Ok(());
        };
        self.load_steps().await?;
        self.update_delegated_usage().await?;
        self.check_limits()?;
        let state = read_state(&self.attempt, StateScope::Run).await?;
        let context = self.context_of_members().await?;
        let earlier = self.attempt.delegations().await?;
        let mut requests = vec![];
        for name in names {
            requests.push(self.member_request(&route, name, &context, &state, &earlier).await?);
        }
        let children = self.attempt.delegate_all(requests).await?;
        let attempt = self.attempt.clone();
        let all = join_all(children.iter().map(|child| attempt.settled(child.delegation.id)));
        let settled = tokio::select! {
            biased;
            () = self.attempt.cancelled() => return Err(End::stopped().into()),
            settled = all => settled,
        };
        let settled: Result<Vec<_>, HandleError> = settled.into_iter().collect();
        let mut ended = vec![];
        for (name, (child, result)) in names.iter().zip(settled?) {
            ended.push(self.member_end(name, &child, result).await?);
        }
        if ended.iter().all(|ended| ended.text.is_err()) {
            let problems: Vec<String> = ended.iter().map(result_text).collect();
            return Err(Exit::failed("members_failed", problems.join("; ")));
        }
        self.record_stage(ended, &state).await
    }

    /// Records the results of a stage, and the state that its reducer made of `before`, in one commit.
    async fn record_stage(&mut self, ended: Vec<Ended>, before: &Map<String, Value>) -> Result<(), Exit> {
        let Some(network) = &self.network else { return Ok(()) };
        let how = network.network()?.reduce.clone();
        let blocks: Vec<Block> = ended.iter().map(|ended| Block::text(result_text(ended))).collect();
        let changes: Vec<Vec<MemberChange>> = ended.iter().map(|ended| ended.changes.clone()).collect();
        let state = reduce(&how, before, &changes).into_iter();
        let state = state.map(|(key, value)| Record::RunState { key, value });
        // The message is the network's, not of the member that was called before.
        let author = Record::Agent { name: network.definition.name() };
        let mut records = vec![author, Record::Message { blocks, usage: None }];
        records.extend(state);
        self.attempt.record(records).await?;
        let written = self.attempt.path(1).await?.pop().map(|message| message.id);
        if let Some(network) = &mut self.network {
            network.stages.extend(written);
        }
        self.set_last(last_of(ended.into_iter().map(|ended| (ended.name, ended.text)).collect()));
        Ok(())
    }

    /// Restores the result of a parallel stage from its message.
    pub(super) fn remember_stage(&mut self, names: &[String], results: &Message) {
        let texts = results.content.iter().filter_map(|block| match block {
            Block::Text { text } => Some(text.as_str()),
            _ => None,
        });
        let ended = names.iter().zip(texts).map(|(name, text)| {
            let failed = text.strip_prefix(&failed_prefix(name)).map(|problem| Err(problem.to_owned()));
            let said = || Ok(text.strip_prefix(&said_prefix(name)).unwrap_or(text).to_owned());
            (name.clone(), failed.unwrap_or_else(said))
        });
        let last = last_of(ended.collect());
        if let Some(network) = &mut self.network {
            network.stages.push(results.id);
        }
        self.set_last(last);
    }

    /// The messages and tool calls of the earlier members, as a text for the children.
    async fn context_of_members(&self) -> Result<String, Exit> {
        let (run, prompt) = (self.attempt.assignment().run.id, self.attempt.assignment().prompt.id);
        let path = self.attempt.path(super::MAX_CALL_MESSAGES).await?;
        let of_run = path.into_iter().filter(|message| message.run == Some(run) && message.id != prompt);
        let Some(network) = &self.network else { return Ok(String::new()) };
        let text = view::as_text(&of_run.collect::<Vec<_>>(), &network.authors);
        let left_out = text.chars().count().saturating_sub(MAX_CONTEXT_CHARS);
        // If the text is too long, its end is kept: the most recent messages.
        Ok(text.chars().skip(left_out).collect())
    }

    /// The request that creates the child of a member, under the same name in every execution of the attempt.
    async fn member_request(
        &self,
        route: &Route,
        name: &str,
        context: &str,
        state: &Map<String, Value>,
        earlier: &[Delegation],
    ) -> Result<DelegationRequest, Exit> {
        let Some(network) = &self.network else { return Err(Exit::failed("agent_not_found", "no network")) };
        let member = network.member(name)?;
        let run = &self.attempt.assignment().run;
        let (own, _) = find_agent(self.adapter, &self.attempt, &member.agent).await?;
        let (model, profile) = default_model(network, &own);
        // A later attempt finds the child of an earlier one by its name. If that child failed or was cancelled, `tries`
        // changes the name, and a new child is created.
        let key = NetworkMember { route_no: route.no, name: name.to_owned() };
        let attempt_no = self.attempt.assignment().attempt.no;
        let tries = earlier.iter().filter(|child| is_failed_child(child, &key) && attempt_no > 1).count();
        let request_id = format!("{}:{}:{name}:{tries}", run.id, route.no);
        let new = NewSession {
            agent_definition: Some(member.agent.clone()),
            surface_kind: Some(MEMBER_SURFACE.into()),
            title: Some(name.to_owned()),
            ..NewSession::default()
        };
        Ok(DelegationRequest {
            context: Some(context.to_owned()).filter(|context| !context.is_empty()),
            session: SessionTarget { new, ..SessionTarget::default() },
            run_mode: run.mode,
            options: RunOptions {
                system_prompt: member_system(&self.attempt, &network.definition, &own).await?,
                model: run.options.model.clone().or(model),
                model_profile: run.options.model_profile.clone().or(profile),
                ..RunOptions::default()
            },
            name: RequestName {
                client_id: Some(CLIENT.into()),
                request_id: Some(request_id),
                idempotency_key: None,
            },
            state: state.clone(),
            member: Some(key),
            ..DelegationRequest::new(DelegationMode::Call, self.attempt.assignment().prompt.text())
        })
    }

    /// Reads the end of a member: its text, and the keys of state that it changed.
    async fn member_end(
        &self,
        name: &str,
        child: &Delegation,
        result: Option<DelegationResult>,
    ) -> Result<Ended, Exit> {
        let name = name.to_owned();
        let failure = |result: Option<DelegationResult>| {
            let error = result.and_then(|result| result.error).map(|error| error.message);
            error.unwrap_or_else(|| format!("it ended as {}", child.status.name()))
        };
        if child.status != DelegationStatus::Succeeded {
            return Ok(Ended { name, text: Err(failure(result)), changes: vec![] });
        }
        let before = self.state_entries().await?;
        let after = self.attempt.run_state(child.child_run).await?;
        let changes = changes(&before, &after, child.created_at);
        let text = result.map(|result| result.summary).unwrap_or_default();
        Ok(Ended { name, text: Ok(text), changes })
    }

    async fn state_entries(&self) -> Result<Vec<StateEntry>, Exit> {
        let run = self.attempt.assignment().run.id;
        Ok(self.attempt.run_state(run).await?)
    }
}

/// Returns the keys of state that a member changed. The member started with a copy of each key that its parent had at
/// `created_at`; the version of such a copy is 1 until the member changes it.
fn changes(before: &[StateEntry], after: &[StateEntry], created_at: Time) -> Vec<MemberChange> {
    let was_given = |key: &str| before.iter().any(|entry| entry.key == key && entry.updated_at <= created_at);
    let changed = after.iter().filter(|entry| entry.version > 1 || !was_given(&entry.key));
    let changed =
        changed.map(|entry| MemberChange { key: entry.key.clone(), value: Some(entry.value.clone()) });
    let removed = before.iter().filter(|entry| was_given(&entry.key));
    let removed = removed.filter(|entry| after.iter().all(|kept| kept.key != entry.key));
    changed.chain(removed.map(|entry| MemberChange { key: entry.key.clone(), value: None })).collect()
}

/// True for a child of this member that has ended without success.
fn is_failed_child(child: &Delegation, member: &NetworkMember) -> bool {
    child.request.member().as_ref() == Some(member)
        && child.status.is_settled()
        && child.status != DelegationStatus::Succeeded
}

/// The model of the network, for a member that names none.
fn default_model(network: &NetworkRun, own: &crate::Definition) -> (Option<String>, Option<String>) {
    match own.model.is_some() || own.profile.is_some() {
        true => (None, None),
        false => (network.definition.model.clone(), network.definition.profile.clone()),
    }
}

fn said_prefix(name: &str) -> String {
    format!("{name}: ")
}

fn failed_prefix(name: &str) -> String {
    format!("{name} failed: ")
}

/// The result of a member as a text that the other members read.
fn result_text(ended: &Ended) -> String {
    match &ended.text {
        Ok(text) => format!("{}{text}", said_prefix(&ended.name)),
        Err(problem) => format!("{}{problem}", failed_prefix(&ended.name)),
    }
}

/// The results of a stage as routers see them.
fn last_of(ended: Vec<(String, Result<String, String>)>) -> LastResult {
    let agent = ended.first().map(|(name, _)| name.clone()).unwrap_or_default();
    let failed = ended.iter().filter(|(_, text)| text.is_err()).map(|(name, _)| name.clone()).collect();
    let text: Vec<&str> = ended.iter().filter_map(|(_, text)| text.as_deref().ok()).collect();
    let text = text.join("\n\n");
    let texts = ended.into_iter().filter_map(|(name, text)| Some((name, text.ok()?))).collect();
    LastResult { agent, text, texts, failed, ..LastResult::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_changes_of_a_member_are_the_differences_from_its_copies() {
        let entry = |key: &str, version, at| StateEntry {
            key: key.into(),
            value: json!(version),
            version,
            updated_at: Time(at),
        };
        let before = [entry("same", 4, 1), entry("set", 1, 1), entry("removed", 1, 1), entry("later", 1, 9)];
        let after = [entry("same", 1, 2), entry("set", 2, 3), entry("new", 1, 3)];
        let changed: Vec<(String, bool)> =
            changes(&before, &after, Time(2)).into_iter().map(|one| (one.key, one.value.is_some())).collect();
        assert_eq!(changed, [("set".into(), true), ("new".into(), true), ("removed".into(), false)]);
    }
}
