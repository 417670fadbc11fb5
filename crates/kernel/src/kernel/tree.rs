//! Operations on a session's message tree.

pub use mainspring_api::{MessageView, TreeNode, TreeQuery};
use mainspring_core::limits::check_key;
use mainspring_core::tree::ranges;
use mainspring_core::{Damage, MessageId, Range, Rows, Session, SessionId};
use serde::Serialize;

use super::sessions::{DEFAULT_AGENT, check_title};
use super::{Caller, Kernel, Shared};
use crate::actor::Command;
use crate::error::{CreateError, Error};
use crate::store::{Request, SessionRef, TreeRow, Unique};

/// A request to fork a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForkRequest {
    /// The last message that the two sessions share.
    pub message: MessageId,
    /// The fork's key.
    pub key: Option<String>,
    /// The fork's title; the title of its source if not given.
    pub title: Option<String>,
}

/// A fork as sent to the actor of the source session.
#[derive(Debug)]
pub(crate) struct Forking {
    pub(crate) id: SessionId,
    pub(crate) message: MessageId,
    /// The owner of the fork: the caller.
    pub(crate) owner: String,
    /// The org of the caller.
    pub(crate) org: Option<String>,
    /// The agent definition, if the caller cannot use the one of the source.
    pub(crate) agent_definition: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) title: Option<String>,
    pub(crate) request: Option<Box<Request>>,
}

/// A page of a session's tree.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MessageTree {
    /// Nodes line by line, in the order in which the lines were opened; parents before children.
    pub nodes: Vec<TreeNode>,
    /// The `after` of the next page, if there may be more nodes.
    pub next: Option<MessageId>,
    /// The messages between the nodes that are damaged.
    pub damaged: Vec<Damage>,
}

impl Kernel {
    /// Makes the path through `to` active: it ends at the leaf that the cursors lead to from there. If `to` is none the
    /// path becomes empty, and the next prompt is a new root.
    pub async fn session_navigate(
        &self,
        caller: &Caller,
        by: &SessionRef,
        to: Option<MessageId>,
        version: Option<u64>,
    ) -> Result<Session, Error> {
        let session = self.session_for_change(caller, by).await?;
        let moved = self.shared.call(session.id, |reply| Command::Navigate(to, version, reply)).await?;
        self.shared.marked(caller, moved).await
    }

    /// Makes a session that continues from a message of another one, which the caller may read. The fork is private and
    /// the caller's own. No message is copied, and neither session sees later messages of the other.
    ///
    /// Returns false with the fork if the same request under the same idempotency key has made it before.
    pub async fn session_fork(
        &self,
        caller: &Caller,
        by: &SessionRef,
        fork: ForkRequest,
        idempotency_key: Option<&str>,
    ) -> Result<(Session, bool), Error> {
        let source = self.session_get(caller, by).await?;
        let agent_definition = match caller.owner == source.owner {
            true => self.check_session_change(caller, &source).await.map(|()| None)?,
            false => self.check_foreign_fork(caller, &source).await?,
        };
        fork.key.as_deref().map_or(Ok(()), check_key)?;
        check_title(self, fork.title.as_deref())?;
        let asked = (source.id, &fork);
        let request = idempotency_key.map(|key| self.request_new(caller, "session_fork", key, &asked));
        let request = request.transpose()?;
        loop {
            if let Some(request) = &request
                && let Some(answer) = self.request_replayed(request).await?
            {
                return Ok((self.session_get(caller, &super::session_ref(&answer)?).await?, false));
            }
            let id = self.shared.ids.session();
            let request =
                request.clone().map(|request| Box::new(Request { answer: id.to_string(), ..request }));
            let ForkRequest { message, key, title } = fork.clone();
            let (owner, org) = (caller.owner.clone(), caller.org.clone());
            let agent_definition = agent_definition.clone();
            let forking = Forking { id, message, owner, org, agent_definition, key, title, request };
            let forking = Box::new(forking);
            match self.shared.call(source.id, |reply| Command::Fork(forking, reply)).await {
                Ok(session) => return Ok((session, true)),
                Err(CreateError::Taken(Unique::RequestKey)) => {}
                Err(CreateError::Taken(Unique::SessionName)) => {
                    return Err(Error::AlreadyExists { name: fork.key.unwrap_or_default() });
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Checks that the caller may write and may use the adapter and the defaults of another owner's session.
    /// Returns the agent definition to use if the caller does not have the one of the source.
    async fn check_foreign_fork(&self, caller: &Caller, source: &Session) -> Result<Option<String>, Error> {
        caller.check_writes()?;
        let defaults = source.run_defaults();
        Shared::check_listed_defaults(caller.lists.as_deref(), Some(&source.adapter), &defaults)?;
        let known = self.definition_for(&caller.owner, &source.agent_definition).await?;
        Ok(known.is_none().then(|| DEFAULT_AGENT.to_owned()))
    }

    /// Gets one message of a session, with its parent, children, siblings and cursor.
    pub async fn session_message(
        &self,
        caller: &Caller,
        by: &SessionRef,
        message: MessageId,
    ) -> Result<MessageView, Error> {
        let session = self.session_get(caller, by).await?;
        let (store, limit) = (&self.shared.store, self.shared.options.limits.page);
        let row = store.tree_row(session.id, message).await?;
        let row = row.ok_or_else(|| Error::not_found("message", message))?;
        let (children, more_children) =
            ids(store.children(session.id, Some(row.point), limit + 1).await?, limit);
        let (siblings, more_siblings) = match row.abandoned {
            true => (vec![], false),
            false => ids(store.children(session.id, row.parent_point, limit + 1).await?, limit),
        };
        let node = node(row, &self.active_path(&session).await?);
        Ok(MessageView { node, children, siblings, more: more_children || more_siblings })
    }

    /// Lists a page of a session's tree. Parents come before children, also across pages.
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
        let Rows { items: nodes, damaged } = rows.map(|row| node(row, &path));
        Ok(MessageTree { nodes, next, damaged })
    }

    /// The line ranges of the active path.
    async fn active_path(&self, session: &Session) -> Result<Vec<Range>, Error> {
        let Some(tip) = session.tip else { return Ok(vec![]) };
        let lines = self.shared.store.lines_to_root(session.id, tip.line, usize::MAX).await?;
        // Each line branches off from the next.
        let mut lines = lines.iter();
        let gap = || Error::Corrupt(format!("the path of {} has a gap", session.id));
        ranges(Some(tip), |_| Ok(lines.next().ok_or_else(gap)?.line.parent))
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

/// At most `limit` ids, and whether there are more.
fn ids(mut found: Vec<MessageId>, limit: usize) -> (Vec<MessageId>, bool) {
    let more = found.len() > limit;
    found.truncate(limit);
    (found, more)
}
