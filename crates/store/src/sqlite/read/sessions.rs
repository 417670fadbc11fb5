//! Reads sessions: for an actor, by name, in pages, and those that a start must handle.

use std::collections::HashSet;

use mainspring_core::{Attempt, Cursor, Damage, Line, LineId, Position, Rows, Run, Session, SessionId};
use mainspring_kernel::store::{
    Chunk, Fence, InboxItem, Loaded, OpenToolCall, SessionPage, SessionRef, SessionsOf, StoreError,
    Unfinished,
};
use rusqlite::{Connection, params};

use super::super::checksum;
use super::super::columns::Id;
use super::{
    Stored, attempt, attempt_columns, chunk_columns, effect, effect_columns, is_live, line, line_columns,
    page_start, query_all, query_one, query_stored, rows, run, run_columns, session, session_columns,
    sql_limit,
};

pub(in super::super) fn unfinished(connection: &Connection) -> Result<Unfinished, StoreError> {
    let live = concat!(
        "SELECT session_id FROM runs INDEXED BY runs_live_uq WHERE ",
        is_live!(),
        " UNION SELECT session_id FROM inbox ORDER BY session_id"
    );
    let deleted = "SELECT session_id FROM sessions WHERE status = 'deleted' ORDER BY session_id";
    let compacted = "SELECT session_id FROM retention WHERE pruned = 0 ORDER BY session_id";
    // The condition of the partial index, repeated exactly.
    let bound = "SELECT DISTINCT session_id FROM adapter_bindings INDEXED BY adapter_bindings_process_idx \
                 WHERE status = 'active' AND resume_fidelity <> 'native' ORDER BY session_id";
    Ok(Unfinished {
        live: query_all(connection, live, [], |columns| columns.id())?,
        deleted: query_all(connection, deleted, [], |columns| columns.id())?,
        compacted: query_all(connection, compacted, [], |columns| columns.id())?,
        bound: query_all(connection, bound, [], |columns| columns.id())?,
    })
}

/// Loads a session. `epoch` is that of the session's current lease, and is set on its chunks.
pub(in super::super) fn session_load(
    connection: &Connection,
    id: SessionId,
    epoch: u64,
) -> Result<Option<Loaded>, StoreError> {
    let sql = concat!(
        "SELECT ",
        session_columns!(),
        " FROM sessions WHERE session_id = ?1 AND status <> 'deleted'"
    );
    let Some(session) = query_one(connection, sql, [id.bytes()], session)? else {
        return Ok(None);
    };
    let runs = runs_live(connection, id)?;
    let chunks = chunks(connection, Fence { session: id, epoch })?;
    let floor = super::events::floor(connection, id)?;
    // If all events were pruned, the last one was at the floor.
    let last = last_event(connection, id)?.max(floor.unwrap_or_default());
    let chunk_end = chunks.last().map_or(0, |chunk: &Chunk| chunk.pos + chunk.text.len() as u64);
    Ok(Some(Loaded {
        latest: run_latest(connection, id)?,
        lines: lines_of(connection, &session, &runs)?,
        open_tool_calls: effects(connection, id)?,
        inbox: inbox(connection, id)?,
        delegations: super::delegations::unsettled(connection, &runs)?,
        pos: last.pos.max(chunk_end),
        session,
        runs,
        chunks,
        cursor: last.cursor,
        floor,
    }))
}

fn runs_live(connection: &Connection, id: SessionId) -> Result<Vec<(Run, Option<Attempt>)>, StoreError> {
    let sql = concat!(
        "SELECT ",
        run_columns!(),
        " FROM runs INDEXED BY runs_live_uq WHERE session_id = ?1 AND ",
        is_live!(),
        " ORDER BY run_no"
    );
    let latest = concat!(
        "SELECT ",
        attempt_columns!(),
        " FROM run_attempts WHERE run_id = ?1 ORDER BY attempt_no DESC LIMIT 1"
    );
    let runs = query_all(connection, sql, [id.bytes()], run)?;
    runs.into_iter()
        .map(|run| {
            let attempt = query_one(connection, latest, [run.id.bytes()], attempt)?;
            Ok((run, attempt))
        })
        .collect()
}

