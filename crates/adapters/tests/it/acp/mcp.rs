//! MCP servers of native sessions.

use mainspring_adapters::McpServer;
use mainspring_core::{DelegationMode, RunChange};
use mainspring_kernel::kernel::{DelegationRequest, RunRequest};
use serde_json::{Value, json};

use super::*;

fn stdio() -> McpServer {
    McpServer::Stdio {
        command: "/bin/files".into(),
        args: vec!["--read".into()],
        env: [("LOG".to_owned(), "off".to_owned())].into(),
    }
}

fn http() -> McpServer {
    McpServer::Http {
        url: "http://127.0.0.1:1/mcp".into(),
        headers: [("X-Team".to_owned(), "blue".to_owned())].into(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_gets_its_servers_when_opened_and_when_resumed() {
    for features in ["resume,http", "load,http"] {
        let control = McpServer::Control { command: "/bin/mainspring".into(), args: vec!["mcp".into()] };
        let servers = [("files", stdio()), ("own", control), ("search", http())];
        let mut world = world_with(features, |setup| {
            let servers = servers.iter().map(|(name, server)| ((*name).to_owned(), Ok(server.clone())));
            setup.acp.mcp = servers.collect();
        })
        .await;
        for _ in 0..2 {
            let given: Value = serde_json::from_str(&world.answer_to("a", "servers").await).unwrap();
            let session = world.events("a").await[0].session.to_string();
            let [token, socket] = [0, 1].map(|no| &given[1]["env"][no]["value"]);
            assert!(socket.as_str().unwrap().ends_with("/relay.sock"), "{socket}");
            assert_eq!(token.as_str().map(str::len), Some(64), "a secret of its own");
            let expected = json!([
                {"name": "files", "command": "/bin/files", "args": ["--read"], "env": [{"name": "LOG", "value": "off"}]},
                {"name": "own", "command": "/bin/mainspring", "args": ["mcp", "--session", session],
                 "env": [{"name": "MAINSPRING_KEY", "value": token}, {"name": "OMI_BRIDGE_PIPE", "value": socket}]},
                {"type": "http", "name": "search", "url": "http://127.0.0.1:1/mcp",
                 "headers": [{"name": "X-Team", "value": "blue"}]},
            ]);
            assert_eq!(given, expected, "{features}");
            world.restart().await;
        }
        assert_eq!(world.bindings("a").await.len(), 1, "{features}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_given_fails_the_run() {
    for (server, code, message) in [
        (Ok(http()), "adapter_incompatible", "takes no MCP servers over HTTP"),
        (Err("no key".to_owned()), "mcp_unavailable", "the MCP server \\\"x\\\" cannot be used: no key"),
    ] {
        let world =
            world_with("resume", |setup| setup.acp.mcp = vec![("x".to_owned(), server.clone())]).await;
        let run = world.run("a", "hi").await;
        let json = serde_json::to_string(&run).unwrap();
        assert_eq!((failure_code(&run).as_str(), run.attempts), (code, 1), "{json}");
        assert!(json.contains(message), "{json}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_token_acts_for_its_owner_and_cannot_answer_approvals() {
    let control = McpServer::Control { command: "/bin/mainspring".into(), args: vec!["mcp".into()] };
    let world = world_with("resume", |setup| setup.acp.mcp = vec![("own".into(), Ok(control.clone()))]).await;
    let given: Value = serde_json::from_str(&world.answer_to("a", "servers").await).unwrap();
    let token = given[0]["env"][0]["value"].as_str().unwrap();
    // Between the attempts of its process, the token is refused.
    assert_eq!(world.kernel().caller_by_agent_token(token).unwrap_err().code(), "no_authority");
    let run = world.start("a", "ask rm x").await;
    let (wait, _) = world.wait_for_question(run).await;
    let agent = world.kernel().caller_by_agent_token(token).unwrap().unwrap();
    assert_eq!((agent.owner.as_str(), agent.agent.map(|agent| agent.run)), ("ada", Some(run)));
    assert_eq!(world.kernel().caller_by_agent_token(&token[1..]).unwrap(), None);
    let allow = Approval::Allowed.into();
    let refused = world.kernel().run_answer(&agent, run, wait, allow).await.unwrap_err();
    assert_eq!(refused.code(), "forbidden");
    // The token starts no run except by delegation, and no work of another session.
    let kernel = world.kernel();
    let started = kernel.run_create(&agent, RunRequest::text("b", "hi")).await.unwrap_err();
    assert_eq!(started.code(), "forbidden");
    let other = world.start("b", "hang").await;
    let work = || DelegationRequest::new(DelegationMode::Spawn, "hi");
    assert_eq!(kernel.run_delegate(&agent, other, work()).await.unwrap_err().code(), "forbidden");
    assert_eq!(kernel.run_retry(&agent, other, RunChange::default()).await.unwrap_err().code(), "forbidden");
    kernel.run_cancel(&agent, other).await.unwrap();
    assert_eq!(world.wait_for_end(other).await.state.status(), RunStatus::Cancelled);
    world.decide(run, wait, Approval::Denied).await;
    world.wait_for_end(run).await;
    world.close().await;
}
