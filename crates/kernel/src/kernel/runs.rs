//! Operations on runs.

use mainspring_core::goal::check_goals;
use mainspring_core::limits::check_text;
use mainspring_core::tool::check_client_tools;
use mainspring_core::{
    Attempt, AttemptId, Block, Cursor, Event, Mode, NewDelegation, Place, Policy, Position, RequestName,
    Rows, Run, RunChange, RunId, RunOption, RunOptions, RunStatus, SessionId, Step,
};
use serde::Serialize;
use serde_json::Value;

use super::authority;
use super::goals::{has_no_prompt, prompt_or_goals};
use super::idempotency;
use super::requests::in_order;
use super::sessions::check_target;
use super::{Accept, Accepted, Caller, CancelOutcome, Kernel, RunQuery, RunRequest, SessionTarget};
use crate::actor::{Command, Retry};
use crate::error::{CreateError, Error};
use crate::store::{Request, RunPage, SessionRef, Unique};

impl Kernel {
    /// Accepts a prompt. Under one request name it creates exactly one run, however often it is sent.
    pub async fn run_create(&self, caller: &Caller, request: RunRequest) -> Result<Accepted, Error> {
        self.check_request(caller, &request)?;
        self.run_accept_once(caller, &request, fingerprint(&request), RunOrigin::default()).await
    }

    /// Accepts a checked request, or finds the run that an earlier request under its name created.
    pub(super) async fn run_accept_once(
        &self,
        caller: &Caller,
        request: &RunRequest,
        fingerprint: [u8; 16],
        origin: RunOrigin<'_>,
    ) -> Result<Accepted, Error> {
        let outcome = self.run_accept(caller, request, fingerprint, origin).await;
        match &outcome {
            Ok(accepted) if !accepted.replayed => self.shared.meters.runs_accepted.add(1),
            Err(Error::Overloaded { .. }) => self.shared.meters.queue_refusals.add(1),
            _ => {}
        }
        let accepted = match outcome {
            Ok(accepted) => accepted,
            // Not answered here: the home of the session has to register the host.
            Err(error @ Error::Elsewhere { .. }) if request.host.is_some() => return Err(error),
            // A request that was accepted before gets the same answer, even if it would be refused now.
            Err(error) => {
                // Boxed to keep the futures of accepted prompts small.
                match Box::pin(self.run_replayed(caller, &request.name, request.policy, fingerprint)).await? {
                    Some(accepted) => accepted,
                    None => return Err(error),
                }
            }
        };
        if accepted.replayed {
            // The run belongs to the host that sent the latest request.
            self.shared.host_calls.register(accepted.run.id, request.host.as_deref());
        }
        Ok(accepted)
    }

