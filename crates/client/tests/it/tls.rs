//! TLS: the client and a server with a certificate from files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use mainspring_client::{Client, SessionListQuery};
use mainspring_http::{HttpLimits, TlsFiles, TlsListener, serve};
use mainspring_kernel::tasks::Tasks;
use mainspring_test_support::{TOKEN, TestNode, tls_file};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// A server whose certificate and key are files of a folder.
struct Server {
    node: TestNode,
    dir: tempfile::TempDir,
    port: u16,
    _tasks: Tasks,
}

impl Server {
    async fn start() -> Self {
        let (node, dir) = (TestNode::start().await, tempfile::tempdir().unwrap());
        install(dir.path(), "one", 1);
        let files = TlsFiles::load(&dir.path().join("cert.pem"), &dir.path().join("key.pem")).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = tcp.local_addr().unwrap().port();
        let listener = TlsListener::new(tcp, files, &node.kernel);
        let tasks = Tasks::default();
        tasks.spawn(serve(listener, node.router(), HttpLimits::default(), CancellationToken::new()));
        Self { node, dir, port, _tasks: tasks }
    }

    fn client(&self) -> Client {
        Client::over_tls(&format!("https://localhost:{}", self.port), TOKEN, &tls_file("ca.pem")).unwrap()
    }
}

/// Copies a certificate and its key. `age` tells versions apart: files that are written at once have the same time.
fn install(dir: &Path, name: &str, age: u64) {
    for (file, from) in [("cert.pem", format!("{name}.cert.pem")), ("key.pem", format!("{name}.key.pem"))] {
        write(&dir.join(file), &fs::read(tls_file(&from)).unwrap(), age);
    }
}

fn write(path: &Path, content: &[u8], age: u64) {
    fs::write(path, content).unwrap();
    // A key that others can read is refused.
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + age);
    fs::File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
}

/// The certificate that the server shows to the next connection.
async fn shown(server: &Server) -> Vec<u8> {
    let mut roots = rustls::RootCertStore::empty();
    use rustls::pki_types::pem::PemObject;
    let ca = rustls::pki_types::CertificateDer::from_pem_file(tls_file("ca.pem")).unwrap();
    roots.add(ca).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let tcp = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let stream = connector.connect(name, tcp).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

fn der(name: &str) -> Vec<u8> {
    use rustls::pki_types::pem::PemObject;
    rustls::pki_types::CertificateDer::from_pem_file(tls_file(name)).unwrap().to_vec()
}

#[tokio::test]
async fn a_client_that_trusts_the_certificate_is_served() {
    let server = Server::start().await;
    let listed = server.client().session_list(&SessionListQuery::default()).await.unwrap();
    assert_eq!(listed.items.len(), 0);
    // The system does not know the certificate, and there is no answer in the clear.
    let url = format!("https://localhost:{}", server.port);
    let untrusting = Client::over_tcp(&url, TOKEN).unwrap();
    assert!(untrusting.session_list(&SessionListQuery::default()).await.is_err());
    let mut plain = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = vec![];
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[tokio::test]
async fn a_changed_certificate_is_used_for_new_connections() {
    let server = Server::start().await;
    let client = server.client();
    client.session_list(&SessionListQuery::default()).await.unwrap();
    assert_eq!(shown(&server).await, der("one.cert.pem"));
    install(server.dir.path(), "two", 2);
    assert_eq!(shown(&server).await, der("two.cert.pem"));
    client.session_list(&SessionListQuery::default()).await.unwrap();
    // A file that cannot be used changes nothing.
    write(&server.dir.path().join("cert.pem"), b"nonsense", 3);
    assert_eq!(shown(&server).await, der("two.cert.pem"));
    install(server.dir.path(), "one", 4);
    assert_eq!(shown(&server).await, der("one.cert.pem"));
}

#[tokio::test]
async fn an_unfinished_handshake_is_ended_and_delays_no_other_client() {
    let server = Server::start().await;
    let mut silent = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
    server.client().session_list(&SessionListQuery::default()).await.unwrap();
    let mut nothing = vec![];
    let ended = async {
        let _ = silent.read_to_end(&mut nothing).await;
    };
    tokio::pin!(ended);
    loop {
        tokio::select! {
            () = &mut ended => break,
            () = tokio::task::yield_now() => server.node.clock.advance(1_000),
        }
    }
    assert_eq!(nothing, b"");
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.pem");
    fs::write(&empty, "").unwrap();
    let missing = dir.path().join("missing.pem");
    let [one, key, two] = ["one.cert.pem", "one.key.pem", "two.key.pem"].map(tls_file);
    let failed = |cert: &PathBuf, key: &PathBuf| TlsFiles::load(cert, key).unwrap_err().to_string();
    for (error, file, reason) in [
        (failed(&missing, &key), &missing, "cannot be read"),
        (failed(&one, &missing), &missing, "cannot be read"),
        (failed(&empty, &key), &empty, "holds no certificate"),
        (failed(&one, &empty), &empty, "holds no private key"),
        (failed(&one, &one), &one, "holds no private key"),
        (failed(&one, &two), &two, "cannot be used with the certificate"),
    ] {
        assert!(error.starts_with(&file.display().to_string()) && error.contains(reason), "{error}");
    }
}
