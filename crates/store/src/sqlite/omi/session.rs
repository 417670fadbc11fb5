//! Converts one session of the original into rows of this store.
//!
//! Each run becomes two messages on one line of the tree: its input, and its final text or error. A run that had not
//! ended becomes orphaned, as the original's next start would have decided. A binding without a process becomes stale.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::limits::check_text;
use mainspring_core::{
    Artifact, Attempt, AttemptId, Binding, BindingId, BindingStatus, ExternalRef, LegacyAlias, Line, Message,
    MessageId, Point, Run, Session, SessionId, SessionStatus, TitleSource, Visibility,
};
use mainspring_kernel::store::{NativeClaim, NativeOwner, NewId, Row};
use serde_json::{Map, Value};

use super::rows::{Fields, SessionRows};
use super::{Import, OmiError, bindings, id};

/// The only agent definition of the original, and its replacement here.
const GENERALIST: (&str, &str) = ("omi.generalist@1", "mainspring.generalist@1");

/// The row that gives the native session of an imported binding to the owner of its session.
fn native_owner(session: &Session, binding: &Binding) -> Option<Row> {
    let (adapter, native) = (binding.adapter.clone(), binding.native.clone()?);
    let (owner, claim) = (session.owner.clone(), NativeClaim::Opened);
    Some(Row::NativeOwner(Box::new(NativeOwner { adapter, native, owner, claim })))
}

/// A session under construction.
pub(super) struct Draft {
    pub(super) session: Session,
    pub(super) runs: Vec<DraftRun>,
    pub(super) bindings: HashMap<BindingId, Binding>,
    /// Bindings that the import ended, each with its new status and the reason.
    pub(super) ended_bindings: Vec<(BindingId, BindingStatus, &'static str)>,
    pub(super) artifacts: HashMap<String, Artifact>,
    pub(super) messages: Vec<Arc<Message>>,
}

/// A run, its attempts and its two messages.
pub(super) struct DraftRun {
    pub(super) run: Run,
    pub(super) attempts: Vec<Attempt>,
    pub(super) prompt: Arc<Message>,
    /// The message before the prompt.
    pub(super) parent: Option<MessageId>,
    pub(super) answer: Arc<Message>,
    /// Attempts that the original did not end.
    pub(super) unfinished: Vec<AttemptId>,
}

impl Import<'_> {
    pub(super) fn import_session(&mut self, rows: &SessionRows) -> Result<(), OmiError> {
        let Some(session) = self.convert_session(&rows.session) else { return Ok(()) };
        let mut draft = Draft {
            session,
            runs: vec![],
            bindings: HashMap::new(),
            ended_bindings: vec![],
            artifacts: HashMap::new(),
            messages: vec![],
        };
        let line = self.options.ids.line();
        self.import_bindings(&mut draft, rows);
        for row in &rows.runs {
            self.import_run(&mut draft, row, rows, line);
        }
        bindings::place_bindings(&mut draft);
        let mut written = vec![];
        if !draft.messages.is_empty() {
            let end = u32::try_from(draft.messages.len()).unwrap_or(u32::MAX);
            written.push(Row::Line(Line { end, ..Line::open(line, None) }));
            draft.session.tip = Some(Point { line, pos: end - 1 });
            draft.session.tip_message = draft.messages.last().map(|last| last.id);
        }
        for (pos, message) in (0..).zip(&draft.messages) {
            written.push(Row::Message(message.clone(), Some(Point { line, pos })));
        }
        self.report.messages += draft.messages.len() as u64;
        self.import_artifacts(&mut draft, &rows.artifacts);
        written.extend(draft.artifacts.values().map(|artifact| Row::Artifact(Box::new(artifact.clone()))));
        written.extend(draft.bindings.values().map(|binding| Row::Binding(Box::new(binding.clone()))));
        written.extend(draft.bindings.values().filter_map(|binding| native_owner(&draft.session, binding)));
        written.extend(self.convert_grants(&draft, &rows.grants));
        written.push(Row::NewId(NewId::Session(draft.session.id)));
        written.push(Row::Session(Arc::new(draft.session.clone())));
        let id = draft.session.id;
        self.commit(id, vec![], written, None)?;
        *self.report.owners.entry(draft.session.owner.clone()).or_default() += 1;
        *self.report.adapters.entry(draft.session.adapter.clone()).or_default() += 1;
        self.report.imported("sessions");
        self.import_events(&draft, &rows.events)
    }

