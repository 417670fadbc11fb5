//! Tokens of an identity provider.

use std::pin::pin;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::poll;
use mainspring_http::{Oidc, OidcConfig};
use mainspring_test_support::{TestNode, tls_file};
use serde_json::{Value, json};

use crate::issuer::{Issuer, Signer};
use crate::world::{Server, send_request};

async fn server(issuer: &Issuer) -> Server {
    Server::with(issuer.accepted_by(TestNode::builder())).await
}

async fn get(server: &Server, path: &str, token: &str) -> (StatusCode, Value) {
    send_request(server.anonymous(Method::GET, path).bearer_auth(token)).await
}

async fn post(server: &Server, path: &str, token: &str, body: Value) -> (StatusCode, Value) {
    send_request(server.anonymous(Method::POST, path).bearer_auth(token).json(&body)).await
}

#[tokio::test]
async fn a_token_acts_for_the_owner_org_and_role_of_its_claims() {
    for signer in [Signer::rsa(), Signer::p256(), Signer::ed25519(1)] {
        let algorithm = signer.algorithm();
        let issuer = Issuer::start(signer).await;
        let server = server(&issuer).await;
        let token = issuer.sign(&issuer.claims("ann", Some("acme")));
        let (status, session) = post(&server, "/v1/sessions", &token, json!({"key": "a"})).await;
        assert_eq!(status, StatusCode::CREATED, "{algorithm} {session}");
        assert_eq!((&session["ownerId"], &session["orgId"]), (&json!("ann"), &json!("acme")), "{algorithm}");
        // The key of the same owner and the token see the same sessions.
        let (_, key) = server.post("/v1/keys", json!({"name": "k", "ownerId": "ann", "orgId": "acme"})).await;
        let (_, listed) = get(&server, "/v1/sessions", key["secret"].as_str().unwrap()).await;
        assert_eq!(listed["items"].as_array().unwrap().len(), 1);
        let mut viewer = issuer.claims("ann", Some("acme"));
        viewer["role"] = json!(["viewer"]);
        let (status, refused) =
            post(&server, "/v1/sessions", &issuer.sign(&viewer), json!({"key": "b"})).await;
        assert_eq!((status, &refused["code"]), (StatusCode::FORBIDDEN, &json!("forbidden")));
        assert_eq!(issuer.asked(), 1, "the keys are cached");
    }
}

#[tokio::test]
async fn a_token_is_never_an_admin_of_the_whole_server() {
    let issuer = Issuer::start(Signer::ed25519(1)).await;
    let server = server(&issuer).await;
    let mut claims = issuer.claims("ann", None);
    claims["role"] = json!("admin");
    for path in ["/v1/keys", "/metrics"] {
        assert_eq!(get(&server, path, &issuer.sign(&claims)).await.0, StatusCode::FORBIDDEN, "{path}");
    }
    let mut claims = issuer.claims("boss", Some("acme"));
    claims["role"] = json!("admin");
    assert_eq!(
        get(&server, "/v1/keys", &issuer.sign(&claims)).await.0,
        StatusCode::OK,
        "an admin lists the keys of its org"
    );
    assert_eq!(get(&server, "/metrics", &issuer.sign(&claims)).await.0, StatusCode::FORBIDDEN);
    let own = issuer.sign(&issuer.claims("local", None));
    assert_eq!(
        get(&server, "/v1/sessions", &own).await.0,
        StatusCode::FORBIDDEN,
        "no token names the server's own owner"
    );
}

