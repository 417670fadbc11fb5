//! Sessions: durable identities that runs belong to.
//!
//! ```text
//! open ◀──▶ archived        open | archived ──delete──▶ deleted
//! ```
//!
//! Invariants: a session's id never changes; a same-value set changes nothing; a session with a live run is not
//! deleted.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::names;
use crate::{Body, MessageId, Point, Refusal, SessionChange, SessionId, Time};

/// A durable conversation or work identity.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// Its id.
    #[serde(rename = "sessionId")]
    pub id: SessionId,
    /// Whose it is.
    #[serde(rename = "ownerId")]
    pub owner: String,
    /// The caller's own name for it, unique per owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Whether it is in use.
    pub status: SessionStatus,
    /// What kind of surface opened it.
    pub surface_kind: String,
    /// What it stands for in the caller's world, unique per owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_ref: Option<ExternalRef>,
    /// The compatibility alias it is found by, unique per owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub legacy_alias: Option<LegacyAlias>,
    /// The agent definition it follows.
    pub agent_definition: String,
    /// The adapter its runs use unless they name another.
    pub adapter: String,
    /// The folder its runs use unless they name another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The model profile its runs use unless they name another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_profile: Option<String>,
    /// The caller's own data.
    pub metadata: Value,
    /// Where the active path ends.
    #[serde(skip)]
    pub tip: Option<Point>,
    /// The message the active path ends with.
    #[serde(rename = "tipMessageId", skip_serializing_if = "Option::is_none")]
    pub tip_message: Option<MessageId>,
    /// Grows with each change of the above.
    pub version: u64,
    /// When it was created.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When it last changed.
    #[serde(rename = "updatedAtMs")]
    pub updated_at: Time,
    /// When a run of it last began or ended.
    #[serde(rename = "lastActivityAtMs")]
    pub last_activity_at: Time,
}

/// What a session stands for in the caller's world, for example a task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExternalRef {
    /// What kind of thing.
    pub kind: String,
    /// Which one.
    pub id: String,
}

/// A compatibility alias: a key within a client's scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LegacyAlias {
    /// Whose keys.
    pub scope: String,
    /// Which key.
    pub key: String,
}

/// Whether a session is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    /// In use.
    Open,
    /// Put away; still readable, and a new prompt reopens it.
    Archived,
    /// Ended by its surface.
    Closed,
    /// Gone for every reader; what is left of it is being removed.
    Deleted,
}
names!(SessionStatus { Open => "open", Archived => "archived", Closed => "closed", Deleted => "deleted" });

/// What may be asked of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Give it this title, or none.
    Rename {
        /// The title.
        title: Option<String>,
    },
    /// Put it away.
    Archive,
    /// Take it out again.
    Reopen,
    /// Delete it.
    Delete {
        /// True while a run of it has not ended.
        live: bool,
    },
}

/// Decides what `command` does to `session`: the events to record (none if nothing would change), or a refusal.
pub fn decide(session: &Session, command: Command) -> Result<Vec<Body>, Refusal> {
    let updated = |change| Ok(vec![Body::SessionUpdated { change }]);
    match (session.status, command) {
        (SessionStatus::Deleted, _) => Err(Refusal::WrongState { what: "session", status: "deleted" }),
        (_, Command::Delete { live: true }) => Err(Refusal::WrongState { what: "session", status: "busy" }),
        (_, Command::Delete { live: false }) => Ok(vec![Body::SessionDeleted {}]),
        (_, Command::Rename { title }) if title == session.title => Ok(vec![]),
        (_, Command::Rename { title }) => updated(SessionChange::Title { title }),
        (SessionStatus::Archived, Command::Archive) | (SessionStatus::Open, Command::Reopen) => Ok(vec![]),
        (_, Command::Archive) => updated(SessionChange::Status { status: SessionStatus::Archived }),
        (_, Command::Reopen) => updated(SessionChange::Status { status: SessionStatus::Open }),
    }
}

