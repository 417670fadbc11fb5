//! Settings of a native session: its model and mode.
//!
//! Newer agents offer both as config options. Older agents have a separate field and a separate request for each.

use agent_client_protocol::v1::schema::{
    SessionConfigKind, SessionConfigOption, SessionConfigOptionCategory, SessionConfigSelectOptions,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// The result of opening a native session, updated by later changes.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SessionInfo {
    /// The agent's id of the session; absent in the result of a resume.
    pub(super) session_id: Option<String>,
    config_options: Option<Vec<Value>>,
    modes: Option<Value>,
    /// The models, as older agents offer them.
    models: Option<Value>,
    /// Whether the session was resumed by an agent that reported no settings.
    #[serde(skip)]
    is_unreported: bool,
    /// The model that an agent without a list of models has accepted.
    #[serde(skip)]
    accepted_model: Option<String>,
}

/// A setting of a native session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setting {
    Model,
    Mode,
}

/// How to change a setting, and the values it can have.
pub(super) struct SettingOffer {
    /// The method and parameters of the request that changes it.
    pub(super) request: (&'static str, Value),
    pub(super) current: String,
    pub(super) values: Vec<String>,
}

impl Setting {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Mode => "mode",
        }
    }

    /// The request that changes the setting of an agent without config options.
    fn legacy_request(self, native: &str, value: &str) -> (&'static str, Value) {
        match self {
            Self::Model => ("session/set_model", json!({"sessionId": native, "modelId": value})),
            Self::Mode => ("session/set_mode", json!({"sessionId": native, "modeId": value})),
        }
    }
}

impl SessionInfo {
    /// Marks the result of a resume, and records whether the agent reported any settings with it.
    pub(super) fn resumed(self) -> Self {
        let is_unreported = self.config_options.is_none() && self.modes.is_none() && self.models.is_none();
        Self { is_unreported, ..self }
    }

    /// Finds out how to set `setting` to `value`. Returns `None` if the agent does not offer the setting.
    pub(super) fn offer(&self, setting: Setting, native: &str, value: &str) -> Option<SettingOffer> {
        let option = self.config_option(setting).map(|(id, current, values)| {
            let params = json!({"sessionId": native, "configId": id, "value": value});
            SettingOffer { request: ("session/set_config_option", params), current, values }
        });
        let legacy = || {
            let (current, values) = self.legacy_setting(setting)?;
            Some(SettingOffer { request: setting.legacy_request(native, value), current, values })
        };
        // Guess: an agent that reports no settings on resume most likely still has those of the opened
        // session, and some agents accept a model without listing their models. If the guess is wrong, the
        // request fails.
        let is_possible = self.is_unreported || setting == Setting::Model;
        let guess = || SettingOffer {
            request: setting.legacy_request(native, value),
            current: String::new(),
            values: vec![value.to_owned()],
        };
        option.or_else(legacy).or_else(|| is_possible.then(guess))
    }

    /// The current model: reported by the agent, or accepted by an agent that reports none.
    pub(super) fn current_model(&self) -> Option<String> {
        let option = self.config_option(Setting::Model).map(|(_, current, _)| current);
        let legacy = || self.legacy_setting(Setting::Model).map(|(current, _)| current);
        option.or_else(legacy).or_else(|| self.accepted_model.clone()).filter(|model| !model.is_empty())
    }

    /// Applies changes that the agent reported.
    pub(super) fn apply_changes(&mut self, (mode, options): (Option<String>, Option<Vec<Value>>)) {
        if let Some((modes, mode)) = self.modes.as_mut().zip(mode) {
            modes["currentModeId"] = mode.into();
        }
        self.config_options = options.or(self.config_options.take());
    }

    /// Applies a changed setting and the agent's response, which may hold new config options.
    pub(super) fn apply_setting(&mut self, setting: Setting, value: &str, response: Self) {
        let (offered, current) = match setting {
            Setting::Model => (&mut self.models, "currentModelId"),
            Setting::Mode => (&mut self.modes, "currentModeId"),
        };
        if let Some(offered) = offered {
            offered[current] = value.into();
        }
        if setting == Setting::Model {
            self.accepted_model = Some(value.to_owned());
        }
        self.config_options = response.config_options.or(self.config_options.take());
    }

    /// The config option of a setting: its id, current value and possible values.
    fn config_option(&self, setting: Setting) -> Option<(String, String, Vec<String>)> {
        let options = self.config_options.iter().flatten();
        let options = options.filter_map(|value| SessionConfigOption::deserialize(value).ok());
        options
            .filter(|option| match setting {
                Setting::Model => option.category == Some(SessionConfigOptionCategory::Model),
                Setting::Mode => option.category == Some(SessionConfigOptionCategory::Mode),
            })
            .find_map(|option| {
                let SessionConfigKind::Select(select) = option.kind else { return None };
                let values = match select.options {
                    SessionConfigSelectOptions::Ungrouped(options) => options,
                    SessionConfigSelectOptions::Grouped(groups) => {
                        groups.into_iter().flat_map(|group| group.options).collect()
                    }
                    _ => vec![],
                };
                let values = values.into_iter().map(|option| option.value.to_string()).collect();
                Some((option.id.to_string(), select.current_value.to_string(), values))
            })
    }

