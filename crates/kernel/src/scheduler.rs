//! The scheduler: permits for active work, fair across owners.
//!
//! A session asks for a permit when it has work that could run. Permits are bounded overall and per adapter; owners
//! take turns, and one owner's sessions are served in the order they asked. A permit is returned when it is dropped.
//!
//! A run that waits for another lends it its permit, one at a time: so parents that hold all permits there are do not
//! wait for children that get none.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use mainspring_core::RunId;
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
    /// How many tickets could be served by a permit that is lent.
    lenders: usize,
    /// Runs whose permit is lent to one that they wait for.
    lent: HashSet<RunId>,
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

/// A place in the order, who would lend a permit, and whom to call.
struct Ticket(u64, Option<RunId>, Deliver);

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
    /// Whose permit it is, if that one only lends it.
    lender: Option<RunId>,
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
            self.scheduler.release(&self.adapter, self.lender);
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
            lenders: 0,
            lent: HashSet::new(),
        })))
    }

    /// Adds permits.
    pub(crate) fn add(&self, permits: usize) {
        self.0.lock().free += permits;
        self.grant();
    }

    /// A permit, if one is free or `lender` has one to lend. Nobody is overtaken: whoever waits while a permit is free
    /// waits for another adapter.
    pub(crate) fn try_acquire(&self, adapter: &str, lender: Option<RunId>) -> Option<Permit> {
        let taken = self.0.lock().take(adapter, lender)?;
        Some(self.permit(adapter, taken))
    }

    /// True when all that an adapter may have at once is at work.
    pub(crate) fn is_full(&self, adapter: &str) -> bool {
        self.0.lock().adapters.get(adapter).is_some_and(|slots| slots.used >= slots.cap)
    }

    /// Calls `deliver` with a permit when it is `owner`'s turn. It gives the permit back if nobody wants it any more.
    pub(crate) fn enqueue(
        &self,
        owner: &str,
        adapter: &str,
        lender: Option<RunId>,
        deliver: impl FnOnce(Permit) -> Result<(), Permit> + Send + 'static,
    ) {
        let mut state = self.0.lock();
        if !state.tickets.contains_key(owner) {
            state.turns.push_back(owner.to_owned());
        }
        state.drawn += 1;
        state.lenders += usize::from(lender.is_some());
        let ticket = Ticket(state.drawn, lender, Box::new(deliver));
        let tickets = state.tickets.entry(owner.to_owned()).or_default();
        tickets.0.entry(adapter.to_owned()).or_default().push_back(ticket);
        drop(state);
        self.grant();
    }

    fn permit(&self, adapter: &str, Taken(lender): Taken) -> Permit {
        Permit { scheduler: self.clone(), adapter: adapter.to_owned(), lender, live: true }
    }

    fn release(&self, adapter: &str, lender: Option<RunId>) {
        self.0.lock().give_back(adapter, lender);
        self.grant();
    }

    fn grant(&self) {
        loop {
            let Some((adapter, ticket, taken)) = self.0.lock().next() else {
                return;
            };
            // Delivered without the lock: it may wake an actor that asks for the next permit at once.
            if let Err(mut refused) = ticket.2(self.permit(&adapter, taken)) {
                refused.live = false;
                self.0.lock().give_back(&adapter, refused.lender);
            }
        }
    }
}

/// That a permit was taken, and whose it is if it is lent.
#[derive(Debug, Clone, Copy)]
struct Taken(Option<RunId>);

impl State {
    /// Which permit there is for an adapter: a free one, else one that is lent.
    fn room(&self, adapter: &str, lender: Option<RunId>) -> Option<Taken> {
        if self.adapters.get(adapter).is_some_and(|slots| slots.used >= slots.cap) {
            return None;
        }
        if self.free > 0 {
            return Some(Taken(None));
        }
        lender.filter(|lender| !self.lent.contains(lender)).map(|lender| Taken(Some(lender)))
    }

    fn take(&mut self, adapter: &str, lender: Option<RunId>) -> Option<Taken> {
        let taken = self.room(adapter, lender)?;
        match taken.0 {
            Some(lender) => drop(self.lent.insert(lender)),
            None => self.free -= 1,
        }
        if let Some(slots) = self.adapters.get_mut(adapter) {
            slots.used += 1;
        }
        Some(taken)
    }

    fn give_back(&mut self, adapter: &str, lender: Option<RunId>) {
        match lender {
            Some(lender) => drop(self.lent.remove(&lender)),
            None => self.free += 1,
        }
        if let Some(slots) = self.adapters.get_mut(adapter) {
            slots.used -= 1;
        }
    }

