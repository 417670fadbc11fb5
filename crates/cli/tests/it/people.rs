//! The command line for people: short ids, suggestions, readable events, settings.

use std::path::Path;

use mainspring_model_server::{ModelServer, Protocol};

use crate::chat::Terminal;
use crate::cli::{bare_command, command_output, json_lines, run};

fn latest_run(dir: &Path) -> String {
    json_lines(&run(dir, &["run", "list", "--json"]))[0]["runId"].as_str().unwrap().to_owned()
}

#[test]
fn ids_may_be_shortened_and_unknown_names_get_a_suggestion() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| run(dir.path(), arguments);
    assert_eq!(run(&["prompt", "-s", "breakfast", "say hi"]).code, 0);
    let id = latest_run(dir.path());
    for short in [&id[..16], &id[4..16], &id.to_uppercase()[4..20]] {
        let found = run(&["run", "show", short, "--json"]);
        assert_eq!(json_lines(&found)[0]["runId"], id.as_str(), "{short}: {}", found.err);
    }
    let session = &json_lines(&run(&["session", "show", "breakfast", "--json"]))[0];
    let (session_id, message_id) = (
        session["session"]["sessionId"].as_str().unwrap(),
        session["messages"][0]["messageId"].as_str().unwrap(),
    );
    assert_eq!(run(&["session", "rename", &session_id[..14], "Tea"]).out, "renamed breakfast\n");
    // The prompt continues the session that the shortened id names.
    assert_eq!(run(&["prompt", "-s", &session_id[..14], "say more"]).out, "more\n");
    assert_eq!(run(&["prompt", "-s", "breakfast", "--regenerate", &message_id[..14]]).out, "hi\n");
    let unknown = run(&["run", "show", "run_"]);
    assert_eq!(unknown.code, 2, "{}", unknown.err);
    assert_eq!(run(&["session", "show", "ses_0123456789abcdef0123456789abcde"]).code, 3);
    assert_eq!(run(&["prompt", "-s", "lunch", "say hi"]).code, 0);
    assert_eq!(run(&["session", "usage", &session_id[..14]]).out, "0 in, 0 out, $0.000000 in 3 runs\n");
    assert_eq!(run(&["session", "usage", "lunch"]).out, "0 in, 0 out, $0.000000 in 1 run\n");
    let near = run(&["session", "show", "brekfast"]);
    assert!(near.code == 3 && near.err.contains("did you mean breakfast?"), "{}", near.err);
    let near = run(&["agent", "show", "mainspring.generlist"]);
    assert!(near.code == 3 && near.err.contains("did you mean mainspring.generalist@1?"), "{}", near.err);
    let near = run(&["prompt", "--adapter", "native", "--agent-definition", "mainspring.generalist@9", "hi"]);
    assert!(near.code == 3 && near.err.contains("did you mean mainspring.generalist@1?"), "{}", near.err);
    let near = run(&["prompt", "--adapter", "natve", "hi"]);
    assert!(near.code == 2 && near.err.contains("did you mean native?"), "{}", near.err);
}

#[test]
fn deleting_asks_on_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| run(dir.path(), arguments);
    assert_eq!(run(&["prompt", "-s", "a", "say hi"]).code, 0);
    let key = run(&["key", "create", "ci", "--json"]);
    let key = json_lines(&key)[0]["keyId"].as_str().unwrap().to_owned();
    std::fs::write(dir.path().join("poet.toml"), "id = \"poet\"\nsystem = \"Rhyme.\"\n").unwrap();
    assert_eq!(run(&["agent", "create", "poet.toml"]).out, "poet@1\n");
    let commands = [
        (vec!["key", "revoke", &key[..14]], "Revoke key_"),
        (vec!["agent", "delete", "poet@1"], "Delete the agent poet@1?"),
        (vec!["session", "compact", "a"], "Prune the events of a?"),
        (vec!["session", "delete", "a"], "Delete the session a"),
    ];
    for (arguments, question) in commands {
        let mut terminal = Terminal::open(dir.path(), &arguments);
        terminal.wait_for(question);
        terminal.wait_for("[y/N]");
        // An open question holds nobody up.
        assert_eq!(run(&["prompt", "-s", "b", "say hi"]).out, "hi\n");
        terminal.type_keys("\r");
        terminal.wait_for("nothing was changed");
        assert_eq!(terminal.wait_exit(), 130, "{arguments:?}");
        let mut terminal = Terminal::open(dir.path(), &arguments);
        terminal.wait_for("[y/N]");
        terminal.type_keys("y\r");
        assert_eq!(terminal.wait_exit(), 0, "{arguments:?}");
    }
    assert_eq!(run(&["agent", "show", "poet@1"]).code, 3);
    assert_eq!(run(&["session", "show", "a"]).code, 3);
    // With --yes, no question is asked.
    let mut terminal = Terminal::open(dir.path(), &["key", "revoke", "--yes", &key]);
    assert_eq!(terminal.wait_exit(), 0);
}

#[test]
fn events_are_lines_for_people_and_lists_show_open_questions() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| run(dir.path(), arguments);
    run(&["prompt", "-s", "a", "say hi; tool add {\"a\":1,\"b\":2}; ask Tea or coffee?"]);
    let events = run(&["run", "events", &latest_run(dir.path())]).out;
    for wanted in ["agent: hi", "tool.completed", "add", "input.requested        Tea or coffee?"] {
        assert!(events.contains(wanted), "{wanted}: {events}");
    }
    let others = events.replace("add {\"a\":1,\"b\":2}", "add");
    assert!(!others.contains('{'), "no JSON but the input of the tool: {events}");
    for list in [run(&["run", "list"]), run(&["session", "list"])] {
        assert!(list.out.contains("? Tea or coffee?"), "{}", list.out);
    }
}