    /// The setting of an agent without config options: its current value and possible values.
    fn legacy_setting(&self, setting: Setting) -> Option<(String, Vec<String>)> {
        let (offered, current, list, id) = match setting {
            Setting::Model => (self.models.as_ref()?, "currentModelId", "availableModels", "modelId"),
            Setting::Mode => (self.modes.as_ref()?, "currentModeId", "availableModes", "id"),
        };
        let values = offered.get(list)?.as_array()?;
        let ids = values.iter().filter_map(|value| value.get(id)?.as_str().map(str::to_owned));
        Some((offered.get(current)?.as_str()?.to_owned(), ids.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(json: Value) -> SessionInfo {
        serde_json::from_value(json).unwrap()
    }

    /// The method, parameters, current value and possible values.
    fn offer(info: &SessionInfo, setting: Setting) -> Option<(&'static str, Value, String, String)> {
        let SettingOffer { request: (method, params), current, values } = info.offer(setting, "s", "x")?;
        Some((method, params, current, values.join(",")))
    }

    #[test]
    fn config_options_are_preferred_to_the_older_fields() {
        let options = json!([
            {"id": "m", "name": "Model", "category": "model", "type": "select", "currentValue": "a",
             "options": [{"group": "g", "name": "G", "options": [{"value": "a", "name": "A"}, {"value": "b", "name": "B"}]}]},
            {"id": "unknown", "type": "new_kind"},
        ]);
        let models = json!({"currentModelId": "c", "availableModels": [{"modelId": "c"}, {"modelId": "d"}]});
        let modes = json!({"currentModeId": "code", "availableModes": [{"id": "code"}, {"id": "plan"}, {}]});
        let new = info(json!({"configOptions": options, "models": models, "modes": modes}));
        let params = json!({"configId": "m", "sessionId": "s", "value": "x"});
        let by_option = ("session/set_config_option", params, "a".into(), "a,b".into());
        assert_eq!(offer(&new, Setting::Model), Some(by_option));
        let params = json!({"modeId": "x", "sessionId": "s"});
        let by_mode = ("session/set_mode", params, "code".into(), "code,plan".into());
        assert_eq!(offer(&new, Setting::Mode), Some(by_mode));
        let old = info(json!({"models": models}));
        let params = json!({"modelId": "x", "sessionId": "s"});
        let by_model = ("session/set_model", params, "c".into(), "c,d".into());
        assert_eq!(offer(&old, Setting::Model), Some(by_model));
        assert_eq!(offer(&old, Setting::Mode), None);
        // Without a list, a model is tried as given.
        let params = json!({"modelId": "x", "sessionId": "s"});
        let guess = ("session/set_model", params, String::new(), "x".into());
        assert_eq!(offer(&info(json!({})), Setting::Model), Some(guess));
    }

    #[test]
    fn a_resumed_session_without_a_report_may_have_any_value() {
        assert_eq!(offer(&info(json!({})), Setting::Mode), None);
        let resumed = info(json!({})).resumed();
        let params = json!({"modeId": "x", "sessionId": "s"});
        let guess = ("session/set_mode", params, String::new(), "x".into());
        assert_eq!(offer(&resumed, Setting::Mode), Some(guess));
        assert_eq!(offer(&info(json!({"configOptions": []})).resumed(), Setting::Mode), None);
    }

    #[test]
    fn changes_and_settings_update_the_current_value() {
        let modes = json!({"currentModeId": "code", "availableModes": [{"id": "code"}, {"id": "plan"}]});
        let mut info = info(json!({"modes": modes}));
        info.apply_changes((Some("plan".into()), None));
        assert_eq!(info.offer(Setting::Mode, "s", "code").unwrap().current, "plan");
        info.apply_setting(Setting::Mode, "code", SessionInfo::default());
        assert_eq!(info.offer(Setting::Mode, "s", "code").unwrap().current, "code");
        let option = |current: &str| {
            let values = json!([{"value": "a", "name": "A"}, {"value": "b", "name": "B"}]);
            vec![json!({"id": "m", "name": "Model", "category": "model", "type": "select",
                        "currentValue": current, "options": values})]
        };
        assert_eq!(info.current_model(), None);
        info.apply_setting(Setting::Model, "any", SessionInfo::default());
        assert_eq!(info.current_model().as_deref(), Some("any"), "the agent lists no models");
        info.apply_changes((None, Some(option("a"))));
        assert_eq!(info.current_model().as_deref(), Some("a"), "the agent's report takes precedence");
        assert_eq!(info.offer(Setting::Model, "s", "b").unwrap().current, "a");
        let response = SessionInfo { config_options: Some(option("b")), ..SessionInfo::default() };
        info.apply_setting(Setting::Model, "b", response);
        assert_eq!(info.offer(Setting::Model, "s", "b").unwrap().current, "b");
    }
}
