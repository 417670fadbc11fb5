//! Core stays pure: few dependencies, and no I/O, clock, randomness or async in its sources.

use std::fs;
use std::path::Path;

const ALLOWED: &[&str] = &["serde", "serde_json", "thiserror", "uuid"];

/// Dependencies of optional features. The schemas of the public JSON form are derived from the types themselves, so
/// that the two cannot diverge.
const OPTIONAL: &[&str] = &["utoipa"];

/// Modules of the standard library that do I/O or read the environment.
const IMPURE_MODULES: &[&str] = &["env", "fs", "io", "net", "os", "process", "thread", "time"];

/// Words that must not appear in the sources.
const IMPURE_WORDS: &[&str] =
    &["async", "await", "getrandom", "rand", "tokio", "Instant", "RandomState", "SystemTime"];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The entries of a manifest's tables whose name `wanted` accepts, without comments and blank lines.
fn entries(manifest: &str, wanted: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut inside = false;
    let mut found = vec![];
    for line in manifest.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[') {
            Some(name) => inside = wanted(name.trim_end_matches(']')),
            None if inside => found.push(line),
            None => {}
        }
    }
    found
}

fn name(entry: &str) -> &str {
    entry.split(['.', '=', ' ']).next().unwrap_or(entry)
}

#[test]
fn only_allowed_dependencies_are_declared() {
    let manifest = read("Cargo.toml");
    for entry in entries(&manifest, |table| table == "dependencies") {
        let expected = match name(entry) {
            name if ALLOWED.contains(&name) => format!("{name}.workspace = true"),
            name if OPTIONAL.contains(&name) => format!("{name} = {{ workspace = true, optional = true }}"),
            name => panic!("core must not depend on {name}"),
        };
        assert_eq!(entry, expected, "features are chosen in the workspace's table");
    }
    let defaults = entries(&manifest, |table| table == "features");
    assert!(!defaults.iter().any(|entry| name(entry) == "default"), "{defaults:?}");
    let elsewhere = |table: &str| {
        table.contains("dependencies") && !["dependencies", "dev-dependencies"].contains(&table)
    };
    for line in manifest.lines().filter_map(|line| line.trim().strip_prefix('[')) {
        assert!(!elsewhere(line.trim_end_matches(']')), "core has no dependencies in [{line}");
    }
}

#[test]
fn uuid_has_no_random_number_feature() {
    let workspace = read("../../Cargo.toml");
    let table = entries(&workspace, |table| table == "workspace.dependencies");
    let uuid =
        table.into_iter().find(|entry| name(entry) == "uuid").expect("uuid is in the workspace's table");
    assert!(uuid.contains("default-features = false"), "{uuid}");
    let features = uuid.split_once("features = [").map_or("", |(_, features)| features);
    for feature in features.split(['"', ',', ' ', ']', '}']).filter(|feature| !feature.is_empty()) {
        assert!(["std", "serde"].contains(&feature), "uuid must not have {feature}");
    }
}

/// The lines of `source` that use something impure, with their numbers.
fn impurities(source: &str) -> Vec<String> {
    let mut found = vec![];
    // A group of imports may span several lines.
    let mut group = false;
    for (line, no) in source.lines().zip(1..) {
        let code = line.split("//").next().unwrap_or(line);
        let words: Vec<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        group |= code.contains("std::{");
        let imports = words
            .iter()
            .any(|word| IMPURE_MODULES.contains(word) && (group || code.contains(&format!("std::{word}"))));
        group &= !code.contains(';');
        if imports || words.iter().any(|word| IMPURE_WORDS.contains(word)) {
            found.push(format!("{no}: {}", code.trim()));
        }
    }
    found
}

#[test]
fn the_sources_are_pure() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let found = impurities(&fs::read_to_string(&path).unwrap());
                assert!(found.is_empty(), "{}: {found:#?}", path.display());
                files += 1;
            }
        }
    }
    assert!(files > 15, "only {files} files were checked");
}

#[test]
fn impure_code_is_detected() {
    let sources = [
        "let now = std::time::SystemTime::now();",
        "use std::fs;",
        "use std::{fmt, net::IpAddr};",
        "use std::{\n    fmt,\n    fs,\n};",
        "async fn run() {}",
        "tokio::spawn(work);",
        "let n: u8 = rand::random();",
    ];
    for source in sources {
        assert_eq!(impurities(source).len(), 1, "{source}");
    }
    for source in
        ["/// Not async.", "use crate::time::Time;", "let id = RunId::from_random(bytes);", "use std::fmt;"]
    {
        assert_eq!(impurities(source), [""; 0], "{source}");
    }
}
