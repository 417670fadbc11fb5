//! The state of a session on all branches and its history, in a file.
//!
//! An entry is visible from a line unless it was written after the line was opened. A store orders both by the numbers
//! of its events, which have no meaning in another store. A file holds the order as counts of openings: a line has the
//! number of lines that were opened before it, an entry the number of lines that were opened before the entry. An
//! import stores the counts as orders below every event, so that later writes come after all of them.

use std::collections::HashMap;

use mainspring_core::{Cursor, LineId, MessageId, Point, StateChange, StateWriter};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::check::{check_counter, check_time};
use super::export::{Export, NextPart};
use super::import::{LineError, refuse};
use super::partial::{PartialSession, Section};
use super::{FileLine, StateLine};
use crate::error::Error;
use crate::store::{Row, StateAt, StateChangeRow, StateHistoryOf, StatePlace, StateRow};

/// The order of an imported line that was opened before all others.
const FIRST_ORDER: i64 = -(1 << 40);
/// The largest count of openings in a file.
const MAX_OPENINGS: u64 = 1 << 32;

/// Deserializes a value that is present, so that null becomes `Some(Null)`.
pub(super) fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// The openings of the lines of a tree, in their order.
pub(super) struct Openings {
    of_lines: HashMap<LineId, i64>,
    /// The orders, each once, lowest first.
    orders: Vec<i64>,
}

impl Openings {
    fn new(lines: Vec<(LineId, i64)>) -> Self {
        let mut orders: Vec<i64> = lines.iter().map(|(_, order)| *order).collect();
        orders.sort_unstable();
        orders.dedup();
        Self { of_lines: lines.into_iter().collect(), orders }
    }

    /// Counts the openings before an order.
    fn before(&self, order: i64) -> u64 {
        self.orders.partition_point(|opened| *opened < order) as u64
    }

    /// Counts the openings before that of a line.
    pub(super) fn of_line(&self, line: LineId) -> u64 {
        self.of_lines.get(&line).map_or(0, |order| self.before(*order))
    }
}

impl Export {
    /// Reads the openings of the lines, if the session has state or a history of it.
    pub(super) async fn read_openings(&self) -> Result<Option<Openings>, Error> {
        let (store, session) = (&self.shared.store, self.session.id);
        let entries = store.tree_state(session, None, 1).await?.intact()?;
        let changes = store.state_changes(&StateHistoryOf::Session(session), None, 1).await?.intact()?;
        if entries.is_empty() && changes.is_empty() {
            return Ok(None);
        }
        Ok(Some(Openings::new(store.line_orders(session).await?)))
    }

    pub(super) async fn state(
        &self,
        after: Option<(String, u64)>,
    ) -> Result<(Vec<FileLine>, NextPart), Error> {
        let Some(openings) = &self.openings else { return Ok((vec![], NextPart::Events(Cursor::START))) };
        let entries = self.shared.store.tree_state(self.session.id, after, self.page()).await?.intact()?;
        let next = match entries.last() {
            Some(last) => NextPart::State(Some((last.key.clone(), last.version))),
            None => NextPart::StateChanges(None),
        };
        let line = |entry: crate::store::TreeState| {
            FileLine::StateAt(Box::new(StateLine {
                key: entry.key,
                version: entry.version,
                value: entry.value,
                updated_at: entry.at,
                message_id: entry.message,
                aside: entry.aside,
                seq: openings.before(entry.order),
            }))
        };
        Ok((entries.into_iter().map(line).collect(), next))
    }

    pub(super) async fn state_changes(
        &self,
        after: Option<(String, u64)>,
    ) -> Result<(Vec<FileLine>, NextPart), Error> {
        let of = StateHistoryOf::Session(self.session.id);
        let changes = self.shared.store.state_changes(&of, after, self.page()).await?.intact()?;
        let next = match changes.last() {
            Some(last) => NextPart::StateChanges(Some((last.key.clone(), last.version))),
            None => NextPart::Events(Cursor::START),
        };
        Ok((changes.into_iter().map(|change| FileLine::StateChange { change }).collect(), next))
    }
}

