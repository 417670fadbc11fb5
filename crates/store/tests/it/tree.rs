//! Messages and their tree: lines, paths, cursors.

use mainspring_core::*;
use mainspring_kernel::store::{PlacedMessage, Row, Store, StoreError, TreeShape, Unique};

use crate::fixtures::*;

/// Line 1 holds depths 0 to 4, line 2 hangs beneath (1, 2) and line 3 beneath (2, 4); message `10 * line + pos`.
async fn branched(store: &dyn Store) {
    let fence = session_made(store, 1).await;
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
        branched(store).await;
        let path = async |tip, before, limit| texts(&store.path(tip, before, limit).await.unwrap());
        assert_eq!(path(point(3, 5), None, 99).await, ["m10", "m11", "m12", "m23", "m24", "m35"], "{name}");
        assert_eq!(path(point(1, 3), None, 99).await, ["m10", "m11", "m12", "m13"], "{name}");
        assert_eq!(path(point(3, 5), None, 2).await, ["m24", "m35"], "{name}");
        assert_eq!(path(point(3, 5), Some(4), 2).await, ["m12", "m23"], "{name}");
        assert_eq!(path(point(3, 5), Some(1), 9).await, ["m10"], "{name}");
        assert!(path(point(3, 5), Some(0), 9).await.is_empty(), "{name}");
        assert!(path(point(3, 5), None, 0).await.is_empty(), "{name}");
        // The tip stands on a line that is still empty.
        assert_eq!(path(point(4, 5), None, 2).await, ["m24", "m35"], "{name}");
        let lost = store.path(point(77, 0), None, 9).await.unwrap_err();
        assert!(matches!(lost, StoreError::Corrupt(_)), "{name}");
    }
}

#[tokio::test]
async fn a_line_is_read_by_range_and_a_message_by_its_session() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        branched(store).await;
        let range = Range { line: LineId(1), from: 1, to: 3 };
        assert_eq!(texts(&store.line_messages(range).await.unwrap()), ["m11", "m12", "m13"], "{name}");
        let (found, of) = store.message_get(session_id(1), message_id(24)).await.unwrap().unwrap();
        assert_eq!((found.message.text(), found.point), ("m24".into(), Some(point(2, 4))), "{name}");
        assert_eq!(of, Some(line(2, Some(point(1, 2)), 3)), "{name}");
        assert_eq!(store.message_get(session_id(2), message_id(24)).await.unwrap(), None, "{name}");
    }
}

#[tokio::test]
async fn a_prompt_takes_its_place_when_its_run_starts() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = session_made(store, 1).await;
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

        let nowhere =
            commit(store, fence, vec![Row::MessagePlace(message_id(77), point(1, 1))], vec![]).await;
        assert_eq!(nowhere, Err(StoreError::Conflict(Unique::Other)), "{name}");
    }
}

#[tokio::test]
async fn a_place_holds_one_message_of_a_known_line() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        branched(store).await;
        let fence = lease(store, 1).await;
        for at in [point(1, 0), point(77, 0)] {
            let error = commit(store, fence, vec![row_message(message(99, 1, "x"), Some(at))], vec![])
                .await
                .unwrap_err();
            assert_eq!(error, StoreError::Conflict(Unique::Other), "{name}: {at:?}");
        }
    }
}

#[tokio::test]
async fn the_shape_of_a_tree_has_lines_in_order_and_cursors() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        branched(store).await;
        let fence = lease(store, 1).await;
        let shape = store.tree(session_id(1)).await.unwrap();
        assert_eq!(shape.lines.iter().map(|line| line.id.0).collect::<Vec<_>>(), [1, 2, 3, 4], "{name}");
        assert_eq!(shape.cursors, [(point(1, 2), LineId(2))], "{name}");
        let abandoned = Line { abandoned: true, end: 7, ..line(2, Some(point(1, 2)), 3) };
        let rows = vec![
            Row::Line(abandoned),
            Row::Cursor(point(1, 2), None),
            Row::Cursor(point(2, 4), Some(LineId(3))),
        ];
        commit(store, fence, rows, vec![]).await.unwrap();
        let shape = store.tree(session_id(1)).await.unwrap();
        assert_eq!((shape.lines.len(), shape.lines[1]), (4, abandoned), "{name}");
        assert_eq!(shape.cursors, [(point(2, 4), LineId(3))], "{name}");
        assert_eq!(store.tree(session_id(9)).await.unwrap(), TreeShape::default(), "{name}");
    }
}

#[tokio::test]
async fn a_fork_sees_the_lines_it_stands_on() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        branched(store).await;
        let fence = lease(store, 2).await;
        let fork = Session { tip: Some(point(2, 4)), ..session(2) };
        commit(store, fence, vec![row_session(fork)], vec![]).await.unwrap();
        let lines = async || -> Vec<i64> {
            store.tree(session_id(2)).await.unwrap().lines.iter().map(|line| line.id.0).collect()
        };
        assert_eq!(lines().await, [1, 2], "{name}");
        commit(store, fence, vec![Row::Line(line(9, Some(point(2, 4)), 0))], vec![]).await.unwrap();
        assert_eq!(lines().await, [1, 2, 9], "{name}");
        assert_eq!(
            store.session_load(session_id(2)).await.unwrap().unwrap().lines[0].id,
            LineId(2),
            "{name}"
        );
    }
}
