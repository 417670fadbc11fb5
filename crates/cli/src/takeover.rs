//! Hand-over of a state directory: `serve` claims the directory, and another command that owns it releases it.
//!
//! A `serve` holds a lock on `mainspring.takeover` as long as it waits for the directory or owns it. So a command that
//! owns the directory knows that a `serve` waits, and a second `serve` knows that there is one.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const TAKEOVER_FILE: &str = "mainspring.takeover";

/// The claim of a `serve` on a state directory, until it is dropped.
pub(super) struct Claim(#[expect(dead_code, reason = "holds the lock")] File);

impl Claim {
    /// Claims the directory; `None` if another `serve` has claimed it.
    pub(super) fn take(state_dir: &Path) -> io::Result<Option<Self>> {
        let path = state_dir.join(TAKEOVER_FILE);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Self(file))),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // A claim is an exclusive lock; `is_claimed` holds a shared one for a moment.
            match file.try_lock_shared() {
                Ok(()) => file.unlock()?,
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            std::thread::yield_now();
        }
    }
}

/// True if a `serve` waits for the directory or owns it.
pub(super) fn is_claimed(state_dir: &Path) -> bool {
    let Ok(file) = File::open(state_dir.join(TAKEOVER_FILE)) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_claim_is_exclusive_and_ends_with_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_claimed(dir.path()));
        let claim = Claim::take(dir.path()).unwrap().unwrap();
        assert!(is_claimed(dir.path()));
        assert!(Claim::take(dir.path()).unwrap().is_none());
        drop(claim);
        assert!(!is_claimed(dir.path()));
        assert!(Claim::take(dir.path()).unwrap().is_some());
    }

    #[test]
    fn a_check_does_not_prevent_a_claim() {
        let dir = tempfile::tempdir().unwrap();
        drop(Claim::take(dir.path()).unwrap());
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    is_claimed(dir.path());
                }
            });
            let refused = (0..1_000).filter(|_| Claim::take(dir.path()).unwrap().is_none()).count();
            ended.store(true, Ordering::Relaxed);
            assert_eq!(refused, 0);
        });
    }
}
