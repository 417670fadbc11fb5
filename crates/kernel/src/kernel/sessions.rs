//! Verbs on sessions.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::limits::{check_key, check_text};
use mainspring_core::{
    Body, Event, LineId, Message, MessageId, Position, Range, Refusal, Run, RunOptions, Session,
    SessionChange, SessionId, SessionStatus, Visibility, session,
};
use serde_json::{Map, Value};

use super::requests::{MessageTree, TreeNode};
use super::runs::{check_size, json_size};
use super::{Caller, Kernel, NewSession, Scope, SessionPatch, SessionQuery, SessionTarget, Snapshot};
use crate::actor::Command;
use crate::error::Error;
use crate::feed::Subscription;
use crate::store::{PlacedMessage, Request, SessionPage, SessionRef, StoreError, Unique, Whose};

impl Kernel {
    /// The session that `target` names; a new one if there is none. Says whether it was made.
    ///
    /// The same request under the same idempotency key gives the session it made.
    pub async fn session_open(
        &self,
        caller: &Caller,
        target: &SessionTarget,
        idempotency_key: Option<&str>,
    ) -> Result<(Session, bool), Error> {
        check_target(self, caller, target)?;
        let asked = |key| self.request_of(caller, "session_open", key, &target.in_order());
        let request = idempotency_key.map(asked).transpose()?;
        loop {
            if let Some(request) = &request
                && let Some(answer) = self.request_known(request).await?
            {
                return Ok((self.session_get(caller, &session_ref(&answer)?).await?, false));
            }
            if let Some(found) = self.session_named(caller, target).await? {
                return Ok((found, false));
            }
            caller.check_makes()?;
            let session = self.session_new(caller, target);
            let id = session.id;
            let request = request.clone().map(|request| Request { answer: id.to_string(), ..request });
            self.shared.birth(session).await?;
            match self.shared.call(id, |reply| Command::Create(request.map(Box::new), reply)).await? {
                Ok(session) => return Ok((session, true)),
                // Somebody was faster: theirs is found now.
                Err(StoreError::Conflict(Unique::SessionName | Unique::RequestKey)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One session, for reading.
    pub async fn session_get(&self, caller: &Caller, by: &SessionRef) -> Result<Session, Error> {
        let found = self.shared.store.session_find(&caller.owner, by).await?;
        let readable = found.filter(|session| caller.reads(session));
        readable.ok_or_else(|| Error::not_found("session", shown(by)))
    }

    /// One session that `caller` may change. Every verb that changes a session begins here.
    pub(super) async fn session_changed(&self, caller: &Caller, by: &SessionRef) -> Result<Session, Error> {
        let session = self.session_get(caller, by).await?;
        caller.check_changes(&session)?;
        Ok(session)
    }

    /// Sessions, the latest activity first, each with its latest run.
    pub async fn session_list(
        &self,
        caller: &Caller,
        query: SessionQuery,
    ) -> Result<Vec<(Session, Option<Run>)>, Error> {
        let whose = match (query.scope, &caller.org) {
            (Scope::Own, _) => Whose::Owner(caller.owner.clone()),
            (Scope::Org, Some(org)) => Whose::Org(org.clone()),
            (Scope::Org, None) => {
                return Err(Error::Invalid("you belong to no org: use the key of one".into()));
            }
        };
        let page = SessionPage {
            whose,
            status: query.status,
            surface_kind: query.surface_kind,
            before: query.before,
            limit: self.page(query.limit)?,
        };
        Ok(self.shared.store.session_page(&page).await?)
    }

    /// Changes what `patch` names, all of it or nothing.
    pub async fn session_patch(
        &self,
        caller: &Caller,
        by: &SessionRef,
        patch: SessionPatch,
    ) -> Result<Session, Error> {
        let changes = self.settings_of(&patch)?;
        let mut commands: Vec<_> = changes.into_iter().map(session::Command::Set).collect();
        match patch.status {
            None => {}
            Some(SessionStatus::Open) => commands.push(session::Command::Reopen),
            Some(SessionStatus::Archived) => commands.push(session::Command::Archive),
            Some(status) => return Err(Error::Invalid(format!("a session cannot be set to {status}"))),
        }
        self.session_change(caller, by, commands, patch.version).await
    }

    /// The settings that `patch` changes, each checked.
    fn settings_of(&self, patch: &SessionPatch) -> Result<Vec<SessionChange>, Error> {
        let SessionPatch { title, model, model_profile, system_prompt, model_options, cwd, .. } =
            patch.clone();
        let title =
            title.map(|title| title.map(|title| title.trim().to_owned()).filter(|title| !title.is_empty()));
        check_title(self, title.iter().flatten().next().map(String::as_str))?;
        self.check_options(&RunOptions {
            system_prompt: system_prompt.clone().flatten(),
            model_profile: model_profile.clone().flatten(),
            model: model.clone().flatten(),
            cwd: cwd.clone().flatten(),
            model_options: model_options.clone().flatten(),
        })?;
        check_metadata(self, patch.metadata.as_ref())?;
        let changes = [
            title.map(|title| SessionChange::Title { title }),
            patch.visibility.map(|visibility| SessionChange::Visibility { visibility }),
            model.map(|model| SessionChange::Model { model }),
            model_profile.map(|model_profile| SessionChange::ModelProfile { model_profile }),
            system_prompt.map(|system_prompt| SessionChange::SystemPrompt { system_prompt }),
            model_options.map(|model_options| SessionChange::ModelOptions { model_options }),
            cwd.map(|cwd| SessionChange::Cwd { cwd }),
            patch.metadata.clone().map(|metadata| SessionChange::Metadata { metadata }),
        ];
        Ok(changes.into_iter().flatten().collect())
    }

    /// Deletes a session and everything of it.
    pub async fn session_delete(&self, caller: &Caller, by: &SessionRef) -> Result<Session, Error> {
        self.session_change(caller, by, vec![session::Command::Delete { live: false }], None).await
    }

    async fn session_change(
        &self,
        caller: &Caller,
        by: &SessionRef,
        commands: Vec<session::Command>,
        version: Option<u64>,
    ) -> Result<Session, Error> {
        let session = self.session_changed(caller, by).await?;
        self.shared.call(session.id, |reply| Command::Session(commands, version, reply)).await
    }

    /// The session at one instant, and every later event and byte of it exactly once.
    ///
    /// With `from` the subscription goes on where an earlier one was; the snapshot is that of now all the same.
    pub async fn session_subscribe(
        &self,
        caller: &Caller,
        by: &SessionRef,
        from: Option<Position>,
    ) -> Result<(Snapshot, Subscription), Error> {
        let session = self.session_get(caller, by).await?;
        let subscribe = |reply| Command::Subscribe(caller.clone(), reply);
        let (snapshot, subscription) = self.shared.call(session.id, subscribe).await?;
        let now = subscription.position();
        let from = from.unwrap_or(now);
        if from.cursor > now.cursor {
            return Err(Error::Invalid(format!(
                "the cursor {from} lies ahead of the session, which stands at {now}"
            )));
        }
        Ok((snapshot, subscription.resume(from)))
    }

    /// The last messages of the active path above depth `before`, root first.
    pub async fn session_path(
        &self,
        caller: &Caller,
        by: &SessionRef,
        before: Option<u32>,
        limit: Option<usize>,
    ) -> Result<Vec<Arc<Message>>, Error> {
        let session = self.session_get(caller, by).await?;
        let Some(tip) = session.tip else { return Ok(vec![]) };
        let path = self.shared.store.path(tip, before, self.page(limit)?).await?;
        Ok(path.into_iter().map(|placed| placed.message).collect())
    }

    /// Events of a session after `after`, in order.
    pub async fn session_events(
        &self,
        caller: &Caller,
        by: &SessionRef,
        after: mainspring_core::Cursor,
        limit: Option<usize>,
    ) -> Result<Vec<Event>, Error> {
        let session = self.session_get(caller, by).await?;
        Ok(self.shared.store.events_after(session.id, None, after, self.page(limit)?).await?)
    }

    /// The whole tree of a session.
    pub async fn session_tree(&self, caller: &Caller, by: &SessionRef) -> Result<MessageTree, Error> {
        let session = self.session_get(caller, by).await?;
        let shape = self.shared.store.tree(session.id).await?;
        let mut messages: HashMap<LineId, Vec<PlacedMessage>> = HashMap::new();
        for line in &shape.lines {
            if line.end > line.start() {
                let range = Range { line: line.id, from: line.start(), to: line.end - 1 };
                messages.insert(line.id, self.shared.store.line_messages(range).await?);
            }
        }
        let tree =
            mainspring_core::Tree::from_parts(shape.lines.iter().copied(), shape.cursors.iter().copied());
        let on_path: HashMap<LineId, (u32, u32)> =
            tree.path(session.tip).into_iter().map(|range| (range.line, (range.from, range.to))).collect();
        let mut ids: HashMap<mainspring_core::Point, MessageId> = HashMap::new();
        let mut nodes = vec![];
        for line in &shape.lines {
            for placed in messages.remove(&line.id).unwrap_or_default() {
                let Some(point) = placed.point else { continue };
                ids.insert(point, placed.message.id);
                let active =
                    on_path.get(&line.id).is_some_and(|(from, to)| (from..=to).contains(&&point.pos));
                let parent_id = tree.parent(point).and_then(|parent| ids.get(&parent).copied());
                nodes.push(TreeNode {
                    message: placed.message,
                    parent_id,
                    depth: point.pos,
                    active,
                    abandoned: line.abandoned,
                });
            }
        }
        Ok(MessageTree { nodes })
    }

    /// Resolution order: id, key, external reference, legacy alias.
    pub(super) async fn session_named(
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
            if let Some(found) = self.shared.store.session_find(&caller.owner, &name).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    pub(super) fn session_new(&self, caller: &Caller, target: &SessionTarget) -> Session {
        let now = self.shared.clock.now();
        let new = target.new.clone();
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
            agent_definition: agent_definition.unwrap_or_else(|| "mainspring.generalist@1".into()),
            adapter: adapter.unwrap_or_else(|| self.shared.options.adapter.clone()),
            cwd,
            model_profile,
            model: new.model,
            system_prompt: new.system_prompt,
            model_options: new.model_options,
            metadata: metadata.unwrap_or_else(|| Value::Object(Map::new())),
            tip: None,
            tip_message: None,
            version: 1,
            created_at: now,
            updated_at: now,
            last_activity_at: now,
        }
    }

    /// How many items a page has; refused beyond the limit rather than cut without a word.
    pub(super) fn page(&self, limit: Option<usize>) -> Result<usize, Error> {
        let most = self.shared.options.limits.page;
        match limit.unwrap_or(most.min(50)) {
            0 => Err(Error::Invalid("a limit must be at least 1".into())),
            limit if limit > most => {
                Err(Error::Invalid(format!("a limit may be at most {most}, not {limit}")))
            }
            limit => Ok(limit),
        }
    }
}

/// Checks every name and size of a target, before anything is made.
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
    check_metadata(kernel, new.metadata.as_ref())
}

fn check_metadata(kernel: &Kernel, metadata: Option<&Value>) -> Result<(), Error> {
    if metadata.is_some_and(|metadata| !metadata.is_object()) {
        return Err(Error::Invalid("metadata must be an object".into()));
    }
    check_size("metadata", json_size(metadata), kernel.shared.options.limits.metadata_bytes)
}

fn check_title(kernel: &Kernel, title: Option<&str>) -> Result<(), Error> {
    let most = kernel.shared.options.limits.title_chars;
    match title {
        Some(title) if title.chars().count() > most => {
            Err(Error::Invalid(format!("a title has at most {most} characters")))
        }
        Some(title) if title.chars().any(char::is_control) => {
            Err(Error::Invalid("a title must not hold control characters".into()))
        }
        _ => Ok(()),
    }
}

fn shown(by: &SessionRef) -> String {
    match by {
        SessionRef::Id(id) => id.to_string(),
        SessionRef::Key(key) => key.clone(),
        SessionRef::External(external) => format!("{}:{}", external.kind, external.id),
        SessionRef::Legacy(alias) => format!("{}:{}", alias.scope, alias.key),
    }
}

/// Reads how a person names a session: by id, or by key.
pub fn session_ref(text: &str) -> Result<SessionRef, Error> {
    if text.starts_with("ses_") {
        return text.parse::<SessionId>().map(SessionRef::Id).map_err(|bad| Error::Invalid(bad.to_string()));
    }
    check_key(text)?;
    Ok(SessionRef::Key(text.into()))
}

/// True for the event that ends a run.
pub fn ends_run(body: &Body) -> bool {
    body.ends_run()
}
