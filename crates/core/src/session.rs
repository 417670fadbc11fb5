//! Sessions: durable conversations that runs belong to.
//!
//! ```text
//! open ◀──▶ archived ◀──▶ closed ◀──▶ open        any of them ──delete──▶ deleted
//! ```
//!
//! A new prompt reopens an archived session. A closed session takes no new work until it is reopened. Runs that were
//! accepted before continue, and everything can be read.
//!
//! Invariants: a session's id, owner and org never change; setting a property to its current value changes nothing; a
//! session with a live run is not deleted; a session without an org is private.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::names;
use crate::{
    Body, ClientTool, MessageId, Point, Refusal, RunOptions, SessionChange, SessionId, Time, Visibility, tool,
};

/// A session: a durable conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// The session's id.
    #[serde(rename = "sessionId")]
    pub id: SessionId,
    /// The owner of the session.
    #[serde(rename = "ownerId")]
    pub owner: String,
    /// The org of the API key the session was created with.
    #[serde(rename = "orgId", skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// The readers of the session besides its owner.
    pub visibility: Visibility,
    /// The caller's own key of the session, unique per owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The status of the session.
    pub status: SessionStatus,
    /// The kind of surface that opened the session.
    pub surface_kind: String,
    /// The object in the caller's system that the session belongs to, unique per owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_ref: Option<ExternalRef>,
    /// A compatibility alias of the session, unique per owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub legacy_alias: Option<LegacyAlias>,
    /// The agent definition of the session.
    pub agent_definition: String,
    /// The default adapter of the session's runs.
    pub adapter: String,
    /// The default working folder of the session's runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The default model profile of the session's runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_profile: Option<String>,
    /// The default model of the session's runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The default system prompt of the session's runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The default model options of the session's runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub model_options: Option<Map<String, Value>>,
    /// The caller's own data.
    pub metadata: Value,
    /// The position of the last message of the active path.
    #[serde(skip)]
    pub tip: Option<Point>,
    /// The last message of the active path.
    #[serde(rename = "tipMessageId", skip_serializing_if = "Option::is_none")]
    pub tip_message: Option<MessageId>,
    /// The version, incremented with each change of a setting, of the status or of the tip.
    pub version: u64,
    /// When the session was created.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When the session last changed.
    #[serde(rename = "updatedAtMs")]
    pub updated_at: Time,
    /// When a run of the session last started or ended, or a message was last added outside a run.
    #[serde(rename = "lastActivityAtMs")]
    pub last_activity_at: Time,
    /// Whether the caller has pinned the session.
    #[serde(default)]
    pub pinned: bool,
    /// When the caller has pinned the session. Absent if it is not pinned.
    #[serde(rename = "pinnedAtMs", default, skip_serializing_if = "Option::is_none")]
    pub pinned_at: Option<Time>,
    /// The source of the title. Absent if the session never had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title_source: Option<TitleSource>,
    /// The session and message this session was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<Origin>,
    /// The position of the last message shared with the session it was forked from.
    #[serde(skip)]
    pub base: Option<Point>,
    /// The rules about what the session's agents may do. The rules of the server, the owner, the adapter and the agent
    /// definition come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// The tools that the caller executes in every run of the session. A tool of the run replaces the session's tool of
    /// the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ClientTool>,
    /// The milliseconds that the session stays in memory while it is idle. Absent: the server's setting.
    #[serde(rename = "idleUnloadMs", default, skip_serializing_if = "Option::is_none")]
    pub idle_unload_ms: Option<u64>,
    /// The labels that a server of a cluster must have to execute the session's runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

/// The session and message that a session was forked from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Origin {
    /// The session.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// The last message that both sessions share.
    #[serde(rename = "messageId")]
    pub message: MessageId,
}

/// The source of a session's title.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TitleSource {
    /// A person. No other source may change it.
    #[default]
    Manual,
    /// The agent.
    Agent,
    /// Derived from the first prompt.
    Heuristic,
}
names!(TitleSource { Manual => "manual", Agent => "agent", Heuristic => "heuristic" });

