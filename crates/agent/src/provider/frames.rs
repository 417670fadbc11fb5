//! Observes the raw frames of a stream, for three things that the `genai` client does not pass on: the usage as the
//! provider reported it, a refusal, and the code of a failed response.

use std::sync::Arc;

use genai::chat::{FrameCtx, RawFrameRef};
use parking_lot::Mutex;
use serde_json::Value;

/// Observes frames. Frames are kept as text and parsed only when needed.
#[derive(Debug, Clone, Default)]
pub(super) struct FrameObserver(Arc<Mutex<Observed>>);

#[derive(Debug, Default)]
struct Observed {
    usage: Option<String>,
    refused: bool,
    failed: Option<String>,
}

impl FrameObserver {
    /// Returns the callback for each frame.
    pub(super) fn callback(&self) -> impl Fn(&FrameCtx, RawFrameRef<'_>) + Send + Sync + 'static + use<> {
        let observer = self.clone();
        move |_, frame| observer.observe(frame.data)
    }

    fn observe(&self, data: &str) {
        if data.contains("_tokens\"") || data.contains("TokenCount\"") {
            self.0.lock().usage = Some(data.to_owned());
        }
        if data.contains("\"refusal\"") || data.contains("response.refusal") {
            let frame: Value = serde_json::from_str(data).unwrap_or_default();
            let chat = frame["choices"][0]["delta"]["refusal"].is_string();
            let responses = frame["type"] == "response.refusal.delta";
            self.0.lock().refused |= chat || responses;
        }
        if data.contains("\"response.failed\"") {
            self.0.lock().failed = Some(data.to_owned());
        }
    }

    /// Returns the usage as the provider reported it.
    pub(super) fn usage(&self) -> Value {
        let Some(data) = self.0.lock().usage.take() else { return Value::Null };
        let frame: Value = serde_json::from_str(&data).unwrap_or_default();
        let paths = ["/usage", "/message/usage", "/response/usage", "/usageMetadata"];
        paths.iter().find_map(|path| frame.pointer(path)).cloned().unwrap_or_default()
    }

    /// Returns true if the model refused to answer.
    pub(super) fn refused(&self) -> bool {
        self.0.lock().refused
    }

    /// Returns the error of a failed response, as JSON.
    pub(super) fn failed(&self) -> Option<String> {
        let data = self.0.lock().failed.take()?;
        let frame: Value = serde_json::from_str(&data).ok()?;
        Some(frame["response"]["error"].to_string())
    }
}
