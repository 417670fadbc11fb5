//! Checks the query plans of most lists of the API: a list reads the rows of its page by an index, in their
//! order. The cost of a page must not grow with the size of the store.
//!
//! Reads record their SQL while a test runs them, so that the plans are those of the statements in use.

use std::cell::RefCell;

use mainspring_core::{
    Body, Cursor, LineId, MessageId, Point, RunId, RunStatus, SessionId, SessionStatus, Time,
};
use mainspring_kernel::search::Query;
use mainspring_kernel::store::{
    ArtifactPage, DelegationsOf, GrantPage, IdPage, IdsOf, KeyPage, PinnedBy, RunPage, SessionPage,
    SessionsOf, StateAt,
};
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::{
    artifacts, bindings, data, delegations, events, grants, ids, keys, runs, search, sessions, tree,
};
use crate::sqlite::{agents, migrate};

thread_local! {
    static RECORDED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Records a statement that is about to run.
pub(super) fn record(sql: &str) {
    RECORDED.with_borrow_mut(|recorded| {
        if let Some(recorded) = recorded {
            recorded.push(sql.to_owned());
        }
    });
}

/// Scans that read few rows, and why.
const ALLOWED_SCANS: [(&str, &str); 9] = [
    ("SCAN json_each", "the types of the request"),
    ("SCAN f VIRTUAL TABLE", "the search index, within one bucket"),
    ("SCAN search_titles VIRTUAL TABLE", "the index of titles, when few of the latest titles match"),
    ("SCAN hits", "the hits of that index"),
    ("SCAN sessions USING INDEX sessions_unsearched_idx", "titles that are not indexed yet are few"),
    ("SCAN r USING INDEX runs_live_uq", "unfinished runs are few"),
    ("SCAN g USING INDEX grants_created_idx", "in the order of the page; grants are few"),
    ("SCAN below", "the rows of a recursive query"),
    ("SCAN CONSTANT ROW", "no table"),
];

/// Lists that sort all rows of their session or filter, and why.
const ALLOWED_SORTS: [(&str, &str); 9] = [
    ("runs of a session", "the runs of one session, indexed by number"),
    ("unfinished runs", "unfinished runs are few"),
    ("grants of a session", "the grants of one session"),
    ("sessions by title", "the hits of the index, when few of the latest titles match"),
    ("forks", "the forks of one session"),
    ("pinned sessions", "the pins of one reader, which are few"),
    ("pinned sessions of an org", "the pins of one reader, which are few"),
    ("delegations", "the delegations of one run or session"),
    ("children", "the lines that begin at one message"),
];

/// The marker of a sort of all rows. A sort by the last term alone only sorts rows that are equal in the other terms.
const SORT: &str = "USE TEMP B-TREE FOR ORDER BY";

type List = (&'static str, Box<dyn Fn(&Connection)>);

fn list(name: &'static str, read: impl Fn(&Connection) + 'static) -> List {
    (name, Box::new(read))
}

const OWNER: &str = "ada";
const LIMIT: usize = 10;

fn session() -> SessionId {
    SessionId::from_bytes([1; 16])
}

fn run() -> RunId {
    RunId::from_bytes([2; 16])
}

const POINT: Point = Point { line: LineId(1), pos: 0 };

/// A database with a message and an event, so that no read ends before its query, and more sessions than a search compares
/// before it asks the index.
fn database() -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    migrate::migrate(&mut connection, Time(1)).unwrap();
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).unwrap();
    connection
        .execute_batch(
            "PRAGMA foreign_keys = OFF;
             WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 200)
             INSERT INTO sessions (session_id, owner_id, agent_definition_id, title, status, surface_kind,
               default_adapter_id, metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
             SELECT CAST(printf('%016d', n) AS BLOB), 'ada', 'generalist', 'a title', 'open', 'api', 'script', '{}', 1, 1, 1, 1
             FROM number;
             INSERT INTO lines (line, session_id, end_pos, abandoned) VALUES (1, CAST(printf('%016d', 1) AS BLOB), 1, 0);
             INSERT INTO messages (id, message_id, session_id, role, status, created_at_ms, content)
             VALUES (1, randomblob(16), CAST(printf('%016d', 1) AS BLOB), 'user', 'completed', 1, '[]'),
                    (2, randomblob(16), CAST(printf('%016d', 1) AS BLOB), 'user', 'completed', 1, '[]');
             UPDATE meta SET value = 2 WHERE name = 'searched';
             UPDATE meta SET value = 1 WHERE name = 'searched_untagged';
             INSERT INTO events (event_seq, event_id, session_id, type, pos, created_at_ms, payload)
             VALUES (1, randomblob(16), CAST(printf('%016d', 1) AS BLOB), 'session.deleted', 0, 1, '{}');
             INSERT INTO event_blocks VALUES ('ada', 'session', 0);",
        )
        .unwrap();
    connection
}

