//! Open streams are counted, so that they stay bounded.
//!
//! Invariant: whoever is counted holds a [`Place`]; a reader that goes away gives it back.

use std::collections::HashMap;
use std::sync::Arc;

use axum::http::StatusCode;
use mainspring_core::SessionId;
use parking_lot::Mutex;

use crate::{HttpLimits, Problem};

/// How many streams are open.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    total: usize,
    sessions: HashMap<SessionId, usize>,
}

/// A place among the open streams, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    streams: Arc<Streams>,
    session: Option<SessionId>,
}

impl Streams {
    /// A place for one more stream, of a session if it is one's.
    pub(super) fn place(
        self: &Arc<Self>,
        limits: &HttpLimits,
        session: Option<SessionId>,
    ) -> Result<Place, Problem> {
        let mut open = self.0.lock();
        if open.total >= limits.streams {
            let detail = format!("{} streams are open already; try again later", limits.streams);
            return Err(Problem::passing(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail));
        }
        if let Some(session) = session {
            let of_session = open.sessions.entry(session).or_default();
            if *of_session >= limits.session_streams {
                let detail =
                    format!("{} streams of this session are open already; close one", limits.session_streams);
                return Err(Problem::passing(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", detail));
            }
            *of_session += 1;
        }
        open.total += 1;
        Ok(Place { streams: self.clone(), session })
    }

    /// How many are open.
    pub(super) fn open(&self) -> usize {
        self.0.lock().total
    }
}

impl Drop for Place {
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
    fn a_place_is_given_back() {
        let limits = HttpLimits { streams: 3, session_streams: 2, ..HttpLimits::default() };
        let streams = Arc::new(Streams::default());
        let [one, other] = [1, 2].map(|no| Some(SessionId::from_random([no; 16])));
        let code = |place: Result<Place, Problem>| place.map(drop).unwrap_err().code;
        let first = streams.place(&limits, one).unwrap();
        let _second = streams.place(&limits, one).unwrap();
        assert_eq!(code(streams.place(&limits, one)), "too_many_streams");
        let _third = streams.place(&limits, other).unwrap();
        assert_eq!(code(streams.place(&limits, other)), "overloaded");
        assert_eq!(code(streams.place(&limits, None)), "overloaded");
        drop(first);
        assert!(streams.place(&limits, one).is_ok());
        assert_eq!((streams.open(), streams.0.lock().sessions.len()), (2, 2));
    }
}
