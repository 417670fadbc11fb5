//! Policy: decides an agent's requests for permission. Nothing outside this module decides them.
//!
//! Every decision is an event: with the grant, the party that decided (a person, a key, a rule, a setting) and the
//! answer to the agent.
//!
//! `legacy` is high trust: everything an agent asks for is allowed. It is never a default: an adapter opts in, every run
//! gets a grant that records it, and every decision is an event that names the grant. A delegated run has it only if its
//! parent has it.

use mainspring_core::approval::circumstances;
use mainspring_core::{
    Answer, Approval, ApprovalAnswer, ApprovalRequest, Attempt, Decider, Grant, GrantEffect, GrantId,
    GrantSource, Mode, Replies, Run, RunId, Session, Time, WaitRequest,
};
use serde_json::{Map, Value};

use crate::adapter::{Ask, AttemptHandle, HandleError, Record};

mod control;
mod layers;
mod pattern;
mod resource;
mod rules;
pub(crate) use control::{CONTROL, control_record, control_verdict};
pub use control::{control_action, control_question};
pub(crate) use layers::check_session_rules;
pub use layers::{Layers, MAX_SESSION_RULES, ServerRules, definition_rules};
pub use pattern::{MAX_PATTERN_BYTES, matches_pattern};
pub use resource::Resource;
pub use rules::{Action, BadRule, Rule, Rules, Verdict, may_allow};

/// The decisions of an agent that calls its own tools without asking, and asks for everything else, as rules.
pub fn own_tools_rules() -> Vec<Rule> {
    vec![
        Rule::about(Verdict::Allow, CONTROL),
        Rule::about_tools(Verdict::Allow, "*"),
        Rule::everything(Verdict::Ask),
    ]
}

/// How an agent's requests for permission are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Permissions {
    /// A person decides each request.
    #[default]
    Ask,
    /// Everything is allowed.
    Legacy,
    /// Nothing is allowed.
    Deny,
}

impl Permissions {
    /// The permissions of a run of this mode: a run that may only answer is denied everything.
    pub fn for_mode(self, mode: Mode) -> Self {
        match mode {
            Mode::Act => self,
            Mode::Ask => Self::Deny,
        }
    }

    /// The decisions on actions that no rule matches, as rules. Control tools need no permission.
    pub fn as_rules(self) -> Vec<Rule> {
        let verdict = match self {
            Self::Legacy => return vec![Rule::everything(Verdict::Allow)],
            Self::Ask => Verdict::Ask,
            Self::Deny => Verdict::Deny,
        };
        vec![Rule::about(Verdict::Allow, CONTROL), Rule::everything(verdict)]
    }

    /// The permissions of a delegated run: `Legacy` becomes `Ask` unless the parent was granted everything.
    pub async fn limited_by_parent(self, attempt: &AttemptHandle) -> Result<Self, HandleError> {
        match self {
            Self::Legacy if everything_of_parent(attempt).await? == Some(None) => Ok(Self::Ask),
            same => Ok(same),
        }
    }

    /// The grant that a run has from its start under these permissions; none if a person decides. Every attempt of the run
    /// gets the same grant. The grant of a delegated run depends on a grant of its parent and ends with that grant.
    pub async fn standing_grant(self, attempt: &AttemptHandle) -> Result<Option<Grant>, HandleError> {
        let (effect, source, policy) = match self {
            Self::Ask => return Ok(None),
            Self::Legacy => (GrantEffect::Allow, GrantSource::LegacyDefault, "legacy"),
            Self::Deny => (GrantEffect::Deny, GrantSource::Policy, "deny"),
        };
        let assignment = attempt.assignment();
        let mut constraints = grant_constraints(attempt, "policy", policy);
        if effect == GrantEffect::Allow
            && let Some(Some(parent)) = everything_of_parent(attempt).await?
        {
            constraints.insert("parentGrantId".to_owned(), parent.to_string().into());
        }
        Ok(Some(Grant {
            id: standing_grant_id(assignment.run.id, effect),
            session: assignment.session.id,
            run: Some(assignment.run.id),
            capability: "*".into(),
            operation: "*".into(),
            resource_pattern: "*".into(),
            effect,
            source,
            constraints,
            created_at: attempt.now(),
            expires_at: None,
            revoked_at: None,
            revoked_by: None,
        }))
    }
}