/// Lists the unfinished runs of the sessions that `owner` or a member of `org` may read.
pub(in super::super) fn runs_live_of(
    connection: &Connection,
    owner: &str,
    org: Option<&str>,
) -> Result<Rows<Run>, StoreError> {
    let sql = concat!(
        "SELECT ",
        run_columns!(),
        " FROM runs INDEXED BY runs_live_uq WHERE ",
        is_live!(),
        " AND EXISTS (SELECT 1 FROM sessions AS s WHERE s.session_id = runs.session_id AND s.status <> 'deleted' \
            AND (s.owner_id = ?1 OR (s.visibility = 'org' AND s.org_id = ?2))) \
          ORDER BY created_at_ms, run_id"
    );
    Ok(query_stored(connection, sql, params![owner, org], run)?.into_iter().collect())
}

fn run_latest(connection: &Connection, id: SessionId) -> Result<Option<Run>, StoreError> {
    let latest = run_latest_stored(connection, id)?.transpose();
    latest.map_err(|damage| StoreError::Corrupt(damage.message))
}

fn run_latest_stored(connection: &Connection, id: SessionId) -> Result<Option<Stored<Run>>, StoreError> {
    let sql =
        concat!("SELECT ", run_columns!(), " FROM runs WHERE session_id = ?1 ORDER BY run_no DESC LIMIT 1");
    Ok(query_stored(connection, sql, [id.bytes()], run)?.pop())
}

/// Reads the lines on which the session or one of its runs writes.
fn lines_of(
    connection: &Connection,
    session: &Session,
    runs: &[(Run, Option<Attempt>)],
) -> Result<Vec<Line>, StoreError> {
    // A session writes only on its own lines.
    let sql = concat!("SELECT ", line_columns!(), " FROM lines WHERE line = ?1 AND session_id = ?2");
    let points = session.tip.into_iter().chain(runs.iter().filter_map(|(run, _)| run.pen));
    let mut seen = HashSet::<LineId>::new();
    let mut lines = vec![];
    for point in points.filter(|point| seen.insert(point.line)) {
        lines.extend(query_one(connection, sql, params![point.line.0, session.id.bytes()], line)?);
    }
    Ok(lines)
}

fn chunks(connection: &Connection, fence: Fence) -> Result<Vec<Chunk>, StoreError> {
    let sql = concat!("SELECT ", chunk_columns!(), " FROM chunks WHERE session_id = ?1 ORDER BY pos");
    query_all(connection, sql, [fence.session.bytes()], |columns| {
        columns.check(&checksum::CHUNK)?;
        Ok(Chunk {
            fence,
            pos: columns.number()?,
            message: columns.id()?,
            block: columns.get()?,
            text: columns.get()?,
        })
    })
}

fn effects(connection: &Connection, id: SessionId) -> Result<Vec<OpenToolCall>, StoreError> {
    let sql = concat!("SELECT ", effect_columns!(), " FROM effects WHERE session_id = ?1 ORDER BY id");
    query_all(connection, sql, [id.bytes()], effect)
}

pub(in super::super) fn inbox(connection: &Connection, id: SessionId) -> Result<Vec<InboxItem>, StoreError> {
    let sql = "SELECT event_id, created_at_ms, item FROM inbox WHERE session_id = ?1 ORDER BY id";
    query_all(connection, sql, [id.bytes()], |columns| {
        Ok(InboxItem { id: columns.id()?, at: columns.time()?, note: columns.json()? })
    })
}

pub(in super::super) fn session_exists(connection: &Connection, id: SessionId) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM sessions WHERE session_id = ?1";
    Ok(query_one(connection, sql, [id.bytes()], |columns| columns.get::<i64>())?.is_some())
}

pub(in super::super) fn session_forks(
    connection: &Connection,
    id: SessionId,
) -> Result<Vec<SessionId>, StoreError> {
    let sql = "SELECT session_id FROM sessions WHERE forked_from_session_id = ?1 AND status <> 'deleted' \
                 AND owner_id = (SELECT owner_id FROM sessions WHERE session_id = ?1) ORDER BY session_id";
    query_all(connection, sql, [id.bytes()], |columns| columns.id())
}

fn last_event(connection: &Connection, id: SessionId) -> Result<Position, StoreError> {
    let sql = "SELECT event_seq, pos FROM events WHERE session_id = ?1 ORDER BY event_seq DESC LIMIT 1";
    let last = query_one(connection, sql, [id.bytes()], |columns| {
        Ok(Position { cursor: Cursor(columns.number()?), pos: columns.number()? })
    })?;
    Ok(last.unwrap_or_default())
}