#[tokio::test]
async fn an_owner_of_another_org_is_refused() {
    let issuer = Issuer::start(Signer::ed25519(1)).await;
    let server = server(&issuer).await;
    let sessions = async |owner: &str, org: Option<&str>| {
        get(&server, "/v1/sessions", &issuer.sign(&issuer.claims(owner, org))).await.0
    };
    assert_eq!(sessions("ann", Some("acme")).await, StatusCode::OK);
    assert_eq!(sessions("ann", Some("beta")).await, StatusCode::FORBIDDEN);
    assert_eq!(sessions("ann", None).await, StatusCode::FORBIDDEN);
    server.post("/v1/keys", json!({"name": "k", "ownerId": "bob", "orgId": "acme"})).await;
    assert_eq!(sessions("bob", Some("beta")).await, StatusCode::FORBIDDEN, "the key of bob belongs to acme");
    for name in ["a\u{430}nn", "ann\u{202e}"] {
        assert_eq!(sessions(name, Some("acme")).await, StatusCode::BAD_REQUEST, "{name:?}");
    }
    // A request cannot name another owner than its token.
    let token = issuer.sign(&issuer.claims("ann", Some("acme")));
    let other = server.anonymous(Method::GET, "/v1/sessions").bearer_auth(&token);
    assert_eq!(send_request(other.header("mainspring-owner", "bob")).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_token_that_is_not_for_this_server_is_refused() {
    let issuer = Issuer::start(Signer::ed25519(1)).await;
    let server = server(&issuer).await;
    let claims = issuer.claims("ann", None);
    let now = claims["iat"].as_i64().unwrap();
    let with = |name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        issuer.sign(&claims)
    };
    for (token, reason) in [
        (with("aud", json!("other")), "audience"),
        (with("aud", json!(["other", 7])), "audience"),
        (with("aud", Value::Null), "audience"),
        (with("iss", json!("https://evil.example")), "issuer"),
        (with("exp", json!(now - 61)), "expired"),
        (with("exp", Value::Null), "not a time"),
        (with("nbf", json!(now + 100)), "not valid yet"),
        (with("iat", json!(now + 100)), "not valid yet"),
        (with("sub", Value::Null), "no owner"),
        (with("org", json!(["acme", "beta"])), "not one org"),
        (with("pad", json!("x".repeat(20_000))), "longer than"),
    ] {
        let (status, problem) = get(&server, "/v1/sessions", &token).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::UNAUTHORIZED, &json!("authentication")),
            "{reason}"
        );
        assert!(problem["detail"].as_str().unwrap().contains(reason), "{reason}: {problem}");
    }
    for good in [with("aud", json!(["other", "mainspring"])), with("exp", json!(now - 59))] {
        assert_eq!(get(&server, "/v1/sessions", &good).await.0, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_token_with_another_signature_or_algorithm_is_refused() {
    let signer = Signer::rsa();
    let public = signer.jwk("first");
    let issuer = Issuer::start(signer).await;
    let server = server(&issuer).await;
    let claims = issuer.claims("ann", None);
    let good = issuer.sign(&claims);
    assert_eq!(get(&server, "/v1/sessions", &good).await.0, StatusCode::OK);
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let unsigned =
        |alg: &str| format!("{}.{}.", encode(&json!({"alg": alg, "kid": "first"})), encode(&claims));
    // HMAC with the public key as the secret: the classic confusion of algorithms.
    let hmac = {
        let text = format!("{}.{}", encode(&json!({"alg": "HS256", "kid": "first"})), encode(&claims));
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, public["n"].as_str().unwrap().as_bytes());
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(ring::hmac::sign(&key, text.as_bytes())))
    };
    let header = |alg: &str| json!({"alg": alg, "kid": "first"});
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let mut other = claims.clone();
    other["sub"] = json!("bob");
    let forged = format!("{}.{}.{signature}", signed.split_once('.').unwrap().0, encode(&other));
    for token in [
        unsigned("none"),
        unsigned("None"),
        unsigned("RS256"),
        hmac,
        forged,
        Signer::ed25519(9).token_with(&header("EdDSA"), &claims),
        Signer::ed25519(9).token_with(&header("RS256"), &claims),
        Signer::p256().token_with(&header("ES256"), &claims),
        issuer.signer.token_with(&json!({"alg": "RS256", "kid": "first", "crit": ["b64"]}), &claims),
        format!("{good}x"),
        format!("{good}.x"),
        "a.b.c".to_owned(),
        "..".to_owned(),
        "x".repeat(40_000) + ".",
    ] {
        let (status, problem) = get(&server, "/v1/sessions", &token).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{problem} {}", &token[..token.len().min(200)]);
    }
}

