//! The audit log: who did what, from where and with what outcome, as JSON lines that only grow.
//!
//! ```text
//! audit/audit-00000000000000000001.jsonl    records 1, 2, 3, … one per line
//! audit/audit-00000000000000081920.jsonl    the next file, named by its first record
//! audit/head.json                           the last record that is certainly on the disk
//! ```
//!
//! Each record holds a hash of itself and of the record before it, so that [`verify`] notices a record that was changed,
//! inserted or removed. The removal of an old file is itself a record, with the hash that the oldest remaining file
//! continues from. The head reveals records that are missing at the end.
//!
//! A record is written to the file before the response to its request is sent: it survives the death of the process. It
//! is synced to the disk within [`SYNC_INTERVAL_MS`]: a power loss loses at most the records of that time.
//!
//! A record that cannot be written stays in memory and is written once that is possible. Meanwhile the log has failed:
//! the server is not ready and, unless [`OnAuditFailure::Report`] is set, changes are refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mainspring_api::{AuditActor, AuditKind, AuditOrigin, AuditRecord};
use mainspring_core::{Approval, Body, Decider, Session};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::task::spawn_blocking;

use crate::clock::{Clock, Moment};
use crate::error::Error;
use crate::kernel::Caller;
use crate::store::NewEvent;
use crate::tasks::Tasks;

mod copy;
mod files;
mod limiter;
mod read;
mod verify;
mod view;
mod writer;
pub use copy::{AuditFile, copies};
pub use read::{AuditPage, AuditScope};
pub use verify::{AuditVerified, verify};

use limiter::Limiter;
use view::ViewKey;
use writer::{Failure, Writer};

/// Time until a record is synced to the disk.
pub const SYNC_INTERVAL_MS: u64 = 500;
/// Time after which the numbers of suppressed refusals are recorded.
const SUPPRESSED_INTERVAL_MS: u64 = 60_000;
/// Time after which old files are looked for, if no file is completed meanwhile.
const PRUNE_INTERVAL_MS: u64 = 60 * 60 * 1_000;
/// Pages of records that are read at the same time.
const MAX_READS: usize = 2;
/// The longest name that a record holds.
const NAME_MAX_BYTES: usize = 200;

/// Settings of an audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditOptions {
    /// The folder of the files.
    pub folder: PathBuf,
    /// The size at which a file is followed by the next one.
    pub file_bytes: u64,
    /// The size of all files above which the oldest ones are removed.
    pub keep_bytes: u64,
    /// The days after which a file is removed.
    pub keep_days: u64,
    /// Whether changes are allowed while the log cannot be written.
    pub on_failure: OnAuditFailure,
}

impl AuditOptions {
    /// The default settings of a log in `folder`.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            file_bytes: 16 << 20,
            keep_bytes: 1 << 30,
            keep_days: 365,
            on_failure: OnAuditFailure::Refuse,
        }
    }
}

/// Whether changes are allowed while the audit log cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnAuditFailure {
    /// Changes are refused.
    Refuse,
    /// Changes are made; the server is not ready and logs the failure.
    Report,
}

/// An audit log that cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// A file cannot be read or written.
    #[error("the audit log {} cannot be used: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The last line of the log is not a record.
    #[error(
        "the audit log {} does not end with a record: look at it with `mainspring verify`, then move its folder away to \
         begin a new log",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

impl AuditError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.into(), source }
    }
}

/// An audit log, written by one process at a time.
#[derive(Debug)]
pub struct Audit {
    options: AuditOptions,
    clock: Clock,
    writer: Mutex<Writer>,
    limiter: Mutex<Limiter>,
    /// Notified by each record.
    dirty: Notify,
    reads: Semaphore,
    view_key: ViewKey,
    pruned_at: Mutex<Option<Moment>>,
    is_closed: AtomicBool,
}

impl Audit {
    /// Opens the log, creates it if it is missing, and records the opening.
    pub fn open(options: AuditOptions, clock: Clock) -> Result<Self, AuditError> {
        let (writer, opened) = Writer::open(&options)?;
        let view_key = ViewKey::open(&options.folder).map_err(AuditError::io(&options.folder))?;
        let audit = Self {
            options,
            clock,
            writer: Mutex::new(writer),
            limiter: Mutex::default(),
            dirty: Notify::new(),
            reads: Semaphore::new(MAX_READS),
            view_key,
            pruned_at: Mutex::default(),
            is_closed: AtomicBool::new(false),
        };
        audit.append(AuditRecord { code: opened.code, count: opened.count, ..system_record("audit_open") });
        if opened.is_without_head {
            audit.sync();
        }
        Ok(audit)
    }

