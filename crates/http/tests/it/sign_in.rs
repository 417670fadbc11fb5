//! Browsers sign in with a ticket: each half of the key is useless without the other.

use axum::http::{Method, StatusCode};
use mainspring_test_support::TestNode;
use serde_json::{Value, json};

use crate::world::{RequestBuilder, Server, send_request};

const HOST: &str = "localhost:7433";
const ORIGIN: &str = "http://localhost:7433";

async fn ticket(server: &Server) -> String {
    let (status, made) = send_request(server.request(Method::POST, "/v1/tickets")).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    made["ticket"].as_str().unwrap().to_owned()
}

fn redeem(server: &Server, ticket: &str, origin: &str) -> RequestBuilder {
    let request = server.anonymous(Method::POST, "/v1/tickets/redeem").header("host", HOST);
    request.header("origin", origin).json(&json!({"ticket": ticket}))
}

/// A browser that has signed in: its cookie and the page's half of the key.
struct Browser {
    cookie: String,
    secret: String,
}

impl Browser {
    async fn sign_in(server: &Server) -> Self {
        let answer = redeem(server, &ticket(server).await, ORIGIN).send().await;
        assert_eq!(answer.status(), StatusCode::OK);
        let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
        let attributes = "; Path=/v1; HttpOnly; SameSite=Strict; Max-Age=2592000";
        let cookie = cookie.strip_suffix(attributes).expect("the attributes").to_owned();
        let body: Value = answer.json().await;
        Self { cookie, secret: body["secret"].as_str().unwrap().to_owned() }
    }

    fn request(&self, server: &Server, method: Method, path: &str) -> RequestBuilder {
        let request = server.anonymous(method, path).header("host", HOST);
        request.header("cookie", &format!("other=1; {}", self.cookie)).header("mainspring-page", &self.secret)
    }
}

#[tokio::test]
async fn a_ticket_signs_a_browser_in_once() {
    let server = Server::start().await;
    let ticket = ticket(&server).await;
    let foreign = send_request(redeem(&server, &ticket, "http://localhost:9999")).await;
    assert_eq!((foreign.0, &foreign.1["code"]), (StatusCode::FORBIDDEN, &json!("forbidden_origin")));
    assert_eq!(send_request(redeem(&server, &ticket, ORIGIN)).await.0, StatusCode::OK);
    let (status, again) = send_request(redeem(&server, &ticket, ORIGIN)).await;
    assert_eq!((status, &again["code"]), (StatusCode::UNAUTHORIZED, &json!("authentication")));
}

