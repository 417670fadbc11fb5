//! Reads the message tree: paths, lines, leaves, children and pages.

use mainspring_core::tree::{Inherited, TreeView, leaf as leaf_of, ranges};
use mainspring_core::{Line, LineId, MessageId, Point, Range, Rows, SessionId};
use mainspring_kernel::store::{IdPage, PlacedMessage, SessionLine, StoreError, TreeRow};
use rusqlite::{Connection, params};

use super::super::columns::{Columns, Id};
use super::super::error::read_error;
use super::{
    Stored, line, line_columns, message, message_columns, prepare, query_all, query_one, query_stored, rows,
    sql_limit,
};

pub(in super::super) fn path(
    connection: &Connection,
    tip: Point,
    before: Option<u32>,
    limit: usize,
) -> Result<Rows<PlacedMessage>, StoreError> {
    let mut found = rows(limit, |limit| path_stored(connection, tip, before, limit))?;
    // The path is read from the tip, and listed from the root.
    found.reverse();
    Ok(found)
}

/// Reads from the tip towards the root until `limit` messages are found.
fn path_stored(
    connection: &Connection,
    tip: Point,
    before: Option<u32>,
    limit: usize,
) -> Result<Vec<Stored<PlacedMessage>>, StoreError> {
    let sql = concat!(
        "SELECT ",
        message_columns!(),
        " FROM messages WHERE line = ?1 AND pos BETWEEN ?2 AND ?3 ORDER BY pos DESC LIMIT ?4"
    );
    let mut found = vec![];
    let mut next = Some(tip);
    while let Some(point) = next {
        let line = line_get(connection, point.line)?;
        let last = match before {
            Some(0) => break,
            Some(before) => point.pos.min(before - 1),
            None => point.pos,
        };
        if last >= line.start() {
            let remaining = sql_limit(limit - found.len());
            let params = params![point.line.0, line.start(), last, remaining];
            found.extend(query_stored(connection, sql, params, message)?);
        }
        next = line.parent.filter(|_| found.len() < limit);
    }
    Ok(found)
}

pub(in super::super) fn message_get(
    connection: &Connection,
    session: SessionId,
    id: MessageId,
) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError> {
    let sql = concat!("SELECT ", message_columns!(), " FROM messages WHERE message_id = ?1");
    let Some(found) = query_one(connection, sql, [id.bytes()], message)? else {
        return Ok(None);
    };
    let Some(point) = found.point else {
        return Ok((found.message.session == session).then_some((found, None)));
    };
    let line = line_get(connection, point.line)?;
    let mut view = SessionView::new(connection, session);
    Ok(view.contains(point)?.then_some((found, Some(line))))
}

/// Lists the ids in `page` up to `last` of messages that `session` sees. Reads no content, so that a damaged message of
/// another session does not fail the search.
pub(super) fn message_ids(
    connection: &Connection,
    session: SessionId,
    page: &IdPage,
    last: [u8; 16],
) -> Result<Vec<[u8; 16]>, StoreError> {
    let sql = "SELECT message_id, session_id, line, pos FROM messages WHERE message_id BETWEEN ?1 AND ?2 \
               ORDER BY message_id";
    let mut view = SessionView::new(connection, session);
    let mut found = vec![];
    let mut statement = prepare(connection, sql).map_err(|error| read_error(&error))?;
    let mut rows = statement.query([page.first, last]).map_err(|error| read_error(&error))?;
    while found.len() < page.limit {
        let Some(row) = rows.next().map_err(|error| read_error(&error))? else { break };
        let mut columns = Columns::new(row);
        let read =
            columns.get::<[u8; 16]>().and_then(|id| Ok((id, columns.id::<SessionId>()?, columns.point()?)));
        let (id, message_session, point) = read.map_err(|error| read_error(&error))?;
        let is_seen = match point {
            Some(point) => view.contains(point)?,
            None => message_session == session,
        };
        found.extend(is_seen.then_some(id));
    }
    Ok(found)
}

pub(in super::super) fn lines_to_root(
    connection: &Connection,
    session: SessionId,
    from: LineId,
    limit: usize,
) -> Result<Vec<SessionLine>, StoreError> {
    let select_line = concat!("SELECT ", line_columns!(), ", session_id = ?2 FROM lines WHERE line = ?1");
    let cursors = "SELECT pos, to_line FROM cursors WHERE session_id = ?1 AND line = ?2";
    let session = session.bytes();
    let mut lines = vec![];
    let mut next = Some(from);
    while let Some(id) = next.filter(|_| lines.len() < limit) {
        let found =
            query_one(connection, select_line, params![id.0, session], |row| Ok((line(row)?, row.get()?)))?;
        let (line, own) = found.ok_or_else(|| missing_line(id))?;
        let cursor = |row: &mut Columns<'_>| Ok((row.get()?, LineId(row.get()?)));
        let cursors = query_all(connection, cursors, params![session, id.0], cursor)?;
        lines.push(SessionLine { line, own, cursors: cursors.into_iter().collect() });
        next = line.parent.map(|parent| parent.line);
    }
    Ok(lines)
}

