//! Rules of the operator, of owners and of sessions; agents that try to change them.

use std::process::Command;

use super::*;
use crate::cli::run;

fn write(path: &Path) -> String {
    format!("call fs/write_text_file {}", json!({"path": path, "content": "x"}))
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_of_an_owner_precede_rules_of_an_adapter_which_precede_rules_of_a_session() {
    let settings = "rules = [\"deny fs write */closed/*\", \"allow fs read *\", \"ask fs write */asked/*\"]\n\
                    [owners.local]\nrules = [\"deny fs write */precious/*\"]";
    let attack = Attack::start(settings).await;
    let work = attack.path("work");
    let rules = ["allow fs write */open/*", "allow fs write */closed/*", "allow fs write */precious/*"];
    let (status, made) =
        attack.server.post("/v1/sessions", json!({"key": "s", "cwd": work, "rules": rules})).await;
    assert!(status.is_success() && made["rules"] == json!(rules), "{made}");
    for (folder, is_written) in [("open", true), ("closed", false), ("precious", false)] {
        let file = work.join(folder).join("file");
        let ended = attack.run_locally("s", &work, &write(&file)).await;
        assert_eq!(
            (ended["status"].as_str(), file.exists()),
            (Some("succeeded"), is_written),
            "{folder}: {ended}"
        );
    }
    // A change is complete or refused, over HTTP and on the command line.
    let bad = json!({"rules": ["deny fs read *", "allow it"]});
    let (status, problem) = attack.with_key(&attack.token(), Method::PATCH, "/v1/sessions/s", &bad).await;
    assert_eq!((status, &problem["code"]), (400, &json!("invalid_request")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("\"allow it\" is no rule"), "{problem}");
    let dir = attack.server.dir.path();
    let state = attack.path("state");
    let at = ["--state-dir", state.to_str().unwrap()];
    let set = |rules: &[&str]| run(dir, &[&["session", "set", "s"], rules, &at].concat());
    let done = set(&["--rule", "deny fs read */x", "--rule", "ask fs write *"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let shown = run(dir, &[&["session", "show", "s"], &at[..]].concat());
    assert!(
        shown.out.contains("rule deny fs read */x\n") && shown.out.contains("rule ask fs write *\n"),
        "{}",
        shown.out
    );
    assert_eq!(set(&["--rule", ""]).code, 0);
    let (_, session) = attack.server.get("/v1/sessions/s").await;
    assert_eq!(session.get("rules"), None, "{session}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confined_agent_cannot_use_the_users_own_mainspring() {
    let attack = Attack::start("").await;
    let (work, state, token) = (attack.path("work"), attack.path("state"), attack.token());
    let program = env!("CARGO_BIN_EXE_mainspring");
    let (status, made) = attack.server.post("/v1/sessions", json!({"key": "s", "cwd": work})).await;
    assert!(status.is_success(), "{made}");
    let (out, state) = (work.join("out"), state.display());
    let create = format!("{program} --state-dir {state} key create mine --role admin");
    for command in [
        format!("{program} --state-dir {state} session set s --rule 'allow * * *'"),
        create.clone(),
        format!("cat {state}/token"),
        format!("cat /proc/self/root{state}/token"),
        format!("ln {state}/token {}/link && cat {0}/link", work.display()),
        "cat /proc/*/environ | tr '\\0' '\\n' | grep MAINSPRING_KEY".to_owned(),
    ] {
        let ended =
            attack.run_locally("s", &work, &format!("shell ({command}) > {} 2>&1", out.display())).await;
        let text = ended["finalText"].as_str().unwrap();
        let written = std::fs::read_to_string(&out).unwrap();
        assert!(text.starts_with("Some(") && text != "Some(0)", "{command}: {text} {written}");
        assert!(!written.contains(&token), "{command}: {written}");
    }
    let (_, session) = attack.server.get("/v1/sessions/s").await;
    assert_eq!(session.get("rules"), None, "{session}");
    // The user's own shell may do it.
    assert!(Command::new("sh").args(["-c", &create]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_writes_only_the_configured_folders_of_its_parents_adapter() {
    // Not below `/tmp`, where every agent may write, and where this repository may be.
    let [reach, sessions] = ["reach", "sessions"].map(|_| tempfile::tempdir_in("/var/tmp").unwrap());
    let command = json!([example("acp_agent"), sessions.path(), "resume"]);
    let settings = format!(
        "[adapters.loose]\nkind = \"acp\"\ncommand = {command}\nwritable = [{:?}, {:?}]\n\
         [adapters.parent]\nkind = \"acp\"\ncommand = {command}\nwritable = [{1:?}]",
        reach.path(),
        sessions.path()
    );
    let attack = Attack::start(&settings).await;
    let work = attack.path("work");
    let touch = |name: &str| format!("shell touch {}", reach.path().join(name).display());
    let start = async |adapter: &str, prompt: &str| {
        let body = json!({"prompt": prompt, "adapter": adapter, "session": {"key": adapter}, "options": {"cwd": work}});
        let (status, run) = attack.server.post("/v1/runs", body).await;
        assert!(status.is_success(), "{run}");
        attack.server.wait_ended(&run).await
    };
    let alone = start("loose", &touch("alone")).await;
    assert!(reach.path().join("alone").exists(), "{alone}");
    let input = json!({"mode": "call", "objective": touch("child"), "runMode": "act", "adapterId": "loose"});
    let call = json!({"type": "tool_use", "callId": "c", "name": "delegate_agent", "input": input});
    let parent = start("parent", &format!("relay {call}")).await;
    let answer = parent["finalText"].as_str().unwrap();
    assert!(answer.contains("Some(1)") && !reach.path().join("child").exists(), "{parent}");
}
