//! The agent of a session on the command line.

use crate::cli::{json_lines, run};

#[test]
fn the_agent_of_a_session_is_shown_and_changed() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| run(dir.path(), arguments);
    let new = run(&["session", "new", "a", "--adapter", "native", "--model", "scripted/x"]);
    assert_eq!(new.code, 0, "{}", new.err);
    let schema = dir.path().join("schema.json");
    std::fs::write(&schema, r#"{"type": "object", "properties": {"at": {"type": "number"}}}"#).unwrap();
    let schema = schema.to_str().unwrap();
    let added = run(&["session", "add-tool", "a", "rain", "--description", "Rain?", "--schema", schema]);
    assert_eq!((added.code, added.out.as_str()), (0, "added rain to a\n"), "{}", added.err);
    let shown = run(&["session", "agent", "a"]);
    for part in ["scripted/x", "rain", "mainspring.generalist@1", "limit maxSteps"] {
        assert!(shown.out.contains(part), "{part}: {}", shown.out);
    }
    let agent = &json_lines(&run(&["session", "agent", "a", "--json"]))[0];
    assert_eq!(
        (&agent["model"]["from"], &agent["limits"]["maxSteps"]["value"]),
        (&"session".into(), &100.into())
    );
    let rain = agent["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "rain").unwrap();
    assert_eq!((&rain["from"], &rain["inputSchema"]["type"]), (&"session".into(), &"object".into()));
    assert_eq!(run(&["session", "remove-tool", "a", "rain"]).out, "removed rain from a\n");

    let change = dir.path().join("change.json");
    let text = r#"{"systemPrompt": "Be brief.", "messages": [{"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}]}"#;
    std::fs::write(&change, text).unwrap();
    let changed = run(&["session", "set-agent", "a", change.to_str().unwrap(), "--json"]);
    assert_eq!(json_lines(&changed)[0]["systemPrompt"], "Be brief.", "{}", changed.err);
    std::fs::write(&change, r#"{"sytem": 1}"#).unwrap();
    let refused = run(&["session", "set-agent", "a", change.to_str().unwrap()]);
    assert!(refused.code == 2 && refused.err.contains("unknown key `sytem`"), "{}", refused.err);
    let set = run(&[
        "session",
        "set",
        "a",
        "--idle-unload-ms",
        "5000",
        "--agent",
        "mainspring.generalist",
        "--json",
    ]);
    let session = &json_lines(&set)[0];
    assert_eq!(
        (&session["idleUnloadMs"], &session["agentDefinition"]),
        (&5000.into(), &"mainspring.generalist".into())
    );

    let answered = run(&["prompt", "-s", "a", "say hi"]);
    assert_eq!(answered.code, 0, "{}", answered.err);
    let id = json_lines(&run(&["run", "list", "--json"]))[0]["runId"].as_str().unwrap().to_owned();
    let step = &json_lines(&run(&["run", "step", &id, "1", "--json"]))[0];
    assert_eq!(
        (&step["input"]["systemPrompt"], &step["agent"]),
        (&"Be brief.".into(), &"mainspring.generalist@1".into())
    );
    assert_eq!(
        (&step["prompt"]["messages"], &step["output"]["agent"]),
        (&2.into(), &"mainspring.generalist@1".into())
    );
}
