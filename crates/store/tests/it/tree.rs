//! The message tree: lines, paths and cursors.

use mainspring_core::*;
use mainspring_kernel::store::{PlacedMessage, Row, SessionLine, Store, StoreError, TreeRow, Unique};

use crate::fixtures::*;

/// Writes line 1 with depths 0 to 4, line 2 as a child of (1, 2), line 3 of (2, 4) and the empty line 4 of
/// (3, 5). The number of the message at a point is `10 * line + pos`.
async fn write_branches(store: &dyn Store) {
    let fence = create_session(store, 1).await;
    let lines = [
        line(1, None, 5),
        line(2, Some(point(1, 2)), 3),
        line(3, Some(point(2, 4)), 1),
        line(4, Some(point(3, 5)), 0),
    ];
    let mut rows: Vec<Row> = lines.into_iter().map(Row::Line).collect();
    for (line, depths) in [(1, 0..5), (2, 3..6), (3, 5..6)] {
        for pos in depths {
            let id = u64::from(pos) + 10 * line;
            let at = point(i64::try_from(line).unwrap(), pos);
            rows.push(row_message(message(id, 1, &format!("m{id}")), Some(at)));
        }
    }
    rows.push(Row::Cursor(point(1, 2), Some(LineId(2))));
    commit(store, fence, rows, vec![]).await.unwrap();
}

fn texts(path: &[PlacedMessage]) -> Vec<String> {
    path.iter().map(|placed| placed.message.text()).collect()
}

#[tokio::test]
async fn a_path_follows_the_lines_to_the_root() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        write_branches(store).await;
        let path = async |tip, before, limit| texts(&store.path(tip, before, limit).await.unwrap().items);
        assert_eq!(path(point(3, 5), None, 99).await, ["m10", "m11", "m12", "m23", "m24", "m35"], "{name}");
        assert_eq!(path(point(1, 3), None, 99).await, ["m10", "m11", "m12", "m13"], "{name}");
        assert_eq!(path(point(3, 5), None, 2).await, ["m24", "m35"], "{name}");
        assert_eq!(path(point(3, 5), Some(4), 2).await, ["m12", "m23"], "{name}");
        assert_eq!(path(point(3, 5), Some(1), 9).await, ["m10"], "{name}");
        assert!(path(point(3, 5), Some(0), 9).await.is_empty(), "{name}");
        assert!(path(point(3, 5), None, 0).await.is_empty(), "{name}");
        // The tip is on an empty line.
        assert_eq!(path(point(4, 5), None, 2).await, ["m24", "m35"], "{name}");
        let missing = store.path(point(77, 0), None, 9).await.unwrap_err();
        assert!(matches!(missing, StoreError::Corrupt(_)), "{name}");
    }
}

#[tokio::test]
async fn a_message_is_found_only_by_a_session_that_sees_it() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        write_branches(store).await;
        let (found, of) = store.message_get(session_id(1), message_id(24)).await.unwrap().unwrap();
        assert_eq!((found.message.text(), found.point), ("m24".into(), Some(point(2, 4))), "{name}");
        assert_eq!(of, Some(line(2, Some(point(1, 2)), 3)), "{name}");
        assert_eq!(store.message_get(session_id(2), message_id(24)).await.unwrap(), None, "{name}");
        assert_eq!(store.tree_row(session_id(2), message_id(24)).await.unwrap(), None, "{name}");
        assert_eq!(store.message_get(session_id(1), message_id(99)).await.unwrap(), None, "{name}");
    }
}

#[tokio::test]
async fn a_prompt_is_placed_when_its_run_starts() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let prompt = Message { status: MessageStatus::NotStarted, ..message(2, 1, "do it") };
        commit(store, fence, vec![row_message(prompt.clone(), None)], vec![]).await.unwrap();
        let found = store.message_get(session_id(1), prompt.id).await.unwrap().unwrap();
        assert_eq!(found, (PlacedMessage { message: prompt.clone().into(), point: None }, None), "{name}");

        let rows = vec![Row::MessagePlace(prompt.id, point(1, 0)), Row::Line(line(1, None, 1))];
        commit(store, fence, rows, vec![]).await.unwrap();
        let (placed, _) = store.message_get(session_id(1), prompt.id).await.unwrap().unwrap();
        assert_eq!(
            (placed.message.status, placed.point),
            (MessageStatus::Completed, Some(point(1, 0))),
            "{name}"
        );

        let missing =
            commit(store, fence, vec![Row::MessagePlace(message_id(77), point(1, 1))], vec![]).await;
        assert_eq!(missing, Err(StoreError::Conflict(Unique::Other)), "{name}");
    }
}

