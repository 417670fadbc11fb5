//! Built-in context windows of models, by the prefix of their name, as the providers documented them when this was
//! written. A configured window takes precedence.

/// Prefix of the name, and tokens of prompt and answer together.
const BUILT_IN_WINDOWS: [(&str, u64); 14] = [
    ("claude-", 200_000),
    ("gpt-3.5", 16_385),
    ("gpt-4", 8_192),
    ("gpt-4-turbo", 128_000),
    ("gpt-4o", 128_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-5", 400_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4-mini", 200_000),
    ("gemini-1.5", 1_048_576),
    ("gemini-2", 1_048_576),
    ("gemini-3", 1_048_576),
    ("deepseek-", 128_000),
];

/// Returns the context window of a model in tokens, if it is known.
pub fn context_window(model: &str) -> Option<u64> {
    let matching = BUILT_IN_WINDOWS.iter().filter(|(name, _)| model.starts_with(name));
    matching.max_by_key(|(name, _)| name.len()).map(|(_, tokens)| *tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins() {
        assert_eq!(context_window("gpt-4o-mini"), Some(128_000));
        assert_eq!(context_window("gpt-4-0613"), Some(8_192));
        assert_eq!(context_window("claude-sonnet-4-5"), Some(200_000));
        assert_eq!(context_window("unknown"), None);
    }
}