    /// The next ticket there is a permit for, with that taken; its owner goes to the end of the turns.
    fn next(&mut self) -> Option<(String, Ticket, Taken)> {
        for turn in 0..self.turns.len() {
            let owner = self.turns[turn].clone();
            let Some((adapter, place)) = self.ready(&owner) else { continue };
            self.turns.remove(turn);
            let tickets = self.tickets.get_mut(&owner)?;
            let queue = tickets.0.get_mut(&adapter)?;
            let ticket = queue.remove(place)?;
            self.lenders -= usize::from(ticket.1.is_some());
            if queue.is_empty() {
                tickets.0.remove(&adapter);
            }
            if tickets.0.is_empty() {
                self.tickets.remove(&owner);
            } else {
                self.turns.push_back(owner);
            }
            let taken = self.take(&adapter, ticket.1)?;
            return Some((adapter, ticket, taken));
        }
        None
    }

    /// The oldest of an owner's tickets that there is a permit for: its adapter, and its place in the queue there.
    fn ready(&self, owner: &str) -> Option<(String, usize)> {
        let tickets = self.tickets.get(owner)?.0.iter();
        let first = tickets.filter_map(|(adapter, queue)| {
            // With a free permit the first of a queue is served; without one only who is lent one.
            let fits = |ticket: &&Ticket| self.room(adapter, ticket.1).is_some();
            let place = match self.room(adapter, None) {
                Some(_) => 0,
                None if self.lenders == 0 => return None,
                None => queue.iter().position(|ticket| fits(&ticket))?,
            };
            Some((queue.get(place)?.0, adapter, place))
        });
        first.min_by_key(|(drawn, ..)| *drawn).map(|(_, adapter, place)| (adapter.clone(), place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Log = Arc<Mutex<Vec<(String, Permit)>>>;

    fn enqueue(scheduler: &Scheduler, log: &Log, owner: &str, adapter: &str, name: &str) {
        let (log, name) = (log.clone(), name.to_owned());
        scheduler.enqueue(owner, adapter, None, move |permit| {
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
        let held = scheduler.try_acquire("x", None).unwrap();
        for name in ["a1", "a2", "a3"] {
            enqueue(&scheduler, &log, "a", "x", name);
        }
        enqueue(&scheduler, &log, "b", "x", "b1");
        assert!(scheduler.try_acquire("x", None).is_none());
        drop(held);
        let order: Vec<String> = (0..4).map(|_| finish_one(&log)).collect();
        assert_eq!(order, ["a1", "b1", "a2", "a3"]);
        assert!(scheduler.try_acquire("x", None).is_some());
    }

    #[test]
    fn a_full_adapter_does_not_hold_up_another() {
        let scheduler = Scheduler::new(4, [("x".to_owned(), 1)]);
        let log = Log::default();
        let held = scheduler.try_acquire("x", None).unwrap();
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
        let held = scheduler.try_acquire("x", None).unwrap();
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
        let held = scheduler.try_acquire("x", None).unwrap();
        scheduler.enqueue("a", "x", None, Err);
        enqueue(&scheduler, &log, "b", "x", "b1");
        drop(held);
        assert_eq!(finish_one(&log), "b1");
        assert!(scheduler.try_acquire("x", None).is_some());
    }

    #[test]
    fn who_waits_lends_its_permit_to_one_at_a_time() {
        let scheduler = Scheduler::new(1, []);
        let log = Log::default();
        let parent = RunId::from_random([1; 16]);
        let held = scheduler.try_acquire("x", None).unwrap();
        let first = scheduler.try_acquire("x", Some(parent)).unwrap();
        assert!(scheduler.try_acquire("x", Some(parent)).is_none(), "it has one to lend, not two");
        enqueue(&scheduler, &log, "a", "x", "other");
        for name in ["second", "third"] {
            let log = log.clone();
            scheduler.enqueue("a", "x", Some(parent), move |permit| {
                log.lock().push((name.to_owned(), permit));
                Ok(())
            });
        }
        assert!(log.lock().is_empty());
        drop(first);
        assert_eq!(finish_one(&log), "second", "what is lent goes to who is lent it, whoever was first");
        assert_eq!(finish_one(&log), "third");
        assert!(log.lock().is_empty());
        drop(held);
        assert_eq!(finish_one(&log), "other");
    }

    #[test]
    fn a_full_adapter_has_no_room_for_what_is_lent_either() {
        let scheduler = Scheduler::new(4, [("x".to_owned(), 1)]);
        let parent = RunId::from_random([1; 16]);
        let _held = scheduler.try_acquire("x", None).unwrap();
        assert!(scheduler.is_full("x"));
        assert!(scheduler.try_acquire("x", Some(parent)).is_none());
        assert!(scheduler.try_acquire("y", Some(parent)).is_some());
    }
}