pub(in super::super) fn leaf(
    connection: &Connection,
    session: SessionId,
    at: Point,
) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError> {
    let mut view = SessionView::new(connection, session);
    let leaf = leaf_of(&mut view, at)?;
    let own = view.own(leaf.line)?;
    Ok(message_at(connection, leaf)?.map(|placed| (placed, own)))
}

pub(in super::super) fn children(
    connection: &Connection,
    session: SessionId,
    at: Option<Point>,
    limit: usize,
) -> Result<Vec<MessageId>, StoreError> {
    macro_rules! select_lines {
        ($where:literal) => {
            concat!(
                "SELECT ",
                line_columns!(),
                " FROM lines WHERE ",
                $where,
                " AND abandoned = 0 AND end_pos > coalesce(parent_pos + 1, 0) ORDER BY id LIMIT ?1"
            )
        };
    }
    let mut view = SessionView::new(connection, session);
    let (most, id) = (sql_limit(limit), session.bytes());
    let (next, lines) = match at {
        Some(at) => {
            let sql = select_lines!("parent_line = ?3 AND parent_pos = ?4 AND session_id = ?2");
            (view.next_on_line(at)?, query_all(connection, sql, params![most, id, at.line.0, at.pos], line)?)
        }
        None => {
            let sql = select_lines!("session_id = ?2 AND parent_line IS NULL");
            (view.inherited()?.next(None), query_all(connection, sql, params![most, id], line)?)
        }
    };
    let first = |line: Line| Point { line: line.id, pos: line.start() };
    let points = next.into_iter().chain(lines.into_iter().map(first));
    let mut found = vec![];
    for point in points.take(limit) {
        found.extend(message_id_at(connection, point)?);
    }
    Ok(found)
}

pub(in super::super) fn tree_row(
    connection: &Connection,
    session: SessionId,
    id: MessageId,
) -> Result<Option<TreeRow>, StoreError> {
    let Some((placed, Some(line))) = message_get(connection, session, id)? else {
        return Ok(None);
    };
    SessionView::new(connection, session).row(placed, &line)
}

/// Reads the inherited messages first, then the session's own lines in the order of their creation.
pub(in super::super) fn tree_page(
    connection: &Connection,
    session: SessionId,
    after: Option<Point>,
    limit: usize,
) -> Result<Rows<TreeRow>, StoreError> {
    rows(limit, |limit| tree_stored(connection, session, after, limit))
}

fn tree_stored(
    connection: &Connection,
    session: SessionId,
    after: Option<Point>,
    limit: usize,
) -> Result<Vec<Stored<TreeRow>>, StoreError> {
    let lines = concat!(
        "SELECT ",
        line_columns!(),
        " FROM lines WHERE session_id = ?1 AND end_pos > coalesce(parent_pos + 1, 0) \
           AND id >= coalesce((SELECT id FROM lines WHERE line = ?2 AND session_id = ?1), 0) ORDER BY id LIMIT ?3"
    );
    let mut view = SessionView::new(connection, session);
    let mut segments: Vec<(Line, Range)> = vec![];
    let inherited = match after {
        None => view.inherited()?.ranges().to_vec(),
        Some(after) => view.inherited()?.ahead(after),
    };
    for range in inherited {
        segments.push((line_get(connection, range.line)?, range));
    }
    let id = after.map(|after| after.line.0);
    for line in
        query_all(connection, lines, params![session.bytes(), id, sql_limit(limit.saturating_add(1))], line)?
    {
        segments.push((line, Range { line: line.id, from: line.start(), to: line.end - 1 }));
    }
    let sql = concat!(
        "SELECT ",
        message_columns!(),
        " FROM messages WHERE line = ?1 AND pos BETWEEN ?2 AND ?3 ORDER BY pos LIMIT ?4"
    );
    let mut rows = vec![];
    for (line, range) in segments {
        // Starts after the last message of the previous page.
        let from = after.filter(|after| range.contains(*after)).map_or(range.from, |after| after.pos + 1);
        let remaining = sql_limit(limit - rows.len());
        let params = params![range.line.0, from, range.to, remaining];
        for placed in query_stored(connection, sql, params, message)? {
            match placed {
                Ok(placed) => rows.extend(view.row(placed, &line)?.map(Ok)),
                Err(damage) => rows.push(Err(damage)),
            }
        }
        if rows.len() == limit {
            break;
        }
    }
    Ok(rows)
}

/// The tree as one session sees it.
struct SessionView<'a> {
    connection: &'a Connection,
    session: SessionId,
    /// The inherited part of the tree, loaded when first needed.
    inherited: Option<Inherited>,
}

