//! Records kept for other systems' APIs.

use mainspring_kernel::store::{EdgeChange, EdgeRecord};

use super::tables::Tables;

impl Tables {
    pub(super) fn edge_write(&mut self, change: &EdgeChange) -> bool {
        match change {
            EdgeChange::Put(record) => {
                let key = (record.kind, record.scope.clone(), record.id.clone());
                self.edge_records.insert(key, record.clone()).as_ref() != Some(record)
            }
            EdgeChange::Remove { kind, scope, id } => {
                self.edge_records.remove(&(*kind, scope.clone(), id.clone())).is_some()
            }
        }
    }

    pub(super) fn edge_record(&self, kind: &'static str, scope: &str, id: &str) -> Option<EdgeRecord> {
        self.edge_records.get(&(kind, scope.to_owned(), id.to_owned())).cloned()
    }

    pub(super) fn edge_records(&self, kind: &str, scope: Option<&str>) -> Vec<EdgeRecord> {
        let of_scope = |record: &&EdgeRecord| scope.is_none_or(|scope| record.scope == scope);
        self.edge_records.values().filter(|record| record.kind == kind).filter(of_scope).cloned().collect()
    }
}
