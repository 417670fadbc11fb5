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

use crate::sse::SharedFrame;
use crate::{HttpLimits, Problem};

/// Counts the open streams.
#[derive(Debug)]
pub(super) struct Streams {
    pool: Arc<Pool>,
    sessions: Mutex<HashMap<SessionId, SessionStreams>>,
    limits: HttpLimits,
}

/// The open streams of one session.
#[derive(Debug, Default)]
struct SessionStreams {
    count: usize,
    frame: Arc<SharedFrame>,
}

/// The permit of one open stream; released on drop.
#[derive(Debug)]
pub(super) struct StreamPermit {
    streams: Arc<Streams>,
    session: Option<(SessionId, Arc<SharedFrame>)>,
    _permit: PoolPermit,
}

impl StreamPermit {
    /// The last frame that a stream of the same session has made; none for a stream of no session.
    pub(super) fn shared_frame(&self) -> Option<&SharedFrame> {
        self.session.as_ref().map(|(_, frame)| &**frame)
    }
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
        let mut of_session = None;
        if let Some(session) = session {
            let mut sessions = self.sessions.lock();
            let open = sessions.entry(session).or_default();
            if open.count >= session_streams {
                let detail = format!("{session_streams} streams of this session are open already; close one");
                return Err(Problem::transient(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", detail));
            }
            open.count += 1;
            of_session = Some((session, open.frame.clone()));
        }
        Ok(StreamPermit { streams: self.clone(), session: of_session, _permit: permit })
    }

    /// Returns the number of open streams.
    pub(super) fn open(&self) -> usize {
        self.pool.used()
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let Some((session, _)) = self.session else { return };
        let mut sessions = self.streams.sessions.lock();
        if let Some(open) = sessions.get_mut(&session) {
            open.count -= 1;
            if open.count == 0 {
                sessions.remove(&session);
            }
        }
    }
}
