//! Waits: questions of a run to its caller, for input, an approval, or results of client tools.
//!
//! ```text
//! open ──answer──▶ provided | allowed | denied
//!   │ ▲
//!   │ └─ some of the tool results
//!   └── expiry, withdrawal, cancel, end of the attempt ──▶ provided without an input | expired
//! ```
//!
//! Invariant: a wait is answered at most once, with the kind of answer it asks for; each tool call has at most one
//! result.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::names;
use crate::{
    Approval, ApprovalAnswer, ApprovalChoice, ApprovalRequest, Body, ClientCall, ClientResult, ClientTool,
    Decider, GrantId, Refusal, Replies, SuppliedResult, Time, WaitId,
};

/// An open question of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The wait's id.
    #[serde(rename = "waitId")]
    pub id: WaitId,
    /// The kind of answer the wait asks for.
    pub request: WaitRequest,
    /// The question, for people.
    pub question: String,
    /// When the wait expires.
    #[serde(rename = "expiresAtMs", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// The consequence of the wait expiring.
    #[serde(default)]
    pub on_expiry: OnExpiry,
    /// For an approval: the request, and how it may be answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Box<ApprovalRequest>>,
    /// True when the adapter's execution is still running and blocked on the wait: such a wait ends with the process.
    /// False when only the store holds the wait: such a wait survives a restart.
    #[serde(skip)]
    pub held: bool,
    /// The tool calls whose results are requested, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ClientCall>,
    /// The known results: those of `calls` that were provided, and those the agent produced itself.
    #[serde(skip)]
    pub results: Vec<ClientResult>,
    /// Data that the adapter gets back with the answer.
    #[serde(skip)]
    pub resume: Value,
    /// The reply to the agent for each decision on an approval, if the adapter has reported it.
    #[serde(skip)]
    pub replies: Option<Box<Replies>>,
    /// The answer. Once it is set, the run continues as soon as a worker is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// The kind of answer a wait asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WaitRequest {
    /// Input of any kind.
    Input,
    /// An approval: allow or deny.
    Approval,
    /// Results of client tools.
    Tools,
}
names!(WaitRequest { Input => "input", Approval => "approval", Tools => "tools" });

/// The consequence of a wait expiring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    /// The run ends as `timed_out`.
    #[default]
    TimeOut,
    /// The agent continues without an answer; a tool call has an error as its result.
    Continue,
}

impl OnExpiry {
    /// True for the consequence that applies if none is named.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) const fn is_default(&self) -> bool {
        matches!(self, Self::TimeOut)
    }
}

/// An answer to a wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Answer {
    /// An input.
    Input {
        /// A string or any other JSON value.
        input: Value,
    },
    /// A decision on an approval.
    Approval(ApprovalAnswer),
    /// Results of client tools, all or some. Repeating the same result has no effect.
    Tools {
        /// One result per tool call.
        results: Vec<ClientResult>,
    },
}

impl From<Approval> for Answer {
    fn from(decision: Approval) -> Self {
        Self::Approval(decision.into())
    }
}

impl Answer {
    /// Builds the answer of a recorded decision on an approval.
    pub(crate) fn approval(
        decision: Approval,
        reason: Option<String>,
        result: Option<SuppliedResult>,
    ) -> Self {
        Self::Approval(ApprovalAnswer { reason, result, ..decision.into() })
    }

    /// The kind of answer, for error messages.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Input { .. } => "input",
            Self::Approval(_) => "approval",
            Self::Tools { .. } => "tools",
        }
    }
}

/// Builds the events that open `wait`.
pub fn open(wait: &Wait) -> Vec<Body> {
    let (wait_id, question, expires_at_ms) = (wait.id, wait.question.clone(), wait.expires_at);
    let on_expiry = Some(wait.on_expiry);
    match wait.request {
        WaitRequest::Input => {
            vec![Body::InputRequested { wait_id, question, expires_at_ms }, Body::RunWaitingInput { wait_id }]
        }
        WaitRequest::Approval => {
            vec![
                Body::ApprovalRequested {
                    wait_id,
                    question,
                    approval: wait.approval.clone(),
                    expires_at_ms,
                    on_expiry,
                },
                Body::RunWaitingApproval { wait_id },
            ]
        }
        WaitRequest::Tools => {
            let calls = wait.calls.clone();
            vec![Body::ToolsRequested { wait_id, calls, expires_at_ms }, Body::RunWaitingInput { wait_id }]
        }
    }
}

