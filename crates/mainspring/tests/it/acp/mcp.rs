//! MCP servers that agents are given.

use mainspring_agent::tool::mcp::McpConfig;

use super::*;

/// A node whose agent is given these MCP servers.
async fn with_servers(features: &str, servers: &[(&str, McpConfig)]) -> World {
    let mut world = world_with(features, |adapter| adapter.mcp = Some(vec!["*".into()])).await;
    let servers = servers.iter().map(|(name, config)| ((*name).to_owned(), config.clone()));
    world.config.models.mcp = servers.collect();
    world.reopen().await;
    world
}

fn program() -> McpConfig {
    McpConfig {
        command: Some("sh".into()),
        args: vec!["-c".into(), "true".into()],
        env: [("LOG".to_owned(), "off".to_owned())].into(),
        pass_env: vec!["PATH".into(), "NO_SUCH_VARIABLE".into()],
        ..McpConfig::default()
    }
}

/// `PATH` stands for a secret: it is one variable that there is.
fn server() -> McpConfig {
    McpConfig {
        url: Some("http://127.0.0.1:1/mcp".into()),
        headers: [("X-Team".to_owned(), "blue".to_owned())].into(),
        headers_env: [("X-Secret".to_owned(), "PATH".to_owned())].into(),
        ..McpConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_session_gets_them_when_it_is_opened_and_when_it_is_taken_up() {
    for features in ["resume,http", "load,http"] {
        let mut world = with_servers(features, &[("files", program()), ("search", server())]).await;
        for _ in 0..2 {
            let told: serde_json::Value = serde_json::from_str(&world.say("a", "servers").await).unwrap();
            let path = std::env::var("PATH").unwrap();
            assert!(told[0]["command"].as_str().unwrap().ends_with("/sh"), "an absolute path: {told}");
            assert_eq!(
                (&told[0]["name"], &told[0]["args"]),
                (&"files".into(), &serde_json::json!(["-c", "true"]))
            );
            let env = serde_json::json!([{"name": "LOG", "value": "off"}, {"name": "PATH", "value": path}]);
            assert_eq!(told[0]["env"], env);
            let headers =
                serde_json::json!([{"name": "X-Secret", "value": path}, {"name": "X-Team", "value": "blue"}]);
            assert_eq!(
                told[1],
                serde_json::json!({"type": "http", "name": "search", "url": "http://127.0.0.1:1/mcp", "headers": headers})
            );
            // Another process is told as well.
            world.reopen().await;
        }
        assert_eq!(world.bindings("a").await.len(), 1, "{features}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_cannot_be_given_is_refused_and_says_why() {
    let missing = McpConfig { key_env: Some("NO_SUCH_VARIABLE".into()), ..server() };
    let nowhere = McpConfig { command: Some("no-such-program".into()), ..program() };
    for (features, config, code, says) in [
        ("resume", server(), "adapter_incompatible", "takes no MCP servers over HTTP"),
        ("resume,http", missing, "mcp_unavailable", "set the environment variable NO_SUCH_VARIABLE"),
        ("resume", nowhere, "mcp_unavailable", "there is no program"),
    ] {
        let world = with_servers(features, &[("x", config)]).await;
        let run = world.play("a", "hi").await;
        let json = serde_json::to_string(&run).unwrap();
        assert_eq!((failure(&run).as_str(), run.attempts), (code, 1), "{json}");
        assert!(json.contains(says), "{json}");
        world.close().await;
    }
}
