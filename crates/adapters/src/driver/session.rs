//! The native session of an attempt: taken up, forked, or opened and told of the path.

use std::path::Path;

use mainspring_core::Binding;
use mainspring_kernel::adapter::AttemptHandle;

use super::preface::{Preface, missed};
use super::{Agent, Dialect, Driver, Lost, Stop, gone};
use crate::pool::{Lease, Worker as _};

/// How many messages of a path are looked at when a native session is told of it.
const PATH: usize = 500;

/// How many of them are looked at when it is taken up.
const RECENT: usize = 11;

/// How a native session came to be what it is.
pub(super) enum Start {
    /// It was taken up, and is told this first if that may be missing.
    Resumed(Option<String>),
    /// It goes on from where another stood.
    Forked,
    /// It is new, and is told this first.
    Opened(Preface),
}

impl<D: Dialect> Driver<D> {
    /// The native session: the one that is bound, a fork of the one that stands where the run begins, or a new one with
    /// what it is told first.
    pub(super) async fn session(
        &self,
        attempt: &AttemptHandle,
        lease: &Lease<D::Worker>,
        cwd: &Path,
        (bound, origin): (Option<String>, Option<Binding>),
    ) -> Result<(String, Start), Stop> {
        let worker = lease.worker();
        if let Some(native) = bound {
            if lease.home.as_ref().is_some_and(|home| home.native == native) {
                return Ok((native, Start::Resumed(None)));
            }
            let held = worker.holds(&native);
            return match self.dialect.resume(&worker, &native, cwd, attempt).await {
                // A command of the agent's own stands alone.
                Ok(()) if held || attempt.assignment().prompt.text().starts_with('/') => {
                    Ok((native, Start::Resumed(None)))
                }
                Ok(()) => Ok((native, Start::Resumed(missed(&attempt.path(RECENT).await?)))),
                Err(Lost::Gone) => Err(Stop::Failed(gone(&*worker), true)),
                Err(Lost::Unknown(reason)) => Err(Stop::Stale(reason)),
                Err(Lost::Refused(failure)) => Err(Stop::Failed(failure, false)),
            };
        }
        if let Some(origin) = origin.filter(|_| worker.forks())
            && let Some(native) = self.fork(attempt, &worker, &origin, cwd).await?
        {
            return Ok((native, Start::Forked));
        }
        let path = attempt.path(PATH).await?;
        let preface = Preface::of(attempt.assignment().run.options.system_prompt.as_deref(), &path);
        let native = self.dialect.open(&worker, cwd, attempt).await?;
        Ok((native, Start::Opened(preface)))
    }

    /// A fork of the native session of `origin`; none if that goes on meanwhile, or the agent knows it no more.
    async fn fork(
        &self,
        attempt: &AttemptHandle,
        worker: &D::Worker,
        origin: &Binding,
        cwd: &Path,
    ) -> Result<Option<String>, Stop> {
        let native = origin.native.as_deref().unwrap_or_default();
        let Some(_held) = self.natives.try_hold(native) else { return Ok(None) };
        // What was read of it before nobody could use it may be over.
        if attempt.origin().await?.is_none_or(|now| now.id != origin.id) {
            return Ok(None);
        }
        match self.dialect.fork(worker, native, cwd, attempt).await {
            Ok(forked) => Ok(Some(forked)),
            Err(Lost::Gone) => Err(Stop::Failed(gone(worker), true)),
            Err(Lost::Refused(failure)) => Err(Stop::Failed(failure, false)),
            Err(Lost::Unknown(reason)) => {
                tracing::info!(
                    reason,
                    native,
                    "a native session could not be forked; another one is told of the path"
                );
                Ok(None)
            }
        }
    }
}