pub(in super::super) fn session_find(
    connection: &Connection,
    owner: &str,
    by: &SessionRef,
) -> Result<Option<Session>, StoreError> {
    macro_rules! find {
        ($where:literal) => {
            concat!(
                "SELECT ",
                session_columns!(),
                " FROM sessions WHERE owner_id = ?1 AND status <> 'deleted' AND ",
                $where
            )
        };
    }
    let by_id = concat!(
        "SELECT ",
        session_columns!(),
        " FROM sessions WHERE session_id = ?1 AND status <> 'deleted'"
    );
    match by {
        SessionRef::Id(id) => query_one(connection, by_id, [id.bytes()], session),
        SessionRef::Key(key) => {
            query_one(connection, find!("key = ?2 AND key IS NOT NULL"), [owner, key], session)
        }
        SessionRef::External(external) => {
            let sql =
                find!("external_ref_kind = ?2 AND external_ref_id = ?3 AND external_ref_kind IS NOT NULL");
            query_one(connection, sql, [owner, &external.kind, &external.id], session)
        }
        SessionRef::Legacy(alias) => {
            let sql = find!(
                "legacy_client_scope = ?2 AND legacy_session_key = ?3 AND legacy_client_scope IS NOT NULL"
            );
            query_one(connection, sql, [owner, &alias.scope, &alias.key], session)
        }
    }
}

pub(in super::super) fn owners_sharing(
    connection: &Connection,
    org: &str,
) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT DISTINCT owner_id FROM sessions
               WHERE org_id = ?1 AND visibility = 'org' AND status <> 'deleted' ORDER BY owner_id";
    query_all(connection, sql, [org], |columns| columns.get())
}

pub(in super::super) fn session_page(
    connection: &Connection,
    page: &SessionPage,
) -> Result<Rows<(Session, Option<Run>)>, StoreError> {
    // Every page has the same parameters: ?7 is the reader whose pins count.
    macro_rules! page {
        ($($where:literal),+) => {
            concat!(
                "SELECT ",
                session_columns!(),
                " FROM sessions WHERE ",
                $($where,)+
                " AND status <> 'deleted' AND (?2 IS NULL OR status = ?2) \
                   AND (?3 IS NULL OR surface_kind = ?3) AND (last_activity_at_ms, session_id) < (?4, ?5) \
                 ORDER BY last_activity_at_ms DESC, session_id DESC LIMIT ?6"
            )
        };
    }
    // The pins of a reader are few: their sessions are read by id, and sorted.
    macro_rules! pinned {
        ($where:literal) => {
            page!($where, " AND session_id IN (SELECT session_id FROM pins WHERE owner_id = ?7)")
        };
    }
    macro_rules! others {
        ($where:literal) => {
            page!(
                $where,
                " AND NOT EXISTS (SELECT 1 FROM pins WHERE pins.owner_id = ?7 AND pins.session_id = sessions.session_id)"
            )
        };
    }
    let is_pinned = page.pinned.as_ref().map(|by| by.is_pinned);
    let (sql, owner_or_org) = match (&page.of, is_pinned) {
        (SessionsOf::Owner(owner), None) => (page!("owner_id = ?1 AND ?7 IS NULL"), owner),
        (SessionsOf::Owner(owner), Some(true)) => (pinned!("+owner_id = ?1"), owner),
        (SessionsOf::Owner(owner), Some(false)) => (others!("owner_id = ?1"), owner),
        (SessionsOf::Org(org), None) => (page!("org_id = ?1 AND visibility = 'org' AND ?7 IS NULL"), org),
        (SessionsOf::Org(org), Some(true)) => (pinned!("+org_id = ?1 AND +visibility = 'org'"), org),
        (SessionsOf::Org(org), Some(false)) => (others!("org_id = ?1 AND visibility = 'org'"), org),
    };
    let reader = page.pinned.as_ref().map(|by| by.owner.as_str());
    let status = page.status.map(|status| status.name());
    let (time, id) = page_start(page.before);
    let found = rows(page.limit, |limit| {
        let params = params![owner_or_org, status, page.surface_kind, time, id, sql_limit(limit), reader];
        query_stored(connection, sql, params, session)
    })?;
    let mut page = Rows { items: vec![], damaged: found.damaged };
    for session in found.items {
        let latest = run_latest_stored(connection, session.id)?;
        let index = page.items.len();
        page.damaged.extend(latest.as_ref().and_then(|run| run.as_ref().err()).map(|damage| {
            let message = format!("the latest run of session {}: {}", session.id, damage.message);
            Damage { index, message, ..damage.clone() }
        }));
        page.items.push((session, latest.and_then(Result::ok)));
    }
    page.damaged.sort_by_key(|damage| damage.index);
    Ok(page)
}
