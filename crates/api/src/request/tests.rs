use serde_json::json;

use super::*;
use crate::{NewAgent, Prompt, WaitAnswer};

fn refusal<T: DeserializeOwned>(json: &Value) -> String {
    let parsed = parse::<T>(&json.to_string()).err().unwrap_or_default();
    let converted = convert::<T>(json.clone()).err().unwrap_or_default();
    // Only text has lines and columns.
    assert_eq!(parsed.split(" at line ").next(), converted.split(" at line ").next());
    converted
}

#[test]
fn an_unknown_key_is_named_with_its_place_and_the_nearest_known_key() {
    for (prompt, reason) in [
        (json!({"promt": "hi"}), "unknown key `promt`: did you mean `prompt`?"),
        (json!({"options": {"limit": {}}}), "unknown key `limit` in `options`: did you mean `limits`?"),
        (
            json!({"options": {"outputSchma": {}}}),
            "unknown key `outputSchma` in `options`: did you mean `outputSchema`?",
        ),
        (
            json!({"options": {"limits": {"max_steps": 1}}}),
            "unknown key `max_steps` in `options.limits`: did you mean `maxSteps`?",
        ),
        (
            json!({"options": {"tools": [{"name": "a", "inputSchema": {}, "x": 1}]}}),
            "unknown key `x` in `options.tools[0]`: there is name, description, inputSchema, timeoutMs, onTimeout",
        ),
        (
            json!({"session": {"externalRef": {"kind": "a", "id": "b", "ids": 1}}}),
            "unknown key `ids` in `session.externalRef`: did you mean `id`?",
        ),
        (
            json!({"session": {"legacyAlias": {"scope": "a", "key": "b", "keys": 1}}}),
            "unknown key `keys` in `session.legacyAlias`: did you mean `key`?",
        ),
        (
            json!({"prompt": [{"type": "text", "text": "hi", "txt": 1}]}),
            "unknown key `txt` in `prompt[0]`: did you mean `text`?",
        ),
        (json!({"place": {"kind": "tip", "x": 1}}), "unknown key `x` in `place`: there are none"),
        (json!({"prompt": 7}), "`prompt`: invalid type: integer `7`, expected a text, or a list of blocks"),
    ] {
        assert_eq!(refusal::<Prompt>(&prompt), reason);
    }
    let answer = |answer: Value| json!({"waitId": "wait_00000000000040008000000000000000", "answer": answer});
    for (body, reason) in [
        (
            json!({"kind": "input", "input": 1, "inputs": 2}),
            "unknown key `inputs` in `answer`: did you mean `input`?",
        ),
        (
            json!({"kind": "tools", "results": [{"toolUseId": "a", "content": 1, "isErr": true}]}),
            "unknown key `isErr` in `answer`: did you mean `isError`?",
        ),
        (
            json!({"kind": "approval", "decision": "allowed", "scop": "session"}),
            "unknown key `scop` in `answer`: did you mean `scope`?",
        ),
        (
            json!({"kind": "approval", "decision": "supplied", "result": {"text": "a", "error": true}}),
            "unknown key `error` in `answer`: did you mean `isError`?",
        ),
    ] {
        assert_eq!(refusal::<WaitAnswer>(&answer(body)), reason);
    }
    let agent = json!({"id": "a", "limits": {"maxTime": 1}});
    assert_eq!(refusal::<NewAgent>(&agent), "unknown key `maxTime` in `limits`: did you mean `maxTimeMs`?");
}

#[test]
fn stored_types_accept_keys_of_a_newer_version() {
    serde_json::from_value::<RunOptions>(json!({"newer": 1, "limits": {"newer": 1}})).unwrap();
    serde_json::from_value::<ClientTool>(json!({"name": "a", "inputSchema": {}, "newer": 1})).unwrap();
    serde_json::from_value::<AgentDefinition>(json!({"id": "a", "newer": 1})).unwrap();
    serde_json::from_value::<Answer>(
        json!({"kind": "tools", "results": [{"toolUseId": "a", "content": 1, "newer": 1}]}),
    )
    .unwrap();
}

#[test]
fn options_and_agents_from_an_answer_are_accepted_in_a_request() {
    let options = json!({
        "systemPrompt": "s", "modelProfile": "p", "model": "m", "cwd": "/", "modelOptions": {"seed": 1},
        "outputSchema": {"type": "object"},
        "limits": {"maxSteps": 1, "maxTokens": 2, "maxCostUsd": 0.5, "maxTimeMs": 4, "ask": true},
        "tools": [{"name": "a", "description": "", "inputSchema": {"type": "object"}}],
    });
    let prompt: Prompt = convert(json!({"options": options})).unwrap();
    assert_eq!(serde_json::to_value(&prompt.options).unwrap(), options);
    let agent = json!({"id": "a", "version": 3, "tools": ["x"], "limits": {"maxSteps": 1}});
    assert_eq!(serde_json::to_value(&convert::<NewAgent>(agent.clone()).unwrap().0).unwrap(), agent);
}

#[test]
fn a_similar_word_is_suggested_and_otherwise_all_words_are_listed() {
    assert_eq!(nearest("anthropc", &["openai", "anthropic"]), Some("anthropic"));
    assert_eq!(nearest("max-steps", &["maxSteps"]), Some("maxSteps"));
    assert_eq!(nearest("zzz", &["openai", "anthropic"]), None);
    assert_eq!(suggestion("zzz", &["openai", "anthropic"]), ": there is openai, anthropic");
}

#[test]
fn what_an_error_repeats_of_a_request_is_bounded() {
    let long = "k".repeat(1 << 20);
    let key = |key: &str| Value::Object([(key.to_owned(), json!(1))].into_iter().collect());
    let unknown = refusal::<Prompt>(&key(&long));
    assert!(unknown.starts_with(&format!("unknown key `{}`: there is ", &long[..64])), "{unknown}");
    // A key can look like serde's own words.
    let mut place = key(&format!("a`, expected `{long}`, there are no fields"));
    let quoted = place.clone();
    place["kind"] = json!("tip");
    let wrong_type = json!({"options": {"limits": {"maxSteps": long}}});
    for body in
        [key(&long), quoted, json!({"place": place}), json!({"place": {"kind": long}}), wrong_type.clone()]
    {
        for error in [parse::<Prompt>(&body.to_string()), convert(body)].map(|parsed| parsed.err().unwrap()) {
            assert!(error.len() < 1_000, "{} bytes: {}", error.len(), &error[..1_000]);
        }
    }
    let error = convert::<Prompt>(wrong_type).err().unwrap();
    assert!(error.ends_with("kkk\", expected u32"), "{error}");
    assert_eq!(nearest(&format!("prompt{long}"), &["prompt"]), None);
}
