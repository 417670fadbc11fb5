//! The scheduler: permits for active work, fair across owners.
//!
//! A session asks for a permit when it has work that could run. Permits are bounded overall and per adapter; owners
//! take turns, and one owner's sessions are served in the order they asked. A permit is returned when it is dropped.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

/// Hands out permits for active work.
#[derive(Debug, Clone)]
pub(crate) struct Scheduler(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    free: usize,
    adapters: HashMap<String, Slots>,
    /// Owners with tickets, in the order of their turn.
    turns: VecDeque<String>,
    tickets: HashMap<String, Tickets>,
    /// How many tickets there have been.
    drawn: u64,
}

#[derive(Debug)]
struct Slots {
    cap: usize,
    used: usize,
}

/// One owner's tickets by adapter, so that a full adapter does not hold up another.
#[derive(Debug, Default)]
struct Tickets(BTreeMap<String, VecDeque<Ticket>>);

/// What is called with the permit; false when nobody wants it any more.
type Deliver = Box<dyn FnOnce(Permit) -> Result<(), Permit> + Send>;

/// A place in the order, and whom to call.
struct Ticket(u64, Deliver);

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

/// The right to do active work.
#[derive(Debug)]
pub(crate) struct Permit {
    scheduler: Scheduler,
    adapter: String,
    live: bool,
}

impl Permit {
    /// True when it was given for this adapter.
    pub(crate) fn is_for(&self, adapter: &str) -> bool {
        self.adapter == adapter
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if std::mem::take(&mut self.live) {
            self.scheduler.release(&self.adapter);
        }
    }
}

impl Scheduler {
    /// A scheduler of `total` permits, at most `caps` of them for an adapter.
    pub(crate) fn new(total: usize, caps: impl IntoIterator<Item = (String, usize)>) -> Self {
        let adapters = caps.into_iter().map(|(name, cap)| (name, Slots { cap, used: 0 })).collect();
        Self(Arc::new(Mutex::new(State {
            free: total,
            adapters,
            turns: VecDeque::new(),
            tickets: HashMap::new(),
            drawn: 0,
        })))
    }

    /// Adds permits.
    pub(crate) fn add(&self, permits: usize) {
        self.0.lock().free += permits;
        self.grant();
    }

    /// A permit, if one is free. Nobody is overtaken: whoever waits while a permit is free waits for another adapter.
    pub(crate) fn try_acquire(&self, adapter: &str) -> Option<Permit> {
        self.0.lock().take(adapter).then(|| self.permit(adapter))
    }

    /// Calls `deliver` with a permit when it is `owner`'s turn. It gives the permit back if nobody wants it any more.
    pub(crate) fn enqueue(
        &self,
        owner: &str,
        adapter: &str,
        deliver: impl FnOnce(Permit) -> Result<(), Permit> + Send + 'static,
    ) {
        let mut state = self.0.lock();
        if !state.tickets.contains_key(owner) {
            state.turns.push_back(owner.to_owned());
        }
        state.drawn += 1;
        let ticket = Ticket(state.drawn, Box::new(deliver));
        let tickets = state.tickets.entry(owner.to_owned()).or_default();
        tickets.0.entry(adapter.to_owned()).or_default().push_back(ticket);
        drop(state);
        self.grant();
    }

    fn permit(&self, adapter: &str) -> Permit {
        Permit { scheduler: self.clone(), adapter: adapter.to_owned(), live: true }
    }

    fn release(&self, adapter: &str) {
        self.0.lock().give_back(adapter);
        self.grant();
    }

    fn grant(&self) {
        loop {
            let Some((adapter, ticket)) = self.0.lock().next() else {
                return;
            };
            // Delivered without the lock: it may wake an actor that asks for the next permit at once.
            if let Err(mut refused) = ticket.1(self.permit(&adapter)) {
                refused.live = false;
                self.0.lock().give_back(&adapter);
            }
        }
    }
}

impl State {
    fn has_room(&self, adapter: &str) -> bool {
        self.free > 0 && self.adapters.get(adapter).is_none_or(|slots| slots.used < slots.cap)
    }

