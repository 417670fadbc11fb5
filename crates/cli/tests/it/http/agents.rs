//! Agent definitions over HTTP and on the command line, and runs that use them.

use super::*;
use crate::cli::{command_output, json_lines, run};

/// Sends a request as `owner`.
async fn ask(server: &Server, owner: &str, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let request = server.request(method, path).header("mainspring-owner", owner);
    let request = if body.is_null() { request } else { request.json(body) };
    let (status, body) = send_request(request).await;
    (status.as_u16(), body)
}

#[tokio::test]
async fn an_owners_agent_is_used_only_by_that_owners_runs() {
    let server = Server::start_with(&[("MAINSPRING_ADAPTER", "native")]);
    let agents = server.dir.path().join("state/agents");
    std::fs::create_dir_all(&agents).unwrap();
    std::fs::write(agents.join("everybody.toml"), "id = \"everybody\"\nmodel = \"scripted/any\"\n").unwrap();
    let poet = json!({
        "id": "poet", "version": 2, "description": "Rhymes.", "model": "scripted/any",
        "deny": ["ask_person"], "limits": {"maxSteps": 3},
    });
    let (status, made) = ask(&server, "ada", Method::POST, "/v1/agents", &poet).await;
    assert_eq!((status, &made["scope"], &made["id"]), (201, &json!("owner"), &json!("poet")), "{made}");
    let formed = json!({"id": "formed", "outputSchema": {"b": 1, "a": {"d": 1, "c": 2}}, "description": "x"});
    let turned = json!({"description": "x", "outputSchema": {"a": {"c": 2, "d": 1}, "b": 1}, "id": "formed"});
    for (definition, wanted) in [(&formed, 201), (&turned, 200)] {
        let (status, made) = ask(&server, "ada", Method::POST, "/v1/agents", definition).await;
        assert_eq!(status, wanted, "unexpected status: {made}");
    }
    assert_eq!(ask(&server, "ada", Method::DELETE, "/v1/agents/formed@1", &Value::Null).await.0, 204);
    let mut other = poet.clone();
    other["description"] = json!("Sings.");
    let (status, problem) = ask(&server, "ada", Method::POST, "/v1/agents", &other).await;
    assert_eq!((status, &problem["code"]), (409, &json!("agent_taken")));
    for (wrong, says) in [
        (json!({"id": "x", "system": "{{ x"}), "system:"),
        (json!({"id": "x", "outputSchema": {"type": "nonsense"}}), "output_schema:"),
        (json!({"id": "x", "colour": 1}), "colour"),
        (json!({"id": "mainspring.x"}), "mainspring."),
        (json!({"id": "x", "version": 0}), "999999999"),
    ] {
        let (status, problem) = ask(&server, "ada", Method::POST, "/v1/agents", &wrong).await;
        assert_eq!(status, 400, "{wrong}");
        assert!(problem["detail"].as_str().unwrap().contains(says), "{problem}");
    }
    let listed = async |owner: &str| {
        let (_, page) = ask(&server, owner, Method::GET, "/v1/agents", &Value::Null).await;
        let name = |agent: &Value| {
            format!("{}@{} {}", agent["id"], agent["version"], agent["scope"]).replace('"', "")
        };
        page["items"].as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    let everybodys = ["everybody@1 shared", "mainspring.generalist@1 shared"];
    assert_eq!(listed("ada").await, [&everybodys[..], &["poet@2 owner"]].concat());
    assert_eq!(listed("bob").await, everybodys);
    assert_eq!(ask(&server, "bob", Method::GET, "/v1/agents/poet", &Value::Null).await.0, 404);

    let ran = async |owner: &str, agent: &str, key: &str| {
        let body = json!({
            "prompt": "ask Who?; say done", "session": {"key": key, "agentDefinition": agent},
        });
        let request = server.request(Method::POST, "/v1/runs").header("mainspring-owner", owner);
        let (_, run) = send_request(request.header("prefer", "wait=30").json(&body)).await;
        format!("{} {}", run["status"], run["error"]["code"]).replace('"', "")
    };
    // Ada's agent may not ask a person, so its model gets an error and continues. The shared agent waits. Bob has no
    // `poet`.
    assert_eq!(ran("ada", "poet", "a").await, "succeeded null");
    assert_eq!(ran("ada", "everybody@1", "b").await, "waiting_input null");
    assert_eq!(ran("bob", "poet", "a").await, "failed agent_not_found");
    assert_eq!(ask(&server, "ada", Method::DELETE, "/v1/agents/everybody@1", &Value::Null).await.0, 403);
    assert_eq!(ask(&server, "ada", Method::DELETE, "/v1/agents/poet@2", &Value::Null).await.0, 204);
    assert_eq!(ran("ada", "poet@2", "c").await, "failed agent_not_found");
    assert_eq!(ask(&server, "ada", Method::POST, "/v1/agents", &other).await.0, 409, "not even now");
    assert_eq!(ask(&server, "ada", Method::POST, "/v1/agents", &poet).await.0, 201);
}

#[test]
fn the_command_line_creates_shows_checks_and_deletes_agents() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("coder.toml");
    let text = "id = \"coder\"\nversion = 2\ndescription = \"Writes code.\"\nmodel = \"scripted/any\"\n\
                system = \"\"\"You work for {{ session.owner }}.\"\"\"\napprove = [\"fs__*\"]\n\n[limits]\nmax_steps = 5\n";
    std::fs::write(&file, text).unwrap();
    let broken = dir.path().join("broken.toml");
    std::fs::write(&broken, "id = \"b\"\nsystem = \"{{ x\"\n").unwrap();
    let path = file.to_str().unwrap();
    let checked = run(dir.path(), &["agent", "check", path, broken.to_str().unwrap()]);
    assert_eq!(checked.code, 2, "{}", checked.out);
    assert!(checked.out.contains("coder.toml: coder@2") && checked.out.contains("broken.toml: system:"));
    let refused = run(dir.path(), &["agent", "create", path, broken.to_str().unwrap()]);
    assert_eq!(refused.code, 2, "all agents are created, or none: {}", refused.err);
    assert_eq!(run(dir.path(), &["agent", "create", path]).out, "coder@2\n");
    assert_eq!(run(dir.path(), &["agent", "create", path]).code, 0, "the same again");
    let shown = run(dir.path(), &["agent", "show", "coder"]);
    std::fs::write(&file, &shown.out).unwrap();
    assert_eq!(
        run(dir.path(), &["agent", "create", path]).code,
        0,
        "what is shown is the same: {}",
        shown.out
    );
    std::fs::write(&file, text.replace("Writes", "Reads")).unwrap();
    let taken = run(dir.path(), &["agent", "create", path]);
    assert_eq!(taken.code, 4, "{}", taken.err);
    assert!(taken.err.contains("error[agent_taken]") && taken.err.contains("next version"), "{}", taken.err);
    let names: Vec<Value> = json_lines(&run(dir.path(), &["agent", "list", "--json"]))
        .iter()
        .map(|one| one["id"].clone())
        .collect();
    assert_eq!(names, ["coder", "mainspring.generalist"]);
    let mut chat = crate::cli::command(dir.path());
    chat.args(["chat", "--agent", "coder", "-s", "c"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut chat = chat.stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut chat.stdin.take().unwrap(), b"say by the coder\n").unwrap();
    assert_eq!(command_output(chat.wait_with_output().unwrap()).out, "by the coder\n");
    assert_eq!(run(dir.path(), &["agent", "delete", "coder@2"]).code, 0);
    assert_eq!(run(dir.path(), &["agent", "show", "coder"]).code, 3);
}