/// The grant of everything that the parent of a delegated run has, if it has one; `None` for a run without a parent.
async fn everything_of_parent(attempt: &AttemptHandle) -> Result<Option<Option<GrantId>>, HandleError> {
    let parent = attempt.assignment().run.parent;
    let is_everything = |grant: &&Grant| {
        // A grant with constraints counts only if it is the parent's own: other constraints are not checked here.
        let is_unconstrained = grant.constraints.is_empty() || grant.run == parent;
        grant.effect == GrantEffect::Allow
            && is_unconstrained
            && [&grant.capability, &grant.operation, &grant.resource_pattern].iter().all(|what| *what == "*")
    };
    let Some(grants) = attempt.parent_grants().await? else { return Ok(None) };
    Ok(Some(grants.iter().find(is_everything).map(|grant| grant.id)))
}

/// The circumstances in which a grant is given: the rule or policy that gives it, and the adapter, mode and folder of the
/// run.
fn grant_constraints(attempt: &AttemptHandle, origin: &str, name: &str) -> Map<String, Value> {
    let mut constraints = circumstances_of(attempt);
    constraints.insert(origin.to_owned(), name.into());
    constraints
}

fn circumstances_of(attempt: &AttemptHandle) -> Map<String, Value> {
    let assignment = attempt.assignment();
    run_circumstances(&assignment.session, &assignment.run, &assignment.attempt)
}

fn run_circumstances(session: &Session, run: &Run, attempt: &Attempt) -> Map<String, Value> {
    let folder = run.options.cwd.as_deref().or(session.cwd.as_deref());
    circumstances(&attempt.adapter, run.mode, folder)
}

/// The record of the decision on `question` by a grant that a person gave for the session; `None` if no grant covers it.
pub(crate) fn granted_by_person(
    session: &Session,
    run: &Run,
    attempt: &Attempt,
    in_force: &[Grant],
    question: &Question,
) -> Option<Record> {
    let (request, circumstances) = (question.request.as_deref()?, run_circumstances(session, run, attempt));
    let grant = in_force.iter().find(|grant| request.is_covered_by(grant, &circumstances))?;
    Some(decided_by_grant(question.clone(), grant))
}

/// The id of a run's standing grant. Derived from the run's id, so that every attempt gets the same grant; allow and deny
/// have different ids.
fn standing_grant_id(run: RunId, effect: GrantEffect) -> GrantId {
    let mut bytes = *run.as_bytes();
    bytes[15] ^= u8::from(effect == GrantEffect::Deny);
    GrantId::from_bytes(bytes)
}

/// A question of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The question, as shown to a person.
    pub text: String,
    /// When the agent continues without an answer. If not given, it waits until the question expires.
    pub answer_by: Option<Time>,
    /// The reply to the agent for each decision.
    pub replies: Option<Replies>,
    /// The request as data. Without it, the request can only be allowed once or denied.
    pub request: Option<Box<ApprovalRequest>>,
}

impl From<String> for Question {
    fn from(text: String) -> Self {
        Self { text, answer_by: None, replies: None, request: None }
    }
}

/// Decides an agent's request for permission: by the standing grant, by a grant that a person gave for the session, or by
/// asking a person and waiting. The decision is recorded before this returns.
pub async fn request_permission(
    attempt: &AttemptHandle,
    standing: Option<&Grant>,
    question: Question,
) -> Result<ApprovalAnswer, HandleError> {
    let in_force = attempt.grants_in_force().await?;
    if let Some(grant) = standing {
        let is_revoked = !in_force.iter().any(|known| known.id == grant.id);
        if grant.effect == GrantEffect::Deny || !is_revoked {
            return decide(attempt, grant, question).await;
        }
    }
    decide_or_ask(attempt, &in_force, question).await
}

