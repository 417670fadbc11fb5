//! Reads sessions.

use std::collections::HashSet;
use std::sync::Arc;

use mainspring_core::{
    Attempt, CallResult, Cursor, Delegation, EventId, Line, LineId, MessageId, NodeId, Point, Position, Rows,
    Run, RunId, Session, SessionId, Time, Usage, WaitId,
};
use mainspring_kernel::board::LiveStatus;
use mainspring_kernel::store::{
    AnnouncedWait, Chunk, EndedToolCall, Fence, InboxItem, Loaded, OpenToolCall, SessionPage, SessionRef,
    SessionsOf, StoreError, Unfinished,
};
use tokio_postgres::Row;

use super::super::values::{
    all, get, get_id, get_json, get_maybe_id, get_maybe_json, get_point, get_u32, get_u64,
};
use super::{Conditions, RUN, RUN_COLUMNS, Reader, SESSION, SESSION_COLUMNS, run, session};

const LIVE: &str = "SELECT session_id FROM runs WHERE NOT ended UNION SELECT session_id FROM inbox";
const DELETED: &str = "SELECT session_id FROM sessions WHERE status = 'deleted'";
const COMPACTED: &str = "SELECT session_id FROM retention WHERE NOT pruned";
const BOUND: &str = "SELECT DISTINCT session_id FROM bindings WHERE active AND process_local";

/// Lists the unfinished sessions. With `home`, only those that have no home at another server.
pub(in super::super) async fn unfinished(
    reader: &Reader,
    home: Option<NodeId>,
) -> Result<Unfinished, StoreError> {
    let ids = async |sql: &str| {
        let sql = format!(
            "SELECT session_id FROM ({sql}) AS u WHERE $1::bytea IS NULL OR NOT EXISTS (
               SELECT 1 FROM leases AS l JOIN node_leases AS n USING (node_id)
               WHERE l.session_id = u.session_id AND l.node_id <> $1) ORDER BY 1"
        );
        let home = home.as_ref().map(|home| home.as_bytes().as_slice());
        let rows = reader.rows(&sql, &[&home]).await?;
        all(&rows, |row| Ok(SessionId::from_bytes(get_id(row, 0)?)))
    };
    Ok(Unfinished {
        live: ids(LIVE).await?,
        deleted: ids(DELETED).await?,
        compacted: ids(COMPACTED).await?,
        bound: ids(BOUND).await?,
    })
}

/// Finds the server at work that is the home of a session.
pub(in super::super) async fn home_find(
    reader: &Reader,
    session: SessionId,
) -> Result<Option<NodeId>, StoreError> {
    let sql =
        "SELECT l.node_id FROM leases AS l JOIN node_leases AS n USING (node_id) WHERE l.session_id = $1";
    let row = reader.row(sql, &[&session.as_bytes().as_slice()]).await?;
    row.map(|row| Ok(NodeId::from_bytes(get_id(&row, 0)?))).transpose()
}

/// Lists the sessions with the home `home` that have notes in their inbox, or that were handed to it.
pub(in super::super) async fn inbox_at_home(
    reader: &Reader,
    home: NodeId,
) -> Result<Vec<SessionId>, StoreError> {
    let sql = "SELECT session_id FROM inbox JOIN leases AS l USING (session_id) WHERE l.node_id = $1
               UNION SELECT session_id FROM leases WHERE node_id = $1 AND handed";
    let rows = reader.rows(sql, &[&home.as_bytes().as_slice()]).await?;
    all(&rows, |row| Ok(SessionId::from_bytes(get_id(row, 0)?)))
}

/// Lists the waits that servers have announced.
pub(in super::super) async fn waits_announced(reader: &Reader) -> Result<Vec<AnnouncedWait>, StoreError> {
    let sql = "SELECT wait_id, waiting_session_id, awaited_session_id FROM announced_waits";
    all(&reader.rows(sql, &[]).await?, |row| {
        Ok(AnnouncedWait {
            id: WaitId::from_bytes(get_id(row, 0)?),
            waiting: SessionId::from_bytes(get_id(row, 1)?),
            awaited: SessionId::from_bytes(get_id(row, 2)?),
        })
    })
}

