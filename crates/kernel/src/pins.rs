//! The pins of readers, cached: every answer with a session says whether the caller has pinned it.
//!
//! A pin is a mark of one reader. It is no part of the session: it changes neither the session's version nor its activity,
//! and no other reader sees it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mainspring_core::{Session, SessionId, Time};
use parking_lot::Mutex;

use crate::store::{Pin, Store, StoreError};

/// Sessions that one reader may pin.
pub(crate) const MAX_PINS: usize = 1_000;

/// Readers whose pins are kept in memory.
const MAX_READERS: usize = 10_000;

/// The pins of one reader: when each session was pinned.
type OwnPins = Arc<BTreeMap<SessionId, Time>>;

/// The pins of recent readers.
#[derive(Default)]
pub(crate) struct Pins {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Counts the changes: pins that were read before a change must not be kept after it.
    changes: u64,
    of: HashMap<String, OwnPins>,
}

impl Pins {
    /// The pins of a reader.
    pub(crate) async fn of(&self, store: &dyn Store, owner: &str) -> Result<OwnPins, StoreError> {
        let changes = {
            let known = self.known.lock();
            if let Some(pins) = known.of.get(owner) {
                return Ok(pins.clone());
            }
            known.changes
        };
        let pins: OwnPins = Arc::new(store.pins(owner).await?.into_iter().collect());
        let mut known = self.known.lock();
        if known.changes == changes {
            if known.of.len() >= MAX_READERS {
                known.of.clear();
            }
            known.of.insert(owner.to_owned(), pins.clone());
        }
        Ok(pins)
    }

    /// Applies a pin that was stored. If that is not certain, the pins of its reader are read again.
    pub(crate) fn note(&self, pin: &Pin, is_stored: bool) {
        let mut known = self.known.lock();
        known.changes += 1;
        if !is_stored {
            known.of.remove(&pin.owner);
        } else if let Some(pins) = known.of.get_mut(&pin.owner) {
            let pins = Arc::make_mut(pins);
            match pin.at {
                Some(at) => drop(pins.entry(pin.session).or_insert(at)),
                None => drop(pins.remove(&pin.session)),
            }
        }
    }
}

/// Sets in `session` whether the reader with these pins has pinned it.
pub(crate) fn mark(session: &mut Session, pins: &BTreeMap<SessionId, Time>) {
    session.pinned_at = pins.get(&session.id).copied();
    session.pinned = session.pinned_at.is_some();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_pin_is_known_at_once_and_an_uncertain_one_is_read_again() {
        let pins = Pins::default();
        let session = SessionId::from_random([1; 16]);
        let pin = |at| Pin { owner: "ada".into(), session, at };
        pins.note(&pin(Some(Time(1))), true);
        assert!(pins.known.lock().of.is_empty(), "pins that were never read stay unread");
        pins.known.lock().of.insert("ada".into(), OwnPins::default());
        pins.note(&pin(Some(Time(1))), true);
        pins.note(&pin(Some(Time(2))), true);
        assert_eq!(pins.known.lock().of["ada"].get(&session), Some(&Time(1)), "the first time counts");
        pins.note(&pin(None), true);
        assert!(pins.known.lock().of["ada"].is_empty());
        pins.note(&pin(Some(Time(3))), false);
        assert!(!pins.known.lock().of.contains_key("ada"));
    }
}
