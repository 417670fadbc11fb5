//! The state of a session on all branches, for an export.

use std::collections::HashMap;

use mainspring_core::tree::ranges;
use mainspring_core::{LineId, SessionId};
use mainspring_kernel::store::{StoreError, TreeState};

use super::data::StateRecord;
use super::tables::Tables;

impl Tables {
    pub(super) fn line_orders(&self, session: SessionId) -> Result<Vec<(LineId, i64)>, StoreError> {
        let own = self.lines.iter().filter(|(by, line)| *by == session && line.end > line.start());
        let own = own.map(|(_, line)| line.id);
        let base = self.sessions.get(&session).and_then(|session| session.base);
        let inherited = ranges(base, |id| self.parent_of(id))?;
        let all = own.chain(inherited.iter().map(|range| range.line));
        Ok(all.filter_map(|line| Some((line, self.line_origins.get(&line)?.seq))).collect())
    }

    /// Lists the rows by key and version. `store/src/sqlite/read/tree_state.rs` explains which inherited rows are
    /// listed.
    pub(super) fn tree_state(
        &self,
        session: SessionId,
        after: Option<&(String, u64)>,
        limit: usize,
    ) -> Result<Vec<TreeState>, StoreError> {
        let created = self.seq_before_creation(session).unwrap_or(i64::MAX);
        let base = self.sessions.get(&session).and_then(|session| session.base);
        // The inherited lines from the base to the root. Each has its last visible position, the session that
        // opened it, and the opener and `seq` of the next line towards `session` (for the base: `session` and
        // its creation).
        let mut inherited = HashMap::new();
        let (mut beneath, mut root) = ((session, created), None);
        for range in ranges(base, |id| self.parent_of(id))?.iter().rev() {
            let Some(origin) = self.line_origins.get(&range.line) else { continue };
            inherited.insert(range.line, (range.to, origin.session, beneath));
            (beneath, root) = ((origin.session, origin.seq), Some(origin.session));
        }
        let order = |record: &StateRecord| -> Option<i64> {
            let Some(at) = record.at else {
                let is_of_root = Some(record.session) == root && record.seq <= created;
                return (record.session == session || is_of_root).then_some(record.seq);
            };
            let opener = self.line_origins.get(&at.line)?.session;
            if record.session == session {
                // State that a session writes on an inherited line applies to all of its own lines.
                return Some(if opener == session { record.seq } else { record.seq.min(created) });
            }
            let (last, owner, (child, child_opened)) = inherited.get(&at.line)?;
            let is_visible = at.pos <= *last && record.seq <= created;
            match is_visible {
                true if record.session == *owner => Some(record.seq),
                true if record.session == *child => Some(record.seq.min(*child_opened)),
                _ => None,
            }
        };
        let mut found: Vec<(bool, TreeState)> = vec![];
        for record in &self.session_states {
            let message = record.at.map(|at| self.message_at(at).map(|placed| placed.message.id));
            let (Some(order), false) = (order(record), message == Some(None)) else { continue };
            let state = TreeState {
                key: record.key.clone(),
                version: record.version,
                value: record.value.clone(),
                at: record.updated_at,
                message: message.flatten(),
                aside: record.aside,
                order,
            };
            found.push((record.session != session, state));
        }
        found.retain(|(_, state)| {
            after.is_none_or(|(key, version)| (&state.key, state.version) > (key, *version))
        });
        found.sort_by(|(a_inherited, a), (b_inherited, b)| {
            (&a.key, a.version, a_inherited).cmp(&(&b.key, b.version, b_inherited))
        });
        found.dedup_by(|(_, later), (_, first)| (&later.key, later.version) == (&first.key, first.version));
        Ok(found.into_iter().map(|(_, state)| state).take(limit).collect())
    }
}
