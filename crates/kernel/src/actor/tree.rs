//! The session's tree: where a run begins, where the path turns, and forks.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainspring_core::{
    Line, Message, MessageId, Origin, Place, Point, Role, Session, SessionStatus, StateEntry, TitleSource,
    Visibility,
};

use super::known::{Turn, Unknown};
use super::{Actor, Begins, Command};
use crate::error::Error;
use crate::kernel::Forking;
use crate::store::{PlacedMessage, StateAt, StatePlace, StateRow, StoreError};

/// Half as many lines as are read first: most often all but one are known.
const STRANDS: usize = 4;

/// Where a run begins.
#[derive(Debug, Default)]
pub(super) struct Base {
    /// The message above its first one.
    pub(super) at: Option<Point>,
    /// The user message that it answers again.
    pub(super) again: Option<Arc<Message>>,
    /// Tool calls of the message above that have no result, id and name: they get one before anything else is said.
    pub(super) owed: Vec<(String, String)>,
}

impl Actor {
    /// Where a run with this place begins.
    pub(super) async fn base(&self, place: Place) -> Result<Base, Error> {
        let (message_id, role) = match place {
            Place::Root => return Ok(Base::default()),
            Place::Tip => {
                let at = self.hot.session.tip;
                return Ok(Base { at, again: None, owed: self.owed(at).await? });
            }
            Place::Regenerate { message_id } => (message_id, Role::User),
            Place::Edit { message_id } => (message_id, Role::Assistant),
        };
        let (point, placed, _) = self.message_at(message_id).await?;
        let message = placed.message;
        match (message.role, role) {
            (Role::Assistant, Role::User) => Err(Error::NotUserMessage(message_id)),
            (Role::User, Role::Assistant) => Err(Error::NotAssistantMessage(message_id)),
            (Role::User, Role::User) => Ok(Base { at: Some(point), again: Some(message), owed: vec![] }),
            (Role::Assistant, Role::Assistant) => {
                Ok(Base { at: Some(point), again: None, owed: message.tool_calls() })
            }
        }
    }

    /// Tool calls without a result at the tip. A run of this actor leaves none; a fork or an import may stand anywhere.
    async fn owed(&self, tip: Option<Point>) -> Result<Vec<(String, String)>, Error> {
        let Some(tip) = tip.filter(|tip| self.answered != Some(*tip)) else {
            return Ok(vec![]);
        };
        let last = self.shared.store.path(tip, None, 1).await?;
        Ok(last.last().map(|placed| placed.message.tool_calls()).unwrap_or_default())
    }

    /// A message that this session sees and that was not rolled back.
    async fn message_at(&self, id: MessageId) -> Result<(Point, PlacedMessage, Option<Line>), Error> {
        let found = self.shared.store.message_get(self.fence.session, id).await?;
        let (placed, line) = found.ok_or_else(|| Error::not_found("message", id))?;
        if line.is_some_and(|line| line.abandoned) {
            return Err(Error::Abandoned(id));
        }
        // A prompt that waits its turn has no place yet.
        let point = placed.point.ok_or_else(|| Error::not_found("message", id))?;
        Ok((point, placed, line))
    }

    /// How the path turns to where a run writes; none if that is where the path ends.
    pub(super) async fn turn_to(&mut self, pen: Option<Point>) -> Result<Option<Turn>, StoreError> {
        let Some(pen) = pen else { return Ok(None) };
        let is_root = self.hot.lines.get(&pen.line).is_some_and(|line| line.parent.is_none());
        let stays = self.hot.session.tip.is_some_and(|tip| tip.line == pen.line);
        if is_root || stays {
            return Ok(None);
        }
        // The place of the next message: the run's line may be empty still.
        self.turn(pen).await.map(Some)
    }

    /// How the path turns if it is to end at `to`.
    async fn turn(&mut self, to: Point) -> Result<Turn, StoreError> {
        let from = self.hot.session.tip;
        self.known.trim();
        let mut many = STRANDS;
        loop {
            let Unknown(line) = match self.known.turn(from, to) {
                Ok(turn) => return Ok(turn),
                Err(unknown) => unknown,
            };
            // Twice as many each time: a long way up is a few questions.
            many *= 2;
            self.known.learn(self.shared.store.strands(self.fence.session, line, many).await?);
        }
    }

