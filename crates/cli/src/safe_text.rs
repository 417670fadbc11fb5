//! Text for a terminal, without characters that could change how other text is displayed.
//!
//! Texts of agents, titles and names may hold anything: sequences that move the cursor, clear lines, or reverse the
//! direction of writing could make a question read like another one. All text for people passes through [`safe`], which
//! keeps only line breaks, tabs and the styles that the program itself uses.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The style sequences that the program uses, without `ESC [` and `m`.
const STYLES: [&str; 10] = ["0", "1", "2", "31", "32", "33", "34", "35", "36", "37"];

/// True for characters that change how other text is displayed.
pub(crate) fn is_unsafe(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200E}' | '\u{200F}' | '\u{061C}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Replaces the characters that a terminal would obey with visible ones.
pub(crate) fn safe(text: &str) -> Cow<'_, str> {
    let first = text.char_indices().find(|(_, char)| is_unsafe(*char) && !matches!(char, '\n' | '\t'));
    let Some((first, _)) = first else { return text.into() };
    let mut safe = text[..first].to_owned();
    let mut rest = &text[first..];
    while let Some(char) = rest.chars().next() {
        let after = &rest[char.len_utf8()..];
        rest = match char {
            '\u{1B}' => match style_len(after) {
                Some(len) => {
                    let _ = write!(safe, "\u{1B}{}", &after[..len]);
                    &after[len..]
                }
                None => {
                    safe.push('␛');
                    after
                }
            },
            '\r' if after.starts_with('\n') => after,
            '\n' | '\t' => {
                safe.push(char);
                after
            }
            char => {
                safe.push(visible(char));
                after
            }
        };
    }
    safe.into()
}

/// The length of a style sequence after its `ESC`, if `text` begins with one that the program uses.
fn style_len(text: &str) -> Option<usize> {
    let end = text.find('m').filter(|end| *end <= 4)?;
    let number = text[..end].strip_prefix('[')?;
    STYLES.contains(&number).then_some(end + 1)
}

fn visible(char: char) -> char {
    match char {
        '\0'..='\u{1F}' => char::from_u32(0x2400 + u32::from(char)).unwrap_or('\u{FFFD}'),
        '\u{7F}' => '␡',
        char if is_unsafe(char) => '\u{FFFD}',
        char => char,
    }
}

#[cfg(test)]
mod tests {
    use anstyle::{AnsiColor, Style};

    use super::*;

    #[test]
    fn ordinary_text_is_unchanged() {
        for text in ["", "plain", "two\nlines\twith a tab", "äöü 漢字 🦀 שלום"] {
            assert!(matches!(safe(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        assert_eq!(safe("from Windows\r\nnext"), "from Windows\nnext");
    }

    #[test]
    fn a_question_cannot_be_overwritten() {
        assert_eq!(safe("rm -rf ~\r\u{1B}[2KAllow: read README.md"), "rm -rf ~␍␛[2KAllow: read README.md");
        assert_eq!(
            safe("\u{1B}]0;title\u{7}\u{1B}[8mhidden\u{9B}2J\u{7F}\u{8}"),
            "␛]0;title␇␛[8mhidden\u{FFFD}2J␡␈"
        );
        assert_eq!(safe("a\u{202E}txt.exe\u{2069}"), "a\u{FFFD}txt.exe\u{FFFD}");
    }

    #[test]
    fn the_styles_of_the_program_are_kept() {
        use crate::output::{BOLD, CYAN, DIM, GREEN, PLAIN, RED, YELLOW};
        use AnsiColor::{Blue, Cyan, Green, Magenta, Red, White, Yellow};
        let of_the_demo = [Red, Green, Yellow, Blue, Magenta, Cyan, White].map(AnsiColor::on_default);
        for style in [BOLD, CYAN, DIM, GREEN, PLAIN, RED, YELLOW].into_iter().chain(of_the_demo) {
            let text = format!("{style}styled{style:#} and more");
            assert_eq!(safe(&text), text);
        }
        let other = Style::new().fg_color(Some(AnsiColor::Black.into()));
        assert!(!safe(&format!("{other}x{other:#}")).contains("\u{1B}[30m"));
    }
}
