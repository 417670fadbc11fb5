//! A session's tree: branched, edited, navigated, forked and searched.

use mainspring_client::{Fork, MessageListQuery, Prompt, SearchQuery, TreeQuery};
use mainspring_core::{Place, Run};

use crate::world::{World, code};

async fn branch(world: &World, place: Place, text: Option<&str>) -> Run {
    let prompt = Prompt { place, ..Prompt::text("a", text.unwrap_or_default()) };
    let prompt = if text.is_some() { prompt } else { Prompt { prompt: None, ..prompt } };
    let run = world.client.run_create(&prompt).await.unwrap().run;
    world.ended(run.id).await
}

#[tokio::test]
async fn a_regenerated_answer_is_a_sibling_and_the_path_follows_navigation() {
    let world = World::start().await;
    let client = &world.client;
    let first = world.play("a", "vary one | two").await;
    let (prompt, answer) = (first.prompt.unwrap(), first.final_message.unwrap());
    let again = branch(&world, Place::Regenerate { message_id: prompt }, None).await;
    let edited = branch(&world, Place::Edit { message_id: answer }, Some("say three")).await;
    let view = client.session_message("a", prompt).await.unwrap();
    assert_eq!(view.children.len(), 2);
    let view = client.session_message("a", again.final_message.unwrap()).await.unwrap();
    assert!(view.siblings.contains(&answer), "{view:?}");

    let path = async || {
        let messages = client.session_messages("a", &MessageListQuery::default()).await.unwrap();
        messages.items.iter().map(|message| message.id).collect::<Vec<_>>()
    };
    let on_edit = path().await;
    assert_eq!(on_edit.last(), edited.final_message.as_ref());
    let session = client.session_get("a").await.unwrap();
    let other = again.final_message.unwrap();
    let moved = client.session_navigate("a", Some(other), Some(session.version)).await.unwrap();
    assert_eq!((moved.tip_message, path().await), (Some(other), vec![prompt, other]));
    let back = client.session_navigate("a", Some(answer), None).await.unwrap();
    assert_eq!(
        (back.tip_message, path().await),
        (edited.final_message, on_edit),
        "the path continues to the message where it ended before"
    );
    let stale = client.session_navigate("a", None, Some(session.version)).await;
    assert_eq!(code(stale), "version_conflict");
    assert_eq!(client.session_navigate("a", None, None).await.unwrap().tip_message, None);
    assert_eq!(path().await, []);
    let last = MessageListQuery { limit: Some(1), ..MessageListQuery::default() };
    client.session_navigate("a", Some(other), None).await.unwrap();
    let end = client.session_messages("a", &last).await.unwrap();
    assert_eq!((end.items[0].id, end.next.as_deref()), (other, Some("1")));
    let above = MessageListQuery { before: Some(1), ..last };
    assert_eq!(
        client.session_messages("a", &above).await.unwrap().next,
        None,
        "the first message has depth 0"
    );
}

#[tokio::test]
async fn a_tree_is_read_by_page_with_parents_before_children() {
    let world = World::start().await;
    let client = &world.client;
    let first = world.play("a", "say one").await;
    branch(&world, Place::Regenerate { message_id: first.prompt.unwrap() }, None).await;
    let whole = client.session_tree("a", &TreeQuery::default()).await.unwrap();
    assert_eq!((whole.items.len(), &whole.next), (3, &None));
    let mut query = TreeQuery { limit: Some(2), after: None };
    let page = client.session_tree("a", &query).await.unwrap();
    query.after = Some(page.next.unwrap().parse().unwrap());
    let rest = client.session_tree("a", &query).await.unwrap();
    assert_eq!([page.items, rest.items].concat(), whole.items);
    for (at, node) in whole.items.iter().enumerate() {
        let known = |id| whole.items[..at].iter().any(|earlier| earlier.message.id == id);
        assert!(node.parent_id.is_none_or(known), "{node:?}");
    }
}

#[tokio::test]
async fn the_same_fork_is_made_once() {
    let world = World::start().await;
    let client = &world.client;
    let first = world.play("a", "say one").await;
    world.play("a", "say two").await;
    let message_id = first.final_message.unwrap();
    let fork = Fork { message_id, key: Some("b".into()), title: Some("Other".into()) };
    let made = client.session_fork("a", &fork, "f1").await.unwrap();
    assert_eq!((made.tip_message, made.title.as_deref()), (Some(message_id), Some("Other")));
    assert_eq!(client.session_fork("a", &fork, "f1").await.unwrap().id, made.id);
    assert_eq!(code(client.session_fork("a", &fork, "f2").await), "already_exists");
    let messages = client.session_messages("b", &MessageListQuery::default()).await.unwrap();
    assert_eq!(messages.items.len(), 2, "only the messages up to the fork");
}

#[tokio::test]
async fn messages_are_found_by_their_text() {
    let world = World::start().await;
    let run = world.play("a", "say a cup of oolong").await;
    let query = SearchQuery { q: "oolong".into(), ..SearchQuery::default() };
    // The index is written after the commit.
    let hits = loop {
        let hits = world.client.session_search(&query).await.unwrap().items;
        if hits.iter().any(|hit| hit.message_id == run.final_message) {
            break hits;
        }
    };
    assert!(hits.iter().all(|hit| hit.session_id == run.session && hit.snippet.contains("oolong")));
}