/// Changes `session` as `body` says. Cannot fail: what was decided happens.
pub fn apply(session: &mut Session, body: &Body, at: Time) {
    match body {
        Body::SessionUpdated { change: SessionChange::Title { title } } => session.title.clone_from(title),
        Body::SessionUpdated { change: SessionChange::Status { status } } => session.status = *status,
        Body::SessionUpdated { change: SessionChange::Tip { tip } } => session.tip_message = *tip,
        Body::SessionDeleted {} => session.status = SessionStatus::Deleted,
        Body::RunSucceeded { close }
        | Body::RunFailed { close, .. }
        | Body::RunCancelled { close, .. }
        | Body::RunTimedOut { close, .. }
        | Body::RunOrphaned { close, .. } => {
            session.last_activity_at = at;
            match close.tip {
                Some(tip) => session.tip_message = Some(tip),
                None => return,
            }
        }
        Body::RunStarting {} => {
            session.last_activity_at = at;
            return;
        }
        _ => return,
    }
    session.version += 1;
    session.updated_at = at;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Close;

    fn session(status: SessionStatus) -> Session {
        Session {
            id: SessionId::from_random([1; 16]),
            owner: "ann".into(),
            key: None,
            title: Some("tea".into()),
            status,
            surface_kind: "cli".into(),
            external_ref: None,
            legacy_alias: None,
            agent_definition: "generalist".into(),
            adapter: "native".into(),
            cwd: None,
            model_profile: None,
            metadata: Value::Null,
            tip: None,
            tip_message: None,
            version: 1,
            created_at: Time(0),
            updated_at: Time(0),
            last_activity_at: Time(0),
        }
    }

    fn rename(title: Option<&str>) -> Command {
        Command::Rename { title: title.map(str::to_owned) }
    }

    /// Decides and applies, and gives the kinds of the events.
    fn send(session: &mut Session, command: Command) -> Result<Vec<&'static str>, Refusal> {
        let bodies = decide(session, command)?;
        bodies.iter().for_each(|body| apply(session, body, Time(5)));
        Ok(bodies.iter().map(Body::kind).collect())
    }

    #[test]
    fn a_same_value_set_changes_nothing() {
        let mut tea = session(SessionStatus::Open);
        for command in [rename(Some("tea")), Command::Reopen] {
            assert_eq!(send(&mut tea, command), Ok(vec![]));
        }
        let mut archived = session(SessionStatus::Archived);
        assert_eq!(send(&mut archived, Command::Archive), Ok(vec![]));
        assert_eq!((tea, archived), (session(SessionStatus::Open), session(SessionStatus::Archived)));
    }

    #[test]
    fn a_new_title_is_a_new_version() {
        let mut session = session(SessionStatus::Archived);
        assert_eq!(send(&mut session, rename(None)), Ok(vec!["session.updated"]));
        assert_eq!((session.title, session.version, session.updated_at), (None, 2, Time(5)));
    }

    #[test]
    fn what_was_archived_reopens() {
        let mut session = session(SessionStatus::Open);
        assert_eq!(send(&mut session, Command::Archive), Ok(vec!["session.updated"]));
        assert_eq!(session.status, SessionStatus::Archived);
        assert_eq!(send(&mut session, Command::Reopen), Ok(vec!["session.updated"]));
        assert_eq!((session.status, session.version), (SessionStatus::Open, 3));
    }

    #[test]
    fn a_session_with_a_live_run_is_not_deleted() {
        for status in [SessionStatus::Open, SessionStatus::Archived, SessionStatus::Closed] {
            let refusal = decide(&session(status), Command::Delete { live: true }).unwrap_err();
            assert_eq!(refusal.to_string(), "not possible while the session is busy");
        }
    }

    #[test]
    fn a_deleted_session_refuses_everything() {
        let mut session = session(SessionStatus::Archived);
        assert_eq!(send(&mut session, Command::Delete { live: false }), Ok(vec!["session.deleted"]));
        let gone = session.clone();
        let delete = |live| Command::Delete { live };
        for command in [rename(Some("tea")), Command::Archive, Command::Reopen, delete(true), delete(false)] {
            let refusal = send(&mut session, command).unwrap_err();
            assert_eq!(refusal.to_string(), "not possible while the session is deleted");
        }
        assert_eq!(session, gone);
    }

    #[test]
    fn a_run_that_does_not_move_the_tip_is_no_new_version() {
        let (mut session, tip) = (session(SessionStatus::Open), MessageId::from_random([2; 16]));
        apply(&mut session, &Body::RunSucceeded { close: Close::default() }, Time(1));
        assert_eq!((session.version, session.tip_message, session.last_activity_at), (1, None, Time(1)));
        let close = Close { tip: Some(tip), ..Close::default() };
        apply(&mut session, &Body::RunSucceeded { close }, Time(2));
        assert_eq!((session.version, session.tip_message, session.last_activity_at), (2, Some(tip), Time(2)));
    }
}