/// Reads the sessions that other servers than `home` have in memory.
pub(in super::super) async fn live_elsewhere(
    reader: &Reader,
    home: NodeId,
) -> Result<Vec<(Session, LiveStatus)>, StoreError> {
    let sql = format!(
        "SELECT {SESSION},
           EXISTS (SELECT 1 FROM runs AS r WHERE r.session_id = s.session_id AND NOT r.ended),
           EXISTS (SELECT 1 FROM runs AS r WHERE r.session_id = s.session_id AND NOT r.ended
                     AND r.status IN ('waiting_input', 'waiting_approval'))
         FROM leases AS l JOIN node_leases AS n USING (node_id) JOIN sessions AS s USING (session_id)
         WHERE l.node_id <> $1 AND NOT l.released AND s.status <> 'deleted'"
    );
    let rows = reader.rows(&sql, &[&home.as_bytes().as_slice()]).await?;
    let live = |row: &Row| {
        let status = match (get(row, SESSION_COLUMNS)?, get(row, SESSION_COLUMNS + 1)?) {
            (_, true) => LiveStatus::Paused,
            (true, false) => LiveStatus::Busy,
            (false, false) => LiveStatus::Idle,
        };
        Ok((session(row)?, status))
    };
    all(&rows, live)
}

/// Loads a session. `reader` must read one snapshot. `epoch` is the epoch of the session's current lease.
pub(in super::super) async fn session_load(
    reader: &Reader,
    id: SessionId,
    epoch: u64,
) -> Result<Option<Loaded>, StoreError> {
    let key = id.as_bytes().as_slice();
    let Some(session) = session_get(reader, id).await? else { return Ok(None) };
    let runs = live_runs(reader, id).await?;
    let latest = latest_run(reader, id).await?;
    let points = session.tip.into_iter().chain(runs.iter().filter_map(|(run, _)| run.pen));
    let lines = own_lines(reader, id, points.collect()).await?;
    let sql = "SELECT pos, message_id, block, text FROM chunks WHERE session_id = $1 ORDER BY pos";
    let fence = Fence { session: id, epoch };
    let chunks = all(&reader.rows(sql, &[&key]).await?, |row| chunk(row, fence))?;
    let sql = "SELECT run_id, tool_use_id, started_at, message_id, name, result FROM effects
               WHERE session_id = $1 ORDER BY id";
    let open_tool_calls = all(&reader.rows(sql, &[&key]).await?, effect)?;
    let sql = "SELECT cursor, pos FROM events WHERE session_id = $1 ORDER BY cursor DESC LIMIT 1";
    let last = reader.row(sql, &[&key]).await?.map(|row| position(&row)).transpose()?.unwrap_or_default();
    let floor = floor(reader, id).await?;
    let last = last.max(floor.unwrap_or_default());
    let chunk_end = chunks.last().map_or(0, |chunk| chunk.pos + chunk.text.len() as u64);
    Ok(Some(Loaded {
        latest,
        lines,
        open_tool_calls,
        inbox: inbox(reader, id).await?,
        delegations: unsettled(reader, id, &runs).await?,
        cursor: last.cursor,
        pos: last.pos.max(chunk_end),
        floor,
        session,
        runs,
        chunks,
    }))
}

async fn session_get(reader: &Reader, id: SessionId) -> Result<Option<Session>, StoreError> {
    let sql = format!("SELECT {SESSION} FROM sessions AS s WHERE session_id = $1 AND status <> 'deleted'");
    reader.row(&sql, &[&id.as_bytes().as_slice()]).await?.map(|row| session(&row)).transpose()
}

async fn live_runs(reader: &Reader, id: SessionId) -> Result<Vec<(Run, Option<Attempt>)>, StoreError> {
    let sql = format!(
        "SELECT {RUN}, (SELECT a.body FROM attempts AS a WHERE a.run_id = r.run_id ORDER BY attempt_no DESC LIMIT 1)
         FROM runs AS r WHERE session_id = $1 AND NOT ended ORDER BY run_no"
    );
    let rows = reader.rows(&sql, &[&id.as_bytes().as_slice()]).await?;
    all(&rows, |row| Ok((run(row, 0)?, get_maybe_json(row, RUN_COLUMNS)?)))
}

async fn latest_run(reader: &Reader, id: SessionId) -> Result<Option<Run>, StoreError> {
    let sql = format!("SELECT {RUN} FROM runs AS r WHERE session_id = $1 ORDER BY run_no DESC LIMIT 1");
    reader.row(&sql, &[&id.as_bytes().as_slice()]).await?.map(|row| run(&row, 0)).transpose()
}

/// Reads the lines of `points` that belong to the session, in the order of `points`.
async fn own_lines(reader: &Reader, id: SessionId, points: Vec<Point>) -> Result<Vec<Line>, StoreError> {
    let wanted: Vec<i64> = points.iter().map(|point| point.line.0).collect();
    let sql = "SELECT line, parent_line, parent_pos, end_pos, abandoned FROM lines
               WHERE session_id = $1 AND line = ANY ($2)";
    let rows = reader.rows(sql, &[&id.as_bytes().as_slice(), &wanted]).await?;
    let found = all(&rows, line)?;
    let mut seen = HashSet::new();
    let wanted = wanted.into_iter().filter(|line| seen.insert(*line));
    Ok(wanted.filter_map(|id| found.iter().find(|line| line.id.0 == id).copied()).collect())
}

