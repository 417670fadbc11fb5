//! A look at the raw frames of a stream, for the three things that the client library does not pass on: the usage in
//! the provider's own words, a refusal, and the code of a failed response.

use std::sync::Arc;

use genai::chat::{FrameCtx, RawFrameRef};
use parking_lot::Mutex;
use serde_json::Value;

/// What was seen. Frames are kept as text; only what is needed is read, once.
#[derive(Debug, Clone, Default)]
pub(super) struct Peek(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    usage: Option<String>,
    refused: bool,
    failed: Option<String>,
}

impl Peek {
    /// What is called with each frame.
    pub(super) fn sink(&self) -> impl Fn(&FrameCtx, RawFrameRef<'_>) + Send + Sync + 'static + use<> {
        let peek = self.clone();
        move |_, frame| peek.see(frame.data)
    }

    fn see(&self, data: &str) {
        if data.contains("_tokens\"") || data.contains("TokenCount\"") {
            self.0.lock().usage = Some(data.to_owned());
        }
        if data.contains("\"refusal\"") || data.contains("response.refusal") {
            let frame: Value = serde_json::from_str(data).unwrap_or_default();
            let said = frame["choices"][0]["delta"]["refusal"].is_string();
            let named = frame["type"] == "response.refusal.delta";
            self.0.lock().refused |= said || named;
        }
        if data.contains("\"response.failed\"") {
            self.0.lock().failed = Some(data.to_owned());
        }
    }

    /// The usage in the provider's own words.
    pub(super) fn usage(&self) -> Value {
        let Some(data) = self.0.lock().usage.take() else { return Value::Null };
        let frame: Value = serde_json::from_str(&data).unwrap_or_default();
        let places = ["/usage", "/message/usage", "/response/usage", "/usageMetadata"];
        places.iter().find_map(|place| frame.pointer(place)).cloned().unwrap_or_default()
    }

    /// True when the model said that it will not answer.
    pub(super) fn refused(&self) -> bool {
        self.0.lock().refused
    }

    /// The error of a failed response, as JSON.
    pub(super) fn failed(&self) -> Option<String> {
        let data = self.0.lock().failed.take()?;
        let frame: Value = serde_json::from_str(&data).ok()?;
        Some(frame["response"]["error"].to_string())
    }
}
