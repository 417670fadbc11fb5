//! Adapters, their logins, and models.

use mainspring_client::NewKey;
use mainspring_core::ModelList;
use mainspring_kernel::adapter::{AttemptHandle, Capabilities, End, Executed};

use crate::world::{World, code};

async fn succeed(_: AttemptHandle) -> Executed {
    End::succeeded()
}

#[tokio::test]
async fn adapters_are_listed_with_their_capabilities_and_logins() {
    let with_login = Capabilities { supports_authentication: true, ..Capabilities::minimal("agent") };
    let world = World::with_agent(with_login.clone(), succeed).await;
    let client = &world.client;
    let listed = client.adapter_list().await.unwrap();
    assert!(listed.contains(&with_login) && listed.len() == 2, "{listed:?}");
    assert_eq!(client.login_list("script").await.unwrap(), []);
    assert_eq!(client.login_list("agent").await.unwrap()[0].id, "token");
    assert_eq!(code(client.login_list("nobody").await), "adapter_not_registered");
    client.login_create("agent", "token").await.unwrap();
    assert_eq!(code(client.login_create("agent", "guess").await), "login_failed");
    assert_eq!(code(client.login_create("script", "token").await), "adapter_incompatible");
    let member = NewKey { name: "ci".into(), owner_id: Some("ben".into()), ..NewKey::default() };
    let secret = client.key_create(&member, None).await.unwrap().secret.unwrap();
    let member = mainspring_client::Client::over_tcp(&world.listening.url(), &secret).unwrap();
    assert_eq!(code(member.login_create("agent", "token").await), "forbidden");
    assert_eq!(client.model_list().await.unwrap(), ModelList::default(), "this node has no models");
    assert_eq!(client.tool_list().await.unwrap().len(), 6);
}
