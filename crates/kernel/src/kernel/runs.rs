//! Verbs on runs.

use mainspring_core::limits::check_text;
use mainspring_core::{
    Answer, Attempt, Block, Cursor, Event, Place, Policy, Position, RequestName, Run, RunId, SessionId, Step,
    WaitId,
};
use serde::Serialize;
use serde_json::Value;

use super::sessions::check_target;
use super::{Accept, Accepted, Caller, CancelOutcome, Kernel, RunQuery, RunRequest, SessionTarget};
use crate::actor::Command;
use crate::error::Error;
use crate::store::{RunPage, SessionRef, StoreError, Unique};

impl Kernel {
    /// Accepts a prompt: exactly one run for it, however often it is sent under the same name.
    pub async fn run_create(&self, caller: &Caller, request: RunRequest) -> Result<Accepted, Error> {
        self.check_request(caller, &request)?;
        let fingerprint = fingerprint(&request);
        match self.run_accept(caller, &request, fingerprint).await {
            Ok(accepted) => Ok(accepted),
            // A request that was accepted before is answered as before, whatever would be said to it now.
            Err(error) => match self.run_replayed(caller, &request, fingerprint).await? {
                Some(accepted) => Ok(accepted),
                None => Err(error),
            },
        }
    }

    async fn run_accept(
        &self,
        caller: &Caller,
        request: &RunRequest,
        fingerprint: [u8; 16],
    ) -> Result<Accepted, Error> {
        loop {
            let id = match request.session.id.filter(|id| self.shared.is_live(*id)) {
                // Its actor knows it, and whose it is.
                Some(live) => live,
                None => self.session_for(caller, request).await?,
            };
            let accept = Accept {
                run: self.shared.ids.run(),
                owner: caller.owner.clone(),
                prompt: request.prompt.clone(),
                adapter: request.adapter.clone(),
                mode: request.mode,
                options: request.options.clone(),
                place: request.place,
                policy: request.policy,
                name: request.name.clone(),
                fingerprint,
            };
            match self.shared.call(id, |reply| Command::Accept(Box::new(accept), reply)).await? {
                Ok(accepted) => return Ok(accepted),
                // Somebody made the session in the meantime: it is found now.
                Err(StoreError::Conflict(Unique::SessionName)) => {}
                Err(conflict) => return Err(conflict.into()),
            }
        }
    }

    /// The session that a prompt is for; a new one, which its first run creates, if there is none.
    async fn session_for(&self, caller: &Caller, request: &RunRequest) -> Result<SessionId, Error> {
        if let Some(found) = self.session_named(caller, &request.session).await? {
            return Ok(found.id);
        }
        if request.place.is_branch() && request.place != Place::Root {
            return Err(Error::Invalid("a session must exist before it can be branched".into()));
        }
        let mut session = self.session_new(caller, &request.session);
        if let (None, Some(adapter)) = (&request.session.new.adapter, &request.adapter) {
            session.adapter.clone_from(adapter);
        }
        let id = session.id;
        self.shared.birth(session).await?;
        Ok(id)
    }

    /// The run that an earlier request under the same name made.
    async fn run_replayed(
        &self,
        caller: &Caller,
        request: &RunRequest,
        fingerprint: [u8; 16],
    ) -> Result<Option<Accepted>, Error> {
        let store = &self.shared.store;
        let RequestName { client_id, request_id, idempotency_key } = &request.name;
        let mut found = None;
        if let (Some(client), Some(name)) = (client_id, request_id) {
            let run = store.run_by_request(&caller.owner, client, name).await?;
            found = run.map(|run| (run.fingerprint == fingerprint, run, format!("the request {name:?}")));
        }
        if let (None, Some(key)) = (&found, idempotency_key)
            && let Some(earlier) = store.request_get(&caller.owner, "run_create", key).await?
        {
            let run = match earlier.answer.parse() {
                Ok(run) => store.run_get(run).await?,
                Err(_) => None,
            };
            found = run
                .map(|run| (earlier.fingerprint == fingerprint, run, format!("the idempotency key {key:?}")));
        }
        match found {
            None => Ok(None),
            Some((false, _, name)) => Err(Error::RequestConflict { name }),
            Some((true, run, _)) => {
                let session = self.session_get(caller, &SessionRef::Id(run.session)).await?;
                let position = Position::START;
                Ok(Some(Accepted { session, run, policy: request.policy, position, replayed: true }))
            }
        }
    }

    /// One run.
    pub async fn run_get(&self, caller: &Caller, run: RunId) -> Result<Run, Error> {
        let found = self.shared.store.run_get(run).await?;
        found.filter(|found| found.owner == caller.owner).ok_or_else(|| Error::not_found("run", run))
    }

    /// The attempts of a run, the first first.
    pub async fn run_attempts(&self, caller: &Caller, run: RunId) -> Result<Vec<Attempt>, Error> {
        self.run_get(caller, run).await?;
        Ok(self.shared.store.attempts(run).await?)
    }

    /// The model calls of a run, the first first: what each was shown, made and used.
    pub async fn run_steps(&self, caller: &Caller, run: RunId) -> Result<Vec<Step>, Error> {
        self.run_get(caller, run).await?;
        Ok(self.shared.store.steps(run).await?)
    }

