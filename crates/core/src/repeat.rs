//! Requests without an idempotency key: whether a request that equals an earlier one repeats it or is a new one.
//!
//! A client repeats a request if it got no answer, or an answer that says to try again, up to a minute later. But a
//! person may also send the same words twice. The two cases differ in the requests in between: a client repeats a
//! request before it sends any other request about the same thread. The API of these clients calls a session
//! a thread.
//!
//! ```text
//! new ──sent again within 75 s──▶ the same request
//!  ├──another call about its thread──▶ closed: sent again, it is a new request
//!  └──refused──▶ closed
//! ```

use crate::Time;

/// How long after the last arrival of a request an equal request counts as its repetition: 60 s, the longest pause of a
/// client between two attempts, and 15 s for slow connections.
pub const REPEAT_MS: u64 = 75_000;
/// While a request that names no existing thread is being handled, an equal request that arrives within this time is a
/// new request, and may create a second thread. Clients wait 30 s for an answer, so only a later request can be a
/// repetition.
pub const OVERLAP_MS: u64 = 30_000;

/// An earlier request, equal to the one that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlierRequest {
    /// When the request, or its last repetition, arrived.
    pub arrived_at: Time,
    /// True while the request is being handled.
    pub is_handled: bool,
    /// True if the request concerns an existing thread. False if it creates a thread, or concerns an agent.
    pub has_thread: bool,
}

/// Decides whether a request that arrives at `now` repeats the equal request `earlier`. The server started at
/// `started_at`: the time in which the server was down does not count.
pub fn repeats(earlier: EarlierRequest, started_at: Time, now: Time) -> bool {
    let age = now.since(earlier.arrived_at.max(started_at));
    let overlaps = earlier.is_handled && !earlier.has_thread && age < OVERLAP_MS;
    age <= REPEAT_MS && !overlaps
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: EarlierRequest =
        EarlierRequest { arrived_at: Time(1_000_000), is_handled: false, has_thread: true };

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
        let start = EarlierRequest { is_handled: true, has_thread: false, ..SENT };
        assert!(!repeats(start, Time(0), SENT.arrived_at.plus(10)));
        assert!(repeats(start, Time(0), SENT.arrived_at.plus(OVERLAP_MS)));
        assert!(repeats(EarlierRequest { is_handled: false, ..start }, Time(0), SENT.arrived_at.plus(10)));
        assert!(repeats(EarlierRequest { has_thread: true, ..start }, Time(0), SENT.arrived_at.plus(10)));
    }
}
