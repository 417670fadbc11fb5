//! Splits a template into texts, expressions and statements. Splits the expressions and statements into tokens.

use super::{MAX_PARTS, TemplateError};

/// A part of a template, with its line.
#[derive(Debug)]
pub(super) struct Segment<'s> {
    pub(super) line: usize,
    pub(super) kind: SegmentKind<'s>,
}

#[derive(Debug)]
pub(super) enum SegmentKind<'s> {
    /// Text that is copied.
    Text(&'s str),
    /// The tokens within `{{ … }}`.
    Expression(Vec<Token<'s>>),
    /// The tokens within `{% … %}`.
    Statement(Vec<Token<'s>>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token<'s> {
    Word(&'s str),
    Text(String),
    Int(i128),
    Float(f64),
    Symbol(&'static str),
}

/// Symbols, longer ones first.
const SYMBOLS: &[&str] = &[
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "|", "(", ")", "[", "]", "{", "}", ",",
    ".", ":", "=", "<", ">",
];

/// Splits `source` into segments.
pub(super) fn split(source: &str) -> Result<Vec<Segment<'_>>, TemplateError> {
    let source = source.strip_suffix('\n').map_or(source, |rest| rest.strip_suffix('\r').unwrap_or(rest));
    let mut lexer = Lexer { rest: source, line: 1, parts: 0 };
    let mut segments = vec![];
    let mut trim_next = false;
    while !lexer.rest.is_empty() {
        let at = next_tag(lexer.rest).unwrap_or(lexer.rest.len());
        let line = lexer.line;
        let mut text = lexer.take(at);
        if std::mem::take(&mut trim_next) {
            text = text.trim_start();
        }
        let tag = lexer.rest.get(..2).unwrap_or_default();
        if lexer.rest.get(2..3) == Some("-") {
            text = text.trim_end();
        }
        if !text.is_empty() {
            lexer.count()?;
            segments.push(Segment { line, kind: SegmentKind::Text(text) });
        }
        if tag.is_empty() {
            break;
        }
        let line = lexer.line;
        let kind = match tag {
            "{#" => {
                trim_next = lexer.comment()?;
                continue;
            }
            "{{" => SegmentKind::Expression(lexer.code("}}", &mut trim_next)?),
            _ => SegmentKind::Statement(lexer.code("%}", &mut trim_next)?),
        };
        let is_raw = matches!(&kind, SegmentKind::Statement(tokens) if tokens[..] == [Token::Word("raw")]);
        match is_raw {
            true => {
                let (text, trim) =
                    lexer.raw(std::mem::take(&mut trim_next)).map_err(|error| error.at(line))?;
                trim_next = trim;
                segments.push(Segment { line, kind: SegmentKind::Text(text) });
            }
            false => segments.push(Segment { line, kind }),
        }
    }
    Ok(segments)
}

/// Returns the position of the next `{{`, `{%` or `{#`.
fn next_tag(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    (0..bytes.len().saturating_sub(1)).find(|at| bytes[*at] == b'{' && b"{%#".contains(&bytes[at + 1]))
}

struct Lexer<'s> {
    rest: &'s str,
    line: usize,
    parts: usize,
}

impl<'s> Lexer<'s> {
    /// Takes `length` bytes.
    fn take(&mut self, length: usize) -> &'s str {
        let (taken, rest) = self.rest.split_at(length);
        self.line += taken.bytes().filter(|byte| *byte == b'\n').count();
        self.rest = rest;
        taken
    }

    fn count(&mut self) -> Result<(), TemplateError> {
        self.parts += 1;
        match self.parts > MAX_PARTS {
            true => Err(TemplateError::new(format!("the template has more than {MAX_PARTS} parts"))),
            false => Ok(()),
        }
    }

    /// Skips a comment. Returns true if the text after it is trimmed.
    fn comment(&mut self) -> Result<bool, TemplateError> {
        let line = self.line;
        let Some(end) = self.rest.find("#}") else {
            return Err(TemplateError::new("a comment has no end `#}`").at(line));
        };
        let comment = self.take(end + 2);
        Ok(comment.len() > 4 && comment.ends_with("-#}"))
    }

    /// Reads the text up to `{% endraw %}`. Also returns true if the text after the tag is trimmed.
    fn raw(&mut self, trim_start: bool) -> Result<(&'s str, bool), TemplateError> {
        let mut from = 0;
        while let Some(at) = self.rest[from..].find("{%").map(|at| from + at) {
            let tag = &self.rest[at + 2..];
            let inner = tag.strip_prefix(['-', '+']).unwrap_or(tag).trim_start();
            if let Some(end) = inner.strip_prefix("endraw").map(str::trim_start)
                && let Some(end) = end.strip_prefix(['-', '+']).unwrap_or(end).strip_prefix("%}")
            {
                let length = self.rest.len() - end.len();
                let whole = self.take(length);
                let mut text = &whole[..at];
                if whole[at + 2..].starts_with('-') {
                    text = text.trim_end();
                }
                if trim_start {
                    text = text.trim_start();
                }
                return Ok((text, whole.ends_with("-%}")));
            }
            from = at + 2;
        }
        Err(TemplateError::new("`raw` has no end: write {% endraw %}"))
    }

    /// Reads the tokens up to `end`.
    fn code(&mut self, end: &str, trim_next: &mut bool) -> Result<Vec<Token<'s>>, TemplateError> {
        let line = self.line;
        self.take(2);
        if self.rest.starts_with(['-', '+']) {
            self.take(1);
        }
        let mut tokens = vec![];
        let mut open_braces = 0usize;
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.take(blank);
            if self.rest.is_empty() {
                return Err(TemplateError::new(format!("there is no end `{end}`")).at(line));
            }
            let closing = self.rest.strip_prefix(['-', '+']).filter(|rest| rest.starts_with(end));
            if closing.is_some() || (open_braces == 0 && self.rest.starts_with(end)) {
                *trim_next = self.rest.starts_with('-');
                self.take(end.len() + usize::from(closing.is_some()));
                return Ok(tokens);
            }
            self.count()?;
            let token = self.token().map_err(|error| error.at(self.line))?;
            match token {
                Token::Symbol("{") => open_braces += 1,
                Token::Symbol("}") => open_braces = open_braces.saturating_sub(1),
                _ => {}
            }
            tokens.push(token);
        }
    }

    fn token(&mut self) -> Result<Token<'s>, TemplateError> {
        let first = self.rest.chars().next().unwrap_or_default();
        if first == '"' || first == '\'' {
            return self.text(first);
        }
        if first.is_ascii_digit() {
            return self.number();
        }
        if first.is_alphabetic() || first == '_' {
            let end = self.rest.find(|char: char| !char.is_alphanumeric() && char != '_');
            let end = end.unwrap_or(self.rest.len());
            return Ok(Token::Word(self.take(end)));
        }
        match SYMBOLS.iter().find(|symbol| self.rest.starts_with(**symbol)) {
            Some(symbol) => {
                self.take(symbol.len());
                Ok(Token::Symbol(symbol))
            }
            None => Err(TemplateError::new(format!("unexpected {first:?}"))),
        }
    }

    fn text(&mut self, quote: char) -> Result<Token<'s>, TemplateError> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, char)) = chars.next() {
            match char {
                _ if char == quote => {
                    self.take(at + 1);
                    return Ok(Token::Text(text));
                }
                '\\' => text.push(escaped(chars.by_ref().map(|(_, char)| char))?),
                _ => text.push(char),
            }
        }
        Err(TemplateError::new("a text has no end"))
    }

    fn number(&mut self) -> Result<Token<'s>, TemplateError> {
        let bad = || TemplateError::new("a number cannot be read");
        for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
            if let Some(digits) = self.rest.strip_prefix(prefix) {
                let end = digits.find(|char: char| !char.is_ascii_alphanumeric()).unwrap_or(digits.len());
                let number = i128::from_str_radix(&digits[..end], radix).map_err(|_| bad())?;
                self.take(end + 2);
                return Ok(Token::Int(number));
            }
        }
        let digits =
            |text: &str| text.find(|char: char| !char.is_ascii_digit() && char != '_').unwrap_or(text.len());
        let mut end = digits(self.rest);
        let mut is_float = false;
        let after_dot = self.rest[end..].strip_prefix('.');
        if let Some(fraction) = after_dot.filter(|text| text.starts_with(|char: char| char.is_ascii_digit()))
        {
            end += 1 + digits(fraction);
            is_float = true;
        }
        if let Some(exponent) = self.rest[end..].strip_prefix(['e', 'E']) {
            let sign = usize::from(exponent.starts_with(['+', '-']));
            let length = digits(&exponent[sign..]);
            if length > 0 {
                end += 1 + sign + length;
                is_float = true;
            }
        }
        let number = self.take(end).replace('_', "");
        match is_float {
            true => number.parse().map(Token::Float).map_err(|_| bad()),
            false => number.parse().map(Token::Int).map_err(|_| bad()),
        }
    }
}

/// Reads the rest of an escape in a text: `chars` are those after the backslash.
fn escaped(mut chars: impl Iterator<Item = char>) -> Result<char, TemplateError> {
    Ok(match chars.next() {
        Some('n') => '\n',
        Some('r') => '\r',
        Some('t') => '\t',
        Some('b') => '\u{8}',
        Some('f') => '\u{c}',
        Some(same @ ('\\' | '\'' | '"' | '/')) => same,
        Some('u') => {
            let digits: String = chars.take(4).collect();
            let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
            code.ok_or_else(|| TemplateError::new("`\\u` needs four hexadecimal digits"))?
        }
        _ => return Err(TemplateError::new("unknown escape in a text")),
    })
}
