//! Webhooks.

use mainspring_core::{Time, Webhook, WebhookId};
use serde::{Deserialize, Serialize};

/// A webhook to add.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewWebhook {
    /// The address that events are posted to: `https`, or `http`.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 2048))]
    pub url: String,
    /// The types of the events that are delivered, such as `run.failed`, or the first words of types, such as `run`. If not
    /// given: the types of events that concern a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
}

/// A new webhook with the secret that signs its deliveries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct MadeWebhook {
    /// The webhook.
    #[serde(flatten)]
    pub webhook: Webhook,
    /// The secret. Only this answer contains it.
    pub secret: String,
}

/// The body of a test delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "webhook.test", rename_all = "camelCase")]
pub struct WebhookTest {
    /// The webhook that is tested.
    pub webhook_id: WebhookId,
    /// When the test was sent.
    pub timestamp_ms: Time,
}

/// The result of an attempt to deliver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct WebhookDelivery {
    /// True if the receiver has accepted the event.
    pub delivered: bool,
    /// Why the event was not delivered. Absent if it was delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Selects dead letters to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeadLetterQuery {
    /// The number of dead letters; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Lists only dead letters after the event with this cursor: the `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(maximum = 9_223_372_036_854_775_807_i64))]
    pub after: Option<u64>,
}
