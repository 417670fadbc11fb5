//! Names of the headers that belong to the contract, in lower case.

/// The owner that the holder of the state directory's token acts for.
pub const OWNER: &str = "mainspring-owner";
/// The host whose tools the agents of a run call.
pub const HOST: &str = "mainspring-host";
/// The history of the stored events, in answers about resources.
pub const HISTORY: &str = "mainspring-history";
/// Makes a repeated request idempotent.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The position after which a stream continues.
pub const LAST_EVENT_ID: &str = "last-event-id";
