//! Reading back: the events of a long session by page, and the end of its path.

use mainspring_core::{Cursor, SessionId};
use mainspring_kernel::store::Store;
use mainspring_store::SqliteStore;
use rusqlite::{Connection, params};
use tokio::runtime::Runtime;

use crate::history::{Builder, EVENTS_PER_TURN};
use crate::stats::{median, seconds};
use crate::table::{Goal, Table};
use crate::world;

const EVENTS: usize = 100_000;
/// The page size of a subscription.
const PAGE_EVENTS: usize = 256;
const TIP_MESSAGES: usize = 50;
const ROUNDS: usize = 7;

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let path = folder.file("ours.sqlite3");
    let store = world::store(&path);
    let builder = Builder::new();
    let long = runtime.block_on(builder.stored_session(&*store, (EVENTS / EVENTS_PER_TURN) as u32));
    let conversation = runtime.block_on(builder.stored_session(&*store, 5_000));
    let connection = Connection::open(&path).unwrap();
    let (mut ours, mut baseline, mut tips, mut raw_tips) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        ours.push(EVENTS as f64 / seconds(|| runtime.block_on(replay(&store, long))).0);
        baseline.push(EVENTS as f64 / seconds(|| replay_by_hand(&connection, long)).0);
        tips.push(seconds(|| runtime.block_on(tip(&store, conversation))).0 * 1e3);
        raw_tips.push(seconds(|| tip_by_hand(&connection, conversation)).0 * 1e3);
    }
    let cold = {
        drop((store, connection));
        let store = world::store(&path);
        seconds(|| runtime.block_on(tip(&store, conversation))).0 * 1e3
    };
    let baseline_name = "raw SQLite, not decoded";
    table.line(
        "replay of 100,000 events, by page",
        median(&ours),
        Some((median(&baseline), baseline_name)),
        "/s",
        Goal::AtLeast(100_000.0),
    );
    table.line(
        "tip of a 10,000-message session: load, and its last 50 messages",
        median(&tips),
        Some((median(&raw_tips), baseline_name)),
        "ms",
        Goal::AtMost(5.0),
    );
    table.line("the same, first read after opening", cold, None, "ms", Goal::AtMost(5.0));
}

async fn replay(store: &SqliteStore, session: SessionId) {
    let (mut after, mut count) = (Cursor::START, 0);
    loop {
        let events = store.events_after(session, None, after, PAGE_EVENTS).await.unwrap();
        let Some(last) = events.last() else { break };
        after = last.cursor;
        count += events.len();
    }
    assert_eq!(count, EVENTS);
}

fn replay_by_hand(connection: &Connection, session: SessionId) {
    let sql = "SELECT e.event_seq, e.event_id, e.run_id, e.attempt_id, e.pos, e.created_at_ms, e.type, e.payload, m.content
               FROM events AS e LEFT JOIN messages AS m ON m.message_id = e.message_id
               WHERE e.session_id = ?1 AND e.event_seq > ?2 ORDER BY e.event_seq LIMIT ?3";
    let mut statement = connection.prepare_cached(sql).unwrap();
    let (mut after, mut count, mut bytes) = (0, 0, 0);
    loop {
        let before = count;
        let mut rows = statement.query(params![session.as_bytes(), after, PAGE_EVENTS as i64]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            after = row.get::<_, i64>(0).unwrap();
            bytes += row.get_ref(7).unwrap().as_str().unwrap().len();
            bytes += row.get_ref(8).unwrap().as_str_or_null().unwrap().map_or(0, str::len);
            count += 1;
        }
        if count == before {
            break;
        }
    }
    assert!(count == EVENTS && bytes > EVENTS);
}

async fn tip(store: &SqliteStore, session: SessionId) {
    let loaded = store.session_load(session).await.unwrap().unwrap();
    let path = store.path(loaded.session.tip.unwrap(), None, TIP_MESSAGES).await.unwrap().items;
    assert_eq!(path.len(), TIP_MESSAGES);
}

fn tip_by_hand(connection: &Connection, session: SessionId) {
    let sql =
        "SELECT m.content FROM sessions AS s JOIN messages AS m ON m.line = s.tip_line AND m.line IS NOT NULL
               WHERE s.session_id = ?1 ORDER BY m.pos DESC LIMIT ?2";
    let mut statement = connection.prepare_cached(sql).unwrap();
    let params = params![session.as_bytes(), TIP_MESSAGES as i64];
    let texts: Vec<String> =
        statement.query_map(params, |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(texts.len(), TIP_MESSAGES);
}
