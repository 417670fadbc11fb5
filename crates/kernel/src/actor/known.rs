//! What an actor knows of its session's tree: the lines it has walked, and the cursors on them.
//!
//! Nobody else changes a session's lines and cursors, so what was read once stays true while the actor follows its own
//! commits. A walk over lines that are known asks the store nothing, however many it passes.

use std::collections::HashMap;

use mainspring_core::tree::diverging_ranges;
use mainspring_core::{Line, LineId, Point, Range};

use crate::store::{Row, Strand};

/// More lines than this are not kept from one walk to the next.
const KEPT: usize = 8_192;

/// How a path turns.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// What of the new path is not on the old one, root first.
    pub(super) ranges: Vec<Range>,
    /// Those of its lines that are the session's own.
    pub(super) lines: Vec<Line>,
    /// The session's cursors within the ranges: the line to follow from a point, where it is not the point's own.
    pub(super) cursors: Vec<(Point, LineId)>,
}

/// A line that must be asked for.
#[derive(Debug)]
pub(super) struct Unknown(pub(super) LineId);

#[derive(Debug, Default)]
pub(super) struct Known(HashMap<LineId, Strand>);

impl Known {
    /// Forgets everything if that is much. Never in the midst of a walk, which would begin again and again.
    pub(super) fn trim(&mut self) {
        if self.0.len() > KEPT {
            self.0.clear();
        }
    }

    pub(super) fn learn(&mut self, strands: Vec<Strand>) {
        self.0.extend(strands.into_iter().map(|strand| (strand.line.id, strand)));
    }

    /// Takes over what a commit of this session has changed.
    pub(super) fn follow(&mut self, rows: &[Row]) {
        for row in rows {
            match row {
                Row::Line(line) => {
                    if let Some(strand) = self.0.get_mut(&line.id) {
                        strand.line = *line;
                    }
                }
                Row::Cursor(at, to) => {
                    let Some(strand) = self.0.get_mut(&at.line) else { continue };
                    match to {
                        Some(to) => drop(strand.cursors.insert(at.pos, *to)),
                        None => drop(strand.cursors.remove(&at.pos)),
                    }
                }
                _ => {}
            }
        }
    }

    /// How far the cursors lead from `at` over lines that are known: the leaf beneath is the leaf beneath `at`.
    pub(super) fn far(&self, at: Point) -> Point {
        let mut at = at;
        // A turn leads deeper, so this ends whatever was stored.
        loop {
            let Some(strand) = self.0.get(&at.line).filter(|strand| strand.own) else { return at };
            if !(strand.line.start()..strand.line.end).contains(&at.pos) {
                return at;
            }
            let mut next = Point { pos: strand.line.end - 1, ..at };
            for (pos, to) in strand.cursors.range(at.pos..strand.line.end) {
                let here = Point { pos: *pos, ..at };
                // Whether it leads anywhere is for the store to say.
                let Some(turned) = self.0.get(to).map(|turned| turned.line) else { return here };
                if turned.parent == Some(here) && !turned.abandoned && turned.end > turned.start() {
                    next = Point { line: turned.id, pos: turned.start() };
                    break;
                }
            }
            if next.line == at.line {
                return next;
            }
            at = next;
        }
    }

    /// How the path turns if it is to end at `to` and not at `from`.
    pub(super) fn turn(&self, from: Option<Point>, to: Point) -> Result<Turn, Unknown> {
        let known = |id: LineId| self.0.get(&id).ok_or(Unknown(id));
        let mut turn =
            Turn { ranges: diverging_ranges(from, to, |id| Ok(known(id)?.line.parent))?, ..Turn::default() };
        for range in &turn.ranges {
            let strand = known(range.line)?;
            let cursors = strand.cursors.range(range.from..=range.to);
            turn.cursors.extend(cursors.map(|(pos, to)| (Point { line: range.line, pos: *pos }, *to)));
            turn.lines.extend(strand.own.then_some(strand.line));
        }
        Ok(turn)
    }
}
