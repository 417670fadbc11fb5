//! A database of the original in the state directory is reported, and imported only by the command.

use super::*;

/// Puts the files of a killed original into the state directory of `dir`.
fn place_original(dir: &Path) -> PathBuf {
    let from = sample_original(&dir.join("report.md")).copy_after_kill(dir);
    let state = dir.join("state");
    fs::rename(from, &state).unwrap();
    state
}

/// The command between backticks in the line about the original.
fn offered_command(text: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.contains("of the original daemon")).unwrap_or(text);
    let command = line.split('`').nth(1).unwrap_or_else(|| panic!("no command: {text}"));
    command.split_whitespace().skip(1).map(str::to_owned).collect()
}

#[test]
fn the_named_command_imports_the_original_that_lies_in_the_state_directory() {
    let dir = tempfile::tempdir().unwrap();
    let state = place_original(dir.path());
    let doctor = run(dir.path(), &["doctor"]);
    assert!(doctor.out.contains("original daemon"), "{}", doctor.out);
    assert!(!state.join("mainspring.sqlite3").exists(), "nothing was changed");
    // A host that starts in the original's place gets the offer too, outside of the protocol.
    let host = command(dir.path()).arg("stdio").stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8(host.stderr).unwrap();
    let lines = String::from_utf8(host.stdout).unwrap();
    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{lines}");
    assert_eq!(offered_command(&told), offered_command(&doctor.out));
    let listed = run(dir.path(), &["session", "list", "--owner", OWNER, "--json"]);
    assert_eq!(listed.out, "", "nothing was imported");

    let offered = offered_command(&doctor.out);
    let arguments: Vec<&str> = offered.iter().map(String::as_str).chain(ALIASES).collect();
    let imported = run(dir.path(), &arguments);
    assert_eq!(imported.code, 0, "{}", imported.err);
    let listed = run(dir.path(), &["session", "list", "--owner", OWNER, "--json"]);
    assert_eq!(json_lines(&listed).len(), 4);
    assert!(!listed.err.contains("original daemon"), "it was imported: {}", listed.err);
    assert!(!run(dir.path(), &["doctor"]).out.contains("original daemon"));
}

#[test]
fn a_used_state_directory_offers_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let state = place_original(dir.path());
    let first = run(dir.path(), &["prompt", "say hi"]);
    assert!(first.err.contains("stop this process before the first prompt"), "{}", first.err);
    assert_eq!(first.out, "hi\n");
    let second = run(dir.path(), &["prompt", "say hi"]);
    assert!(!second.err.contains("original daemon"), "told once: {}", second.err);
    let told = run(dir.path(), &["doctor"]).out;
    let offered = offered_command(&told);
    let target = format!("{}-imported", state.display());
    assert_eq!(offered.last(), Some(&target));
    let arguments: Vec<&str> = offered.iter().map(String::as_str).chain(ALIASES).collect();
    assert_eq!(run(dir.path(), &arguments).code, 0);
    let listed = run(dir.path(), &["session", "list", "--owner", OWNER, "--json", "--state-dir", &target]);
    assert_eq!(json_lines(&listed).len(), 4);
}

#[test]
fn serve_offers_the_import_after_its_address() {
    let dir = tempfile::tempdir().unwrap();
    place_original(dir.path());
    let mut serve = command(dir.path());
    serve.args(["serve", "--listen", "127.0.0.1:0"]).stderr(Stdio::piped());
    let mut child = serve.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("serving http://"));
    let offer = lines.find(|line| line.contains("original daemon"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(offer.unwrap().contains("import omi"));
}
