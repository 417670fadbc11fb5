//! The tree of a session's messages, as lines and ranges.
//!
//! A *line* is a run of messages without a branch; a message is found by its line and its depth in the tree
//! (`pos`, 0 for a root). A branch or a fork opens a line beneath a point of another. A path from a root to a tip
//! is a list of line ranges whose depths join up, so it is read by range and message `n` of a path is at depth `n`.
//!
//! ```text
//! line a   0──1──2──3──4          path to (c, 5):  a 0..=2, b 3..=4, c 5..=5
//! line b         └──3──4──5
//! line c               └──5
//! ```
//!
//! A *cursor* at a point names the line to follow from there when it is not the point's own line. A *fork* sees, of
//! the lines of others, the path to its base and nothing else. Rules ask a store only for what they need: none costs
//! more than the lines and cursors it passes, whatever else the tree holds.

use std::collections::BTreeMap;

use crate::LineId;

mod pen;
pub use pen::{above, aside, before, taken_up};

/// A message's place: its line and its depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// The line.
    pub line: LineId,
    /// The depth in the tree: how many messages stand above.
    pub pos: u32,
}

/// A run of messages without a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Its id.
    pub id: LineId,
    /// The point it hangs beneath; none if it begins with a root.
    pub parent: Option<Point>,
    /// The depth of its next message.
    pub end: u32,
    /// True when the run that opened it was rolled back: kept for the record, never part of a path.
    pub abandoned: bool,
}

impl Line {
    /// A line without messages beneath `parent`.
    pub fn open(id: LineId, parent: Option<Point>) -> Self {
        Self { id, parent, end: start(parent), abandoned: false }
    }

    /// The depth of its first message.
    pub fn start(&self) -> u32 {
        start(self.parent)
    }

    /// Its last message; none while it is empty.
    pub fn last(&self) -> Option<Point> {
        (self.end > self.start()).then(|| Point { line: self.id, pos: self.end - 1 })
    }
}

fn start(parent: Option<Point>) -> u32 {
    parent.map_or(0, |point| point.pos + 1)
}

/// A stretch of one line: depths `from` to `to`, both included.
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
    /// Its first message.
    pub fn first(&self) -> Point {
        Point { line: self.line, pos: self.from }
    }

    /// Its last message.
    pub fn last(&self) -> Point {
        Point { line: self.line, pos: self.to }
    }

    /// True when the message at `point` is part of it.
    pub fn contains(&self, point: Point) -> bool {
        self.line == point.line && (self.from..=self.to).contains(&point.pos)
    }
}

/// The ranges of the path that ends at `tip`, root first. `parent_of` says where a line hangs.
pub fn ranges<E>(
    tip: Option<Point>,
    mut parent_of: impl FnMut(LineId) -> Result<Option<Point>, E>,
) -> Result<Vec<Range>, E> {
    let mut ranges = vec![];
    let mut next = tip;
    while let Some(point) = next {
        let parent = parent_of(point.line)?;
        let from = start(parent);
        // A fork or a branch may hang beneath the parent of a line that is still empty at this depth.
        if point.pos >= from {
            ranges.push(Range { line: point.line, from, to: point.pos });
        }
        next = parent;
    }
    ranges.reverse();
    Ok(ranges)
}

/// Where a message beneath `at` goes: at the end of `at`'s line, or on a new line.
///
/// `line` is the line of `at`. A `branch` always opens a line, so that rolling it back is a mark on that line.
pub fn place(at: Option<Point>, line: Option<&Line>, branch: bool, fresh: LineId) -> Placed {
    match (at, line) {
        (Some(at), Some(line)) if !branch && line.end == at.pos + 1 && !line.abandoned => {
            Placed { point: Point { line: at.line, pos: at.pos + 1 }, opened: None }
        }
        _ => {
            let opened = Line::open(fresh, at);
            Placed { point: Point { line: fresh, pos: opened.end }, opened: Some(opened) }
        }
    }
}

/// Where a message goes, and the line that was opened for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Its place.
    pub point: Point,
    /// The new line, still empty.
    pub opened: Option<Line>,
}

