//! Dialogs: what pi's extensions ask of people, put through the policy.
//!
//! `confirm` asks for a permission. So does a `select` whose options say yes and no. Everything else asks for something
//! that only a person knows: it is put to one even where permissions are not, and dismissed where nothing is allowed.

use mainspring_core::{Approval, Grant, Time};
use mainspring_kernel::adapter::{AttemptHandle, HandleError};
use mainspring_kernel::policy::{self, Question};
use serde_json::{Value, json};

use crate::driver::excerpt;

/// Options that mean yes, and those that mean no, by their first word.
const YES: &[&str] = &["allow", "yes", "approve", "accept", "continue", "proceed", "ok", "okay", "run"];
const NO: &[&str] = &["block", "no", "deny", "reject", "decline", "cancel", "abort", "stop", "skip"];

/// What an extension wants of whoever uses pi.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dialog {
    id: String,
    kind: Kind,
    question: String,
    /// After so many milliseconds pi goes on as if it was dismissed.
    timeout: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    /// Yes or no.
    Confirm,
    /// One of these.
    Select(Vec<String>),
    /// Any text.
    Text,
    /// Something that is not known here.
    Other,
}

/// What an extension shows.
#[derive(Debug, PartialEq)]
pub(super) enum Request {
    /// It waits for an answer.
    Dialog(Dialog),
    /// It tells something.
    Notice(String),
    /// It decorates what is not there.
    Nothing,
}

impl Request {
    /// What the record `extension_ui_request` is about.
    pub(super) fn of(record: &Value) -> Self {
        let text = |key: &str| record[key].as_str().unwrap_or_default();
        let under = |key: &str| match text(key) {
            "" => text("title").to_owned(),
            more => format!("{}\n{more}", text("title")),
        };
        let (kind, question) = match text("method") {
            "confirm" => (Kind::Confirm, under("message")),
            "select" => {
                let options = record["options"].as_array().into_iter().flatten();
                let options: Vec<String> = options.filter_map(|it| it.as_str().map(str::to_owned)).collect();
                let lines = options.iter().enumerate();
                let lines: Vec<String> = lines.map(|(at, option)| format!("{}. {option}", at + 1)).collect();
                let question = format!("{}\n{}", text("title"), lines.join("\n"));
                (Kind::Select(options), question)
            }
            "input" => (Kind::Text, under("placeholder")),
            "editor" => (Kind::Text, under("prefill")),
            "notify" => return Self::Notice(excerpt(text("message").to_owned())),
            "setStatus" | "setWidget" | "setTitle" | "set_editor_text" => return Self::Nothing,
            other => (Kind::Other, other.to_owned()),
        };
        let timeout = record["timeout"].as_u64().filter(|timeout| *timeout > 0);
        Self::Dialog(Dialog { id: text("id").to_owned(), kind, question: excerpt(question), timeout })
    }
}

impl Dialog {
    /// Pi does not wait for ever.
    pub(super) fn lapses(&self) -> bool {
        self.timeout.is_some()
    }

    /// Has it decided or answered, and gives what pi is told. Pi is told something even if nobody may decide any more.
    pub(super) async fn answered(
        &self,
        attempt: &AttemptHandle,
        standing: Option<&Grant>,
        asked_at: Time,
    ) -> (Value, Result<(), HandleError>) {
        let answer_by = self.timeout.map(|timeout| asked_at.plus(timeout));
        let answer = Asking { attempt, standing, answer_by }.answer(&self.kind, &self.question).await;
        match answer {
            Ok(Some(answer)) => (response(&self.id, answer), Ok(())),
            Ok(None) => (dismissal(&self.id), Ok(())),
            Err(error) => (dismissal(&self.id), Err(error)),
        }
    }
}

/// Whom a dialog is put to, and until when.
struct Asking<'a> {
    attempt: &'a AttemptHandle,
    standing: Option<&'a Grant>,
    answer_by: Option<Time>,
}

impl Asking<'_> {
    /// What is answered; none if it is dismissed.
    async fn answer(&self, kind: &Kind, question: &str) -> Result<Option<Value>, HandleError> {
        Ok(match kind {
            Kind::Other => None,
            Kind::Confirm => Some(json!({"confirmed": self.permit(question).await?})),
            Kind::Select(options) => match permission(options).filter(|_| self.standing.is_some()) {
                Some((yes, no)) => Some(value(if self.permit(question).await? { yes } else { no })),
                None => self.select(question, options).await?.map(value),
            },
            Kind::Text => self.inquire(question).await?.as_deref().map(value),
        })
    }

    async fn permit(&self, question: &str) -> Result<bool, HandleError> {
        let decision =
            policy::request_permission(self.attempt, self.standing, self.question(question)).await?;
        Ok(decision == Approval::Allowed)
    }

    async fn inquire(&self, question: &str) -> Result<Option<String>, HandleError> {
        let given = policy::request_input(self.attempt, self.standing, self.question(question)).await?;
        Ok(given.map(|given| given.as_str().map_or_else(|| given.to_string(), str::to_owned)))
    }

    /// Has a person choose one of `options`, and asks again when it is none of them.
    async fn select<'a>(
        &self,
        question: &str,
        options: &'a [String],
    ) -> Result<Option<&'a str>, HandleError> {
        let mut text = question.to_owned();
        while let Some(given) = self.inquire(&text).await? {
            if let Some(chosen) = choice(options, &given) {
                return Ok(Some(chosen));
            }
            text = excerpt(format!("{:?} is none of these. {question}", excerpt(given)));
        }
        Ok(None)
    }

    fn question(&self, text: &str) -> Question {
        Question { text: text.to_owned(), answer_by: self.answer_by }
    }
}

