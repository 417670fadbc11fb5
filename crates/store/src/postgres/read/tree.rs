//! Reads the tree of messages.
//!
//! A session's lines and cursors are few, and are read at once; messages are read by ranges of lines.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;

use mainspring_core::tree::{Inherited, TreeView, leaf as leaf_of, ranges};
use mainspring_core::{Digest, Line, LineId, MessageId, Point, Range, Rows, SessionId, Time};
use mainspring_kernel::store::{PlacedMessage, SessionLine, StoreError, TreeRow};
use tokio_postgres::Row;

use super::super::values::{all, get, get_id, get_maybe_id, get_maybe_json, get_point, get_u32, get_u64};
use super::sessions::line as read_line;
use super::{MESSAGE, Reader, message};

/// The tree as one session sees it, without its messages.
pub(super) struct Tree {
    session: SessionId,
    /// The session's own lines, oldest first.
    own: Vec<Line>,
    /// The path to the base of a fork.
    inherited: Inherited,
    cursors: BTreeMap<Point, LineId>,
    /// Every line that was read.
    lines: HashMap<LineId, Line>,
}

impl Tree {
    pub(super) async fn read(reader: &Reader, session: SessionId) -> Result<Self, StoreError> {
        let key = session.as_bytes().as_slice();
        let sql = "SELECT base_line, base_pos FROM sessions WHERE session_id = $1";
        let base = reader.row(sql, &[&key]).await?.map_or(Ok(None), |row| get_point(&row, 0))?;
        let sql = "SELECT line, parent_line, parent_pos, end_pos, abandoned FROM lines
                   WHERE session_id = $1 ORDER BY id";
        let own = all(&reader.rows(sql, &[&key]).await?, read_line)?;
        let sql = "SELECT line, pos, to_line FROM cursors WHERE session_id = $1";
        let cursors = all(&reader.rows(sql, &[&key]).await?, |row| {
            Ok((Point { line: LineId(get(row, 0)?), pos: get_u32(row, 1)? }, LineId(get(row, 2)?)))
        })?;
        let mut lines = match base {
            Some(base) => lines_above(reader, base.line).await?,
            None => HashMap::new(),
        };
        let inherited = Inherited::new(ranges(base, |id| parent_of(&lines, id))?);
        let cursors: BTreeMap<Point, LineId> = cursors.into_iter().collect();
        lines.extend(own.iter().map(|line| (line.id, *line)));
        let missing: Vec<i64> =
            cursors.values().filter(|id| !lines.contains_key(id)).map(|id| id.0).collect();
        if !missing.is_empty() {
            let sql =
                "SELECT line, parent_line, parent_pos, end_pos, abandoned FROM lines WHERE line = ANY ($1)";
            let more = all(&reader.rows(sql, &[&missing]).await?, read_line)?;
            lines.extend(more.into_iter().map(|line| (line.id, line)));
        }
        Ok(Self { session, own, inherited, cursors, lines })
    }

    fn own(&self, id: LineId) -> Option<&Line> {
        self.own.iter().find(|line| line.id == id)
    }

    /// True if the session sees a message at this point, or one without a point of the session `of`.
    pub(super) fn sees(&self, of: SessionId, point: Option<Point>) -> bool {
        let contains = |point: Point| {
            self.own(point.line).is_some_and(|line| line.start() <= point.pos)
                || !self.inherited.ahead(point).is_empty()
        };
        point.map_or(of == self.session, contains)
    }

    /// The first message of the line `to`, if that line is a child of `at`.
    fn child_start(&self, at: Point, to: LineId) -> Option<Point> {
        let line = self.lines.get(&to)?;
        (line.parent == Some(at)).then(|| line_start(line)).flatten()
    }

    /// The first messages of the session's lines that are children of `at`, oldest first.
    fn child_starts(&self, at: Option<Point>) -> impl DoubleEndedIterator<Item = Point> {
        self.own.iter().filter(move |line| line.parent == at).filter_map(line_start)
    }

    /// The next message on the same line.
    fn next_on_line(&self, at: Point) -> Option<Point> {
        let next = Point { pos: at.pos + 1, ..at };
        match self.own(at.line) {
            Some(line) => (next.pos < line.end).then_some(next),
            None => self.inherited.next(Some(at)),
        }
    }

