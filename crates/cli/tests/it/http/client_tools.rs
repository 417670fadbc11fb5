//! Client tools, over real sockets and across a real `kill -9`.

use serde_json::json;

use super::*;

const SCRIPT: &str = r#"tool rain {"at":1} | add {"a":1,"b":2} | wind {"at":2}; say done"#;

fn tools() -> Value {
    json!([{"name": "rain", "description": "Whether it rains.", "inputSchema": {"type": "object"}},
           {"name": "wind", "inputSchema": {"type": "object"}}])
}

#[tokio::test]
async fn client_tool_calls_are_streamed_and_results_resume_the_run_after_a_kill() {
    let server = Server::start();
    let body = json!({"prompt": SCRIPT, "session": {"key": "a"}, "options": {"tools": tools()}});
    let (status, run) = server.post("/v1/runs", body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{run}");
    let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
    let mut frames = open_stream(&server, &format!("{path}/events")).await;
    let asked = loop {
        let frame = frames.next().await.unwrap();
        if frame.event == "tools.requested" {
            break frame.data;
        }
    };
    let calls = asked["payload"]["calls"].as_array().unwrap();
    let named: Vec<_> = calls.iter().map(|call| (&call["name"], &call["input"])).collect();
    assert_eq!(named, [(&json!("rain"), &json!({"at": 1})), (&json!("wind"), &json!({"at": 2}))]);
    let result = |at: usize, content: &str| json!({"toolUseId": calls[at]["toolUseId"], "content": content});
    let wait = asked["payload"]["waitId"].clone();
    let answer = |results: Value| json!({"waitId": wait, "answer": {"kind": "tools", "results": results}});
    let (status, some) = server.post(&format!("{path}/answer"), answer(json!([result(1, "west")]))).await;
    assert_eq!((status, &some["status"]), (StatusCode::OK, &json!("waiting_input")), "{some}");
    assert_eq!(some["wait"]["calls"][1]["answered"], true, "{some}");
    assert!(some["wait"]["calls"][0].get("answered").is_none(), "{some}");

    let dir = server.dir.clone();
    drop(server);
    let server = Server::start_in(dir, &[]);
    let (_, run) = server.get(&path).await;
    assert_eq!(run["wait"]["request"], "tools", "{run}");
    let post = async |results| server.post(&format!("{path}/answer"), answer(results)).await;
    let (status, problem) = post(json!([result(1, "east")])).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("tool_result_conflict")));
    let (status, problem) = post(json!([{"toolUseId": "nobody", "content": 1}])).await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("unknown_tool_use")));
    assert!(
        problem["detail"].as_str().unwrap().contains(calls[0]["toolUseId"].as_str().unwrap()),
        "{problem}"
    );
    let (status, _) = post(json!([result(0, "none"), result(1, "west")])).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(server.wait_ended(&run).await["status"], "succeeded");
    let (status, again) = post(json!([result(0, "none")])).await;
    assert_eq!((status, &again["status"]), (StatusCode::OK, &json!("succeeded")), "{again}");
    let (_, messages) = server.get("/v1/sessions/a/messages").await;
    let results = messages["items"][2]["content"].as_array().unwrap();
    let texts: Vec<_> = results.iter().map(|block| &block["content"][0]["text"]).collect();
    assert_eq!(texts, ["none", "3", "west"]);
}

#[test]
fn the_command_line_declares_client_tools_and_returns_their_results() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tools.json"), tools().to_string()).unwrap();
    let run = |arguments: &[&str]| crate::cli::run(dir.path(), arguments);
    let output = run(&["prompt", "-s", "a", "--tool", "tools.json", SCRIPT]);
    assert_eq!(output.code, 7, "it waits: {}", output.err);
    assert!(output.err.contains(r#"calls rain {"at":1}"#), "{}", output.err);
    let line = output.err.lines().find(|line| line.contains("answer with: ")).unwrap();
    let words: Vec<&str> = line.split_whitespace().skip_while(|word| *word != "run").collect();
    let (id, rain, wind) = (words[2], words[4].trim_matches('\''), words[6].trim_matches('\''));
    let (rain, wind) = (rain.replace("TEXT", "none"), wind.replace("TEXT", "no mast"));
    let some = run(&["run", "answer", id, "--tool-error", &wind]);
    assert_eq!(some.code, 7, "{}", some.err);
    assert!(some.err.contains("calls rain") && !some.err.contains("calls wind"), "{}", some.err);
    let shown = run(&["run", "show", id]);
    assert!(shown.out.contains("(tools)") && shown.out.contains(", answered"), "{}", shown.out);
    let wrong = run(&["run", "answer", id, "some text"]);
    assert!(wrong.code == 4 && wrong.err.contains("asks for tools, not input"), "{}", wrong.err);
    let rest = run(&["run", "answer", id, "--tool-result", &rain]);
    assert_eq!((rest.code, rest.out.as_str()), (0, "done\n"), "{}", rest.err);
    let missing = run(&["prompt", "--tool", "nowhere.json", "hi"]);
    assert_eq!(missing.code, 2);
    std::fs::write(dir.path().join("bad.json"), "{}").unwrap();
    assert!(run(&["prompt", "--tool", "bad.json", "hi"]).err.contains("bad.json: expected a tool"));
}
