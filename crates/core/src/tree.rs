//! The tree of a session's messages, as lines and ranges.
//!
//! A *line* is a sequence of messages without a branch. A message is addressed by its line and its depth in the tree
//! (`pos`, 0 for a root). A branch or a fork opens a line beneath a point of another line. A path from a root to a
//! tip is a list of line ranges with consecutive depths, so it is read by range, and message `n` of a path is at
//! depth `n`.
//!
//! ```text
//! line a   0──1──2──3──4          path to (c, 5):  a 0..=2, b 3..=4, c 5..=5
//! line b         └──3──4──5
//! line c               └──5
//! ```
//!
//! A *cursor* at a point names the line to follow from there when it is not the point's own line. A *fork*
//! sees only one part of other sessions' lines: the path to its base. The rules query a store only for the
//! lines and cursors they traverse, so their cost does not depend on the size of the tree.

use std::collections::BTreeMap;

use crate::LineId;

mod pen;
pub use pen::{above, aside, before, reopened};

/// The position of a message: its line and its depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// The line.
    pub line: LineId,
    /// The depth in the tree: the number of messages above.
    pub pos: u32,
}

/// A sequence of messages without a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// The line's id.
    pub id: LineId,
    /// The point the line starts beneath; `None` if it starts with a root.
    pub parent: Option<Point>,
    /// The depth of its next message.
    pub end: u32,
    /// True when the run that opened the line was rolled back, or when the line holds text of a failed attempt.
    /// Abandoned lines are kept for the record. They are neither followed nor extended until they are [`reopened`].
    pub abandoned: bool,
}

impl Line {
    /// Creates an empty line beneath `parent`.
    pub fn open(id: LineId, parent: Option<Point>) -> Self {
        Self { id, parent, end: start(parent), abandoned: false }
    }

    /// The depth of the first message.
    pub fn start(&self) -> u32 {
        start(self.parent)
    }

    /// The position of the last message; `None` while the line is empty.
    pub fn last(&self) -> Option<Point> {
        (self.end > self.start()).then(|| Point { line: self.id, pos: self.end - 1 })
    }
}

fn start(parent: Option<Point>) -> u32 {
    parent.map_or(0, |point| point.pos + 1)
}

/// A range of one line: depths `from` to `to`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The line.
    pub line: LineId,
    /// The first depth.
    pub from: u32,
    /// The last depth.
    pub to: u32,
}

impl Range {
    /// The position of the first message.
    pub fn first(&self) -> Point {
        Point { line: self.line, pos: self.from }
    }

    /// The position of the last message.
    pub fn last(&self) -> Point {
        Point { line: self.line, pos: self.to }
    }

    /// True when the range includes `point`.
    pub fn contains(&self, point: Point) -> bool {
        self.line == point.line && (self.from..=self.to).contains(&point.pos)
    }
}

/// Computes the ranges of the path that ends at `tip`, root first. `parent_of` returns the point a line starts
/// beneath.
pub fn ranges<E>(
    tip: Option<Point>,
    mut parent_of: impl FnMut(LineId) -> Result<Option<Point>, E>,
) -> Result<Vec<Range>, E> {
    let mut ranges = vec![];
    let mut next = tip;
    while let Some(point) = next {
        let parent = parent_of(point.line)?;
        let from = start(parent);
        // The point may lie above the first position of its line, on the parent line: then the line adds no range.
        if point.pos >= from {
            ranges.push(Range { line: point.line, from, to: point.pos });
        }
        next = parent;
    }
    ranges.reverse();
    Ok(ranges)
}

/// Decides the position of a new message beneath `at`: at the end of `at`'s line, or on a new line.
///
/// `line` is the line of `at`. A `branch` always opens a line, so that it can be rolled back by marking that line.
pub fn place(at: Option<Point>, line: Option<&Line>, branch: bool, fresh: LineId) -> Placement {
    match (at, line) {
        (Some(at), Some(line)) if !branch && line.end == at.pos + 1 && !line.abandoned => {
            Placement { point: Point { line: at.line, pos: at.pos + 1 }, opened: None }
        }
        _ => {
            let opened = Line::open(fresh, at);
            Placement { point: Point { line: fresh, pos: opened.end }, opened: Some(opened) }
        }
    }
}

/// The position of a new message, and the line that is opened for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The position of the message.
    pub point: Point,
    /// The new line, still empty.
    pub opened: Option<Line>,
}

impl Placement {
    /// The cursor with which the active path continues on the new line: the point above the line, and the line. `None`
    /// if no line was opened, or if it starts with a root.
    pub fn cursor(&self) -> Option<(Point, LineId)> {
        let line = self.opened?;
        Some((line.parent?, line.id))
    }
}

/// Read access of the rules to the tree of one session.
pub trait TreeView {
    /// An error of the store.
    type Error;

