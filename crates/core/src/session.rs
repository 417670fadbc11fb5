//! Sessions: durable identities that runs belong to.
//!
//! ```text
//! open ◀──▶ archived        open | archived ──delete──▶ deleted
//! ```
//!
//! Invariants: a session's id, owner and org never change; a same-value set changes nothing; a session with a live
//! run is not deleted; one without an org is private.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::names;
use crate::{Body, MessageId, Point, Refusal, RunOptions, SessionChange, SessionId, Time, Visibility};

/// A durable conversation or work identity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// Its id.
    #[serde(rename = "sessionId")]
    pub id: SessionId,
    /// Whose it is.
    #[serde(rename = "ownerId")]
    pub owner: String,
    /// The org of the key it was made with.
    #[serde(rename = "orgId", skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// Who may read it besides its owner.
    pub visibility: Visibility,
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
    /// The model its runs use unless they name another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The instructions its runs get unless they bring their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// What its runs tell the model's provider unless they say otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub model_options: Option<Map<String, Value>>,
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
    /// Kept at hand by its owner.
    #[serde(default)]
    pub pinned: bool,
    /// Who gave it its title; none until somebody has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title_source: Option<TitleSource>,
    /// What it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<Origin>,
    /// The last message that it sees of the lines of others.
    #[serde(skip)]
    pub base: Option<Point>,
}

/// What a session was forked from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Origin {
    /// The session.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// The last message that the two have in common.
    #[serde(rename = "messageId")]
    pub message: MessageId,
}

/// Who gave a session its title.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TitleSource {
    /// A person. Nobody else changes it.
    #[default]
    Manual,
    /// The agent.
    Agent,
    /// The kernel, from the first text.
    Heuristic,
}
names!(TitleSource { Manual => "manual", Agent => "agent", Heuristic => "heuristic" });

/// A title made of `text`: at most 50 characters of it, at the end of a word; none if it says nothing.
pub fn title_of(text: &str) -> Option<String> {
    const MOST: usize = 50;
    let text: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let Some((cut, next)) = line.char_indices().nth(MOST) else {
        return Some(line).filter(|line| !line.is_empty());
    };
    let fits = &line[..cut];
    let end = if next == ' ' { cut } else { fits.rfind(' ').unwrap_or(cut) };
    Some(fits[..end].to_owned())
}

impl Session {
    /// What its runs use unless they say otherwise.
    pub fn run_defaults(&self) -> RunOptions {
        RunOptions {
            system_prompt: self.system_prompt.clone(),
            model_profile: self.model_profile.clone(),
            model: self.model.clone(),
            cwd: self.cwd.clone(),
            model_options: self.model_options.clone(),
            ..RunOptions::default()
        }
    }
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
    /// Change one of its settings. Its status and its tip are none: they have commands of their own.
    Set(SessionChange),
    /// Give it this title, unless a person has given it one.
    Title {
        /// The title.
        title: String,
        /// Who proposes it.
        source: TitleSource,
    },
    /// Let its active path end with another message, or with none.
    Navigate {
        /// The message.
        tip: Option<MessageId>,
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
        (_, Command::Set(change)) => set(session, change),
        (_, Command::Title { title, source }) => match session.title_source {
            Some(TitleSource::Manual) => Ok(vec![]),
            Some(_) if source == TitleSource::Heuristic => Ok(vec![]),
            _ => set(session, SessionChange::Title { title: Some(title), source }),
        },
        (_, Command::Navigate { tip }) if tip == session.tip_message => Ok(vec![]),
        (_, Command::Navigate { tip }) => updated(SessionChange::Tip { tip }),
        (SessionStatus::Archived, Command::Archive) | (SessionStatus::Open, Command::Reopen) => Ok(vec![]),
        (_, Command::Archive) => updated(SessionChange::Status { status: SessionStatus::Archived }),
        (_, Command::Reopen) => updated(SessionChange::Status { status: SessionStatus::Open }),
    }
}

fn set(session: &Session, change: SessionChange) -> Result<Vec<Body>, Refusal> {
    match &change {
        SessionChange::Visibility { visibility: Visibility::Org } if session.org.is_none() => {
            return Err(Refusal::NoOrg);
        }
        SessionChange::Status { .. } | SessionChange::Tip { .. } | SessionChange::Compacted { .. } => {
            return Err(Refusal::WrongState { what: "session", status: session.status.name() });
        }
        _ => {}
    }
    let mut after = session.clone();
    change_apply(&mut after, &change);
    Ok(if after == *session { vec![] } else { vec![Body::SessionUpdated { change }] })
}

fn change_apply(session: &mut Session, change: &SessionChange) {
    match change {
        SessionChange::Title { title, source } => {
            session.title.clone_from(title);
            session.title_source = Some(*source);
        }
        SessionChange::Pinned { pinned } => session.pinned = *pinned,
        SessionChange::Visibility { visibility } => session.visibility = *visibility,
        SessionChange::Model { model } => session.model.clone_from(model),
        SessionChange::ModelProfile { model_profile } => session.model_profile.clone_from(model_profile),
        SessionChange::SystemPrompt { system_prompt } => session.system_prompt.clone_from(system_prompt),
        SessionChange::ModelOptions { model_options } => session.model_options.clone_from(model_options),
        SessionChange::Cwd { cwd } => session.cwd.clone_from(cwd),
        SessionChange::Metadata { metadata } => session.metadata.clone_from(metadata),
        SessionChange::Status { status } => session.status = *status,
        SessionChange::Tip { tip } => session.tip_message = *tip,
        // What is told of the past changes nothing of the session itself.
        SessionChange::Compacted { .. } => {}
    }
}

