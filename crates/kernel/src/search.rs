//! Search: matching of queries, the same in every store.
//!
//! A text is split into tokens: words in lower case and without accents; in scripts without spaces each character is a
//! token. A query is a list of words. A text matches if it contains every word, each as the prefix of a word: `fox`
//! matches foxes. There is no query syntax.

use std::ops::Range;

use mainspring_core::message::{result_text, text_of};
use mainspring_core::{Block, Session, Visibility};
use serde_json::Map;
use unicode_normalization::char::{decompose_compatible, is_combining_mark};

/// Words of a query; further words are ignored.
const QUERY_MAX_WORDS: usize = 16;
/// Tokens of a word; further ones are ignored. The cost of finding a word is the number of tokens of the text times
/// that of the word.
const WORD_MAX_TOKENS: usize = 32;
/// Bytes of a message that are searched.
const SEARCHABLE_MAX_BYTES: usize = 256 << 10;
/// Characters of a snippet before the match.
const SNIPPET_LEAD_CHARS: usize = 40;
/// Characters of a snippet.
const SNIPPET_MAX_CHARS: usize = 160;

/// A parsed search query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The tokens of each word. They must follow one another in a text; the last one matches as a prefix.
    words: Vec<Vec<String>>,
    /// Only sessions that this org may read.
    org: Option<String>,
}

impl Query {
    /// Parses a query; none if it contains no word.
    pub fn parse(text: &str) -> Option<Self> {
        let words = text
            .split_whitespace()
            .map(|word| tokens(word).map(|(token, _)| token).take(WORD_MAX_TOKENS).collect());
        let words: Vec<Vec<String>> =
            words.filter(|word: &Vec<String>| !word.is_empty()).take(QUERY_MAX_WORDS).collect();
        (!words.is_empty()).then_some(Self { words, org: None })
    }

    /// Restricts the query to sessions that `org` may read.
    pub fn shared_with(self, org: &str) -> Self {
        Self { org: Some(org.to_owned()), ..self }
    }

    /// The org to whose sessions the query is restricted.
    pub fn org(&self) -> Option<&str> {
        self.org.as_deref()
    }

    /// True if the query is about `session`.
    pub fn covers(&self, session: &Session) -> bool {
        let is_shared = session.visibility == Visibility::Org && session.org == self.org;
        self.org.is_none() || is_shared
    }

    /// True if `text` contains every word.
    pub fn matches(&self, text: &str) -> bool {
        let tokens: Vec<_> = tokens(text).collect();
        self.words.iter().all(|word| find_word(word, &tokens).is_some())
    }

    /// The tokens of each word.
    pub fn words(&self) -> &[Vec<String>] {
        &self.words
    }

    /// The part of `text` around the first match, on one line.
    pub fn snippet(&self, text: &str) -> String {
        let tokens: Vec<_> = tokens(text).collect();
        let found =
            self.words.iter().filter_map(|word| find_word(word, &tokens)).min_by_key(|range| range.start);
        let found = found.map_or(0, |range| range.start);
        let start = text[..found].char_indices().rev().nth(SNIPPET_LEAD_CHARS).map_or(0, |(at, _)| at);
        // A word that would be cut in two is left out.
        let start = match start {
            0 => 0,
            cut => text[cut..found].find(char::is_whitespace).map_or(found, |space| cut + space),
        };
        let end =
            text[start..].char_indices().nth(SNIPPET_MAX_CHARS).map_or(text.len(), |(at, _)| start + at);
        let excerpt = text[start..end].split_whitespace().collect::<Vec<_>>().join(" ");
        let (lead, trail) = (if start > 0 { "… " } else { "" }, if end < text.len() { " …" } else { "" });
        format!("{lead}{excerpt}{trail}")
    }
}

/// The range of the first occurrence of `word` in `tokens`.
fn find_word(word: &[String], tokens: &[(String, Range<usize>)]) -> Option<Range<usize>> {
    let (last, whole) = word.split_last()?;
    let is_match = |window: &&[(String, Range<usize>)]| {
        window.iter().zip(whole).all(|((token, _), wanted)| token == wanted)
            && window.last().is_some_and(|(token, _)| token.starts_with(last.as_str()))
    };
    let window = tokens.windows(word.len()).find(is_match)?;
    Some(window.first()?.1.start..window.last()?.1.end)
}

/// The searchable text of a message, up to a size limit: its texts, its tool calls and their results. The texts of
/// changed files are not searched, their paths are.
pub fn searchable_text(content: &[Block]) -> String {
    let mut text = text_of(content);
    for block in content {
        let part = match block {
            Block::ToolUse { name, input, title, .. } => {
                let input = if input.as_object().is_some_and(Map::is_empty) {
                    String::new()
                } else {
                    input.to_string()
                };
                format!("{name} {} {input}", title.as_deref().unwrap_or_default())
            }
            Block::ToolResult { content, .. } => result_text(content),
            Block::Attachment { name, .. } => name.clone().unwrap_or_default(),
            Block::Text { .. } | Block::Thinking {} | Block::Diff { .. } | Block::Error { .. } => continue,
        };
        if text.len() > SEARCHABLE_MAX_BYTES {
            break;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&part);
    }
    if text.len() > SEARCHABLE_MAX_BYTES {
        text.truncate(text.floor_char_boundary(SEARCHABLE_MAX_BYTES));
    }
    text
}

