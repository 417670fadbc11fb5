//! The usage of a session's runs, without reading all of them each time.
//!
//! The usage of most runs cannot change any more. Their sum is kept in memory, so only the runs after them are read:
//! usually the last one, and the queued ones.
//!
//! Invariant: a kept sum covers the runs 1 to `through`, all of which are frozen.

use std::collections::HashMap;

use mainspring_core::{Run, Session, SessionId, Usage};
use parking_lot::Mutex;

use super::Kernel;
use crate::store::{RunPage, StoreError};

/// Sessions whose sums are kept. Beyond that, all are forgotten and read again.
const MAX_SESSIONS: usize = 10_000;
/// Runs that are read at once: the first read is usually enough.
const FIRST_PAGE: usize = 8;
const LATER_PAGE: usize = 500;

/// The sum of the runs 1 to `through` of a session.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Sum {
    through: u32,
    usage: Usage,
}

/// The kept sums.
#[derive(Debug, Default)]
pub(crate) struct UsageSums(Mutex<HashMap<SessionId, Sum>>);

impl UsageSums {
    fn get(&self, session: SessionId) -> Sum {
        self.0.lock().get(&session).copied().unwrap_or_default()
    }

    /// Forgets the sum of a session whose runs are replaced: it was deleted, and is imported again.
    pub(super) fn forget(&self, session: SessionId) {
        self.0.lock().remove(&session);
    }

    fn put(&self, session: SessionId, sum: Sum) {
        let mut sums = self.0.lock();
        if sums.len() >= MAX_SESSIONS && !sums.contains_key(&session) {
            sums.clear();
        }
        let kept = sums.entry(session).or_default();
        // Another reader may have got further meanwhile.
        if sum.through > kept.through {
            *kept = sum;
        }
    }
}

impl Kernel {
    /// Sums the usage of all runs of a session, the last of which has the number `last`.
    pub(super) async fn own_usage(&self, session: &Session, last: u32) -> Result<Usage, StoreError> {
        let sums = &self.shared.usage_sums;
        let known = sums.get(session.id);
        if known.through >= last {
            return Ok(known.usage);
        }
        if let Some(runs) = self.runs_after(session, known.through).await?
            && let Some((sum, total)) = extend(known, runs, last)
        {
            sums.put(session.id, sum);
            return Ok(total);
        }
        // A run is damaged, or the times of the runs do not follow their numbers: they are equal, or the clock was set
        // back.
        Ok(self.shared.store.session_usage(session.id).await?.1)
    }

    /// Reads the runs after the number `through`. None if one of them cannot be read.
    async fn runs_after(&self, session: &Session, through: u32) -> Result<Option<Vec<Run>>, StoreError> {
        let (owner, session) = (session.owner.clone(), Some(session.id));
        let mut page = RunPage { owner, session, status: None, before: None, limit: FIRST_PAGE };
        let mut found = vec![];
        loop {
            let runs = self.shared.store.run_page(&page).await?;
            if !runs.damaged.is_empty() {
                return Ok(None);
            }
            let is_last = runs.items.len() < page.limit || runs.items.iter().any(|run| run.no <= through);
            page.before = runs.items.last().map(|run| (run.created_at, run.id));
            page.limit = LATER_PAGE;
            found.extend(runs.items.into_iter().filter(|run| run.no > through));
            if is_last {
                return Ok(Some(found));
            }
        }
    }
}

/// Adds the runs after `known`: the sum to keep, and the sum of all. None if one of the runs up to `last` is missing.
fn extend(known: Sum, mut runs: Vec<Run>, last: u32) -> Option<(Sum, Usage)> {
    runs.sort_by_key(|run| run.no);
    let has_gap = runs.iter().zip(known.through + 1..).any(|(run, no)| run.no != no);
    if has_gap || runs.last().map_or(known.through, |run| run.no) < last {
        return None;
    }
    let (mut sum, mut total, mut is_frozen) = (known, known.usage, true);
    for (at, run) in runs.iter().enumerate() {
        total += run.usage;
        is_frozen = is_frozen && frozen(run, &runs[at + 1..]);
        if is_frozen {
            sum = Sum { through: run.no, usage: total };
        }
    }
    Some((sum, total))
}