    async fn run_accept(
        &self,
        caller: &Caller,
        request: &RunRequest,
        fingerprint: [u8; 16],
        RunOrigin { delegation, relayed }: RunOrigin<'_>,
    ) -> Result<Accepted, Error> {
        self.shared.check_storage(&caller.owner, prompt_size(&request.prompt) as u64, 0).await?;
        self.shared.check_spend(caller.lists.as_deref()).await?;
        if request.options.key != caller.lists {
            self.shared.check_spend(request.options.key.as_deref()).await?;
        }
        if let Some(name) = &request.options.agent_definition {
            // Boxed to keep the futures of plain prompts small.
            Box::pin(self.check_run_definition(caller, request, name)).await?;
        }
        loop {
            let (id, is_new) = match request.session.id.filter(|id| self.shared.is_live(*id)) {
                // The actor checks the owner.
                Some(live) => (live, false),
                // Boxed to keep the futures of prompts to loaded sessions small.
                None => Box::pin(self.session_for(caller, request)).await?,
            };
            let pending_wait = match delegation {
                // Boxed to keep the futures of plain prompts small.
                Some(delegation) => Box::pin(self.shared.wait_register(delegation, id, is_new)).await?,
                None => None,
            };
            let run = relayed.or_else(|| delegation.map(|delegation| delegation.child_run));
            let run = run.unwrap_or_else(|| self.shared.ids.run());
            // Registered before the agent starts, which may call a tool of the host at once.
            self.shared.host_calls.register(run, request.host.as_deref());
            let prompt = self.resolve_attachments(caller, prompt_or_goals(request)).await?;
            let options = match request.options.goals.is_empty() {
                true => limited_options(caller, request),
                // Boxed to keep the futures of plain prompts small.
                false => Box::pin(self.resolve_goals(caller, limited_options(caller, request))).await?,
            };
            // Boxed here, so that the future does not hold the value itself.
            let accept = Box::new(Accept {
                run,
                caller: caller.clone(),
                prompt,
                adapter: request.adapter.clone(),
                mode: request.mode,
                options,
                ignore_unused_options: request.ignore_unused_options,
                place: request.place,
                policy: request.policy,
                name: request.name.clone(),
                fingerprint,
                delegation: delegation.cloned().map(Box::new),
                is_relayed: relayed.is_some(),
                pending_wait,
            });
            match self.shared.call(id, |reply| Command::Accept(accept, reply)).await {
                Ok(accepted) => return Ok(accepted),
                // Another request has created the session since: the next lookup finds it.
                Err(CreateError::Taken(Unique::SessionName)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Refuses the agent definition of a run that the run's adapter does not use, or that the owner does not have.
    async fn check_run_definition(
        &self,
        caller: &Caller,
        request: &RunRequest,
        name: &str,
    ) -> Result<(), Error> {
        let found = self.session_resolve(caller, &request.session).await?;
        let of_session = match &found {
            Some(session) => Some(&session.adapter),
            None => request.session.new.adapter.as_ref(),
        };
        let adapter = request.adapter.as_ref().or(of_session).unwrap_or(&self.shared.options.adapter);
        let owner = found.as_ref().map_or(&caller.owner, |session| &session.owner);
        match request.ignore_unused_options && !self.shared.uses(adapter, RunOption::AgentDefinition) {
            true => Ok(()),
            false => self.check_definition(owner, adapter, name).await,
        }
    }

    /// Finds the session of a prompt. If there is none, starts the actor of a new session, which is stored together with its
    /// first run. Returns true with the session if it is new.
    async fn session_for(&self, caller: &Caller, request: &RunRequest) -> Result<(SessionId, bool), Error> {
        if let Some(found) = self.session_resolve(caller, &request.session).await? {
            caller.check_changes(&found)?;
            self.shared.check_balance(&found, request).await?;
            return Ok((found.id, false));
        }
        caller.check_writes()?;
        if request.place.is_branch() && request.place != Place::Root {
            return Err(Error::Invalid("a session must exist before it can be branched".into()));
        }
        let mut session = self.session_new(caller, &request.session);
        if let (None, Some(adapter)) = (&request.session.new.adapter, &request.adapter) {
            session.adapter.clone_from(adapter);
        }
        self.shared.check_placement(&session)?;
        let id = session.id;
        self.shared.start_new_actor(session).await?;
        Ok((id, true))
    }

    /// The run that an earlier request under the same name created.
    pub(super) async fn run_replayed(
        &self,
        caller: &Caller,
        name: &RequestName,
        policy: Policy,
        fingerprint: [u8; 16],
    ) -> Result<Option<Accepted>, Error> {
        let store = &self.shared.store;
        let RequestName { client_id, request_id, idempotency_key } = name;
        let mut found = None;
        if let (Some(client), Some(name)) = (client_id, request_id) {
            let run = store.run_by_request(&caller.owner, client, name).await?;
            found =
                run.map(|run| (run.matches_fingerprint(fingerprint), run, format!("the request {name:?}")));
        }
        if let (None, Some(key)) = (&found, idempotency_key)
            && let Some(earlier) = store.request_get(&caller.owner, "run_create", key).await?
            && earlier.at >= Request::oldest_kept(self.shared.clock.now())
        {
            let (same, name) = (earlier.fingerprint == fingerprint, idempotency::key_name(key));
            let run = match earlier.answer.parse() {
                Ok(run) => store.run_get(run).await?,
                Err(_) => None,
            };
            found = match run {
                Some(run) => Some((same, run, name)),
                // The run was deleted with its session, but the request is not a new one.
                None if same => return Err(Error::not_found("run", earlier.answer)),
                None => return Err(Error::RequestConflict { name }),
            };
        }
        match found {
            None => Ok(None),
            Some((false, _, name)) => Err(Error::RequestConflict { name }),
            Some((true, run, _)) => {
                let session = self.session_get(caller, &SessionRef::Id(run.session)).await?;
                let run = self.shared.with_final_text(run).await?;
                let position = Position::START;
                Ok(Some(Accepted { session, run, policy, position, replayed: true }))
            }
        }
    }

    /// Gets a run that the caller may read, with its text if it has ended.
    pub async fn run_get(&self, caller: &Caller, run: RunId) -> Result<Run, Error> {
        self.shared.with_final_text(self.run_readable(caller, run).await?).await
    }

    /// Gets the status of a run. Reads no message, so a damaged message does not matter.
    pub async fn run_status(&self, caller: &Caller, run: RunId) -> Result<RunStatus, Error> {
        Ok(self.run_readable(caller, run).await?.state.status())
    }

    /// Gets the row of a run that the caller may read.
    pub(super) async fn run_readable(&self, caller: &Caller, run: RunId) -> Result<Run, Error> {
        let not_found = || Error::not_found("run", run);
        let found = self.shared.run_find(run).await?.ok_or_else(not_found)?;
        if found.owner == caller.owner {
            return Ok(found);
        }
        let by = SessionRef::Id(found.session);
        let session = self.shared.session_find(&caller.owner, &by).await?;
        session.filter(|session| caller.may_read(session)).map(|_| found).ok_or_else(not_found)
    }

    /// The session of a run that the caller may change.
    pub(super) async fn run_for_change(&self, caller: &Caller, run: RunId) -> Result<SessionId, Error> {
        let run = self.run_readable(caller, run).await?;
        caller.check_changes_run(&run)?;
        self.shared.check_run_allowed(caller, &run)?;
        Ok(run.session)
    }

    /// Lists the attempts of a run, oldest first.
    pub async fn run_attempts(&self, caller: &Caller, run: RunId) -> Result<Rows<Attempt>, Error> {
        self.run_readable(caller, run).await?;
        Ok(self.shared.store.attempts(run).await?)
    }

    /// Gets an attempt of a run that the caller may read.
    pub async fn attempt_get(&self, caller: &Caller, attempt: AttemptId) -> Result<Attempt, Error> {
        let not_found = || Error::not_found("attempt", attempt);
        let found = self.shared.store.attempt_get(attempt).await?.ok_or_else(not_found)?;
        match self.run_readable(caller, found.run).await {
            Ok(_) => Ok(found),
            // The message must not reveal the run of another owner's attempt.
            Err(Error::NotFound { .. }) => Err(not_found()),
            Err(error) => Err(error),
        }
    }

    /// Lists the model calls of a run, oldest first: prompt, result and usage of each.
    pub async fn run_steps(&self, caller: &Caller, run: RunId) -> Result<Rows<Step>, Error> {
        self.run_readable(caller, run).await?;
        Ok(self.shared.store.steps(run).await?)
    }

    /// Lists runs, newest first.
    pub async fn run_list(&self, caller: &Caller, query: RunQuery) -> Result<Rows<Run>, Error> {
        let owner = match query.session {
            // The session may belong to another owner of the caller's org.
            Some(session) => self.session_get(caller, &SessionRef::Id(session)).await?.owner,
            None => caller.owner.clone(),
        };
        let page = RunPage {
            owner,
            session: query.session,
            status: query.status,
            before: query.before,
            limit: self.page(query.limit)?,
        };
        Ok(self.shared.store.run_page(&page).await?)
    }

    /// Lists events of a run after `after`, in order.
    pub async fn run_events(
        &self,
        caller: &Caller,
        run: RunId,
        after: Cursor,
        limit: Option<usize>,
    ) -> Result<Vec<Event>, Error> {
        let session = self.run_readable(caller, run).await?.session;
        self.check_not_lost(after, after)?;
        let events = self.shared.store.events_after(session, Some(run), after, self.page(limit)?).await?;
        self.check_not_ahead(after, &events).await?;
        Ok(events)
    }

    /// Cancels a run. Returns once the cancellation is recorded and passed on to the adapter; the run's end follows as an
    /// event.
    pub async fn run_cancel(&self, caller: &Caller, run: RunId) -> Result<CancelOutcome, Error> {
        if caller.agent.is_some() {
            // No edge forwards an agent's request to the home of the session, so this kernel does.
            return Box::pin(self.run_cancel_anywhere(caller, run)).await;
        }
        let session = self.run_cancel_authorize(caller, run).await?;
        self.shared.call(session, |reply| Command::Cancel(run, reply)).await
    }

    /// Refuses a caller that may not cancel a run. Returns the session of the run.
    pub(super) async fn run_cancel_authorize(&self, caller: &Caller, run: RunId) -> Result<SessionId, Error> {
        let session = self.run_for_change(&caller.as_owner(), run).await?;
        // Boxed to keep the futures of callers that are not agents small.
        Box::pin(self.authorize(caller, authority::CANCEL, &run.to_string())).await?;
        Ok(session)
    }

    /// Retries an ended run, with changed options if `change` has any.
    pub async fn run_retry(&self, caller: &Caller, run: RunId, change: RunChange) -> Result<Run, Error> {
        let session = self.run_for_change(caller, run).await?;
        change.adapter.as_deref().map_or(Ok(()), |adapter| self.check_adapter(adapter))?;
        let (model, model_profile) = (change.model.clone(), change.model_profile.clone());
        self.check_options(&RunOptions { model, model_profile, ..RunOptions::default() })?;
        if caller.folders.is_some() {
            let known = self.run_readable(caller, run).await?;
            let adapter = change.adapter.as_deref().unwrap_or(&known.adapter);
            let folders = caller.folders.as_deref();
            self.shared.check_run_folder(adapter, known.options.cwd.as_deref(), folders)?;
        }
        self.shared.check_spend(caller.lists.as_deref()).await?;
        let retry = Retry { change, key: caller.lists.clone() };
        self.shared.call(session, |reply| Command::Retry(run, Box::new(retry), reply)).await
    }

    pub(super) fn check_adapter(&self, name: &str) -> Result<(), Error> {
        self.shared.check_adapter(name)
    }

    pub(super) fn check_request(&self, caller: &Caller, request: &RunRequest) -> Result<(), Error> {
        check_target(self, caller, &request.session)?;
        request.adapter.as_deref().map_or(Ok(()), |adapter| self.check_adapter(adapter))?;
        let names = &request.name;
        for (what, name) in [
            ("a client id", &names.client_id),
            ("a request id", &names.request_id),
            ("an idempotency key", &names.idempotency_key),
            ("a host", &request.host),
        ] {
            name.as_deref().map_or(Ok(()), |name| check_text(what, name))?;
        }
        if names.idempotency_key.is_some() && names.request_id.is_some() {
            return Err(Error::Invalid(
                "name a request by its id or by an idempotency key, not by both".into(),
            ));
        }
        check_prompt(request)?;
        if request.mode == Mode::Ask && !request.options.tools.is_empty() {
            return Err(Error::Invalid(
                "a run that may only answer calls no tools: leave the tools out, or let it act".into(),
            ));
        }
        if request.policy == Policy::Steer && request.place.is_branch() {
            return Err(Error::Invalid("a branch cannot join a run".into()));
        }
        check_size("the prompt", prompt_size(&request.prompt), self.shared.options.limits.prompt_bytes)?;
        self.check_options(&request.options)
    }

    /// Checks the options of a run, or the default options of a session's runs.
    pub(super) fn check_options(&self, options: &RunOptions) -> Result<(), Error> {
        let limits = &self.shared.options.limits;
        options.model.as_deref().map_or(Ok(()), |model| check_text("a model", model))?;
        options.model_profile.as_deref().map_or(Ok(()), |profile| check_text("a model profile", profile))?;
        if options.cwd.as_ref().is_some_and(|cwd| cwd.is_empty() || cwd.contains('\0')) {
            return Err(Error::Invalid("a folder must not be empty or hold a NUL character".into()));
        }
        let system = options.system_prompt.as_ref().map_or(0, String::len);
        check_size("the system prompt", system, limits.prompt_bytes)?;
        check_size("the folder", options.cwd.as_ref().map_or(0, String::len), PATH_MAX_BYTES)?;
        check_size("the model options", json_size(options.model_options.as_ref()), limits.metadata_bytes)?;
        check_client_tools(&options.tools, limits).map_err(|bad| Error::Invalid(bad.to_string()))?;
        check_goals(&options.goals).map_err(|bad| Error::Invalid(bad.to_string()))?;
        check_size("the tools together", json_size(Some(&options.tools)), limits.client_tools_bytes)
    }
}

/// The origin of a run that is to be accepted, besides its prompt.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RunOrigin<'a> {
    /// The delegation that the run is the child of.
    pub(super) delegation: Option<&'a NewDelegation>,
    /// The id of the run, if another kernel relays the request and may do so again.
    pub(super) relayed: Option<RunId>,
}

/// The options of a request, with the folders and the lists to which its agents are limited: those of the parent run or of
/// the caller.
fn limited_options(caller: &Caller, request: &RunRequest) -> RunOptions {
    let mut options = request.options.clone();
    if options.folders.is_none() {
        options.folders.clone_from(&caller.folders);
    }
    if options.key.is_none() {
        options.key.clone_from(&caller.lists);
    }
    options
}

/// Checks that the prompt has the content that its place in the tree requires.
fn check_prompt(request: &RunRequest) -> Result<(), Error> {
    let again = matches!(request.place, Place::Regenerate { .. });
    let text_only =
        request.prompt.iter().all(|block| matches!(block, Block::Text { .. } | Block::Attachment { .. }));
    let reason = match has_no_prompt(request) {
        true if matches!(request.place, Place::Edit { .. }) => {
            "an edit replaces the prompt after an answer: give the new prompt, which must not be empty; to have a \
             prompt answered again, name the prompt"
        }
        true if !again && !request.options.goals.is_empty() => return Ok(()),
        true if !again => "a prompt must not be empty",
        false if again => "to answer a message again, give no prompt",
        _ if !text_only => "a prompt holds text and attachments only",
        _ => return Ok(()),
    };
    Err(Error::Invalid(reason.into()))
}

/// Hash of a request's content, to detect the same name with different content.
pub(super) fn fingerprint(request: &RunRequest) -> [u8; 16] {
    #[derive(Serialize)]
    struct Asked<'a> {
        session: &'a SessionTarget,
        prompt: &'a [Block],
        adapter: &'a Option<String>,
        mode: Mode,
        options: &'a RunOptions,
        place: Place,
        policy: Policy,
    }
    let session = request.session.in_order();
    let mut options = request.options.clone();
    options.model_options = in_order(&request.options.model_options);
    options.output_schema.iter_mut().for_each(Value::sort_all_objects);
    options.tools.iter_mut().for_each(|tool| tool.input_schema.sort_all_objects());
    options
        .goals
        .iter_mut()
        .for_each(|goal| goal.data = in_order(&Some(goal.data.clone())).unwrap_or_default());
    let asked = Asked {
        session: &session,
        prompt: &request.prompt,
        adapter: &request.adapter,
        mode: request.mode,
        options: &options,
        place: request.place,
        policy: request.policy,
    };
    idempotency::fingerprint(&asked)
}

/// The size of a prompt in bytes, with a fixed amount for an attachment.
pub(super) fn prompt_size(prompt: &[Block]) -> usize {
    prompt.iter().map(|block| if let Block::Text { text } = block { text.len() } else { 64 }).sum()
}

/// Longest path, as on Linux.
pub(super) const PATH_MAX_BYTES: usize = 4096;

pub(super) fn check_size(what: &'static str, size: usize, limit: usize) -> Result<(), Error> {
    if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(()) }
}

/// Size of `value` as JSON, in bytes; 0 if there is none.
pub(crate) fn json_size(value: Option<&impl Serialize>) -> usize {
    value.and_then(|value| serde_json::to_vec(value).ok()).map_or(0, |json| json.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests are remembered by their fingerprint: fields added later must not change the fingerprints of older requests.
    #[test]
    fn a_request_keeps_its_fingerprint_across_versions() {
        let first = r#"{"session":{"id":null,"key":"a","external_ref":null,"legacy_alias":null,"new":{"title":null,"surface_kind":null,"adapter":null,"cwd":null,"model_profile":null,"agent_definition":null,"metadata":null}},"prompt":[{"type":"text","text":"hi"}],"adapter":null,"mode":"act","options":{"model":"m"},"place":{"kind":"tip"},"policy":"enqueue"}"#;
        let mut asked = RunRequest::text("a", "hi");
        asked.options.model = Some("m".into());
        assert_eq!(fingerprint(&asked)[..], blake3::hash(first.as_bytes()).as_bytes()[..16]);
    }

    #[test]
    fn the_order_of_map_keys_does_not_change_a_fingerprint() {
        let asked = |options: &str, metadata: &str| {
            let mut asked = RunRequest::text("a", "hi");
            asked.options.model_options = serde_json::from_str(options).unwrap();
            asked.session.new.model_options = serde_json::from_str(options).unwrap();
            asked.session.new.metadata = serde_json::from_str(metadata).unwrap();
            fingerprint(&asked)
        };
        let first = asked(r#"{"a":{"x":1,"y":2},"b":3}"#, r#"{"c":4,"d":5}"#);
        assert_eq!(asked(r#"{"b":3,"a":{"y":2,"x":1}}"#, r#"{"d":5,"c":4}"#), first);
        assert_ne!(asked(r#"{"b":3,"a":{"y":1,"x":2}}"#, r#"{"d":5,"c":4}"#), first);
    }
}