#[tokio::test]
async fn new_keys_are_fetched_when_they_are_needed_and_not_more_often() {
    let mut issuer = Issuer::start(Signer::ed25519(1)).await;
    let server = server(&issuer).await;
    let sessions = async |token: &str| get(&server, "/v1/sessions", token).await.0;
    let old = issuer.sign(&issuer.claims("ann", None));
    assert_eq!((sessions(&old).await, issuer.asked()), (StatusCode::OK, 1));
    issuer.rotate(Signer::p256(), "second");
    let new = issuer.sign(&issuer.claims("ann", None));
    // Within the pause no key is looked up, however many tokens name unknown ones.
    for _ in 0..20 {
        assert_eq!(sessions(&new).await, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(issuer.asked(), 1);
    server.node.clock.advance(10_000);
    assert_eq!((sessions(&new).await, issuer.asked()), (StatusCode::OK, 2));
    assert_eq!(sessions(&old).await, StatusCode::UNAUTHORIZED, "the old key is withdrawn");
    assert_eq!(issuer.asked(), 2);
}

#[tokio::test]
async fn known_keys_stay_in_use_while_the_issuer_does_not_answer() {
    let issuer = Issuer::start(Signer::ed25519(1)).await;
    let server = server(&issuer).await;
    let token = issuer.sign(&issuer.claims("ann", None));
    issuer.set_down(true);
    let (status, problem) = get(&server, "/v1/sessions", &token).await;
    assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable")));
    assert_eq!(problem["retryable"], true);
    assert_eq!(
        server.get("/v1/sessions").await.0,
        StatusCode::OK,
        "API keys and the state directory's token still work"
    );
    issuer.set_down(false);
    server.node.clock.advance(10_000);
    assert_eq!(get(&server, "/v1/sessions", &token).await.0, StatusCode::OK);
    issuer.set_down(true);
    server.node.clock.advance(30 * 60 * 1_000);
    assert_eq!(
        get(&server, "/v1/sessions", &token).await.0,
        StatusCode::OK,
        "the keys fetched earlier stay in use"
    );
}

#[tokio::test]
async fn known_keys_are_used_while_new_ones_are_fetched() {
    let issuer = Issuer::start(Signer::ed25519(1)).await;
    let server = server(&issuer).await;
    let token = issuer.sign(&issuer.claims("ann", None));
    let read = || get(&server, "/v1/sessions", &token);
    assert_eq!((read().await.0, issuer.asked()), (StatusCode::OK, 1));
    issuer.hold_keys(true);
    server.node.clock.advance(30 * 60 * 1_000);
    let mut fetching = pin!(read());
    while poll!(&mut fetching).is_pending() && issuer.asked() < 2 {
        tokio::task::yield_now().await;
    }
    let other = tokio::time::timeout(Duration::from_secs(30), read()).await.expect("it waits for the issuer");
    assert_eq!((other.0, issuer.asked()), (StatusCode::OK, 2));
    issuer.hold_keys(false);
    assert_eq!(fetching.await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_stream_ends_with_the_token_that_opened_it() {
    let issuer = Issuer::start(Signer::ed25519(1)).await;
    let server = server(&issuer).await;
    let token = issuer.sign(&issuer.claims("ann", None));
    let (_, session) = post(&server, "/v1/sessions", &token, json!({"key": "a"})).await;
    let path = format!("/v1/sessions/{}/events", session["sessionId"].as_str().unwrap());
    let request = server.anonymous(Method::GET, &path).bearer_auth(&token);
    let mut stream = request.header("accept", "text/event-stream").send().await.frames();
    server.node.clock.advance(3_600_000 + 60_000);
    while stream.next().await.is_some() {}
    assert_eq!(get(&server, "/v1/sessions", &token).await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_private_issuer_is_trusted_by_its_own_certificate_authority() {
    let clock = TestNode::start().await;
    let issuer = Issuer::start_tls(Signer::ed25519(1), clock.kernel.clone()).await;
    let token = issuer.sign(&issuer.claims("ann", None));
    for (ca, status) in [(Some(tls_file("ca.pem")), StatusCode::OK), (None, StatusCode::SERVICE_UNAVAILABLE)]
    {
        let config = OidcConfig { issuer: Some(issuer.address()), ca, ..OidcConfig::default() };
        let accepts = TestNode::builder().edge(|http| http.with_oidc(Oidc::new(config).unwrap()));
        let server = Server::with(accepts).await;
        assert_eq!(get(&server, "/v1/sessions", &token).await.0, status);
    }
}

#[tokio::test]
async fn a_file_without_certificates_is_no_certificate_authority() {
    let node = TestNode::start().await;
    let file = node.dir().join("ca.pem");
    let accept = || {
        let (issuer, ca) = (Some("https://issuer.example".to_owned()), Some(file.clone()));
        Oidc::new(OidcConfig { issuer, ca, ..OidcConfig::default() }).map(drop).unwrap_err()
    };
    assert!(accept().contains("oidc.ca") && accept().contains("cannot be read"), "{}", accept());
    std::fs::write(&file, "nonsense").unwrap();
    assert!(accept().contains("no certificate"), "{}", accept());
}

#[test]
fn an_issuer_without_tls_is_refused_unless_it_is_on_this_machine() {
    let accept = |issuer: &str| {
        Oidc::new(OidcConfig { issuer: Some(issuer.into()), ..OidcConfig::default() }).map(drop)
    };
    assert!(accept("http://issuer.example").unwrap_err().contains("https://"));
    assert!(accept("ftp://127.0.0.1").is_err() && accept("nonsense").is_err());
    assert!(accept("https://issuer.example/realm").is_ok() && accept("http://[::1]:8080").is_ok());
}

const VERIFIER: &str = "verifier-verifier-verifier-verifier-verifier";
const NONCE: &str = "nonce-nonce-nonce";

/// A server at which browsers sign in with the client `page`.
async fn with_client(issuer: &Issuer, secret: Option<&std::path::Path>) -> Server {
    let config = OidcConfig {
        issuer: Some(issuer.address()),
        client_id: Some("page".into()),
        client_secret_file: secret.map(Into::into),
        ..OidcConfig::default()
    };
    Server::with(TestNode::builder().edge(|http| http.with_oidc(Oidc::new(config).unwrap()))).await
}

/// The ID token of `ann` for the client `page`.
fn id_token(issuer: &Issuer, nonce: &str) -> String {
    let mut claims = issuer.claims("ann", Some("acme"));
    (claims["aud"], claims["nonce"]) = (json!("page"), json!(nonce));
    issuer.sign(&claims)
}

async fn exchange(server: &Server, origin: &str) -> (StatusCode, Value) {
    let request = server.anonymous(Method::POST, "/v1/sign-in/oidc").header("host", "127.0.0.1:7433");
    let answer = json!({"code": "c 1", "verifier": VERIFIER, "nonce": NONCE});
    send_request(request.header("origin", origin).json(&answer)).await
}

#[tokio::test]
async fn a_browser_exchanges_the_answer_of_the_issuer_for_a_token() {
    let issuer = Issuer::start(Signer::ed25519(1)).await;
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&secret, "s3&cret\n").unwrap();
    let server = with_client(&issuer, Some(secret.path())).await;
    let (status, ways) = send_request(server.anonymous(Method::GET, "/v1/sign-in")).await;
    let address = issuer.address();
    let way = json!({"issuer": address, "clientId": "page", "authorizationEndpoint": format!("{address}/authorize")});
    assert_eq!((status, ways), (StatusCode::OK, json!({"oidc": way})));
    issuer.answer_codes(json!({"id_token": id_token(&issuer, NONCE)}));
    let (status, signed_in) = exchange(&server, "http://127.0.0.1:7433").await;
    assert_eq!(status, StatusCode::OK, "{signed_in}");
    let form =
        "grant_type=authorization_code&code=c+1&redirect_uri=http%3A%2F%2F127.0.0.1%3A7433%2F&client_id=page";
    assert_eq!(issuer.exchanged(), [format!("{form}&code_verifier={VERIFIER}&client_secret=s3%26cret")]);
    let (_, me) = get(&server, "/v1/me", signed_in["token"].as_str().unwrap()).await;
    assert_eq!(
        (&me["ownerId"], &me["orgId"], &me["role"]),
        (&json!("ann"), &json!("acme"), &json!("member"))
    );
    assert!(signed_in["expiresAtMs"].as_i64().unwrap() > server.node.clock.now().0);
}

#[tokio::test]
async fn a_flood_of_sign_ins_does_not_reach_the_issuer() {
    let issuer = Issuer::start(Signer::ed25519(1)).await;
    let server = with_client(&issuer, None).await;
    let own = "http://127.0.0.1:7433";
    issuer.answer_codes(json!({"id_token": id_token(&issuer, NONCE)}));
    issuer.hold_codes(true);
    let waiting = futures_util::future::join_all((0..8).map(|_| exchange(&server, own)));
    let flood = async {
        while issuer.exchanged().len() < 8 {
            tokio::task::yield_now().await;
        }
        let (status, problem) = exchange(&server, own).await;
        assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable")));
        assert_eq!(issuer.exchanged().len(), 8);
        issuer.hold_codes(false);
    };
    let (signed_in, ()) = tokio::join!(waiting, flood);
    assert!(signed_in.iter().all(|(status, _)| *status == StatusCode::OK), "{signed_in:?}");
    assert_eq!(exchange(&server, own).await.0, StatusCode::OK);
}

#[tokio::test]
async fn an_answer_for_another_sign_in_or_from_another_page_is_refused() {
    let issuer = Issuer::start(Signer::ed25519(1)).await;
    let server = with_client(&issuer, None).await;
    let own = "http://127.0.0.1:7433";
    issuer.answer_codes(json!({"id_token": id_token(&issuer, NONCE)}));
    for origin in ["http://127.0.0.1:7434", "https://127.0.0.1:7433", "http://evil.example"] {
        let (status, problem) = exchange(&server, origin).await;
        assert!([StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status), "{origin} {problem}");
    }
    assert!(issuer.exchanged().is_empty(), "the issuer was not asked");
    for tokens in [
        json!({"id_token": id_token(&issuer, "another-nonce-00")}),
        json!({"id_token": Signer::ed25519(2).token_with(&json!({"alg": "EdDSA", "kid": "first"}), &issuer.claims("ann", None))}),
        json!({"access_token": "only"}),
        Value::Null,
    ] {
        issuer.answer_codes(tokens.clone());
        let (status, problem) = exchange(&server, own).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::UNAUTHORIZED, &json!("authentication")),
            "{tokens}"
        );
    }
    issuer.set_down(true);
    let silent = with_client(&issuer, None).await;
    let (status, ways) = send_request(silent.anonymous(Method::GET, "/v1/sign-in")).await;
    assert_eq!((status, &ways["oidc"]["authorizationEndpoint"]), (StatusCode::OK, &Value::Null), "{ways}");
    let (status, problem) = exchange(&silent, own).await;
    assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable")));
}

#[tokio::test]
async fn without_a_client_id_browsers_do_not_sign_in_at_the_issuer() {
    let issuer = Issuer::start(Signer::ed25519(1)).await;
    for server in [server(&issuer).await, Server::start().await] {
        let (status, ways) = send_request(server.anonymous(Method::GET, "/v1/sign-in")).await;
        assert_eq!((status, ways), (StatusCode::OK, json!({})));
        let (status, problem) = exchange(&server, "http://127.0.0.1:7433").await;
        assert_eq!((status, &problem["code"]), (StatusCode::UNAUTHORIZED, &json!("authentication")));
    }
    // A server without a client id refuses tokens for the client of a page.
    let server = server(&issuer).await;
    assert_eq!(get(&server, "/v1/me", &id_token(&issuer, NONCE)).await.0, StatusCode::UNAUTHORIZED);
}
