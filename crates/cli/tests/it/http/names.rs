//! The names that a server answers to.

use super::*;

#[tokio::test]
async fn a_server_accepts_its_configured_host_names() {
    let server = Server::start_with(&[("MAINSPRING_ALLOWED_HOSTS", "agents.example.com")]);
    let with = |host: &str, origin: &str| {
        send_request(
            server.request(Method::GET, "/v1/sessions").header("host", host).header("origin", origin),
        )
    };
    assert_eq!(with("agents.example.com", "https://agents.example.com").await.0, StatusCode::OK);
    assert_eq!(with("evil.example", "https://evil.example").await.1["code"], "forbidden_host");
    assert_eq!(with("agents.example.com", "https://evil.example").await.1["code"], "forbidden_origin");
}

#[test]
fn a_server_reachable_by_other_machines_prints_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = mainspring(dir.path())
        .args(["serve", "--listen", "0.0.0.0:0"])
        .env("MAINSPRING_INSECURE_HTTP", "true")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let warned = stderr.take_while(|line| !line.contains("token:")).any(|line| line.contains("without TLS"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(warned);
}