/// Changes `session` as `body` says. Cannot fail: what was decided happens.
pub fn apply(session: &mut Session, body: &Body, at: Time) {
    match body {
        Body::SessionUpdated { change: SessionChange::Compacted { .. } } => return,
        Body::SessionUpdated { change } => change_apply(session, change),
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
            org: None,
            visibility: Visibility::Private,
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
            model: None,
            system_prompt: None,
            model_options: None,
            metadata: Value::Null,
            tip: None,
            tip_message: None,
            version: 1,
            created_at: Time(0),
            updated_at: Time(0),
            last_activity_at: Time(0),
            pinned: false,
            title_source: Some(TitleSource::Manual),
            forked_from: None,
            base: None,
        }
    }

    fn rename(title: Option<&str>) -> Command {
        Command::Set(SessionChange::Title { title: title.map(str::to_owned), source: TitleSource::Manual })
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
        let still = [
            rename(Some("tea")),
            Command::Reopen,
            Command::Set(SessionChange::Pinned { pinned: false }),
            Command::Navigate { tip: None },
        ];
        for command in still {
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
    fn a_title_is_made_of_the_first_words() {
        let word = "x".repeat(60);
        for (text, title) in [
            ("  hello\n\tthere ", Some("hello there")),
            (" \n\u{7} ", None),
            ("", None),
            (
                "one two three four five six seven eight nine ten eleven",
                Some("one two three four five six seven eight nine ten"),
            ),
            // The fiftieth character ends a word.
            (
                "aaaaaaaaa bbbbbbbbb ccccccccc ddddddddd eeeeeeeeee f",
                Some("aaaaaaaaa bbbbbbbbb ccccccccc ddddddddd eeeeeeeeee"),
            ),
            (&word, Some(&word[..50])),
        ] {
            assert_eq!(title_of(text).as_deref(), title, "{text:?}");
            assert!(title.is_none_or(|title| title.chars().count() <= 50));
        }
    }

    #[test]
    fn nobody_changes_the_title_that_a_person_gave() {
        let propose = |title: &str, source| Command::Title { title: title.into(), source };
        let mut new = Session { title: None, title_source: None, ..session(SessionStatus::Open) };
        for (command, title) in [
            (propose("first words", TitleSource::Heuristic), "first words"),
            (propose("other words", TitleSource::Heuristic), "first words"),
            (propose("what it is about", TitleSource::Agent), "what it is about"),
            (rename(Some("mine")), "mine"),
            (propose("better", TitleSource::Agent), "mine"),
        ] {
            send(&mut new, command).unwrap();
            assert_eq!(new.title.as_deref(), Some(title));
        }
        send(&mut new, rename(None)).unwrap();
        send(&mut new, propose("better", TitleSource::Agent)).unwrap();
        assert_eq!(new.title, None, "no title is a person's choice too");
    }

    #[test]
    fn every_setting_is_set_once_and_for_the_runs_to_come() {
        let mut session = Session { org: Some("acme".into()), ..session(SessionStatus::Open) };
        let some = |text: &str| Some(text.to_owned());
        let model_options = Some(Map::from_iter([("seed".to_owned(), Value::from(7))]));
        let changes = [
            SessionChange::Pinned { pinned: true },
            SessionChange::Visibility { visibility: Visibility::Org },
            SessionChange::Model { model: some("m1") },
            SessionChange::ModelProfile { model_profile: some("fast") },
            SessionChange::SystemPrompt { system_prompt: some("be kind") },
            SessionChange::ModelOptions { model_options: model_options.clone() },
            SessionChange::Cwd { cwd: some("/home") },
            SessionChange::Metadata { metadata: Value::from(1) },
        ];
        for (version, change) in (2..).zip(changes) {
            assert_eq!(send(&mut session, Command::Set(change.clone())), Ok(vec!["session.updated"]));
            assert_eq!(session.version, version, "{change:?}");
            assert_eq!(send(&mut session, Command::Set(change)), Ok(vec![]));
        }
        assert_eq!((session.visibility, &session.metadata), (Visibility::Org, &Value::from(1)));
        let defaults = RunOptions {
            system_prompt: some("be kind"),
            model_profile: some("fast"),
            model: some("m1"),
            cwd: some("/home"),
            model_options,
            ..RunOptions::default()
        };
        assert_eq!(session.run_defaults(), defaults);
    }

    #[test]
    fn what_is_no_setting_is_not_set_and_what_has_no_org_is_not_shown() {
        let mut session = session(SessionStatus::Open);
        let before = session.clone();
        for (change, code) in [
            (SessionChange::Visibility { visibility: Visibility::Org }, "no_org"),
            (SessionChange::Status { status: SessionStatus::Deleted }, "wrong_state"),
            (SessionChange::Tip { tip: None }, "wrong_state"),
        ] {
            assert_eq!(send(&mut session, Command::Set(change)).unwrap_err().code(), code);
        }
        assert_eq!(session, before);
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
