//! Templates: texts in the syntax of Jinja whose evaluation is bounded in time, memory and output.
//!
//! Anybody with a key may define an agent, and its template runs in the server. So every step and every byte that a
//! template allocates is charged to a budget before it is spent, and a template that exceeds its budget ends with an
//! error that names the limit. No input can make the parser or the evaluation recurse deeper than a constant
//! ([why](../../../docs/decisions/0018-quotas-and-shares.md)).
//!
//! Supported: `{{ … }}`, `{# … #}`, `raw`, `if`, `for` (with `else`, `recursive` and `loop`), `set`, `with`, `filter`,
//! `autoescape` and `do`; the usual operators, tests and filters; `range`, `dict` and `namespace`. Undefined variables
//! are empty. There are no macros, and no template reads another one.

mod budget;
mod eval;
mod filters;
mod lexer;
mod operators;
mod parser;
mod tests_of_values;
mod value;

use std::fmt;

use budget::Budget;

/// The maximum number of parts of a template: words, operators and texts between them.
pub const MAX_PARTS: usize = 50_000;
/// The maximum number of steps that one evaluation takes.
pub const MAX_STEPS: usize = 100_000;
/// The maximum number of bytes that one evaluation allocates, from its start to its end.
pub const MAX_MEMORY_BYTES: usize = 8 << 20;
/// The maximum number of bytes of the resulting text.
pub const MAX_OUTPUT_BYTES: usize = 2 << 20;

/// True if a template certainly renders to itself in any context: it has no `{` and no newline at its end, and it is not
/// longer than the output may be.
pub fn is_plain(template: &str) -> bool {
    !template.contains('{') && !template.ends_with(['\n', '\r']) && template.len() <= MAX_OUTPUT_BYTES
}

/// An error in a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError {
    line: Option<usize>,
    message: String,
}

impl TemplateError {
    fn new(message: impl Into<String>) -> Self {
        Self { line: None, message: message.into() }
    }

    /// Names the line, unless an inner error has named one.
    fn at(mut self, line: usize) -> Self {
        self.line.get_or_insert(line);
        self
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for TemplateError {}

/// Checks the syntax of a template.
pub fn check(source: &str) -> Result<(), TemplateError> {
    parser::parse(source).map(drop)
}

/// Renders a template with the variables in the object `context`.
pub fn render(source: &str, context: &serde_json::Value) -> Result<String, TemplateError> {
    let statements = parser::parse(source)?;
    eval::render(&statements, context, Budget::new())
}

/// Checks the syntax of an expression.
pub fn check_expression(source: &str) -> Result<(), TemplateError> {
    expression(&as_tag(source)).map(drop)
}

/// Evaluates an expression with the variables in the object `context`. An undefined value is not true.
pub fn is_true(source: &str, context: &serde_json::Value) -> Result<bool, TemplateError> {
    let tag = as_tag(source);
    let statement = expression(&tag)?;
    eval::is_true(&statement, context, Budget::new())
}

/// The expression as a tag, the form that the parser reads.
fn as_tag(source: &str) -> String {
    format!("{{{{ {source} }}}}")
}

/// Parses a tag that holds exactly one expression. An expression that closes its tag and opens another one is refused.
fn expression(tag: &str) -> Result<parser::Statement<'_>, TemplateError> {
    let mut statements = parser::parse(tag)?;
    match (statements.pop(), statements.is_empty()) {
        (Some(statement), true) if matches!(statement.kind, parser::StatementKind::Emit(_)) => Ok(statement),
        _ => Err(TemplateError::new("it is not one expression, such as `state.plan is defined`")),
    }
}

#[cfg(test)]
mod tests;