fn session_lists() -> Vec<List> {
    let page = |of: fn() -> SessionsOf, pinned: Option<bool>, status: Option<SessionStatus>| {
        move |connection: &Connection| {
            let pinned = pinned.map(|is_pinned| PinnedBy { owner: OWNER.into(), is_pinned });
            let page =
                SessionPage { of: of(), pinned, status, surface_kind: None, before: None, limit: LIMIT };
            drop(sessions::session_page(connection, &page).unwrap());
        }
    };
    let own = || SessionsOf::Owner(OWNER.into());
    let of_org = || SessionsOf::Org("org".into());
    vec![
        list("sessions", page(own, None, None)),
        list("archived sessions", page(own, None, Some(SessionStatus::Archived))),
        list("pinned sessions", page(own, Some(true), None)),
        list("sessions that are not pinned", page(own, Some(false), None)),
        list("sessions of an org", page(of_org, None, None)),
        list("pinned sessions of an org", page(of_org, Some(true), None)),
        list("sessions of an org that are not pinned", page(of_org, Some(false), None)),
        list("forks", |connection| drop(sessions::session_forks(connection, session()).unwrap())),
    ]
}

fn run_lists() -> Vec<List> {
    let page = |session: Option<SessionId>, status: Option<RunStatus>| {
        move |connection: &Connection| {
            let page = RunPage { owner: OWNER.into(), session, status, before: None, limit: LIMIT };
            drop(runs::run_page(connection, &page).unwrap());
        }
    };
    use RunStatus::*;
    let mut lists = vec![list("runs", page(None, None))];
    lists.extend(
        [Succeeded, Failed, Cancelled, TimedOut, Orphaned]
            .map(|status| list("ended runs", page(None, Some(status)))),
    );
    lists.extend(
        [Queued, Starting, Running, WaitingInput, WaitingApproval, Cancelling]
            .map(|status| list("unfinished runs", page(None, Some(status)))),
    );
    lists.push(list("runs of a session", page(Some(session()), None)));
    lists.push(list("runs of a session", page(Some(session()), Some(Failed))));
    lists.push(list("attempts", |connection| drop(runs::attempts(connection, run()).unwrap())));
    lists
}

fn event_lists() -> Vec<List> {
    let owner = |types: Option<&'static [&'static str]>| {
        move |connection: &Connection| {
            drop(events::owner_events(connection, OWNER, types, Cursor::START, LIMIT).unwrap());
        }
    };
    let of_session = |run: Option<RunId>| {
        move |connection: &Connection| {
            drop(events::events_after(connection, session(), run, Cursor::START, LIMIT).unwrap());
        }
    };
    vec![
        list("events of an owner", owner(None)),
        list("events of an owner by type", owner(Some(Body::TYPES))),
        list("events of a session", of_session(None)),
        list("events of a run", of_session(Some(run()))),
    ]
}

fn search_lists() -> Vec<List> {
    let query = || Query::parse("fox").unwrap();
    vec![
        list("sessions by title", move |connection| {
            drop(search::search_titles(connection, OWNER, &query(), None, LIMIT).unwrap());
        }),
        list("messages by text", move |connection| {
            drop(search::search_messages(connection, OWNER, &query(), None, LIMIT).unwrap());
        }),
    ]
}

fn id_lists() -> Vec<List> {
    let page = |of: fn() -> IdsOf| {
        move |connection: &Connection| {
            let page = IdPage { of: of(), first: [0; 16], last: [9; 16], limit: LIMIT, visit: LIMIT };
            drop(ids::id_page(connection, &page).unwrap());
        }
    };
    vec![
        list("ids of sessions", page(|| IdsOf::Sessions { owner: OWNER.into(), org: None })),
        list("ids of runs", page(|| IdsOf::Runs { owner: OWNER.into(), org: None })),
        list("ids of artifacts", page(|| IdsOf::Artifacts { owner: OWNER.into(), org: None })),
        list("ids of delegations", page(|| IdsOf::Delegations { owner: OWNER.into(), org: None })),
        list("ids of grants", page(|| IdsOf::Grants { owner: OWNER.into(), org: None })),
        list("ids of messages", page(|| IdsOf::Messages(session()))),
        list("ids of keys", page(|| IdsOf::Keys { org: None })),
    ]
}