/// The caller that answers a wait, and the id of the grant that the answer may create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answerer {
    /// The caller.
    pub by: Decider,
    /// The id of the grant that an approval for the session gets.
    pub grant: Option<GrantId>,
}

/// Decides the effect of `answer`, given by `by`, on `wait`; without an answer the wait is closed. `None` if all
/// results in the answer are already recorded.
pub fn decide(wait: &Wait, answer: Option<Answer>, by: Option<Answerer>) -> Result<Option<Body>, Refusal> {
    let wait_id = wait.id;
    match (wait.request, answer) {
        (WaitRequest::Tools, Some(Answer::Tools { results })) => {
            let new = new_results(wait, &results)?;
            // New results after the wait was closed are too late.
            if !new.is_empty() && wait.answer.is_some() {
                return Err(Refusal::Answered { wait: wait_id, first: None });
            }
            Ok((!new.is_empty()).then_some(Body::ToolsProvided { wait_id, results: Some(new) }))
        }
        (request, answer) => close(wait, request, answer, by).map(Some),
    }
}

/// The results that were not provided before.
fn new_results(wait: &Wait, results: &[ClientResult]) -> Result<Vec<ClientResult>, Refusal> {
    let mut new: Vec<ClientResult> = vec![];
    for result in results {
        if !wait.calls.iter().any(|call| call.tool_use_id == result.tool_use_id) {
            let wanted = wait.calls.iter().filter(|call| !call.answered);
            return Err(Refusal::UnknownToolUse {
                wait: wait.id,
                tool_use_id: result.tool_use_id.chars().take(128).collect(),
                wanted: wanted.map(|call| call.tool_use_id.as_str()).collect::<Vec<_>>().join(", "),
            });
        }
        if !is_recorded(wait.results.iter().chain(&new), result)? {
            new.push(result.normalized());
        }
    }
    Ok(new)
}

/// True when `given` already contains this result; refused if it contains a different result of the same call.
pub fn is_recorded<'a>(
    given: impl IntoIterator<Item = &'a ClientResult>,
    result: &ClientResult,
) -> Result<bool, Refusal> {
    match given.into_iter().find(|known| known.tool_use_id == result.tool_use_id) {
        None => Ok(false),
        Some(known) if known.is_same(result) => Ok(true),
        Some(_) => Err(Refusal::ResultConflict { tool_use_id: result.tool_use_id.clone() }),
    }
}

/// Records results, and answers the wait once no result is missing. `None` answers the wait with the results so far.
pub(crate) fn record_results(wait: &mut Wait, results: Option<&[ClientResult]>) {
    let closed = results.is_none();
    for result in results.unwrap_or_default() {
        for call in wait.calls.iter_mut().filter(|call| call.tool_use_id == result.tool_use_id) {
            call.answered = true;
        }
        wait.results.push(result.clone());
    }
    if closed || wait.calls.iter().all(|call| call.answered) {
        wait.answer = Some(Answer::Tools { results: wait.results.clone() });
    }
}

fn close(
    wait: &Wait,
    request: WaitRequest,
    answer: Option<Answer>,
    by: Option<Answerer>,
) -> Result<Body, Refusal> {
    let wait_id = wait.id;
    match (request, answer) {
        (_, Some(_)) if wait.answer.is_some() => Err(Refusal::Answered { wait: wait_id, first: None }),
        (WaitRequest::Input, None) => Ok(Body::InputProvided { wait_id, input: None, answered_by: None }),
        (WaitRequest::Input, Some(Answer::Input { input })) => Ok(Body::InputProvided {
            wait_id,
            input: Some(input),
            answered_by: by.map(|answerer| Box::new(answerer.by)),
        }),
        (WaitRequest::Tools, None) => Ok(Body::ToolsProvided { wait_id, results: None }),
        (WaitRequest::Approval, None) => Ok(approval_resolved(wait, Approval::Expired.into(), None)),
        (WaitRequest::Approval, Some(Answer::Approval(answer))) => {
            answer.check(wait_id, wait.choices())?;
            Ok(approval_resolved(wait, answer, by))
        }
        (request, Some(answer)) => {
            Err(Refusal::WrongAnswer { wait: wait_id, wanted: request.name(), given: answer.kind() })
        }
    }
}