/// The order that stands for a count of openings.
pub(super) fn order_of(what: &str, count: u64) -> Result<i64, LineError> {
    match i64::try_from(count) {
        Ok(number) if count <= MAX_OPENINGS => Ok(FIRST_ORDER + number),
        _ => refuse(format!("{what} is {count}, above {MAX_OPENINGS}")),
    }
}

impl PartialSession {
    pub(super) async fn state_at(&mut self, line: StateLine, bytes: usize) -> Result<(), LineError> {
        self.enter(Section::State)?;
        self.facts.add_state_at(&line.key, line.version, line.value.as_ref())?;
        let StateLine { key, version, value, updated_at, message_id, aside, seq } = line;
        let checked = self.shared.check_state_entry(&key, value.as_ref());
        checked.map_err(|error| LineError::Line(error.to_string()))?;
        check_version(&key, version)?;
        check_time(&format!("updatedAtMs of the state {key:?}"), updated_at)?;
        let order = order_of(&format!("seq of the state {key:?}"), seq)?;
        let at = match message_id {
            Some(message) => Some(self.state_point(message).await?),
            None => None,
        };
        let place = StatePlace::Session { at, aside };
        let row = StateRow { place, key, version, value, at: updated_at };
        self.rows.push(Row::StateAtOrder(Box::new(row), order));
        self.line_done(bytes).await
    }

    /// The point of a message. Many entries are at the same few messages.
    async fn state_point(&mut self, message: MessageId) -> Result<Point, LineError> {
        if let Some(known) = self.state_points.get(&message) {
            return Ok(*known);
        }
        let point = self.point_of(message).await?;
        self.state_points.insert(message, point);
        Ok(point)
    }

    pub(super) async fn state_change(&mut self, change: StateChange, bytes: usize) -> Result<(), LineError> {
        self.enter(Section::StateChanges)?;
        if let StateWriter::Agent { run_id, attempt_id, .. } = &change.by
            && !(self.facts.has_run(*run_id) && self.facts.has_attempt(*attempt_id))
        {
            return refuse(format!("{attempt_id} of {run_id} does not stand above in this file"));
        }
        self.push_state_change(StateHistoryOf::Session(self.session.id), change)?;
        self.line_done(bytes).await
    }

    /// Adds a change to the history of its key.
    pub(super) fn push_state_change(
        &mut self,
        of: StateHistoryOf,
        change: StateChange,
    ) -> Result<(), LineError> {
        let checked = self.shared.check_state_entry(&change.key, change.value.as_ref());
        checked.map_err(|error| LineError::Line(error.to_string()))?;
        check_version(&change.key, change.version)?;
        check_time(&format!("changedAtMs of the state {:?}", change.key), change.changed_at)?;
        self.rows.push(Row::StateChange(Box::new(StateChangeRow { of, change })));
        Ok(())
    }

    /// Refuses more keys at the tip than a session may have.
    pub(super) async fn check_keys(&self, tip: Option<Point>) -> Result<(), LineError> {
        let limit = self.shared.options.limits.state_keys;
        let at = StateAt::Session { session: self.session.id, at: tip };
        match self.shared.store.state_count(&at).await? > limit {
            true => Err(Error::TooMany { what: "keys", limit }.into()),
            false => Ok(()),
        }
    }
}

/// Refuses a version that no change of a key can have made.
pub(super) fn check_version(key: &str, version: u64) -> Result<(), LineError> {
    if version == 0 {
        return refuse(format!("the first version of {key:?} is 1"));
    }
    check_counter(&format!("version of the state {key:?}"), version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_openings_keep_the_order_of_lines_and_entries() {
        let lines = [(1, 10), (2, 40), (3, 40), (4, 25)].map(|(line, order)| (LineId(line), order));
        let openings = Openings::new(lines.to_vec());
        let counts: Vec<u64> = lines.iter().map(|(line, _)| openings.of_line(*line)).collect();
        assert_eq!(counts, [0, 2, 2, 1]);
        for entry in 5..50 {
            for (line, opened) in lines {
                let (seq, count) = (openings.before(entry), openings.of_line(line));
                assert_eq!(entry <= opened, seq <= count, "an entry at {entry}, a line at {opened}");
            }
        }
    }
}
