//! The session's tree: the start of a run, changes of the path, and forks.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainspring_core::{
    Artifact, Line, Message, MessageId, Origin, Place, Point, Role, Session, SessionId, SessionStatus,
    StateEntry, Time, TitleSource, Visibility,
};
use serde_json::{Map, Value};

use super::cache::{NotCached, PathChange};
use super::{Actor, Command, SessionSeed};
use crate::error::{CreateError, Error};
use crate::kernel::Forking;
use crate::store::{ArtifactPage, PlacedMessage, StateAt, StatePlace, StateRow, StoreError};

/// Half the number of lines in the first read, which is small: usually all but one are cached.
const LINES_READ: usize = 4;

/// The maximum number of messages that are read of one round of tool calls.
const ROUND_MESSAGES: usize = 64;

/// The place where a run starts.
#[derive(Debug, Default)]
pub(super) struct Base {
    /// The message above the run's first one.
    pub(super) at: Option<Point>,
    /// The earlier user message that the run answers again.
    pub(super) answered_again: Option<Arc<Message>>,
    /// Tool calls of the message above that have no result, id and name. The run adds results for them first.
    pub(super) unanswered: Vec<(String, String)>,
}

impl Actor {
    /// Finds the start of a run with this place.
    pub(super) async fn base_of(&self, place: Place) -> Result<Base, Error> {
        let (message_id, role) = match place {
            Place::Root => return Ok(Base::default()),
            Place::Tip => {
                let at = self.hot.session.tip;
                return Ok(Base { at, answered_again: None, unanswered: self.unanswered_calls(at).await? });
            }
            Place::Regenerate { message_id } => (message_id, Role::User),
            Place::Edit { message_id } => (message_id, Role::Assistant),
        };
        let (point, placed, _) = self.message_at(message_id).await?;
        let message = placed.message;
        match (message.role, role) {
            (Role::Assistant, Role::User) => Err(Error::NotUserMessage(message_id)),
            (Role::User, Role::Assistant) => Err(Error::NotAssistantMessage(message_id)),
            (Role::User, Role::User) => {
                Ok(Base { at: Some(point), answered_again: Some(message), unanswered: vec![] })
            }
            (Role::Assistant, Role::Assistant) => {
                let unanswered = self.unanswered_at(point).await?;
                Ok(Base { at: Some(point), answered_again: None, unanswered })
            }
        }
    }

    /// Lists the tool calls without a result at the tip. An ended run leaves none, but a fork or an import may begin in the
    /// middle of a round.
    pub(super) async fn unanswered_calls(&self, tip: Option<Point>) -> Result<Vec<(String, String)>, Error> {
        let Some(tip) = tip.filter(|tip| !self.cache.tree.is_answered(*tip)) else {
            return Ok(vec![]);
        };
        self.unanswered_at(tip).await
    }

    /// Lists the tool calls of the round that is open at `point`. A round may span several messages of the agent, each
    /// with calls, and prompts that have joined the run; the message with the results ends it.
    pub(super) async fn unanswered_at(&self, point: Point) -> Result<Vec<(String, String)>, Error> {
        let may_belong = |placed: &PlacedMessage| match placed.message.role {
            Role::Assistant => !placed.message.tool_calls().is_empty(),
            Role::User => placed.message.is_prompt(),
        };
        let last = self.shared.store.path(point, None, 1).await?.intact()?;
        if !last.last().is_some_and(may_belong) {
            return Ok(vec![]);
        }
        let path = self.shared.store.path(point, None, ROUND_MESSAGES).await?.intact()?;
        let start = path.iter().rposition(|placed| !may_belong(placed)).map_or(0, |before| before + 1);
        Ok(path[start..].iter().flat_map(|placed| placed.message.tool_calls()).collect())
    }