/// Builds the event of a decision on an approval, or of an approval that closed without a decision.
fn approval_resolved(wait: &Wait, answer: ApprovalAnswer, by: Option<Answerer>) -> Body {
    let ApprovalAnswer { decision, reason, result, .. } = answer;
    let told = wait.replies.as_ref().and_then(|replies| replies.to(decision));
    let (decided_by, grant_id) = match by {
        Some(Answerer { by, grant }) => (Some(Box::new(by)), grant),
        None => (None, None),
    };
    Body::ApprovalResolved { wait_id: wait.id, decision, grant_id, decided_by, told, reason, result }
}

impl Wait {
    /// Gives each call the time limit of its tool, from `now` on.
    pub fn set_deadlines(&mut self, tools: &[ClientTool], now: Time) {
        for call in &mut self.calls {
            let Some(tool) = tools.iter().find(|tool| tool.name == call.name) else { continue };
            call.expires_at = tool.timeout_ms.map(|timeout_ms| now.plus(timeout_ms));
            call.on_expiry = tool.on_timeout;
        }
    }

    /// The times at which the wait and its calls expire.
    pub(crate) fn deadlines_mut(&mut self) -> impl Iterator<Item = &mut Time> {
        self.calls.iter_mut().filter_map(|call| call.expires_at.as_mut()).chain(self.expires_at.as_mut())
    }

    /// When the wait, or the first of its open calls, expires. `None` once the wait is answered.
    pub fn next_expiry(&self) -> Option<Time> {
        if self.answer.is_some() {
            return None;
        }
        let open = self.calls.iter().filter(|call| !call.answered);
        open.filter_map(|call| call.expires_at).chain(self.expires_at).min()
    }

    /// Returns error results for the open calls that have expired by `now`. `None` if the run cannot continue without
    /// an answer: the wait itself has expired, or a call with [`OnExpiry::TimeOut`] has expired.
    pub fn overdue(&self, now: Time) -> Option<Vec<ClientResult>> {
        if self.expires_at.is_some_and(|at| at <= now) {
            return None;
        }
        let is_due = |call: &&ClientCall| !call.answered && call.expires_at.is_some_and(|at| at <= now);
        let due: Vec<&ClientCall> = self.calls.iter().filter(is_due).collect();
        if due.iter().any(|call| call.on_expiry == OnExpiry::TimeOut) {
            return None;
        }
        let result = |call: &&ClientCall| ClientResult {
            tool_use_id: call.tool_use_id.clone(),
            content: Value::String("timed out: the caller gave no result in time".to_owned()),
            is_error: true,
            ..ClientResult::default()
        };
        Some(due.iter().map(result).collect())
    }

