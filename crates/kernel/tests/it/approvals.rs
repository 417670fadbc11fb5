//! Approvals: requests as data, grants for a session, and their end.

use mainspring_core::{
    Answer, Approval, ApprovalAnswer, ApprovalChoice, ApprovalRequest, ApprovalScope, Body, Decider, Grant,
    KeyId, KeyLists, MayAnswer, OnExpiry, RequestedAction, RequestedCall, RunId, RunStatus, WaitId,
};
use mainspring_kernel::adapter::{End, Record};
use mainspring_kernel::kernel::{AgentCaller, Caller, GrantQuery};
use mainspring_kernel::policy::{self, Permissions, Question};
use serde_json::json;

use crate::puppet::{Execution, PuppetBehavior, puppet, puppet_request};
use crate::world::{Disk, World, events_text, every_store, with_timeout};

/// A request to run a command.
fn command(text: &str) -> Question {
    let action =
        RequestedAction { capability: "tool".into(), operation: "execute".into(), resource: "bash".into() };
    let call = RequestedCall {
        tool_use_id: Some("t1".into()),
        name: "bash".into(),
        input: json!({"command": text}),
        ..RequestedCall::default()
    };
    let request = ApprovalRequest::of(action, Some(call)).offer(&[ApprovalChoice::DenyWithReason]);
    Question { request: Some(Box::new(request)), ..format!("Allow {text}?").into() }
}

/// Starts a run of the puppet agent. The test asks questions through the returned execution.
async fn world_with_run(disk: Disk) -> (World, RunId, Execution) {
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, mainspring_kernel::Options::default(), vec![adapter]).await;
    let run = world.send(puppet_request("a", "go")).await.unwrap().run.id;
    let execution = control.next().await;
    (world, run, execution)
}

/// Asks `question` as the agent, lets `respond` react to the wait, and returns the answer that the agent gets.
async fn ask(
    world: &World,
    execution: &Execution,
    run: RunId,
    question: Question,
    standing: Option<&Grant>,
    respond: impl AsyncFn(WaitId),
) -> ApprovalAnswer {
    let asked = policy::request_permission(&execution.handle, standing, question);
    let responded = async { respond(world.wait_for_question(run).await).await };
    let (asked, ()) = with_timeout(async { tokio::join!(asked, responded) }).await;
    asked.unwrap()
}

/// Asks `question` as the agent, answers with `answer`, and returns the answer that the agent gets.
async fn ask_and_answer(
    world: &World,
    execution: &Execution,
    run: RunId,
    question: Question,
    answer: ApprovalAnswer,
) -> ApprovalAnswer {
    ask(world, execution, run, question, None, async |wait| {
        world.kernel.run_answer(&world.me, run, wait, Answer::Approval(answer.clone())).await.unwrap();
    })
    .await
}

fn for_session() -> ApprovalAnswer {
    ApprovalAnswer { scope: ApprovalScope::Session, ..Approval::Allowed.into() }
}

async fn grants(world: &World) -> Vec<Grant> {
    let query = GrantQuery { in_force: true, ..GrantQuery::default() };
    world.kernel.grant_list(&world.me, query).await.unwrap()
}

#[tokio::test]
async fn a_wait_for_an_approval_names_the_call_the_answers_and_the_answerers() {
    let (world, run, execution) = world_with_run(Disk::memory()).await;
    use ApprovalChoice::{AllowOnce, AllowSession, Deny, DenyWithReason};
    let supplied = json!({"kind": "approval", "decision": "supplied", "result": {"text": "x"}});
    let supplied: Answer = serde_json::from_value(supplied).unwrap();
    Box::pin(ask(&world, &execution, run, command("ls"), None, async |id| {
        let known = world.get(run).await;
        let wait = known.state.wait().unwrap();
        let approval = wait.approval.as_ref().unwrap();
        assert_eq!(approval.answers, [AllowOnce, AllowSession, Deny, DenyWithReason]);
        assert_eq!(approval.may_answer, Some(MayAnswer::of_owner(&world.me.owner)));
        assert_eq!(approval.call.as_ref().unwrap().input, json!({"command": "ls"}));
        assert_eq!(wait.on_expiry, OnExpiry::TimeOut);
        let answer = |answer| world.kernel.run_answer(&world.me, run, id, answer);
        assert_eq!(answer(supplied.clone()).await.unwrap_err().code(), "answer_not_offered");
        assert_eq!(world.get(run).await.state.status(), RunStatus::WaitingApproval);
        answer(Approval::Denied.into()).await.unwrap();
    }))
    .await;
}