    /// The points that a row of the tree refers to: its parent, the child that the parent's cursor leads to, and the child
    /// that its own cursor leads to.
    fn neighbours(&self, point: Point, line: &Line) -> (Option<Point>, Option<Point>, Option<Point>) {
        let above = match point.pos > line.start() {
            true => Some(Point { pos: point.pos - 1, ..point }),
            false => line.parent,
        };
        let cursor = |at: Point| self.child_start(at, *self.cursors.get(&at)?);
        (above, above.and_then(cursor), cursor(point).or_else(|| self.next_on_line(point)))
    }

    /// Makes the rows of messages: reads the ids of their parents and of the messages that their cursors lead to.
    async fn rows(&self, reader: &Reader, placed: Vec<PlacedMessage>) -> Result<Vec<TreeRow>, StoreError> {
        let found: Vec<(PlacedMessage, Point, Line)> = placed
            .into_iter()
            .filter_map(|placed| {
                let point = placed.point?;
                let line = *self.lines.get(&point.line)?;
                Some((placed, point, line))
            })
            .collect();
        let around = found.iter().flat_map(|(_, point, line)| {
            let (above, _, cursor) = self.neighbours(*point, line);
            [above, cursor]
        });
        let ids = ids_at(reader, &around.flatten().collect::<Vec<_>>()).await?;
        let id = |point: Option<Point>| point.and_then(|point| ids.get(&point).copied());
        let row = |(placed, point, line): (PlacedMessage, Point, Line)| {
            let (above, followed, cursor) = self.neighbours(point, &line);
            TreeRow {
                message: placed.message,
                point,
                abandoned: line.abandoned,
                parent: id(above),
                parent_point: above,
                followed: followed == Some(point),
                cursor: id(cursor),
            }
        };
        Ok(found.into_iter().map(row).collect())
    }
}

impl TreeView for Tree {
    type Error = Infallible;

    fn ahead(&mut self, at: Point) -> Result<Vec<Range>, Infallible> {
        let own = self.own(at.line).filter(|line| (line.start()..line.end).contains(&at.pos));
        Ok(match own {
            Some(line) => vec![Range { line: line.id, from: at.pos, to: line.end - 1 }],
            None => self.inherited.ahead(at),
        })
    }

    fn cursor_target(&mut self, range: Range) -> Result<Option<Point>, Infallible> {
        let mut cursors = self.cursors.range(range.first()..=range.last());
        Ok(cursors.find_map(|(at, to)| self.child_start(*at, *to)))
    }

    fn newest(&mut self, at: Point) -> Result<Option<Point>, Infallible> {
        Ok(self.child_starts(Some(at)).next_back())
    }
}

/// The first message of a line unless the line is empty or abandoned.
fn line_start(line: &Line) -> Option<Point> {
    (!line.abandoned && line.end > line.start()).then(|| Point { line: line.id, pos: line.start() })
}

fn parent_of(lines: &HashMap<LineId, Line>, id: LineId) -> Result<Option<Point>, StoreError> {
    let missing = || StoreError::Corrupt(format!("line {} is missing", id.0));
    lines.get(&id).map(|line| line.parent).ok_or_else(missing)
}

/// Reads a line and its ancestors.
async fn lines_above(reader: &Reader, id: LineId) -> Result<HashMap<LineId, Line>, StoreError> {
    let sql = "WITH RECURSIVE above AS (
        SELECT line, parent_line, parent_pos, end_pos, abandoned FROM lines WHERE line = $1
        UNION
        SELECT l.line, l.parent_line, l.parent_pos, l.end_pos, l.abandoned FROM lines AS l JOIN above AS a
          ON l.line = a.parent_line)
      SELECT * FROM above";
    let lines = all(&reader.rows(sql, &[&id.0]).await?, read_line)?;
    Ok(lines.into_iter().map(|line| (line.id, line)).collect())
}

