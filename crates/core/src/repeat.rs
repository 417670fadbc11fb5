//! Requests of clients that repeat them without a name: when does the same request mean the same intent?
//!
//! Such a client sends a request again if it got no answer, or one that says to try again, up to a minute later. A
//! person may also send the same words twice. They differ in the requests in between: a client repeats a request before
//! it sends any other request about the same thread.
//!
//! ```text
//! new ──sent again within 75 s──▶ the same request
//!  ├──another call about its thread──▶ closed: sent again, it is a new request
//!  └──refused──▶ closed
//! ```

use crate::Time;

/// How long after its last arrival a request counts as the same one: the longest pause between two attempts, 60 s, and
/// some for slow connections.
pub const REPEAT_MS: u64 = 75_000;
/// How long a request that creates a thread may take before the same request counts as its repetition. Clients give up
/// after 30 s; until then the same request is a second one.
pub const OVERLAP_MS: u64 = 30_000;

/// An earlier arrival of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Earlier {
    /// When it last arrived.
    pub arrived_at: Time,
    /// True while it is handled.
    pub is_handled: bool,
    /// True if it concerns a thread that exists, false if it creates one.
    pub has_thread: bool,
}

/// Decides whether a request that arrives at `now` repeats `earlier`, which is equal to it. `started_at` is when the
/// server started: the time in which it was down does not count.
pub fn repeats(earlier: Earlier, started_at: Time, now: Time) -> bool {
    let age = now.since(earlier.arrived_at.max(started_at));
    let overlaps = earlier.is_handled && !earlier.has_thread && age < OVERLAP_MS;
    age <= REPEAT_MS && !overlaps
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: Earlier = Earlier { arrived_at: Time(1_000_000), is_handled: false, has_thread: true };

    #[test]
    fn a_request_is_repeated_for_75_seconds() {
        assert!(repeats(SENT, Time(0), SENT.arrived_at.plus(REPEAT_MS)));
        assert!(!repeats(SENT, Time(0), SENT.arrived_at.plus(REPEAT_MS + 1)));
    }

    #[test]
    fn the_time_in_which_the_server_is_down_does_not_count() {
        let started = SENT.arrived_at.plus(3_600_000);
        assert!(repeats(SENT, started, started.plus(REPEAT_MS)));
        assert!(!repeats(SENT, started, started.plus(REPEAT_MS + 1)));
    }

    #[test]
    fn equal_starts_at_the_same_time_are_two_threads() {
        let start = Earlier { is_handled: true, has_thread: false, ..SENT };
        assert!(!repeats(start, Time(0), SENT.arrived_at.plus(10)));
        assert!(repeats(start, Time(0), SENT.arrived_at.plus(OVERLAP_MS)));
        assert!(repeats(Earlier { is_handled: false, ..start }, Time(0), SENT.arrived_at.plus(10)));
        assert!(repeats(Earlier { has_thread: true, ..start }, Time(0), SENT.arrived_at.plus(10)));
    }
}
