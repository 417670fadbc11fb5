//! The damaged rows of pages, for an answer that may end in the middle of a page.

use std::collections::VecDeque;
use std::iter;

use mainspring_core::Damage;

/// The damaged rows of a page. Each is reported together with the listed row that follows it. The next answer begins
/// after the last row that this answer lists, so no damaged row is reported twice.
#[derive(Default)]
pub(crate) struct DamagedRows(VecDeque<Damage>);

impl DamagedRows {
    /// Continues with the next page. Damaged rows that were not taken yet now come before the rows of that page.
    pub(crate) fn next_page(&mut self, damaged: Vec<Damage>) {
        self.0.iter_mut().for_each(|damage| damage.index = 0);
        self.0.extend(damaged);
    }

    /// Takes the damaged rows before the row `place` of the page. Their index becomes `index`, the number of rows in
    /// the answer so far.
    pub(crate) fn before(&mut self, place: usize, index: usize) -> impl Iterator<Item = Damage> {
        iter::from_fn(move || self.0.pop_front_if(|damage| damage.index <= place))
            .map(move |damage| Damage { index, ..damage })
    }

    /// Takes the remaining damaged rows after the last page.
    pub(crate) fn rest(&mut self, index: usize) -> impl Iterator<Item = Damage> {
        self.before(usize::MAX, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damage(index: usize) -> Damage {
        Damage { kind: "artifact".into(), id: None, index, message: String::new() }
    }

    fn indexes(rows: impl Iterator<Item = Damage>) -> Vec<usize> {
        rows.map(|damage| damage.index).collect()
    }

    #[test]
    fn damaged_rows_are_taken_with_the_row_after_them() {
        let mut rows = DamagedRows::default();
        rows.next_page(vec![damage(0), damage(2), damage(2), damage(3)]);
        assert_eq!(indexes(rows.before(0, 5)), [5]);
        assert_eq!(indexes(rows.before(1, 6)), [0; 0]);
        assert_eq!(indexes(rows.before(2, 7)), [7, 7]);
        assert_eq!(indexes(rows.rest(8)), [8]);
    }

    #[test]
    fn damaged_rows_at_the_end_of_a_page_are_taken_with_the_first_listed_row_of_a_later_page() {
        let mut rows = DamagedRows::default();
        rows.next_page(vec![damage(3)]);
        assert_eq!(indexes(rows.before(2, 1)), [0; 0]);
        rows.next_page(vec![damage(5)]);
        assert_eq!(indexes(rows.before(0, 1)), [1]);
        assert_eq!(indexes(rows.rest(2)), [2]);
    }
}