/// The tokens of `text` in order, separated by spaces, as a store indexes them.
pub fn folded(text: &str) -> String {
    match text.is_ascii() {
        true => folded_ascii(text),
        false => tokens(text).map(|(token, _)| token).collect::<Vec<_>>().join(" "),
    }
}

/// The tokens of an ASCII text. A fast path: most texts are ASCII, and the writer folds every message.
fn folded_ascii(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    for word in text.split(|char: char| !char.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        if !folded.is_empty() {
            folded.push(' ');
        }
        folded.push_str(word);
    }
    folded.make_ascii_lowercase();
    folded
}

/// The tokens of `text`, each with its byte range.
fn tokens(text: &str) -> impl Iterator<Item = (String, Range<usize>)> + '_ {
    let mut chars = text.char_indices().peekable();
    std::iter::from_fn(move || {
        let (mut token, mut range) = (String::new(), 0..0);
        while let Some((at, char)) = chars.peek().copied() {
            let is_part = char.is_alphanumeric() || (!char.is_ascii() && is_combining_mark(char));
            if !token.is_empty() && (!is_part || is_spaceless(char)) {
                break;
            }
            chars.next();
            if is_part {
                fold(char, &mut token);
            }
            if !token.is_empty() {
                let start = if range.is_empty() { at } else { range.start };
                range = start..at + char.len_utf8();
                if is_spaceless(char) {
                    break;
                }
            }
        }
        (!token.is_empty()).then_some((token, range))
    })
}

/// Appends `char` to `token` in lower case and without accents.
fn fold(char: char, token: &mut String) {
    if char.is_ascii_alphanumeric() {
        return token.push(char.to_ascii_lowercase());
    }
    decompose_compatible(char, |part| {
        token.extend(part.to_lowercase().filter(|part| part.is_alphanumeric() && !is_combining_mark(*part)));
    });
}

/// True for scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han.
fn is_spaceless(char: char) -> bool {
    matches!(u32::from(char),
        0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x3040..=0x30FF | 0x3400..=0x4DBF | 0x4E00..=0x9FFF
        | 0xF900..=0xFAFF | 0x2_0000..=0x3_FFFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_matches_by_the_prefixes_of_its_words() {
        let text = "The quick brown FOXES jumped; naïve Café-owners paid 42,50 € in 東京都 for l’été.";
        for found in [
            "fox",
            "the QUICK",
            "naive cafe",
            "café-own",
            "42",
            "jump.",
            "京都",
            "owners",
            "ete",
            "cafe\u{301}",
        ] {
            assert!(Query::parse(found).unwrap().matches(text), "{found}");
        }
        for missed in ["oxes", "fox cat", "owners-cafe", "都京", "quickbrown"] {
            assert!(!Query::parse(missed).unwrap().matches(text), "{missed}");
        }
        for nothing in ["", "   ", "\"", "* AND (", "—"] {
            assert!(Query::parse(nothing).is_none_or(|query| query.words() == [["and"]]), "{nothing}");
        }
    }

    #[test]
    fn a_query_is_bounded_in_words_and_tokens() {
        let query = Query::parse(&format!("{} {}", "一".repeat(9_000) + "二", "x ".repeat(9_000))).unwrap();
        assert_eq!((query.words().len(), query.words()[0].len()), (QUERY_MAX_WORDS, WORD_MAX_TOKENS));
        assert!(!query.matches(&"一".repeat(80_000)));
    }

    #[test]
    fn a_text_in_ascii_is_folded_like_any_other() {
        for text in ["", "  ", "The quick_brown FOX-trot, 42.5%!", "\n\ta\u{0}b\u{7f}c", "x"] {
            let joined = tokens(text).map(|(token, _)| token).collect::<Vec<_>>().join(" ");
            assert_eq!(folded(text), joined, "{text:?}");
        }
    }

    #[test]
    fn the_indexed_form_has_only_words_and_spaces() {
        assert_eq!(folded("Ångström—ﬁne “quotes”\n東京 x²"), "angstrom fine quotes 東 京 x2");
    }

    #[test]
    fn a_snippet_begins_at_a_word_before_the_first_match() {
        let query = Query::parse("needle").unwrap();
        assert_eq!(query.snippet("a needle\n  here"), "a needle here");
        let text = format!("{} needle {}", "hay ".repeat(50), "straw ".repeat(50));
        let snippet = query.snippet(&text);
        assert!(snippet.starts_with("… hay hay") && snippet.ends_with(" …"), "{snippet}");
        assert!(snippet.contains("hay needle straw") && snippet.chars().count() < 170, "{snippet}");
        assert_eq!(query.snippet(&"ü".repeat(300)).chars().count(), 162);
    }
}