/// The ids of the messages at points.
async fn ids_at(reader: &Reader, points: &[Point]) -> Result<HashMap<Point, MessageId>, StoreError> {
    let lines: Vec<i64> = points.iter().map(|point| point.line.0).collect();
    let positions: Vec<i64> = points.iter().map(|point| i64::from(point.pos)).collect();
    let sql = "SELECT DISTINCT m.message_id, m.line, m.pos FROM unnest($1, $2) AS u(line, pos)
               JOIN messages AS m ON m.line = u.line AND m.pos = u.pos";
    let rows = reader.rows(sql, &[&lines, &positions]).await?;
    let found = all(&rows, |row| Ok((get_point(row, 1)?, MessageId::from_bytes(get_id(row, 0)?))))?;
    Ok(found.into_iter().filter_map(|(point, id)| Some((point?, id))).collect())
}

/// The columns of ranges: lines, first and last positions.
fn range_columns(ranges: &[Range]) -> (Vec<i64>, Vec<i64>, Vec<i64>) {
    let lines = ranges.iter().map(|range| range.line.0).collect();
    let from = ranges.iter().map(|range| i64::from(range.from)).collect();
    (lines, from, ranges.iter().map(|range| i64::from(range.to)).collect())
}

async fn message_at(reader: &Reader, at: Point) -> Result<Option<PlacedMessage>, StoreError> {
    let sql = format!("SELECT {MESSAGE} FROM messages AS m WHERE line = $1 AND pos = $2");
    reader.row(&sql, &[&at.line.0, &i64::from(at.pos)]).await?.map(|row| message(&row)).transpose()
}

pub(in super::super) async fn path(
    reader: &Reader,
    tip: Point,
    before: Option<u32>,
    limit: usize,
) -> Result<Rows<PlacedMessage>, StoreError> {
    let lines = lines_above(reader, tip.line).await?;
    let (lines, from, to) = range_columns(&ranges(Some(tip), |id| parent_of(&lines, id))?);
    let sql = format!(
        "SELECT {MESSAGE} FROM unnest($1, $2, $3) AS u(line, first, last)
         JOIN messages AS m ON m.line = u.line AND m.pos BETWEEN u.first AND u.last
         WHERE m.pos < $4 ORDER BY m.pos DESC"
    );
    let before = before.map_or(i64::MAX, i64::from);
    let mut path = reader.page("message", &sql, &[&lines, &from, &to, &before], limit, message).await?;
    path.reverse();
    Ok(path)
}

pub(in super::super) async fn message_get(
    reader: &Reader,
    session: SessionId,
    id: MessageId,
) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError> {
    let sql = format!("SELECT {MESSAGE} FROM messages AS m WHERE message_id = $1");
    let Some(row) = reader.row(&sql, &[&id.as_bytes().as_slice()]).await? else { return Ok(None) };
    let placed = message(&row)?;
    let tree = Tree::read(reader, session).await?;
    if !tree.sees(placed.message.session, placed.point) {
        return Ok(None);
    }
    let line = placed.point.and_then(|point| tree.lines.get(&point.line).copied());
    Ok(Some((placed, line)))
}

pub(in super::super) async fn digest(
    reader: &Reader,
    session: SessionId,
    tip: Point,
) -> Result<Option<Digest>, StoreError> {
    let lines = lines_above(reader, tip.line).await?;
    let (lines, from, to) = range_columns(&ranges(Some(tip), |id| parent_of(&lines, id))?);
    let sql =
        "SELECT d.line, d.pos, d.message_id, d.prompt_id, d.summary, d.left_out, d.below_tokens, d.made_at
               FROM unnest($1, $2, $3) AS u(line, first, last)
               JOIN digests AS d ON d.line = u.line AND d.pos BETWEEN u.first AND u.last
               JOIN lines AS l ON l.line = d.line
               WHERE d.pos < $4 AND (d.session_id = $5 OR d.session_id = l.opened_by)
               ORDER BY d.pos DESC, (d.session_id = $5) DESC LIMIT 1";
    let (pos, key) = (i64::from(tip.pos), session.as_bytes().as_slice());
    let row = reader.row(sql, &[&lines, &from, &to, &pos, &key]).await?;
    row.map(|row| read_digest(&row)).transpose()
}

