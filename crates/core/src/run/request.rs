//! The request of a run: its names, options, limits, place, mode and policy.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::names;
use crate::{
    ClientTool, Cost, DeclaredGoal, KeyLists, MessageId, SandboxProfile, SandboxReach, Usage, UsageReports,
    tool,
};

/// The caller's own names for a request. Together with the owner they make acceptance exactly-once.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RequestName {
    /// The id of the client that sent the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The caller's id of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The caller's idempotency key, valid for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// Options of a run besides its prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RunOptions {
    /// The system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The model profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_profile: Option<String>,
    /// The model, by its provider's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The working folder of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Additional options for the model's provider, such as a temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub model_options: Option<Map<String, Value>>,
    /// The JSON Schema of the agent's structured output.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub output_schema: Option<Value>,
    /// Limits of the run.
    #[serde(skip_serializing_if = "RunLimits::is_empty")]
    pub limits: RunLimits,
    /// Tools that the caller executes. When the agent calls one, the run waits for its result.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ClientTool>,
    /// The folders in which the run's agents may work. Absent: anywhere but in the state directory; empty: only in
    /// the folders that are configured for the adapter. The server sets them from the caller's key; a request cannot
    /// set them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folders: Option<Vec<String>>,
    /// The weakest sandbox that the run's agents may have. The server sets it for a delegated run, from the parent's
    /// sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxProfile>,
    /// Rules that deny and are applied before all others. Only delegated runs of earlier versions have them: see
    /// `bounds`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<String>,
    /// The rules of each run above this one, as they were when it delegated. Each action gets the strictest verdict of
    /// all lists: it is denied if one list denies it, else a person is asked if one list asks. The server sets the
    /// rules for a delegated run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<Vec<String>>,
    /// The widest reach that the run's confined agents may have. The server sets it for a delegated run, from the
    /// parent's reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub sandbox_reach: Option<SandboxReach>,
    /// The lists of the API key that the run is charged to; they limit the run. The server copies them from the
    /// caller's key, or from the parent of a delegated run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub key: Option<Box<KeyLists>>,
    /// The agent definition that the run follows, as `ID` or `ID@VERSION`. If the request names none and the adapter
    /// uses definitions, the server sets the definition that the session has when the run is accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_definition: Option<String>,
    /// The goals of the run, at most 5. The run succeeds only if the agent achieves all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub goals: Vec<DeclaredGoal>,
}

impl RunOptions {
    /// Completes these options with `defaults`.
    ///
    /// A model and a model profile are one choice: if either is set, there is no default for the other. Model options
    /// are merged one by one; a null removes a default. A tool replaces the default of the same name.
    pub fn or(&self, defaults: &Self) -> Self {
        let Self { model, model_profile, .. } = if self.has_model() { self } else { defaults }.clone();
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
            tools: tool::replaced(&defaults.tools, &self.tools),
            agent_definition: self.agent_definition.as_ref().or(defaults.agent_definition.as_ref()).cloned(),
            // The output schema, limits, goals, folders and other bounds apply to a single run and have no defaults.
            output_schema: self.output_schema.clone(),
            limits: self.limits,
            folders: self.folders.clone(),
            sandbox: self.sandbox,
            denied: self.denied.clone(),
            bounds: self.bounds.clone(),
            sandbox_reach: self.sandbox_reach.clone(),
            key: self.key.clone(),
            goals: self.goals.clone(),
        }
    }

    /// The options that are set and that only some adapters use. An empty text counts as not set.
    pub fn adapter_options(&self) -> Vec<RunOption> {
        let is_text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let given = [
            (RunOption::SystemPrompt, is_text(&self.system_prompt)),
            (RunOption::Model, is_text(&self.model)),
            (RunOption::ModelProfile, is_text(&self.model_profile)),
            (RunOption::ModelOptions, self.model_options.as_ref().is_some_and(|options| !options.is_empty())),
            (RunOption::OutputSchema, self.output_schema.is_some()),
            (RunOption::AgentDefinition, is_text(&self.agent_definition)),
            (RunOption::Goals, !self.goals.is_empty()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(option, _)| option).collect()
    }

    /// True when a model or a model profile is set.
    pub fn has_model(&self) -> bool {
        self.model.is_some() || self.model_profile.is_some()
    }

    /// Combines the options of a request that resumes a session (`self`) with the session's own (`kept`). The
    /// session's model takes precedence; for all other options the request does.
    pub fn resumed(&self, kept: &Self) -> Self {
        let Self { model, model_profile, .. } = if kept.has_model() { kept } else { self }.clone();
        Self {
            system_prompt: self.system_prompt.as_ref().or(kept.system_prompt.as_ref()).cloned(),
            cwd: self.cwd.as_ref().or(kept.cwd.as_ref()).cloned(),
            model_options: self.model_options.as_ref().or(kept.model_options.as_ref()).cloned(),
            model,
            model_profile,
            agent_definition: self.agent_definition.as_ref().or(kept.agent_definition.as_ref()).cloned(),
            output_schema: self.output_schema.clone(),
            limits: self.limits,
            // The tools of the session apply to its runs anyway.
            tools: self.tools.clone(),
            folders: self.folders.clone(),
            sandbox: self.sandbox,
            denied: self.denied.clone(),
            bounds: self.bounds.clone(),
            sandbox_reach: self.sandbox_reach.clone(),
            key: self.key.clone(),
            goals: self.goals.clone(),
        }
    }
}

