//! Grants: listed and revoked.

use mainspring_client::{GrantListQuery, Prompt};
use mainspring_core::{Answer, Approval, ApprovalAnswer, ApprovalScope, GrantSource, RunStatus};
use mainspring_test_support::{TestNode, asking_agent};

use crate::world::World;

#[tokio::test]
async fn a_grant_is_listed_until_it_is_revoked() {
    let world = World::with(TestNode::builder().adapter(asking_agent())).await;
    let client = &world.client;
    let prompt = Prompt { adapter: Some("asker".into()), ..Prompt::text("a", "ls") };
    let run = client.run_create(&prompt).await.unwrap().run;
    let wait = world.question(run.id).await.id;
    let for_session = ApprovalAnswer { scope: ApprovalScope::Session, ..Approval::Allowed.into() };
    client.run_answer(run.id, wait, &Answer::Approval(for_session)).await.unwrap();
    let query = GrantListQuery { session: Some("a".into()), ..GrantListQuery::default() };
    let page = client.grant_list(&query).await.unwrap();
    let [grant] = &*page.items else { panic!("{page:?}") };
    assert_eq!(grant.source, GrantSource::User);
    let revoked = client.grant_revoke(grant.id).await.unwrap();
    assert!(revoked.revoked_at.is_some() && revoked.revoked_by.is_some(), "{revoked:?}");
    assert_eq!(client.grant_list(&query).await.unwrap().items, []);
    let all = GrantListQuery { all: Some(true), ..query };
    assert_eq!(client.grant_list(&all).await.unwrap().items, [revoked]);
    assert_ne!(client.run_get(run.id).await.unwrap().state.status(), RunStatus::WaitingApproval);
}