/// True if the usage of `run` cannot change: the run is final, or it cannot be retried because a later run has begun.
fn frozen(run: &Run, later: &[Run]) -> bool {
    let status = run.state.status();
    status.is_final() || (status.is_settled() && later.iter().any(|later| later.attempts > 0))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A run that has used `no` tokens.
    fn run(no: u32, status: &str, attempts: u32) -> Run {
        let (run, session) = (format!("run_{no:032x}"), format!("ses_{:032x}", 1));
        let mut json = json!({
            "runId": run, "sessionId": session, "ownerId": "ann", "runNo": no, "adapter": "script", "mode": "act",
            "options": {}, "place": {"kind": "tip"}, "status": status, "attempts": attempts,
            "usage": {"inputTokens": no}, "createdAtMs": 0, "updatedAtMs": 0,
        });
        if status == "failed" {
            json["error"] = json!({"code": "x", "message": "x", "retryable": false});
        }
        serde_json::from_value::<Run>(json.clone()).unwrap_or_else(|error| panic!("{error}: {json}"))
    }

    fn runs(listed: &[(u32, &str, u32)]) -> Vec<Run> {
        listed.iter().map(|&(no, status, attempts)| run(no, status, attempts)).collect()
    }

    /// The number up to which the sum is kept, its tokens, and the tokens of all runs.
    fn extended(known: Sum, listed: &[(u32, &str, u32)]) -> Value {
        let last = listed.iter().map(|&(no, ..)| no).max().unwrap_or(0);
        match extend(known, runs(listed), last) {
            Some((sum, total)) => json!([sum.through, sum.usage.input_tokens, total.input_tokens]),
            None => Value::Null,
        }
    }

    #[test]
    fn runs_that_cannot_change_are_kept_as_a_sum() {
        let none = Sum::default();
        assert_eq!(extended(none, &[]), json!([0, 0, 0]));
        assert_eq!(extended(none, &[(2, "succeeded", 1), (1, "succeeded", 1)]), json!([2, 3, 3]));
        // A failed run may be retried until a later one has begun.
        assert_eq!(extended(none, &[(1, "succeeded", 1), (2, "failed", 1)]), json!([1, 1, 3]));
        assert_eq!(extended(none, &[(1, "failed", 1), (2, "queued", 0)]), json!([0, 0, 3]));
        assert_eq!(extended(none, &[(1, "failed", 1), (2, "succeeded", 1)]), json!([2, 3, 3]));
        // A sum has no gaps: the runs after a queued run are not in it.
        assert_eq!(extended(none, &[(1, "queued", 0), (2, "succeeded", 1)]), json!([0, 0, 3]));
    }

    #[test]
    fn a_kept_sum_is_extended_and_a_gap_is_noticed() {
        let usage = Usage { input_tokens: 3, ..Usage::default() };
        let known = Sum { through: 2, usage };
        assert_eq!(extended(known, &[(3, "succeeded", 1)]), json!([3, 6, 6]));
        assert_eq!(extended(known, &[]), json!([2, 3, 3]));
        assert_eq!(extended(known, &[(4, "succeeded", 1)]), Value::Null);
        assert_eq!(extend(known, vec![], 3), None, "the last run is missing");
    }

    #[test]
    fn a_slower_reader_does_not_replace_a_sum() {
        let (sums, session) = (UsageSums::default(), SessionId::from_random([1; 16]));
        let sum = |through| Sum { through, usage: Usage::default() };
        sums.put(session, sum(5));
        sums.put(session, sum(3));
        assert_eq!(sums.get(session), sum(5));
    }
}