    /// Runs, the newest first.
    pub async fn run_list(&self, caller: &Caller, query: RunQuery) -> Result<Vec<Run>, Error> {
        let page = RunPage {
            owner: caller.owner.clone(),
            session: query.session,
            status: query.status,
            before: query.before,
            limit: self.page(query.limit)?,
        };
        Ok(self.shared.store.run_page(&page).await?)
    }

    /// Events of a run after `after`, in order.
    pub async fn run_events(
        &self,
        caller: &Caller,
        run: RunId,
        after: Cursor,
        limit: Option<usize>,
    ) -> Result<Vec<Event>, Error> {
        let session = self.run_get(caller, run).await?.session;
        Ok(self.shared.store.events_after(session, Some(run), after, self.page(limit)?).await?)
    }

    /// Stops a run. Answers once the wish is recorded and the adapter was told; the run's end follows as an event.
    pub async fn run_cancel(&self, caller: &Caller, run: RunId) -> Result<CancelOutcome, Error> {
        let session = self.run_get(caller, run).await?.session;
        self.shared.call(session, |reply| Command::Cancel(run, reply)).await
    }

    /// Tries an ended run again.
    pub async fn run_retry(&self, caller: &Caller, run: RunId) -> Result<Run, Error> {
        let session = self.run_get(caller, run).await?.session;
        self.shared.call(session, |reply| Command::Retry(run, reply)).await
    }

    /// Answers a waiting run.
    pub async fn run_answer(
        &self,
        caller: &Caller,
        run: RunId,
        wait: WaitId,
        answer: Answer,
    ) -> Result<Run, Error> {
        let session = self.run_get(caller, run).await?.session;
        self.shared.call(session, |reply| Command::Answer(run, wait, answer, reply)).await
    }

    pub(super) fn check_adapter(&self, name: &str) -> Result<(), Error> {
        self.shared.check_adapter(name)
    }

    fn check_request(&self, caller: &Caller, request: &RunRequest) -> Result<(), Error> {
        check_target(self, caller, &request.session)?;
        request.adapter.as_deref().map_or(Ok(()), |adapter| self.check_adapter(adapter))?;
        let names = &request.name;
        for (what, name) in [
            ("a client id", &names.client_id),
            ("a request id", &names.request_id),
            ("an idempotency key", &names.idempotency_key),
        ] {
            name.as_deref().map_or(Ok(()), |name| check_text(what, name))?;
        }
        if names.idempotency_key.is_some() && names.request_id.is_some() {
            return Err(Error::Invalid(
                "name a request by its id or by an idempotency key, not by both".into(),
            ));
        }
        let again = matches!(request.place, Place::Regenerate { .. });
        let text_only =
            request.prompt.iter().all(|block| matches!(block, Block::Text { .. } | Block::Attachment { .. }));
        let is_blank = |block: &Block| matches!(block, Block::Text { text } if text.trim().is_empty());
        match request.prompt.iter().all(is_blank) {
            true if !again => return Err(Error::Invalid("a prompt must not be empty".into())),
            false if again => return Err(Error::Invalid("to answer a message again, give no prompt".into())),
            _ if !text_only => return Err(Error::Invalid("a prompt holds text and attachments only".into())),
            _ => {}
        }
        if request.policy == Policy::Steer && request.place.is_branch() {
            return Err(Error::Invalid("a branch cannot join a run".into()));
        }
        let size = request
            .prompt
            .iter()
            .map(|block| if let Block::Text { text } = block { text.len() } else { 64 })
            .sum();
        let system = request.options.system_prompt.as_ref().map_or(0, String::len);
        let limit = self.shared.options.limits.prompt_bytes;
        for (what, size) in [("the prompt", size), ("the system prompt", system)] {
            if size > limit {
                return Err(Error::TooLarge { what, size, limit });
            }
        }
        Ok(())
    }
}

/// The hash of what is asked, so that the same name with another body is seen.
fn fingerprint(request: &RunRequest) -> [u8; 16] {
    #[derive(Serialize)]
    struct Asked<'a> {
        session: &'a SessionTarget,
        prompt: &'a [Block],
        adapter: &'a Option<String>,
        mode: mainspring_core::Mode,
        options: &'a mainspring_core::RunOptions,
        place: Place,
        policy: Policy,
    }
    // Whether maps keep the order of their making depends on who else is in the build; what is asked does not.
    let (mut session, mut options) = (request.session.clone(), request.options.clone());
    session.new.metadata.iter_mut().for_each(Value::sort_all_objects);
    options.output_schema.iter_mut().for_each(Value::sort_all_objects);
    let asked = Asked {
        session: &session,
        prompt: &request.prompt,
        adapter: &request.adapter,
        mode: request.mode,
        options: &options,
        place: request.place,
        policy: request.policy,
    };
    let json = serde_json::to_vec(&asked).unwrap_or_default();
    let mut hash = [0; 16];
    hash.copy_from_slice(&blake3::hash(&json).as_bytes()[..16]);
    hash
}