/// An option of a run that only some adapters use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum RunOption {
    /// The system prompt.
    SystemPrompt,
    /// The model.
    Model,
    /// The model profile.
    ModelProfile,
    /// Options for the model's provider.
    ModelOptions,
    /// The JSON Schema of the structured output.
    OutputSchema,
    /// The agent definition.
    AgentDefinition,
    /// The goals that the agent is to achieve.
    Goals,
}
names!(RunOption {
    SystemPrompt => "systemPrompt", Model => "model", ModelProfile => "modelProfile", ModelOptions => "modelOptions",
    OutputSchema => "outputSchema", AgentDefinition => "agentDefinition", Goals => "goals",
});

impl RunOption {
    /// All options.
    pub const ALL: [Self; 7] = [
        Self::SystemPrompt,
        Self::Model,
        Self::ModelProfile,
        Self::ModelOptions,
        Self::OutputSchema,
        Self::AgentDefinition,
        Self::Goals,
    ];
}

/// Limits of a run. A field that is not set means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RunLimits {
    /// Maximum number of model calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// Maximum number of tokens, input and output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Maximum cost in US dollars.
    #[serde(rename = "maxCostUsd", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<f64>, minimum = 0.0))]
    pub max_cost: Option<Cost>,
    /// Maximum milliseconds since the start of the run.
    #[serde(rename = "maxTimeMs", skip_serializing_if = "Option::is_none")]
    pub max_time: Option<u64>,
    /// Maximum depth of delegation, counted from the run that was not delegated itself; 0 means that the run may not
    /// delegate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u32>,
    /// Whether to ask for an extension when a limit is reached. Otherwise the run fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ask: Option<bool>,
    /// Whether limits that the adapter cannot enforce are accepted. Such a limit stops nothing; the run reports if it
    /// was exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_effort: Option<bool>,
}

/// The limits of an agent definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgentLimits {
    /// The limits.
    pub limits: RunLimits,
    /// True if a run may lower the limits, but not raise them: the definition is shared, and the caller may not change
    /// it.
    pub is_ceiling: bool,
}

/// A limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Limit {
    Steps(u32),
    Tokens(u64),
    Cost(Cost),
    Time(u64),
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps} model calls"),
            Self::Tokens(tokens) => write!(f, "{tokens} tokens"),
            Self::Cost(cost) => write!(f, "{} US dollars", cost.usd().unwrap_or_default()),
            Self::Time(millis) => write!(f, "{} seconds", millis / 1000),
        }
    }
}