/// Reads a line from `line, parent_line, parent_pos, end_pos, abandoned`.
pub(super) fn line(row: &Row) -> Result<Line, StoreError> {
    Ok(Line {
        id: LineId(get(row, 0)?),
        parent: get_point(row, 1)?,
        end: get_u32(row, 3)?,
        abandoned: get(row, 4)?,
    })
}

fn chunk(row: &Row, fence: Fence) -> Result<Chunk, StoreError> {
    let text = String::from_utf8(get(row, 3)?)
        .map_err(|error| StoreError::Corrupt(format!("streamed text is not UTF-8: {error}")))?;
    let message = MessageId::from_bytes(get_id(row, 1)?);
    Ok(Chunk { fence, pos: get_u64(row, 0)?, message, block: get_u32(row, 2)?, text })
}

/// Reads an open tool call from `run_id, tool_use_id, started_at, message_id, name, result`.
pub(in super::super) fn effect(row: &Row) -> Result<OpenToolCall, StoreError> {
    let (message, result) = (get_maybe_id(row, 3)?, get_maybe_json::<CallResult>(row, 5)?);
    let ended = message.zip(result).map(|(message, result)| EndedToolCall {
        result: Arc::new(result),
        message: MessageId::from_bytes(message),
    });
    Ok(OpenToolCall {
        run: RunId::from_bytes(get_id(row, 0)?),
        tool_use_id: get(row, 1)?,
        name: get_json(row, 4)?,
        started_at: get::<Option<i64>>(row, 2)?.map(Time),
        ended,
    })
}

pub(super) fn position(row: &Row) -> Result<Position, StoreError> {
    Ok(Position { cursor: Cursor(get_u64(row, 0)?), pos: get_u64(row, 1)? })
}

/// The position up to which the events of a session are pruned.
pub(super) async fn floor(reader: &Reader, id: SessionId) -> Result<Option<Position>, StoreError> {
    let sql = "SELECT floor_cursor, floor_pos FROM retention WHERE session_id = $1";
    reader.row(sql, &[&id.as_bytes().as_slice()]).await?.map(|row| position(&row)).transpose()
}

pub(in super::super) async fn inbox(reader: &Reader, id: SessionId) -> Result<Vec<InboxItem>, StoreError> {
    let sql = "SELECT event_id, created_at, note FROM inbox WHERE session_id = $1 ORDER BY id";
    let rows = reader.rows(sql, &[&id.as_bytes().as_slice()]).await?;
    all(&rows, |row| {
        Ok(InboxItem {
            id: EventId::from_bytes(get_id(row, 0)?),
            at: Time(get(row, 1)?),
            note: get_json(row, 2)?,
        })
    })
}

/// The delegations that are not settled and have one of `runs` as parent or child.
async fn unsettled(
    reader: &Reader,
    session: SessionId,
    runs: &[(Run, Option<Attempt>)],
) -> Result<Vec<Delegation>, StoreError> {
    if runs.is_empty() {
        return Ok(vec![]);
    }
    let ids: Vec<Vec<u8>> = runs.iter().map(|(run, _)| run.id.as_bytes().to_vec()).collect();
    let sql = "SELECT body FROM delegations WHERE child_run_id = ANY ($2)
               OR (parent_session_id = $1 AND parent_run_id = ANY ($2)) ORDER BY created_at, delegation_id";
    let rows = reader.rows(sql, &[&session.as_bytes().as_slice(), &ids]).await?;
    let mut found: Vec<Delegation> = all(&rows, |row| get_json(row, 0))?;
    found.retain(|delegation| !delegation.status.is_settled());
    let of_run = |run: &Run| {
        let children = found.iter().filter(|one| run.parent.is_some() && one.child_run == run.id);
        let parents = found.iter().filter(|one| (one.parent_session, one.parent_run) == (session, run.id));
        children.chain(parents).cloned().collect::<Vec<_>>()
    };
    Ok(runs.iter().flat_map(|(run, _)| of_run(run)).collect())
}

pub(in super::super) async fn session_find(
    reader: &Reader,
    owner: &str,
    by: &SessionRef,
) -> Result<Option<Session>, StoreError> {
    let found = format!("SELECT {SESSION} FROM sessions AS s WHERE status <> 'deleted' AND ");
    let row = match by {
        SessionRef::Id(id) => return session_get(reader, *id).await,
        SessionRef::Key(key) => {
            reader.row(&format!("{found} owner_id = $1 AND key = $2"), &[&owner, &key.as_str()]).await?
        }
        SessionRef::External(external) => {
            let sql = format!("{found} owner_id = $1 AND external_kind = $2 AND external_id = $3");
            reader.row(&sql, &[&owner, &external.kind.as_str(), &external.id.as_str()]).await?
        }
        SessionRef::Legacy(alias) => {
            let sql = format!("{found} owner_id = $1 AND legacy_scope = $2 AND legacy_key = $3");
            reader.row(&sql, &[&owner, &alias.scope.as_str(), &alias.key.as_str()]).await?
        }
    };
    row.map(|row| session(&row)).transpose()
}