#[tokio::test]
async fn a_ticket_expires() {
    let server = Server::start().await;
    let ticket = ticket(&server).await;
    server.node.clock.advance(60_000);
    assert_eq!(send_request(redeem(&server, &ticket, ORIGIN)).await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_request_needs_cookie_secret_and_own_origin() {
    let server = Server::start().await;
    let browser = Browser::sign_in(&server).await;
    let (status, me) = send_request(browser.request(&server, Method::GET, "/v1/me")).await;
    assert_eq!((status, &me["role"]), (StatusCode::OK, &json!("admin")));
    let get = || server.anonymous(Method::GET, "/v1/me").header("host", HOST);
    let alone = [
        get().header("cookie", &browser.cookie),
        get().header("mainspring-page", &browser.secret),
        get().header("cookie", &browser.cookie).header("mainspring-page", &"0".repeat(64)),
        get().header("cookie", &browser.cookie).header("mainspring-page", "xyz"),
    ];
    for request in alone {
        assert_eq!(send_request(request).await.0, StatusCode::UNAUTHORIZED);
    }
    // A change needs the Origin that every browser sends with it.
    let create = || browser.request(&server, Method::POST, "/v1/sessions").json(&json!({"key": "a"}));
    assert_eq!(send_request(create()).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(send_request(create().header("origin", "null")).await.0, StatusCode::FORBIDDEN);
    assert_eq!(send_request(create().header("origin", ORIGIN)).await.0, StatusCode::CREATED);
}

#[tokio::test]
async fn revoking_the_key_signs_the_browser_out_and_ends_its_streams() {
    let server = Server::start().await;
    let browser = Browser::sign_in(&server).await;
    let (_, me) = send_request(browser.request(&server, Method::GET, "/v1/me")).await;
    let stream = browser.request(&server, Method::GET, "/v1/events").header("accept", "text/event-stream");
    let mut stream = stream.send().await.frames();
    assert!(stream.next().await.is_some());
    let key = me["keyId"].as_str().unwrap();
    assert_eq!(server.delete(&format!("/v1/keys/{key}")).await.0, StatusCode::NO_CONTENT);
    while stream.next().await.is_some() {}
    let (status, _) = send_request(browser.request(&server, Method::GET, "/v1/me")).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn only_admins_make_tickets() {
    let server = Server::start().await;
    for role in ["member", "viewer"] {
        let (_, key) = server.post("/v1/keys", json!({"name": "k", "role": role})).await;
        let request = server.anonymous(Method::POST, "/v1/tickets");
        let (status, problem) = send_request(request.bearer_auth(key["secret"].as_str().unwrap())).await;
        assert_eq!((status, &problem["code"]), (StatusCode::FORBIDDEN, &json!("forbidden")));
    }
}

#[tokio::test]
async fn a_ticket_ends_with_the_key_that_made_it_and_its_sign_in_is_recorded() {
    let server = Server::start().await;
    let new = json!({"name": "boss", "ownerId": "ada", "role": "admin", "expiresAtMs": server.node.clock.now().0 + 90_000});
    let (_, boss) = send_request(server.request(Method::POST, "/v1/keys").json(&new)).await;
    let make = || server.anonymous(Method::POST, "/v1/tickets").bearer_auth(boss["secret"].as_str().unwrap());
    let [first, second] = [send_request(make()).await.1, send_request(make()).await.1];
    let signed_in = redeem(&server, first["ticket"].as_str().unwrap(), ORIGIN).send().await;
    assert_eq!(signed_in.status(), StatusCode::OK);
    let (_, keys) = send_request(server.request(Method::GET, "/v1/keys")).await;
    let page = keys["items"].as_array().unwrap().iter().find(|key| key["name"] == "page").unwrap();
    assert_eq!(page["expiresAtMs"], boss["expiresAtMs"]);
    let (_, records) = send_request(server.request(Method::GET, "/v1/audit?operation=ticket_redeem")).await;
    let record = &records["items"][0];
    assert_eq!((&record["by"]["keyId"], &record["ownerId"]), (&boss["keyId"], &json!("ada")));
    assert_eq!(record["about"], json!([page["keyId"]]));
    let revoke = format!("/v1/keys/{}", boss["keyId"].as_str().unwrap());
    assert_eq!(send_request(server.request(Method::DELETE, &revoke)).await.0, StatusCode::NO_CONTENT);
    let refused = send_request(redeem(&server, second["ticket"].as_str().unwrap(), ORIGIN)).await;
    assert_eq!((refused.0, &refused.1["code"]), (StatusCode::UNAUTHORIZED, &json!("authentication")));
}

#[tokio::test]
async fn the_scheme_is_a_part_of_the_origin_and_requests_for_other_sites_are_refused() {
    for (is_tls, own, other) in [
        (false, "http://localhost:7433", "https://localhost:7433"),
        (true, "https://localhost:7433", "http://localhost:7433"),
    ] {
        let server = Server::with(TestNode::builder().edge(move |http| http.with_tls(is_tls))).await;
        let ticket = ticket(&server).await;
        let (status, problem) = send_request(redeem(&server, &ticket, other)).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::FORBIDDEN, &json!("forbidden_origin")),
            "{other}"
        );
        assert_eq!(send_request(redeem(&server, &ticket, own)).await.0, StatusCode::OK, "{own}");
    }
    let server = Server::start().await;
    let browser = Browser::sign_in(&server).await;
    for (site, status) in [
        ("same-origin", StatusCode::OK),
        ("none", StatusCode::OK),
        ("same-site", StatusCode::FORBIDDEN),
        ("cross-site", StatusCode::FORBIDDEN),
    ] {
        let request = browser.request(&server, Method::GET, "/v1/me").header("sec-fetch-site", site);
        assert_eq!(send_request(request).await.0, status, "{site}");
        // A browser adds no bearer token by itself, so a request with one is accepted from any site.
        let request = server.request(Method::GET, "/v1/me").header("sec-fetch-site", site);
        assert_eq!(send_request(request).await.0, StatusCode::OK, "{site}");
    }
}

#[tokio::test]
async fn a_sign_in_for_an_owner_leaves_the_owner_in_its_org() {
    let server = Server::start().await;
    let key = async |secret: Option<&str>, body: Value| {
        let request = match secret {
            Some(secret) => server.anonymous(Method::POST, "/v1/keys").bearer_auth(secret),
            None => server.request(Method::POST, "/v1/keys"),
        };
        send_request(request.json(&body)).await
    };
    let boss = json!({"name": "boss", "ownerId": "boss", "orgId": "acme", "role": "admin"});
    let boss = key(None, boss).await.1["secret"].as_str().unwrap().to_owned();
    let for_ana = json!({"name": "k", "ownerId": "ana"});
    assert_eq!(key(Some(&boss), for_ana.clone()).await.0, StatusCode::CREATED);
    let made =
        send_request(server.request(Method::POST, "/v1/tickets").header("mainspring-owner", "ana")).await.1;
    let signed_in = send_request(redeem(&server, made["ticket"].as_str().unwrap(), ORIGIN)).await;
    assert_eq!(signed_in.0, StatusCode::OK, "{}", signed_in.1);
    let (_, keys) = server.get("/v1/keys").await;
    let page = keys["items"].as_array().unwrap().iter().find(|key| key["name"] == "page").unwrap();
    assert_eq!((&page["ownerId"], &page["orgId"]), (&json!("ana"), &json!("acme")));
    let (status, again) = key(Some(&boss), for_ana).await;
    assert_eq!(status, StatusCode::CREATED, "the org's admin still has the owner: {again}");
}

#[tokio::test]
async fn a_request_without_a_credential_sends_a_small_body() {
    let server = Server::start().await;
    for path in ["/v1/tickets/redeem", "/v1/sign-in/oidc"] {
        let request = server.anonymous(Method::POST, path).header("host", HOST).header("origin", ORIGIN);
        let (status, problem) = send_request(request.json(&json!({"ticket": "a".repeat(12 << 20)}))).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::PAYLOAD_TOO_LARGE, &json!("too_large")),
            "{path}"
        );
    }
}