impl RunLimits {
    /// True when nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Completes these limits with `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            max_steps: self.max_steps.or(others.max_steps),
            max_tokens: self.max_tokens.or(others.max_tokens),
            max_cost: self.max_cost.or(others.max_cost),
            max_time: self.max_time.or(others.max_time),
            max_depth: self.max_depth.or(others.max_depth),
            ask: self.ask.or(others.ask),
            best_effort: self.best_effort.or(others.best_effort),
        }
    }

    /// Completes these limits with those of the run's agent, which are also the maximum if `is_ceiling` is true.
    #[must_use]
    pub fn of_agent(self, agent: AgentLimits) -> Self {
        let completed = self.or(agent.limits);
        if agent.is_ceiling { completed.within(&agent.limits) } else { completed }
    }

    /// Reduces these limits to those of `outer`, so that a run with them never uses more than `outer` allows. Where
    /// `outer` limits something, an extension may be asked for only if `outer` may ask too.
    #[must_use]
    pub fn within(self, outer: &Self) -> Self {
        let is_open = outer.has_no_amount() && outer.max_time.is_none();
        let may_ask = is_open || outer.ask == Some(true);
        Self {
            max_steps: min_of(self.max_steps, outer.max_steps),
            max_tokens: min_of(self.max_tokens, outer.max_tokens),
            max_cost: min_of(self.max_cost, outer.max_cost),
            max_time: min_of(self.max_time, outer.max_time),
            max_depth: min_of(self.max_depth, outer.max_depth),
            ask: if may_ask { self.ask } else { Some(false) },
            best_effort: self.best_effort,
        }
    }

    /// The limits of a child that requests these limits, when its parent has `left`. If the child sets no limit of
    /// tokens or cost, or sets it only as best effort and above what is left, it gets half of what is left, so that
    /// the parent and its other children keep a share.
    #[must_use]
    pub fn share_of(self, left: &Self) -> Self {
        let is_best_effort = self.best_effort == Some(true);
        let share = |wanted: Option<u64>, left: Option<u64>| match (wanted, left) {
            (Some(wanted), Some(left)) if wanted <= left || !is_best_effort => Some(wanted.min(left)),
            (_, Some(left)) => Some(left.div_ceil(2)),
            (wanted, None) => wanted,
        };
        let cost = share(self.max_cost.map(|cost| cost.0), left.max_cost.map(|cost| cost.0));
        Self {
            max_tokens: share(self.max_tokens, left.max_tokens),
            max_cost: cost.map(Cost),
            ..self.within(left)
        }
    }

    /// True when one of the limits leaves nothing.
    pub fn is_used_up(&self) -> bool {
        self.max_steps == Some(0)
            || self.max_tokens == Some(0)
            || self.max_cost == Some(Cost(0))
            || self.max_time == Some(0)
    }

    /// The JSON name of the first limit that cannot be enforced for an adapter that has these usage reports and does
    /// not enforce limits itself. The model calls of such an adapter are not counted; the time limit is always enforced.
    /// `None` if limits are best effort.
    pub fn unenforceable(&self, reports: UsageReports) -> Option<&'static str> {
        let is_live = reports == UsageReports::Live;
        let limits = [
            ("maxSteps", self.max_steps.is_some()),
            ("maxTokens", self.max_tokens.is_some() && !is_live),
            ("maxCostUsd", self.max_cost.is_some() && !is_live),
        ];
        let found = limits.into_iter().find(|(_, is_unenforced)| *is_unenforced).map(|(name, _)| name);
        found.filter(|_| self.best_effort != Some(true))
    }

    /// True when no number of model calls, tokens or dollars is limited.
    pub fn has_no_amount(&self) -> bool {
        self.max_steps.is_none() && self.max_tokens.is_none() && self.max_cost.is_none()
    }

    /// Returns the first limit that was reached. Each limit is multiplied by `times`: 1, plus the number of extensions.
    pub fn limit_reached(&self, times: u32, steps: u32, usage: &Usage, millis: u64) -> Option<Limit> {
        let (tokens, cost) = (usage.tokens(), usage.cost);
        let granted = |limit: u64| limit.saturating_mul(u64::from(times));
        let step =
            self.max_steps.map(|max| max.saturating_mul(times)).filter(|max| steps >= *max).map(Limit::Steps);
        let token = || self.max_tokens.map(granted).filter(|max| tokens >= *max).map(Limit::Tokens);
        let money =
            || self.max_cost.map(|max| Cost(granted(max.0))).filter(|max| cost >= *max).map(Limit::Cost);
        let time = || self.max_time.map(granted).filter(|max| millis >= *max).map(Limit::Time);
        step.or_else(token).or_else(money).or_else(time)
    }
}

