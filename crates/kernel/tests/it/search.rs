//! Search: in titles and messages of the owner, but not in thoughts.

use mainspring_kernel::Options;
use mainspring_kernel::kernel::{Caller, RunRequest, SearchQuery, SearchResult, SessionPatch};

use crate::world::{World, by_key, every_store};

async fn search(world: &World, caller: &Caller, text: &str) -> SearchResult {
    let query = SearchQuery { text: text.into(), ..SearchQuery::default() };
    world.kernel.session_search(caller, &query).await.unwrap()
}

/// Formats the hits, a line each: `title` or the role of the message, the title of the session, and the snippet.
async fn lines(world: &World, text: &str) -> Vec<String> {
    let hits = search(world, &world.me, text).await.hits;
    let line = |hit: mainspring_api::SearchHit| {
        let of = hit.role.map_or("title".into(), |role| role.to_string());
        format!("{of} in {:?}: {}", hit.title.unwrap_or_default(), hit.snippet)
    };
    hits.into_iter().map(line).collect()
}

/// Waits until everything is indexed.
async fn index_all(world: &World) {
    while world.disk.store.search_index().await.unwrap() {}
}

#[tokio::test]
async fn words_are_found_in_titles_and_messages_newest_first() {
    for disk in every_store() {
        let options = Options { auto_title: false, ..Options::default() };
        let world = World::with(disk, options, vec![]).await;
        world.play("a", "say the Größe of a fox; think secret badger").await;
        world.play("a", r#"tool echo {"x": "hidden"}; say foxes again"#).await;
        world.play("b", "say nothing here").await;
        let title = SessionPatch { title: Some(Some("Fox hunting".into())), ..SessionPatch::default() };
        world.kernel.session_patch(&world.me, &by_key("b"), title).await.unwrap();
        for step in ["not indexed", "indexed"] {
            let expected = [
                r#"title in "Fox hunting": Fox hunting"#,
                r#"assistant in "": foxes again"#,
                r#"user in "": tool echo {"x": "hidden"}; say foxes again"#,
                r#"assistant in "": the Größe of a fox"#,
                r#"user in "": say the Größe of a fox; think secret badger"#,
            ];
            assert_eq!(lines(&world, "FOX").await, expected, "{}: {step}", world.disk.name);
            assert_eq!(lines(&world, "grö FOX").await, expected[3..], "every word, accents or not");
            assert_eq!(lines(&world, "grosse").await, expected[..0], "ß is no ss");
            assert_eq!(lines(&world, "oxes").await, expected[..0], "not the middle of a word");
            // A thought is not stored. Only the script in the prompt contains the word.
            assert_eq!(lines(&world, "badger").await, expected[4..], "{}: {step}", world.disk.name);
            index_all(&world).await;
        }
    }
}

#[tokio::test]
async fn search_covers_only_existing_sessions_of_the_owner() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let eve = Caller::new("eve");
        world.play("a", "say treasure").await;
        let theirs = world.kernel.run_create(&eve, RunRequest::text("a", "say treasure too")).await.unwrap();
        world.kernel.drain().await;
        for _ in 0..2 {
            let mine = search(&world, &world.me, "treasure").await.hits;
            assert!(mine.iter().all(|hit| hit.session_id != theirs.session.id) && mine.len() == 3);
            assert!(
                search(&world, &eve, "treasure")
                    .await
                    .hits
                    .iter()
                    .all(|hit| hit.session_id == theirs.session.id)
            );
            index_all(&world).await;
        }
        world.kernel.session_delete(&world.me, &by_key("a")).await.unwrap();
        assert_eq!(
            search(&world, &world.me, "treasure").await,
            SearchResult::default(),
            "{}",
            world.disk.name
        );
        // A session that reuses the row of a deleted one is found.
        world.play("b", "say treasure again").await;
        assert_eq!(search(&world, &world.me, "treasure").await.hits.len(), 3);
    }
}

#[tokio::test]
async fn any_text_is_a_query() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say fish and chips OR \"salt\" NEAR(vinegar)").await;
        index_all(&world).await;
        for text in [
            "fish AND chips",
            "\"salt",
            "NEAR(",
            "chips*",
            "salt\" OR \"x",
            "col:fish -chips",
            "fish^2 {",
            "'; DROP TABLE",
            "ＦＩＳＨ",
        ] {
            let query = SearchQuery { text: text.into(), ..SearchQuery::default() };
            world.kernel.session_search(&world.me, &query).await.unwrap();
        }
        assert_eq!(lines(&world, "fish AND chips").await.len(), 3, "AND is a word that is there");
        assert_eq!(lines(&world, "ＦＩＳＨ").await.len(), 3, "wide letters are letters");
        for nothing in ["", " ", "\"\"", "*", "—"] {
            let query = SearchQuery { text: nothing.into(), ..SearchQuery::default() };
            let error = world.kernel.session_search(&world.me, &query).await.unwrap_err();
            assert_eq!(error.code(), "invalid_request", "{nothing:?}");
        }
    }
}

#[tokio::test]
async fn search_results_are_paged() {
    for disk in every_store() {
        let world = World::on(disk).await;
        for n in 0..7 {
            world.play("a", &format!("say word {n}")).await;
            if n == 3 {
                index_all(&world).await;
            }
        }
        let mut seen = vec![];
        let mut before = None;
        loop {
            let query = SearchQuery { text: "word".into(), before, limit: Some(3), ..SearchQuery::default() };
            let page = world.kernel.session_search(&world.me, &query).await.unwrap();
            seen.extend(page.hits.into_iter().filter_map(|hit| hit.message_id));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        let mut expected: Vec<_> = world.path("a").await.iter().map(|message| message.id).collect();
        expected.reverse();
        assert_eq!(seen, expected, "{}", world.disk.name);
    }
}
