//! Records of edges.

use mainspring_kernel::store::{EdgeChange, EdgeRecord, Store};
use serde_json::{Value, json};

use crate::fixtures::*;

fn record(kind: &'static str, scope: &str, id: &str, body: Value) -> EdgeRecord {
    EdgeRecord { kind, scope: scope.into(), id: id.into(), body }
}

#[tokio::test]
async fn records_are_kept_by_kind_scope_and_id() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let put = async |record: &EdgeRecord| store.edge_write(&EdgeChange::Put(record.clone())).await;
        let first = record("a", "ada", "1", json!({"text": "é", "n": 1}));
        let others = [
            record("a", "ada", "2", json!([])),
            record("a", "ben", "1", json!(2)),
            record("b", "ada", "1", json!(3)),
        ];
        assert_eq!(put(&first).await, Ok(true), "{name}");
        assert_eq!(put(&first).await, Ok(false), "{name}: the same is stored");
        for other in &others {
            assert_eq!(put(other).await, Ok(true), "{name}");
        }
        let changed = record("a", "ada", "1", json!(4));
        assert_eq!(put(&changed).await, Ok(true), "{name}");
        let of_ada = [changed.clone(), others[0].clone()];
        assert_eq!(store.edge_records("a", Some("ada")).await.unwrap(), of_ada, "{name}");
        let all = [changed.clone(), others[0].clone(), others[1].clone()];
        assert_eq!(store.edge_records("a", None).await.unwrap(), all, "{name}");
        assert_eq!(store.edge_record("a", "ada", "1").await.unwrap(), Some(of_ada[0].clone()), "{name}");
        assert_eq!(store.edge_record("a", "eve", "1").await.unwrap(), None, "{name}");
        let remove = EdgeChange::Remove { kind: "a", scope: "ada".into(), id: "1".into() };
        assert_eq!(store.edge_write(&remove).await, Ok(true), "{name}");
        assert_eq!(store.edge_write(&remove).await, Ok(false), "{name}");
        assert_eq!(store.edge_records("a", Some("ada")).await.unwrap(), [others[0].clone()], "{name}");
    }
}

#[tokio::test]
async fn a_record_whose_text_is_damaged_is_still_known_by_its_id() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    for id in ["1", "2"] {
        store.edge_write(&EdgeChange::Put(record("a", "ada", id, json!({"n": id})))).await.unwrap();
    }
    let file = rusqlite::Connection::open(folder.path().join("test.sqlite3")).unwrap();
    file.execute("UPDATE edge_records SET body = '{\"n\": ' WHERE record_id = '1'", []).unwrap();
    let damaged = record("a", "ada", "1", Value::Null);
    assert_eq!(store.edge_record("a", "ada", "1").await.unwrap(), Some(damaged.clone()));
    let all = [damaged, record("a", "ada", "2", json!({"n": "2"}))];
    assert_eq!(store.edge_records("a", None).await.unwrap(), all);
    let remove = EdgeChange::Remove { kind: "a", scope: "ada".into(), id: "1".into() };
    assert_eq!(store.edge_write(&remove).await, Ok(true));
}