fn other_lists() -> Vec<List> {
    let grants = |session: Option<SessionId>| {
        move |connection: &Connection| {
            let page = GrantPage {
                owner: OWNER.into(),
                session,
                in_force_at: Some(Time(1)),
                before: None,
                limit: LIMIT,
            };
            drop(grants::grant_page(connection, &page).unwrap());
        }
    };
    let keys = |org: Option<&'static str>| {
        move |connection: &Connection| {
            let page = KeyPage { org: org.map(str::to_owned), before: None, limit: LIMIT };
            drop(keys::key_page(connection, &page).unwrap());
        }
    };
    let artifacts = |run: Option<RunId>| {
        move |connection: &Connection| {
            let page = ArtifactPage { session: session(), run, before: None, limit: LIMIT };
            drop(artifacts::artifact_page(connection, &page).unwrap());
        }
    };
    let state = |at: fn() -> StateAt| {
        move |connection: &Connection| drop(data::state_page(connection, &at(), "", LIMIT).unwrap())
    };
    vec![
        list("grants", grants(None)),
        list("grants of a session", grants(Some(session()))),
        list("keys", keys(None)),
        list("keys of an org", keys(Some("org"))),
        list("artifacts of a session", artifacts(None)),
        list("artifacts of a run", artifacts(Some(run()))),
        list("contents of artifacts", |connection| {
            drop(artifacts::blob_page(connection, "", LIMIT).unwrap());
        }),
        list("state of a run", state(|| StateAt::Run(run()))),
        list("state of an owner", state(|| StateAt::Owner(OWNER.into()))),
        list("bindings", |connection| {
            drop(bindings::bindings(connection, session(), None, None, LIMIT).unwrap());
        }),
        list("delegations", |connection| {
            drop(delegations::delegations(connection, DelegationsOf::Parent(session(), run())).unwrap());
        }),
        list("tree", |connection| drop(tree::tree_page(connection, session(), None, LIMIT).unwrap())),
        list("children", |connection| {
            drop(tree::children(connection, session(), Some(POINT), LIMIT).unwrap());
        }),
        list("path", |connection| drop(tree::path(connection, POINT, None, LIMIT).unwrap())),
        list("message", |connection| {
            drop(tree::message_get(connection, session(), MessageId::from_bytes([3; 16])).unwrap());
        }),
        list("agents", |connection| drop(agents::agent_page(connection, OWNER, None, LIMIT).unwrap())),
    ]
}

/// Runs `read` and returns the plan of each of its statements.
fn plans(connection: &Connection, read: &dyn Fn(&Connection)) -> Vec<String> {
    RECORDED.set(Some(vec![]));
    read(connection);
    let statements = RECORDED.take().unwrap();
    assert!(!statements.is_empty(), "it reads without `prepare`");
    let mut plan = vec![];
    for sql in statements {
        let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        // Plans do not depend on values.
        let values = vec![rusqlite::types::Null; explain.parameter_count()];
        let lines = explain.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(3));
        plan.extend(lines.unwrap().map(Result::unwrap));
    }
    plan
}

#[test]
fn no_list_scans_a_table() {
    let connection = database();
    let lists = [session_lists(), run_lists(), event_lists(), search_lists(), id_lists(), other_lists()];
    let mut problems = vec![];
    for (name, read) in lists.iter().flatten() {
        for line in plans(&connection, read) {
            let is_scan =
                line.starts_with("SCAN") && !ALLOWED_SCANS.iter().any(|(scan, _)| line.starts_with(scan));
            let is_sort = line.starts_with(SORT) && !ALLOWED_SORTS.iter().any(|(list, _)| list == name);
            if is_scan || is_sort {
                problems.push(format!("{name}: {line}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn failed_runs_and_events_of_a_type_are_found_by_their_indexes() {
    let connection = database();
    let page = RunPage {
        owner: OWNER.into(),
        session: None,
        status: Some(RunStatus::Failed),
        before: None,
        limit: LIMIT,
    };
    let plan = plans(&connection, &|connection| drop(runs::run_page(connection, &page).unwrap()));
    assert!(plan[0].starts_with("SEARCH r USING INDEX runs_status_idx (owner_id=? AND status=?"), "{plan:?}");
    let types: &[&'static str] = &["session.deleted"];
    let plan = plans(&connection, &|connection| {
        drop(events::owner_events(connection, OWNER, Some(types), Cursor::START, LIMIT).unwrap());
    });
    let blocks = "SEARCH event_blocks USING PRIMARY KEY (owner_id=? AND word=? AND block>?)";
    assert!(plan.iter().any(|line| line == blocks), "{plan:?}");
}