/// Derives a title from `text`: at most 50 characters. A longer text is cut, if possible at the end of a word, and ends
/// with `…`. `None` if the text is blank.
pub fn title_of(text: &str) -> Option<String> {
    const MAX_CHARS: usize = 50;
    let text: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= MAX_CHARS {
        return Some(line).filter(|line| !line.is_empty());
    }
    // One character is the ellipsis.
    let (cut, next) = line.char_indices().nth(MAX_CHARS - 1)?;
    let fits = &line[..cut];
    let end = if next == ' ' { cut } else { fits.rfind(' ').unwrap_or(cut) };
    let words = fits[..end].trim_end_matches([' ', ',', ';', ':', '.', '-', '–', '—']);
    Some(format!("{}…", if words.is_empty() { fits } else { words }))
}

impl Session {
    /// The default options of the session's runs.
    pub fn run_defaults(&self) -> RunOptions {
        RunOptions {
            system_prompt: self.system_prompt.clone(),
            model_profile: self.model_profile.clone(),
            model: self.model.clone(),
            cwd: self.cwd.clone(),
            model_options: self.model_options.clone(),
            tools: self.tools.clone(),
            ..RunOptions::default()
        }
    }
}

/// A reference to an object in the caller's system, for example a task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExternalRef {
    /// The kind of object.
    pub kind: String,
    /// The id of the object.
    pub id: String,
}

/// A compatibility alias: a key within the scope of a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LegacyAlias {
    /// The scope of the key.
    pub scope: String,
    /// The key.
    pub key: String,
}

/// The status of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    /// In use.
    Open,
    /// Archived: still readable, and a new prompt reopens it.
    Archived,
    /// Closed: still readable, but it takes no new work until it is reopened.
    Closed,
    /// Deleted: invisible to readers; its remaining data is being removed.
    Deleted,
}
names!(SessionStatus { Open => "open", Archived => "archived", Closed => "closed", Deleted => "deleted" });

/// A command to a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Change a setting. Not for the status and the tip, which have their own commands.
    Set(SessionChange),
    /// Propose a title. Has no effect if a person has set the title, or if the source is [`TitleSource::Heuristic`] and
    /// the session already has a title.
    Title {
        /// The title.
        title: String,
        /// The source of the proposal.
        source: TitleSource,
    },
    /// Add a client tool, or replace the one of the same name.
    AddTool(ClientTool),
    /// Remove the client tool of this name. Has no effect if there is no such tool.
    RemoveTool {
        /// The name.
        name: String,
    },
    /// Move the end of the active path to another message, or to none.
    Navigate {
        /// The message.
        tip: Option<MessageId>,
    },
    /// Archive the session.
    Archive,
    /// Close the session.
    Close,
    /// Reopen the session.
    Reopen,
    /// Delete the session.
    Delete {
        /// True while a run of the session has not ended.
        live: bool,
    },
}

/// Decides the effect of `command` on `session`: the events to record (none if nothing changes), or a refusal.
pub fn decide(session: &Session, command: Command) -> Result<Vec<Body>, Refusal> {
    let updated = |change| Ok(vec![Body::SessionUpdated { change }]);
    match (session.status, command) {
        (SessionStatus::Deleted, _) => Err(Refusal::WrongState { what: "session", status: "deleted" }),
        (_, Command::Delete { live: true }) => Err(Refusal::WrongState { what: "session", status: "busy" }),
        (_, Command::Delete { live: false }) => Ok(vec![Body::SessionDeleted {}]),
        (_, Command::Set(change)) => set(session, change),
        (_, Command::AddTool(tool)) => {
            set(session, SessionChange::Tools { tools: tool::replaced(&session.tools, &[tool]) })
        }
        (_, Command::RemoveTool { name }) => {
            let tools = session.tools.iter().filter(|tool| tool.name != name).cloned().collect();
            set(session, SessionChange::Tools { tools })
        }
        (_, Command::Title { title, source }) => match session.title_source {
            Some(TitleSource::Manual) => Ok(vec![]),
            Some(_) if source == TitleSource::Heuristic => Ok(vec![]),
            _ => set(session, SessionChange::Title { title: Some(title), source }),
        },
        (_, Command::Navigate { tip }) if tip == session.tip_message => Ok(vec![]),
        (_, Command::Navigate { tip }) => updated(SessionChange::Tip { tip }),
        (SessionStatus::Archived, Command::Archive)
        | (SessionStatus::Closed, Command::Close)
        | (SessionStatus::Open, Command::Reopen) => Ok(vec![]),
        (_, Command::Archive) => updated(SessionChange::Status { status: SessionStatus::Archived }),
        (_, Command::Close) => updated(SessionChange::Status { status: SessionStatus::Closed }),
        (_, Command::Reopen) => updated(SessionChange::Status { status: SessionStatus::Open }),
    }
}

