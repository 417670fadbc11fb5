//! Reads of the tree: paths by range, lines, single messages.

use mainspring_core::{Line, LineId, MessageId, Point, Range, SessionId};
use mainspring_kernel::store::{PlacedMessage, StoreError, TreeShape};
use rusqlite::{Connection, params};

use super::super::columns::{Columns, Id};
use super::{all, limit, line, line_columns, message, message_columns, one};

/// Reads upwards from the tip and stops as soon as it has enough.
pub(in super::super) fn path(
    connection: &Connection,
    tip: Point,
    before: Option<u32>,
    many: usize,
) -> Result<Vec<PlacedMessage>, StoreError> {
    let sql = concat!(
        "SELECT ",
        message_columns!(),
        " FROM messages WHERE line = ?1 AND pos BETWEEN ?2 AND ?3 ORDER BY pos DESC LIMIT ?4"
    );
    let mut found = vec![];
    let mut next = Some(tip);
    while let Some(point) = next {
        let line = line_known(connection, point.line)?;
        let last = match before {
            Some(0) => break,
            Some(before) => point.pos.min(before - 1),
            None => point.pos,
        };
        if last >= line.start() {
            let left = limit(many - found.len());
            found.extend(all(connection, sql, params![point.line.0, line.start(), last, left], message)?);
        }
        next = line.parent.filter(|_| found.len() < many);
    }
    found.reverse();
    Ok(found)
}

pub(in super::super) fn message_get(
    connection: &Connection,
    session: SessionId,
    id: MessageId,
) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError> {
    let sql =
        concat!("SELECT ", message_columns!(), " FROM messages WHERE message_id = ?1 AND session_id = ?2");
    let Some(found) = one(connection, sql, [id.bytes(), session.bytes()], message)? else {
        return Ok(None);
    };
    let line = found.point.map(|point| line_known(connection, point.line)).transpose()?;
    Ok(Some((found, line)))
}

/// The session's own lines, and those of others that its own hang beneath or that it stands on.
pub(in super::super) fn tree(connection: &Connection, session: SessionId) -> Result<TreeShape, StoreError> {
    let lines = concat!(
        "WITH RECURSIVE own(line) AS ( \
           SELECT line FROM lines WHERE session_id = ?1 \
           UNION SELECT tip_line FROM sessions WHERE session_id = ?1 AND tip_line IS NOT NULL \
           UNION SELECT lines.parent_line FROM own JOIN lines ON lines.line = own.line \
             WHERE lines.parent_line IS NOT NULL) \
         SELECT ",
        line_columns!(),
        " FROM lines WHERE line IN (SELECT line FROM own) ORDER BY id"
    );
    let cursors = "SELECT line, pos, to_line FROM cursors WHERE session_id = ?1 ORDER BY line, pos";
    Ok(TreeShape {
        lines: all(connection, lines, [session.bytes()], line)?,
        cursors: all(connection, cursors, [session.bytes()], cursor)?,
    })
}

pub(in super::super) fn path_shape(
    connection: &Connection,
    session: SessionId,
    tip: Point,
) -> Result<TreeShape, StoreError> {
    let sql = "SELECT line, pos, to_line FROM cursors WHERE session_id = ?1 AND line = ?2 ORDER BY pos";
    let mut shape = TreeShape::default();
    let mut next = Some(tip.line);
    while let Some(id) = next {
        let line = line_known(connection, id)?;
        shape.cursors.extend(all(connection, sql, params![session.bytes(), id.0], cursor)?);
        shape.lines.push(line);
        next = line.parent.map(|parent| parent.line);
    }
    shape.lines.reverse();
    shape.cursors.sort();
    Ok(shape)
}

fn cursor(columns: &mut Columns<'_>) -> rusqlite::Result<(Point, LineId)> {
    let at = Point { line: LineId(columns.get()?), pos: columns.get()? };
    Ok((at, LineId(columns.get()?)))
}

pub(in super::super) fn line_messages(
    connection: &Connection,
    range: Range,
) -> Result<Vec<PlacedMessage>, StoreError> {
    let sql = concat!(
        "SELECT ",
        message_columns!(),
        " FROM messages WHERE line = ?1 AND pos BETWEEN ?2 AND ?3 ORDER BY pos"
    );
    all(connection, sql, params![range.line.0, range.from, range.to], message)
}

fn line_known(connection: &Connection, id: LineId) -> Result<Line, StoreError> {
    let sql = concat!("SELECT ", line_columns!(), " FROM lines WHERE line = ?1");
    one(connection, sql, [id.0], line)?
        .ok_or_else(|| StoreError::Corrupt(format!("line {} is not there", id.0)))
}