    fn take(&mut self, adapter: &str) -> bool {
        let room = self.has_room(adapter);
        if room {
            self.free -= 1;
            if let Some(slots) = self.adapters.get_mut(adapter) {
                slots.used += 1;
            }
        }
        room
    }

    fn give_back(&mut self, adapter: &str) {
        self.free += 1;
        if let Some(slots) = self.adapters.get_mut(adapter) {
            slots.used -= 1;
        }
    }

    /// The next ticket whose adapter has room, with its permit taken; its owner goes to the end of the turns.
    fn next(&mut self) -> Option<(String, Ticket)> {
        for turn in 0..self.turns.len() {
            let owner = self.turns[turn].clone();
            let ready = self
                .tickets
                .get(&owner)?
                .0
                .iter()
                .filter(|(adapter, _)| self.has_room(adapter))
                .min_by_key(|(_, queue)| queue.front().map(|ticket| ticket.0))
                .map(|(adapter, _)| adapter.clone());
            let Some(adapter) = ready else { continue };
            self.turns.remove(turn);
            let tickets = self.tickets.get_mut(&owner)?;
            let queue = tickets.0.get_mut(&adapter)?;
            let ticket = queue.pop_front()?;
            if queue.is_empty() {
                tickets.0.remove(&adapter);
            }
            if tickets.0.is_empty() {
                self.tickets.remove(&owner);
            } else {
                self.turns.push_back(owner);
            }
            self.take(&adapter);
            return Some((adapter, ticket));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Log = Arc<Mutex<Vec<(String, Permit)>>>;

    fn enqueue(scheduler: &Scheduler, log: &Log, owner: &str, adapter: &str, name: &str) {
        let (log, name) = (log.clone(), name.to_owned());
        scheduler.enqueue(owner, adapter, move |permit| {
            log.lock().push((name, permit));
            Ok(())
        });
    }

    fn finish_one(log: &Log) -> String {
        let (name, permit) = log.lock().remove(0);
        drop(permit);
        name
    }

    #[test]
    fn owners_take_turns_whoever_asked_more() {
        let scheduler = Scheduler::new(1, []);
        let log = Log::default();
        let held = scheduler.try_acquire("x").unwrap();
        for name in ["a1", "a2", "a3"] {
            enqueue(&scheduler, &log, "a", "x", name);
        }
        enqueue(&scheduler, &log, "b", "x", "b1");
        assert!(scheduler.try_acquire("x").is_none());
        drop(held);
        let order: Vec<String> = (0..4).map(|_| finish_one(&log)).collect();
        assert_eq!(order, ["a1", "b1", "a2", "a3"]);
        assert!(scheduler.try_acquire("x").is_some());
    }

    #[test]
    fn a_full_adapter_does_not_hold_up_another() {
        let scheduler = Scheduler::new(4, [("x".to_owned(), 1)]);
        let log = Log::default();
        let held = scheduler.try_acquire("x").unwrap();
        enqueue(&scheduler, &log, "a", "x", "x1");
        enqueue(&scheduler, &log, "a", "y", "y1");
        assert_eq!(finish_one(&log), "y1");
        assert!(log.lock().is_empty());
        drop(held);
        assert_eq!(finish_one(&log), "x1");
    }

    #[test]
    fn an_owner_is_served_in_the_order_it_asked_whatever_the_adapter() {
        let scheduler = Scheduler::new(1, []);
        let log = Log::default();
        let held = scheduler.try_acquire("x").unwrap();
        for (adapter, name) in [("z", "1"), ("a", "2"), ("z", "3"), ("a", "4")] {
            enqueue(&scheduler, &log, "a", adapter, name);
        }
        drop(held);
        let order: Vec<String> = (0..4).map(|_| finish_one(&log)).collect();
        assert_eq!(order, ["1", "2", "3", "4"]);
    }

    #[test]
    fn a_permit_nobody_wants_goes_to_the_next() {
        let scheduler = Scheduler::new(1, []);
        let log = Log::default();
        let held = scheduler.try_acquire("x").unwrap();
        scheduler.enqueue("a", "x", Err);
        enqueue(&scheduler, &log, "b", "x", "b1");
        drop(held);
        assert_eq!(finish_one(&log), "b1");
        assert!(scheduler.try_acquire("x").is_some());
    }
}
