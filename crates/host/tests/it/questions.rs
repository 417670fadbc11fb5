//! Questions: a host that opts in gets them as lines and answers them.

use serde_json::{Value, json};

use crate::world::Host;

fn ask(request: &str, prompt: &str, questions: bool) -> Value {
    json!({"type": "query", "protocolVersion": 2, "requestId": request, "clientId": "test", "sessionKey": request,
           "prompt": prompt, "systemPrompt": "", "questions": questions})
}

fn answer(request: &str, wait: &Value, answer: &Value) -> Value {
    json!({"type": "answer", "protocolVersion": 2, "requestId": request, "clientId": "test", "waitId": wait,
           "answer": answer})
}

#[test]
fn a_host_that_opts_in_answers_the_questions_of_its_query() {
    let mut host = Host::start();
    host.send(&ask("q", "approve Really?; ask Which?; say done", true));
    let question = host.receive_until(|line| line["type"] == "question").pop().unwrap();
    assert_eq!((&question["request"], &question["question"]), (&json!("approval"), &json!("Really?")));
    assert_eq!(question["approval"]["answers"], json!(["allow_once", "deny", "deny_with_reason"]));
    let (allowed, wait) = (json!({"kind": "approval", "decision": "allowed"}), question["waitId"].clone());
    host.send(&answer("q", &wait, &json!({"kind": "input", "input": "x"})));
    let refused = host.receive_until(|line| line["type"] == "answer_ack").pop().unwrap();
    assert_eq!(
        (&refused["accepted"], &refused["reason"]),
        (&json!(false), &json!("wrong_answer")),
        "{refused}"
    );
    host.send(&answer("q", &wait, &allowed));
    let lines = host.receive_until(|line| line["type"] == "question");
    let closed = lines.iter().find(|line| line["type"] == "question_closed").unwrap();
    assert_eq!((&closed["waitId"], &closed["decision"]), (&wait, &json!("allowed")));
    let second = lines.last().unwrap();
    assert_eq!((&second["request"], &second["question"]), (&json!("input"), &json!("Which?")));
    host.send(&answer("q", &second["waitId"], &json!({"kind": "input", "input": "this"})));
    let end = host.receive_end("q");
    assert!(end["text"].as_str().unwrap().ends_with("You answered: this\ndone\n"), "{end}");
}

#[test]
fn a_host_that_does_not_opt_in_gets_no_new_lines() {
    let mut host = Host::start();
    host.send(&ask("q", "say here; approve Really?", false));
    host.receive_until(|line| line["type"] == "text_delta");
    host.send(&json!({"type": "interrupt", "protocolVersion": 2, "requestId": "q", "clientId": "test"}));
    let lines = host.receive_query("q");
    assert!(lines.iter().all(|line| !line["type"].as_str().unwrap().starts_with("question")), "{lines:?}");
}
