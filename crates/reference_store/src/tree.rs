//! The message tree.

use std::convert::Infallible;

use mainspring_core::tree::{Inherited, TreeView, leaf, ranges};
use mainspring_core::{Digest, Line, LineId, MessageId, Point, Range, SessionId};
use mainspring_kernel::store::{PlacedMessage, SessionLine, StoreError, TreeRow};

use super::tables::Tables;

/// The tree as one session sees it.
struct SessionView<'a> {
    tables: &'a Tables,
    session: SessionId,
    inherited: Inherited,
}

impl TreeView for SessionView<'_> {
    type Error = Infallible;

    fn ahead(&mut self, at: Point) -> Result<Vec<Range>, Infallible> {
        let own = self.own(at.line).filter(|line| (line.start()..line.end).contains(&at.pos));
        Ok(match own {
            Some(line) => vec![Range { line: line.id, from: at.pos, to: line.end - 1 }],
            None => self.inherited.ahead(at),
        })
    }

    fn cursor_target(&mut self, range: Range) -> Result<Option<Point>, Infallible> {
        let cursors = self.tables.cursors.range((self.session, range.first())..=(self.session, range.last()));
        Ok({ cursors }.find_map(|((_, at), to)| self.child_start(*at, *to)))
    }

    fn newest(&mut self, at: Point) -> Result<Option<Point>, Infallible> {
        Ok(self.child_starts(Some(at)).next_back())
    }
}

impl SessionView<'_> {
    fn own(&self, id: LineId) -> Option<&Line> {
        let own = self.tables.lines.iter().filter(|(id, _)| *id == self.session);
        own.map(|(_, line)| line).find(|line| line.id == id)
    }

    fn contains(&self, point: Point) -> bool {
        self.own(point.line).is_some_and(|line| line.start() <= point.pos)
            || !self.inherited.ahead(point).is_empty()
    }

    /// Returns the first message of line `to` if that message is a child of `at`.
    fn child_start(&self, at: Point, to: LineId) -> Option<Point> {
        let line = self.tables.line(to)?;
        (line.parent == Some(at)).then(|| line_start(line)).flatten()
    }

    /// Returns the first messages of the session's lines that are children of `at`, oldest first.
    fn child_starts(&self, at: Option<Point>) -> impl DoubleEndedIterator<Item = Point> {
        let own = self.tables.lines.iter().filter(move |(id, line)| *id == self.session && line.parent == at);
        own.filter_map(|(_, line)| line_start(line))
    }

    /// Returns the next message on the same line.
    fn next_on_line(&self, at: Point) -> Option<Point> {
        let next = Point { pos: at.pos + 1, ..at };
        match self.own(at.line) {
            Some(line) => (next.pos < line.end).then_some(next),
            None => self.inherited.next(Some(at)),
        }
    }

    fn row(&self, placed: &PlacedMessage) -> Option<TreeRow> {
        let point = placed.point?;
        let line = self.tables.line(point.line)?;
        let above = match point.pos > line.start() {
            true => Some(Point { pos: point.pos - 1, ..point }),
            false => line.parent,
        };
        let cursor = |at: Point| {
            let to = self.tables.cursors.get(&(self.session, at))?;
            self.child_start(at, *to)
        };
        let id = |point: Point| self.tables.message_at(point).map(|placed| placed.message.id);
        Some(TreeRow {
            message: placed.message.clone(),
            point,
            abandoned: line.abandoned,
            parent: above.and_then(id),
            parent_point: above,
            followed: above.and_then(cursor) == Some(point),
            cursor: cursor(point).or_else(|| self.next_on_line(point)).and_then(id),
        })
    }
}

/// Returns the first message of a line unless the line is empty or abandoned.
fn line_start(line: &Line) -> Option<Point> {
    (!line.abandoned && line.end > line.start()).then(|| Point { line: line.id, pos: line.start() })
}

