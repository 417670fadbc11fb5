//! Memory candidates: facts that an agent proposes to remember, as artifacts.
//!
//! ```text
//! proposed by a run ──▶ undecided ──decision of the operator's command──▶ accepted | rejected
//! ```
//!
//! Invariants: a candidate names the run that it comes from and how uncertain it is; it never becomes a memory by itself;
//! a decision is made once.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::limits::BadName;
use crate::message::names;
use crate::{Artifact, Time};

/// The kind of the artifacts that are memory candidates.
pub const CANDIDATE_KIND: &str = "memory_candidate";

/// Maximum bytes of a candidate.
pub const CANDIDATE_BYTES: usize = 64 << 10;

/// The key of the uncertainty in the metadata of a candidate: a number from 0, certain, to 1.
pub const UNCERTAINTY: &str = "uncertainty";

/// The key of the decision in the metadata of a candidate.
const DECISION: &str = "decision";

/// The decision about a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryDecision {
    /// The operator's command has stored the candidate as a memory.
    Accepted,
    /// The operator's command has refused the candidate.
    Rejected,
}
names!(MemoryDecision { Accepted => "accepted", Rejected => "rejected" });

/// Checks a new artifact of the kind [`CANDIDATE_KIND`]; other kinds pass. `has_run` is true if a run creates it.
pub fn check_candidate(kind: &str, has_run: bool, metadata: &Map<String, Value>) -> Result<(), BadName> {
    let bad = |reason| Err(BadName::new("a memory candidate", reason));
    if kind != CANDIDATE_KIND {
        return Ok(());
    }
    let is_degree = |value: &Value| value.as_f64().is_some_and(|degree| (0.0..=1.0).contains(&degree));
    match metadata.get(UNCERTAINTY) {
        _ if !has_run => bad("comes from a run: an agent proposes it with the tool memory_propose"),
        Some(value) if is_degree(value) => match metadata.contains_key(DECISION) {
            true => bad("is not decided by the one who proposes it: leave `decision` out of its metadata"),
            false => Ok(()),
        },
        _ => bad("needs `uncertainty` in its metadata: a number from 0, certain, to 1"),
    }
}

/// True for a candidate that was not decided yet.
pub fn is_undecided(artifact: &Artifact) -> bool {
    artifact.kind == CANDIDATE_KIND && !artifact.metadata.contains_key(DECISION)
}

/// Records a decision in the metadata of a candidate. `None` if it is no candidate, or was decided before.
pub fn decide(
    artifact: &Artifact,
    decision: MemoryDecision,
    reason: Option<&str>,
    at: Time,
) -> Option<Artifact> {
    let mut decided = is_undecided(artifact).then(|| artifact.clone())?;
    decided.metadata.insert(DECISION.into(), decision.name().into());
    decided.metadata.insert("decidedAtMs".into(), at.0.into());
    if let Some(reason) = reason {
        decided.metadata.insert("reason".into(), reason.into());
    }
    Some(decided)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{ArtifactId, ArtifactRole, SessionId};

    fn metadata(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    fn candidate(about: &Value) -> Artifact {
        Artifact {
            id: ArtifactId::from_random([1; 16]),
            session: SessionId::from_random([2; 16]),
            run: None,
            attempt: None,
            kind: CANDIDATE_KIND.into(),
            role: ArtifactRole::Other,
            uri: "blake3:00".into(),
            name: None,
            mime_type: None,
            content_hash: None,
            size_bytes: None,
            metadata: metadata(about),
            created_at: Time(0),
        }
    }

    #[test]
    fn a_candidate_has_a_run_and_an_uncertainty_and_no_decision() {
        let check =
            |has_run, about: Value| check_candidate(CANDIDATE_KIND, has_run, &metadata(&about)).is_ok();
        for uncertainty in [json!(0), json!(0.25), json!(1)] {
            assert!(check(true, json!({"uncertainty": uncertainty})), "{uncertainty}");
        }
        for about in [
            json!({}),
            json!({"uncertainty": 1.5}),
            json!({"uncertainty": "low"}),
            json!({"uncertainty": -1}),
        ] {
            assert!(!check(true, about.clone()), "{about}");
        }
        assert!(!check(false, json!({"uncertainty": 0.5})), "a candidate needs a run");
        assert!(
            !check(true, json!({"uncertainty": 0.5, "decision": "accepted"})),
            "a new candidate has no decision"
        );
        assert!(check_candidate("file", false, &Map::new()).is_ok());
    }

    #[test]
    fn a_candidate_is_decided_once() {
        let first = candidate(&json!({"uncertainty": 0.5}));
        assert!(is_undecided(&first));
        let decided = decide(&first, MemoryDecision::Rejected, Some("known"), Time(7)).unwrap();
        let about = json!({"uncertainty": 0.5, "decision": "rejected", "decidedAtMs": 7, "reason": "known"});
        assert_eq!(Value::Object(decided.metadata.clone()), about);
        assert_eq!(decide(&decided, MemoryDecision::Accepted, None, Time(8)), None);
        let file = Artifact { kind: "file".into(), ..first };
        assert_eq!(decide(&file, MemoryDecision::Accepted, None, Time(8)), None);
    }
}
