//! Limits the number of open streams.
//!
//! Invariant: every counted stream holds a [`StreamPermit`]; dropping it decrements the count.

use std::collections::HashMap;
use std::sync::Arc;

use axum::http::StatusCode;
use mainspring_core::SessionId;
use parking_lot::Mutex;

use crate::{HttpLimits, Problem};

/// Counts the open streams.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    total: usize,
    sessions: HashMap<SessionId, usize>,
}

/// The permit of one open stream; released on drop.
#[derive(Debug)]
pub(super) struct StreamPermit {
    streams: Arc<Streams>,
    session: Option<SessionId>,
}

impl Streams {
    /// Acquires a permit for one more stream, also counted for `session` if given.
    pub(super) fn acquire(
        self: &Arc<Self>,
        limits: &HttpLimits,
        session: Option<SessionId>,
    ) -> Result<StreamPermit, Problem> {
        let mut open = self.0.lock();
        if open.total >= limits.streams {
            let detail = format!("{} streams are open already; try again later", limits.streams);
            return Err(Problem::transient(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail));
        }
        if let Some(session) = session {
            let of_session = open.sessions.entry(session).or_default();
            if *of_session >= limits.session_streams {
                let detail =
                    format!("{} streams of this session are open already; close one", limits.session_streams);
                return Err(Problem::transient(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", detail));
            }
            *of_session += 1;
        }
        open.total += 1;
        Ok(StreamPermit { streams: self.clone(), session })
    }

    /// Returns the number of open streams.
    pub(super) fn open(&self) -> usize {
        self.0.lock().total
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = self.streams.0.lock();
        open.total -= 1;
        if let Some(session) = self.session
            && let Some(count) = open.sessions.get_mut(&session)
        {
            *count -= 1;
            if *count == 0 {
                open.sessions.remove(&session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_permit_is_released() {
        let limits = HttpLimits { streams: 3, session_streams: 2, ..HttpLimits::default() };
        let streams = Arc::new(Streams::default());
        let [one, other] = [1, 2].map(|no| Some(SessionId::from_random([no; 16])));
        let code = |permit: Result<StreamPermit, Problem>| permit.map(drop).unwrap_err().code;
        let first = streams.acquire(&limits, one).unwrap();
        let _second = streams.acquire(&limits, one).unwrap();
        assert_eq!(code(streams.acquire(&limits, one)), "too_many_streams");
        let _third = streams.acquire(&limits, other).unwrap();
        assert_eq!(code(streams.acquire(&limits, other)), "overloaded");
        assert_eq!(code(streams.acquire(&limits, None)), "overloaded");
        drop(first);
        assert!(streams.acquire(&limits, one).is_ok());
        assert_eq!((streams.open(), streams.0.lock().sessions.len()), (2, 2));
    }
}
