//! One session of the original, as rows of ours.
//!
//! Each run becomes two messages on one line of the tree: its input, and its final text or what went wrong. What had not
//! ended is orphaned, as the original's next start would have said, and a binding without a process is stale.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::attempt::Cancellation;
use mainspring_core::limits::{check_media_type, check_text};
use mainspring_core::{
    Artifact, ArtifactRole, Attempt, AttemptId, Binding, BindingId, BindingStatus, Block, CancelReason, Cost,
    Effect, ExternalRef, Failure, Grant, GrantSource, LegacyAlias, Line, Message, MessageId, MessageStatus,
    Mode, Place, Point, RequestName, Role, Run, RunId, RunOptions, RunState, RunStatus, Session, SessionId,
    SessionStatus, TitleSource, Usage, Visibility,
};
use mainspring_kernel::store::{NewId, Row};
use serde_json::{Value, json};

use super::rows::{Fields, SessionRows};
use super::{Import, OmiError, bindings, id};

/// The original's only agent, and the one that stands for it here.
const GENERALIST: (&str, &str) = ("omi.generalist@1", "mainspring.generalist@1");

/// A session that is being put together.
pub(super) struct Draft {
    pub(super) session: Session,
    pub(super) runs: Vec<DraftRun>,
    pub(super) bindings: HashMap<BindingId, Binding>,
    /// Bindings that ended with the import, as what, and why.
    pub(super) lost: Vec<(BindingId, BindingStatus, &'static str)>,
    pub(super) artifacts: HashMap<String, Artifact>,
    pub(super) messages: Vec<Arc<Message>>,
}

/// A run, with what it said.
pub(super) struct DraftRun {
    pub(super) run: Run,
    pub(super) attempts: Vec<Attempt>,
    pub(super) prompt: Arc<Message>,
    pub(super) parent: Option<MessageId>,
    pub(super) answer: Arc<Message>,
    /// It had not ended: attempts of it that had not.
    pub(super) unfinished: Vec<AttemptId>,
}

impl Import<'_> {
    pub(super) fn session(&mut self, rows: &SessionRows) -> Result<(), OmiError> {
        let Some(session) = self.session_of(&rows.session) else { return Ok(()) };
        let mut draft = Draft {
            session,
            runs: vec![],
            bindings: HashMap::new(),
            lost: vec![],
            artifacts: HashMap::new(),
            messages: vec![],
        };
        let line = self.options.ids.line();
        self.bindings(&mut draft, &rows.bindings);
        for row in &rows.runs {
            self.run(&mut draft, row, rows, line);
        }
        bindings::stand(&mut draft);
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
        self.artifacts(&mut draft, &rows.artifacts);
        written.extend(draft.artifacts.values().map(|artifact| Row::Artifact(Box::new(artifact.clone()))));
        written.extend(draft.bindings.values().map(|binding| Row::Binding(Box::new(binding.clone()))));
        written.extend(self.grants(&draft, &rows.grants));
        written.push(Row::NewId(NewId::Session(draft.session.id)));
        written.push(Row::Session(Box::new(draft.session.clone())));
        let id = draft.session.id;
        self.commit(id, vec![], written, None)?;
        *self.report.owners.entry(draft.session.owner.clone()).or_default() += 1;
        *self.report.adapters.entry(draft.session.adapter.clone()).or_default() += 1;
        self.report.took("sessions");
        self.events(&draft, &rows.events)
    }