#[tokio::test]
async fn a_point_holds_one_message_of_an_existing_line() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        write_branches(store).await;
        let fence = lease(store, 1).await;
        for at in [point(1, 0), point(77, 0)] {
            let error = commit(store, fence, vec![row_message(message(99, 1, "x"), Some(at))], vec![])
                .await
                .unwrap_err();
            assert_eq!(error, StoreError::Conflict(Unique::Other), "{name}: {at:?}");
        }
    }
}

/// Formats a page of a tree: each message with its parent, and an arrow to the message its cursor leads to.
fn tree_text(rows: &[TreeRow]) -> Vec<String> {
    let text = |id: Option<MessageId>| id.map_or("-".into(), |id| format!("{}", id.as_bytes()[15]));
    let row = |row: &TreeRow| {
        let mark = if row.abandoned { "x" } else { "" };
        let followed = if row.followed { "*" } else { "" };
        format!("{mark}{}{followed} {} -> {}", row.message.text(), text(row.parent), text(row.cursor))
    };
    rows.iter().map(row).collect()
}

#[tokio::test]
async fn a_tree_is_read_in_pages_line_by_line() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        write_branches(store).await;
        let fence = lease(store, 1).await;
        let whole = ["m10 - -> 11", "m11 10 -> 12", "m12 11 -> 23", "m13 12 -> 14", "m14 13 -> -"]
            .into_iter()
            .chain(["m23* 12 -> 24", "m24 23 -> 25", "m25 24 -> -", "m35 24 -> -"])
            .collect::<Vec<_>>();
        for limit in [1, 2, 5, 9, 99] {
            let mut pages: Vec<TreeRow> = vec![];
            loop {
                let after = pages.last().map(|row| row.point);
                let page = store.tree_page(session_id(1), after, limit).await.unwrap().items;
                if page.is_empty() {
                    break;
                }
                assert!(page.len() <= limit, "{name}");
                pages.extend(page);
            }
            assert_eq!(tree_text(&pages), whole, "{name}: {limit}");
        }
        let abandoned = Line { abandoned: true, end: 6, ..line(2, Some(point(1, 2)), 3) };
        commit(store, fence, vec![Row::Line(abandoned)], vec![]).await.unwrap();
        let rows = store.tree_page(session_id(1), Some(point(1, 1)), 5).await.unwrap().items;
        let cut = ["m12 11 -> 13", "m13 12 -> 14", "m14 13 -> -", "xm23 12 -> 24", "xm24 23 -> 25"];
        assert_eq!(tree_text(&rows), cut, "{name}: no cursor leads to an abandoned line");
        assert_eq!(store.tree_page(session_id(9), None, 9).await.unwrap().items, [], "{name}");
        let one = store.tree_row(session_id(1), message_id(24)).await.unwrap();
        assert_eq!(tree_text(&Vec::from_iter(one)), ["xm24 23 -> 25"], "{name}");
    }
}

