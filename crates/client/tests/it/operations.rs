//! The client has a method for every operation of the API, with the name of the operation.

use std::collections::BTreeSet;
use std::path::Path;

use mainspring_core::Limits;

#[test]
fn every_operation_has_a_method_of_its_name() {
    let document = mainspring_http::document(&Limits::default());
    let paths = document["paths"].as_object().unwrap().values();
    let operations: BTreeSet<&str> =
        paths.flat_map(|methods| methods.as_object().unwrap().values()).map(operation_id).collect();
    assert!(operations.len() >= 70, "the document holds {} operations", operations.len());
    let methods = public_methods();
    let missing: Vec<_> = operations.iter().filter(|operation| !methods.contains(**operation)).collect();
    assert!(missing.is_empty(), "no method of the client for {missing:?}");
}

fn operation_id(operation: &serde_json::Value) -> &str {
    operation["operationId"].as_str().unwrap()
}

/// The public methods in the files of the client's nouns.
fn public_methods() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/client");
    let files = std::fs::read_dir(folder).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()));
    let text: String = files.map(Result::unwrap).collect();
    let declared = text.lines().filter_map(|line| {
        let line = line.trim().strip_prefix("pub ")?;
        let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
        Some(name.split(['(', '<']).next()?.to_owned())
    });
    declared.collect()
}

#[test]
fn every_method_is_called_by_a_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let files = std::fs::read_dir(folder).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()));
    let text: String = files.map(Result::unwrap).collect();
    let untested: Vec<_> =
        public_methods().into_iter().filter(|method| !text.contains(&format!(".{method}("))).collect();
    assert!(untested.is_empty(), "no test calls {untested:?}");
}
