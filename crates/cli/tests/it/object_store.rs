//! Artifacts in an object store: a real server against moto, which has the API of S3.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use mainspring_core::ArtifactId;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::{BlobError, BlobStore, Blobs};
use mainspring_store::{S3Blobs, S3Credentials, S3Options};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::http::Server;
use crate::postgres_cluster::database;

/// Serves until its input is closed: when the test process ends, even if it is killed.
const SERVE: &str = r#"
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"#;

const BUCKET: &str = "agents";
const PREFIX: &str = "blobs/test";
/// Larger than one part of an upload.
const LARGE_BYTES: usize = 20 << 20;

/// A server with the API of S3 and an empty bucket.
struct Moto {
    process: Child,
    url: String,
    client: Client,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Moto {
    async fn start() -> Self {
        mainspring::install_tls();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/object_store/install");
        let installed = Command::new(&script).output().unwrap();
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
        let folder = PathBuf::from(String::from_utf8(installed.stdout).unwrap().trim());
        let mut process = Command::new(folder.join("bin/python"))
            .args(["-c", SERVE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        assert!(!port.is_empty(), "moto did not start");
        let url = format!("http://127.0.0.1:{}", port.trim());
        // moto requires credentials in each request, but does not verify them.
        let somebody = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
        let headers = [(AUTHORIZATION, HeaderValue::from_static(somebody))].into_iter().collect();
        let client = Client::builder().default_headers(headers).build().unwrap();
        let moto = Self { process, url, client };
        let made = moto.client.put(format!("{}/{BUCKET}", moto.url)).send().await.unwrap();
        assert!(made.status().is_success(), "{}", made.status());
        moto
    }

    /// The address of the object of a content.
    fn object(&self, hash: &str) -> String {
        format!("{}/{BUCKET}/{PREFIX}/{}/{hash}", self.url, &hash[..2])
    }

    /// The names of all objects in the bucket.
    async fn objects(&self) -> Vec<String> {
        let url = format!("{}/{BUCKET}?list-type=2", self.url);
        let listed = self.client.get(url).send().await.unwrap().text().await.unwrap();
        listed.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap().to_owned()).collect()
    }

    async fn status(&self, hash: &str) -> StatusCode {
        self.client.get(self.object(hash)).send().await.unwrap().status()
    }

    fn options(&self) -> S3Options {
        S3Options {
            bucket: BUCKET.into(),
            prefix: PREFIX.into(),
            endpoint: Some(self.url.clone()),
            region: Some("eu-central-1".into()),
            credentials: Some(S3Credentials {
                access_key_id: "test".into(),
                secret_access_key: "test".into(),
                session_token: None,
            }),
            allow_http: true,
            removal_delay_ms: 0,
        }
    }
}

fn hash(content: &[u8]) -> String {
    blake3::hash(content).to_hex().to_string()
}

fn large() -> Vec<u8> {
    (0..LARGE_BYTES as u32 / 4).flat_map(u32::to_le_bytes).collect()
}

async fn read(store: &S3Blobs, hash: &str, range: Option<(u64, u64)>) -> Vec<u8> {
    let mut bytes = vec![];
    store.open(hash, range).await.unwrap().read_to_end(&mut bytes).await.unwrap();
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_are_stored_once_complete_and_read_in_ranges() {
    let (moto, folder) = (Moto::start().await, tempfile::tempdir().unwrap());
    let store = Arc::new(S3Blobs::new(moto.options(), Clock::system()).unwrap());
    store.probe().await.unwrap();
    let blobs = Blobs::with_store(folder.path(), Arc::clone(&store) as Arc<dyn BlobStore>);
    let id = |n| ArtifactId::from_random([n; 16]);
    let large = large();
    for (n, content) in [(1, b"hello".as_slice()), (2, b""), (3, &large)] {
        let mut reader = content;
        let staged = blobs.stage(id(n), &mut reader, usize::MAX).await.unwrap();
        assert_eq!((staged.hash.as_str(), staged.size), (hash(content).as_str(), content.len() as u64));
        let kept = blobs.keep(staged).await.unwrap();
        assert_eq!(read(&store, &hash(content), None).await, content);
        blobs.done(kept).await;
        assert_eq!(blobs.check(&hash(content), content.len() as u64, true).await, None);
    }
    let staging: Vec<_> = std::fs::read_dir(folder.path().join("staging")).unwrap().collect();
    assert!(staging.is_empty(), "nothing stays on the disk: {staging:?}");
    assert_eq!(moto.objects().await.len(), 3);
    let at = LARGE_BYTES as u64 - 5;
    assert_eq!(read(&store, &hash(&large), Some((at, 9))).await, large[LARGE_BYTES - 5..]);
    assert_eq!(read(&store, &hash(b"hello"), Some((1, 3))).await, b"ell");
    assert_eq!(read(&store, &hash(b"hello"), Some((2, 0))).await, b"");
    // The check of objects that are missing, of another size, or changed.
    let problem = blobs.check(&hash(b"other"), 5, false).await.unwrap();
    assert!(problem.starts_with("s3://agents/blobs/test/"), "{problem}");
    moto.client.put(moto.object(&hash(b"hello"))).body("hullo").send().await.unwrap();
    assert_eq!(blobs.check(&hash(b"hello"), 5, false).await, None);
    assert!(blobs.check(&hash(b"hello"), 5, true).await.unwrap().contains("its hash has changed"));
    assert!(blobs.check(&hash(b"hello"), 6, false).await.unwrap().contains("5 bytes instead of 6"));
    // A file that changes after it was hashed does not become an object, in one request or in parts.
    for content in [b"prepared".as_slice(), &large[4..]] {
        let mut reader = content;
        let staged = blobs.stage(id(7), &mut reader, usize::MAX).await.unwrap();
        let part = folder.path().join(format!("staging/{}.part", id(7)));
        let mut changed = content.to_vec();
        changed[0] ^= 1;
        std::fs::write(part, changed).unwrap();
        let refused = blobs.keep(staged).await.unwrap_err();
        assert_eq!(refused.code(), "unavailable", "{refused}");
        assert_eq!(moto.status(&hash(content)).await, StatusCode::NOT_FOUND);
    }
    let uploads = moto.client.get(format!("{}/{BUCKET}?uploads", moto.url)).send().await.unwrap();
    let uploads = uploads.text().await.unwrap();
    assert!(!uploads.contains("<UploadId>"), "the refused upload was ended: {uploads}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreferenced_objects_stay_for_the_removal_delay() {
    let (moto, folder) = (Moto::start().await, tempfile::tempdir().unwrap());
    let part = folder.path().join("part");
    let clock = Clock::manual(Clock::system().now());
    let hour = 60 * 60 * 1_000;
    let options = S3Options { removal_delay_ms: hour, ..moto.options() };
    let store = S3Blobs::new(options, clock.clone()).unwrap();
    std::fs::write(&part, "loose").unwrap();
    store.put(&hash(b"loose"), 5, &part).await.unwrap();
    assert_eq!(store.remove(&hash(b"loose")).await, Ok(false), "another server may be about to use it");
    assert_eq!(moto.status(&hash(b"loose")).await, StatusCode::OK);
    clock.advance(hour + 5_000);
    assert_eq!(store.remove(&hash(b"loose")).await, Ok(true));
    assert_eq!(moto.status(&hash(b"loose")).await, StatusCode::NOT_FOUND);
    assert_eq!(store.remove(&hash(b"loose")).await, Ok(true), "there is nothing to remove");
    // A missing bucket is reported differently from a missing object.
    let options = S3Options { bucket: "nobody".into(), ..moto.options() };
    let store = S3Blobs::new(options, clock).unwrap();
    let error = store.put(&hash(b"loose"), 5, &part).await.unwrap_err();
    assert!(matches!(&error, BlobError::Unavailable(text) if text.contains("s3://nobody/")), "{error:?}");
}

/// Uploads an artifact and returns it.
async fn upload(server: &Server, content: &[u8]) -> (StatusCode, Value) {
    let request = server.request(Method::POST, "/v1/sessions/a/artifacts?name=a.bin");
    let answer = request.header("content-type", "application/octet-stream").body(content.to_vec()).send();
    let answer = answer.await.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

async fn download(server: &Server, artifact: &Value, range: Option<&str>) -> (StatusCode, Vec<u8>) {
    let path = format!("/v1/artifacts/{}/content", artifact["artifactId"].as_str().unwrap());
    let mut request = server.request(Method::GET, &path);
    if let Some(range) = range {
        request = request.header("range", range);
    }
    let answer = request.send().await.unwrap();
    (answer.status(), answer.bytes().await.unwrap().to_vec())
}

/// Two servers, one after the other, share a database and a bucket, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn any_server_reads_the_artifacts_of_another_from_the_object_store() {
    let (mut moto, database) = (Moto::start().await, database());
    let folder = tempfile::tempdir().unwrap();
    let credentials = folder.path().join("credentials");
    let text = "[default]\naws_access_key_id = test\naws_secret_access_key = test\n";
    std::fs::write(&credentials, text).unwrap();
    let bucket = format!("s3://{BUCKET}/{PREFIX}");
    let (endpoint, credentials) = (moto.url.clone(), credentials.display().to_string());
    let settings = [
        ("MAINSPRING_STORE", database.as_str()),
        ("MAINSPRING_ARTIFACT_STORE_URL", &bucket),
        ("MAINSPRING_ARTIFACT_STORE_ENDPOINT", &endpoint),
        ("MAINSPRING_ARTIFACT_STORE_CREDENTIALS_FILE", &credentials),
    ];
    let (large, small) = (large(), b"small".to_vec());
    let mut server = Server::start_with(&settings);
    server.post("/v1/sessions", json!({"key": "a"})).await;
    let (status, first) = upload(&server, &large).await;
    assert_eq!(status, StatusCode::CREATED, "{first}");
    let (_, second) = upload(&server, &small).await;
    assert_eq!(first["contentHash"], hash(&large));
    assert_eq!(moto.objects().await.len(), 2);
    let kept: Vec<_> = std::fs::read_dir(server.dir.path().join("state/artifacts")).unwrap().collect();
    assert_eq!(kept.len(), 1, "only the folder in which artifacts are prepared: {kept:?}");
    server.kill();

    let server = Server::start_with(&settings);
    assert_eq!(download(&server, &first, None).await, (StatusCode::OK, large.clone()));
    let part = download(&server, &first, Some("bytes=9000000-9000003")).await;
    assert_eq!(part, (StatusCode::PARTIAL_CONTENT, large[9_000_000..9_000_004].to_vec()));
    assert_eq!(download(&server, &second, None).await, (StatusCode::OK, small.clone()));
    // Deleted bytes stay for an hour: another server could be about to use them.
    let path = format!("/v1/artifacts/{}", first["artifactId"].as_str().unwrap());
    let deleted = server.request(Method::DELETE, &path).send().await.unwrap();
    assert!(deleted.status().is_success());
    assert_eq!(moto.objects().await.len(), 2);

    let content = format!("/v1/artifacts/{}/content", second["artifactId"].as_str().unwrap());
    moto.client.put(moto.object(&hash(&small))).body("smull").send().await.unwrap();
    let (status, changed) = server.get(&content).await;
    assert_eq!(
        (status, &changed["code"]),
        (StatusCode::INTERNAL_SERVER_ERROR, &json!("corrupt")),
        "{changed}"
    );
    moto.client.delete(moto.object(&hash(&small))).send().await.unwrap();
    let (status, missing) = server.get(&content).await;
    assert_eq!(
        (status, &missing["code"]),
        (StatusCode::INTERNAL_SERVER_ERROR, &json!("corrupt")),
        "{missing}"
    );
    moto.process.kill().unwrap();
    moto.process.wait().unwrap();
    let (status, away) = server.get(&content).await;
    assert_eq!((status, &away["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable")), "{away}");
    assert!(away["retryable"] == true && away["detail"].as_str().unwrap().contains(&bucket), "{away}");
    let (status, refused) = upload(&server, b"while it is away").await;
    assert_eq!(
        (status, &refused["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable")),
        "{refused}"
    );
}