/// The smaller of two limits; `None` means no limit.
fn min_of<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The place in the session's tree where a run writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Place {
    /// At the end of the active path.
    #[default]
    Tip,
    /// Beneath a user message: another answer to it.
    #[serde(rename_all = "camelCase")]
    Regenerate {
        /// The user message.
        message_id: MessageId,
    },
    /// Beneath an assistant message: another prompt after it.
    #[serde(rename_all = "camelCase")]
    Edit {
        /// The assistant message.
        message_id: MessageId,
    },
    /// As a new root.
    Root,
}

impl Place {
    /// True when the run leaves the active path. Unless such a run succeeds, the active path stays as it was.
    pub const fn is_branch(self) -> bool {
        !matches!(self, Self::Tip)
    }
}

/// Whether the agent may act or only answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The agent only answers.
    Ask,
    /// The agent may act.
    #[default]
    Act,
}
names!(Mode { Ask => "ask", Act => "act" });

/// How a prompt is handled while the session is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Wait in the queue.
    #[default]
    Enqueue,
    /// Join the active run at its next step.
    Steer,
    /// Replace the queued prompts.
    Replace,
    /// Stop the active run, keep the messages it wrote, then start.
    Interrupt,
    /// Refuse the prompt.
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
    fn the_limits_of_a_shared_agent_are_never_raised() {
        let limits = RunLimits { max_steps: Some(5), max_cost: Some(Cost(9)), ..RunLimits::default() };
        let (shared, own) =
            (AgentLimits { limits, is_ceiling: true }, AgentLimits { limits, is_ceiling: false });
        let wanted =
            RunLimits { max_steps: Some(100), max_tokens: Some(7), ask: Some(true), ..RunLimits::default() };
        let given = wanted.of_agent(shared);
        assert_eq!((given.max_steps, given.max_tokens, given.max_cost), (Some(5), Some(7), Some(Cost(9))));
        assert_eq!(given.ask, Some(false), "an extension would raise the limits, too");
        assert_eq!(wanted.of_agent(own).max_steps, Some(100));
        let lower = RunLimits { max_steps: Some(2), ..RunLimits::default() };
        assert_eq!(lower.of_agent(shared).max_steps, Some(2));
        assert_eq!(RunLimits::default().of_agent(AgentLimits::default()), RunLimits::default());
    }

    #[test]
    fn limits_within_others_are_the_smaller_ones() {
        let outer = RunLimits {
            max_tokens: Some(10),
            max_cost: Some(Cost(5)),
            max_depth: Some(1),
            ..RunLimits::default()
        };
        let inner = RunLimits {
            max_steps: Some(3),
            max_tokens: Some(20),
            max_time: Some(1),
            max_depth: Some(2),
            ask: Some(true),
            ..RunLimits::default()
        };
        let within = RunLimits {
            max_tokens: Some(10),
            max_cost: Some(Cost(5)),
            max_depth: Some(1),
            ask: Some(false),
            ..inner
        };
        assert_eq!(inner.within(&outer), within);
        assert_eq!(inner.within(&RunLimits { ask: Some(true), ..outer }).ask, Some(true));
        assert_eq!(inner.within(&RunLimits::default()), inner);
        assert_eq!(RunLimits::default().within(&outer), RunLimits { ask: Some(false), ..outer });
    }

    #[test]
    fn a_child_that_names_no_amount_gets_half_of_the_rest() {
        let left = RunLimits { max_tokens: Some(9), max_steps: Some(4), ..RunLimits::default() };
        let tokens = |max_tokens| RunLimits { max_tokens, ..RunLimits::default() };
        let best_effort = |max_tokens| RunLimits { best_effort: Some(true), ..tokens(Some(max_tokens)) };
        for (wanted, share) in [
            (tokens(None), 5),
            (tokens(Some(8)), 8),
            (tokens(Some(20)), 9),
            (best_effort(8), 8),
            (best_effort(20), 5),
        ] {
            let got = wanted.share_of(&left);
            assert_eq!((got.max_tokens, got.max_steps), (Some(share), Some(4)), "{wanted:?}");
        }
        assert_eq!(tokens(Some(7)).share_of(&RunLimits::default()), tokens(Some(7)));
    }

    #[test]
    fn resuming_keeps_the_model_of_the_session_and_takes_other_options_from_the_request() {
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
    fn adapter_options_lists_the_options_that_are_set() {
        use serde_json::json;
        let given = |json| options(json).adapter_options().iter().map(|one| one.name()).collect::<Vec<_>>();
        assert_eq!(given(json!({"systemPrompt": "", "cwd": "/", "modelOptions": {}})), [""; 0]);
        let all = json!({"systemPrompt": "s", "model": "m", "modelProfile": "p", "modelOptions": {"a": 1},
                         "outputSchema": {}, "agentDefinition": "coder",
                         "goals": [{"goalType": "dataset_summary"}]});
        assert_eq!(given(all), RunOption::ALL.map(RunOption::name));
    }

    #[test]
    fn options_of_the_session_are_defaults_for_a_request() {
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
            assert_eq!(merged.or(&RunOptions::default()), merged, "complete options do not change");
        }
    }

    #[test]
    fn a_tool_of_a_run_replaces_the_sessions_tool_of_the_same_name() {
        use serde_json::json;
        let tool = |name, description| json!({"name": name, "description": description, "inputSchema": {}});
        let session = options(json!({"tools": [tool("ring", "kept"), tool("knock", "kept")]}));
        let run = options(json!({"tools": [tool("wave", "own"), tool("ring", "own")]}));
        let tools = run.or(&session).tools;
        let names: Vec<_> = tools.iter().map(|tool| format!("{} {}", tool.name, tool.description)).collect();
        assert_eq!(names, ["ring own", "knock kept", "wave own"]);
    }

    #[test]
    fn an_unenforceable_limit_is_named_unless_limits_are_best_effort() {
        let tokens = RunLimits { max_tokens: Some(50), max_time: Some(1), ..RunLimits::default() };
        let steps = RunLimits { max_steps: Some(3), ..RunLimits::default() };
        assert_eq!(tokens.unenforceable(UsageReports::Live), None);
        assert_eq!(tokens.unenforceable(UsageReports::AtEnd), Some("maxTokens"));
        assert_eq!(tokens.unenforceable(UsageReports::Never), Some("maxTokens"));
        assert_eq!(steps.unenforceable(UsageReports::Live), Some("maxSteps"));
        let relaxed = RunLimits { best_effort: Some(true), ..tokens };
        assert_eq!(relaxed.unenforceable(UsageReports::Never), None);
    }

    #[test]
    fn the_first_limit_that_is_reached_is_named() {
        let limits = RunLimits {
            max_steps: Some(3),
            max_tokens: Some(100),
            max_cost: Some(Cost::from(0.5)),
            max_time: Some(60_000),
            ..RunLimits::default()
        };
        let usage = |input_tokens, cost| Usage { input_tokens, cost: Cost::from(cost), ..Usage::default() };
        let reached = |times, steps, usage: Usage, millis| {
            limits.limit_reached(times, steps, &usage, millis).map(|limit| limit.to_string())
        };
        assert_eq!(reached(1, 2, usage(99, 0.49), 59_999), None);
        assert_eq!(reached(1, 3, usage(0, 0.0), 0).as_deref(), Some("3 model calls"));
        assert_eq!(reached(1, 0, usage(100, 0.0), 0).as_deref(), Some("100 tokens"));
        assert_eq!(reached(1, 0, usage(0, 0.5), 0).as_deref(), Some("0.5 US dollars"));
        assert_eq!(reached(1, 0, usage(0, 0.0), 60_000).as_deref(), Some("60 seconds"));
        assert_eq!(reached(2, 3, usage(100, 0.5), 60_000), None, "an extension doubles the limits");
        assert_eq!(RunLimits::default().limit_reached(1, 99, &usage(u64::MAX, 1e9), 99), None);
    }
}
