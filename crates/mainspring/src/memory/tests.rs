use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use mainspring_core::memory::{CANDIDATE_KIND, UNCERTAINTY};
use mainspring_core::{AttemptId, RunStatus};
use mainspring_kernel::adapter::{
    Adapter, AttemptHandle, Capabilities, Death, Dispatch, End, Executed, NewArtifact,
};
use mainspring_kernel::kernel::{Caller, RunRequest};
use serde_json::{Map, Value};

use super::*;
use crate::{Config, Node};

/// Proposes its prompt as a fact to remember.
struct Proposes;

#[async_trait]
impl Adapter for Proposes {
    fn capabilities(&self) -> Capabilities {
        Capabilities::minimal("proposes")
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        let text = attempt.assignment().prompt.text();
        let metadata = Map::from_iter([(UNCERTAINTY.to_owned(), json!(0.25))]);
        let new = NewArtifact { kind: CANDIDATE_KIND.into(), metadata, ..NewArtifact::default() };
        attempt.artifact(new, &mut text.as_bytes()).await.unwrap();
        End::succeeded()
    }

    async fn cancel(&self, _: AttemptId) -> Dispatch {
        Dispatch { dispatched: true, acknowledged: false }
    }

    async fn kill(&self, _: AttemptId) -> Death {
        Death::Proven
    }

    fn forget(&self, _: &str) {}
}

/// Writes a command that keeps its input, and decides by the text of the candidate.
fn command(folder: &Path) -> Vec<String> {
    let (file, inputs) = (folder.join("decide"), folder.join("inputs"));
    let script = format!(
        "#!/bin/sh\nread -r line\nprintf '%s\\n' \"$line\" >>{}\n\
         case $line in *good*) echo kept ;; *bad*) echo known; exit 1 ;; *) exit 7 ;; esac\n",
        inputs.display()
    );
    std::fs::write(&file, script).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o700)).unwrap();
    vec![file.to_str().unwrap().to_owned()]
}

#[tokio::test]
async fn the_command_decides_about_each_candidate_once() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::with_state_dir(folder.path().join("state")).adapter("proposes".into());
    let node = Node::builder(config).adapter(Proposes).open().await.unwrap();
    let (kernel, me, command) = (node.kernel(), Caller::new("ada"), command(folder.path()));
    for text in ["a strange fact", "a good fact", "a bad fact"] {
        let run = kernel.run_create(&me, RunRequest::text("a", text)).await.unwrap().run;
        let run = kernel.run_wait(&me, run.id, Duration::from_secs(60)).await.unwrap();
        assert_eq!(run.state.status(), RunStatus::Succeeded);
    }
    let proposed = kernel.memory_candidates(None, 9).await.unwrap();
    assert_eq!(proposed.len(), 3);
    let why = decide_all(kernel, &command).await.unwrap_err();
    assert!(why.contains("no decision"), "{why}");
    let decisions = async || {
        let mut found = vec![];
        for artifact in &proposed {
            let metadata = kernel.artifact_get(&me, artifact.id).await.unwrap().metadata;
            let word = |key: &str| metadata.get(key).and_then(Value::as_str).unwrap_or("-").to_owned();
            found.push(format!("{} {}", word("decision"), word("reason")));
        }
        found.sort();
        found
    };
    assert_eq!(decisions().await, ["- -", "accepted kept", "rejected known"]);
    // Only the candidate without a decision is offered again.
    decide_all(kernel, &command).await.unwrap_err();
    let inputs = std::fs::read_to_string(folder.path().join("inputs")).unwrap();
    let inputs: Vec<Value> = inputs.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let offered = |text: &str| inputs.iter().filter(|input| input["text"] == text).count();
    assert_eq!([offered("a good fact"), offered("a bad fact"), offered("a strange fact")], [1, 1, 2]);
    for input in &inputs {
        assert_eq!(input["artifact"]["metadata"]["uncertainty"], 0.25);
        assert!(input["artifact"]["runId"].is_string(), "{input}");
    }
    node.close().await;
}

#[tokio::test]
async fn a_command_that_fails_makes_no_decision() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::with_state_dir(folder.path().join("state")).adapter("proposes".into());
    let node = Node::builder(config).adapter(Proposes).open().await.unwrap();
    let (kernel, me) = (node.kernel(), Caller::new("ada"));
    let run = kernel.run_create(&me, RunRequest::text("a", "a good fact")).await.unwrap().run;
    kernel.run_wait(&me, run.id, Duration::from_secs(60)).await.unwrap();
    for command in [vec!["/nowhere/nobody".to_owned()], vec![]] {
        decide_all(kernel, &command).await.unwrap_err();
    }
    assert_eq!(kernel.memory_candidates(None, 9).await.unwrap().len(), 1);
    node.close().await;
}

#[tokio::test]
async fn a_command_may_write_much_output_before_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::with_state_dir(folder.path().join("state")).adapter("proposes".into());
    let node = Node::builder(config).adapter(Proposes).open().await.unwrap();
    let (kernel, me) = (node.kernel(), Caller::new("ada"));
    let fact = "a fact ".repeat(8_000);
    let run = kernel.run_create(&me, RunRequest::text("a", &fact)).await.unwrap().run;
    kernel.run_wait(&me, run.id, Duration::from_secs(60)).await.unwrap();
    let candidate = kernel.memory_candidates(None, 9).await.unwrap().remove(0);
    let script =
        "head -c 300000 /dev/zero | tr '\\0' x; read -r line; case $line in *fact*) exit 0 ;; esac; exit 7";
    let command = ["sh", "-c", script].map(str::to_owned);
    decide_all(kernel, &command).await.unwrap();
    let metadata = kernel.artifact_get(&me, candidate.id).await.unwrap().metadata;
    assert_eq!(metadata["decision"], "accepted");
    assert_eq!(metadata["reason"].as_str().unwrap().len(), usize::try_from(REASON_BYTES).unwrap());
    node.close().await;
}

#[tokio::test]
async fn a_candidate_whose_bytes_are_missing_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::with_state_dir(folder.path().join("state")).adapter("proposes".into());
    let node = Node::builder(config.clone()).adapter(Proposes).open().await.unwrap();
    let (kernel, me) = (node.kernel(), Caller::new("ada"));
    for text in ["a good fact", "another good fact"] {
        let run = kernel.run_create(&me, RunRequest::text("a", text)).await.unwrap().run;
        kernel.run_wait(&me, run.id, Duration::from_secs(60)).await.unwrap();
    }
    let [first, second] = &kernel.memory_candidates(None, 9).await.unwrap()[..] else { panic!() };
    let hash = first.content_hash.as_deref().unwrap();
    std::fs::remove_file(config.artifacts_dir().join(&hash[..2]).join(hash)).unwrap();
    let why = decide_all(kernel, &command(folder.path())).await.unwrap_err();
    assert!(why.contains(&first.id.to_string()), "{why}");
    let left = kernel.memory_candidates(None, 9).await.unwrap();
    assert_eq!(left.iter().map(|candidate| candidate.id).collect::<Vec<_>>(), [first.id]);
    assert_eq!(kernel.artifact_get(&me, second.id).await.unwrap().metadata["decision"], "accepted");
    node.close().await;
}
