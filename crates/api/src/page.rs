//! Pages of lists.

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
}

impl<T> Page<T> {
    /// Builds the only page of a list.
    pub fn single(items: Vec<T>) -> Self {
        Self { items, next: None }
    }
}
