//! Dialogs of pi's extensions, decided by the policy.
//!
//! A `confirm` is a permission request. So is a `select` with one yes and one no option. Every other dialog asks for
//! information that only a person has: a person is asked even if all permissions are granted, and the dialog is
//! dismissed if none are.

use mainspring_core::{Approval, ApprovalRequest, Grant, Replies, Time};
use mainspring_kernel::adapter::{AttemptHandle, HandleError};
use mainspring_kernel::policy::{self, Action, Question, Resource, Rules};
use serde_json::{Value, json};

use crate::driver::excerpt;

/// First words of options that mean yes, and of options that mean no.
const YES_WORDS: &[&str] = &["allow", "yes", "approve", "accept", "continue", "proceed", "ok", "okay", "run"];
const NO_WORDS: &[&str] = &["block", "no", "deny", "reject", "decline", "cancel", "abort", "stop", "skip"];

/// A dialog that waits for an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dialog {
    id: String,
    kind: DialogKind,
    question: String,
    /// After this time pi continues as if the dialog was dismissed.
    timeout_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
enum DialogKind {
    Confirm,
    Select(Vec<String>),
    Text,
    /// A kind of dialog that this adapter does not know.
    Unknown,
}

/// A user interface request of an extension.
#[derive(Debug, PartialEq)]
pub(super) enum UiRequest {
    Dialog(Dialog),
    Notice(String),
    /// A status line, widget or title, which is not shown.
    Decoration,
}

impl UiRequest {
    /// Parses the record `extension_ui_request`.
    pub(super) fn parse(record: &Value) -> Self {
        let text = |key: &str| record[key].as_str().unwrap_or_default();
        let with_title = |key: &str| match text(key) {
            "" => text("title").to_owned(),
            more => format!("{}\n{more}", text("title")),
        };
        let (kind, question) = match text("method") {
            "confirm" => (DialogKind::Confirm, with_title("message")),
            "select" => {
                let options = record["options"].as_array().into_iter().flatten();
                let options: Vec<String> = options.filter_map(|it| it.as_str().map(str::to_owned)).collect();
                let lines = options.iter().enumerate();
                let lines: Vec<String> = lines.map(|(no, option)| format!("{}. {option}", no + 1)).collect();
                let question = format!("{}\n{}", text("title"), lines.join("\n"));
                (DialogKind::Select(options), question)
            }
            "input" => (DialogKind::Text, with_title("placeholder")),
            "editor" => (DialogKind::Text, with_title("prefill")),
            "notify" => return Self::Notice(excerpt(text("message").to_owned())),
            "setStatus" | "setWidget" | "setTitle" | "set_editor_text" => return Self::Decoration,
            other => (DialogKind::Unknown, other.to_owned()),
        };
        let timeout_ms = record["timeout"].as_u64().filter(|timeout| *timeout > 0);
        Self::Dialog(Dialog { id: text("id").to_owned(), kind, question: excerpt(question), timeout_ms })
    }
}

impl Dialog {
    /// Reports whether the dialog may ask for a permission. Every `select` counts, whatever its options are.
    pub(super) fn is_permission(&self) -> bool {
        matches!(self.kind, DialogKind::Confirm | DialogKind::Select(_))
    }

    /// Reports whether pi continues without an answer after some time.
    pub(super) fn expires(&self) -> bool {
        self.timeout_ms.is_some()
    }

    /// Gets a decision or an answer and returns pi's response record. Pi gets a response even if the attempt may not ask
    /// any more.
    pub(super) async fn answer(
        &self,
        attempt: &AttemptHandle,
        default_grant: Option<&Grant>,
        rules: &Rules,
        asked_at: Time,
    ) -> (Value, Result<(), HandleError>) {
        let answer_by = self.timeout_ms.map(|timeout| asked_at.plus(timeout));
        let asker = Asker { attempt, default_grant, rules, answer_by };
        let answer = asker.answer(&self.kind, &self.question).await;
        match answer {
            Ok(Some(answer)) => (response(&self.id, answer), Ok(())),
            Ok(None) => (dismissal(&self.id), Ok(())),
            Err(error) => (dismissal(&self.id), Err(error)),
        }
    }
}

