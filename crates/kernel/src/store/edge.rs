//! Small records that the edges for other systems' APIs keep.

use serde_json::Value;

/// A record of an edge.
#[derive(Debug, Clone, PartialEq)]
pub struct EdgeRecord {
    /// The kind of the record.
    pub kind: &'static str,
    /// The owner or the org that the record belongs to.
    pub scope: String,
    /// The id, unique among the records of the kind and scope.
    pub id: String,
    /// The content. Null if the stored text is damaged: no record is stored with null.
    pub body: Value,
}

/// A change of the records of edges.
#[derive(Debug, Clone, PartialEq)]
pub enum EdgeChange {
    /// Stores a record in place of the earlier one. Has no effect if the same is stored.
    Put(EdgeRecord),
    /// Removes a record.
    Remove {
        /// The kind of the record.
        kind: &'static str,
        /// The owner or the org that the record belongs to.
        scope: String,
        /// The id.
        id: String,
    },
}