#[tokio::test]
async fn lines_leaves_and_children_follow_the_rules_of_the_tree() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        write_branches(store).await;
        let id = session_id(1);
        let session_line = |line, cursors: &[(u32, i64)]| SessionLine {
            line,
            own: true,
            cursors: cursors.iter().map(|(pos, to)| (*pos, LineId(*to))).collect(),
        };
        let lines = [
            session_line(line(3, Some(point(2, 4)), 1), &[]),
            session_line(line(2, Some(point(1, 2)), 3), &[]),
            session_line(line(1, None, 5), &[(2, 2)]),
        ];
        assert_eq!(store.lines_to_root(id, LineId(3), 9).await.unwrap(), lines, "{name}");
        assert_eq!(store.lines_to_root(id, LineId(3), 2).await.unwrap(), lines[..2], "{name}");
        let other = store.lines_to_root(session_id(9), LineId(1), 9).await.unwrap();
        let foreign = SessionLine { own: false, ..session_line(line(1, None, 5), &[]) };
        assert_eq!(other, [foreign], "{name}: another session owns none of its lines");
        let leaf = async |at| {
            let (placed, own) = store.leaf(id, at).await.unwrap().unwrap();
            (placed.message.text(), own.map(|line| line.id.0))
        };
        assert_eq!(
            leaf(point(1, 0)).await,
            ("m25".into(), Some(2)),
            "{name}: by the cursor, then along the line"
        );
        assert_eq!(leaf(point(1, 3)).await, ("m14".into(), Some(1)), "{name}");
        let children = async |at, limit| names(&store.children(id, at, limit).await.unwrap());
        assert_eq!(children(Some(point(1, 2)), 9).await, ["m13", "m23"], "{name}");
        assert_eq!(children(Some(point(2, 4)), 9).await, ["m25", "m35"], "{name}");
        assert_eq!(children(Some(point(2, 4)), 1).await, ["m25"], "{name}");
        assert_eq!(children(None, 9).await, ["m10"], "{name}");
        assert!(children(Some(point(1, 4)), 9).await.is_empty(), "{name}");
    }
}

/// Names messages by the number of their id.
fn names(ids: &[MessageId]) -> Vec<String> {
    let number = |id: &MessageId| (0..100).find(|n| message_id(*n) == *id).unwrap();
    ids.iter().map(|id| format!("m{}", number(id))).collect()
}

#[tokio::test]
async fn a_fork_sees_the_path_to_its_base_and_what_it_writes() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        write_branches(store).await;
        let (fence, id) = (lease(store, 2).await, session_id(2));
        let fork = Session { tip: Some(point(2, 4)), base: Some(point(2, 4)), ..session(2) };
        commit(store, fence, vec![row_session(fork)], vec![]).await.unwrap();
        assert!(
            store.session_load(id).await.unwrap().unwrap().lines.is_empty(),
            "{name}: it writes on no line of another session"
        );
        let tree = async |after| tree_text(&store.tree_page(id, after, 9).await.unwrap().items);
        let path = ["m10 - -> 11", "m11 10 -> 12", "m12 11 -> 23", "m23 12 -> 24", "m24 23 -> -"];
        assert_eq!(tree(None).await, path, "{name}: neither later messages nor other branches");
        assert_eq!(tree(Some(point(1, 1))).await, path[2..], "{name}");
        for (n, sees) in [(12, true), (24, true), (13, false), (25, false), (35, false)] {
            let found = store.message_get(id, message_id(n)).await.unwrap();
            assert_eq!(found.is_some(), sees, "{name}: m{n}");
        }
        let own = [Row::Line(line(9, Some(point(2, 4)), 1)), Row::Line(line(8, Some(point(1, 0)), 1))];
        let messages =
            [(95, point(9, 5)), (81, point(8, 1))].map(|(n, at)| row_message(message(n, 2, "own"), Some(at)));
        let rows = own.into_iter().chain(messages).chain([Row::Cursor(point(1, 0), Some(LineId(8)))]);
        commit(store, fence, rows.collect(), vec![]).await.unwrap();
        let leaf = async |at| store.leaf(id, at).await.unwrap().unwrap().0.point;
        assert_eq!(leaf(point(1, 0)).await, Some(point(8, 1)), "{name}: by its own cursor");
        assert_eq!(
            leaf(point(1, 1)).await,
            Some(point(9, 5)),
            "{name}: along the inherited path, then its own line"
        );
        let children = async |at| names(&store.children(id, at, 9).await.unwrap());
        assert_eq!(children(Some(point(1, 0))).await, ["m11", "m81"], "{name}");
        assert_eq!(children(Some(point(2, 4))).await, ["m95"], "{name}");
        assert_eq!(children(None).await, ["m10"], "{name}");
        let source = store.tree_page(session_id(1), None, 99).await.unwrap().items;
        assert_eq!(source.len(), 9, "{name}: its source sees nothing of the fork");
        assert_eq!(
            names(&store.children(session_id(1), Some(point(2, 4)), 9).await.unwrap()),
            ["m25", "m35"]
        );
    }
}
