//! Policy: who decides when an agent asks for a permission. Nothing outside this module does.
//!
//! `legacy` is high trust: whatever an agent asks for is allowed. It is never a default; an adapter opts into it, every
//! run gets a grant that says so, and every decision is an event that names the grant.

use mainspring_core::{Answer, Approval, Effect, Grant, GrantSource, Mode, WaitRequest};
use serde_json::Value;

use crate::adapter::{Ask, AttemptHandle, HandleError, Record};

/// Who decides what an agent may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Permissions {
    /// A person does, each time.
    #[default]
    Ask,
    /// Everything is allowed.
    Legacy,
    /// Nothing is allowed.
    Deny,
}

impl Permissions {
    /// What holds for a run of this mode: one that may only answer is allowed nothing.
    pub fn of_mode(self, mode: Mode) -> Self {
        match mode {
            Mode::Act => self,
            Mode::Ask => Self::Deny,
        }
    }

    /// The grant that a run under this policy has from its start; none where a person decides.
    pub fn standing(self, attempt: &AttemptHandle) -> Option<Grant> {
        let (effect, source) = match self {
            Self::Ask => return None,
            Self::Legacy => (Effect::Allow, GrantSource::LegacyDefault),
            Self::Deny => (Effect::Deny, GrantSource::Policy),
        };
        let about = attempt.assignment();
        Some(Grant {
            id: attempt.new_grant(),
            session: about.session.id,
            run: Some(about.run.id),
            capability: "*".into(),
            operation: "*".into(),
            resource_pattern: "*".into(),
            effect,
            source,
            created_at: attempt.now(),
            expires_at: None,
        })
    }
}

/// Decides what the agent asks: by the standing grant, or by asking a person and waiting. Recorded before it returns.
pub async fn permit(
    attempt: &AttemptHandle,
    standing: Option<&Grant>,
    question: String,
) -> Result<Approval, HandleError> {
    if let Some(grant) = standing {
        let decision = match grant.effect {
            Effect::Allow => Approval::Allowed,
            Effect::Deny => Approval::Denied,
        };
        attempt.record(vec![Record::Decided { question, decision, grant: Some(grant.id) }]).await?;
        return Ok(decision);
    }
    let ask = Ask { request: WaitRequest::Approval, question, expires_at: None, resume: Value::Null };
    match attempt.ask(ask).await? {
        Answer::Approval { decision } => Ok(decision),
        Answer::Input { .. } => Ok(Approval::Denied),
    }
}