#[test]
fn a_failure_is_printed_once() {
    let dir = tempfile::tempdir().unwrap();
    let failed = run(dir.path(), &["prompt", "fail overload"]);
    assert_eq!((failed.code, failed.err.matches("overload").count()), (1, 1), "{}", failed.err);
    // The failure of an attempt is printed even though another attempt follows.
    let retried = run(dir.path(), &["prompt", "fail once overload; say done"]);
    assert_eq!((retried.code, retried.out.as_str()), (0, "done\n"), "{}", retried.err);
    assert_eq!(retried.err.matches("overload").count(), 1, "{}", retried.err);
}

#[test]
fn the_settings_of_a_session_are_changed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| run(dir.path(), arguments);
    run(&["session", "new", "a", "--adapter", "native"]);
    let set = run(&[
        "session",
        "set",
        "a",
        "--model",
        "scripted/x",
        "--system",
        "be kind",
        "--cwd",
        ".",
        "--model-option",
        "temperature=0.5",
        "--metadata",
        "{\"k\":1}",
        "--json",
    ]);
    let session = &json_lines(&set)[0];
    assert_eq!(session["model"], "scripted/x", "{}", set.err);
    assert_eq!(
        (&session["systemPrompt"], &session["modelOptions"]["temperature"]),
        (&"be kind".into(), &0.5.into())
    );
    assert_eq!(session["metadata"]["k"], 1);
    assert!(session["cwd"].as_str().unwrap().starts_with('/'));
    let removed = run(&["session", "set", "a", "--model", "", "--system", "", "--json"]);
    let session = &json_lines(&removed)[0];
    assert!(session.get("model").is_none() && session.get("systemPrompt").is_none(), "{session}");
    assert_eq!(run(&["session", "set", "a"]).code, 2, "something must be set");
    // The script agent uses no model.
    let unused = run(&["session", "new", "b", "--adapter", "script", "--model", "scripted/x"]);
    assert!(unused.code == 2 && unused.err.contains("option_not_used"), "{}", unused.err);
    run(&["prompt", "-s", "a", "--adapter", "script", "say hi"]);
    let compacted = run(&["session", "compact", "a"]);
    assert!(
        compacted.code == 0 && compacted.out.starts_with("pruned the events of a up to "),
        "{}",
        compacted.err
    );
    assert_eq!(
        json_lines(&run(&["session", "show", "a", "--json"]))[0]["messages"].as_array().unwrap().len(),
        2
    );
    // Without a terminal no question can be asked.
    assert_eq!(run(&["session", "delete", "a"]).out, "deleted a\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_takes_limits_a_schema_and_an_agent_definition() {
    let dir = tempfile::tempdir().unwrap();
    let server = ModelServer::start().await.unwrap();
    let config = format!(
        "adapter = \"native\"\n[providers.acme]\nkind = \"anthropic\"\nbase_url = \"{}\"\n\
         [models.main_reasoner]\nprovider = \"acme\"\nmodel = \"m-1\"\n",
        server.base_url(Protocol::Anthropic)
    );
    std::fs::write(dir.path().join("mainspring.toml"), config).unwrap();
    std::fs::write(dir.path().join("schema.json"), r#"{"type": "object"}"#).unwrap();
    std::fs::create_dir_all(dir.path().join("state/agents")).unwrap();
    std::fs::write(dir.path().join("state/agents/poet.toml"), "id = \"poet\"\nsystem = \"Rhyme.\"\n")
        .unwrap();
    let run = |arguments: &[&str]| command_output(bare_command(dir.path()).args(arguments).output().unwrap());
    let sent = run(&[
        "prompt",
        "-s",
        "a",
        "--agent-definition",
        "poet",
        "--limit",
        "steps=3",
        "--limit",
        "time=1m",
        "say hi",
    ]);
    assert_eq!((sent.code, sent.out.as_str()), (0, "hi\n"), "{}", sent.err);
    let id = latest_run_of(&run);
    let limits = &json_lines(&run(&["run", "show", &id, "--json"]))[0]["options"]["limits"].clone();
    assert_eq!((limits["maxSteps"].as_u64(), limits["maxTimeMs"].as_u64()), (Some(3), Some(60_000)));
    assert!(server.requests()[0].body.to_string().contains("Rhyme."));
    let steps = run(&["run", "steps", &id[..14]]);
    assert!(steps.out.contains("acme/m-1"), "{}", steps.out);
    let other = run(&["prompt", "-s", "a", "--agent-definition", "critic", "hi"]);
    assert!(other.code == 2 && other.err.contains("follows poet"), "{}", other.err);
    let script = run(&["prompt", "--adapter", "script", "--agent-definition", "poet", "say hi"]);
    assert!(script.code == 2 && script.err.contains("native agent"), "{}", script.err);
    run(&["prompt", "-s", "b", "--schema", "schema.json", "say {}"]);
    let options = json_lines(&run(&["run", "show", &latest_run_of(&run), "--json"]))[0]["options"].clone();
    assert_eq!(options["outputSchema"]["type"], "object");
    std::fs::write(dir.path().join("schema.json"), "[]").unwrap();
    assert_eq!(run(&["prompt", "--schema", "schema.json", "hi"]).code, 2);
}

fn latest_run_of(run: &impl Fn(&[&str]) -> crate::cli::CommandOutput) -> String {
    json_lines(&run(&["run", "list", "--json"]))[0]["runId"].as_str().unwrap().to_owned()
}