/// Decides by a grant that a person gave for the session, or asks a person.
async fn decide_or_ask(
    attempt: &AttemptHandle,
    in_force: &[Grant],
    question: Question,
) -> Result<ApprovalAnswer, HandleError> {
    match covering_grant(attempt, in_force, question.request.as_deref()) {
        Some(grant) => {
            attempt.record(vec![decided_by_grant(question, grant)]).await?;
            Ok(Approval::Allowed.into())
        }
        None => ask_approval(attempt, question).await,
    }
}

/// The grant for the session that allows `request`.
fn covering_grant<'a>(
    attempt: &AttemptHandle,
    in_force: &'a [Grant],
    request: Option<&ApprovalRequest>,
) -> Option<&'a Grant> {
    let (request, circumstances) = (request?, circumstances_of(attempt));
    in_force.iter().find(|grant| request.is_covered_by(grant, &circumstances))
}

/// Makes the record of a decision by a grant that a person gave for the session: that person has decided.
fn decided_by_grant(question: Question, grant: &Grant) -> Record {
    let by = grant.constraints.get("decidedBy").cloned();
    let by = by.and_then(|by| serde_json::from_value(by).ok());
    decided(question, Approval::Allowed, Some(grant.id), by.unwrap_or_else(|| Decider::policy("grant")))
}

/// Asks a person to decide.
async fn ask_approval(attempt: &AttemptHandle, question: Question) -> Result<ApprovalAnswer, HandleError> {
    if attempt.may_ask() {
        match ask(attempt, WaitRequest::Approval, question.clone()).await {
            // The turn ended before the question was asked.
            Err(HandleError::Revoked) if !attempt.may_ask() && !attempt.is_cancelled() => {}
            Err(error) => return Err(error),
            Ok(Some(Answer::Approval(answer))) => return Ok(answer),
            Ok(Some(Answer::Input { .. } | Answer::Tools { .. })) => return Ok(Approval::Denied.into()),
            Ok(None) => return Ok(Approval::Expired.into()),
        }
    }
    let record = decided(question, Approval::Expired, None, Decider::policy("turn_ended"));
    attempt.record(vec![record]).await?;
    Ok(Approval::Expired.into())
}

/// Asks a person for input; none if there is no answer in time. A standing grant that denies everything refuses without
/// asking. The outcome is recorded before this returns.
pub async fn request_input(
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
        Some(Answer::Approval(_) | Answer::Tools { .. }) | None => None,
    })
}

/// Records and returns the decision of a grant.
async fn decide(
    attempt: &AttemptHandle,
    grant: &Grant,
    question: Question,
) -> Result<ApprovalAnswer, HandleError> {
    let decision = match grant.effect {
        GrantEffect::Allow => Approval::Allowed,
        GrantEffect::Deny => Approval::Denied,
    };
    let policy = match (grant.effect, attempt.assignment().run.mode) {
        (GrantEffect::Allow, _) => "legacy",
        (GrantEffect::Deny, Mode::Ask) => "mode_ask",
        (GrantEffect::Deny, Mode::Act) => "deny",
    };
    let record = decided(question, decision, Some(grant.id), Decider::policy(policy));
    attempt.record(vec![record]).await?;
    Ok(decision.into())
}

/// Refuses an agent's request by a setting that is no grant, and records that.
pub async fn refuse(attempt: &AttemptHandle, question: Question, policy: &str) -> Result<(), HandleError> {
    let record = decided(question, Approval::Denied, None, Decider::policy(policy));
    attempt.record(vec![record]).await
}

/// Makes the record of a decision that needed no person.
fn decided(question: Question, decision: Approval, grant: Option<GrantId>, by: Decider) -> Record {
    let Question { text: question, replies, request, .. } = question;
    let told = replies.and_then(|replies| replies.to(decision));
    let request = request.map(|request| Box::new(request.summary()));
    Record::Decided { question, request, decision, grant, by, told }
}

async fn ask(
    attempt: &AttemptHandle,
    request: WaitRequest,
    question: Question,
) -> Result<Option<Answer>, HandleError> {
    let Question { text, answer_by, replies, request: approval } = question;
    let ask = Ask { expires_at: answer_by, replies, approval, ..Ask::new(request, text) };
    match answer_by {
        Some(_) => attempt.ask_until(ask).await,
        None => attempt.ask(ask).await.map(Some),
    }
}
