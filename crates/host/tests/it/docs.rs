//! Runs the examples of docs/jsonl.md.

use mainspring_test_support::jsonl::join_deltas;
use serde_json::Value;

use crate::world::Host;

/// Shortens ids as the document does.
fn shortened(line: &Value) -> Value {
    match line {
        Value::String(text) => match text.split_once('_') {
            Some((kind, id)) if id.len() >= 32 && id[..32].bytes().all(|b| b.is_ascii_hexdigit()) => {
                format!("{kind}_…{}", &id[32..]).into()
            }
            _ => line.clone(),
        },
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), shortened(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        _ => line.clone(),
    }
}

/// Receives the documented line. Text may arrive in pieces.
fn receive_expected(host: &mut Host, received: &mut Vec<Value>, expected: &str) {
    let expected: Value = serde_json::from_str(expected).unwrap();
    while received.first() != Some(&expected) {
        received.push(shortened(&host.receive()));
        *received = join_deltas(received);
        let so_far = received[0]["text"].as_str().unwrap_or_default();
        let whole = expected["text"].as_str().unwrap_or_default();
        assert!(
            received[0] == expected || (whole.starts_with(so_far) && received.len() == 1),
            "{expected}: {received:?}"
        );
    }
    received.remove(0);
}

#[test]
fn the_documented_examples_match_the_output() {
    let text = include_str!("../../../../docs/jsonl.md");
    let examples: Vec<&str> =
        text.split("```jsonl\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() >= 3);
    for example in examples {
        let mut host = Host::start();
        let mut received = vec![];
        for line in example.lines() {
            match line.split_at(2) {
                ("> ", line) => {
                    assert_eq!(received, Vec::<Value>::new(), "before {line}");
                    host.write(&format!(
                        "{line}
"
                    ));
                }
                ("< ", expected) => receive_expected(&mut host, &mut received, expected),
                _ => panic!("what is {line:?}?"),
            }
        }
        assert_eq!(received, Vec::<Value>::new());
    }
}
