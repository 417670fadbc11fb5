//! Every error code of mainspring has its code in the protocol of JSON lines.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use mainspring_api::jsonl::codes::{is_mapped, protocol_code};
use mainspring_core::{FailureCode, Refusal};
use mainspring_kernel::Error;

#[test]
fn every_code_of_the_kernel_and_of_http_is_mapped_to_the_protocol() {
    for code in listed_codes() {
        assert!(is_mapped(code), "{code} is not listed in CODE_MAP of crates/api/src/jsonl/codes.rs");
    }
}

/// The codes that the crates list as constants.
fn listed_codes() -> impl Iterator<Item = &'static str> {
    let http = mainspring_http::PROBLEMS.iter().map(|(_, code)| code);
    Error::CODES.iter().chain(Refusal::CODES).chain(FailureCode::ALL).chain(http).copied()
}

/// Source text that precedes the string literal of an error code.
const CODE_PREFIXES: [&str; 4] = ["Failure::new(", "failed(", "code: ", "Self::error("];

/// Collects the error codes in the sources of `folder`: the text after one of `CODE_PREFIXES`.
fn collect_codes(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_codes(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap();
            for before in CODE_PREFIXES {
                for after in text.split(before).skip(1) {
                    let literal =
                        after.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
                    found.extend(literal.filter(|text| is_code(text)).map(str::to_owned));
                }
            }
            // These files map kinds of errors to codes in the arms of a `match`.
            if path.ends_with("provider/error.rs") || path.ends_with("driver/model_error.rs") {
                let arms = text
                    .split("=> ")
                    .skip(1)
                    .map(str::trim_start)
                    .map(|arm| arm.trim_start_matches(['{', '\n', ' ']));
                let literals = arms.filter_map(|arm| arm.strip_prefix('"')?.split('"').next());
                found.extend(literals.filter(|text| is_code(text)).map(str::to_owned));
            }
        }
    }
}

fn is_code(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

#[test]
fn every_error_code_is_in_the_documented_table() {
    let mut found: BTreeSet<String> = listed_codes().map(str::to_owned).collect();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for name in
        ["adapters", "agent", "api", "cli", "client", "core", "host", "http", "kernel", "mainspring", "store"]
    {
        collect_codes(&crates.join(name).join("src"), &mut found);
    }
    for known in ["executor_lost", "model_refused", "refusal", "script_failed", "limit_reached"] {
        assert!(found.contains(known), "{known} was not found: the test misses sources");
    }
    let unmapped: Vec<_> = found.iter().filter(|code| !is_mapped(code)).collect();
    assert!(unmapped.is_empty(), "give these a line in crates/api/src/jsonl/codes.rs: {unmapped:?}");
    let text = include_str!("../../../../docs/jsonl.md");
    let undocumented: Vec<_> = found.iter().filter(|code| !text.contains(&format!("`{code}`"))).collect();
    assert!(undocumented.is_empty(), "docs/jsonl.md does not list {undocumented:?}");
}

#[test]
fn the_documented_code_table_matches_the_code() {
    let text = include_str!("../../../../docs/jsonl.md");
    let section = text.split("## Codes\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| `")).skip(1).collect();
    assert!(rows.len() > 5);
    for row in rows {
        let codes: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        for code in &codes[1..] {
            assert_eq!(protocol_code(code), (codes[0], Some(*code)));
        }
    }
}
