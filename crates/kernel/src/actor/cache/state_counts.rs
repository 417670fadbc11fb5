//! Caches the number of keys in the state of the session and of its active run, so that a new key is checked
//! against the limit without counting all keys.
//!
//! The actor makes every write, so it knows the number after each write. The number of a point is valid for
//! later points of the same line, because only this actor writes there. For a write on another line, or
//! beside existing messages, the keys are counted again.

use mainspring_core::{Point, RunId};

use crate::store::StateAt;

/// The known numbers of keys.
#[derive(Debug, Default)]
pub(crate) struct StateCounts {
    session: Option<(Option<Point>, usize)>,
    run: Option<(RunId, usize)>,
}

impl StateCounts {
    /// The number of keys that a write at `at` sees, if it is known.
    pub(crate) fn get(&self, at: &StateAt) -> Option<usize> {
        match at {
            StateAt::Session { at, .. } => {
                let (known, count) = self.session?;
                follows(known, *at).then_some(count)
            }
            StateAt::Run(run) => self.run.filter(|(known, _)| known == run).map(|(_, count)| count),
            StateAt::Owner(_) => None,
        }
    }

    /// Notes the number of keys after a write at `at` that has become durable.
    pub(crate) fn set(&mut self, at: &StateAt, count: usize) {
        match at {
            StateAt::Session { at, .. } => self.session = Some((*at, count)),
            StateAt::Run(run) => self.run = Some((*run, count)),
            StateAt::Owner(_) => {}
        }
    }

    /// Forgets the number for `at`: a write may have changed it.
    pub(crate) fn forget(&mut self, at: &StateAt) {
        match at {
            StateAt::Session { .. } => self.session = None,
            StateAt::Run(_) => self.run = None,
            StateAt::Owner(_) => {}
        }
    }
}

/// True if `next` is `known` or comes after it on the same line.
fn follows(known: Option<Point>, next: Option<Point>) -> bool {
    match (known, next) {
        (None, None) => true,
        (Some(known), Some(next)) => known.line == next.line && known.pos <= next.pos,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use mainspring_core::{LineId, SessionId};

    use super::*;

    #[test]
    fn a_count_holds_for_later_points_of_its_line_until_a_write_elsewhere() {
        let at = |line, pos| {
            let point = Point { line: LineId(line), pos };
            StateAt::Session { session: SessionId::from_random([1; 16]), at: Some(point) }
        };
        let root = StateAt::Session { session: SessionId::from_random([1; 16]), at: None };
        let run = |no| StateAt::Run(RunId::from_random([no; 16]));
        let mut counts = StateCounts::default();
        assert_eq!(counts.get(&root), None);
        counts.set(&root, 1);
        assert_eq!((counts.get(&root), counts.get(&at(1, 0))), (Some(1), None));
        counts.set(&at(1, 4), 7);
        let known = [at(1, 3), at(1, 4), at(1, 9), at(2, 9), root].map(|at| counts.get(&at));
        assert_eq!(known, [None, Some(7), Some(7), None, None]);
        counts.set(&run(1), 3);
        assert_eq!((counts.get(&run(1)), counts.get(&run(2))), (Some(3), None));
        counts.forget(&at(2, 0));
        counts.forget(&run(2));
        assert_eq!((counts.get(&at(1, 4)), counts.get(&run(1))), (None, None));
    }
}
