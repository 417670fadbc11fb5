//! The native session of an attempt: resumed, forked, or newly opened.

use std::path::Path;

use mainspring_core::Binding;
use mainspring_kernel::adapter::{AttemptHandle, HandleError, MAX_CHECKPOINT_BYTES};

use super::attempt::broken_step;
use super::lost_session::{Cause, Stage};
use super::preface::{Preface, interrupted_turns};
use super::{AgentWorker, AttemptError, Dialect, Driver, ResumeError, process_ended};
use crate::pool::{Lease, PooledWorker as _};

/// How many messages of the path a new native session can get as a transcript.
const TRANSCRIPT_MESSAGES: usize = 500;
/// How many messages of the path are searched for interrupted turns when a native session is resumed.
const RECENT_MESSAGES: usize = 64;

/// How the native session of a turn was obtained.
pub(super) enum SessionStart {
    /// The native session was resumed. The text holds turns that it may lack.
    Resumed(Option<String>),
    /// The native session is a fork of the native session with this id, and has all its context.
    Forked(String),
    /// The native session is new and gets this preface.
    Opened(Preface),
}

impl SessionStart {
    /// The text to send before the prompt: the context that the native session lacks, and the checkpoint of an earlier
    /// attempt.
    pub(super) async fn preface(self, attempt: &AttemptHandle) -> Result<Option<String>, HandleError> {
        let context = match self {
            Self::Opened(preface) => preface.text,
            Self::Resumed(interrupted) => interrupted,
            Self::Forked(_) => None,
        };
        // Agents know a slash command only at the beginning of the text: a checkpoint alone must not displace
        // it. The preface of a new native session is sent nevertheless.
        if context.is_none() && is_slash_command(attempt) {
            return Ok(None);
        }
        let parts: Vec<String> =
            context.into_iter().chain(attempt.checkpoint_text(MAX_CHECKPOINT_BYTES).await?).collect();
        Ok((!parts.is_empty()).then(|| parts.join("\n\n")))
    }
}

fn is_slash_command(attempt: &AttemptHandle) -> bool {
    attempt.assignment().prompt.text().starts_with('/')
}

impl<D: Dialect> Driver<D> {
    /// Resumes the bound native session, forks the one of `origin`, or opens a new one. Returns its id.
    pub(super) async fn prepare_session(
        &self,
        attempt: &AttemptHandle,
        lease: &Lease<D::Worker>,
        cwd: &Path,
        (bound, origin): (Option<String>, Option<Binding>),
    ) -> Result<(String, SessionStart), AttemptError> {
        let (worker, prompt) = (lease.worker(), &attempt.assignment().prompt);
        if let Some(native) = bound {
            let served = lease.last_session.as_ref().filter(|session| session.native == native);
            if served.is_some_and(|session| !session.cancelled || D::KEEPS_CANCELLED_PROMPT) {
                return Ok((native, SessionStart::Resumed(None)));
            }
            let in_memory = worker.has_session(&native);
            let resumed = match served {
                Some(_) => Ok(()),
                None => self.dialect.resume(&worker, &native, cwd, attempt).await,
            };
            return match resumed {
                Ok(()) if in_memory && D::KEEPS_CANCELLED_PROMPT => Ok((native, SessionStart::Resumed(None))),
                // A slash command must be sent without a preface.
                Ok(()) if is_slash_command(attempt) => Ok((native, SessionStart::Resumed(None))),
                Ok(()) => {
                    // A process that is alive has seen its failed turns, but not every agent keeps a cancelled one.
                    let path = attempt.path(RECENT_MESSAGES).await?;
                    let interrupted = interrupted_turns(&path, prompt.id, served.is_some() || in_memory);
                    Ok((native, SessionStart::Resumed(interrupted)))
                }
                Err(ResumeError::Disconnected) => {
                    let stage = Stage::Resume { is_new_process: lease.is_new };
                    Err(broken_step(stage, Cause::Disconnected, process_ended(&*worker)))
                }
                Err(ResumeError::Unknown(reason)) => Err(AttemptError::Stale { reason, is_broken: false }),
                Err(ResumeError::Refused(failure)) => Err(AttemptError::Failed(failure, false)),
            };
        }
        if let Some(origin) = origin.filter(|_| worker.can_fork())
            && let Some(native) = self.fork_session(attempt, &worker, &origin, cwd).await?
        {
            return Ok((native, SessionStart::Forked(origin.native.unwrap_or_default())));
        }
        let path = attempt.path(TRANSCRIPT_MESSAGES).await?;
        let preface =
            Preface::of(attempt.assignment().run.options.system_prompt.as_deref(), &path, prompt.id);
        let native = self.dialect.open(&worker, cwd, attempt).await?;
        Ok((native, SessionStart::Opened(preface)))
    }

    /// Forks the native session of `origin`. Returns `None` if a turn runs in the session, if the attempt has
    /// another origin by now, or if the agent no longer knows the session.
    async fn fork_session(
        &self,
        attempt: &AttemptHandle,
        worker: &D::Worker,
        origin: &Binding,
        cwd: &Path,
    ) -> Result<Option<String>, AttemptError> {
        let native = origin.native.as_deref().unwrap_or_default();
        let Some(_lock) = self.session_locks.try_lock(native) else { return Ok(None) };
        // The origin was read before the lock; it may have changed since.
        if attempt.origin().await?.is_none_or(|now| now.id != origin.id) {
            return Ok(None);
        }
        match self.dialect.fork(worker, native, cwd, attempt).await {
            Ok(forked) => Ok(Some(forked)),
            Err(ResumeError::Disconnected) => Err(AttemptError::Failed(process_ended(worker), true)),
            Err(ResumeError::Refused(failure)) => Err(AttemptError::Failed(failure, false)),
            Err(ResumeError::Unknown(reason)) => {
                tracing::info!(reason, native, "could not fork a native session; opening a new one instead");
                Ok(None)
            }
        }
    }
}
