//! The ways to a server: an address, a socket, a state directory of any length.

use mainspring_client::{Client, Socket, TOKEN_FILE};
use mainspring_test_support::{TOKEN, TestNode};

use crate::world::code;

#[tokio::test]
async fn a_state_directory_of_any_length_is_reached_through_its_socket_and_token() {
    let node = TestNode::start().await;
    let deep = node.dir().join("a".repeat(100)).join("b".repeat(100));
    for state_dir in [node.dir(), &deep] {
        std::fs::create_dir_all(state_dir).unwrap();
        assert_eq!(code(Client::from_state_dir(state_dir)), "invalid_request", "there is no token yet");
        std::fs::write(state_dir.join(TOKEN_FILE), format!("{TOKEN}\n")).unwrap();
        let client = Client::from_state_dir(state_dir).unwrap();
        let gone = client.health().await.unwrap_err();
        assert!(gone.is_gone() && gone.to_string().contains("mainspring.sock"), "{gone}");
        let socket = Socket::in_state_dir(state_dir);
        assert_eq!(socket.path(), state_dir.join("mainspring.sock"));
        let _listening = node.listen_unix(socket.address());
        assert_eq!(client.session_list(&Default::default()).await.unwrap().items, []);
        assert_eq!(
            Client::over_socket(socket.address(), TOKEN).unwrap().health().await.unwrap().status,
            "ok"
        );
    }
}

#[tokio::test]
async fn an_address_or_an_owner_that_cannot_be_used_is_refused_before_it_is_sent() {
    for address in ["not an address", "ftp://localhost", "localhost:1", "http://"] {
        assert_eq!(code(Client::over_tcp(address, TOKEN)), "invalid_request", "{address}");
    }
    // Nobody listens at this address, so a request that was sent would fail in another way.
    let client = Client::over_tcp("http://127.0.0.1:1", TOKEN).unwrap();
    for owner in ["", " ada", "ada ", "a\nb"] {
        let refused = client.clone().for_owner(owner).health().await;
        assert_eq!(code(refused), "invalid_request", "{owner:?}");
    }
    assert_eq!(code(client.for_owner("ada").health().await), "unreachable");
}
