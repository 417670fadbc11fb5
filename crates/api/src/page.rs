//! Pages of lists.

use mainspring_core::{Damage, Rows};
use serde::{Deserialize, Serialize};

/// One page of a list, and the start of the next one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    /// The items of this page.
    pub items: Vec<T>,
    /// The start of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The stored rows between the items that are damaged and cannot be read. Absent if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<Damage>,
}

impl<T> Page<T> {
    /// Builds the only page of a list.
    pub fn single(items: Vec<T>) -> Self {
        Self { items, next: None, damaged: vec![] }
    }

    /// Returns the items with the damaged rows between them.
    pub fn rows(self) -> Rows<T> {
        Rows { items: self.items, damaged: self.damaged }
    }
}

impl<T> From<Rows<T>> for Page<T> {
    fn from(rows: Rows<T>) -> Self {
        Self { items: rows.items, next: None, damaged: rows.damaged }
    }
}
