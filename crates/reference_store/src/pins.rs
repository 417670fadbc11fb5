//! The pins of readers.

use mainspring_core::{SessionId, Time};
use mainspring_kernel::store::Pin;

use super::tables::Tables;

impl Tables {
    pub(super) fn pin_write(&mut self, pin: &Pin) {
        let key = (pin.owner.clone(), pin.session);
        match pin.at {
            Some(at) => drop(self.pins.entry(key).or_insert(at)),
            None => drop(self.pins.remove(&key)),
        }
    }

    pub(super) fn pins(&self, owner: &str) -> Vec<(SessionId, Time)> {
        let own = self.pins.iter().filter(|((of, _), _)| of == owner);
        own.map(|((_, session), at)| (*session, *at)).collect()
    }

    pub(super) fn is_pinned(&self, owner: &str, session: SessionId) -> bool {
        self.pins.contains_key(&(owner.to_owned(), session))
    }
}