    /// Finds a message that this session sees and that is not on an abandoned line.
    pub(super) async fn message_at(
        &self,
        id: MessageId,
    ) -> Result<(Point, PlacedMessage, Option<Line>), Error> {
        let found = self.shared.store.message_get(self.fence.session, id).await?;
        let (placed, line) = found.ok_or_else(|| Error::not_found("message", id))?;
        if line.is_some_and(|line| line.abandoned) {
            return Err(Error::Abandoned(id));
        }
        // A queued prompt has no place yet.
        let point = placed.point.ok_or_else(|| Error::not_found("message", id))?;
        Ok((point, placed, line))
    }

    /// Computes the change of the path to the place where a run writes. None if the path ends there already, or if the
    /// run writes beneath a root of its own: a session branches only while it is idle, so that line has no cursors yet.
    pub(super) async fn path_change_to(
        &mut self,
        pen: Option<Point>,
    ) -> Result<Option<PathChange>, StoreError> {
        let Some(pen) = pen else { return Ok(None) };
        let is_root = self.hot.session.line(pen.line).is_some_and(|line| line.parent.is_none());
        let stays = self.hot.session.tip.is_some_and(|tip| tip.line == pen.line);
        if is_root || stays {
            return Ok(None);
        }
        // Up to the place of the next message: the run's line may still be empty.
        self.path_change(pen).await.map(Some)
    }

    /// Computes the change of the path so that it ends at `to`.
    async fn path_change(&mut self, to: Point) -> Result<PathChange, StoreError> {
        let from = self.hot.session.tip;
        self.cache.tree.trim();
        let mut limit = LINES_READ;
        loop {
            let NotCached(line) = match self.cache.tree.path_change(from, to) {
                Ok(change) => return Ok(change),
                Err(not_cached) => not_cached,
            };
            // Twice as many lines each time: a long path costs few reads.
            limit *= 2;
            self.cache.tree.insert(self.shared.store.lines_to_root(self.fence.session, line, limit).await?);
        }
    }

    /// Moves the active path to the leaf that the cursors lead to from `to`. Without `to`, the path becomes empty.
    pub(super) async fn navigate(
        &mut self,
        to: Option<MessageId>,
        version: Option<u64>,
    ) -> Result<Session, Error> {
        self.check_version(version)?;
        if let Some(status) = self.busy() {
            return Err(Error::Busy { status });
        }
        let (session, store) = (self.fence.session, self.shared.store.clone());
        let (mut leaf, mut line, mut change) = (None, None, None);
        if let Some(to) = to {
            let (point, ..) = self.message_at(to).await?;
            let found = store.leaf(session, self.cache.tree.follow_cursors(point)).await?;
            let (placed, own) = found.ok_or_else(|| Error::Corrupt(format!("{to} leads nowhere")))?;
            let end = placed.point.unwrap_or(point);
            leaf = Some((end, placed.message.id));
            line = own;
            if leaf.map(|(_, message)| message) != self.hot.session.tip_message {
                change = Some(self.path_change(end).await?);
            }
        }
        let mut draft = self.draft().with_path_change(change);
        self.give_up_on_error(draft.navigate(leaf, line))?;
        self.commit(draft).await?;
        Ok(Session::clone(&self.hot.session))
    }