    fn session_of(&mut self, row: &Fields) -> Option<Session> {
        let named = row.owned("session_id");
        let Some(session) = id::<SessionId>(&named) else {
            self.report.left("sessions", "its id is not ses_ and 32 hexadecimal digits", &named);
            return None;
        };
        let owner = row.owned("owner_id");
        if let Err(bad) = check_text("its owner", &owner) {
            self.report.left("sessions", &bad.to_string(), &named);
            return None;
        }
        let mut changed = |how: &str| self.report.changed("sessions", how, &named);
        let status = row.text("status").and_then(SessionStatus::from_name);
        let status = status.filter(|status| *status != SessionStatus::Deleted).unwrap_or_else(|| {
            changed("status not known: open");
            SessionStatus::Open
        });
        let name = |column: &str| row.text(column).map(str::to_owned);
        let fit = |text: &String| check_text("a name", text).is_ok();
        let pair = |kind: &str, id: &str| name(kind).zip(name(id));
        let external = pair("external_ref_kind", "external_ref_id");
        let external = external.filter(|(kind, id)| {
            let fits = fit(kind) && fit(id);
            if !fits {
                changed("external reference that is no name: none");
            }
            fits
        });
        let alias = pair("legacy_client_scope", "legacy_session_key").filter(|(scope, key)| {
            let fits = fit(scope) && fit(key);
            if !fits {
                changed("alias that is no name: none");
            }
            fits
        });
        let definition = match name("agent_definition_id").filter(fit) {
            Some(known) if known != GENERALIST.0 => known,
            _ => GENERALIST.1.to_owned(),
        };
        let metadata = row.text("metadata_json").map(serde_json::from_str::<Value>);
        let metadata = match metadata {
            Some(Ok(metadata @ Value::Object(_)))
                if metadata.to_string().len() <= self.options.limits.metadata_bytes =>
            {
                metadata
            }
            None => json!({}),
            Some(_) => {
                changed("metadata that is no object of our size: none");
                json!({})
            }
        };
        let title = name("title").filter(|title| !title.trim().is_empty()).map(|title| {
            let most = self.options.limits.title_chars;
            let clean: String =
                title.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
            let cut: String = clean.chars().take(most).collect();
            if cut != title {
                changed("title too long or with control characters: cut or cleaned");
            }
            cut
        });
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
            surface_kind: name("surface_kind").filter(fit).unwrap_or_else(|| "unknown".into()),
            external_ref: external.map(|(kind, id)| ExternalRef { kind, id }),
            legacy_alias: alias.map(|(scope, key)| LegacyAlias { scope, key }),
            agent_definition: definition,
            adapter: self.adapter(row.text("default_adapter_id").unwrap_or("acp")),
            cwd: name("default_cwd").filter(|cwd| !cwd.is_empty()),
            model_profile: name("model_profile").filter(fit),
            model: None,
            system_prompt: None,
            model_options: None,
            metadata,
            tip: None,
            tip_message: None,
            version: 1,
            created_at,
            updated_at,
            last_activity_at: row.time("last_activity_at_ms").unwrap_or(updated_at),
            pinned: false,
            forked_from: None,
            base: None,
        })
    }

    /// What an adapter of the original is called here.
    pub(super) fn adapter(&self, name: &str) -> String {
        self.options.adapters.get(name).cloned().unwrap_or_else(|| name.to_owned())
    }

    fn run(&mut self, draft: &mut Draft, row: &Fields, rows: &SessionRows, line: mainspring_core::LineId) {
        let named = row.owned("run_id");
        let Some(run) = id::<RunId>(&named) else {
            return self.report.left("runs", "its id is not run_ and 32 hexadecimal digits", &named);
        };
        let own = |attempt: &&Fields| attempt.text("run_id") == Some(&named);
        let own = rows.attempts.iter().filter(own).collect::<Vec<_>>();
        let (state, ended) = self.state_of(row, &named);
        let usage = Usage {
            input_tokens: row.amount("input_tokens"),
            output_tokens: row.amount("output_tokens"),
            cache_read_tokens: row.amount("cache_read_tokens"),
            cache_write_tokens: row.amount("cache_write_tokens"),
            cost: Cost::from(row.real("cost_usd")),
        };
        let adapter = own.last().and_then(|last| last.text("adapter_id"));
        let adapter = adapter.map_or_else(|| draft.session.adapter.clone(), |adapter| self.adapter(adapter));
        let mut unfinished = vec![];
        let mut attempts: Vec<Attempt> =
            own.iter().filter_map(|row| self.attempt(draft, run, row, &mut unfinished)).collect();
        // The original kept what the last attempt used, and nothing of those before it.
        if let Some(last) = attempts.last_mut() {
            last.usage = usage;
        }
        let created_at = row.time("created_at_ms").unwrap_or(self.options.now);
        let updated_at = row.time("updated_at_ms").unwrap_or(created_at);
        let completed_at = match ended {
            true => row.time("completed_at_ms").unwrap_or(updated_at),
            false => self.options.now,
        };
        let (prompt, system_prompt) = self.input_of(row, &named);
        let message = |role, status, content, at| {
            let (id, session) = (self.options.ids.message(), draft.session.id);
            Arc::new(Message {
                id,
                session,
                run: Some(run),
                role,
                status,
                content,
                usage: None,
                created_at: at,
            })
        };
        let text = |text: &str| (!text.is_empty()).then(|| Block::text(text));
        let parent = draft.messages.last().map(|last| last.id);
        let prompt =
            message(Role::User, MessageStatus::Completed, text(&prompt).into_iter().collect(), created_at);
        let status = match state.status() {
            RunStatus::Succeeded => MessageStatus::Completed,
            RunStatus::Cancelled => MessageStatus::Cancelled,
            _ => MessageStatus::Failed,
        };
        let error = state.error().cloned();
        let error = error.map(|Failure { code, message }| Block::Error { code, message });
        let content = text(row.text("final_text").unwrap_or_default()).into_iter().chain(error).collect();
        let answer = message(Role::Assistant, status, content, completed_at);
        draft.messages.extend([prompt.clone(), answer.clone()]);
        let name = |column: &str| {
            row.text(column).filter(|name| check_text("a name", name).is_ok()).map(str::to_owned)
        };
        let (client_id, request_id) = (name("client_id"), name("request_id"));
        let run = Run {
            id: run,
            session: draft.session.id,
            owner: draft.session.owner.clone(),
            no: u32::try_from(draft.runs.len() + 1).unwrap_or(u32::MAX),
            parent: row.text("parent_run_id").and_then(id),
            request: RequestName { client_id, request_id, idempotency_key: name("idempotency_key") },
            fingerprint: Run::ASKED_UNKNOWN,
            adapter,
            mode: row.text("mode").and_then(Mode::from_name).unwrap_or_default(),
            prompt: Some(prompt.id),
            options: RunOptions {
                system_prompt,
                model_profile: name("model_profile"),
                model: name("requested_model_id"),
                cwd: row.text("cwd").filter(|cwd| !cwd.is_empty()).map(str::to_owned),
                ..RunOptions::default()
            },
            place: Place::Tip,
            steers: false,
            merged_into: None,
            pen: Some(Point { line, pos: u32::try_from(draft.messages.len()).unwrap_or(u32::MAX) }),
            state,
            attempts: attempts.last().map_or(0, |last| last.no),
            last_attempt: attempts.last().map(|last| last.id),
            final_message: Some(answer.id),
            usage,
            budget: None,
            created_at,
            started_at: row.time("started_at_ms"),
            completed_at: Some(completed_at),
            updated_at: if ended { updated_at } else { self.options.now },
        };
        self.report.took("runs");
        self.runs.insert(run.id, (run.session, run.state.status()));
        draft.runs.push(DraftRun { run, attempts, prompt, parent, answer, unfinished });
    }

    /// Where a run ended, and whether the original knew that.
    fn state_of(&mut self, row: &Fields, named: &str) -> (RunState, bool) {
        let (code, message) = (row.text("error_code"), row.text("error_message"));
        let error = || {
            Failure::new(
                code.unwrap_or("unknown"),
                message.unwrap_or("the original kept no word of what went wrong"),
            )
        };
        let status = row.text("status").unwrap_or_default();
        let known = RunStatus::from_name(status);
        match known {
            Some(RunStatus::Succeeded) => (RunState::Succeeded {}, true),
            Some(RunStatus::Failed) => (RunState::Failed { error: error() }, true),
            Some(RunStatus::Cancelled) => (RunState::Cancelled { reason: CancelReason::Requested }, true),
            Some(RunStatus::TimedOut) => (RunState::TimedOut { error: error() }, true),
            Some(RunStatus::Orphaned) => {
                let error = match (code, message) {
                    (None, None) => executor_lost(),
                    _ => error(),
                };
                (RunState::Orphaned { error }, true)
            }
            _ => {
                let how = match known {
                    Some(_) => "not ended: orphaned",
                    None => "status not known: orphaned",
                };
                self.report.changed("runs", how, named);
                (RunState::Orphaned { error: executor_lost() }, false)
            }
        }
    }

    /// What a run was asked, and its instructions.
    fn input_of(&mut self, row: &Fields, named: &str) -> (String, Option<String>) {
        let raw = row.owned("input_json");
        let input: Option<Value> = serde_json::from_str(&raw).ok();
        let Some(prompt) = input.as_ref().and_then(|input| input["prompt"].as_str()) else {
            self.report.changed("runs", "input of another form: the prompt, as it stood", named);
            return (raw, None);
        };
        let system = input.as_ref().and_then(|input| input["systemPrompt"].as_str());
        (prompt.to_owned(), system.filter(|system| !system.is_empty()).map(str::to_owned))
    }

    fn attempt(
        &mut self,
        draft: &Draft,
        run: RunId,
        row: &Fields,
        unfinished: &mut Vec<AttemptId>,
    ) -> Option<Attempt> {
        let named = row.owned("attempt_id");
        let (attempt, no) =
            (id::<AttemptId>(&named), row.number("attempt_no").and_then(|no| no.try_into().ok()));
        let (Some(attempt), Some(no)) = (attempt, no.filter(|no| *no > 0)) else {
            self.report.left("attempts", "its id or its number are not ours", &named);
            return None;
        };
        let status = row.text("status").and_then(RunStatus::from_name).filter(|status| status.is_ended());
        if status.is_none() {
            self.report.changed("attempts", "not ended: orphaned", &named);
            unfinished.push(attempt);
        }
        let error = match (status, row.text("error_code"), row.text("error_message")) {
            (None, ..) => Some(executor_lost()),
            (_, None, None) => None,
            (_, code, message) => Some(Failure::new(code.unwrap_or("unknown"), message.unwrap_or_default())),
        };
        let binding =
            row.text("binding_id").and_then(id).filter(|binding| draft.bindings.contains_key(binding));
        let created_at = row.time("created_at_ms").unwrap_or(self.options.now);
        let completed_at = match status {
            Some(_) => row.time("completed_at_ms").or(row.time("updated_at_ms")).unwrap_or(created_at),
            None => self.options.now,
        };
        self.report.took("attempts");
        Some(Attempt {
            id: attempt,
            run,
            no,
            status: status.unwrap_or(RunStatus::Orphaned),
            adapter: self.adapter(row.text("adapter_id").unwrap_or(&draft.session.adapter)),
            node: self.node,
            binding,
            resume_from: row.text("resume_from_attempt_id").and_then(id),
            error,
            retryable: row.number("retryable") == Some(1) || status.is_none(),
            usage: Usage::default(),
            cancellation: Cancellation {
                requested_at: row.time("cancellation_requested_at_ms"),
                dispatched_at: row.time("cancellation_dispatched_at_ms"),
                acknowledged_at: row.time("cancellation_acknowledged_at_ms"),
            },
            created_at,
            started_at: row.time("started_at_ms"),
            completed_at: Some(completed_at),
        })
    }

    fn artifacts(&mut self, draft: &mut Draft, rows: &[Fields]) {
        for row in rows {
            let named = row.owned("artifact_id");
            let Some(artifact) = id(&named) else {
                self.report.left("artifacts", "its id is not art_ and 32 hexadecimal digits", &named);
                continue;
            };
            let kept = self.options.kept.get(&artifact);
            if kept.is_none() {
                let how = "bytes not to be had: only the address is kept";
                self.report.changed("artifacts", how, &named);
            }
            if row.text("metadata_json").is_some_and(|metadata| metadata != "{}") {
                self.report.changed("artifacts", "metadata, which artifacts do not have here: none", &named);
            }
            let run = row.text("run_id").and_then(id).filter(|run| self.runs.contains_key(run));
            let name = |column: &str| row.text(column).filter(|name| check_text("a name", name).is_ok());
            let made = Artifact {
                id: artifact,
                session: draft.session.id,
                run,
                attempt: row.text("attempt_id").and_then(id).filter(|_| run.is_some()),
                kind: name("kind").unwrap_or("file").to_owned(),
                role: row.text("role").and_then(ArtifactRole::from_name).unwrap_or(ArtifactRole::Other),
                uri: kept.map_or_else(|| row.owned("uri"), |(hash, _)| format!("blake3:{hash}")),
                name: name("display_name").map(str::to_owned),
                mime_type: row
                    .text("mime_type")
                    .filter(|mime| check_media_type(mime).is_ok())
                    .map(str::to_owned),
                content_hash: kept.map(|(hash, _)| hash.clone()),
                size_bytes: match kept {
                    Some((_, size)) => Some(*size),
                    None => row.number("size_bytes").and_then(|size| size.try_into().ok()),
                },
                created_at: row.time("created_at_ms").unwrap_or(self.options.now),
            };
            self.artifacts.insert(artifact);
            self.report.took("artifacts");
            draft.artifacts.insert(named, made);
        }
    }

    fn grants(&mut self, draft: &Draft, rows: &[Fields]) -> Vec<Row> {
        let mut taken = vec![];
        for row in rows {
            let named = row.owned("grant_id");
            let effect = row.text("effect").and_then(Effect::from_name);
            let source = row.text("source").and_then(GrantSource::from_name);
            let (Some(grant), Some(effect), Some(source)) = (id(&named), effect, source) else {
                self.report.left("grants", "its id, its effect or its source are not ours", &named);
                continue;
            };
            if row.number("revoked_at_ms").is_some() {
                self.report.left("grants", "it was revoked", &named);
                continue;
            }
            // To forget what a grant is limited to would make it wider than it was.
            if row.text("constraints_json").is_some_and(|constraints| constraints != "{}") {
                self.report.left("grants", "it has constraints, which grants do not have here", &named);
                continue;
            }
            let run = row.text("run_id").map(id::<RunId>);
            if run.is_some_and(|run| run.is_none_or(|run| !self.runs.contains_key(&run))) {
                continue;
            }
            self.report.took("grants");
            taken.push(Row::Grant(Box::new(Grant {
                id: grant,
                session: draft.session.id,
                run: run.flatten(),
                capability: row.owned("capability"),
                operation: row.owned("operation"),
                resource_pattern: row.owned("resource_pattern"),
                effect,
                source,
                created_at: row.time("created_at_ms").unwrap_or(self.options.now),
                expires_at: row.time("expires_at_ms"),
            })));
        }
        taken
    }
}

/// What became of the run is not known.
fn executor_lost() -> Failure {
    Failure::new("executor_lost", "the process that executed it has ended")
}