/// Refuses new work, a prompt or a retry, in a closed session.
pub fn check_takes_work(session: &Session) -> Result<(), Refusal> {
    match session.status {
        SessionStatus::Closed => Err(Refusal::SessionClosed { session: session.id }),
        _ => Ok(()),
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
    apply_change(&mut after, &change);
    Ok(if after == *session { vec![] } else { vec![Body::SessionUpdated { change }] })
}

fn apply_change(session: &mut Session, change: &SessionChange) {
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
        SessionChange::Rules { rules } => session.rules.clone_from(rules),
        SessionChange::AgentDefinition { agent_definition } => {
            session.agent_definition.clone_from(agent_definition);
        }
        SessionChange::Tools { tools } => session.tools.clone_from(tools),
        SessionChange::IdleUnload { idle_unload_ms } => session.idle_unload_ms = *idle_unload_ms,
        SessionChange::Metadata { metadata } => session.metadata.clone_from(metadata),
        SessionChange::Status { status } => session.status = *status,
        SessionChange::Tip { tip } => session.tip_message = *tip,
        // Pruning old events does not change the session itself.
        SessionChange::Compacted { .. } => {}
    }
}

/// Applies an event to `session`. Infallible: the event has already been decided.
pub fn apply(session: &mut Session, body: &Body, at: Time) {
    match body {
        Body::SessionUpdated { change: SessionChange::Compacted { .. } } => return,
        Body::SessionUpdated { change } => apply_change(session, change),
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
        // Another program has appended the message, or a caller has given it as a part of a history.
        Body::MessageCompleted { message, .. } if message.run.is_none() => {
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
            pinned_at: None,
            title_source: Some(TitleSource::Manual),
            forked_from: None,
            base: None,
            rules: vec![],
            tools: vec![],
            idle_unload_ms: None,
            labels: vec![],
        }
    }

    fn tool(name: &str, description: &str) -> ClientTool {
        let input_schema = serde_json::json!({"type": "object"});
        ClientTool {
            name: name.into(),
            description: description.into(),
            input_schema,
            ..ClientTool::default()
        }
    }

    fn rename(title: Option<&str>) -> Command {
        Command::Set(SessionChange::Title { title: title.map(str::to_owned), source: TitleSource::Manual })
    }

    /// Decides and applies `command`, and returns the types of the events.
    fn send(session: &mut Session, command: Command) -> Result<Vec<&'static str>, Refusal> {
        let bodies = decide(session, command)?;
        bodies.iter().for_each(|body| apply(session, body, Time(5)));
        Ok(bodies.iter().map(Body::kind).collect())
    }

    #[test]
    fn setting_the_current_value_changes_nothing() {
        let mut tea = session(SessionStatus::Open);
        let no_changes = [
            rename(Some("tea")),
            Command::Reopen,
            Command::Set(SessionChange::Pinned { pinned: false }),
            Command::Navigate { tip: None },
        ];
        for command in no_changes {
            assert_eq!(send(&mut tea, command), Ok(vec![]));
        }
        let mut archived = session(SessionStatus::Archived);
        assert_eq!(send(&mut archived, Command::Archive), Ok(vec![]));
        assert_eq!((tea, archived), (session(SessionStatus::Open), session(SessionStatus::Archived)));
    }

    #[test]
    fn a_new_title_increments_the_version() {
        let mut session = session(SessionStatus::Archived);
        assert_eq!(send(&mut session, rename(None)), Ok(vec!["session.updated"]));
        assert_eq!((session.title, session.version, session.updated_at), (None, 2, Time(5)));
    }

    #[test]
    fn a_title_is_made_of_the_first_words() {
        let (word, dots) = ("x".repeat(60), ".".repeat(60));
        let (cut_word, cut_dots) = (format!("{}…", &word[..49]), format!("{}…", &dots[..49]));
        for (text, title) in [
            ("  hello\n\tthere ", Some("hello there")),
            (" \n\u{7} ", None),
            ("", None),
            (
                "one two three four five six seven eight nine ten eleven",
                Some("one two three four five six seven eight nine ten…"),
            ),
            // A text of fifty characters fits.
            (
                "aaaaaaaaa bbbbbbbbb ccccccccc ddddddddd eeeeeeeeee",
                Some("aaaaaaaaa bbbbbbbbb ccccccccc ddddddddd eeeeeeeeee"),
            ),
            // The forty-ninth character ends a word.
            (
                "aaaaaaaaa bbbbbbbbb ccccccccc ddddddddd eeeeeeeee f",
                Some("aaaaaaaaa bbbbbbbbb ccccccccc ddddddddd eeeeeeeee…"),
            ),
            (
                "Mend the parser that overflows when it is nested, then the lexer",
                Some("Mend the parser that overflows when it is nested…"),
            ),
            (&word, Some(&cut_word)),
            (&dots, Some(&cut_dots)),
        ] {
            assert_eq!(title_of(text).as_deref(), title, "{text:?}");
            assert!(title.is_none_or(|title| title.chars().count() <= 50));
        }
    }

    #[test]
    fn a_title_set_by_a_person_is_not_replaced() {
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
        assert_eq!(new.title, None, "a person has removed the title");
    }

    #[test]
    fn every_setting_is_recorded_once_and_becomes_a_default_of_runs() {
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
            SessionChange::Rules { rules: vec!["deny fs write *".into()] },
            SessionChange::Metadata { metadata: Value::from(1) },
            SessionChange::AgentDefinition { agent_definition: "coder@2".into() },
            SessionChange::Tools { tools: vec![tool("ring", "")] },
            SessionChange::IdleUnload { idle_unload_ms: Some(5) },
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
            tools: vec![tool("ring", "")],
            ..RunOptions::default()
        };
        assert_eq!(session.run_defaults(), defaults);
    }

    #[test]
    fn adding_a_tool_replaces_the_tool_of_the_same_name() {
        let mut session = session(SessionStatus::Open);
        let add = |name: &str, description: &str| Command::AddTool(tool(name, description));
        let remove = |name: &str| Command::RemoveTool { name: name.into() };
        for (command, events, tools) in [
            (add("ring", "rings"), 1, "ring:rings"),
            (add("ring", "rings"), 0, "ring:rings"),
            (add("knock", ""), 1, "ring:rings knock:"),
            (add("ring", "louder"), 1, "ring:louder knock:"),
            (remove("bell"), 0, "ring:louder knock:"),
            (remove("ring"), 1, "knock:"),
        ] {
            assert_eq!(send(&mut session, command).map(|events| events.len()), Ok(events), "{tools}");
            let listed = session.tools.iter().map(|tool| format!("{}:{}", tool.name, tool.description));
            assert_eq!(listed.collect::<Vec<_>>().join(" "), tools);
        }
    }

    #[test]
    fn the_status_and_the_tip_are_not_settings_and_sharing_needs_an_org() {
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
    fn an_archived_session_reopens() {
        let mut session = session(SessionStatus::Open);
        assert_eq!(send(&mut session, Command::Archive), Ok(vec!["session.updated"]));
        assert_eq!(session.status, SessionStatus::Archived);
        assert_eq!(send(&mut session, Command::Reopen), Ok(vec!["session.updated"]));
        assert_eq!((session.status, session.version), (SessionStatus::Open, 3));
    }

    #[test]
    fn a_closed_session_takes_no_work_until_it_is_reopened() {
        let mut session = session(SessionStatus::Open);
        assert_eq!(send(&mut session, Command::Close), Ok(vec!["session.updated"]));
        assert_eq!(send(&mut session, Command::Close), Ok(vec![]));
        let refusal = check_takes_work(&session).unwrap_err();
        assert_eq!(refusal.code(), "session_closed");
        assert!(refusal.to_string().contains(&session.id.to_string()), "{refusal}");
        assert_eq!(send(&mut session, rename(Some("coffee"))), Ok(vec!["session.updated"]));
        for command in [Command::Reopen, Command::Close, Command::Archive] {
            assert_eq!(send(&mut session, command), Ok(vec!["session.updated"]));
            assert_eq!(check_takes_work(&session).is_ok(), session.status != SessionStatus::Closed);
        }
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
    fn a_run_increments_the_version_only_if_it_moves_the_tip() {
        let (mut session, tip) = (session(SessionStatus::Open), MessageId::from_random([2; 16]));
        apply(&mut session, &Body::RunSucceeded { close: Close::default() }, Time(1));
        assert_eq!((session.version, session.tip_message, session.last_activity_at), (1, None, Time(1)));
        let close = Close { tip: Some(tip), ..Close::default() };
        apply(&mut session, &Body::RunSucceeded { close }, Time(2));
        assert_eq!((session.version, session.tip_message, session.last_activity_at), (2, Some(tip), Time(2)));
    }
}
