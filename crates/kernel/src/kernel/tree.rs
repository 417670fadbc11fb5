//! Verbs on a session's tree.

pub use mainspring_api::{MessageView, TreeNode, TreeQuery};
use mainspring_core::limits::check_key;
use mainspring_core::tree::ranges;
use mainspring_core::{MessageId, Range, Session, SessionId};
use serde::Serialize;

use super::sessions::check_title;
use super::{Caller, Kernel};
use crate::actor::Command;
use crate::error::Error;
use crate::store::{PlacedMessage, Request, SessionRef, StoreError, TreeRow, Unique};

/// What a fork is like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForkRequest {
    /// The last message that the two sessions have in common.
    pub message: MessageId,
    /// The fork's key.
    pub key: Option<String>,
    /// The fork's title; that of its source if not given.
    pub title: Option<String>,
}

/// What an actor needs of a fork.
#[derive(Debug)]
pub(crate) struct Forking {
    pub(crate) id: SessionId,
    pub(crate) message: MessageId,
    /// The org of whoever forks.
    pub(crate) org: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) title: Option<String>,
    pub(crate) request: Option<Box<Request>>,
}

/// A part of a session's tree with its messages.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MessageTree {
    /// Its nodes: line by line in the order of opening, parents before children.
    pub nodes: Vec<TreeNode>,
    /// The last of them, if there may be more after it.
    pub next: Option<MessageId>,
}

impl Kernel {
    /// Makes the path through `to` the active one: it ends at the leaf that the cursors lead to from there. With none
    /// the path is empty, and the next prompt is a new root.
    pub async fn session_navigate(
        &self,
        caller: &Caller,
        by: &SessionRef,
        to: Option<MessageId>,
        version: Option<u64>,
    ) -> Result<Session, Error> {
        let session = self.session_changed(caller, by).await?;
        self.shared.call(session.id, |reply| Command::Navigate(to, version, reply)).await
    }

    /// Makes a session that goes on from a message of another. It copies nothing, and neither sees what is written in
    /// the other afterwards. Says whether it was made: the same request under the same key gives the same fork.
    pub async fn session_fork(
        &self,
        caller: &Caller,
        by: &SessionRef,
        fork: ForkRequest,
        idempotency_key: Option<&str>,
    ) -> Result<(Session, bool), Error> {
        let source = self.session_changed(caller, by).await?;
        fork.key.as_deref().map_or(Ok(()), check_key)?;
        check_title(self, fork.title.as_deref())?;
        let asked = (source.id, &fork);
        let request = idempotency_key.map(|key| self.request_of(caller, "session_fork", key, &asked));
        let request = request.transpose()?;
        loop {
            if let Some(request) = &request
                && let Some(answer) = self.request_known(request).await?
            {
                return Ok((self.session_get(caller, &super::session_ref(&answer)?).await?, false));
            }
            let id = self.shared.ids.session();
            let request =
                request.clone().map(|request| Box::new(Request { answer: id.to_string(), ..request }));
            let ForkRequest { message, key, title } = fork.clone();
            let forking = Box::new(Forking { id, message, org: caller.org.clone(), key, title, request });
            match self.shared.call(source.id, |reply| Command::Fork(forking, reply)).await? {
                Ok(session) => return Ok((session, true)),
                Err(StoreError::Conflict(Unique::RequestKey)) => {}
                Err(StoreError::Conflict(Unique::SessionName)) => {
                    return Err(Error::AlreadyExists { name: fork.key.unwrap_or_default() });
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One message of a session, with its parent, children, siblings and cursor.
    pub async fn session_message(
        &self,
        caller: &Caller,
        by: &SessionRef,
        message: MessageId,
    ) -> Result<MessageView, Error> {
        let session = self.session_get(caller, by).await?;
        let (store, most) = (&self.shared.store, self.shared.options.limits.page);
        let row = store.tree_row(session.id, message).await?;
        let row = row.ok_or_else(|| Error::not_found("message", message))?;
        let (children, more_children) =
            ids(store.children(session.id, Some(row.point), most + 1).await?, most);
        let (siblings, more_siblings) = match row.abandoned {
            true => (vec![], false),
            false => ids(store.children(session.id, row.above, most + 1).await?, most),
        };
        let node = node(row, &self.active_path(&session).await?);
        Ok(MessageView { node, children, siblings, more: more_children || more_siblings })
    }

    /// A part of a session's tree. Parents come before children, also from one part to the next.
    pub async fn session_tree(
        &self,
        caller: &Caller,
        by: &SessionRef,
        query: TreeQuery,
    ) -> Result<MessageTree, Error> {
        let session = self.session_get(caller, by).await?;
        let limit = self.page(query.limit)?;
        let after = match query.after {
            None => None,
            Some(after) => {
                let found = self.shared.store.message_get(session.id, after).await?;
                let point = found.and_then(|(placed, _)| placed.point);
                Some(point.ok_or_else(|| Error::not_found("message", after))?)
            }
        };
        let rows = self.shared.store.tree_page(session.id, after, limit).await?;
        let next = rows.last().filter(|_| rows.len() == limit).map(|row| row.message.id);
        let path = self.active_path(&session).await?;
        let nodes = rows.into_iter().map(|row| node(row, &path));
        Ok(MessageTree { nodes: nodes.collect(), next })
    }

    /// The stretches of the active path.
    async fn active_path(&self, session: &Session) -> Result<Vec<Range>, Error> {
        let Some(tip) = session.tip else { return Ok(vec![]) };
        let strands = self.shared.store.strands(session.id, tip.line, usize::MAX).await?;
        // Each hangs beneath the next.
        let mut strands = strands.iter();
        let lost = || Error::Corrupt(format!("the path of {} has a gap", session.id));
        ranges(Some(tip), |_| Ok(strands.next().ok_or_else(lost)?.line.parent))
    }
}

fn node(row: TreeRow, path: &[Range]) -> TreeNode {
    TreeNode {
        active: path.iter().any(|range| range.contains(row.point)),
        message: row.message,
        parent_id: row.parent,
        depth: row.point.pos,
        abandoned: row.abandoned,
        cursor: row.cursor,
    }
}

/// At most `most` ids, and whether there are more.
fn ids(placed: Vec<PlacedMessage>, most: usize) -> (Vec<MessageId>, bool) {
    let more = placed.len() > most;
    (placed.into_iter().take(most).map(|placed| placed.message.id).collect(), more)
}