    /// Writes a record. A failure is reported by [`Audit::check`], and the record is written later.
    pub fn append(&self, mut record: AuditRecord) {
        record.at_ms = self.clock.now();
        self.writer.lock().append(record, self.options.file_bytes);
        self.dirty.notify_one();
    }

    /// Writes the record of a refusal, unless the same party was refused too often. Suppressed records are counted.
    pub fn append_refusal(&self, mut record: AuditRecord) {
        let admitted = self.limiter.lock().admit(&record.by, record.from, self.clock.moment());
        if let Some(suppressed) = admitted {
            record.count = (suppressed > 0).then_some(suppressed);
            self.append(record);
        }
    }

    /// Records the use of a credential, unless it was used from the same place a short time before.
    pub fn sign_in(&self, caller: &Caller, from: Option<AuditOrigin>) {
        if self.limiter.lock().is_new_sign_in(caller, from, self.clock.moment()) {
            let by = AuditActor::from(caller);
            let org_id = caller.org.clone();
            self.append(AuditRecord { from, org_id, ..AuditRecord::new(AuditKind::SignIn, "sign_in", by) });
        }
    }

    /// Records the decision on a request for permission, if `event` holds such a decision.
    pub(crate) fn decision(&self, session: &Session, event: &NewEvent) {
        let Body::ApprovalResolved { wait_id, decision, grant_id, decided_by, .. } = &event.body else {
            return;
        };
        let by = match (decided_by.as_deref(), decision) {
            (Some(by), _) => decider(by),
            (None, Approval::Expired) => AuditActor::Policy { policy: "expiry".into() },
            (None, _) => AuditActor::Server {},
        };
        let run = event.run.map(|run| run.to_string());
        let about = [session.id.to_string()].into_iter().chain(run).chain([wait_id.to_string()]);
        self.append(AuditRecord {
            owner_id: Some(session.owner.clone()),
            org_id: session.org.clone(),
            about: about.chain(grant_id.map(|grant| grant.to_string())).collect(),
            decision: Some(*decision),
            ..AuditRecord::new(AuditKind::Decision, "approval", by)
        });
    }

    /// Refuses a change that could not be recorded.
    pub fn check_change(&self) -> Result<(), Error> {
        match self.options.on_failure {
            OnAuditFailure::Refuse => self.check_writable(),
            OnAuditFailure::Report => Ok(()),
        }
    }

    /// Returns an error while the log cannot be written. A log that has failed is tried again.
    pub fn check_writable(&self) -> Result<(), Error> {
        let mut writer = self.writer.lock();
        if writer.failure().is_some() {
            writer.write(self.options.file_bytes);
        }
        match writer.failure() {
            None => Ok(()),
            Some(Failure { why, is_full: true }) => Err(Error::StoreFull(why.clone())),
            Some(Failure { why, is_full: false }) => Err(Error::AuditFailed(why.clone())),
        }
    }

    /// Writes the records that could not be written before, syncs the files to the disk, and removes old files.
    pub fn sync(&self) {
        let now = self.clock.now();
        let is_file_completed = writer::sync(&self.writer, &self.options, now);
        let moment = self.clock.moment();
        let is_due = self.pruned_at.lock().is_none_or(|at| moment.since(at) >= PRUNE_INTERVAL_MS);
        if !(is_file_completed || is_due) {
            return;
        }
        *self.pruned_at.lock() = Some(moment);
        if let Err(error) = writer::prune(&self.writer, &self.options, now) {
            tracing::warn!(%error, "old files of the audit log are not removed");
        }
    }

