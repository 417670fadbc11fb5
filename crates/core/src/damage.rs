//! Damaged rows: stored data that cannot be read any more, named instead of left out or guessed.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// A stored row that does not match its checksum, or cannot be read for another reason. A list names it and returns the
/// other rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Damage {
    /// The kind of the row: `session`, `run`, `message`, `attempt`, `step`, `artifact` or `state`; `row` if unknown.
    pub kind: String,
    /// The id of the row, or the key of a state entry. Absent if it cannot be read. Part of the damaged row, so it may be
    /// wrong itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The number of items of the list that come before the row.
    pub index: usize,
    /// The problem and its remedy.
    pub message: String,
}

/// The rows that a list consists of: the intact ones in order, and the damaged ones between them.
///
/// Dereferences to the intact rows. Code that must not miss a row calls [`Rows::intact`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows<T> {
    /// The intact rows.
    pub items: Vec<T>,
    /// The damaged rows, in order.
    pub damaged: Vec<Damage>,
}

impl<T> Rows<T> {
    /// Returns all rows, or the first damage.
    pub fn intact(self) -> Result<Vec<T>, Damage> {
        match self.damaged.into_iter().next() {
            Some(damage) => Err(damage),
            None => Ok(self.items),
        }
    }

    /// Adds the rows that come after these.
    pub fn append(&mut self, later: Self) {
        let before = self.items.len();
        self.items.extend(later.items);
        let damaged = later.damaged.into_iter();
        self.damaged.extend(damaged.map(|damage| Damage { index: before + damage.index, ..damage }));
    }

    /// Reverses the order.
    pub fn reverse(&mut self) {
        let count = self.items.len();
        self.items.reverse();
        self.damaged.reverse();
        self.damaged.iter_mut().for_each(|damage| damage.index = count - damage.index);
    }

    /// Converts the intact rows.
    pub fn map<U>(self, convert: impl FnMut(T) -> U) -> Rows<U> {
        Rows { items: self.items.into_iter().map(convert).collect(), damaged: self.damaged }
    }
}

impl<T> Deref for Rows<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.items
    }
}

impl<T> From<Vec<T>> for Rows<T> {
    fn from(items: Vec<T>) -> Self {
        Self { items, damaged: vec![] }
    }
}

impl<T> FromIterator<Result<T, Damage>> for Rows<T> {
    fn from_iter<I: IntoIterator<Item = Result<T, Damage>>>(rows: I) -> Self {
        let (mut items, mut damaged) = (vec![], vec![]);
        for row in rows {
            match row {
                Ok(item) => items.push(item),
                Err(damage) => damaged.push(Damage { index: items.len(), ..damage }),
            }
        }
        Self { items, damaged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damage(id: &str) -> Damage {
        Damage { kind: "message".into(), id: Some(id.into()), index: 0, message: "damaged".into() }
    }

    #[test]
    fn damaged_rows_keep_their_place() {
        let rows: Rows<u8> =
            [Err(damage("a")), Ok(1), Ok(2), Err(damage("b")), Err(damage("c"))].into_iter().collect();
        assert_eq!(*rows, [1, 2]);
        let places: Vec<_> =
            rows.damaged.iter().map(|damage| (damage.id.as_deref().unwrap(), damage.index)).collect();
        assert_eq!(places, [("a", 0), ("b", 2), ("c", 2)]);
        let mut rows = rows;
        rows.reverse();
        assert_eq!(*rows, [2, 1]);
        let places: Vec<_> =
            rows.damaged.iter().map(|damage| (damage.id.as_deref().unwrap(), damage.index)).collect();
        assert_eq!(places, [("c", 0), ("b", 0), ("a", 2)]);
        rows.reverse();
        assert_eq!(rows.intact().unwrap_err().id.as_deref(), Some("a"));
        assert_eq!(Rows::from(vec![1]).intact(), Ok(vec![1]));
    }
}
