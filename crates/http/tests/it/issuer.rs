//! A small identity provider for tests: discovery, keys and tokens, over real HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::serve::Listener;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mainspring_http::{Oidc, OidcConfig, TlsFiles, TlsListener};
use mainspring_kernel::Kernel;
use mainspring_kernel::tasks::Tasks;
use mainspring_test_support::{NOW, NodeBuilder, tls_file};
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
    RsaPublicKeyComponents,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A key that signs tokens.
pub(crate) enum Signer {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    pub(crate) fn rsa() -> Self {
        let key = PrivatePkcs8KeyDer::from_pem_slice(include_bytes!("oidc/rsa.pem")).unwrap();
        Self::Rsa(RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).unwrap())
    }

    pub(crate) fn p256() -> Self {
        let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let key = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        Self::P256(EcdsaKeyPair::from_pkcs8(kind, key.as_ref(), &random).unwrap())
    }

    pub(crate) fn ed25519(seed: u8) -> Self {
        Self::Ed25519(Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap())
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::P256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    /// The public key as a JWK.
    pub(crate) fn jwk(&self, id: &str) -> Value {
        match self {
            Self::Rsa(key) => {
                let RsaPublicKeyComponents { n, e } = RsaPublicKeyComponents::<Vec<u8>>::from(key.public());
                json!({"kty": "RSA", "kid": id, "use": "sig", "alg": "RS256", "n": encode(n), "e": encode(e)})
            }
            Self::P256(key) => {
                let point = key.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": id, "x": encode(&point[1..33]), "y": encode(&point[33..])})
            }
            Self::Ed25519(key) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": encode(key.public_key().as_ref())})
            }
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
            Self::P256(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::Ed25519(key) => key.sign(message).as_ref().to_vec(),
        }
    }

    /// A token with these claims, signed with the key that `header` names.
    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let signature = encode(self.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

/// The answers of the issuer, and the requests that it has received.
struct Answers {
    address: String,
    keys: Mutex<Value>,
    is_down: Mutex<bool>,
    asked: AtomicUsize,
    /// The answer to an exchanged code.
    tokens: Mutex<Value>,
    /// The forms with which codes were exchanged.
    forms: Mutex<Vec<String>>,
    /// Codes are answered while this is false.
    holds_codes: watch::Sender<bool>,
    /// Requests for keys are answered while this is false.
    holds_keys: watch::Sender<bool>,
}

/// A running identity provider.
pub(crate) struct Issuer {
    answers: Arc<Answers>,
    pub(crate) signer: Signer,
    pub(crate) key_id: &'static str,
    _tasks: Tasks,
}

impl Issuer {
    /// Starts an issuer with the key `signer`, on a free port of this machine.
    pub(crate) async fn start(signer: Signer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        Self::start_on(listener, address, signer)
    }

    /// Starts an issuer that speaks HTTPS, with a certificate that `ca.pem` of the test certificates has signed. `kernel`
    /// times handshakes.
    pub(crate) async fn start_tls(signer: Signer, kernel: Kernel) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://localhost:{}", tcp.local_addr().unwrap().port());
        let files = TlsFiles::load(&tls_file("one.cert.pem"), &tls_file("one.key.pem")).unwrap();
        Self::start_on(TlsListener::new(tcp, files, &kernel), address, signer)
    }

    fn start_on<L: Listener<Addr: std::fmt::Debug>>(listener: L, address: String, signer: Signer) -> Self {
        let answers = Arc::new(Answers {
            address,
            keys: Mutex::new(json!({"keys": [signer.jwk("first")]})),
            is_down: Mutex::default(),
            asked: AtomicUsize::default(),
            tokens: Mutex::default(),
            forms: Mutex::default(),
            holds_codes: watch::Sender::new(false),
            holds_keys: watch::Sender::new(false),
        });
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/keys", get(keys))
            .route("/token", post(token))
            .with_state(answers.clone());
        let tasks = Tasks::default();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { answers, signer, key_id: "first", _tasks: tasks }
    }

    pub(crate) fn address(&self) -> String {
        self.answers.address.clone()
    }

    /// Replaces the keys.
    pub(crate) fn rotate(&mut self, signer: Signer, key_id: &'static str) {
        *self.answers.keys.lock() = json!({"keys": [signer.jwk(key_id)]});
        (self.signer, self.key_id) = (signer, key_id);
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        *self.answers.is_down.lock() = is_down;
    }

    /// Sets the answer to codes, such as an ID token; null refuses them.
    pub(crate) fn answer_codes(&self, tokens: Value) {
        *self.answers.tokens.lock() = tokens;
    }

    /// Lets callers that exchange codes wait for an answer.
    pub(crate) fn hold_codes(&self, holds: bool) {
        self.answers.holds_codes.send_replace(holds);
    }

    /// Lets callers that ask for keys wait for an answer.
    pub(crate) fn hold_keys(&self, holds: bool) {
        self.answers.holds_keys.send_replace(holds);
    }

    /// The forms with which codes were exchanged.
    pub(crate) fn exchanged(&self) -> Vec<String> {
        self.answers.forms.lock().clone()
    }

    /// How often its keys were asked for.
    pub(crate) fn asked(&self) -> usize {
        self.answers.asked.load(Ordering::SeqCst)
    }

    /// The claims of a token of `owner` in `org` that is valid for an hour.
    pub(crate) fn claims(&self, owner: &str, org: Option<&str>) -> Value {
        let now = NOW.0 / 1_000;
        let mut claims =
            json!({"iss": self.address(), "aud": "mainspring", "sub": owner, "iat": now, "exp": now + 3_600});
        if let Some(org) = org {
            claims["org"] = org.into();
        }
        claims
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        let header = json!({"alg": self.signer.algorithm(), "kid": self.key_id, "typ": "JWT"});
        self.signer.token_with(&header, claims)
    }

    /// Lets a node accept tokens of this issuer.
    pub(crate) fn accepted_by(&self, builder: NodeBuilder) -> NodeBuilder {
        let config = OidcConfig { issuer: Some(self.address()), ..OidcConfig::default() };
        builder.edge(|http| http.with_oidc(Oidc::new(config).unwrap()))
    }
}

async fn discovery(State(answers): State<Arc<Answers>>) -> (StatusCode, Json<Value>) {
    let status = match *answers.is_down.lock() {
        true => StatusCode::INTERNAL_SERVER_ERROR,
        false => StatusCode::OK,
    };
    let address = &answers.address;
    let endpoint = |name: &str| format!("{address}/{name}");
    let document = json!({
        "issuer": address, "jwks_uri": endpoint("keys"),
        "authorization_endpoint": endpoint("authorize"), "token_endpoint": endpoint("token"),
    });
    (status, Json(document))
}

async fn token(State(answers): State<Arc<Answers>>, form: String) -> (StatusCode, Json<Value>) {
    answers.forms.lock().push(form);
    answers.holds_codes.subscribe().wait_for(|holds| !holds).await.unwrap();
    match &*answers.tokens.lock() {
        Value::Null => (StatusCode::BAD_REQUEST, Json(json!({"error": "invalid_grant"}))),
        tokens => (StatusCode::OK, Json(tokens.clone())),
    }
}

async fn keys(State(answers): State<Arc<Answers>>) -> Json<Value> {
    answers.asked.fetch_add(1, Ordering::SeqCst);
    answers.holds_keys.subscribe().wait_for(|holds| !holds).await.unwrap();
    Json(answers.keys.lock().clone())
}
