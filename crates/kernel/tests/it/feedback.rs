//! Feedback: every reader gives their own, and it changes neither the session nor its activity.

use mainspring_core::{AccessRole, MessageId, NewFeedback, Sentiment, Visibility};
use mainspring_kernel::kernel::{Caller, RunRequest, SessionPatch};
use mainspring_kernel::store::SessionRef;

use crate::world::{Disk, World};

fn good(categories: &[&str]) -> NewFeedback {
    let categories = categories.iter().map(|&category| category.to_owned()).collect();
    NewFeedback { sentiment: Sentiment::Positive, categories, notes: None }
}

#[tokio::test]
async fn readers_give_feedback_of_their_own() {
    let world = World::on(Disk::memory()).await;
    let ada = Caller::new("ada").in_org("acme");
    let run = world.kernel.run_create(&ada, RunRequest::text("s", "say hi")).await.unwrap().run;
    world.ended(run.id).await;
    let (kernel, by) = (&world.kernel, SessionRef::Id(run.session));
    let message = kernel.run_get(&ada, run.id).await.unwrap().final_message.unwrap();
    let code = |result: Result<_, mainspring_kernel::Error>| {
        result.map(|_: mainspring_core::Feedback| ()).map_err(|error| error.code()).err().unwrap_or("given")
    };
    let ben = Caller::new("ben").in_org("acme");
    let private = code(kernel.feedback_give(&ben, &by, message, good(&[])).await);
    assert_eq!(private, "not_found", "a private session is hidden");
    let patch = SessionPatch { visibility: Some(Visibility::Org), ..SessionPatch::default() };
    let before = kernel.session_patch(&ada, &by, patch).await.unwrap();

    let first = kernel.feedback_give(&ben, &by, message, good(&["helpful", "correct"])).await.unwrap();
    assert_eq!((&*first.owner, first.categories.join(" ")), ("ben", "correct helpful".to_owned()));
    let of_ada = kernel.feedback_give(&ada, &by, message, good(&[])).await.unwrap();
    let again = kernel.feedback_give(&ben, &by, message, good(&["correct"])).await.unwrap();
    assert_eq!((again.id, again.created_at), (first.id, first.created_at), "an upsert");
    assert_eq!(kernel.feedback_list(&ben, &by).await.unwrap(), [of_ada, again]);
    let after = kernel.session_get(&ada, &by).await.unwrap();
    assert_eq!((after.version, after.last_activity_at), (before.version, before.last_activity_at));

    let viewer = ben.clone().with_role(AccessRole::Viewer);
    assert_eq!(code(kernel.feedback_give(&viewer, &by, message, good(&[])).await), "forbidden");
    let nowhere = MessageId::from_random([9; 16]);
    assert_eq!(code(kernel.feedback_give(&ben, &by, nowhere, good(&[])).await), "not_found");
    let wrong = kernel.feedback_give(&ben, &by, message, good(&["slow"])).await;
    assert_eq!(code(wrong), "invalid_request");
    // An org's admin does not read private sessions, so there is nothing to give feedback on.
    let patch = SessionPatch { visibility: Some(Visibility::Private), ..SessionPatch::default() };
    kernel.session_patch(&ada, &by, patch).await.unwrap();
    let admin = ben.with_role(AccessRole::Admin);
    assert_eq!(code(kernel.feedback_give(&admin, &by, message, good(&[])).await), "not_found");
    assert!(kernel.session_get(&admin, &by).await.is_err());
}
