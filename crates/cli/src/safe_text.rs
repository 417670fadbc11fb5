//! Text for a terminal, without characters that could change how other text is displayed.
//!
//! Texts of agents, titles and names may hold anything: sequences that move the cursor, clear lines, hide text, or reverse
//! the direction of writing could make a question read like another one. All text for people passes through [`safe`],
//! which keeps only line breaks, tabs and the styles of the program's own text. Those are made with [`Style`] and carry a
//! mark that differs in each process, so that no other text can contain them.

use std::borrow::Cow;
use std::fmt::{self, Display, Write as _};
use std::sync::LazyLock;

use anstyle::AnsiColor;
use mainspring_kernel::ids::Ids;

/// Follows the `ESC` of the program's own styles until [`safe`] removes it.
static MARK: LazyLock<String> = LazyLock::new(|| Ids::system().node().to_string());

/// A style of the program's own text: `{style}` begins it, `{style:#}` ends it. Only [`safe`] turns it into a control
/// sequence of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style(anstyle::Style);

impl Style {
    pub(crate) const PLAIN: Self = Self(anstyle::Style::new());
    pub(crate) const DIM: Self = Self(anstyle::Style::new().dimmed());
    pub(crate) const BOLD: Self = Self(anstyle::Style::new().bold());

    pub(crate) const fn colour(colour: AnsiColor) -> Self {
        Self(colour.on_default())
    }
}

impl Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sequence =
            if f.alternate() { self.0.render_reset().to_string() } else { self.0.render().to_string() };
        sequence.chars().try_for_each(|char| match char {
            '\u{1B}' => write!(f, "\u{1B}{}", *MARK),
            char => f.write_char(char),
        })
    }
}

/// True for characters that change how other text is displayed.
pub(crate) fn is_unsafe(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200E}' | '\u{200F}' | '\u{061C}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Replaces control characters of terminals with visible characters.
pub(crate) fn safe(text: &str) -> Cow<'_, str> {
    let first = text.char_indices().find(|(_, char)| is_unsafe(*char) && !matches!(char, '\n' | '\t'));
    let Some((first, _)) = first else { return text.into() };
    let mut safe = text[..first].to_owned();
    let mut rest = &text[first..];
    while let Some(char) = rest.chars().next() {
        let after = &rest[char.len_utf8()..];
        rest = match char {
            '\u{1B}' => match own_style(after) {
                Some((style, after)) => {
                    let _ = write!(safe, "\u{1B}{style}");
                    after
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

/// Splits the text after an `ESC` into a style of the program, without its mark, and the rest. None if the `ESC`
/// belongs to foreign text.
fn own_style(text: &str) -> Option<(&str, &str)> {
    let marked = text.strip_prefix(MARK.as_str())?;
    Some(marked.split_at(marked.find('m')? + 1))
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
    fn only_the_styles_of_the_program_are_kept() {
        let (dim, red) = (Style::DIM, Style::colour(AnsiColor::Red));
        assert_eq!(
            safe(&format!("{dim}a{dim:#}{red}b{red:#} c")),
            "\u{1B}[2ma\u{1B}[0m\u{1B}[31mb\u{1B}[0m c"
        );
        let plain = Style::PLAIN;
        assert_eq!(safe(&format!("{plain}x{plain:#}")), "x");
        for own in
            [anstyle::Style::new().dimmed(), AnsiColor::Red.on_default(), AnsiColor::Black.on_default()]
        {
            let foreign = format!("{own}Allow{own:#}");
            assert!(!safe(&foreign).contains('\u{1B}'), "{foreign:?}");
        }
    }
}
