//! Bindings: native sessions adopted, listed and invalidated.

use mainspring_client::{BindingAdoption, BindingListQuery, SessionTarget};
use mainspring_core::{BindingStatus, RunStatus};
use mainspring_test_support::{TestNode, native_agent};

use crate::world::{World, code};

async fn world() -> World {
    World::with(TestNode::builder().adapter(native_agent())).await
}

fn adoption(native: &str) -> BindingAdoption {
    BindingAdoption {
        adapter: "agent".into(),
        adapter_native_session_id: native.into(),
        ..BindingAdoption::default()
    }
}

async fn answer(world: &World, key: &str) -> String {
    let run = world.prompt_agent(key, "go").await.run;
    assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded);
    world.client.session_snapshot(key).await.unwrap().messages.last().unwrap().text()
}

#[tokio::test]
async fn an_adopted_native_session_is_resumed_until_it_is_invalidated() {
    let world = world().await;
    let client = &world.client;
    client.session_resolve(&SessionTarget::key("a"), None).await.unwrap();
    let bound = client.binding_adopt("a", &adoption("native-old")).await.unwrap();
    assert_eq!((bound.generation, bound.native.as_deref()), (1, Some("native-old")));
    assert_eq!(answer(&world, "a").await, "native-old");
    let gone = client.binding_invalidate("a", "agent").await.unwrap();
    assert_eq!((gone.id, gone.status == BindingStatus::Active), (bound.id, false));
    assert_eq!(answer(&world, "a").await, "native-new");
    let generations = |bindings: &[mainspring_core::Binding]| {
        bindings.iter().map(|binding| binding.generation).collect::<Vec<_>>()
    };
    assert_eq!(generations(&client.binding_list("a").await.unwrap()), [2, 1]);
    let first = BindingListQuery { limit: Some(1), after: None };
    let page = client.binding_page("a", &first).await.unwrap();
    let rest = client.binding_page("a", &BindingListQuery { after: page.next, ..first }).await.unwrap();
    assert_eq!((generations(&page.items), generations(&rest.items)), (vec![2], vec![1]));
    let scripted = BindingAdoption { adapter: "script".into(), ..adoption("x") };
    assert_eq!(code(client.binding_adopt("a", &scripted).await), "adapter_incompatible");
}

#[tokio::test]
async fn a_session_is_adopted_with_its_native_session_once() {
    let world = world().await;
    let client = &world.client;
    let target = SessionTarget::key("task");
    let first = client.session_adopt(&target, &adoption("native-old")).await.unwrap();
    assert!(first.adopted);
    let again = client.session_adopt(&target, &adoption("native-other")).await.unwrap();
    assert_eq!((again.adopted, again.session.id, &again.binding), (false, first.session.id, &first.binding));
    assert_eq!(answer(&world, "task").await, "native-old");
}
