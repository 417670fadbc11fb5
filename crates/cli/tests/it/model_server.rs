//! Scripted models: `mainspring model-server`, and the provider `scripted`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::cli::{command, command_output, json_lines, run};

/// A model server process, killed on drop.
struct Server {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Server {
    fn start(dir: &Path, arguments: &[&str]) -> Self {
        let mut child = command(dir)
            .args(["model-server", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// Reads output until a line contains `last`.
    fn read_until(&mut self, last: &str) -> String {
        let mut text = String::new();
        while !text.contains(last) {
            assert!(self.out.read_line(&mut text).unwrap() > 0, "the server has exited: {text}");
        }
        text
    }

    /// Sends SIGINT and returns the exit code.
    fn stop(&mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_printed_configuration_works_in_every_protocol() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &[]);
    let text = server.read_until("Without this server");
    let kinds: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.trim().split_once("  ").map(|(kind, url)| (kind, url.trim())))
        .filter(|(_, url)| url.starts_with("http"))
        .collect();
    assert_eq!(kinds.len(), 4, "{text}");
    let config = text.split_once("  [providers").unwrap().1.split_once("then:").unwrap().0;
    let config = format!("[providers{config}");
    let (first, url) = kinds[0];
    assert!(config.contains(first) && config.contains(url), "{config}");
    for (kind, base_url) in &kinds {
        let config = config.replace(first, kind).replace(url, base_url);
        std::fs::write(dir.path().join("mainspring.toml"), &config).unwrap();
        let output = run(dir.path(), &["prompt", "--adapter", "native", "say hello; tool nobody; say well"]);
        assert_eq!((output.code, output.out.as_str()), (0, "hello\nwell\n"), "{kind}: {}", output.err);
    }
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn json_output_contains_the_urls_and_a_used_address_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &["--json"]);
    let printed: Value = serde_json::from_str(&server.read_until("\n")).unwrap();
    let url = printed["url"].as_str().unwrap().to_owned();
    assert_eq!(printed["baseUrls"]["gemini"], format!("{url}/v1beta/"));
    let address = url.strip_prefix("http://").unwrap();
    let second =
        command_output(command(dir.path()).args(["model-server", "--listen", address]).output().unwrap());
    assert_eq!(second.code, 5);
    assert!(second.err.contains("error[cannot_listen]") && second.err.contains(address), "{}", second.err);
}

#[test]
fn the_scripted_provider_needs_no_server_and_no_configuration() {
    let dir = tempfile::tempdir().unwrap();
    // A broken proxy setting must not affect requests of the process to itself.
    let native = |arguments: &[&str]| {
        let mut command = command(dir.path());
        command.env("HTTP_PROXY", "http://127.0.0.1:9").env("MAINSPRING_ADAPTER", "native");
        command_output(command.args(arguments).output().unwrap())
    };
    let model = ["--model", "scripted/any", "-s", "s"];
    let output = native(&[&["prompt"], &model[..], &["vary one | two"]].concat());
    assert_eq!((output.code, output.out.as_str()), (0, "one\n"), "{}", output.err);
    let steps = native(&["run", "list", "--json"]);
    assert_eq!(json_lines(&steps)[0]["adapter"], "native");
    std::fs::write(
        dir.path().join("mainspring.toml"),
        "[models.main_reasoner]\nprovider = \"scripted\"\nmodel = \"any\"\n",
    )
    .unwrap();
    let output = native(&["prompt", "-s", "s", "think hm; say by profile"]);
    assert_eq!((output.code, output.out.as_str()), (0, "by profile\n"), "{}", output.err);
}
