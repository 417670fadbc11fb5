//! API keys: created with a secret, listed without it, revoked.

use mainspring_client::{Client, KeyListQuery, NewKey, SessionTarget, TicketRedemption};
use mainspring_core::AccessRole;

use crate::world::{World, code};

#[tokio::test]
async fn a_key_acts_for_its_owner_until_it_is_revoked() {
    let world = World::start().await;
    let client = &world.client;
    let new = |owner: &str| NewKey { name: owner.into(), owner_id: Some(owner.into()), ..NewKey::default() };
    let made = client.key_create(&new("ada"), Some("first")).await.unwrap();
    let again = client.key_create(&new("ada"), Some("first")).await.unwrap();
    assert_eq!(
        (again.key, again.secret),
        (made.key.clone(), None),
        "a repeated request creates no second key"
    );
    world.node.clock.advance(1);
    let other = client.key_create(&new("ben"), None).await.unwrap();
    let ada = Client::over_tcp(&world.listening.url(), made.secret.as_deref().unwrap()).unwrap();
    let session = ada.session_resolve(&SessionTarget::key("a"), None).await.unwrap().session;
    assert_eq!(session.owner, "ada");
    let as_ben = ada.clone().for_owner("ben");
    assert!(as_ben.session_get("a").await.unwrap_err().is_not_found(), "a key acts for no other owner");
    assert_eq!(code(ada.key_list(&KeyListQuery::default()).await), "forbidden");
    let query = KeyListQuery { limit: Some(1), before: None };
    let page = client.key_list(&query).await.unwrap();
    let rest = client.key_list(&KeyListQuery { before: page.next, ..query }).await.unwrap();
    assert_eq!([page.items, rest.items].concat(), [other.key, made.key.clone()]);
    client.key_revoke(made.key.id).await.unwrap();
    assert_eq!(code(ada.session_get("a").await), "authentication");
}

#[tokio::test]
async fn a_caller_reads_its_own_role_and_creates_tickets_for_browsers() {
    let world = World::start().await;
    let client = &world.client;
    let me = client.me().await.unwrap();
    assert_eq!((me.role, me.key_id), (AccessRole::Admin, None));
    let ticket = client.ticket_create().await.unwrap().ticket;
    // Only the page of the server redeems a ticket: this client sends no Origin.
    assert_eq!(code(client.ticket_redeem(&TicketRedemption { ticket }).await), "authentication");
    let new = NewKey { name: "ci".into(), owner_id: Some("ada".into()), ..NewKey::default() };
    let made = client.key_create(&new, None).await.unwrap();
    let ada = Client::over_tcp(&world.listening.url(), made.secret.as_deref().unwrap()).unwrap();
    let me = ada.me().await.unwrap();
    assert_eq!((me.owner_id.as_str(), me.role, me.key_id), ("ada", AccessRole::Member, Some(made.key.id)));
    assert_eq!(code(ada.ticket_create().await), "forbidden");
}
