//! Compares docs/control-tools.md with the manifest.

#[test]
fn the_document_matches_the_manifest() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/control-tools.md");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == mainspring_control::document(),
        "docs/control-tools.md is stale: cargo run -p mainspring-control --example document > docs/control-tools.md"
    );
}
