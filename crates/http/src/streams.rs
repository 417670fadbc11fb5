//! Limits the number of open streams, and of requests that only wait.
//!
//! Invariant: every counted stream holds a [`StreamPermit`]; dropping it decrements the count.

use std::collections::HashMap;
use std::sync::Arc;

use axum::http::StatusCode;
use mainspring_core::{Resource, SessionId};
use mainspring_kernel::Kernel;
use mainspring_kernel::quotas::{NotTaken, Pool, PoolPermit};
use parking_lot::Mutex;

use crate::{HttpLimits, Problem};

/// Counts the open streams.
#[derive(Debug)]
pub(super) struct Streams {
    pool: Arc<Pool>,
    sessions: Mutex<HashMap<SessionId, usize>>,
    limits: HttpLimits,
}

/// The permit of one open stream; released on drop.
#[derive(Debug)]
pub(super) struct StreamPermit {
    streams: Arc<Streams>,
    session: Option<SessionId>,
    _permit: PoolPermit,
}

impl Streams {
    pub(super) fn new(limits: HttpLimits) -> Arc<Self> {
        let pool = Pool::new(Resource::Streams, limits.streams);
        Arc::new(Self { pool, sessions: Mutex::default(), limits })
    }

    /// Acquires a permit for one more stream of `owner`, also counted for `session` if given.
    pub(super) fn acquire(
        self: &Arc<Self>,
        kernel: &Kernel,
        owner: &str,
        session: Option<SessionId>,
    ) -> Result<StreamPermit, Problem> {
        let HttpLimits { streams, session_streams, .. } = self.limits;
        let permit = self.pool.take(kernel, owner).map_err(|refused| match refused {
            NotTaken::Refused(error) => error.into(),
            NotTaken::Full => {
                let detail = format!("{streams} streams are open already; try again later");
                Problem::transient(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
            }
        })?;
        if let Some(session) = session {
            let mut sessions = self.sessions.lock();
            let of_session = sessions.entry(session).or_default();
            if *of_session >= session_streams {
                let detail = format!("{session_streams} streams of this session are open already; close one");
                return Err(Problem::transient(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", detail));
            }
            *of_session += 1;
        }
        Ok(StreamPermit { streams: self.clone(), session, _permit: permit })
    }

    /// Returns the number of open streams.
    pub(super) fn open(&self) -> usize {
        self.pool.used()
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let Some(session) = self.session else { return };
        let mut sessions = self.streams.sessions.lock();
        if let Some(count) = sessions.get_mut(&session) {
            *count -= 1;
            if *count == 0 {
                sessions.remove(&session);
            }
        }
    }
}
