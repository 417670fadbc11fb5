//! Finds the numbers of messages on a path, counted from 0, and of the first message of each run. Reuses the numbers that
//! an earlier view has found.

use std::collections::HashMap;
use std::hash::Hash;

use mainspring_core::{MessageId, RunId};

use super::path::{Numbered, Path};

/// The numbers that were found; `None` for runs and messages that are not on the path.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    runs: HashMap<RunId, Option<usize>>,
    messages: HashMap<MessageId, Option<usize>>,
}

/// Finds numbers on a path that has the first `kept` messages of an earlier path.
pub(super) struct PathPlaces<'a> {
    path: &'a Path,
    kept: usize,
    earlier: Option<&'a Places>,
    found: Places,
}

impl<'a> PathPlaces<'a> {
    pub(super) fn new(path: &'a Path, kept: usize, earlier: Option<&'a Places>) -> Self {
        Self { path, kept, earlier, found: Places::default() }
    }

    /// The number of the first message of a run.
    pub(super) fn of_run(&mut self, run: RunId) -> Option<usize> {
        let earlier = self.earlier.and_then(|earlier| earlier.runs.get(&run));
        let is_of_run = |message: &Numbered| message.run == Some(run);
        remembered(&mut self.found.runs, run, || place(self.path, self.kept, earlier, is_of_run))
    }

    /// The number of a message.
    pub(super) fn of_message(&mut self, message: MessageId) -> Option<usize> {
        let earlier = self.earlier.and_then(|earlier| earlier.messages.get(&message));
        let is_wanted = |known: &Numbered| known.id == Some(message);
        remembered(&mut self.found.messages, message, || place(self.path, self.kept, earlier, is_wanted))
    }

    /// The number of messages on the path.
    pub(super) fn end(&self) -> usize {
        self.path.len()
    }

    /// Returns all numbers that were asked for.
    pub(super) fn into_places(self) -> Places {
        self.found
    }
}

fn remembered<K: Eq + Hash>(
    found: &mut HashMap<K, Option<usize>>,
    key: K,
    find: impl FnOnce() -> Option<usize>,
) -> Option<usize> {
    *found.entry(key).or_insert_with(find)
}

/// Finds the number of the first message for which `is_wanted` holds. `earlier` is the answer for the earlier path.
fn place(
    path: &Path,
    kept: usize,
    earlier: Option<&Option<usize>>,
    is_wanted: impl Fn(&Numbered) -> bool,
) -> Option<usize> {
    let start = match earlier {
        Some(Some(number)) if *number < kept => return Some(*number),
        Some(_) => kept,
        None => 0,
    };
    path.starting_at(start).position(|message| is_wanted(message)).map(|at| start + at)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainspring_core::{Block, Message, MessageStatus, Role, SessionId, Time};

    use super::*;

    fn message(number: u8, run: u8) -> Arc<Message> {
        Arc::new(Message {
            id: MessageId::from_random([number; 16]),
            session: SessionId::from_random([1; 16]),
            run: Some(RunId::from_random([run; 16])),
            role: Role::User,
            status: MessageStatus::Completed,
            content: vec![Block::text("hi")],
            usage: None,
            created_at: Time(1),
            agent: None,
            external_id: None,
        })
    }

    /// The places of all runs and messages that a test makes.
    fn all(places: &mut PathPlaces<'_>) -> Vec<(Option<usize>, Option<usize>)> {
        let of = |number: u8| {
            let (run, message) = (RunId::from_random([number; 16]), MessageId::from_random([number; 16]));
            (places.of_run(run), places.of_message(message))
        };
        (0..60).map(of).collect()
    }

    #[test]
    fn places_found_with_an_earlier_view_equal_those_found_without_it() {
        let first: Vec<_> = (0..30).map(|number| message(number, number / 2)).collect();
        let path = Path::default().continued(0, &first);
        let mut places = PathPlaces::new(&path, 0, None);
        all(&mut places);
        let known = places.into_places();
        for kept in [0, 1, 7, 29, 30] {
            let new: Vec<_> = (40..45).map(|number| message(number, number / 2)).collect();
            let other = path.continued(kept, &new);
            let expected = all(&mut PathPlaces::new(&other, 0, None));
            assert_eq!(all(&mut PathPlaces::new(&other, kept, Some(&known))), expected, "{kept}");
            assert_eq!((expected[0].1, expected[42].1), ((kept > 0).then_some(0), Some(kept + 2)), "{kept}");
        }
    }
}