    /// Moves the active path to the leaf that the cursors lead to from a message, or to none.
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
        let (mut leaf, mut line, mut turn) = (None, None, None);
        if let Some(to) = to {
            let (point, ..) = self.message_at(to).await?;
            let found = store.leaf(session, self.known.far(point)).await?;
            let (placed, own) = found.ok_or_else(|| Error::Corrupt(format!("{to} leads nowhere")))?;
            let end = placed.point.unwrap_or(point);
            leaf = Some((end, placed.message.id));
            line = own;
            if leaf.map(|(_, message)| message) != self.hot.session.tip_message {
                turn = Some(self.turn(end).await?);
            }
        }
        let (draft, _) = self.draft(false);
        let mut draft = draft.with_turn(turn);
        if let Err(refusal) = draft.navigate(leaf, line) {
            self.give_up();
            return Err(refusal.into());
        }
        self.commit(draft).await?;
        Ok(self.hot.session.clone())
    }

    /// Makes a session that goes on from a message of this one: it sees the path to it, and nothing that comes later.
    ///
    /// While this waits for the fork to be stored, this session is not deleted under it.
    pub(super) async fn fork(&mut self, fork: Forking) -> Result<Result<Session, StoreError>, Error> {
        let (point, placed, _) = self.message_at(fork.message).await?;
        // What a run is writing, or will go on writing, may yet be rolled back.
        let live = self.active.iter().map(|active| &active.run).chain(&self.queue).chain(&self.hot.merged);
        if let Some(run) = { live }.find(|run| placed.message.run == Some(run.id)) {
            return Err(Error::Busy { status: run.state.status() });
        }
        let now = self.shared.clock.now();
        let source = &self.hot.session;
        let titled = fork.title.is_some();
        let session = Session {
            id: fork.id,
            key: fork.key,
            title: fork.title.or_else(|| source.title.clone()),
            title_source: if titled { Some(TitleSource::Manual) } else { source.title_source },
            external_ref: None,
            legacy_alias: None,
            status: SessionStatus::Open,
            org: fork.org,
            visibility: Visibility::Private,
            pinned: false,
            tip: Some(point),
            tip_message: Some(fork.message),
            base: Some(point),
            forked_from: Some(Origin { session: source.id, message: fork.message }),
            version: 1,
            created_at: now,
            updated_at: now,
            last_activity_at: now,
            ..source.clone()
        };
        let state = match source.forked_from {
            Some(_) => self.seen_by_fork(&session, point).await?,
            None => vec![],
        };
        self.shared.birth(session).await?;
        let begins = Begins { state, adopted: None };
        self.shared.call(fork.id, |reply| Command::Create(fork.request, begins, reply)).await
    }

    /// State that a fork of this fork is to see and would not find by itself: on the lines of others it would see what
    /// their owner has set since this session was made, and not what this one has.
    async fn seen_by_fork(&self, fork: &Session, point: Point) -> Result<Vec<StateRow>, Error> {
        let at = |session| StateAt::Session { session, at: Some(point) };
        let keys = |entries: Vec<StateEntry>| -> BTreeMap<String, StateEntry> {
            entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect()
        };
        let store = &self.shared.store;
        let here = keys(store.state_page(&at(self.fence.session), None, usize::MAX).await?);
        let there = keys(store.state_page(&at(fork.id), None, usize::MAX).await?);
        let place = StatePlace::Session { at: Some(point), aside: false };
        // Of two at the same place the higher version holds.
        let above = |key: &str| there.get(key).map_or(0, |entry| entry.version + 1);
        let row = |entry: &StateEntry, value| StateRow {
            place,
            key: entry.key.clone(),
            version: entry.version.max(above(&entry.key)),
            value,
            at: entry.updated_at,
        };
        let missing = here.values().filter(|entry| there.get(&entry.key) != Some(entry));
        let foreign = there.values().filter(|entry| !here.contains_key(&entry.key));
        let missing = missing.map(|entry| row(entry, Some(entry.value.clone())));
        Ok(missing.chain(foreign.map(|entry| row(entry, None))).collect())
    }
}
