//! `/v1/webhooks`: addresses that receive the caller's events.

use axum::RequestPartsExt;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use mainspring_api::{DeadLetterQuery, MadeWebhook, NewWebhook, Page, ToJson, WebhookDelivery, WebhookTest};
use mainspring_core::{BadId, Cursor, DeadLetter, Delivery, Webhook, WebhookId};
use mainspring_kernel::Error;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

use crate::access::Authenticated;
use crate::audit::About;
use crate::body::{Json, JsonObject, QueryParams, WebhookPath, in_path};
use crate::sessions::page_of;
use crate::{Http, Problem};

mod deliver;
mod sender;
pub use deliver::deliver_webhooks;
pub use sender::WebhookSender;

/// Extracts a webhook and the cursor of one of its dead letters from the path.
pub(super) struct LetterPath(WebhookId, Cursor);

impl<S: Send + Sync> FromRequestParts<S> for LetterPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let path: Result<Path<(String, String)>, PathRejection> = parts.extract().await;
        let Path((webhook, cursor)) = path.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        let webhook = webhook.parse().map_err(|bad: BadId| Problem::invalid(bad.to_string()))?;
        let cursor = cursor.parse::<i64>().ok().and_then(|cursor| u64::try_from(cursor).ok());
        let cursor = cursor.ok_or_else(|| Problem::invalid("the cursor of a dead letter is a number"))?;
        Ok(Self(webhook, Cursor(cursor)))
    }
}

impl IntoParams for LetterPath {
    fn into_params(within: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let mut params = WebhookPath::into_params(within);
        params.push(in_path("cursor", "The cursor of the event.", "^[0-9]{1,18}$"));
        params
    }
}

fn sender(http: &Http) -> Result<&WebhookSender, Error> {
    http.webhooks.as_ref().ok_or_else(|| Error::Unavailable("this server delivers no webhooks".into()))
}

fn delivery_form(delivery: Delivery) -> WebhookDelivery {
    match delivery {
        Delivery::Delivered => WebhookDelivery { delivered: true, error: None },
        Delivery::Failed(error) | Delivery::Refused(error) => {
            WebhookDelivery { delivered: false, error: Some(error) }
        }
    }
}

/// Adds a webhook; only this response contains its secret
#[utoipa::path(
    post, path = "/v1/webhooks", request_body = NewWebhook,
    responses((status = 201, description = "The new webhook with its secret", body = MadeWebhook)),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn webhook_create(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    JsonObject(new): JsonObject<NewWebhook>,
) -> Result<Response, Problem> {
    http.kernel.check_makes_webhooks(&caller)?;
    let sender = sender(&http)?;
    sender.check_url(&new.url).map_err(|why| Problem::invalid(format!("the URL of a webhook: {why}")))?;
    let webhook = http.kernel.webhook_create(&caller, new.url, new.types).await?;
    let (about, secret) = (About::ids([&webhook.id]), sender.secret(webhook.id));
    Ok(about.with((StatusCode::CREATED, Json(MadeWebhook { webhook, secret }))))
}

/// Lists the caller's webhooks, without their secrets
#[utoipa::path(
    get, path = "/v1/webhooks",
    responses((status = 200, description = "All webhooks of the caller", body = Page<Webhook>)),
)]
pub(super) async fn webhook_list(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
) -> Result<Json<Page<Webhook>>, Problem> {
    Ok(Json(Page::single(http.kernel.webhook_list(&caller).await?)))
}

/// Removes a webhook and its dead letters
#[utoipa::path(
    delete, path = "/v1/webhooks/{webhook}", params(WebhookPath),
    responses((status = 204, description = "The webhook is removed")),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn webhook_remove(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    WebhookPath(webhook): WebhookPath,
) -> Result<StatusCode, Problem> {
    http.kernel.webhook_remove(&caller, webhook).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sends a test event to a webhook, once
#[utoipa::path(
    post, path = "/v1/webhooks/{webhook}/test", params(WebhookPath),
    responses((status = 200, description = "Whether the receiver has accepted it", body = WebhookDelivery)),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn webhook_test(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    WebhookPath(id): WebhookPath,
) -> Result<Json<WebhookDelivery>, Problem> {
    let webhook = http.kernel.webhook_for_change(&caller, id).await?;
    let now = http.kernel.now();
    let delivery = match (WebhookTest { webhook_id: id, timestamp_ms: now }).to_json() {
        Ok(body) => sender(&http)?.send(&webhook, "test", body, now).await,
        Err(error) => Delivery::Refused(error.to_string()),
    };
    Ok(Json(delivery_form(delivery)))
}

/// Lists the events that could not be delivered to a webhook, in their order
#[utoipa::path(
    get, path = "/v1/webhooks/{webhook}/dead", params(WebhookPath, DeadLetterQuery),
    responses((status = 200, description = "A page of dead letters", body = Page<DeadLetter>)),
)]
pub(super) async fn webhook_dead(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    WebhookPath(webhook): WebhookPath,
    QueryParams(query): QueryParams<DeadLetterQuery>,
) -> Result<Json<Page<DeadLetter>>, Problem> {
    let after = Cursor(query.after.unwrap_or(0).min(i64::MAX.unsigned_abs()));
    let letters = http.kernel.webhook_dead(&caller, webhook, after, query.limit).await?;
    Ok(Json(page_of(&http, letters, query.limit, |letter| letter.cursor.0.to_string())))
}

/// Sends a dead letter again, once; a delivered one leaves the list
#[utoipa::path(
    post, path = "/v1/webhooks/{webhook}/dead/{cursor}/retry", params(LetterPath),
    responses((status = 200, description = "Whether the receiver has accepted it", body = WebhookDelivery)),
    extensions(("x-problems" = json!(["forbidden", "cursor_expired"]))),
)]
pub(super) async fn webhook_retry(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    LetterPath(webhook, cursor): LetterPath,
) -> Result<Json<WebhookDelivery>, Problem> {
    let (webhook, letter, event) = http.kernel.webhook_letter(&caller, webhook, cursor).await?;
    let body =
        mainspring_api::ToJson::to_json(&event).map_err(|error| Problem::invalid(error.to_string()))?;
    let sent = sender(&http)?.send(&webhook, &event.id.to_string(), body, http.kernel.now()).await;
    http.kernel.webhook_resent(letter, &sent).await?;
    Ok(Json(delivery_form(sent)))
}
