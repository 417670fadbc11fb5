//! The published codex-acp, unmodified, with the scripted model server as its model.

use mainspring::config::Permissions;
use mainspring_model_server::{ModelServer, Protocol};
use serde_json::json;

use super::*;

/// Opens a node with codex, whose configuration is in a separate home folder.
async fn codex(model: &ModelServer) -> World {
    let modules = installed().join("node_modules");
    let base = model.base_url(Protocol::Responses);
    let world = world_with("", |adapter| {
        let folder = folder_of(adapter);
        let config = format!(
            "model = \"stub-1\"\nmodel_provider = \"stub\"\n[model_providers.stub]\nname = \"stub\"\nbase_url = {:?}\n\
             wire_api = \"responses\"\nrequires_openai_auth = false\n",
            base.trim_end_matches('/')
        );
        std::fs::create_dir_all(folder.join("home/.codex")).unwrap();
        std::fs::create_dir_all(folder.join("work")).unwrap();
        std::fs::write(folder.join("home/.codex/config.toml"), config).unwrap();
        let env = adapter.env.get_or_insert_default();
        env.insert("HOME".into(), folder.join("home").to_string_lossy().into_owned());
        env.insert("NO_BROWSER".into(), "1".into());
        let program = modules.join("@agentclientprotocol/codex-acp/dist/index.js");
        adapter.command = Some([node(), program].map(|word| word.to_string_lossy().into_owned()).into());
        adapter.cwd = Some(folder.join("work"));
        adapter.permissions = Some(Permissions::Ask);
    });
    let mut world = world.await;
    // Time for codex to stop on a busy machine.
    world.config.cancel_grace_ms = 20_000;
    world.reopen().await;
    world
}

/// A script that has codex run a command.
fn run_command(command: &str) -> String {
    format!("tool exec_command {}\nsay done", json!({"cmd": command}))
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_edits_builds_and_commits_in_its_workspace_and_nowhere_else() {
    let model = ModelServer::start().await.unwrap();
    let world = codex(&model).await;
    let work = world.folder.path().join("work");
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git").current_dir(&work).args(arguments).output().unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    git(&["init", "--quiet"]);
    // Not in the system's temporary folder, which a workspace may write.
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::write(work.join("main.c"), "int main(void) { return 1; }\n").unwrap();
    let build = "sed -i 's/return 1/return 0/' main.c && cc main.c -o main && ./main && touch built";
    let commit = "git add main.c && git -c user.name=a -c user.email=a@b commit --quiet -m built";
    for command in [build, commit, &format!("touch {}/written", outside.path().display())] {
        let run = world.run_to_end("a", &run_command(command)).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{run:?}");
    }
    assert!(work.join("built").exists());
    assert_eq!(git(&["log", "--format=%s"]), "built\n");
    assert!(!outside.path().join("written").exists(), "its own sandbox is off, ours is not");
    // A run that may only answer writes nothing.
    let ask = RunRequest { mode: Mode::Ask, ..request("b", &run_command("touch answered")) };
    let run = world.send(ask).await;
    assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Succeeded);
    assert!(!work.join("answered").exists());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_the_command_of_codex() {
    let model = ModelServer::start().await.unwrap();
    let world = codex(&model).await;
    let sleeps = || {
        let name = |pid: rustix::process::Pid| {
            std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_pid())).unwrap_or_default()
        };
        world.agent_pids().into_iter().filter(|pid| name(*pid) == "sleep\n").count()
    };
    let run = world.prompt("a", &run_command("setsid sh -c 'sleep 4322 & sleep 4322' & sleep 4322")).await;
    let started = async {
        while sleeps() < 3 {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(started).await;
    with_timeout(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(sleeps(), 0, "cancelled means stopped");
    let text = world.prompt_answer("a", "say still here").await;
    assert!(text.trim_end().ends_with("still here"), "{text}");
    world.close().await;
}
