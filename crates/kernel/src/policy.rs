//! Policy: who decides when an agent asks for a permission. Nothing outside this module does.
//!
//! `legacy` is high trust: whatever an agent asks for is allowed. It is never a default; an adapter opts into it, every
//! run gets a grant that says so, and every decision is an event that names the grant. What was delegated has it only if
//! its parent has it.

use mainspring_core::{
    Answer, Approval, Grant, GrantEffect, GrantId, GrantSource, Mode, RunId, Time, WaitRequest,
};
use serde_json::Value;

use crate::adapter::{Ask, AttemptHandle, HandleError, Record};

mod rules;
pub use rules::{Act, BadRule, Rule, Rules, Verdict, fits, offers};

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

    /// What holds for what was delegated: at most what its parent was granted. Where that was not everything, a person
    /// decides.
    pub async fn narrowed(self, attempt: &AttemptHandle) -> Result<Self, HandleError> {
        let everything = |grant: &Grant| {
            grant.effect == GrantEffect::Allow
                && [&grant.capability, &grant.operation, &grant.resource_pattern]
                    .iter()
                    .all(|what| *what == "*")
        };
        match self {
            Self::Legacy if !attempt.parent_grants().await?.is_none_or(|all| all.iter().any(everything)) => {
                Ok(Self::Ask)
            }
            same => Ok(same),
        }
    }

    /// The grant that a run under this policy has from its start; none where a person decides. It is the run's, whichever
    /// attempt of it asks.
    pub fn standing(self, attempt: &AttemptHandle) -> Option<Grant> {
        let (effect, source) = match self {
            Self::Ask => return None,
            Self::Legacy => (GrantEffect::Allow, GrantSource::LegacyDefault),
            Self::Deny => (GrantEffect::Deny, GrantSource::Policy),
        };
        let about = attempt.assignment();
        Some(Grant {
            id: standing_id(about.run.id, effect),
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

/// The id of the one standing grant of a run: that of the run, so that each attempt means the same one. Another decision
/// has another.
fn standing_id(run: RunId, effect: GrantEffect) -> GrantId {
    let mut bytes = *run.as_bytes();
    bytes[15] ^= u8::from(effect == GrantEffect::Deny);
    GrantId::from_bytes(bytes)
}

/// What an agent asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// For people.
    pub text: String,
    /// When the agent goes on without an answer; it waits until the question expires if it does not.
    pub lapses_at: Option<Time>,
}

impl From<String> for Question {
    fn from(text: String) -> Self {
        Self { text, lapses_at: None }
    }
}

/// Decides what the agent asks to be allowed: by the standing grant, or by asking a person and waiting. Recorded before
/// it returns.
pub async fn permit(
    attempt: &AttemptHandle,
    standing: Option<&Grant>,
    question: Question,
) -> Result<Approval, HandleError> {
    if let Some(grant) = standing {
        return decide(attempt, grant, question).await;
    }
    ask_approval(attempt, question).await
}

/// Has a person decide.
async fn ask_approval(attempt: &AttemptHandle, question: Question) -> Result<Approval, HandleError> {
    Ok(match ask(attempt, WaitRequest::Approval, question).await? {
        Some(Answer::Approval { decision }) => decision,
        Some(Answer::Input { .. } | Answer::Tools { .. }) => Approval::Denied,
        None => Approval::Expired,
    })
}

/// Asks for what only a person knows: their input, or none if there is none in time. No grant can give it, but one that
/// allows nothing refuses to ask. Recorded before it returns.
pub async fn inquire(
    attempt: &AttemptHandle,
    standing: Option<&Grant>,
    question: Question,
) -> Result<Option<Value>, HandleError> {
    if let Some(grant) = standing.filter(|grant| grant.effect == GrantEffect::Deny) {
        decide(attempt, grant, question).await?;
        return Ok(None);
    }
    Ok(match ask(attempt, WaitRequest::Input, question).await? {
        Some(Answer::Input { input }) => Some(input),
        Some(Answer::Approval { .. } | Answer::Tools { .. }) | None => None,
    })
}

/// What the grant says.
async fn decide(attempt: &AttemptHandle, grant: &Grant, question: Question) -> Result<Approval, HandleError> {
    let decision = match grant.effect {
        GrantEffect::Allow => Approval::Allowed,
        GrantEffect::Deny => Approval::Denied,
    };
    let question = question.text;
    attempt.record(vec![Record::Decided { question, decision, grant: Some(grant.id) }]).await?;
    Ok(decision)
}

async fn ask(
    attempt: &AttemptHandle,
    request: WaitRequest,
    question: Question,
) -> Result<Option<Answer>, HandleError> {
    let Question { text, lapses_at } = question;
    let ask = Ask { expires_at: lapses_at, ..Ask::new(request, text) };
    match lapses_at {
        Some(_) => attempt.ask_until(ask).await,
        None => attempt.ask(ask).await.map(Some),
    }
}
