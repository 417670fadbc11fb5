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
//! A *cursor* at a point names the line to follow from there when it is not the point's own line. No operation
//! costs more than the lines and cursors on the path it concerns.

use std::collections::{BTreeMap, HashMap};

use crate::LineId;

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

/// The shape of a tree in memory: its lines and cursors, not its messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    lines: HashMap<LineId, Line>,
    /// Lines that hang beneath a point, oldest first. Roots hang beneath none.
    beneath: BTreeMap<Option<Point>, Vec<LineId>>,
    cursors: BTreeMap<Point, LineId>,
    tip: Option<Point>,
}

impl Tree {
    /// A tree, or the part of one that is needed, from its stored shape.
    pub fn from_parts(
        lines: impl IntoIterator<Item = Line>,
        cursors: impl IntoIterator<Item = (Point, LineId)>,
    ) -> Self {
        let mut tree = Self { cursors: cursors.into_iter().collect(), ..Self::default() };
        lines.into_iter().for_each(|line| tree.put(line));
        tree
    }

    /// Adds a line, or replaces it.
    pub fn put(&mut self, line: Line) {
        if self.lines.insert(line.id, line).is_none() {
            self.beneath.entry(line.parent).or_default().push(line.id);
        }
    }

    /// The line to follow from a point, where it is not the point's own.
    pub fn cursors(&self) -> impl Iterator<Item = (Point, LineId)> {
        self.cursors.iter().map(|(point, line)| (*point, *line))
    }

    /// Where the active path ends.
    pub fn tip(&self) -> Option<Point> {
        self.tip
    }

    /// The line of this id.
    pub fn line(&self, id: LineId) -> Option<&Line> {
        self.lines.get(&id)
    }

    /// True when there is a message at `point`.
    pub fn contains(&self, point: Point) -> bool {
        self.lines.get(&point.line).is_some_and(|line| (line.start()..line.end).contains(&point.pos))
    }

    /// Appends a message beneath `at` and says where it stands; `fresh` names the line if one is opened.
    ///
    /// Moves neither tip nor cursors: [`Tree::visit`] does.
    pub fn append(&mut self, at: Option<Point>, branch: bool, fresh: LineId) -> Point {
        let placed = place(at, at.and_then(|at| self.lines.get(&at.line)), branch, fresh);
        if let Some(line) = placed.opened {
            self.put(line);
        }
        if let Some(line) = self.lines.get_mut(&placed.point.line) {
            line.end = placed.point.pos + 1;
        }
        placed.point
    }

    /// Marks `line` as rolled back.
    pub fn abandon(&mut self, line: LineId) {
        if let Some(line) = self.lines.get_mut(&line) {
            line.abandoned = true;
        }
    }

    /// The message above `point`.
    pub fn parent(&self, point: Point) -> Option<Point> {
        let line = self.lines.get(&point.line)?;
        if point.pos > line.start() { Some(Point { pos: point.pos - 1, ..point }) } else { line.parent }
    }

    /// The messages beneath `point`, or the roots; abandoned ones are left out.
    pub fn children(&self, point: Option<Point>) -> Vec<Point> {
        let own =
            point.map(|point| Point { pos: point.pos + 1, ..point }).filter(|next| self.contains(*next));
        let opened = self.beneath.get(&point).into_iter().flatten().filter_map(|id| self.first(*id));
        own.into_iter().chain(opened).collect()
    }

    /// The messages that stand beside `point`, itself included.
    pub fn siblings(&self, point: Point) -> Vec<Point> {
        self.children(self.parent(point))
    }

    /// The ranges of the path that ends at `tip`, root first.
    pub fn path(&self, tip: Option<Point>) -> Vec<Range> {
        let parent_of =
            |id: LineId| Ok::<_, std::convert::Infallible>(self.lines.get(&id).and_then(|line| line.parent));
        ranges(tip, parent_of).unwrap_or_default()
    }

    /// Follows the cursors from `point` down to a leaf; where there is none, the point's own line, and at its end the
    /// newest line beneath.
    ///
    /// The own line is right where no cursor is: what a run wrote is visited or abandoned when the run ends, and a
    /// visit takes away the cursors that lead off its path.
    pub fn extend(&self, point: Point) -> Point {
        let mut at = point;
        while self.contains(at) {
            let Some(last) = self.lines.get(&at.line).and_then(Line::last) else {
                break;
            };
            // Each turn leads deeper, so this ends whatever was stored.
            let turn =
                |(from, id): (&Point, &LineId)| self.first(*id).filter(|to| self.parent(*to) == Some(*from));
            let turn = self.cursors.range(at..=last).find_map(turn);
            let newest = || self.beneath.get(&Some(last))?.iter().rev().find_map(|id| self.first(*id));
            match turn.or_else(newest) {
                Some(first) => at = first,
                None => return last,
            }
        }
        at
    }

    /// The first message of a line that is neither empty nor abandoned.
    fn first(&self, id: LineId) -> Option<Point> {
        let line = self.lines.get(&id).filter(|line| !line.abandoned && line.end > line.start())?;
        Some(Point { line: id, pos: line.start() })
    }

    /// Makes the path to `point` the active one and lets every cursor on it point along it.
    pub fn visit(&mut self, point: Option<Point>) {
        let path = self.path(point);
        for (range, next) in path.iter().zip(path.iter().skip(1).map(Some).chain([None])) {
            let (from, to) =
                (Point { line: range.line, pos: range.from }, Point { line: range.line, pos: range.to });
            // The last message of the path keeps its cursor: it says where the path went on before.
            let turns: Vec<Point> = self.cursors.range(from..to).map(|(at, _)| *at).collect();
            for turn in turns {
                self.cursors.remove(&turn);
            }
            if let Some(next) = next {
                self.cursors.insert(to, next.line);
            }
        }
        self.tip = point;
    }
}

#[cfg(test)]
mod tests;