#[tokio::test]
async fn an_approval_for_the_session_answers_the_same_request_until_it_is_revoked() {
    for disk in every_store() {
        let (world, run, execution) = world_with_run(disk).await;
        let handle = &execution.handle;
        let first = ask_and_answer(&world, &execution, run, command("ls"), for_session()).await;
        assert_eq!(first.decision, Approval::Allowed);
        let [grant] = &*grants(&world).await else { panic!("one grant") };
        assert_eq!(grant.run, None, "it holds for the session");

        // The same request again: nobody is asked, and the event names the grant and the person.
        let again = with_timeout(policy::request_permission(handle, None, command("ls"))).await.unwrap();
        assert_eq!(again.decision, Approval::Allowed);
        let resolved: Vec<_> = world
            .events("a")
            .await
            .into_iter()
            .filter_map(|event| match event.body {
                Body::ApprovalResolved { grant_id, decided_by, .. } => {
                    Some((grant_id, decided_by.map(|by| *by)))
                }
                _ => None,
            })
            .collect();
        let person = Decider::Person { owner_id: world.me.owner.clone() };
        assert_eq!(resolved, [(Some(grant.id), Some(person.clone())), (Some(grant.id), Some(person))]);

        // The grant does not cover another command: the agent has to ask.
        let reason = ApprovalAnswer { reason: Some("no".into()), ..Approval::Denied.into() };
        let other = ask_and_answer(&world, &execution, run, command("rm x"), reason).await;
        assert_eq!((other.decision, other.reason.as_deref()), (Approval::Denied, Some("no")));

        let revoked = world.kernel.grant_revoke(&world.me, grant.id).await.unwrap();
        assert!(revoked.revoked_at.is_some());
        assert_eq!(world.kernel.grant_revoke(&world.me, grant.id).await.unwrap(), revoked, "twice");
        assert_eq!(grants(&world).await, []);
        let asked = ask_and_answer(&world, &execution, run, command("ls"), Approval::Denied.into()).await;
        assert_eq!(asked.decision, Approval::Denied);
        assert!(events_text(&world.events("a").await).contains("grant.revoked"));
        execution.end(End::succeeded());
        world.ended(run).await;
    }
}

#[tokio::test]
async fn a_refused_second_answer_names_the_author_and_time_of_the_first() {
    let (world, run, execution) = world_with_run(Disk::memory()).await;
    ask(&world, &execution, run, command("ls"), None, async |wait| {
        let answer =
            |decision: Approval| Box::pin(world.kernel.run_answer(&world.me, run, wait, decision.into()));
        let (first, second) = tokio::join!(answer(Approval::Allowed), answer(Approval::Denied));
        let late: Vec<_> = [first, second].into_iter().filter_map(Result::err).collect();
        let [late] = &*late else { panic!("exactly one answer is refused: {late:?}") };
        assert_eq!(late.code(), "already_answered");
        assert!(late.to_string().contains(&format!(": allowed by {} at ", world.me.owner)), "{late}");
    })
    .await;
}

