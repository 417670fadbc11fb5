//! The relay of several hosts on one state directory.

use std::os::unix::net::UnixStream;

use mainspring_test_support::jsonl::RelayAgent;
use serde_json::json;

use super::Host;
use crate::guests::serve;

#[test]
fn the_first_host_keeps_the_relay_until_it_exits() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _) = serve(dir.path());
    let mut first = Host::start(dir.path());
    let mut second = Host::start(dir.path());
    let mut agent = RelayAgent::connect(&second.relay());
    agent.call("c", "tool", &json!({}));
    assert_eq!(first.receive()["type"], "tool_use");
    first.send(&json!({"type": "tool_result", "callId": "c", "result": "from the first"}));
    assert_eq!(agent.receive().1, "from the first");
    first.kill();
    // The remaining host takes the relay over.
    let relay = second.relay();
    let connected = std::iter::repeat_with(|| UnixStream::connect(&relay)).find_map(Result::ok).unwrap();
    let mut agent = RelayAgent::new(connected);
    agent.call("c", "tool", &json!({}));
    assert_eq!(second.receive()["type"], "tool_use");
    second.send(&json!({"type": "stop"}));
    second.wait_ended();
    let mut third = Host::start(dir.path());
    let mut agent = RelayAgent::connect(&third.relay());
    agent.call("c", "tool", &json!({}));
    assert_eq!(third.receive()["type"], "tool_use");
}
