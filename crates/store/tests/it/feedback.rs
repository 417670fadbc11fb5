//! Feedback of readers on messages.

use mainspring_core::*;
use mainspring_kernel::store::{Row, Store};
use mainspring_store::SCHEMA_VERSION;

use crate::fixtures::*;
use crate::migrations::{RELEASED, create_database, insert_queued_run};

fn feedback(session: u64, message: u64, owner: &str, sentiment: Sentiment) -> Feedback {
    Feedback {
        id: FeedbackId::from_random([1; 16]),
        session: session_id(session),
        message: message_id(message),
        owner: owner.into(),
        sentiment,
        categories: vec!["other".into()],
        notes: Some("so".into()),
        created_at: NOW,
        updated_at: NOW.plus(1),
    }
}

fn row(feedback: &Feedback) -> Row {
    Row::Feedback(Box::new(feedback.clone()))
}

#[tokio::test]
async fn a_reader_has_one_feedback_per_message() {
    use Sentiment::{Negative, Positive};
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        create_session(store, 2).await;
        let [ann, ben, other] = [(1, "ann"), (1, "ben"), (2, "ann")]
            .map(|(message, owner)| feedback(1, message, owner, Positive));
        commit(store, fence, vec![row(&other), row(&ben), row(&ann)], vec![]).await.unwrap();
        let changed = Feedback { sentiment: Negative, notes: None, ..ann };
        commit(store, fence, vec![row(&changed)], vec![]).await.unwrap();
        let list = |session, message, limit| store.feedback_list(session, message, limit);
        let all = [changed.clone(), ben.clone(), other.clone()];
        assert_eq!(list(session_id(1), None, 9).await.unwrap(), all, "{name}");
        assert_eq!(list(session_id(1), None, 2).await.unwrap(), all[..2], "{name}");
        assert_eq!(list(session_id(1), Some(message_id(1)), 9).await.unwrap(), all[..2], "{name}");
        assert_eq!(list(session_id(2), None, 9).await.unwrap(), [], "{name}");
    }
}

#[tokio::test]
async fn a_database_of_a_version_without_feedback_can_get_it_and_a_purge_removes_it() {
    let folder = tempfile::tempdir().unwrap();
    create_database(folder.path(), RELEASED, &insert_queued_run(0));
    let store = sqlite_open(folder.path());
    let check = store.check(true).await.unwrap();
    assert_eq!((check.schema_version, check.problems), (SCHEMA_VERSION, vec![]));
    let fence = lease(&store, 1).await;
    let given = feedback(1, 1, "ann", Sentiment::Positive);
    commit(&store, fence, vec![row(&given)], vec![]).await.unwrap();
    assert_eq!(store.feedback_list(session_id(1), None, 9).await.unwrap(), [given]);
    let session = store.session_load(session_id(1)).await.unwrap().unwrap().session;
    let deleted = Session { status: SessionStatus::Deleted, ..session };
    commit(&store, fence, vec![row_session(deleted)], vec![]).await.unwrap();
    while store.session_purge(session_id(1)).await.unwrap() {}
    assert_eq!(store.feedback_list(session_id(1), None, 9).await.unwrap(), []);
}