impl Tables {
    fn view(&self, session: SessionId) -> Result<SessionView<'_>, StoreError> {
        let base = self.sessions.get(&session).and_then(|session| session.base);
        let inherited = Inherited::new(ranges(base, |id| self.parent_of(id))?);
        Ok(SessionView { tables: self, session, inherited })
    }

    fn line_get(&self, id: LineId) -> Result<Line, StoreError> {
        let missing = || StoreError::Corrupt(format!("line {} is missing", id.0));
        self.line(id).copied().ok_or_else(missing)
    }

    pub(super) fn parent_of(&self, id: LineId) -> Result<Option<Point>, StoreError> {
        self.line_get(id).map(|line| line.parent)
    }

    pub(super) fn message_at(&self, point: Point) -> Option<&PlacedMessage> {
        self.messages.values().find(|message| message.point == Some(point))
    }

    pub(super) fn path(
        &self,
        tip: Point,
        before: Option<u32>,
        limit: usize,
    ) -> Result<Vec<PlacedMessage>, StoreError> {
        let path = ranges(Some(tip), |id| self.parent_of(id))?;
        let mut path: Vec<PlacedMessage> =
            path.into_iter().flat_map(|range| self.line_messages(range)).collect();
        path.retain(|message| message.point.zip(before).is_none_or(|(point, before)| point.pos < before));
        Ok(path.split_off(path.len().saturating_sub(limit)))
    }

    pub(super) fn digest(&self, session: SessionId, tip: Point) -> Result<Option<Digest>, StoreError> {
        let path = ranges(Some(tip), |id| self.parent_of(id))?;
        let is_visible = |(at, by): &(Point, SessionId)| {
            let is_opener = self.line_origins.get(&at.line).is_some_and(|origin| origin.session == *by);
            at.pos < tip.pos && (*by == session || is_opener) && path.iter().any(|range| range.contains(*at))
        };
        let found = self.digests.iter().filter(|(key, _)| is_visible(key));
        let nearest = found.max_by_key(|((at, by), _)| (at.pos, *by == session));
        Ok(nearest.map(|(_, digest)| digest.clone()))
    }

    fn line_messages(&self, range: Range) -> Vec<PlacedMessage> {
        let within = |message: &&PlacedMessage| message.point.is_some_and(|point| range.contains(point));
        let mut found: Vec<PlacedMessage> = self.messages.values().filter(within).cloned().collect();
        found.sort_by_key(|message| message.point);
        found
    }

    pub(super) fn message_get(
        &self,
        session: SessionId,
        id: MessageId,
    ) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError> {
        let Some(found) = self.messages.get(&id) else { return Ok(None) };
        let view = self.view(session)?;
        let is_visible = found.point.map_or(found.message.session == session, |point| view.contains(point));
        let line = found.point.and_then(|point| self.line(point.line).copied());
        Ok(is_visible.then(|| (found.clone(), line)))
    }

    pub(super) fn lines_to_root(
        &self,
        session: SessionId,
        from: LineId,
        limit: usize,
    ) -> Result<Vec<SessionLine>, StoreError> {
        let view = self.view(session)?;
        let mut lines = vec![];
        let mut next = Some(from);
        while let Some(id) = next.filter(|_| lines.len() < limit) {
            let line = self.line_get(id)?;
            let within = self.cursors.iter().filter(|((by, at), _)| *by == session && at.line == id);
            let cursors = within.map(|((_, at), to)| (at.pos, *to)).collect();
            lines.push(SessionLine { line, own: view.own(id).is_some(), cursors });
            next = line.parent.map(|parent| parent.line);
        }
        Ok(lines)
    }

    pub(super) fn leaf(
        &self,
        session: SessionId,
        at: Point,
    ) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError> {
        let mut view = self.view(session)?;
        let Ok(leaf) = leaf(&mut view, at);
        Ok(self.message_at(leaf).map(|placed| (placed.clone(), view.own(leaf.line).copied())))
    }

    pub(super) fn children(
        &self,
        session: SessionId,
        at: Option<Point>,
        limit: usize,
    ) -> Result<Vec<MessageId>, StoreError> {
        let view = self.view(session)?;
        let next = match at {
            Some(at) => view.next_on_line(at),
            None => view.inherited.next(None),
        };
        let points = next.into_iter().chain(view.child_starts(at)).take(limit);
        Ok(points.filter_map(|point| Some(self.message_at(point)?.message.id)).collect())
    }

    pub(super) fn tree_row(
        &self,
        session: SessionId,
        message: MessageId,
    ) -> Result<Option<TreeRow>, StoreError> {
        let found = self.message_get(session, message)?;
        let view = self.view(session)?;
        Ok(found.and_then(|(placed, _)| view.row(&placed)))
    }

    pub(super) fn tree_page(
        &self,
        session: SessionId,
        after: Option<Point>,
        limit: usize,
    ) -> Result<Vec<TreeRow>, StoreError> {
        let view = self.view(session)?;
        let own = self.lines.iter().filter(|(id, line)| *id == session && line.end > line.start());
        let own = own.map(|(_, line)| Range { line: line.id, from: line.start(), to: line.end - 1 });
        let all = view.inherited.ranges().iter().copied().chain(own);
        let mut rows: Vec<TreeRow> =
            all.flat_map(|range| self.line_messages(range)).filter_map(|placed| view.row(&placed)).collect();
        if let Some(after) = after {
            let start = rows.iter().position(|row| row.point == after).map_or(rows.len(), |index| index + 1);
            rows.drain(..start);
        }
        rows.truncate(limit);
        Ok(rows)
    }
}
