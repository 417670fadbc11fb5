//! Pi: turns, dialogs, cancellation, crashes, and no process left behind.

use std::time::Duration;

use mainspring_core::{
    AccessRole, Answer, Approval, Block, Body, Fidelity, Mode, Policy, RunId, RunStatus, WaitId,
};
use mainspring_kernel::kernel::{Adopted, Caller, RunRequest, SessionTarget, session_ref};
use mainspring_kernel::policy::Permissions;
use serde_json::json;

use crate::world::{Kind, PICTURE, Setup, World, event_types, failure_code, request, with_timeout};

mod dialogs;
mod faults;
mod tools;
mod turns;

async fn world(behaviour: &str) -> World {
    world_with(behaviour, |_| {}).await
}

/// A world whose scripted pi behaves like this, adapted by `change`.
async fn world_with(behaviour: &str, change: impl Fn(&mut Setup)) -> World {
    let set_up = |setup: &mut Setup| {
        setup.run_example("scripted_pi", behaviour);
        change(setup);
    };
    World::open(Kind::Pi, set_up).await
}

/// A prompt that joins the running run.
fn steer(key: &str, prompt: &str) -> RunRequest {
    RunRequest { policy: Policy::Steer, ..request(key, prompt) }
}

#[tokio::test]
async fn a_session_of_pi_is_not_adopted_by_its_path() {
    let world = world("").await;
    let root = Caller { role: AccessRole::Admin, ..world.me.clone() };
    for path in ["/etc/passwd", "../other.jsonl", "sessions/a.jsonl"] {
        let adopted = Adopted { native: path.into(), ..Adopted::default() };
        let target = SessionTarget { key: Some("a".into()), ..SessionTarget::default() };
        let refused = world.kernel().session_adopt(&root, &target, "agent", adopted).await.unwrap_err();
        assert!(refused.code() == "invalid_request" && refused.to_string().contains(path), "{refused}");
    }
}

async fn input(world: &World, run: RunId, wait: WaitId, text: &str) {
    let answer = Answer::Input { input: json!(text) };
    with_timeout(world.kernel().run_answer(&world.me, run, wait, answer)).await.unwrap();
}