    /// The ranges that continue from `at` without following a cursor, `at` included; empty if there is no message at
    /// `at`.
    fn ahead(&mut self, at: Point) -> Result<Vec<Range>, Self::Error>;

    /// The target of the first cursor within `range`: the first message of a line that starts beneath the cursor's
    /// point and is neither empty nor abandoned.
    fn cursor_target(&mut self, range: Range) -> Result<Option<Point>, Self::Error>;

    /// The first message of the newest line beneath `at` that is neither empty nor abandoned.
    fn newest(&mut self, at: Point) -> Result<Option<Point>, Self::Error>;
}

/// Follows the cursors from `at` down to a leaf. Without a cursor it continues on the same line, and at its end on
/// the newest line beneath.
///
/// Continuing on the same line is correct without a cursor: when a run ends, its line is either visited or abandoned,
/// and a visit removes the cursors that lead off its path.
pub fn leaf<V: TreeView>(view: &mut V, at: Point) -> Result<Point, V::Error> {
    let mut at = at;
    // Every cursor leads deeper, so the loop terminates for any stored data.
    loop {
        let ahead = view.ahead(at)?;
        let mut next = None;
        for range in &ahead {
            next = view.cursor_target(*range)?;
            if next.is_some() {
                break;
            }
        }
        let last = ahead.last().map_or(at, Range::last);
        match next.map_or_else(|| view.newest(last), |next| Ok(Some(next)))? {
            Some(first) => at = first,
            None => return Ok(last),
        }
    }
}

/// Computes the ranges of the path to `to` that are not on the path to `from`, root first. The first range starts at
/// the point where the two paths diverge.
///
/// Reads only the lines between the two points and where they diverge, not the lines above. `parent_of` returns the
/// point a line starts beneath.
pub fn diverging_ranges<E>(
    from: Option<Point>,
    to: Point,
    mut parent_of: impl FnMut(LineId) -> Result<Option<Point>, E>,
) -> Result<Vec<Range>, E> {
    let (mut old, mut new) = (from, Some(to));
    let mut ranges = vec![];
    while let Some(point) = new {
        if let Some(common) = old.filter(|old| old.line == point.line) {
            ranges.push(Range { line: point.line, from: common.pos.min(point.pos), to: point.pos });
            break;
        }
        let parent = parent_of(point.line)?;
        // The line that starts deeper cannot be above the other one: going up from it skips nothing.
        if let Some(other) = old {
            let above = parent_of(other.line)?;
            if start(above) > start(parent) {
                old = above;
                continue;
            }
        }
        if point.pos >= start(parent) {
            ranges.push(Range { line: point.line, from: start(parent), to: point.pos });
        }
        new = parent;
    }
    ranges.reverse();
    Ok(ranges)
}

/// Computes the changes of the cursors when the active path moves along `ranges` (see [`diverging_ranges`]): the line to
/// follow from each point, `None` to remove its cursor. `cursors` are the existing cursors within the ranges.
///
/// The last message keeps its cursor, which records where the path continued before.
pub fn visit(ranges: &[Range], cursors: &[(Point, LineId)]) -> Vec<(Point, Option<LineId>)> {
    let cursors: BTreeMap<Point, LineId> = cursors.iter().copied().collect();
    let mut changes = vec![];
    for (at, range) in ranges.iter().enumerate() {
        changes.extend(cursors.range(range.first()..range.last()).map(|(passed, _)| (*passed, None)));
        let next = ranges.get(at + 1).map(|next| next.line);
        let changed = next.is_some() && cursors.get(&range.last()) != next.as_ref();
        changes.extend(changed.then_some((range.last(), next)));
    }
    changes
}

/// The path to a fork's base: the part of other sessions' lines that the fork sees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inherited(Vec<Range>);

impl Inherited {
    /// Wraps the path to the fork's base, as computed by [`ranges`].
    pub fn new(path: Vec<Range>) -> Self {
        Self(path)
    }

    /// The ranges, root first.
    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// The ranges from `at` to the base, `at` included; empty if `at` is not on the path.
    pub fn ahead(&self, at: Point) -> Vec<Range> {
        let Some(found) = self.0.iter().position(|range| range.contains(at)) else {
            return vec![];
        };
        let first = Range { from: at.pos, ..self.0[found] };
        [first].into_iter().chain(self.0[found + 1..].iter().copied()).collect()
    }

    /// The message after `at` on the path to the base; the root if `at` is `None`.
    pub fn next(&self, at: Option<Point>) -> Option<Point> {
        let Some(at) = at else { return self.0.first().map(Range::first) };
        let ahead = self.ahead(at);
        match ahead.first()? {
            range if range.to > at.pos => Some(Point { pos: at.pos + 1, ..at }),
            _ => ahead.get(1).map(Range::first),
        }
    }
}

#[cfg(test)]
mod tests;
