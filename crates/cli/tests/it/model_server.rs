//! Scripted models: `mainspring model-server`, and the provider `scripted`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::cli::{command, json_lines, run, said};

/// A model server process, killed on drop.
struct Served {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Served {
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
    fn until(&mut self, last: &str) -> String {
        let mut text = String::new();
        while !text.contains(last) {
            assert!(self.out.read_line(&mut text).unwrap() > 0, "it ended: {text}");
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

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_it_prints_is_a_configuration_that_works_in_every_protocol() {
    let dir = tempfile::tempdir().unwrap();
    let mut served = Served::start(dir.path(), &[]);
    let text = served.until("Without this server");
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
        let said = run(dir.path(), &["prompt", "--adapter", "native", "say hello; tool nobody; say well"]);
        assert_eq!((said.code, said.out.as_str()), (0, "hello\nwell\n"), "{kind}: {}", said.err);
    }
    assert_eq!(served.stop(), Some(0));
}

#[test]
fn as_json_it_says_where_it_is_and_a_taken_address_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut served = Served::start(dir.path(), &["--json"]);
    let told: Value = serde_json::from_str(&served.until("\n")).unwrap();
    let url = told["url"].as_str().unwrap().to_owned();
    assert_eq!(told["baseUrls"]["gemini"], format!("{url}/v1beta/"));
    let address = url.strip_prefix("http://").unwrap();
    let second = said(command(dir.path()).args(["model-server", "--listen", address]).output().unwrap());
    assert_eq!(second.code, 5);
    assert!(second.err.contains("error[cannot_listen]") && second.err.contains(address), "{}", second.err);
}

#[test]
fn the_provider_scripted_needs_no_server_and_no_configuration() {
    let dir = tempfile::tempdir().unwrap();
    // A broken proxy setting must not affect requests of the process to itself.
    let native = |arguments: &[&str]| {
        let mut command = command(dir.path());
        command.env("HTTP_PROXY", "http://127.0.0.1:9").env("MAINSPRING_ADAPTER", "native");
        said(command.args(arguments).output().unwrap())
    };
    let model = ["--model", "scripted/any", "-s", "s"];
    let said = native(&[&["prompt"], &model[..], &["vary one | two"]].concat());
    assert_eq!((said.code, said.out.as_str()), (0, "one\n"), "{}", said.err);
    let steps = native(&["run", "list", "--json"]);
    assert_eq!(json_lines(&steps)[0]["adapter"], "native");
    std::fs::write(
        dir.path().join("mainspring.toml"),
        "[models.main_reasoner]\nprovider = \"scripted\"\nmodel = \"any\"\n",
    )
    .unwrap();
    let said = native(&["prompt", "-s", "s", "think hm; say by profile"]);
    assert_eq!((said.code, said.out.as_str()), (0, "by profile\n"), "{}", said.err);
}
