//! Agents of a killed program.

use std::process::{Command, Stdio};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_daemon_leaves_no_agent_and_its_session_continues() {
    let mut world = world("load").await;
    world.node.take().unwrap().close().await;
    let file = world.folder.path().join("mainspring.toml");
    let adapter = &world.config.adapters["agent"];
    let text = format!(
        "adapter = \"agent\"\nowner = \"ada\"\n[adapters.agent]\nkind = \"acp\"\ncwd = \"/\"\ncommand = {:?}\nenv = {{ {FOLDER_VARIABLE} = {:?} }}\n",
        adapter.command.as_ref().unwrap(),
        world.folder.path().to_string_lossy(),
    );
    std::fs::write(&file, text).unwrap();
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_mainspring"))
        .args(["prompt", "--session", "a", "my name is Ada; spawn; hang", "--state-dir"])
        .arg(&world.config.state_dir)
        .arg("--config")
        .arg(&file)
        .env_clear()
        .envs(["HOME", "PATH"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = daemon.stdout.take().unwrap();
    let received = tokio::task::spawn_blocking(move || {
        let (mut received, mut byte) = (String::new(), [0]);
        while !received.contains("hanging") && std::io::Read::read(&mut out, &mut byte).unwrap() > 0 {
            received.push(byte[0].into());
        }
        received
    });
    let received = with_timeout(received).await.unwrap();
    assert!(received.contains("hanging"), "{received}");
    world.wait_for_processes(4).await;
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    world.reopen().await;
    assert_eq!(world.process_count(), 0, "no run is orphaned while its agent still acts");
    let events = world.events("a").await;
    assert_eq!(events.last().unwrap().body.kind(), "run.orphaned");
    let received = world.prompt_answer("a", "history").await;
    let known = "my name is Ada; spawn; hang\n<interrupted>";
    assert!(received.starts_with(known) && received.ends_with("\nhistory\n"), "{received}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_waits_for_leftover_processes_before_it_opens() {
    let mut world = world("none").await;
    world.node.take().unwrap().close().await;
    let mark = format!("{}#of-an-earlier-one", world.config.state_dir.display());
    let done = world.folder.path().join("done");
    let act = format!("sleep 0.5; touch {}", done.display());
    let mark = (mainspring_adapters::process::MARK_VARIABLE, mark);
    let mut left = Command::new("sh").args(["-c", &act]).env(mark.0, mark.1).spawn().unwrap();
    world.reopen().await;
    assert!(done.exists(), "the agent acted after the node had opened");
    left.wait().unwrap();
    world.close().await;
}
