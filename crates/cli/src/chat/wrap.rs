//! Wraps text while it streams: words are written whole, lines end before the terminal's edge, list items get a hanging
//! indent, code stays unchanged. Characters that could move the cursor or change colours are removed.

use unicode_width::UnicodeWidthChar;

use crate::safe_text::is_unsafe;

/// Wrapping state of one text.
#[derive(Debug)]
pub(super) struct Wrap {
    width: usize,
    /// Number of spaces before every line.
    margin: usize,
    /// Current column of the cursor.
    column: usize,
    /// Indent of the paragraph's continuation lines.
    hanging_indent: usize,
    /// True when the current source line has a character other than a space.
    line_has_text: bool,
    spaces: usize,
    word: String,
    word_width: usize,
    in_code: bool,
}

impl Wrap {
    /// Wraps to lines of `width` columns, each with `margin` spaces before it.
    pub(super) fn new(width: usize, margin: usize) -> Self {
        Self {
            width: width.max(margin + 8),
            margin,
            column: 0,
            hanging_indent: margin,
            line_has_text: false,
            spaces: 0,
            word: String::new(),
            word_width: 0,
            in_code: false,
        }
    }

    /// Adds `text` and returns the output that is ready.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 8);
        for char in text.chars() {
            match char {
                '\n' => {
                    self.flush_word(&mut out);
                    self.next_line(&mut out);
                }
                '\t' => self.push_spaces(&mut out, 4),
                ' ' => self.push_spaces(&mut out, 1),
                char => self.push_char(&mut out, char),
            }
        }
        out
    }

    /// Returns the output of the unfinished word.
    pub(super) fn finish(&mut self) -> String {
        let mut out = String::new();
        self.flush_word(&mut out);
        out
    }

    /// True when the cursor is not at the beginning of a line.
    pub(super) fn is_mid_line(&self) -> bool {
        self.column > 0
    }

    fn push_spaces(&mut self, out: &mut String, count: usize) {
        self.flush_word(out);
        self.spaces += count;
    }

    fn push_char(&mut self, out: &mut String, char: char) {
        // Control characters have no width and are dropped.
        let Some(width) = char.width().filter(|_| !is_unsafe(char)) else { return };
        // Scripts without spaces break between any two of their wide characters.
        if width > 1 || self.word_width + width > self.width - self.margin {
            self.flush_word(out);
        }
        self.word.push(char);
        self.word_width += width;
        if width > 1 {
            self.flush_word(out);
        }
    }

    fn flush_word(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let first = !std::mem::replace(&mut self.line_has_text, true);
        if first && self.word.starts_with("```") {
            self.in_code = !self.in_code;
        }
        if self.column == 0 {
            indent(out, self.margin);
            self.column = self.margin;
        }
        let fits = self.column + self.spaces + self.word_width <= self.width;
        if fits || self.in_code || first {
            indent(out, self.spaces);
            self.column += self.spaces;
        } else {
            out.push('\n');
            indent(out, self.hanging_indent);
            self.column = self.hanging_indent;
        }
        if first {
            let item = if is_marker(&self.word) { self.word_width + 1 } else { 0 };
            // A narrow terminal has no room for a hanging indent.
            self.hanging_indent = (self.column + item).min(self.width / 2).max(self.margin);
        }
        self.spaces = 0;
        self.column += self.word_width;
        self.word_width = 0;
        out.push_str(&std::mem::take(&mut self.word));
    }

    fn next_line(&mut self, out: &mut String) {
        out.push('\n');
        (self.column, self.spaces, self.line_has_text, self.hanging_indent) = (0, 0, false, self.margin);
    }
}

fn indent(out: &mut String, by: usize) {
    out.extend(std::iter::repeat_n(' ', by));
}

/// True for a list marker.
fn is_marker(word: &str) -> bool {
    let number = word.strip_suffix(['.', ')']).unwrap_or_default();
    matches!(word, "-" | "*" | "+" | "•")
        || (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Puts `text` on one line of at most `max_columns` columns, without characters that could move the cursor.
pub(super) fn one_line(text: &str, max_columns: usize) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (mut line, mut width) = (String::new(), 0);
    for char in words.chars().filter(|char| !is_unsafe(*char)) {
        width += char.width().unwrap_or(0);
        if width > max_columns {
            while line.chars().map(|char| char.width().unwrap_or(0)).sum::<usize>() >= max_columns.max(1) {
                line.pop();
            }
            return format!("{}…", line.trim_end());
        }
        line.push(char);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrap_text(text: &str, width: usize, margin: usize) -> String {
        let mut wrap = Wrap::new(width, margin);
        // The wrapped lines do not depend on how the text is split.
        let pieces: String = text.chars().map(|char| wrap.push(&char.to_string())).collect();
        let streamed = format!("{pieces}{}", wrap.finish());
        let mut wrap = Wrap::new(width, margin);
        let whole = wrap.push(text);
        assert_eq!(streamed, format!("{whole}{}", wrap.finish()));
        streamed
    }

    #[test]
    fn words_stay_whole_list_items_are_indented_and_code_is_unchanged() {
        let text = "The quick brown fox jumps.\n\n- an item that is too long\n10. another item, longer\n  indented text that goes on\n```\nlet code = stays_as_it_is(even, when, long);\n```\nafter the code it wraps again";
        insta::assert_snapshot!(wrap_text(text, 16, 0), @r"
        The quick brown
        fox jumps.

        - an item that
          is too long
        10. another
            item, longer
          indented text
          that goes on
        ```
        let code = stays_as_it_is(even, when, long);
        ```
        after the code
        it wraps again
        ");
        insta::assert_snapshot!(wrap_text("a thought that is wrapped\nand another", 14, 2), @r"
          a thought
          that is
          wrapped
          and another
        ");
    }

    #[test]
    fn long_words_and_scripts_without_spaces_break_at_the_edge() {
        assert_eq!(wrap_text("abcdefghijklmnop", 8, 0), "abcdefgh\nijklmnop");
        assert_eq!(wrap_text("中文没有空格也要换行", 8, 0), "中文没有\n空格也要\n换行");
        assert!(wrap_text("x", 2, 0) == "x", "a terminal of no width");
    }

    #[test]
    fn control_and_bidi_characters_are_removed() {
        assert_eq!(wrap_text("a\u{1b}[31mb\u{7}\rc\u{202E}d", 80, 0), "a[31mbcd");
        assert_eq!(one_line("two\nlines\u{1b}[2J", 80), "two lines[2J");
        assert_eq!(one_line("abcdef", 4), "abc…");
        assert_eq!(one_line("abcd", 4), "abcd");
        assert_eq!(one_line("中文字符", 5), "中文…");
    }
}