pub(in super::super) async fn session_page(
    reader: &Reader,
    page: &SessionPage,
) -> Result<Rows<(Session, Option<Run>)>, StoreError> {
    let mut conditions = Conditions::default();
    conditions.add("s.status <> 'deleted'", vec![]);
    match &page.of {
        SessionsOf::Owner(owner) => conditions.add("s.owner_id = ?", vec![Box::new(owner.clone())]),
        SessionsOf::Org(org) => {
            conditions.add("s.visibility = 'org' AND s.org_id = ?", vec![Box::new(org.clone())]);
        }
    }
    if let Some(by) = &page.pinned {
        let pinned =
            "EXISTS (SELECT 1 FROM pins AS p WHERE p.session_id = s.session_id AND p.owner_id = ?) = ?";
        conditions.add(pinned, vec![Box::new(by.owner.clone()), Box::new(by.is_pinned)]);
    }
    if let Some(status) = page.status {
        conditions.add("s.status = ?", vec![Box::new(status.name().to_owned())]);
    }
    if let Some(kind) = &page.surface_kind {
        conditions.add("s.surface_kind = ?", vec![Box::new(kind.clone())]);
    }
    if let Some((at, id)) = page.before {
        let before = "(s.last_activity_at, s.session_id) < (?, ?)";
        conditions.add(before, vec![Box::new(at.0), Box::new(id.as_bytes().to_vec())]);
    }
    let sql = format!(
        "SELECT {SESSION}, {RUN} FROM sessions AS s LEFT JOIN LATERAL
           (SELECT * FROM runs WHERE runs.session_id = s.session_id ORDER BY run_no DESC LIMIT 1) AS r ON true
         {} ORDER BY s.last_activity_at DESC, s.session_id DESC",
        conditions.sql
    );
    let read = |row: &Row| {
        let has_run = get::<Option<&str>>(row, SESSION_COLUMNS)?.is_some();
        Ok((session(row)?, has_run.then(|| run(row, SESSION_COLUMNS)).transpose()?))
    };
    reader.page("session", &sql, &conditions.params(), page.limit, read).await
}

pub(in super::super) async fn session_forks(
    reader: &Reader,
    id: SessionId,
) -> Result<Vec<SessionId>, StoreError> {
    let sql = "SELECT f.session_id FROM sessions AS f JOIN sessions AS s ON s.session_id = $1
               WHERE f.forked_from = $1 AND f.status <> 'deleted' AND f.owner_id = s.owner_id ORDER BY 1";
    let rows = reader.rows(sql, &[&id.as_bytes().as_slice()]).await?;
    all(&rows, |row| Ok(SessionId::from_bytes(get_id(row, 0)?)))
}

pub(in super::super) async fn session_usage(
    reader: &Reader,
    id: SessionId,
) -> Result<(u64, Usage), StoreError> {
    let sql = "SELECT body FROM runs WHERE session_id = $1";
    let rows = reader.rows(sql, &[&id.as_bytes().as_slice()]).await?;
    let runs: Vec<Run> = all(&rows, |row| get_json(row, 0))?;
    Ok((runs.len() as u64, runs.iter().fold(Usage::default(), |sum, run| sum + run.usage)))
}

pub(in super::super) async fn delegated_usage(
    reader: &Reader,
    id: SessionId,
) -> Result<(u64, Usage), StoreError> {
    let sql = "WITH RECURSIVE below AS (
        SELECT child_session_id, child_run_id FROM delegations WHERE parent_session_id = $1
        UNION
        SELECT d.child_session_id, d.child_run_id FROM delegations AS d JOIN below AS b
          ON d.parent_session_id = b.child_session_id AND d.parent_run_id = b.child_run_id)
      SELECT (SELECT r.body FROM runs AS r JOIN sessions AS s USING (session_id)
              WHERE r.run_id = b.child_run_id AND s.status <> 'deleted')
      FROM below AS b WHERE b.child_session_id <> $1";
    let rows = reader.rows(sql, &[&id.as_bytes().as_slice()]).await?;
    let usages =
        all(&rows, |row| Ok(get_maybe_json::<Run>(row, 0)?.map_or(Usage::UNKNOWN, |run| run.usage)))?;
    Ok((usages.len() as u64, usages.into_iter().fold(Usage::default(), |sum, usage| sum + usage)))
}
