//! Waits: what a waiting run needs from a person, an input or an approval.
//!
//! ```text
//! open ──answer──▶ provided | allowed | denied
//!   └── expire, lapse, cancel, lose ──▶ provided without an input | expired
//! ```
//!
//! Invariant: a wait is answered at most once, by what it asks for.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::names;
use crate::{Body, Refusal, Time, WaitId};

/// An open question of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// Its id.
    #[serde(rename = "waitId")]
    pub id: WaitId,
    /// What kind of answer it takes.
    pub request: WaitRequest,
    /// The question, for people.
    pub question: String,
    /// When it expires.
    #[serde(rename = "expiresAtMs", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// True when the adapter's execution is still there, holding its breath: such a wait ends with the process.
    /// False when only the store remembers it: such a wait survives a restart.
    #[serde(skip)]
    pub held: bool,
    /// What the adapter wants back with the answer.
    #[serde(skip)]
    pub resume: Value,
    /// The answer, once there is one: the run goes on as soon as a worker is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// What kind of answer a wait takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WaitRequest {
    /// Any input.
    Input,
    /// Yes or no.
    Approval,
}
names!(WaitRequest { Input => "input", Approval => "approval" });

/// An answer to a wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Answer {
    /// An input.
    Input {
        /// Text or anything else.
        input: Value,
    },
    /// A decision.
    Approval {
        /// Which.
        decision: Approval,
    },
}

impl Answer {
    /// What it is, for messages.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Input { .. } => "input",
            Self::Approval { .. } => "approval",
        }
    }
}

/// How an approval was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// Yes.
    Allowed,
    /// No.
    Denied,
    /// Nobody decided before the run ended or the time was up.
    Expired,
}

/// The events that open `wait`.
pub fn open(wait: &Wait) -> Vec<Body> {
    let (wait_id, question, expires_at_ms) = (wait.id, wait.question.clone(), wait.expires_at);
    match wait.request {
        WaitRequest::Input => {
            vec![Body::InputRequested { wait_id, question, expires_at_ms }, Body::RunWaitingInput { wait_id }]
        }
        WaitRequest::Approval => {
            vec![
                Body::ApprovalRequested { wait_id, question, expires_at_ms },
                Body::RunWaitingApproval { wait_id },
            ]
        }
    }
}

/// Decides how the open `wait` closes: with `answer`, or without one.
pub fn decide(wait: &Wait, answer: Option<Answer>) -> Result<Body, Refusal> {
    let wait_id = wait.id;
    match (wait.request, answer) {
        (_, Some(_)) if wait.answer.is_some() => Err(Refusal::Answered { wait: wait_id }),
        (WaitRequest::Input, None) => Ok(Body::InputProvided { wait_id, input: None }),
        (WaitRequest::Input, Some(Answer::Input { input })) => {
            Ok(Body::InputProvided { wait_id, input: Some(input) })
        }
        (WaitRequest::Approval, None) => {
            Ok(Body::ApprovalResolved { wait_id, decision: Approval::Expired, grant_id: None })
        }
        // Only the clock says that the time is up.
        (WaitRequest::Approval, Some(Answer::Approval { decision: Approval::Expired })) => {
            Err(Refusal::WrongAnswer { wait: wait_id, wanted: "allowed or denied", given: "expired" })
        }
        (WaitRequest::Approval, Some(Answer::Approval { decision })) => {
            Ok(Body::ApprovalResolved { wait_id, decision, grant_id: None })
        }
        (request, Some(answer)) => {
            Err(Refusal::WrongAnswer { wait: wait_id, wanted: request.name(), given: answer.kind() })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wait(request: WaitRequest) -> Wait {
        Wait {
            id: WaitId::from_random([1; 16]),
            request,
            question: "which colour?".into(),
            expires_at: Some(Time(9)),
            held: false,
            resume: Value::Null,
            answer: None,
        }
    }

    fn approval(decision: Approval) -> Option<Answer> {
        Some(Answer::Approval { decision })
    }

    #[test]
    fn a_wait_opens_with_its_question_and_then_the_run_waits() {
        let kinds = |request| open(&wait(request)).iter().map(Body::kind).collect::<Vec<_>>();
        assert_eq!(kinds(WaitRequest::Input), ["input.requested", "run.waiting_input"]);
        assert_eq!(kinds(WaitRequest::Approval), ["approval.requested", "run.waiting_approval"]);
    }

    #[test]
    fn an_answer_of_the_wrong_kind_is_refused() {
        let refused = |request, answer| {
            let refusal = decide(&wait(request), answer).unwrap_err();
            refusal.to_string().replace(&wait(request).id.to_string(), "it")
        };
        assert_eq!(
            refused(WaitRequest::Input, approval(Approval::Allowed)),
            "it asks for input, not approval"
        );
        let input = Some(Answer::Input { input: json!("blue") });
        assert_eq!(refused(WaitRequest::Approval, input), "it asks for approval, not input");
    }

    #[test]
    fn nobody_can_answer_that_the_time_is_up() {
        let refusal = decide(&wait(WaitRequest::Approval), approval(Approval::Expired)).unwrap_err();
        assert!(refusal.to_string().ends_with("asks for allowed or denied, not expired"), "{refusal}");
    }

    #[test]
    fn a_wait_without_an_answer_says_so() {
        let wait_id = wait(WaitRequest::Input).id;
        let input = Body::InputProvided { wait_id, input: None };
        assert_eq!(decide(&wait(WaitRequest::Input), None), Ok(input));
        let expired = Body::ApprovalResolved { wait_id, decision: Approval::Expired, grant_id: None };
        assert_eq!(decide(&wait(WaitRequest::Approval), None), Ok(expired));
    }

    #[test]
    fn an_input_of_null_is_an_input() {
        let wait = wait(WaitRequest::Input);
        let answered = Body::InputProvided { wait_id: wait.id, input: Some(Value::Null) };
        assert_eq!(decide(&wait, Some(Answer::Input { input: Value::Null })), Ok(answered));
    }
}