/// Asks the policy or a person on behalf of one dialog.
struct Asker<'a> {
    attempt: &'a AttemptHandle,
    default_grant: Option<&'a Grant>,
    rules: &'a Rules,
    answer_by: Option<Time>,
}

impl Asker<'_> {
    /// Returns the answer, or `None` if the dialog is dismissed.
    async fn answer(&self, kind: &DialogKind, question: &str) -> Result<Option<Value>, HandleError> {
        Ok(match kind {
            DialogKind::Unknown => None,
            DialogKind::Confirm => {
                let confirmed = self.permit(question, ("confirmed", "not confirmed")).await?;
                Some(json!({"confirmed": confirmed}))
            }
            DialogKind::Select(options) => match yes_and_no(options) {
                Some((yes, no)) => {
                    Some(value(if self.permit(question, (yes, no)).await? { yes } else { no }))
                }
                None => self.select(question, options).await?.map(value),
            },
            DialogKind::Text => self.inquire(question).await?.as_deref().map(value),
        })
    }

    /// Decides a permission. `replies` are the replies to pi: the first if it is allowed, the second if it is denied.
    async fn permit(&self, question: &str, replies: (&str, &str)) -> Result<bool, HandleError> {
        let replies =
            Replies { allowed: excerpt(replies.0.to_owned()), denied: excerpt(replies.1.to_owned()) };
        let action = Action {
            capability: "tool",
            operation: "confirm".to_owned(),
            resource: Resource::Text(question.to_owned()),
        };
        let request = match question.ends_with('…') {
            // A text that was cut off does not identify the request.
            true => ApprovalRequest { action: Some(action.requested()), ..ApprovalRequest::plain() },
            false => ApprovalRequest::of(action.requested(), None),
        };
        let request = Some(Box::new(request));
        let question = Question { replies: Some(replies), request, ..self.question(question) };
        let answer =
            self.rules.request_permission(self.attempt, self.default_grant, &action, question).await?;
        Ok(answer.decision == Approval::Allowed)
    }

    async fn inquire(&self, question: &str) -> Result<Option<String>, HandleError> {
        let input = policy::request_input(self.attempt, self.default_grant, self.question(question)).await?;
        Ok(input.map(|input| input.as_str().map_or_else(|| input.to_string(), str::to_owned)))
    }

    /// Asks a person to choose one of `options`, repeatedly if the input matches none.
    async fn select<'a>(
        &self,
        question: &str,
        options: &'a [String],
    ) -> Result<Option<&'a str>, HandleError> {
        let mut text = question.to_owned();
        while let Some(input) = self.inquire(&text).await? {
            if let Some(chosen) = match_option(options, &input) {
                return Ok(Some(chosen));
            }
            text = excerpt(format!("{:?} is none of these. {question}", excerpt(input)));
        }
        Ok(None)
    }

    fn question(&self, text: &str) -> Question {
        Question { answer_by: self.answer_by, ..text.to_owned().into() }
    }
}

fn value(value: &str) -> Value {
    json!({"value": value})
}

/// The response to a record that no turn handles: dismisses a dialog, and is `None` for every other record.
pub(super) fn dismissal_of(record: &Value) -> Option<Value> {
    if record["type"] != "extension_ui_request" {
        return None;
    }
    match UiRequest::parse(record) {
        UiRequest::Dialog(dialog) => Some(dismissal(&dialog.id)),
        UiRequest::Notice(_) | UiRequest::Decoration => None,
    }
}

fn dismissal(id: &str) -> Value {
    response(id, json!({"cancelled": true}))
}

fn response(id: &str, mut answer: Value) -> Value {
    answer["type"] = "extension_ui_response".into();
    answer["id"] = id.into();
    answer
}

/// The option that means yes and the one that means no, if there are exactly these two. Among more options, the policy
/// cannot know which one allows the least.
fn yes_and_no(options: &[String]) -> Option<(&str, &str)> {
    if options.len() != 2 {
        return None;
    }
    let starting_with = |words: &[&str]| {
        options.iter().map(String::as_str).find(|option| {
            let word = option.split(|letter: char| !letter.is_alphanumeric()).find(|word| !word.is_empty());
            word.is_some_and(|word| words.contains(&word.to_lowercase().as_str()))
        })
    };
    starting_with(YES_WORDS).zip(starting_with(NO_WORDS))
}

