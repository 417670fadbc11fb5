//! Serving others: TLS, addresses that other machines reach, and the example of docs/serving.md.

use super::*;
use crate::cli::{CommandOutput, command, command_output};
use mainspring_test_support::tls_file;

fn run(command: &mut Command) -> CommandOutput {
    command_output(command.output().unwrap())
}

#[test]
fn a_server_does_not_listen_beyond_this_machine_without_tls() {
    let dir = tempfile::tempdir().unwrap();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let refused = run(command(dir.path()).args(["serve", "--listen", address]));
        assert_ne!(refused.code, 0);
        for part in ["tls_required", address, "tls_cert", "insecure_http = true"] {
            assert!(refused.err.contains(part), "{part}: {}", refused.err);
        }
    }
    let cert = tls_file("one.cert.pem");
    let half = run(command(dir.path()).env("MAINSPRING_TLS_CERT", &cert).arg("serve"));
    assert!(half.err.contains("tls_unusable") && half.err.contains("tls_key"), "{}", half.err);
    let missing = run(command(dir.path())
        .env("MAINSPRING_TLS_CERT", &cert)
        .env("MAINSPRING_TLS_KEY", "/no/such/key.pem")
        .arg("serve"));
    assert!(missing.err.contains("/no/such/key.pem cannot be read"), "{}", missing.err);
}

/// The arguments of a command line, where single quotes keep words together.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let parts = line.split('\'').enumerate();
    let words = parts.flat_map(|(at, part)| match at % 2 {
        0 => part.split_whitespace().collect(),
        _ => vec![part],
    });
    words.skip(1)
}

/// Follows docs/serving.md: its configuration, with the certificate and the port of this test, and its commands.
#[test]
fn the_example_of_the_guide_works() {
    let guide = include_str!("../../../../../docs/serving.md");
    let block = |language: &str, mark: &str| {
        let blocks = guide.split("```").skip(1).step_by(2);
        let found =
            blocks.filter_map(|block| block.strip_prefix(language)).find(|block| block.contains(mark));
        found.unwrap_or_else(|| panic!("{mark}")).to_owned()
    };
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let config = block("toml\n", "tls_cert")
        .replace("/etc/mainspring/cert.pem", tls_file("one.cert.pem").to_str().unwrap())
        .replace("/etc/mainspring/key.pem", tls_file("one.key.pem").to_str().unwrap());
    assert!(config.contains("one.key.pem") && config.contains("[oidc]"));
    let file = dir.path().join("serving.toml");
    std::fs::write(&file, config).unwrap();
    let mut serving = mainspring(dir.path());
    serving.env("MAINSPRING_CONFIG", &file);
    let server = Server::start_command(serving, dir.clone(), &[]);
    let url = server.url.replace("127.0.0.1", "localhost");
    assert!(url.starts_with("https://"), "{url}");
    let at_server = |key: &str| {
        let mut command = command(dir.path());
        command.env("MAINSPRING_URL", &url).env("MAINSPRING_KEY", key);
        command.env("MAINSPRING_TLS_CA", tls_file("ca.pem"));
        command
    };
    let mut secret = String::new();
    for line in block("sh\n", "key create").lines().filter(|line| line.starts_with("mainspring ")) {
        let words: Vec<&str> = words(line).collect();
        let key = if secret.is_empty() { &server.token } else { &secret };
        let done = run(at_server(key).args(&words));
        assert_eq!(done.code, 0, "{line}: {}", done.err);
        if words.starts_with(&["key", "create"]) {
            secret = done.out.trim().to_owned();
        }
    }
    assert!(secret.starts_with("msk_"), "{secret}");
    let refused = run(at_server(&secret).args(["prompt", "--adapter", "native", "hi"]));
    assert!(refused.err.contains("not_allowed_by_key"), "{}", refused.err);
}
