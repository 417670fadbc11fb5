//! Operations on sessions.

use std::sync::Arc;

use mainspring_api::Page;
use mainspring_core::limits::{check_key, check_text};
use mainspring_core::placement::check_labels;
use mainspring_core::{
    Cursor, Damage, Event, Message, Position, Refusal, Rows, Run, RunOptions, Session, SessionChange,
    SessionId, SessionStatus, TitleSource, Visibility, session,
};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::bindings::adoption;
use super::runs::{check_size, json_size};
use super::{
    Adopted, Caller, Deleted, Kernel, NewSession, Opening, Scope, SessionPatch, SessionQuery, SessionTarget,
    Shared,
};
use crate::actor::{Command, SessionSeed};
use crate::error::{CreateError, Error};
use crate::folders::check_folder_usable;
use crate::policy::check_session_rules;
use crate::store::{PinnedBy, Request, SessionPage, SessionRef, SessionsOf, Unique};

/// The agent definition of a session that names none.
pub(super) const DEFAULT_AGENT: &str = "mainspring.generalist@1";

/// Handling of a request for a new session whose name is taken.
#[derive(Clone, Copy)]
pub(super) enum OnNameTaken {
    /// Open the session that has the name.
    Open,
    /// Refuse the request.
    Refuse,
}

impl Kernel {
    /// Opens the session that `target` names, creating it if there is none. The same request under the same idempotency
    /// key returns the session it created.
    ///
    /// The session stays in memory until it is used, or until many others were opened after it.
    pub async fn session_open(
        &self,
        caller: &Caller,
        target: &SessionTarget,
        idempotency_key: Option<&str>,
    ) -> Result<(Session, Opening), Error> {
        self.session_open_or_create(caller, target, "session_open", idempotency_key, OnNameTaken::Open, None)
            .await
    }

