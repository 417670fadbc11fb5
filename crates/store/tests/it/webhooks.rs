//! Webhooks and their dead letters.

use mainspring_core::*;
use mainspring_kernel::store::{Store, WebhookChange};

use crate::fixtures::*;
use crate::migrations::{RELEASED, create_database};

fn webhook(no: u8, owner: &str) -> Webhook {
    Webhook {
        id: WebhookId::from_random([no; 16]),
        owner: owner.into(),
        key: None,
        url: format!("https://example.com/{no}"),
        types: vec!["run".into()],
        cursor: Cursor(1),
        failures: 0,
        last_error: None,
        delivered_at: None,
        created_at: NOW,
    }
}

fn letter(of: &Webhook, cursor: u64, error: &str) -> DeadLetter {
    DeadLetter {
        webhook: of.id,
        cursor: Cursor(cursor),
        event: EventId::from_random([3; 16]),
        session: session_id(1),
        event_type: "run.failed".into(),
        attempts: 10,
        error: error.into(),
        failed_at: NOW,
    }
}

async fn letters(store: &dyn Store, of: &Webhook, after: u64, limit: usize) -> Vec<(u64, String)> {
    let found = store.dead_letters(of.id, Cursor(after), limit).await.unwrap();
    found.into_iter().map(|letter| (letter.cursor.0, letter.error)).collect()
}

#[tokio::test]
async fn webhooks_are_listed_by_owner_and_a_removed_one_stays_removed() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (mine, other) = (webhook(1, OWNER), webhook(2, "other"));
        for added in [&mine, &other] {
            assert_eq!(store.webhook_write(&WebhookChange::Add(added.clone())).await, Ok(true), "{name}");
        }
        assert_eq!(store.webhooks(Some(OWNER)).await.unwrap(), std::slice::from_ref(&mine), "{name}");
        assert_eq!(store.webhooks(None).await.unwrap(), [mine.clone(), other], "{name}");
        let moved = Webhook { cursor: Cursor(9), last_error: Some("gone".into()), ..mine.clone() };
        assert_eq!(
            store.webhook_write(&WebhookChange::Progress(moved.clone(), None)).await,
            Ok(true),
            "{name}"
        );
        assert_eq!(store.webhooks(Some(OWNER)).await.unwrap(), std::slice::from_ref(&moved), "{name}");
        assert_eq!(store.webhook_write(&WebhookChange::Remove(mine.id)).await, Ok(true), "{name}");
        assert_eq!(store.webhook_write(&WebhookChange::Remove(mine.id)).await, Ok(false), "{name}");
        // A delivery that was under way does not bring it back.
        let late = WebhookChange::Progress(moved.clone(), Some(letter(&moved, 5, "late")));
        assert_eq!(store.webhook_write(&late).await, Ok(false), "{name}");
        assert_eq!(store.webhooks(Some(OWNER)).await.unwrap(), [], "{name}");
        assert_eq!(letters(store, &moved, 0, 9).await, [], "{name}");
    }
}

#[tokio::test]
async fn dead_letters_are_kept_once_per_event_until_they_are_forgotten() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let mine = webhook(1, OWNER);
        store.webhook_write(&WebhookChange::Add(mine.clone())).await.unwrap();
        for (cursor, error) in [(7, "first"), (5, "five"), (7, "again")] {
            let bury = WebhookChange::Progress(mine.clone(), Some(letter(&mine, cursor, error)));
            store.webhook_write(&bury).await.unwrap();
        }
        assert_eq!(letters(store, &mine, 0, 9).await, [(5, "five".into()), (7, "again".into())], "{name}");
        assert_eq!(letters(store, &mine, 5, 9).await, [(7, "again".into())], "{name}");
        assert_eq!(letters(store, &mine, 0, 1).await.len(), 1, "{name}");
        assert_eq!(store.webhook_write(&WebhookChange::Forget(mine.id, Cursor(5))).await, Ok(true), "{name}");
        assert_eq!(
            store.webhook_write(&WebhookChange::Forget(mine.id, Cursor(5))).await,
            Ok(false),
            "{name}"
        );
        // The result of sending a letter again changes no webhook, and brings back no forgotten letter.
        let moved = Webhook { cursor: Cursor(9), ..mine.clone() };
        store.webhook_write(&WebhookChange::Progress(moved.clone(), None)).await.unwrap();
        for (cursor, is_stored) in [(7, true), (5, false)] {
            let replace = WebhookChange::Replace(letter(&mine, cursor, "sent again"));
            assert_eq!(store.webhook_write(&replace).await, Ok(is_stored), "{name}");
        }
        assert_eq!(letters(store, &mine, 0, 9).await, [(7, "sent again".into())], "{name}");
        assert_eq!(store.webhooks(Some(OWNER)).await.unwrap(), [moved], "{name}");
        store.webhook_write(&WebhookChange::Remove(mine.id)).await.unwrap();
        assert_eq!(letters(store, &mine, 0, 9).await, [], "{name}");
    }
}

#[tokio::test]
async fn a_database_of_an_earlier_version_gets_webhooks() {
    let folder = tempfile::tempdir().unwrap();
    create_database(folder.path(), RELEASED, "");
    let store = sqlite_open(folder.path());
    assert_eq!(store.webhooks(None).await.unwrap(), []);
    let mine = webhook(1, OWNER);
    store.webhook_write(&WebhookChange::Add(mine.clone())).await.unwrap();
    drop(store);
    assert_eq!(sqlite_open(folder.path()).webhooks(Some(OWNER)).await.unwrap(), [mine]);
}
