//! The damaged rows of a page, for an answer that may end in the middle of the page.

use std::iter::{self, Peekable};
use std::vec;

use mainspring_core::Damage;

/// The damaged rows of a page. Each is reported together with the row that follows it: the next answer begins after the
/// last row of this one, so that no damaged row is reported twice.
pub(crate) struct DamagedRows(Peekable<vec::IntoIter<Damage>>);

impl DamagedRows {
    pub(crate) fn new(damaged: Vec<Damage>) -> Self {
        Self(damaged.into_iter().peekable())
    }

    /// Takes the damaged rows before the row `place` of the page. The answer has `index` rows so far.
    pub(crate) fn before(&mut self, place: usize, index: usize) -> impl Iterator<Item = Damage> {
        iter::from_fn(move || self.0.next_if(|damage| damage.index <= place))
            .map(move |damage| Damage { index, ..damage })
    }

    /// Takes the remaining damaged rows of a page that has no rows left.
    pub(crate) fn rest(&mut self, index: usize) -> impl Iterator<Item = Damage> {
        self.before(usize::MAX, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_rows_are_taken_with_the_row_after_them() {
        let damage = |index| Damage { kind: "artifact".into(), id: None, index, message: String::new() };
        let mut rows = DamagedRows::new(vec![damage(0), damage(2), damage(2), damage(3)]);
        let mut taken =
            |place, index| rows.before(place, index).map(|damage| damage.index).collect::<Vec<_>>();
        assert_eq!(taken(0, 5), [5]);
        assert_eq!(taken(1, 6), [0; 0]);
        assert_eq!(taken(2, 7), [7, 7]);
        assert_eq!(rows.rest(8).map(|damage| damage.index).collect::<Vec<_>>(), [8]);
    }
}