    /// Opens or creates the session that `target` names. Under one idempotency key, `operation` creates it at most once.
    ///
    /// `adopted` binds a new session to an existing native session of an adapter.
    pub(super) async fn session_open_or_create(
        &self,
        caller: &Caller,
        target: &SessionTarget,
        operation: &'static str,
        idempotency_key: Option<&str>,
        on_name_taken: OnNameTaken,
        adopted: Option<(&str, &Adopted)>,
    ) -> Result<(Session, Opening), Error> {
        check_target(self, caller, target)?;
        let asked = |key| self.request_new(caller, operation, key, &target.in_order());
        let request = idempotency_key.map(asked).transpose()?;
        loop {
            if let Some(request) = &request
                && let Some(answer) = self.request_replayed(request).await?
            {
                let made = self.session_get(caller, &session_ref(&answer)?).await?;
                return self.session_load(caller, made.id).await;
            }
            let found = self.session_resolve(caller, target).await?;
            if let (Some(found), OnNameTaken::Open) = (&found, on_name_taken) {
                return self.session_load(caller, found.id).await;
            }
            caller.check_writes()?;
            if found.is_some() {
                let name = format!("{:?}", target.key.as_deref().unwrap_or_default());
                return Err(Error::AlreadyExists { name });
            }
            let session = self.session_new(caller, target);
            self.shared.check_folder(&session.adapter, session.cwd.as_deref(), caller.folders.as_deref())?;
            if let Some((adapter, adopted)) = adopted {
                self.shared.check_folder(adapter, adopted.cwd.as_deref(), caller.folders.as_deref())?;
                check_folder_usable(adopted.cwd.as_deref())?;
            }
            let (lists, defaults) = (caller.lists.as_deref(), session.run_defaults());
            Shared::check_listed_defaults(lists, Some(&session.adapter), &defaults)?;
            adopted.map_or(Ok(()), |(adapter, _)| {
                Shared::check_listed_defaults(lists, Some(adapter), &defaults)
            })?;
            self.shared.check_defaults(&session.adapter, &defaults)?;
            let agents = &self.shared.options.agents;
            let named = agents.check_agent_name(&session.adapter, &session.agent_definition);
            named.map_err(Error::Invalid)?;
            self.shared.check_placement(&session)?;
            let id = session.id;
            let request = request.clone().map(|request| Request { answer: id.to_string(), ..request });
            self.shared.start_new_actor(session).await?;
            let adopts =
                |(adapter, adopted): (&str, &Adopted)| Box::new(adoption(caller, adapter, adopted.clone()));
            let seed = SessionSeed { adopted: adopted.map(adopts), ..SessionSeed::default() };
            match self.shared.call(id, |reply| Command::Create(request.map(Box::new), seed, reply)).await {
                Ok(session) => {
                    self.shared.note_opened(id);
                    return Ok((session, Opening::Created));
                }
                // Another request has created the session since: the next lookup finds it.
                Err(CreateError::Taken(Unique::SessionName | Unique::RequestKey)) => {}
                Err(CreateError::Taken(_)) if adopted.is_some() => return Err(Error::native_taken()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Loads a session because the caller opens it.
    pub(super) async fn session_load(
        &self,
        caller: &Caller,
        session: SessionId,
    ) -> Result<(Session, Opening), Error> {
        let (session, opening) = self.shared.open(session).await?;
        Ok((self.shared.marked(caller, session).await?, opening))
    }

    /// Gets a session that the caller may read.
    pub async fn session_get(&self, caller: &Caller, by: &SessionRef) -> Result<Session, Error> {
        let found = self.shared.session_find(&caller.owner, by).await?;
        let readable = found.filter(|session| caller.may_read(session));
        let session = readable.ok_or_else(|| Error::not_found("session", name_of(by)))?;
        self.shared.marked(caller, session).await
    }

    /// Gets a session that the caller may change. Every operation that changes a session begins here.
    pub(super) async fn session_for_change(
        &self,
        caller: &Caller,
        by: &SessionRef,
    ) -> Result<Session, Error> {
        let session = self.session_get(caller, by).await?;
        self.check_session_change(caller, &session).await?;
        Ok(session)
    }

    /// Refuses a caller that may not change `session`.
    pub(super) async fn check_session_change(&self, caller: &Caller, session: &Session) -> Result<(), Error> {
        caller.check_changes(session)?;
        // Boxed to keep the futures of callers without limits small.
        Box::pin(self.shared.check_session_allowed(caller, session)).await
    }

    /// Lists sessions by latest activity, each with its latest run.
    pub async fn session_list(
        &self,
        caller: &Caller,
        query: SessionQuery,
    ) -> Result<Rows<(Session, Option<Run>)>, Error> {
        if query.open {
            // Boxed to keep the futures of other lists small.
            return Box::pin(self.session_list_open(caller, &query)).await;
        }
        let of = scope_of(caller, query.scope)?;
        if query.live {
            return self.session_list_live(caller, &query).await;
        }
        let limit = self.page(query.limit)?;
        let mut listed: Option<Rows<(Session, Option<Run>)>> = None;
        for of in of {
            let page = SessionPage {
                of,
                pinned: query.pinned.map(|is_pinned| PinnedBy { owner: caller.owner.clone(), is_pinned }),
                status: query.status,
                surface_kind: query.surface_kind.clone(),
                before: query.before,
                limit,
            };
            let found = self.shared.store.session_page(&page).await?;
            listed = Some(match listed {
                Some(listed) => merged(listed, found, limit),
                None => found,
            });
        }
        let mut listed = listed.unwrap_or_else(|| Rows::from(vec![]));
        self.shared.mark_listed(caller, &mut listed.items).await?;
        Ok(listed)
    }

    /// Applies `patch` atomically.
    pub async fn session_patch(
        &self,
        caller: &Caller,
        by: &SessionRef,
        patch: SessionPatch,
    ) -> Result<Session, Error> {
        let changes = self.patch_changes(&patch)?;
        if let Some(Some(cwd)) = &patch.cwd {
            let known = self.session_for_change(caller, by).await?;
            self.shared.check_folder(&known.adapter, Some(cwd), caller.folders.as_deref())?;
        }
        if let Some(name) = &patch.agent_definition {
            let known = self.session_for_change(caller, by).await?;
            self.check_definition(&known.owner, &known.adapter, name).await?;
        }
        let mut commands: Vec<_> = changes.into_iter().map(session::Command::Set).collect();
        match patch.status {
            None => {}
            Some(SessionStatus::Open) => commands.push(session::Command::Reopen),
            Some(SessionStatus::Archived) => commands.push(session::Command::Archive),
            Some(SessionStatus::Closed) => commands.push(session::Command::Close),
            Some(status) => return Err(Error::Invalid(format!("a session cannot be set to {status}"))),
        }
        let defaults = patched_defaults(&patch);
        if defaults != RunOptions::default() {
            let known = self.session_for_change(caller, by).await?;
            Shared::check_listed_defaults(caller.lists.as_deref(), None, &defaults)?;
            self.shared.check_defaults(&known.adapter, &defaults)?;
        }
        let known = self.session_for_change(caller, by).await?;
        let pin = match patch.pinned {
            Some(is_pinned) => self.pin_change(caller, &known, is_pinned).await?,
            None => None,
        };
        let version = patch.version;
        let changed =
            self.shared.call(known.id, |reply| Command::Session(commands, version, pin, reply)).await?;
        self.shared.marked(caller, changed).await
    }

    /// Checks the settings in `patch` and turns them into changes.
    fn patch_changes(&self, patch: &SessionPatch) -> Result<Vec<SessionChange>, Error> {
        self.check_options(&patched_defaults(patch))?;
        let SessionPatch { title, model, model_profile, system_prompt, model_options, cwd, .. } =
            patch.clone();
        let title =
            title.map(|title| title.map(|title| title.trim().to_owned()).filter(|title| !title.is_empty()));
        check_title(self, title.iter().flatten().next().map(String::as_str))?;
        check_metadata(self, patch.metadata.as_ref())?;
        check_session_rules(patch.rules.as_deref().unwrap_or_default())?;
        check_idle_unload(patch.idle_unload_ms.flatten())?;
        let changes = [
            title.map(|title| SessionChange::Title { title, source: TitleSource::Manual }),
            patch.visibility.map(|visibility| SessionChange::Visibility { visibility }),
            model.map(|model| SessionChange::Model { model }),
            model_profile.map(|model_profile| SessionChange::ModelProfile { model_profile }),
            system_prompt.map(|system_prompt| SessionChange::SystemPrompt { system_prompt }),
            model_options.map(|model_options| SessionChange::ModelOptions { model_options }),
            cwd.map(|cwd| SessionChange::Cwd { cwd }),
            patch.metadata.clone().map(|metadata| SessionChange::Metadata { metadata }),
            patch.rules.clone().map(|rules| SessionChange::Rules { rules }),
            { patch.agent_definition.clone() }
                .map(|agent_definition| SessionChange::AgentDefinition { agent_definition }),
            patch.idle_unload_ms.map(|idle_unload_ms| SessionChange::IdleUnload { idle_unload_ms }),
        ];
        Ok(changes.into_iter().flatten().collect())
    }

    /// Deletes a session and all its data, except what its forks still see. Returns the forks.
    pub async fn session_delete(&self, caller: &Caller, by: &SessionRef) -> Result<Deleted, Error> {
        let id = self.session_for_change(caller, by).await?.id;
        let forks = self.shared.store.session_forks(id).await?;
        let delete = vec![session::Command::Delete { live: false }];
        let session = self.shared.call(id, |reply| Command::Session(delete, None, None, reply)).await?;
        Ok(Deleted { session, forks })
    }

    /// Unloads an idle session; true if it was in memory. Refused for a busy session.
    ///
    /// Its readers keep their streams, which continue when the session is loaded again.
    pub async fn session_close(&self, caller: &Caller, by: &SessionRef) -> Result<bool, Error> {
        let session = self.session_for_change(caller, by).await?;
        let (reply, closed) = oneshot::channel();
        let Some(actor) = self.shared.actor(session.id) else { return Ok(false) };
        if actor.send(Command::Close(reply).into()).is_err() {
            return Ok(false);
        }
        match closed.await {
            Ok(outcome) => {
                outcome?;
                let natives = self.shared.active_bindings(session.id).await?;
                self.shared.forget_native_sessions(natives.iter());
                Ok(true)
            }
            // The actor stopped before it read the command.
            Err(_) => Ok(false),
        }
    }

    /// Prunes a session's events before `before`: only events of ended runs, and no messages. Returns the position up to
    /// which events are gone. Readers that have not received them start again from a snapshot.
    pub async fn session_compact(
        &self,
        caller: &Caller,
        by: &SessionRef,
        before: Cursor,
    ) -> Result<Position, Error> {
        let session = self.session_for_change(caller, by).await?;
        self.shared.call(session.id, |reply| Command::Compact(before, reply)).await
    }

    /// Lists the last messages of the active path above depth `before`, root first. Fails if one of them is damaged.
    pub async fn session_path(
        &self,
        caller: &Caller,
        by: &SessionRef,
        before: Option<u32>,
        limit: Option<usize>,
    ) -> Result<Vec<Arc<Message>>, Error> {
        Ok(self.session_path_page(caller, by, before, limit).await?.rows().intact()?)
    }

    /// Reads the end of the active path above depth `before`, root first. The next page holds the messages above.
    pub async fn session_path_page(
        &self,
        caller: &Caller,
        by: &SessionRef,
        before: Option<u32>,
        limit: Option<usize>,
    ) -> Result<Page<Arc<Message>>, Error> {
        let session = self.session_get(caller, by).await?;
        let limit = self.page(limit)?;
        let Some(tip) = session.tip else { return Ok(Page::single(vec![])) };
        let path = self.shared.store.path(tip, before, limit).await?;
        // A full page begins with an intact message, above which the next page ends.
        let first = path.first().filter(|_| path.len() >= limit).and_then(|placed| placed.point);
        let next = first.filter(|first| first.pos > 0).map(|first| first.pos.to_string());
        Ok(Page { next, ..Page::from(path.map(|placed| placed.message)) })
    }

    /// Lists events of a session after `after`, in order.
    pub async fn session_events(
        &self,
        caller: &Caller,
        by: &SessionRef,
        after: Cursor,
        limit: Option<usize>,
    ) -> Result<Vec<Event>, Error> {
        let session = self.session_get(caller, by).await?;
        self.check_not_lost(after, after)?;
        let events = self.shared.store.events_after(session.id, None, after, self.page(limit)?).await?;
        self.check_not_ahead(after, &events).await?;
        Ok(events)
    }

    /// Finds the session that `target` names: by id, then key, external reference and legacy alias.
    pub(super) async fn session_resolve(
        &self,
        caller: &Caller,
        target: &SessionTarget,
    ) -> Result<Option<Session>, Error> {
        if let Some(id) = target.id {
            return self.session_get(caller, &SessionRef::Id(id)).await.map(Some);
        }
        let names = [
            target.key.clone().map(SessionRef::Key),
            target.external_ref.clone().map(SessionRef::External),
            target.legacy_alias.clone().map(SessionRef::Legacy),
        ];
        for name in names.into_iter().flatten() {
            if let Some(found) = self.shared.session_find(&caller.owner, &name).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Makes a new session, not stored yet, with the names and settings of `target`.
    pub(super) fn session_new(&self, caller: &Caller, target: &SessionTarget) -> Session {
        let now = self.shared.clock.now();
        let new = target.new.clone();
        let titled = new.title.is_some().then_some(TitleSource::Manual);
        let NewSession {
            title, surface_kind, adapter, cwd, model_profile, agent_definition, metadata, ..
        } = new;
        Session {
            id: self.shared.ids.session(),
            owner: caller.owner.clone(),
            org: caller.org.clone(),
            visibility: new.visibility.unwrap_or_default(),
            key: target.key.clone(),
            title,
            status: SessionStatus::Open,
            surface_kind: surface_kind.unwrap_or_else(|| "api".into()),
            external_ref: target.external_ref.clone(),
            legacy_alias: target.legacy_alias.clone(),
            agent_definition: agent_definition.unwrap_or_else(|| DEFAULT_AGENT.into()),
            adapter: adapter.unwrap_or_else(|| self.shared.options.adapter.clone()),
            cwd,
            model_profile,
            model: new.model,
            system_prompt: new.system_prompt,
            model_options: new.model_options,
            rules: new.rules,
            metadata: metadata.unwrap_or_else(|| Value::Object(Map::new())),
            tip: None,
            tip_message: None,
            version: 1,
            created_at: now,
            updated_at: now,
            last_activity_at: now,
            pinned: false,
            pinned_at: None,
            title_source: titled,
            forked_from: None,
            base: None,
            tools: vec![],
            idle_unload_ms: None,
            labels: new.labels,
        }
    }

    /// Checks a requested page size. A size beyond the limit is refused, not truncated silently.
    pub(super) fn page(&self, limit: Option<usize>) -> Result<usize, Error> {
        let max = self.shared.options.limits.page;
        match limit.unwrap_or(max.min(50)) {
            0 => Err(Error::Invalid("a limit must be at least 1".into())),
            limit if limit > max => Err(Error::Invalid(format!("a limit may be at most {max}, not {limit}"))),
            limit => Ok(limit),
        }
    }

    /// Builds a page of a list that was read with `limit`. If the page is full, `next` is the last item's `position`.
    pub fn page_of<T>(
        &self,
        rows: impl Into<Rows<T>>,
        limit: Option<usize>,
        position: impl Fn(&T) -> String,
    ) -> Page<T> {
        let rows = rows.into();
        let full = self.page(limit).is_ok_and(|limit| rows.len() >= limit);
        let next = rows.last().filter(|_| full).map(position);
        Page { next, ..Page::from(rows) }
    }
}

/// The lists that a scope consists of. Sessions may be in several of them.
pub(super) fn scope_of(caller: &Caller, scope: Scope) -> Result<Vec<SessionsOf>, Error> {
    let own = SessionsOf::Owner(caller.owner.clone());
    Ok(match (scope, &caller.org) {
        (Scope::Own, _) | (Scope::All, None) => vec![own],
        (Scope::Org, Some(org)) => vec![SessionsOf::Org(org.clone())],
        (Scope::All, Some(org)) => vec![own, SessionsOf::Org(org.clone())],
        (Scope::Org, None) => {
            return Err(Error::Invalid("you belong to no org: use the key of one".into()));
        }
    })
}

/// Merges two pages of sessions, each by latest activity. Damaged rows come after all sessions, since their places among
/// the sessions are not known.
fn merged(
    one: Rows<(Session, Option<Run>)>,
    other: Rows<(Session, Option<Run>)>,
    limit: usize,
) -> Rows<(Session, Option<Run>)> {
    let mut items = one.items;
    items.extend(other.items);
    items.sort_by_key(|(session, _)| std::cmp::Reverse((session.last_activity_at, session.id)));
    items.dedup_by_key(|(session, _)| session.id);
    items.truncate(limit);
    let index = items.len();
    let mut damaged: Vec<Damage> = one.damaged;
    damaged.extend(other.damaged);
    damaged.iter_mut().for_each(|damage| damage.index = index);
    damaged.dedup();
    Rows { items, damaged }
}

/// The default options of runs that a patch sets.
fn patched_defaults(patch: &SessionPatch) -> RunOptions {
    RunOptions {
        system_prompt: patch.system_prompt.clone().flatten(),
        model_profile: patch.model_profile.clone().flatten(),
        model: patch.model.clone().flatten(),
        cwd: patch.cwd.clone().flatten(),
        model_options: patch.model_options.clone().flatten(),
        ..RunOptions::default()
    }
}

/// Checks every name and size in `target` before anything is created.
pub(super) fn check_target(kernel: &Kernel, caller: &Caller, target: &SessionTarget) -> Result<(), Error> {
    check_text("an owner", &caller.owner)?;
    target.key.as_deref().map_or(Ok(()), check_key)?;
    if let Some(external) = &target.external_ref {
        check_text("an external reference's kind", &external.kind)?;
        check_text("an external reference's id", &external.id)?;
    }
    if let Some(alias) = &target.legacy_alias {
        check_text("an alias's scope", &alias.scope)?;
        check_text("an alias's key", &alias.key)?;
    }
    let new = &target.new;
    check_title(kernel, new.title.as_deref())?;
    new.surface_kind.as_deref().map_or(Ok(()), |kind| check_text("a surface kind", kind))?;
    new.agent_definition.as_deref().map_or(Ok(()), |name| check_text("an agent definition", name))?;
    if let Some(adapter) = &new.adapter {
        kernel.check_adapter(adapter)?;
    }
    if new.visibility == Some(Visibility::Org) && caller.org.is_none() {
        return Err(Refusal::NoOrg.into());
    }
    kernel.check_options(&new.run_defaults())?;
    check_session_rules(&new.rules)?;
    check_labels(&new.labels).map_err(Error::Invalid)?;
    check_metadata(kernel, new.metadata.as_ref())
}

pub(super) fn check_metadata(kernel: &Kernel, metadata: Option<&Value>) -> Result<(), Error> {
    if metadata.is_some_and(|metadata| !metadata.is_object()) {
        return Err(Error::Invalid("metadata must be an object".into()));
    }
    check_size("metadata", json_size(metadata), kernel.shared.options.limits.metadata_bytes)
}

/// The longest time that an idle session may stay in memory: a day.
const MAX_IDLE_UNLOAD_MS: u64 = 24 * 60 * 60 * 1_000;

pub(super) fn check_idle_unload(millis: Option<u64>) -> Result<(), Error> {
    match millis.filter(|millis| *millis > MAX_IDLE_UNLOAD_MS) {
        Some(millis) => Err(Error::Invalid(format!(
            "`idleUnloadMs`: {millis} is too long; at most {MAX_IDLE_UNLOAD_MS}, a day"
        ))),
        None => Ok(()),
    }
}

pub(super) fn check_title(kernel: &Kernel, title: Option<&str>) -> Result<(), Error> {
    let max = kernel.shared.options.limits.title_chars;
    match title {
        Some(title) if title.chars().count() > max => {
            Err(Error::Invalid(format!("a title has at most {max} characters")))
        }
        Some(title) if title.chars().any(char::is_control) => {
            Err(Error::Invalid("a title must not hold control characters".into()))
        }
        _ => Ok(()),
    }
}

/// Text that names a session in an error.
fn name_of(by: &SessionRef) -> String {
    match by {
        SessionRef::Id(id) => id.to_string(),
        SessionRef::Key(key) => key.clone(),
        SessionRef::External(external) => format!("{}:{}", external.kind, external.id),
        SessionRef::Legacy(alias) => format!("{}:{}", alias.scope, alias.key),
    }
}

/// Parses a session id or key.
pub fn session_ref(text: &str) -> Result<SessionRef, Error> {
    if text.starts_with("ses_") {
        return text.parse::<SessionId>().map(SessionRef::Id).map_err(|bad| Error::Invalid(bad.to_string()));
    }
    check_key(text)?;
    Ok(SessionRef::Key(text.into()))
}