    fn convert_session(&mut self, row: &Fields) -> Option<Session> {
        let original_id = row.text_or_empty("session_id");
        let Some(session) = id::<SessionId>(&original_id) else {
            self.report.skipped("sessions", "its id is not ses_ and 32 hexadecimal digits", &original_id);
            return None;
        };
        let owner = row.text_or_empty("owner_id");
        if let Err(error) = check_text("its owner", &owner) {
            self.report.skipped("sessions", &error.to_string(), &original_id);
            return None;
        }
        let limits = self.options.limits;
        let mut changed = |how: &str| self.report.changed("sessions", how, &original_id);
        let status = row.text("status").and_then(SessionStatus::from_name);
        let status = status.filter(|status| *status != SessionStatus::Deleted).unwrap_or_else(|| {
            changed("unknown status: open");
            SessionStatus::Open
        });
        let external =
            valid_pair(row, "external_ref_kind", "external_ref_id", "external reference", &mut changed);
        let alias = valid_pair(row, "legacy_client_scope", "legacy_session_key", "alias", &mut changed);
        let metadata = object(row, "metadata_json", limits.metadata_bytes).unwrap_or_else(|| {
            changed(UNUSABLE_METADATA);
            Map::new()
        });
        let title = title(row, limits.title_chars, &mut changed);
        let definition = match valid_name(row, "agent_definition_id") {
            Some(name) if name != GENERALIST.0 => name,
            _ => GENERALIST.1.to_owned(),
        };
        let created_at = row.time("created_at_ms").unwrap_or(self.options.now);
        let updated_at = row.time("updated_at_ms").unwrap_or(created_at);
        Some(Session {
            id: session,
            owner,
            org: None,
            visibility: Visibility::Private,
            key: None,
            title_source: title.as_ref().map(|_| TitleSource::Manual),
            title,
            status,
            surface_kind: valid_name(row, "surface_kind").unwrap_or_else(|| "unknown".into()),
            external_ref: external.map(|(kind, id)| ExternalRef { kind, id }),
            legacy_alias: alias.map(|(scope, key)| LegacyAlias { scope, key }),
            agent_definition: definition,
            adapter: self.adapter_name(row.text("default_adapter_id").unwrap_or("acp")),
            cwd: row.text("default_cwd").filter(|cwd| !cwd.is_empty()).map(str::to_owned),
            model_profile: valid_name(row, "model_profile"),
            model: None,
            system_prompt: None,
            model_options: None,
            metadata: metadata.into(),
            tip: None,
            tip_message: None,
            version: 1,
            created_at,
            updated_at,
            last_activity_at: row.time("last_activity_at_ms").unwrap_or(updated_at),
            pinned: false,
            pinned_at: None,
            forked_from: None,
            base: None,
            rules: vec![],
            tools: vec![],
            idle_unload_ms: None,
            labels: vec![],
        })
    }

    /// Converts the name of an adapter of the original to its name in this store.
    pub(super) fn adapter_name(&self, original: &str) -> String {
        self.options.adapters.get(original).cloned().unwrap_or_else(|| original.to_owned())
    }
}

/// Returns the text of `column` if it is a valid name.
pub(super) fn valid_name(row: &Fields, column: &str) -> Option<String> {
    row.text(column).filter(|name| check_text("a name", name).is_ok()).map(str::to_owned)
}

/// Returns the texts of two columns if both are present. Reports the pair as removed if one is not a valid name.
fn valid_pair(
    row: &Fields,
    first: &str,
    second: &str,
    what: &str,
    changed: &mut impl FnMut(&str),
) -> Option<(String, String)> {
    row.text(first).zip(row.text(second))?;
    let pair = valid_name(row, first).zip(valid_name(row, second));
    if pair.is_none() {
        changed(&format!("{what} that is not a valid name: removed"));
    }
    pair
}

/// The report of metadata that [`object`] cannot read.
pub(super) const UNUSABLE_METADATA: &str = "metadata that is too large or not an object: removed";

/// Returns the object in a JSON column, an empty one if the column has no text. `None` if the text is too large or not an
/// object.
pub(super) fn object(row: &Fields, column: &str, max_bytes: usize) -> Option<Map<String, Value>> {
    let Some(text) = row.text(column) else { return Some(Map::new()) };
    serde_json::from_str(text).ok().filter(|_| text.len() <= max_bytes)
}

fn title(row: &Fields, max_chars: usize, changed: &mut impl FnMut(&str)) -> Option<String> {
    let original = row.text("title").filter(|title| !title.trim().is_empty())?;
    let without_control = original.chars().map(|char| if char.is_control() { ' ' } else { char });
    let title: String = without_control.take(max_chars).collect();
    if title != original {
        changed("title too long or with control characters: shortened or cleaned");
    }
    Some(title)
}