pub(in super::super) fn read_digest(row: &Row) -> Result<Digest, StoreError> {
    Ok(Digest {
        at: Point { line: LineId(get(row, 0)?), pos: get_u32(row, 1)? },
        message: MessageId::from_bytes(get_id(row, 2)?),
        prompt: get_maybe_id(row, 3)?.map(MessageId::from_bytes),
        summary: get_maybe_json(row, 4)?,
        left_out: get_u32(row, 5)?,
        below_tokens: get_u64(row, 6)?,
        made_at: Time(get(row, 7)?),
    })
}

pub(in super::super) async fn lines_to_root(
    reader: &Reader,
    session: SessionId,
    from: LineId,
    limit: usize,
) -> Result<Vec<SessionLine>, StoreError> {
    let tree = Tree::read(reader, session).await?;
    let above = lines_above(reader, from).await?;
    let (mut lines, mut next) = (vec![], Some(from));
    while let Some(id) = next.filter(|_| lines.len() < limit) {
        let missing = || StoreError::Corrupt(format!("line {} is missing", id.0));
        let line = *above.get(&id).ok_or_else(missing)?;
        let within = tree.cursors.iter().filter(|(at, _)| at.line == id);
        let cursors = within.map(|(at, to)| (at.pos, *to)).collect();
        lines.push(SessionLine { line, own: tree.own(id).is_some(), cursors });
        next = line.parent.map(|parent| parent.line);
    }
    Ok(lines)
}

pub(in super::super) async fn leaf(
    reader: &Reader,
    session: SessionId,
    at: Point,
) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError> {
    let mut tree = Tree::read(reader, session).await?;
    let Ok(leaf) = leaf_of(&mut tree, at);
    let placed = message_at(reader, leaf).await?;
    Ok(placed.map(|placed| (placed, tree.own(leaf.line).copied())))
}

pub(in super::super) async fn children(
    reader: &Reader,
    session: SessionId,
    at: Option<Point>,
    limit: usize,
) -> Result<Vec<MessageId>, StoreError> {
    let tree = Tree::read(reader, session).await?;
    let next = match at {
        Some(at) => tree.next_on_line(at),
        None => tree.inherited.next(None),
    };
    let points: Vec<Point> = next.into_iter().chain(tree.child_starts(at)).take(limit).collect();
    let ids = ids_at(reader, &points).await?;
    Ok(points.iter().filter_map(|point| ids.get(point).copied()).collect())
}

pub(in super::super) async fn tree_row(
    reader: &Reader,
    session: SessionId,
    id: MessageId,
) -> Result<Option<TreeRow>, StoreError> {
    let Some((placed, line)) = message_get(reader, session, id).await? else { return Ok(None) };
    let mut tree = Tree::read(reader, session).await?;
    tree.lines.extend(line.map(|line| (line.id, line)));
    Ok(tree.rows(reader, vec![placed]).await?.pop())
}

pub(in super::super) async fn tree_page(
    reader: &Reader,
    session: SessionId,
    after: Option<Point>,
    limit: usize,
) -> Result<Rows<TreeRow>, StoreError> {
    let tree = Tree::read(reader, session).await?;
    let own = tree.own.iter().filter(|line| line.end > line.start());
    let own = own.map(|line| Range { line: line.id, from: line.start(), to: line.end - 1 });
    let mut ahead: Vec<Range> = tree.inherited.ranges().iter().copied().chain(own).collect();
    if let Some(after) = after {
        let index = ahead.iter().position(|range| range.contains(after)).unwrap_or(ahead.len());
        ahead.drain(..index);
        ahead.iter_mut().take(1).for_each(|range| range.from = after.pos + 1);
    }
    let (lines, from, to) = range_columns(&ahead);
    let sql = format!(
        "SELECT {MESSAGE} FROM unnest($1, $2, $3) WITH ORDINALITY AS u(line, first, last, place)
         JOIN messages AS m ON m.line = u.line AND m.pos BETWEEN u.first AND u.last
         ORDER BY u.place, m.pos"
    );
    let placed = reader.page("message", &sql, &[&lines, &from, &to], limit, message).await?;
    let damaged = placed.damaged;
    Ok(Rows { items: tree.rows(reader, placed.items).await?, damaged })
}