    /// Makes a session that continues from a message of this one. The fork sees the path to the message, and nothing
    /// later.
    ///
    /// This session cannot be deleted before the fork is stored, since its actor waits for that.
    pub(super) async fn fork(&mut self, fork: Forking) -> Result<Session, CreateError> {
        let (point, placed, _) = self.message_at(fork.message).await?;
        // The messages of a run that has not ended may yet be abandoned.
        let live = self
            .active
            .iter()
            .map(|active| active.run().as_ref())
            .chain(self.queue.iter())
            .chain(self.hot.merged.iter());
        if let Some(run) = { live }.find(|run| placed.message.run == Some(run.id)) {
            return Err(Error::Busy { status: run.state.status() }.into());
        }
        let now = self.shared.clock.now();
        let source = &self.hot.session;
        let titled = fork.title.is_some();
        let is_foreign = fork.owner != source.owner;
        let agent_definition = fork.agent_definition.unwrap_or_else(|| source.agent_definition.clone());
        let session = Session {
            id: fork.id,
            owner: fork.owner,
            agent_definition,
            // Folders, rules and notes are private to the owner of the source session.
            cwd: source.cwd.clone().filter(|_| !is_foreign),
            rules: if is_foreign { vec![] } else { source.rules.clone() },
            metadata: if is_foreign { Value::Object(Map::new()) } else { source.metadata.clone() },
            key: fork.key,
            title: fork.title.or_else(|| source.title.clone()),
            title_source: if titled { Some(TitleSource::Manual) } else { source.title_source },
            external_ref: None,
            legacy_alias: None,
            status: SessionStatus::Open,
            org: fork.org,
            visibility: Visibility::Private,
            pinned: false,
            pinned_at: None,
            tip: Some(point),
            tip_message: Some(fork.message),
            base: Some(point),
            forked_from: Some(Origin { session: source.id, message: fork.message }),
            version: 1,
            created_at: now,
            updated_at: now,
            last_activity_at: now,
            ..Session::clone(source)
        };
        let state = match source.forked_from {
            Some(_) => self.state_for_fork(&session, point).await?,
            None => vec![],
        };
        let artifacts = self.artifacts_for_fork(fork.id, placed.message.created_at).await?;
        self.shared.start_new_actor(session).await?;
        let seed = SessionSeed { state, artifacts, adopted: None };
        self.shared.call(fork.id, |reply| Command::Create(fork.request, seed, reply)).await
    }

    /// The artifacts that a fork inherits: those that existed when its last message was written. Each fork has its own
    /// copy of the record, so that it stays readable when this session becomes private or is deleted.
    async fn artifacts_for_fork(&self, fork: SessionId, until: Time) -> Result<Vec<Artifact>, Error> {
        let (session, store) = (self.fence.session, &self.shared.store);
        let page = ArtifactPage { session, run: None, before: None, limit: usize::MAX };
        let own = store.artifact_page(&page).await?.items;
        let inherited = store.artifacts_inherited(session).await?;
        let copy = |artifact: Artifact| Artifact { session: fork, run: None, attempt: None, ..artifact };
        let all = own.into_iter().chain(inherited);
        Ok(all.filter(|artifact| artifact.created_at <= until).map(copy).collect())
    }

    /// Lists the state to copy into `fork`; called if this session is a fork itself. On lines of other
    /// sessions, `fork` would otherwise see state that was set there after this session was forked, and would
    /// not see the state that this session has set there.
    async fn state_for_fork(&self, fork: &Session, point: Point) -> Result<Vec<StateRow>, Error> {
        let at = |session| StateAt::Session { session, at: Some(point) };
        let keys = |entries: Vec<StateEntry>| -> BTreeMap<String, StateEntry> {
            entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect()
        };
        let store = &self.shared.store;
        let own = keys(store.state_page(&at(self.fence.session), None, usize::MAX).await?.intact()?);
        let in_fork = keys(store.state_page(&at(fork.id), None, usize::MAX).await?.intact()?);
        let place = StatePlace::Session { at: Some(point), aside: false };
        // Of two entries at the same place, the one with the higher version counts.
        let above = |key: &str| in_fork.get(key).map_or(0, |entry| entry.version + 1);
        let row = |entry: &StateEntry, value| StateRow {
            place,
            key: entry.key.clone(),
            version: entry.version.max(above(&entry.key)),
            value,
            at: entry.updated_at,
        };
        let missing = own.values().filter(|entry| in_fork.get(&entry.key) != Some(entry));
        let foreign = in_fork.values().filter(|entry| !own.contains_key(&entry.key));
        let missing = missing.map(|entry| row(entry, Some(entry.value.clone())));
        Ok(missing.chain(foreign.map(|entry| row(entry, None))).collect())
    }
}
