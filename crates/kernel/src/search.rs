//! Search: what a query finds in a text, the same in every store.
//!
//! A text is folded into tokens: words in lower case and without accents; where a script has no spaces, each character
//! is a token of its own. A query is a list of words. A text is found if it holds every word, each as the beginning of
//! one of its own: `fox` finds foxes. There is no syntax, so there is nothing to get wrong.

use std::ops::Range;

use mainspring_core::Block;
use mainspring_core::message::text_of;
use unicode_normalization::char::{decompose_compatible, is_combining_mark};

/// Words of a query beyond this many are not looked at.
const WORDS: usize = 16;
/// How many bytes of a message are searched.
const SEARCHED: usize = 256 << 10;
/// How much of a text stands in a snippet, in characters: before what was found, and in all.
const SNIPPET: (usize, usize) = (40, 160);

/// What somebody looks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// For each word its tokens; they follow one another in a text, and the last may go on there.
    words: Vec<Vec<String>>,
}

impl Query {
    /// Reads what somebody typed; none if there is no word in it.
    pub fn parse(text: &str) -> Option<Self> {
        let words = text.split_whitespace().map(|word| tokens(word).map(|(token, _)| token).collect());
        let words: Vec<Vec<String>> =
            words.filter(|word: &Vec<String>| !word.is_empty()).take(WORDS).collect();
        (!words.is_empty()).then_some(Self { words })
    }

    /// True when `text` holds every word.
    pub fn finds(&self, text: &str) -> bool {
        let tokens: Vec<_> = tokens(text).collect();
        self.words.iter().all(|word| place(word, &tokens).is_some())
    }

    /// The words with their tokens.
    pub fn words(&self) -> &[Vec<String>] {
        &self.words
    }

    /// The part of `text` where the first of the words stands, on one line.
    pub fn snippet(&self, text: &str) -> String {
        let tokens: Vec<_> = tokens(text).collect();
        let found = self.words.iter().filter_map(|word| place(word, &tokens)).min_by_key(|range| range.start);
        let found = found.map_or(0, |range| range.start);
        let (before, most) = SNIPPET;
        let start = text[..found].char_indices().rev().nth(before).map_or(0, |(at, _)| at);
        // A word that is cut in two is left out.
        let start = match start {
            0 => 0,
            cut => text[cut..found].find(char::is_whitespace).map_or(found, |space| cut + space),
        };
        let end = text[start..].char_indices().nth(most).map_or(text.len(), |(at, _)| start + at);
        let shown = text[start..end].split_whitespace().collect::<Vec<_>>().join(" ");
        let (lead, trail) = (if start > 0 { "… " } else { "" }, if end < text.len() { " …" } else { "" });
        format!("{lead}{shown}{trail}")
    }
}

/// Where the tokens of `word` first stand in `tokens`.
fn place(word: &[String], tokens: &[(String, Range<usize>)]) -> Option<Range<usize>> {
    let (last, whole) = word.split_last()?;
    let stands = |window: &&[(String, Range<usize>)]| {
        window.iter().zip(whole).all(|((token, _), wanted)| token == wanted)
            && window.last().is_some_and(|(token, _)| token.starts_with(last.as_str()))
    };
    let window = tokens.windows(word.len()).find(stands)?;
    Some(window.first()?.1.start..window.last()?.1.end)
}

/// What of a message is searched: its text, up to a size at which nobody looks for words any more.
pub fn searched(content: &[Block]) -> String {
    let mut text = text_of(content);
    if text.len() > SEARCHED {
        text.truncate(text.floor_char_boundary(SEARCHED));
    }
    text
}

/// The tokens of `text`, in order, with a space between each two: what a store indexes.
pub fn folded(text: &str) -> String {
    tokens(text).map(|(token, _)| token).collect::<Vec<_>>().join(" ")
}

/// The tokens of `text` and where they stand in it.
fn tokens(text: &str) -> impl Iterator<Item = (String, Range<usize>)> + '_ {
    let mut chars = text.char_indices().peekable();
    std::iter::from_fn(move || {
        let (mut token, mut range) = (String::new(), 0..0);
        while let Some((at, char)) = chars.peek().copied() {
            let goes_on = char.is_alphanumeric() || is_combining_mark(char);
            if !token.is_empty() && (!goes_on || is_spaceless(char)) {
                break;
            }
            chars.next();
            if goes_on {
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

fn fold(char: char, token: &mut String) {
    decompose_compatible(char, |part| {
        token.extend(part.to_lowercase().filter(|part| part.is_alphanumeric() && !is_combining_mark(*part)));
    });
}

/// True for scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, kana, Han.
fn is_spaceless(char: char) -> bool {
    matches!(u32::from(char),
        0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x3040..=0x30FF | 0x3400..=0x4DBF | 0x4E00..=0x9FFF
        | 0xF900..=0xFAFF | 0x2_0000..=0x3_FFFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_by_the_beginnings_of_its_words() {
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
            assert!(Query::parse(found).unwrap().finds(text), "{found}");
        }
        for missed in ["oxes", "fox cat", "owners-cafe", "都京", "quickbrown"] {
            assert!(!Query::parse(missed).unwrap().finds(text), "{missed}");
        }
        for nothing in ["", "   ", "\"", "* AND (", "—"] {
            assert!(Query::parse(nothing).is_none_or(|query| query.words() == [["and"]]), "{nothing}");
        }
    }

    #[test]
    fn what_is_indexed_has_only_words_and_spaces() {
        assert_eq!(folded("Ångström—ﬁne “quotes”\n東京 x²"), "angstrom fine quotes 東 京 x2");
    }

    #[test]
    fn a_snippet_shows_the_first_word_found_and_cuts_no_word_before_it() {
        let query = Query::parse("needle").unwrap();
        assert_eq!(query.snippet("a needle\n  here"), "a needle here");
        let text = format!("{} needle {}", "hay ".repeat(50), "straw ".repeat(50));
        let snippet = query.snippet(&text);
        assert!(snippet.starts_with("… hay hay") && snippet.ends_with(" …"), "{snippet}");
        assert!(snippet.contains("hay needle straw") && snippet.chars().count() < 170, "{snippet}");
        assert_eq!(query.snippet(&"ü".repeat(300)).chars().count(), 162);
    }
}