    /// The answers that an approval may get. A wait that an earlier version has stored does not list them.
    fn choices(&self) -> &[ApprovalChoice] {
        match &self.approval {
            Some(approval) => &approval.answers,
            None => &[ApprovalChoice::AllowOnce, ApprovalChoice::Deny],
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::KeyId;

    fn wait(request: WaitRequest) -> Wait {
        Wait {
            id: WaitId::from_random([1; 16]),
            request,
            question: "which colour?".into(),
            expires_at: Some(Time(9)),
            on_expiry: OnExpiry::TimeOut,
            approval: None,
            held: false,
            calls: vec![],
            results: vec![],
            resume: Value::Null,
            replies: None,
            answer: None,
        }
    }

    fn decide(wait: &Wait, answer: Option<Answer>) -> Result<Option<Body>, Refusal> {
        super::decide(wait, answer, None)
    }

    #[test]
    fn a_decision_records_its_author_and_the_reply_to_the_agent() {
        let replies = Replies { allowed: "allow_once".into(), denied: "cancelled".into() };
        let wait = Wait { replies: Some(Box::new(replies)), ..wait(WaitRequest::Approval) };
        let by = Decider::Key { owner_id: "ada".into(), key_id: KeyId::from_random([2; 16]) };
        let answerer = Some(Answerer { by: by.clone(), grant: None });
        let decided = |answer, by| match super::decide(&wait, answer, by) {
            Ok(Some(Body::ApprovalResolved { decided_by, told, .. })) => (decided_by.map(|by| *by), told),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            decided(approval(Approval::Allowed), answerer.clone()),
            (Some(by.clone()), Some("allow_once".into()))
        );
        assert_eq!(decided(approval(Approval::Denied), answerer), (Some(by), Some("cancelled".into())));
        assert_eq!(decided(None, None), (None, None), "no decision and no reply");
    }

    fn tools_wait() -> Wait {
        let call = |id: &str| ClientCall {
            tool_use_id: id.into(),
            name: "weather".into(),
            input: json!({}),
            ..ClientCall::default()
        };
        // A result of the same step that the agent produced itself.
        let results = vec![result("t0", "own")];
        Wait { calls: ["t1", "t2"].map(call).to_vec(), results, ..wait(WaitRequest::Tools) }
    }

    fn result(id: &str, text: &str) -> ClientResult {
        ClientResult { tool_use_id: id.into(), content: json!(text), ..ClientResult::default() }
    }

    #[test]
    fn the_deadlines_of_a_wait_are_those_of_its_calls_and_its_own() {
        let mut wait = Wait { expires_at: Some(Time(900)), ..tools_wait() };
        wait.calls[0].expires_at = Some(Time(150));
        for deadline in wait.deadlines_mut() {
            *deadline = deadline.kept_from(Time(100), Time(10));
        }
        let deadlines = (wait.calls[0].expires_at, wait.calls[1].expires_at, wait.expires_at);
        assert_eq!(deadlines, (Some(Time(60)), None, Some(Time(810))));
    }

    #[test]
    fn a_wait_expires_with_its_first_open_call() {
        let tool = |name: &str, timeout_ms, on_timeout| ClientTool {
            name: name.into(),
            timeout_ms,
            on_timeout,
            ..ClientTool::default()
        };
        let mut wait = Wait { expires_at: Some(Time(900)), ..tools_wait() };
        wait.calls[1].name = "tides".into();
        let tools =
            [tool("weather", Some(50), OnExpiry::Continue), tool("tides", Some(70), OnExpiry::TimeOut)];
        wait.set_deadlines(&tools, Time(100));
        assert_eq!(wait.next_expiry(), Some(Time(150)));
        assert_eq!(wait.overdue(Time(149)), Some(vec![]));
        let overdue = wait.overdue(Time(150)).unwrap();
        assert_eq!(overdue.iter().map(|result| result.tool_use_id.as_str()).collect::<Vec<_>>(), ["t1"]);
        assert!(overdue[0].is_error());
        assert_eq!(wait.overdue(Time(170)), None, "the run times out with the call of `tides`");
        assert_eq!(provide(&mut wait, &overdue), Ok(1));
        assert_eq!(wait.next_expiry(), Some(Time(170)));
        let mut unlimited = Wait { expires_at: Some(Time(160)), ..tools_wait() };
        unlimited.set_deadlines(&[tool("weather", None, OnExpiry::Continue)], Time(100));
        assert_eq!((unlimited.next_expiry(), unlimited.overdue(Time(160))), (Some(Time(160)), None));
        assert_eq!(provide(&mut unlimited, &[result("t1", "a"), result("t2", "b")]), Ok(2));
        assert_eq!(unlimited.next_expiry(), None, "an answered wait does not expire");
    }

    /// Provides `results` to the wait and returns how many of them were new.
    fn provide(wait: &mut Wait, results: &[ClientResult]) -> Result<usize, String> {
        let answer = Answer::Tools { results: results.to_vec() };
        match decide(wait, Some(answer)).map_err(|refusal| refusal.code().to_owned())? {
            Some(Body::ToolsProvided { results: Some(new), .. }) => {
                record_results(wait, Some(&new));
                Ok(new.len())
            }
            other => Ok(other.map_or(0, |body| panic!("{body:?}"))),
        }
    }

    #[test]
    fn results_are_recorded_once_each_and_the_last_one_answers_the_wait() {
        let mut wait = tools_wait();
        assert_eq!(provide(&mut wait, &[result("t2", "dry")]), Ok(1));
        assert_eq!((wait.calls[0].answered, wait.calls[1].answered), (false, true));
        assert_eq!(provide(&mut wait, &[result("t2", "dry"), result("t2", "dry")]), Ok(0));
        assert_eq!(provide(&mut wait, &[result("t2", "wet")]), Err("tool_result_conflict".into()));
        let failed = ClientResult { is_error: true, ..result("t2", "dry") };
        assert_eq!(provide(&mut wait, &[failed]), Err("tool_result_conflict".into()));
        let twice = [result("t1", "a"), result("t1", "b")];
        assert_eq!(provide(&mut wait, &twice), Err("tool_result_conflict".into()));
        for unknown in ["t3", "t0"] {
            let results = [result("t1", "wet"), result(unknown, "x")];
            assert_eq!(provide(&mut wait, &results), Err("unknown_tool_use".into()));
        }
        assert_eq!(wait.answer, None);
        assert_eq!(provide(&mut wait, &[result("t2", "dry"), result("t1", "wet")]), Ok(1));
        let all = vec![result("t0", "own"), result("t2", "dry"), result("t1", "wet")];
        assert_eq!(wait.answer, Some(Answer::Tools { results: all }));
        assert_eq!(
            provide(&mut wait, &[result("t1", "wet")]),
            Ok(0),
            "a repeated result is accepted after the answer"
        );
        assert_eq!(provide(&mut wait, &[result("t1", "dry")]), Err("tool_result_conflict".into()));
    }

    #[test]
    fn closing_a_wait_keeps_the_results_so_far() {
        let mut wait = tools_wait();
        provide(&mut wait, &[result("t2", "dry")]).unwrap();
        let closed = decide(&wait, None).unwrap();
        assert_eq!(closed, Some(Body::ToolsProvided { wait_id: wait.id, results: None }));
        record_results(&mut wait, None);
        let known = vec![result("t0", "own"), result("t2", "dry")];
        assert_eq!(wait.answer, Some(Answer::Tools { results: known }));
        assert_eq!(
            provide(&mut wait, &[result("t2", "dry")]),
            Ok(0),
            "it was provided before the wait closed"
        );
        assert_eq!(provide(&mut wait, &[result("t1", "wet")]), Err("already_answered".into()));
    }

    fn approval(decision: Approval) -> Option<Answer> {
        Some(decision.into())
    }

    #[test]
    fn opening_a_wait_records_the_question_and_then_the_waiting_run() {
        let kinds = |request| open(&wait(request)).iter().map(Body::kind).collect::<Vec<_>>();
        assert_eq!(kinds(WaitRequest::Input), ["input.requested", "run.waiting_input"]);
        assert_eq!(kinds(WaitRequest::Approval), ["approval.requested", "run.waiting_approval"]);
        assert_eq!(kinds(WaitRequest::Tools), ["tools.requested", "run.waiting_input"]);
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
        assert_eq!(refused(WaitRequest::Approval, input.clone()), "it asks for approval, not input");
        assert_eq!(refused(WaitRequest::Tools, input), "it asks for tools, not input");
        let tools = Some(Answer::Tools { results: vec![] });
        assert_eq!(refused(WaitRequest::Input, tools), "it asks for input, not tools");
    }

    #[test]
    fn expired_is_not_a_valid_answer() {
        let refusal = decide(&wait(WaitRequest::Approval), approval(Approval::Expired)).unwrap_err();
        assert!(
            refusal.to_string().ends_with("asks for allowed, denied or supplied, not expired"),
            "{refusal}"
        );
    }

    #[test]
    fn closing_a_wait_without_an_answer_is_recorded() {
        let wait_id = wait(WaitRequest::Input).id;
        let input = Body::InputProvided { wait_id, input: None, answered_by: None };
        assert_eq!(decide(&wait(WaitRequest::Input), None), Ok(Some(input)));
        let expired = approval_resolved(&wait(WaitRequest::Approval), Approval::Expired.into(), None);
        assert_eq!(decide(&wait(WaitRequest::Approval), None), Ok(Some(expired)));
    }

    #[test]
    fn an_input_of_null_is_an_input() {
        let wait = wait(WaitRequest::Input);
        let answered = Body::InputProvided { wait_id: wait.id, input: Some(Value::Null), answered_by: None };
        assert_eq!(decide(&wait, Some(Answer::Input { input: Value::Null })), Ok(Some(answered)));
    }
}