#[tokio::test]
async fn only_the_owner_sees_and_revokes_a_grant() {
    let (world, run, execution) = world_with_run(Disk::memory()).await;
    ask_and_answer(&world, &execution, run, command("ls"), for_session()).await;
    let [grant] = &*grants(&world).await else { panic!("one grant") };
    let eve = Caller::new("eve");
    assert_eq!(world.kernel.grant_list(&eve, GrantQuery::default()).await.unwrap(), []);
    assert_eq!(world.kernel.grant_revoke(&eve, grant.id).await.unwrap_err().code(), "not_found");
    let viewer = world.me.clone().with_role(mainspring_core::AccessRole::Viewer);
    assert_eq!(world.kernel.grant_revoke(&viewer, grant.id).await.unwrap_err().code(), "forbidden");
    let attempt = execution.handle.id();
    let agent = AgentCaller { session: grant.session, run, attempt, is_call_approved: false };
    let agent = Caller { agent: Some(agent), ..world.me.clone() };
    assert_eq!(world.kernel.grant_revoke(&agent, grant.id).await.unwrap_err().code(), "forbidden");
    let (key_id, adapters) = (KeyId::from_random([5; 16]), Some(vec!["script".to_owned()]));
    let lists = KeyLists { key_id, adapters, models: None, tools: None, spend_per_day: None };
    let limited = Caller { lists: Some(Box::new(lists)), ..world.me.clone() };
    assert_eq!(world.kernel.grant_revoke(&limited, grant.id).await.unwrap_err().code(), "not_allowed_by_key");
    assert_eq!(grants(&world).await.len(), 1);
}

#[tokio::test]
async fn a_limited_key_answers_no_question_of_a_run_that_it_may_not_use() {
    let (world, run, execution) = world_with_run(Disk::memory()).await;
    let (key_id, adapters) = (KeyId::from_random([5; 16]), Some(vec!["script".to_owned()]));
    let lists = KeyLists { key_id, adapters, models: None, tools: None, spend_per_day: None };
    let limited = Caller { lists: Some(Box::new(lists)), ..world.me.clone() };
    let answered = ask(&world, &execution, run, command("ls"), None, async |wait| {
        let allowed = Answer::Approval(Approval::Allowed.into());
        let refused = world.kernel.run_answer(&limited, run, wait, allowed).await.unwrap_err();
        assert_eq!(refused.code(), "not_allowed_by_key");
        let denied = Answer::Approval(Approval::Denied.into());
        world.kernel.run_answer(&world.me, run, wait, denied).await.unwrap();
    });
    assert_eq!(answered.await.decision, Approval::Denied);
}

#[tokio::test]
async fn a_grant_for_the_session_expires() {
    let (world, run, execution) = world_with_run(Disk::memory()).await;
    let brief = ApprovalAnswer { expires_in_ms: Some(1_000), ..for_session() };
    ask_and_answer(&world, &execution, run, command("ls"), brief).await;
    world.clock.advance(1_000);
    assert_eq!(grants(&world).await, []);
    let asked = ask_and_answer(&world, &execution, run, command("ls"), Approval::Denied.into()).await;
    assert_eq!(asked.decision, Approval::Denied);
}

#[tokio::test]
async fn a_revoked_standing_grant_allows_nothing_any_more() {
    let (world, run, execution) = world_with_run(Disk::memory()).await;
    let handle = &execution.handle;
    let standing = Permissions::Legacy.standing_grant(handle).await.unwrap().unwrap();
    handle.record(vec![Record::Granted(Box::new(standing.clone()))]).await.unwrap();
    let allowed = policy::request_permission(handle, Some(&standing), command("ls")).await.unwrap();
    assert_eq!(allowed.decision, Approval::Allowed);
    world.kernel.grant_revoke(&world.me, standing.id).await.unwrap();
    // A later attempt records the same grant again.
    handle.record(vec![Record::Granted(Box::new(standing.clone()))]).await.unwrap();
    let asked = ask(&world, &execution, run, command("ls"), Some(&standing), async |wait| {
        world.kernel.run_answer(&world.me, run, wait, Approval::Denied.into()).await.unwrap();
    })
    .await;
    assert_eq!(asked.decision, Approval::Denied);
}