fn value(value: &str) -> Value {
    json!({"value": value})
}

/// What is answered to a record of an extension that nobody is there to answer; nothing to one that wants no answer.
pub(super) fn dismissed(record: &Value) -> Option<Value> {
    if record["type"] != "extension_ui_request" {
        return None;
    }
    match Request::of(record) {
        Request::Dialog(dialog) => Some(dismissal(&dialog.id)),
        Request::Notice(_) | Request::Nothing => None,
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

/// The option that means yes and the one that means no, where there are such.
///
/// Only of two: which of many answers is the one that allows no more than it must is not for a machine to guess.
fn permission(options: &[String]) -> Option<(&str, &str)> {
    if options.len() != 2 {
        return None;
    }
    let first = |words: &[&str]| {
        options.iter().map(String::as_str).find(|option| {
            let word = option.split(|letter: char| !letter.is_alphanumeric()).find(|word| !word.is_empty());
            word.is_some_and(|word| words.contains(&word.to_lowercase().as_str()))
        })
    };
    first(YES).zip(first(NO))
}

/// The option that a person means: by its text, or by its number.
fn choice<'a>(options: &'a [String], given: &str) -> Option<&'a str> {
    let given = given.trim();
    let same = options.iter().find(|option| option.trim() == given);
    let alike = || options.iter().find(|option| option.trim().eq_ignore_ascii_case(given));
    let numbered = || options.get(given.parse::<usize>().ok()?.checked_sub(1)?);
    same.or_else(alike).or_else(numbered).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialog(record: &Value) -> Dialog {
        match Request::of(record) {
            Request::Dialog(dialog) => dialog,
            other => panic!("{other:?} wants no answer"),
        }
    }

    #[test]
    fn what_an_extension_asks_is_put_into_words() {
        for (record, question) in [
            (json!({"method": "confirm", "title": "Run it?", "message": "rm -r x"}), "Run it?\nrm -r x"),
            (json!({"method": "confirm", "title": "Run it?"}), "Run it?"),
            (json!({"method": "select", "title": "Which?", "options": ["a", "b"]}), "Which?\n1. a\n2. b"),
            (json!({"method": "input", "title": "Name?", "placeholder": "Ada"}), "Name?\nAda"),
            (json!({"method": "editor", "title": "Edit", "prefill": "x\ny"}), "Edit\nx\ny"),
        ] {
            assert_eq!(dialog(&record).question, question);
        }
        assert_eq!(dialog(&json!({"method": "confirm", "timeout": 5_000})).timeout, Some(5_000));
        assert_eq!(Request::of(&json!({"method": "notify", "message": "hi"})), Request::Notice("hi".into()));
        for method in ["setStatus", "setWidget", "setTitle", "set_editor_text"] {
            assert_eq!(Request::of(&json!({"method": method, "id": "1"})), Request::Nothing, "{method}");
        }
    }

    #[test]
    fn when_nobody_is_there_only_what_waits_is_answered() {
        let asks = |method: &str| json!({"type": "extension_ui_request", "id": "7", "method": method});
        let told = json!({"type": "extension_ui_response", "id": "7", "cancelled": true});
        for method in ["confirm", "select", "input", "editor", "something_new"] {
            assert_eq!(dismissed(&asks(method)).as_ref(), Some(&told), "{method}");
        }
        assert_eq!(dismissed(&asks("notify")), None);
        assert_eq!(dismissed(&json!({"type": "agent_start"})), None);
    }

    #[test]
    fn two_options_that_say_yes_and_no_are_a_permission() {
        let permission = |options: &[&str]| {
            let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
            permission(&options).map(|(yes, no)| format!("{yes}|{no}"))
        };
        assert_eq!(permission(&["Allow", "Block"]).as_deref(), Some("Allow|Block"));
        assert_eq!(permission(&["No, never", "Yes (once)"]).as_deref(), Some("Yes (once)|No, never"));
        for other in [&["red", "blue"][..], &["Yes"], &["Yes", "Yes, always", "No"], &["note", "okra"]] {
            assert_eq!(permission(other), None, "{other:?}");
        }
    }

    #[test]
    fn an_option_is_chosen_by_its_text_or_its_number() {
        let options = ["Red".to_owned(), "2".to_owned(), "blue".to_owned()];
        for (given, chosen) in [
            ("Red", Some("Red")),
            (" red ", Some("Red")),
            ("2", Some("2")),
            ("3", Some("blue")),
            ("0", None),
            ("4", None),
            ("green", None),
        ] {
            assert_eq!(choice(&options, given), chosen, "{given}");
        }
    }
}
