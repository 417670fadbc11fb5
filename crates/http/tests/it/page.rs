//! The web page: its files, their headers, and that they load nothing from elsewhere.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use axum::http::{Method, StatusCode};
use flate2::read::GzDecoder;

use crate::world::{Server, send_request};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/page");

/// Returns the names of the files in a folder of the page.
fn files(folder: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(Path::new(FOLDER).join(folder)).unwrap();
    entries.map(|entry| format!("{folder}/{}", entry.unwrap().file_name().to_str().unwrap())).collect()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(FOLDER).join(name)).unwrap()
}

#[tokio::test]
async fn the_page_is_served_without_credentials_under_a_strict_policy() {
    let server = Server::start().await;
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
        ("/app/main.js", "text/javascript; charset=utf-8"),
        ("/vendor/preact.js", "text/javascript; charset=utf-8"),
    ] {
        let answer = server.anonymous(Method::GET, path).send().await;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        let headers = answer.headers();
        assert_eq!(headers["content-type"], kind, "{path}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
    }
    let head = server.anonymous(Method::HEAD, "/").send().await;
    assert_eq!(head.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_file_that_the_browser_has_is_not_sent_again() {
    let server = Server::start().await;
    let first = server.anonymous(Method::GET, "/app/main.js").send().await;
    let tag = first.headers()["etag"].to_str().unwrap().to_owned();
    let again = server.anonymous(Method::GET, "/app/main.js").header("if-none-match", &tag).send().await;
    assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    assert_eq!(again.headers()["etag"], tag.as_str());
    let other = server.anonymous(Method::GET, "/app/main.js").header("if-none-match", "\"0\"").send().await;
    assert_eq!(other.status(), StatusCode::OK);
}

/// The most bytes that a browser receives for the whole page.
const MAX_PAGE_BYTES: usize = 150_000;

/// Returns the paths of all files that a browser loads.
fn loaded() -> Vec<String> {
    let files = files("app").into_iter().chain(files("vendor")).filter(|name| name.ends_with(".js"));
    let top = ["", "style.css", "views.css", "icon.svg"].map(str::to_owned);
    files.chain(top).map(|name| format!("/{name}")).collect()
}

#[tokio::test]
async fn the_whole_page_is_sent_compressed_in_less_than_150_kb() {
    let server = Server::start().await;
    let mut total = 0;
    for path in loaded() {
        let plain = server.anonymous(Method::GET, &path).send().await;
        assert!(!plain.headers().contains_key("content-encoding"), "{path}");
        assert_eq!(plain.headers()["vary"], "accept-encoding", "{path}");
        let request = server.anonymous(Method::GET, &path).header("accept-encoding", "br, gzip;q=0.8");
        let gzipped = request.send().await;
        assert_eq!(gzipped.headers()["content-encoding"], "gzip", "{path}");
        assert_ne!(gzipped.headers()["etag"], plain.headers()["etag"], "{path}");
        let bytes = gzipped.bytes().await;
        total += bytes.len();
        let mut text = vec![];
        GzDecoder::new(&bytes[..]).read_to_end(&mut text).unwrap();
        assert_eq!(text, plain.bytes().await, "{path}");
    }
    assert!(total < MAX_PAGE_BYTES, "the page has {total} bytes");
    for refusal in ["gzip;q=0", "identity", ""] {
        let answer = server.anonymous(Method::GET, "/").header("accept-encoding", refusal).send().await;
        assert!(!answer.headers().contains_key("content-encoding"), "{refusal}");
    }
}

#[tokio::test]
async fn only_files_of_the_page_are_served() {
    let server = Server::start().await;
    for path in [
        "/app/nothing.js",
        "/app/..%2f..%2f..%2fsrc/lib.rs",
        "/app/..%2findex.html",
        "/vendor/README.md",
        "/vendor.sh",
        "/index.html",
        "/other",
    ] {
        let (status, problem) = send_request(server.anonymous(Method::GET, path)).await;
        assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &"not_found".into()), "{path}");
    }
    let (status, problem) = send_request(server.anonymous(Method::POST, "/")).await;
    assert_eq!((status, &problem["code"]), (StatusCode::METHOD_NOT_ALLOWED, &"method_not_allowed".into()));
    let (_, document) = server.get("/openapi.json").await;
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.keys().all(|path| path != "/" && !path.starts_with("/app")), "{:?}", paths.keys());
}

#[test]
fn modules_import_only_files_of_the_page() {
    for name in files("app").into_iter().chain(files("vendor")).filter(|name| name.ends_with(".js")) {
        let text = read(&name);
        let folder = Path::new(FOLDER).join(&name);
        let imports = text.split("from").skip(1).filter_map(|rest| {
            let rest = rest.trim_start();
            let quote = rest.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
            rest[1..].split(quote).next()
        });
        for import in imports.filter(|import| import.ends_with(".js") || import.starts_with("preact")) {
            assert!(import.starts_with("./") || import.starts_with("../"), "{name} imports {import}");
            assert!(folder.parent().unwrap().join(import).is_file(), "{name} imports {import}");
        }
    }
}

#[test]
fn the_first_document_preloads_every_module_and_has_nothing_inline() {
    let html = read("index.html");
    let modules = files("app").into_iter().chain(files("vendor")).filter(|name| name.ends_with(".js"));
    // No module of the page imports the worker's script: the browser loads it when the worker starts.
    for module in modules.filter(|name| name != "app/worker.js") {
        assert!(html.contains(&format!("<link rel=\"modulepreload\" href=\"{module}\">")), "{module}");
    }
    assert!(!html.contains("://"), "the page loads something from another server");
    assert!(!html.contains("style=") && !html.contains("<style"), "the page has an inline style");
    assert_eq!(html.matches("<script").count(), 1);
    assert!(html.contains("<script type=\"module\" src=\"app/main.js\"></script>"));
}