/// What a store tells the rules of one session's tree.
pub trait View {
    /// Why it could not be told.
    type Error;

    /// The stretches that lead on from `at` without a turn, `at` included; none if nothing is there.
    fn ahead(&mut self, at: Point) -> Result<Vec<Range>, Self::Error>;

    /// Where the first cursor within `range` leads: to the first message of a line that hangs at the cursor and is
    /// neither empty nor abandoned.
    fn turn(&mut self, range: Range) -> Result<Option<Point>, Self::Error>;

    /// The first message of the newest line beneath `at` that is neither empty nor abandoned.
    fn newest(&mut self, at: Point) -> Result<Option<Point>, Self::Error>;
}

/// Follows the cursors from `at` down to a leaf; where there is none, straight on, and at the end the newest line
/// beneath.
///
/// Straight on is right where no cursor is: what a run wrote is visited or abandoned when the run ends, and a visit
/// takes away the cursors that lead off its path.
pub fn leaf<V: View>(view: &mut V, at: Point) -> Result<Point, V::Error> {
    let mut at = at;
    // A turn leads deeper, so this ends whatever was stored.
    loop {
        let ahead = view.ahead(at)?;
        let mut next = None;
        for range in &ahead {
            next = view.turn(*range)?;
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

/// What of the path to `to` is not on the path to `from`, root first. The first stretch begins where the two part.
///
/// Costs the lines between the two and where they part, not the lines above. `parent_of` says where a line hangs.
pub fn parting<E>(
    from: Option<Point>,
    to: Point,
    mut parent_of: impl FnMut(LineId) -> Result<Option<Point>, E>,
) -> Result<Vec<Range>, E> {
    let (mut old, mut new) = (from, Some(to));
    let mut ranges = vec![];
    while let Some(point) = new {
        if let Some(met) = old.filter(|old| old.line == point.line) {
            ranges.push(Range { line: point.line, from: met.pos.min(point.pos), to: point.pos });
            break;
        }
        let hangs = parent_of(point.line)?;
        // The line that begins deeper cannot be above the other: going up from it misses nothing.
        if let Some(other) = old {
            let above = parent_of(other.line)?;
            if start(above) > start(hangs) {
                old = above;
                continue;
            }
        }
        if point.pos >= start(hangs) {
            ranges.push(Range { line: point.line, from: start(hangs), to: point.pos });
        }
        new = hangs;
    }
    ranges.reverse();
    Ok(ranges)
}

/// How the cursors change when the path turns along `ranges` (see [`parting`]): each names the line to follow from a
/// point, none for straight on. `cursors` are those within the ranges.
///
/// The last message keeps its cursor: it says where the path went on before.
pub fn visit(ranges: &[Range], cursors: &[(Point, LineId)]) -> Vec<(Point, Option<LineId>)> {
    let cursors: BTreeMap<Point, LineId> = cursors.iter().copied().collect();
    let mut changes = vec![];
    for (at, range) in ranges.iter().enumerate() {
        changes.extend(cursors.range(range.first()..range.last()).map(|(passed, _)| (*passed, None)));
        let next = ranges.get(at + 1).map(|next| next.line);
        let turned = next.is_some() && cursors.get(&range.last()) != next.as_ref();
        changes.extend(turned.then_some((range.last(), next)));
    }
    changes
}

/// What a fork sees of the lines of others: the path to its base.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inherited(Vec<Range>);

impl Inherited {
    /// The path to `base`, as [`ranges`] gives it.
    pub fn new(path: Vec<Range>) -> Self {
        Self(path)
    }

    /// Its stretches, root first.
    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// The stretches that lead on from `at` to the base, `at` included; none if `at` is not on the way.
    pub fn ahead(&self, at: Point) -> Vec<Range> {
        let Some(found) = self.0.iter().position(|range| range.contains(at)) else {
            return vec![];
        };
        let first = Range { from: at.pos, ..self.0[found] };
        [first].into_iter().chain(self.0[found + 1..].iter().copied()).collect()
    }

    /// The message beneath `at` on the way to the base; the root beneath none.
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