impl TreeView for SessionView<'_> {
    type Error = StoreError;

    fn ahead(&mut self, at: Point) -> Result<Vec<Range>, StoreError> {
        match self.own(at.line)?.filter(|line| (line.start()..line.end).contains(&at.pos)) {
            Some(line) => Ok(vec![Range { line: line.id, from: at.pos, to: line.end - 1 }]),
            None => Ok(self.inherited()?.ahead(at)),
        }
    }

    fn cursor_target(&mut self, range: Range) -> Result<Option<Point>, StoreError> {
        let sql = "SELECT c.to_line, c.pos + 1 FROM cursors AS c JOIN lines AS l ON l.line = c.to_line \
                   WHERE c.session_id = ?1 AND c.line = ?2 AND c.pos BETWEEN ?3 AND ?4 AND l.parent_line = c.line \
                     AND l.parent_pos = c.pos AND l.abandoned = 0 AND l.end_pos > c.pos + 1 ORDER BY c.pos LIMIT 1";
        let within = params![self.session.bytes(), range.line.0, range.from, range.to];
        query_one(self.connection, sql, within, point)
    }

    fn newest(&mut self, at: Point) -> Result<Option<Point>, StoreError> {
        let sql = "SELECT line, parent_pos + 1 FROM lines WHERE parent_line = ?2 AND parent_pos = ?3 \
                     AND session_id = ?1 AND abandoned = 0 AND end_pos > parent_pos + 1 ORDER BY id DESC LIMIT 1";
        query_one(self.connection, sql, params![self.session.bytes(), at.line.0, at.pos], point)
    }
}

impl<'a> SessionView<'a> {
    fn new(connection: &'a Connection, session: SessionId) -> Self {
        Self { connection, session, inherited: None }
    }

    fn inherited(&mut self) -> Result<&Inherited, StoreError> {
        let inherited = match self.inherited.take() {
            Some(inherited) => inherited,
            None => {
                let sql = "SELECT base_line, base_pos FROM sessions WHERE session_id = ?1";
                let base =
                    query_one(self.connection, sql, [self.session.bytes()], |columns| columns.point())?;
                Inherited::new(ranges(base.flatten(), |id| parent_of(self.connection, id))?)
            }
        };
        Ok(self.inherited.insert(inherited))
    }

    /// Returns the line if it belongs to the session.
    fn own(&self, id: LineId) -> Result<Option<Line>, StoreError> {
        let sql = concat!("SELECT ", line_columns!(), " FROM lines WHERE line = ?1 AND session_id = ?2");
        query_one(self.connection, sql, params![id.0, self.session.bytes()], line)
    }

    fn contains(&mut self, point: Point) -> Result<bool, StoreError> {
        Ok(self.own(point.line)?.is_some_and(|line| line.start() <= point.pos)
            || !self.inherited()?.ahead(point).is_empty())
    }

    /// Returns the next message on the same line.
    fn next_on_line(&mut self, at: Point) -> Result<Option<Point>, StoreError> {
        let next = Point { pos: at.pos + 1, ..at };
        match self.own(at.line)? {
            Some(line) => Ok((next.pos < line.end).then_some(next)),
            None => Ok(self.inherited()?.next(Some(at))),
        }
    }

    fn row(&mut self, placed: PlacedMessage, line: &Line) -> Result<Option<TreeRow>, StoreError> {
        let Some(point) = placed.point else { return Ok(None) };
        let above = match point.pos > line.start() {
            true => Some(Point { pos: point.pos - 1, ..point }),
            false => line.parent,
        };
        let here = |point: Point| Range { line: point.line, from: point.pos, to: point.pos };
        // A cursor can lead only to the first message of a line.
        let target =
            above.filter(|above| above.line != point.line).map(|above| self.cursor_target(here(above)));
        let followed = target.transpose()?.flatten() == Some(point);
        let next = match self.cursor_target(here(point))? {
            Some(target) => Some(target),
            None => self.next_on_line(point)?,
        };
        let id = |point: Option<Point>| match point {
            Some(point) => message_id_at(self.connection, point),
            None => Ok(None),
        };
        Ok(Some(TreeRow {
            message: placed.message,
            point,
            abandoned: line.abandoned,
            parent: id(above)?,
            parent_point: above,
            followed,
            cursor: id(next)?,
        }))
    }
}

fn point(columns: &mut Columns<'_>) -> rusqlite::Result<Point> {
    Ok(Point { line: LineId(columns.get()?), pos: columns.get()? })
}

fn message_at(connection: &Connection, point: Point) -> Result<Option<PlacedMessage>, StoreError> {
    let sql = concat!("SELECT ", message_columns!(), " FROM messages WHERE line = ?1 AND pos = ?2");
    query_one(connection, sql, params![point.line.0, point.pos], message)
}

/// Reads no content, so that a damaged message does not hide its neighbours.
fn message_id_at(connection: &Connection, point: Point) -> Result<Option<MessageId>, StoreError> {
    let sql = "SELECT message_id FROM messages WHERE line = ?1 AND pos = ?2";
    query_one(connection, sql, params![point.line.0, point.pos], |columns| columns.id())
}

fn parent_of(connection: &Connection, id: LineId) -> Result<Option<Point>, StoreError> {
    line_get(connection, id).map(|line| line.parent)
}

fn line_get(connection: &Connection, id: LineId) -> Result<Line, StoreError> {
    let sql = concat!("SELECT ", line_columns!(), " FROM lines WHERE line = ?1");
    query_one(connection, sql, [id.0], line)?.ok_or_else(|| missing_line(id))
}

fn missing_line(id: LineId) -> StoreError {
    StoreError::Corrupt(format!("line {} is missing", id.0))
}
