//! What a session of the original is tied to.
//!
//! Hosts knew one runtime by several names, and the original counted each name's generations for itself. Here it is one
//! adapter: its bindings are counted through in the order of their use, and only the latest of those that were active
//! goes on.

use std::collections::{BTreeMap, BTreeSet};

use mainspring_core::{Binding, BindingId, BindingStatus, Fidelity};
use mainspring_kernel::kernel::instructions_hash;

use super::rows::Fields;
use super::session::{Draft, DraftRun};
use super::{Import, id};

/// A binding, what the original called its adapter, and when it was used last.
struct Read {
    binding: Binding,
    name: String,
    used_at: i64,
}

impl Import<'_> {
    pub(super) fn bindings(&mut self, draft: &mut Draft, rows: &[Fields]) {
        let mut by_adapter: BTreeMap<String, Vec<Read>> = BTreeMap::new();
        for row in rows {
            if let Some(read) = self.binding(draft, row) {
                by_adapter.entry(read.binding.adapter.clone()).or_default().push(read);
            }
        }
        for mut of_one in by_adapter.into_values() {
            self.unite(draft, &mut of_one);
            draft.bindings.extend(of_one.into_iter().map(|read| (read.binding.id, read.binding)));
        }
    }

    fn binding(&mut self, draft: &mut Draft, row: &Fields) -> Option<Read> {
        let named = row.owned("binding_id");
        let generation = row.number("binding_generation").and_then(|no| u32::try_from(no).ok());
        let (Some(binding), Some(generation)) = (id::<BindingId>(&named), generation.filter(|no| *no > 0))
        else {
            self.report.left("bindings", "its id or its generation are not ours", &named);
            return None;
        };
        let fidelity = row.text("resume_fidelity").and_then(Fidelity::from_name).unwrap_or(Fidelity::None);
        let mut status =
            row.text("status").and_then(BindingStatus::from_name).unwrap_or(BindingStatus::Invalid);
        let native = row.text("adapter_native_session_id").filter(|native| !native.is_empty());
        if status == BindingStatus::Active && (fidelity == Fidelity::None || native.is_none()) {
            self.report.changed("bindings", "lived in the original's process: stale", &named);
            status = BindingStatus::Stale;
            draft.lost.push((binding, status, "its process is gone"));
        }
        let created_at = row.time("created_at_ms").unwrap_or(self.options.now);
        let updated_at = row.time("updated_at_ms").unwrap_or(created_at);
        let name = row.owned("adapter_id");
        self.report.took("bindings");
        let bound = Binding {
            id: binding,
            session: draft.session.id,
            adapter: self.adapter(&name),
            generation,
            native: native.map(str::to_owned),
            fidelity,
            status,
            node: self.node,
            last_message: None,
            cwd: row.text("cwd").map(str::to_owned),
            system_prompt_hash: None,
            reconstructed: false,
            created_at,
            updated_at,
        };
        Some(Read { binding: bound, name, used_at: row.number("last_used_at_ms").unwrap_or(updated_at.0) })
    }

    /// Makes those of one adapter what its bindings are here: each with a generation and a native session of its own,
    /// and at most one active.
    fn unite(&mut self, draft: &mut Draft, bindings: &mut [Read]) {
        let names: BTreeSet<&str> = bindings.iter().map(|read| read.name.as_str()).collect();
        if names.len() > 1 {
            bindings.sort_by_key(|read| {
                (read.binding.status == BindingStatus::Active, read.used_at, read.binding.generation)
            });
            for (no, read) in (1..).zip(bindings.iter_mut()) {
                if std::mem::replace(&mut read.binding.generation, no) != no {
                    let how = "another name of the same runtime counted too: counted through";
                    self.report.changed("bindings", how, &read.binding.id.to_string());
                }
            }
        }
        // The latest first: it keeps what two of them lay claim to.
        let mut active = false;
        for Read { binding, .. } in bindings.iter_mut().rev() {
            let was = binding.status;
            let native = binding.native.clone().filter(|_| was != BindingStatus::Closed);
            let taken = native.is_some_and(|native| !self.natives.insert((binding.adapter.clone(), native)));
            let (status, why) = match was {
                _ if taken => (BindingStatus::Closed, "another binding stands for the same native session"),
                BindingStatus::Active if active => {
                    (BindingStatus::Stale, "a later binding of the same runtime is active")
                }
                _ => (was, ""),
            };
            binding.status = status;
            active |= status == BindingStatus::Active;
            if status != was {
                let how = format!("{why}: {}", status.name());
                self.report.changed("bindings", &how, &binding.id.to_string());
                draft.lost.push((binding.id, status, why));
            }
        }
    }
}

/// Where each binding stands: at the last message of the last run that used it. One that no run has used stands where the
/// session does, as one that is adopted.
pub(super) fn stand(draft: &mut Draft) {
    let tip = draft.messages.last().map(|last| last.id);
    for binding in draft.bindings.values_mut() {
        let used = |run: &&DraftRun| run.attempts.iter().any(|attempt| attempt.binding == Some(binding.id));
        let last = draft.runs.iter().rev().find(used);
        binding.last_message = last.map_or(tip, |last| Some(last.answer.id));
        let said = last.and_then(|last| last.run.options.system_prompt.as_deref());
        binding.system_prompt_hash = instructions_hash(said);
    }
}
