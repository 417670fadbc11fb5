//! Retention of artifacts: which of them are removed because of their age, or because their owner stores too much.
//!
//! Invariant: an artifact that a message, a result of a tool, a delegation, state or a step still names is never removed.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use crate::{ArtifactId, Time};

/// How long artifacts are kept, and how much of them. Without limits they are kept until they are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ArtifactRetention {
    /// Days after which an artifact is removed; 0 for never.
    pub keep_days: u64,
    /// Bytes of the artifacts of one owner above which its oldest ones are removed; 0 for no limit.
    pub keep_bytes: u64,
}

impl ArtifactRetention {
    /// True if artifacts may be removed at all.
    pub fn is_limited(&self) -> bool {
        self.keep_days > 0 || self.keep_bytes > 0
    }

    /// Selects the artifacts to remove at `now`. `artifacts` are all stored artifacts, oldest first; `named` are the
    /// ids that stored messages, results of tools, delegations, state or steps refer to.
    pub fn expired(
        &self,
        artifacts: &[ArtifactAge],
        named: &HashSet<ArtifactId>,
        now: Time,
    ) -> Vec<ArtifactId> {
        const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
        let mut stored: BTreeMap<&str, u64> = BTreeMap::new();
        for artifact in artifacts {
            *stored.entry(&artifact.owner).or_default() += artifact.size;
        }
        let mut expired = vec![];
        for artifact in artifacts.iter().filter(|artifact| !named.contains(&artifact.id)) {
            let age = u64::try_from(now.0.saturating_sub(artifact.created_at.0)).unwrap_or(0);
            let is_old = self.keep_days > 0 && age >= self.keep_days.saturating_mul(DAY_MS);
            let bytes = stored.entry(&artifact.owner).or_default();
            if is_old || (self.keep_bytes > 0 && *bytes > self.keep_bytes) {
                *bytes = bytes.saturating_sub(artifact.size);
                expired.push(artifact.id);
            }
        }
        expired
    }
}

/// The age and the size of an artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactAge {
    /// The artifact.
    pub id: ArtifactId,
    /// The owner of its session.
    pub owner: String,
    /// When it was created.
    pub created_at: Time,
    /// Its size in bytes.
    pub size: u64,
}

/// Finds the ids of artifacts in a text, such as the JSON of a message.
pub fn artifact_ids(text: &str) -> impl Iterator<Item = ArtifactId> + '_ {
    const ID_LENGTH: usize = ArtifactId::PREFIX.len() + 1 + 32;
    text.match_indices("art_").filter_map(|(at, _)| text.get(at..at + ID_LENGTH)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 60 * 60 * 1_000;

    fn id(n: u8) -> ArtifactId {
        ArtifactId::from_random([n; 16])
    }

    /// An artifact of 10 bytes that is `days` old at day 100.
    fn aged(n: u8, owner: &str, days: i64) -> ArtifactAge {
        ArtifactAge { id: id(n), owner: owner.into(), created_at: Time((100 - days) * DAY), size: 10 }
    }

    fn expired(keep_days: u64, keep_bytes: u64, named: &[u8]) -> Vec<ArtifactId> {
        let all = [aged(1, "ann", 30), aged(2, "bob", 20), aged(3, "ann", 10), aged(4, "ann", 0)];
        let named = named.iter().map(|n| id(*n)).collect();
        ArtifactRetention { keep_days, keep_bytes }.expired(&all, &named, Time(100 * DAY))
    }

    #[test]
    fn old_artifacts_and_the_oldest_of_an_owner_that_stores_too_much_expire() {
        assert_eq!(expired(0, 0, &[]), []);
        assert_eq!(expired(20, 0, &[]), [id(1), id(2)]);
        assert_eq!(expired(0, 20, &[]), [id(1)], "only ann stores more than the limit");
        assert_eq!(expired(0, 1, &[]), [id(1), id(2), id(3), id(4)]);
        assert_eq!(expired(15, 10, &[]), [id(1), id(2), id(3)]);
    }

    #[test]
    fn named_artifacts_are_kept_and_count_towards_the_limit() {
        assert_eq!(expired(1, 0, &[1, 3]), [id(2)]);
        assert_eq!(expired(0, 20, &[1]), [id(3)], "the oldest artifact that is not named expires");
    }

    #[test]
    fn ids_are_found_in_text() {
        let text = format!(
            "[{{\"artifact\":\"{}\"}},\"art_12\", art_{}, smart_{}",
            id(1),
            "0".repeat(31),
            "x".repeat(32)
        );
        assert_eq!(artifact_ids(&text).collect::<Vec<_>>(), [id(1)]);
        assert_eq!(artifact_ids("art_").count(), 0);
    }
}
