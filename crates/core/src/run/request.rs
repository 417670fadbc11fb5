//! What a run was asked: names, options, place, mode, policy.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::MessageId;
use crate::message::names;

/// The caller's own names for a request; together with the owner they make acceptance exactly-once.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RequestName {
    /// Who asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The caller's name for the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The caller's idempotency key, for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// What a run needs beside its prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RunOptions {
    /// Instructions for the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// A logical model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_profile: Option<String>,
    /// A model by its provider's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The folder the agent works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// What the model's provider is told besides, such as a temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub model_options: Option<Map<String, Value>>,
}

impl RunOptions {
    /// These options, completed by `defaults`.
    ///
    /// A model and a model profile are one choice: whoever makes either gets no default of the other. Of the model's
    /// options each has its own default, which a null takes away.
    pub fn or(&self, defaults: &Self) -> Self {
        let chosen = self.model.is_some() || self.model_profile.is_some();
        let Self { model, model_profile, .. } = if chosen { self } else { defaults }.clone();
        let mut model_options = defaults.model_options.clone().unwrap_or_default();
        for (name, value) in self.model_options.iter().flatten() {
            match value {
                Value::Null => drop(model_options.remove(name)),
                value => drop(model_options.insert(name.clone(), value.clone())),
            }
        }
        Self {
            system_prompt: self.system_prompt.as_ref().or(defaults.system_prompt.as_ref()).cloned(),
            cwd: self.cwd.as_ref().or(defaults.cwd.as_ref()).cloned(),
            model_options: (!model_options.is_empty()).then_some(model_options),
            model,
            model_profile,
        }
    }

    /// True when a model is chosen, by its name or by a profile.
    pub fn has_model(&self) -> bool {
        self.model.is_some() || self.model_profile.is_some()
    }

    /// What the runs of a session use that is taken up again: `self` is what is said now, `kept` what the session
    /// says. Its model stays; for all else the word of now counts.
    pub fn resumed(&self, kept: &Self) -> Self {
        let Self { model, model_profile, .. } = if kept.has_model() { kept } else { self }.clone();
        Self {
            system_prompt: self.system_prompt.as_ref().or(kept.system_prompt.as_ref()).cloned(),
            cwd: self.cwd.as_ref().or(kept.cwd.as_ref()).cloned(),
            model_options: self.model_options.as_ref().or(kept.model_options.as_ref()).cloned(),
            model,
            model_profile,
        }
    }
}

/// Where in the session's tree a run writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Place {
    /// At the end of the active path.
    #[default]
    Tip,
    /// Beneath this user message: another answer to it.
    #[serde(rename_all = "camelCase")]
    Regenerate {
        /// The user message.
        message_id: MessageId,
    },
    /// Beneath this assistant message: another prompt after it.
    #[serde(rename_all = "camelCase")]
    Edit {
        /// The assistant message.
        message_id: MessageId,
    },
    /// As a new root.
    Root,
}

impl Place {
    /// True when the run leaves the active path: it is rolled back unless it succeeds.
    pub const fn is_branch(self) -> bool {
        !matches!(self, Self::Tip)
    }
}

/// Whether the agent may act or only answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Answer only.
    Ask,
    /// Act.
    #[default]
    Act,
}
names!(Mode { Ask => "ask", Act => "act" });

/// What a new prompt does to a busy session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Wait its turn.
    #[default]
    Enqueue,
    /// Join the active run at its next step.
    Steer,
    /// Take the place of the queued prompts.
    Replace,
    /// Stop the active run, keep what it wrote, then run.
    Interrupt,
    /// Be refused.
    Reject,
}
names!(Policy {
    Enqueue => "enqueue", Steer => "steer", Replace => "replace", Interrupt => "interrupt", Reject => "reject",
});

#[cfg(test)]
mod tests {
    use super::*;

    fn options(json: Value) -> RunOptions {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn who_takes_a_session_up_again_keeps_its_model_and_has_the_last_word_otherwise() {
        use serde_json::json;
        let kept =
            json!({"systemPrompt": "be kind", "model": "m1", "cwd": "/home", "modelOptions": {"seed": 7}});
        for (now, kept, resumed) in [
            (json!({}), kept.clone(), kept.clone()),
            (
                json!({"systemPrompt": "be brief", "model": "m2", "cwd": "/tmp", "modelOptions": {"temperature": 0}}),
                kept,
                json!({"systemPrompt": "be brief", "model": "m1", "cwd": "/tmp", "modelOptions": {"temperature": 0}}),
            ),
            (json!({"model": "m2"}), json!({"cwd": "/home"}), json!({"model": "m2", "cwd": "/home"})),
            (json!({"model": "m2"}), json!({"modelProfile": "fast"}), json!({"modelProfile": "fast"})),
        ] {
            assert_eq!(options(now).resumed(&options(kept)), options(resumed));
        }
    }

    #[test]
    fn what_a_request_leaves_open_its_session_says() {
        use serde_json::json;
        let session = json!({"systemPrompt": "be kind", "model": "m1", "cwd": "/home",
                             "modelOptions": {"temperature": 1, "seed": 7}});
        for (asked, merged) in [
            (json!({}), session.clone()),
            (
                json!({"systemPrompt": "", "cwd": "/tmp", "modelOptions": {"temperature": 0, "seed": null}}),
                json!({"systemPrompt": "", "model": "m1", "cwd": "/tmp", "modelOptions": {"temperature": 0}}),
            ),
            (
                json!({"modelProfile": "fast", "modelOptions": {"temperature": null, "seed": null}}),
                json!({"systemPrompt": "be kind", "modelProfile": "fast", "cwd": "/home"}),
            ),
        ] {
            let (asked, merged) = (options(asked), options(merged));
            assert_eq!(asked.or(&options(session.clone())), merged);
            assert_eq!(merged.or(&RunOptions::default()), merged, "what is complete stays as it is");
        }
    }
}