    /// Reads a page of records. A caller who may read only a part of the log gets encrypted record numbers: see
    /// [`view`].
    pub(crate) async fn page(
        self: &Arc<Self>,
        scope: AuditScope,
        mut query: mainspring_api::AuditListQuery,
        limit: usize,
    ) -> Result<AuditPage, Error> {
        let _permit = self.reads.acquire().await.map_err(|_| Error::ShuttingDown)?;
        let (folder, view) = (self.options.folder.clone(), self.view_key.of(&scope));
        if let Some(view) = &view {
            query.after = query.after.map(|after| view.reveal(after));
            // The number belongs to another log, such as the one before a restore.
            if query.after.is_some_and(|after| after > self.writer.lock().last_seq()) {
                return Err(Error::Invalid(
                    "`after` names no record of this log: leave it out to begin with the oldest".into(),
                ));
            }
        }
        let page = spawn_blocking(move || read::page(&folder, &scope, &query, limit)).await;
        let page = page.map_err(|error| Error::Unavailable(error.to_string()))?;
        let mut page =
            page.map_err(|error| Error::Unavailable(format!("the audit log cannot be read: {error}")))?;
        if let Some(view) = &view {
            for record in &mut page.records {
                record.seq = view.hide(record.seq);
                // The hash covers the real number and the hash of the record before: a caller that knows the
                // latter could find the number by trial.
                record.hash.clear();
            }
            page.next = page.next.map(|next| view.hide(next));
        }
        Ok(page)
    }

    /// Syncs records to the disk until the kernel stops.
    pub(crate) async fn run(self: Arc<Self>, tasks: Tasks) {
        let mut counted_at = self.clock.moment();
        while !tasks.is_stopping() {
            tokio::select! {
                () = self.dirty.notified() => {}
                () = self.clock.sleep_for(SUPPRESSED_INTERVAL_MS) => {}
                () = tasks.stopping() => break,
            }
            tokio::select! {
                () = self.clock.sleep_for(SYNC_INTERVAL_MS) => {}
                () = tasks.stopping() => break,
            }
            if self.clock.moment().since(counted_at) >= SUPPRESSED_INTERVAL_MS {
                counted_at = self.clock.moment();
                self.append_suppressed();
            }
            self.sync_in_background().await;
            if self.writer.lock().failure().is_some() {
                self.dirty.notify_one();
            }
        }
    }

    /// Records the numbers of suppressed refusals and the end of this process, and syncs them. A second call does nothing.
    pub(crate) async fn close(self: &Arc<Self>) {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return;
        }
        self.append_suppressed();
        self.append(system_record("audit_close"));
        self.sync_in_background().await;
    }

    async fn sync_in_background(self: &Arc<Self>) {
        let audit = self.clone();
        // A panic is reported by the hook of the runtime; the next sync is attempted as usual.
        let _ = spawn_blocking(move || audit.sync()).await;
    }

    /// Records how many refusals were suppressed, by party.
    fn append_suppressed(&self) {
        let suppressed = self.limiter.lock().take_suppressed();
        for (by, count) in suppressed {
            let record = AuditRecord::new(AuditKind::System, "audit_suppressed", by);
            self.append(AuditRecord { count: Some(count), ..record });
        }
    }
}

/// The operation of a record about the removal of an old file. The record names the last record of that file.
const PRUNE_OPERATION: &str = "audit_prune";

fn system_record(operation: &str) -> AuditRecord {
    AuditRecord::new(AuditKind::System, operation, AuditActor::Server {})
}

/// Cuts a name to the length that a record holds. Returns `None` for a name that may be a secret.
pub fn audit_name(name: &str) -> Option<String> {
    let is_secret = name.starts_with(crate::kernel::Secret::PREFIX);
    (!is_secret).then(|| cut(name))
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(NAME_MAX_BYTES)].to_owned()
}

impl From<&Caller> for AuditActor {
    fn from(caller: &Caller) -> Self {
        let owner_id = caller.owner.clone();
        match (caller.agent, caller.key) {
            (Some(agent), _) => Self::Agent {
                owner_id,
                session_id: agent.session,
                run_id: agent.run,
                attempt_id: agent.attempt,
            },
            (None, Some(key_id)) => Self::Key { owner_id, key_id },
            (None, None) => Self::Person { owner_id },
        }
    }
}

/// Returns the party that decided a request for permission.
fn decider(by: &Decider) -> AuditActor {
    match by.clone() {
        Decider::Person { owner_id } => AuditActor::Person { owner_id },
        Decider::Key { owner_id, key_id } => AuditActor::Key { owner_id, key_id },
        Decider::Rule { rule } => AuditActor::Rule { rule: cut(&rule) },
        Decider::Policy { policy } => AuditActor::Policy { policy: cut(&policy) },
    }
}

#[cfg(test)]
mod tests;
