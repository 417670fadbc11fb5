//! Imports the bindings of one session.
//!
//! Hosts used several names for one runtime, and the original numbered the generations of each name separately. Here
//! all these names are one adapter. Its bindings are renumbered in the order of their last use, and only the latest
//! active binding stays active.

use std::collections::{BTreeMap, BTreeSet};

use mainspring_core::{Binding, BindingId, BindingStatus, Fidelity};
use mainspring_kernel::kernel::instructions_hash;
use serde_json::Value;

use super::rows::{Fields, SessionRows};
use super::session::{Draft, DraftRun, valid_name};
use super::{Import, id};

/// A converted binding with the facts that order the bindings of one adapter.
struct OrderedBinding {
    binding: Binding,
    /// The adapter's name in the original.
    original_adapter: String,
    last_used_at: i64,
}

impl Import<'_> {
    pub(super) fn import_bindings(&mut self, draft: &mut Draft, rows: &SessionRows) {
        let mut by_adapter: BTreeMap<String, Vec<OrderedBinding>> = BTreeMap::new();
        for row in &rows.bindings {
            if let Some(ordered) = self.convert_binding(draft, row) {
                by_adapter.entry(ordered.binding.adapter.clone()).or_default().push(ordered);
            }
        }
        for mut bindings in by_adapter.into_values() {
            self.merge_adapter_names(&mut bindings);
            self.close_duplicates(draft, &mut bindings);
            draft.bindings.extend(bindings.into_iter().map(|ordered| (ordered.binding.id, ordered.binding)));
        }
        self.set_ends(draft, &rows.events);
    }

    fn convert_binding(&mut self, draft: &mut Draft, row: &Fields) -> Option<OrderedBinding> {
        let original_id = row.text_or_empty("binding_id");
        let generation = row.number("binding_generation").and_then(|no| u32::try_from(no).ok());
        let (Some(id), Some(generation)) = (id::<BindingId>(&original_id), generation.filter(|no| *no > 0))
        else {
            self.report.skipped("bindings", "invalid id or generation", &original_id);
            return None;
        };
        let fidelity = row.text("resume_fidelity").and_then(Fidelity::from_name).unwrap_or(Fidelity::None);
        let mut status =
            row.text("status").and_then(BindingStatus::from_name).unwrap_or(BindingStatus::Invalid);
        let native = row.text("adapter_native_session_id").filter(|native| !native.is_empty());
        if status == BindingStatus::Active && (fidelity == Fidelity::None || native.is_none()) {
            self.report.changed("bindings", "lived in the original's process: stale", &original_id);
            status = BindingStatus::Stale;
            draft.ended_bindings.push((id, status, "its process is gone"));
        }
        let created_at = row.time("created_at_ms").unwrap_or(self.options.now);
        let updated_at = row.time("updated_at_ms").unwrap_or(created_at);
        let original_adapter = row.text_or_empty("adapter_id");
        self.report.imported("bindings");
        let binding = Binding {
            id,
            session: draft.session.id,
            adapter: self.adapter_name(&original_adapter),
            generation,
            native: native.map(str::to_owned),
            fidelity,
            status,
            node: self.node,
            // The processes of the original have ended.
            instance: None,
            model: valid_name(row, "model_id"),
            last_message: None,
            cwd: row.text("cwd").map(str::to_owned),
            system_prompt_hash: None,
            reconstructed: false,
            metadata: self.convert_metadata("bindings", row, &original_id),
            created_at,
            updated_at,
            last_used_at: row.time("last_used_at_ms"),
            invalidated_at: row.time("invalidated_at_ms"),
            invalidation_reason: None,
        };
        let last_used_at = binding.last_used_at.unwrap_or(updated_at).0;
        Some(OrderedBinding { binding, original_adapter, last_used_at })
    }

    /// Sets the time and the reason of the end of each binding, from the original's event, or from the import if it
    /// ended the binding.
    fn set_ends(&self, draft: &mut Draft, events: &[Fields]) {
        for event in events {
            if !["binding.stale", "binding.invalidated", "runtime.binding_stale"]
                .contains(&event.text("type").unwrap_or_default())
            {
                continue;
            }
            let payload: Value = event.text("payload_json").and_then(parse).unwrap_or_default();
            let ended = payload["bindingId"].as_str().and_then(id::<BindingId>);
            let ended = ended.and_then(|ended| draft.bindings.get_mut(&ended));
            if let Some(binding) = ended.filter(|binding| binding.status != BindingStatus::Active) {
                binding.invalidated_at = binding.invalidated_at.or(event.time("created_at_ms"));
                binding.invalidation_reason = payload["reason"].as_str().map(str::to_owned);
            }
        }
        for (ended, _, reason) in &draft.ended_bindings {
            if let Some(binding) = draft.bindings.get_mut(ended) {
                binding.invalidated_at = Some(self.options.now);
                binding.invalidation_reason = Some((*reason).to_owned());
            }
        }
    }

    /// Renumbers the generations of an adapter that had several names in the original.
    fn merge_adapter_names(&mut self, bindings: &mut [OrderedBinding]) {
        let names: BTreeSet<&str> = bindings.iter().map(|one| one.original_adapter.as_str()).collect();
        if names.len() < 2 {
            return;
        }
        bindings.sort_by_key(|one| {
            (one.binding.status == BindingStatus::Active, one.last_used_at, one.binding.generation)
        });
        for (generation, OrderedBinding { binding, .. }) in (1..).zip(bindings.iter_mut()) {
            if std::mem::replace(&mut binding.generation, generation) != generation {
                let how = "generation also used under another name of the same runtime: renumbered";
                self.report.changed("bindings", how, &binding.id.to_string());
            }
        }
    }

    /// Ends bindings so that each native session has one binding and the adapter has at most one active binding.
    fn close_duplicates(&mut self, draft: &mut Draft, bindings: &mut [OrderedBinding]) {
        let mut has_active = false;
        // Starts with the latest binding, which wins over earlier ones.
        for OrderedBinding { binding, .. } in bindings.iter_mut().rev() {
            let before = binding.status;
            let native = binding.native.clone().filter(|_| before != BindingStatus::Closed);
            let is_claimed =
                native.is_some_and(|native| !self.natives.insert((binding.adapter.clone(), native)));
            let (status, why) = match before {
                _ if is_claimed => (BindingStatus::Closed, "another binding has the same native session"),
                BindingStatus::Active if has_active => {
                    (BindingStatus::Stale, "a later binding of the same runtime is active")
                }
                _ => (before, ""),
            };
            binding.status = status;
            has_active |= status == BindingStatus::Active;
            if status != before {
                let how = format!("{why}: {}", status.name());
                self.report.changed("bindings", &how, &binding.id.to_string());
                draft.ended_bindings.push((binding.id, status, why));
            }
        }
    }
}

fn parse(json: &str) -> Option<Value> {
    serde_json::from_str(json).ok()
}

/// Places each binding at the answer of the last run that used it. An unused binding is placed at the session's tip, as an
/// adopted one is.
pub(super) fn place_bindings(draft: &mut Draft) {
    let tip = draft.messages.last().map(|last| last.id);
    for binding in draft.bindings.values_mut() {
        let used = |run: &&DraftRun| run.attempts.iter().any(|attempt| attempt.binding == Some(binding.id));
        let last = draft.runs.iter().rev().find(used);
        binding.last_message = last.map_or(tip, |last| Some(last.answer.id));
        let system_prompt = last.and_then(|last| last.run.options.system_prompt.as_deref());
        binding.system_prompt_hash = instructions_hash(system_prompt);
    }
}
