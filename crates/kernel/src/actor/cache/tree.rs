//! A cache of the session's tree: the lines that the actor has read, and the cursors on them.
//!
//! Only the actor changes its session's lines and cursors, so the cache stays correct while the actor applies its own
//! commits to it. A walk over cached lines does not ask the store.

use std::collections::HashMap;

use mainspring_core::tree::diverging_ranges;
use mainspring_core::{Line, LineId, Point, Range};

use crate::store::{Row, SessionLine};

/// Maximum number of cached lines. A larger cache is cleared before the next walk.
const MAX_CACHED_LINES: usize = 8_192;

/// A change from one path to another.
#[derive(Debug, Default)]
pub(crate) struct PathChange {
    /// The ranges of the new path that are not on the old one, root first.
    pub(crate) ranges: Vec<Range>,
    /// The lines of the ranges that are the session's own.
    pub(crate) lines: Vec<Line>,
    /// The session's cursors within the ranges: the line to follow from a point, where that is not the point's own
    /// line.
    pub(crate) cursors: Vec<(Point, LineId)>,
}

/// A line that is not cached and must be read.
#[derive(Debug)]
pub(crate) struct NotCached(pub(crate) LineId);

#[derive(Debug, Default)]
pub(crate) struct TreeCache {
    lines: HashMap<LineId, SessionLine>,
    /// The last tip that is known to have no tool call without a result.
    answered_tip: Option<Point>,
}

impl TreeCache {
    /// Records that no tool call of the path to `tip` lacks a result.
    pub(crate) fn set_answered(&mut self, tip: Point) {
        self.answered_tip = Some(tip);
    }

    /// True if `tip` is known to have no tool call without a result.
    pub(crate) fn is_answered(&self, tip: Point) -> bool {
        self.answered_tip == Some(tip)
    }

    /// Clears the lines if there are many. Must not be called during a walk: the walk would have to start again.
    pub(crate) fn trim(&mut self) {
        if self.lines.len() > MAX_CACHED_LINES {
            self.lines.clear();
        }
    }

    pub(crate) fn insert(&mut self, lines: Vec<SessionLine>) {
        self.lines.extend(lines.into_iter().map(|cached| (cached.line.id, cached)));
    }

    /// Applies the rows of a commit of this session.
    pub(crate) fn apply_rows(&mut self, rows: &[Row]) {
        for row in rows {
            match row {
                Row::Line(line) => {
                    if let Some(cached) = self.lines.get_mut(&line.id) {
                        cached.line = *line;
                    }
                }
                Row::Cursor(at, to) => {
                    let Some(cached) = self.lines.get_mut(&at.line) else { continue };
                    match to {
                        Some(to) => drop(cached.cursors.insert(at.pos, *to)),
                        None => drop(cached.cursors.remove(&at.pos)),
                    }
                }
                _ => {}
            }
        }
    }

    /// Follows the cursors from `at` as far as the lines are cached. From there, the cursors lead to the same leaf as
    /// from `at`.
    pub(crate) fn follow_cursors(&self, at: Point) -> Point {
        let mut at = at;
        // Every cursor leads deeper, so the loop ends whatever was stored.
        loop {
            let Some(cached) = self.lines.get(&at.line).filter(|cached| cached.own) else { return at };
            if !(cached.line.start()..cached.line.end).contains(&at.pos) {
                return at;
            }
            let mut next = Point { pos: cached.line.end - 1, ..at };
            for (pos, to) in cached.cursors.range(at.pos..cached.line.end) {
                let here = Point { pos: *pos, ..at };
                // Only the store knows whether the cursor leads anywhere.
                let Some(line) = self.lines.get(to).map(|cached| cached.line) else { return here };
                if line.parent == Some(here) && !line.abandoned && line.end > line.start() {
                    next = Point { line: line.id, pos: line.start() };
                    break;
                }
            }
            if next.line == at.line {
                return next;
            }
            at = next;
        }
    }

    /// Computes the change from the path that ends at `from` to the path that ends at `to`.
    pub(crate) fn path_change(&self, from: Option<Point>, to: Point) -> Result<PathChange, NotCached> {
        let cached_line = |id: LineId| self.lines.get(&id).ok_or(NotCached(id));
        let ranges = diverging_ranges(from, to, |id| Ok(cached_line(id)?.line.parent))?;
        let mut change = PathChange { ranges, ..PathChange::default() };
        for range in &change.ranges {
            let cached = cached_line(range.line)?;
            let cursors = cached.cursors.range(range.from..=range.to);
            change.cursors.extend(cursors.map(|(pos, to)| (Point { line: range.line, pos: *pos }, *to)));
            change.lines.extend(cached.own.then_some(cached.line));
        }
        Ok(change)
    }
}