/// Finds the option that a person's input names: by its text, or by its number.
fn match_option<'a>(options: &'a [String], input: &str) -> Option<&'a str> {
    let input = input.trim();
    let exact = options.iter().find(|option| option.trim() == input);
    let ignoring_case = || options.iter().find(|option| option.trim().eq_ignore_ascii_case(input));
    let by_number = || options.get(input.parse::<usize>().ok()?.checked_sub(1)?);
    exact.or_else(ignoring_case).or_else(by_number).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialog(record: &Value) -> Dialog {
        match UiRequest::parse(record) {
            UiRequest::Dialog(dialog) => dialog,
            other => panic!("{other:?} is not a dialog"),
        }
    }

    #[test]
    fn a_question_combines_title_and_details() {
        for (record, question) in [
            (json!({"method": "confirm", "title": "Run it?", "message": "rm -r x"}), "Run it?\nrm -r x"),
            (json!({"method": "confirm", "title": "Run it?"}), "Run it?"),
            (json!({"method": "select", "title": "Which?", "options": ["a", "b"]}), "Which?\n1. a\n2. b"),
            (json!({"method": "input", "title": "Name?", "placeholder": "Ada"}), "Name?\nAda"),
            (json!({"method": "editor", "title": "Edit", "prefill": "x\ny"}), "Edit\nx\ny"),
        ] {
            assert_eq!(dialog(&record).question, question);
        }
        assert_eq!(dialog(&json!({"method": "confirm", "timeout": 5_000})).timeout_ms, Some(5_000));
        assert_eq!(dialog(&json!({"method": "confirm", "timeout": 0})).timeout_ms, None);
        let notice = UiRequest::parse(&json!({"method": "notify", "message": "hi"}));
        assert_eq!(notice, UiRequest::Notice("hi".into()));
        for method in ["setStatus", "setWidget", "setTitle", "set_editor_text"] {
            let request = UiRequest::parse(&json!({"method": method, "id": "1"}));
            assert_eq!(request, UiRequest::Decoration, "{method}");
        }
    }

    #[test]
    fn only_dialogs_are_dismissed() {
        let request = |method: &str| json!({"type": "extension_ui_request", "id": "7", "method": method});
        let dismissed = json!({"type": "extension_ui_response", "id": "7", "cancelled": true});
        for method in ["confirm", "select", "input", "editor", "something_new"] {
            assert_eq!(dismissal_of(&request(method)).as_ref(), Some(&dismissed), "{method}");
        }
        assert_eq!(dismissal_of(&request("notify")), None);
        assert_eq!(dismissal_of(&json!({"type": "agent_start"})), None);
    }

    #[test]
    fn one_yes_and_one_no_option_are_a_permission() {
        let yes_and_no = |options: &[&str]| {
            let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
            yes_and_no(&options).map(|(yes, no)| format!("{yes}|{no}"))
        };
        assert_eq!(yes_and_no(&["Allow", "Block"]).as_deref(), Some("Allow|Block"));
        assert_eq!(yes_and_no(&["No, never", "Yes (once)"]).as_deref(), Some("Yes (once)|No, never"));
        for other in [&["red", "blue"][..], &["Yes"], &["Yes", "Yes, always", "No"], &["note", "okra"]] {
            assert_eq!(yes_and_no(other), None, "{other:?}");
        }
    }

    #[test]
    fn an_option_is_named_by_its_text_or_its_number() {
        let options = ["Red".to_owned(), "2".to_owned(), "blue".to_owned()];
        for (input, chosen) in [
            ("Red", Some("Red")),
            (" red ", Some("Red")),
            ("2", Some("2")),
            ("3", Some("blue")),
            ("0", None),
            ("4", None),
            ("green", None),
        ] {
            assert_eq!(match_option(&options, input), chosen, "{input}");
        }
    }
}
