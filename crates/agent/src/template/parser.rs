//! Parses a template into statements and expressions.
//!
//! Chains of operators, filters and `elif` are lists, not nested nodes, and nesting has a limit: neither parsing nor
//! evaluating nor dropping a tree can exhaust the stack.

use super::TemplateError;
use super::lexer::{Segment, SegmentKind, Token, split};

/// The maximum nesting of blocks, and that of expressions within one tag.
const MAX_DEPTH: usize = 48;

pub(super) type Block<'s> = Vec<Statement<'s>>;

#[derive(Debug)]
pub(super) struct Statement<'s> {
    pub(super) line: usize,
    pub(super) kind: StatementKind<'s>,
}

#[derive(Debug)]
pub(super) enum StatementKind<'s> {
    Text(&'s str),
    Emit(Expr<'s>),
    If { branches: Vec<(Expr<'s>, Block<'s>)>, otherwise: Block<'s> },
    For(For<'s>),
    Set { target: Target<'s>, value: Expr<'s> },
    SetBlock { target: Target<'s>, filters: Vec<Postfix<'s>>, body: Block<'s> },
    With { values: Vec<(Target<'s>, Expr<'s>)>, body: Block<'s> },
    Filter { filters: Vec<Postfix<'s>>, body: Block<'s> },
    AutoEscape { enabled: Expr<'s>, body: Block<'s> },
    Do(Expr<'s>),
}

#[derive(Debug)]
pub(super) struct For<'s> {
    pub(super) target: Target<'s>,
    pub(super) items: Expr<'s>,
    pub(super) condition: Option<Expr<'s>>,
    pub(super) is_recursive: bool,
    pub(super) body: Block<'s>,
    pub(super) otherwise: Block<'s>,
}

/// The place that a value is assigned to.
#[derive(Debug)]
pub(super) enum Target<'s> {
    Name(&'s str),
    /// An attribute of a namespace.
    Attribute(&'s str, &'s str),
    Names(Vec<Target<'s>>),
}

#[derive(Debug)]
pub(super) enum Expr<'s> {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    Name(&'s str),
    List(Vec<Expr<'s>>),
    Tuple(Vec<Expr<'s>>),
    Map(Vec<(Expr<'s>, Expr<'s>)>),
    Not(Box<Expr<'s>>),
    Negative(Box<Expr<'s>>),
    Or(Vec<Expr<'s>>),
    And(Vec<Expr<'s>>),
    /// Operators of the same rank, from left to right.
    Chain(Box<Expr<'s>>, Vec<(&'static str, Expr<'s>)>),
    /// Comparisons that must all hold, each with the operand before it.
    Compare(Box<Expr<'s>>, Vec<(Comparison, Expr<'s>)>),
    /// `value if test else otherwise`: the value, the test, and the alternative if there is one.
    If(Box<(Expr<'s>, Expr<'s>, Option<Expr<'s>>)>),
    Access(Box<Expr<'s>>, Vec<Postfix<'s>>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Is(&'static str),
    In,
    NotIn,
}

#[derive(Debug)]
pub(super) enum Postfix<'s> {
    Attribute(&'s str),
    Item(Expr<'s>),
    Slice([Option<Expr<'s>>; 3]),
    Call(Arguments<'s>),
    Filter(&'s str, Arguments<'s>),
    Test { name: &'s str, arguments: Arguments<'s>, is_negated: bool },
}

#[derive(Debug, Default)]
pub(super) struct Arguments<'s> {
    pub(super) positional: Vec<Expr<'s>>,
    pub(super) named: Vec<(&'s str, Expr<'s>)>,
}

/// Parses a template.
pub(super) fn parse(source: &str) -> Result<Block<'_>, TemplateError> {
    let mut parser = Parser { segments: split(source)?.into_iter(), depth: 0 };
    let (block, end) = parser.block(&[])?;
    debug_assert!(end.is_none(), "a block without end tags ends with the template");
    Ok(block)
}

struct Parser<'s> {
    segments: std::vec::IntoIter<Segment<'s>>,
    depth: usize,
}

/// The tag that ended a block: its word, the tokens after it, and its line.
type EndTag<'s> = (&'s str, Tokens<'s>, usize);

impl<'s> Parser<'s> {
    /// Parses statements until one of the tags `ends`.
    fn block(&mut self, ends: &[&str]) -> Result<(Block<'s>, Option<EndTag<'s>>), TemplateError> {
        let mut block = vec![];
        while let Some(Segment { line, kind }) = self.segments.next() {
            let kind = match kind {
                SegmentKind::Text(text) => StatementKind::Text(text),
                SegmentKind::Expression(tokens) => {
                    let mut tokens = Tokens::new(tokens);
                    let expression = tokens.expression().and_then(|expr| tokens.end().map(|()| expr));
                    StatementKind::Emit(expression.map_err(|error| error.at(line))?)
                }
                SegmentKind::Statement(tokens) => {
                    let mut tokens = Tokens::new(tokens);
                    let word = tokens.word().map_err(|error| error.at(line))?;
                    if ends.contains(&word) {
                        return Ok((block, Some((word, tokens, line))));
                    }
                    self.statement(word, tokens).map_err(|error| error.at(line))?
                }
            };
            block.push(Statement { line, kind });
        }
        match ends {
            [] => Ok((block, None)),
            [.., end] => Err(TemplateError::new(format!("a block has no end: write {{% {end} %}}"))),
        }
    }

    /// Parses the statements of a block that must end with `end`.
    fn body(&mut self, end: &str) -> Result<Block<'s>, TemplateError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(TemplateError::new(format!("blocks are nested more than {MAX_DEPTH} deep")));
        }
        let (block, tag) = self.block(&[end])?;
        self.depth -= 1;
        if let Some((_, mut tokens, line)) = tag {
            tokens.end().map_err(|error| error.at(line))?;
        }
        Ok(block)
    }

    fn statement(
        &mut self,
        word: &'s str,
        mut tokens: Tokens<'s>,
    ) -> Result<StatementKind<'s>, TemplateError> {
        match word {
            "if" => self.if_statement(tokens),
            "for" => self.for_statement(tokens),
            "set" => self.set_statement(tokens),
            "with" => {
                let mut values = vec![];
                while !tokens.is_empty() {
                    if !values.is_empty() {
                        tokens.expect(",")?;
                    }
                    let target = tokens.target()?;
                    tokens.expect("=")?;
                    values.push((target, tokens.expression()?));
                }
                Ok(StatementKind::With { values, body: self.body("endwith")? })
            }
            "filter" => {
                let filters = tokens.filter_chain()?;
                tokens.end()?;
                Ok(StatementKind::Filter { filters, body: self.body("endfilter")? })
            }
            "autoescape" => {
                let enabled = tokens.expression()?;
                tokens.end()?;
                Ok(StatementKind::AutoEscape { enabled, body: self.body("endautoescape")? })
            }
            "do" => {
                let call = tokens.expression()?;
                tokens.end()?;
                Ok(StatementKind::Do(call))
            }
            _ => Err(TemplateError::new(format!("unknown statement {word:?}"))),
        }
    }

    fn if_statement(&mut self, mut tokens: Tokens<'s>) -> Result<StatementKind<'s>, TemplateError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(TemplateError::new(format!("blocks are nested more than {MAX_DEPTH} deep")));
        }
        let mut branches = vec![];
        loop {
            let condition = tokens.expression()?;
            tokens.end()?;
            let (block, tag) = self.block(&["elif", "else", "endif"])?;
            branches.push((condition, block));
            match tag {
                Some(("elif", next, _)) => tokens = next,
                Some(("else", mut rest, line)) => {
                    rest.end().map_err(|error| error.at(line))?;
                    // `body` counts the level of the `else` block itself.
                    self.depth -= 1;
                    return Ok(StatementKind::If { branches, otherwise: self.body("endif")? });
                }
                _ => {
                    self.depth -= 1;
                    return Ok(StatementKind::If { branches, otherwise: vec![] });
                }
            }
        }
    }

    fn for_statement(&mut self, mut tokens: Tokens<'s>) -> Result<StatementKind<'s>, TemplateError> {
        let target = tokens.target()?;
        tokens.expect_word("in")?;
        let items = tokens.or()?;
        let condition = tokens.skip_word("if").then(|| tokens.expression()).transpose()?;
        let is_recursive = tokens.skip_word("recursive");
        tokens.end()?;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(TemplateError::new(format!("blocks are nested more than {MAX_DEPTH} deep")));
        }
        let (body, tag) = self.block(&["else", "endfor"])?;
        self.depth -= 1;
        let otherwise = match tag {
            Some(("else", mut rest, line)) => {
                rest.end().map_err(|error| error.at(line))?;
                self.body("endfor")?
            }
            _ => vec![],
        };
        Ok(StatementKind::For(For { target, items, condition, is_recursive, body, otherwise }))
    }

    fn set_statement(&mut self, mut tokens: Tokens<'s>) -> Result<StatementKind<'s>, TemplateError> {
        let target = tokens.target()?;
        if tokens.skip("=") {
            let first = tokens.expression()?;
            let value = if tokens.is(",") { tokens.tuple_after(first, None)? } else { first };
            tokens.end()?;
            return Ok(StatementKind::Set { target, value });
        }
        let filters = if tokens.skip("|") { tokens.filter_chain()? } else { vec![] };
        tokens.end()?;
        Ok(StatementKind::SetBlock { target, filters, body: self.body("endset")? })
    }
}

/// The tokens of one tag.
struct Tokens<'s> {
    tokens: std::iter::Peekable<std::vec::IntoIter<Token<'s>>>,
    depth: usize,
}

impl<'s> Tokens<'s> {
    fn new(tokens: Vec<Token<'s>>) -> Self {
        Self { tokens: tokens.into_iter().peekable(), depth: 0 }
    }

    fn is_empty(&mut self) -> bool {
        self.tokens.peek().is_none()
    }

    fn is(&mut self, symbol: &str) -> bool {
        matches!(self.tokens.peek(), Some(Token::Symbol(next)) if *next == symbol)
    }

    fn is_word(&mut self, word: &str) -> bool {
        matches!(self.tokens.peek(), Some(Token::Word(next)) if *next == word)
    }

    fn skip(&mut self, symbol: &str) -> bool {
        let found = self.is(symbol);
        if found {
            self.tokens.next();
        }
        found
    }

    fn skip_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.tokens.next();
        }
        found
    }

    fn expect(&mut self, symbol: &str) -> Result<(), TemplateError> {
        match self.skip(symbol) {
            true => Ok(()),
            false => Err(self.unexpected(&format!("`{symbol}`"))),
        }
    }

    fn expect_word(&mut self, word: &str) -> Result<(), TemplateError> {
        match self.skip_word(word) {
            true => Ok(()),
            false => Err(self.unexpected(&format!("`{word}`"))),
        }
    }

    fn end(&mut self) -> Result<(), TemplateError> {
        match self.is_empty() {
            true => Ok(()),
            false => Err(self.unexpected("the end of the tag")),
        }
    }

    fn word(&mut self) -> Result<&'s str, TemplateError> {
        match self.tokens.next() {
            Some(Token::Word(word)) => Ok(word),
            found => Err(unexpected("a name", found.as_ref())),
        }
    }

    fn unexpected(&mut self, wanted: &str) -> TemplateError {
        unexpected(wanted, self.tokens.peek())
    }

    /// Parses a name, an attribute of a namespace, or several of them.
    fn target(&mut self) -> Result<Target<'s>, TemplateError> {
        let first = self.one_target()?;
        if !self.is(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip(",") {
            if self.is_word("in") || self.is("=") {
                break;
            }
            targets.push(self.one_target()?);
        }
        Ok(Target::Names(targets))
    }

    fn one_target(&mut self) -> Result<Target<'s>, TemplateError> {
        if self.skip("(") {
            let target = self.nested(Self::target)?;
            self.expect(")")?;
            return Ok(match target {
                Target::Names(names) => Target::Names(names),
                one => Target::Names(vec![one]),
            });
        }
        let name = self.word()?;
        match self.skip(".") {
            true => Ok(Target::Attribute(name, self.word()?)),
            false => Ok(Target::Name(name)),
        }
    }

    /// Parses something that is one level deeper.
    fn nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, TemplateError>,
    ) -> Result<T, TemplateError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(TemplateError::new(format!("expressions are nested more than {MAX_DEPTH} deep")));
        }
        let parsed = parse(self)?;
        self.depth -= 1;
        Ok(parsed)
    }

    fn expression(&mut self) -> Result<Expr<'s>, TemplateError> {
        self.nested(|tokens| {
            let value = tokens.or()?;
            if !tokens.skip_word("if") {
                return Ok(value);
            }
            let test = tokens.or()?;
            let otherwise = match tokens.skip_word("else") {
                true => Some(tokens.expression()?),
                false => None,
            };
            Ok(Expr::If(Box::new((value, test, otherwise))))
        })
    }

    fn or(&mut self) -> Result<Expr<'s>, TemplateError> {
        let first = self.and()?;
        if !self.is_word("or") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_word("or") {
            parts.push(self.and()?);
        }
        Ok(Expr::Or(parts))
    }

    fn and(&mut self) -> Result<Expr<'s>, TemplateError> {
        let first = self.not()?;
        if !self.is_word("and") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_word("and") {
            parts.push(self.not()?);
        }
        Ok(Expr::And(parts))
    }

    fn not(&mut self) -> Result<Expr<'s>, TemplateError> {
        match self.skip_word("not") {
            true => Ok(Expr::Not(Box::new(self.nested(Self::not)?))),
            false => self.comparison(),
        }
    }

    fn comparison(&mut self) -> Result<Expr<'s>, TemplateError> {
        let first = self.chain(0)?;
        let mut rest = vec![];
        loop {
            let symbols = ["==", "!=", "<=", ">=", "<", ">"];
            let symbol = symbols.into_iter().find(|symbol| self.is(symbol));
            let comparison = match symbol {
                Some(symbol) => {
                    self.tokens.next();
                    Comparison::Is(symbol)
                }
                None if self.skip_word("in") => Comparison::In,
                None if self.skip_word("not") => {
                    self.expect_word("in")?;
                    Comparison::NotIn
                }
                None => break,
            };
            rest.push((comparison, self.chain(0)?));
        }
        match rest.is_empty() {
            true => Ok(first),
            false => Ok(Expr::Compare(Box::new(first), rest)),
        }
    }

    /// Parses the operators of a rank and those that bind tighter.
    fn chain(&mut self, rank: usize) -> Result<Expr<'s>, TemplateError> {
        const RANKS: [&[&str]; 4] = [&["+", "-"], &["~"], &["*", "/", "//", "%"], &["**"]];
        let Some(symbols) = RANKS.get(rank) else { return self.unary() };
        let first = self.chain(rank + 1)?;
        let mut rest = vec![];
        while let Some(symbol) = symbols.iter().find(|symbol| self.is(symbol)) {
            self.tokens.next();
            rest.push((*symbol, self.chain(rank + 1)?));
        }
        match rest.is_empty() {
            true => Ok(first),
            false => Ok(Expr::Chain(Box::new(first), rest)),
        }
    }

    /// Parses an operand with its accesses, filters and tests.
    fn unary(&mut self) -> Result<Expr<'s>, TemplateError> {
        let operand = self.operand()?;
        let mut postfixes = vec![];
        loop {
            if self.skip("|") {
                postfixes.push(self.filter()?);
            } else if self.skip_word("is") {
                let is_negated = self.skip_word("not");
                let name = self.word()?;
                let arguments = self.test_arguments()?;
                postfixes.push(Postfix::Test { name, arguments, is_negated });
            } else {
                break;
            }
        }
        Ok(with_postfixes(operand, postfixes))
    }

    fn filter(&mut self) -> Result<Postfix<'s>, TemplateError> {
        let name = self.word()?;
        let arguments = if self.skip("(") { self.arguments()? } else { Arguments::default() };
        Ok(Postfix::Filter(name, arguments))
    }

    fn filter_chain(&mut self) -> Result<Vec<Postfix<'s>>, TemplateError> {
        let mut filters = vec![self.filter()?];
        while self.skip("|") {
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    /// Parses `(…)` after the name of a test, or one operand without parentheses.
    fn test_arguments(&mut self) -> Result<Arguments<'s>, TemplateError> {
        if self.skip("(") {
            return self.arguments();
        }
        let starts_operand = match self.tokens.peek() {
            Some(Token::Word(word)) => {
                !["and", "or", "else", "is", "if", "in", "not", "recursive"].contains(word)
            }
            Some(Token::Text(_) | Token::Int(_) | Token::Float(_)) => true,
            Some(Token::Symbol(symbol)) => ["[", "{"].contains(symbol),
            None => false,
        };
        let positional = if starts_operand { vec![self.nested(Self::operand)?] } else { vec![] };
        Ok(Arguments { positional, named: vec![] })
    }

    /// Parses the arguments of a call after its `(`.
    fn arguments(&mut self) -> Result<Arguments<'s>, TemplateError> {
        let mut arguments = Arguments::default();
        let mut is_first = true;
        while !self.skip(")") {
            if !std::mem::take(&mut is_first) {
                self.expect(",")?;
                if self.skip(")") {
                    break;
                }
            }
            let value = self.expression()?;
            match value {
                Expr::Name(name) if self.skip("=") => {
                    let value = self.expression()?;
                    arguments.named.push((name, value));
                }
                value if arguments.named.is_empty() => arguments.positional.push(value),
                _ => return Err(TemplateError::new("arguments without a name come before those with one")),
            }
        }
        Ok(arguments)
    }

    fn operand(&mut self) -> Result<Expr<'s>, TemplateError> {
        if self.skip("-") {
            return Ok(Expr::Negative(Box::new(self.nested(Self::operand)?)));
        }
        let primary = self.primary()?;
        let mut postfixes = vec![];
        loop {
            if self.skip(".") {
                postfixes.push(match self.tokens.next() {
                    Some(Token::Word(name)) => Postfix::Attribute(name),
                    Some(Token::Int(index)) => Postfix::Item(Expr::Int(index)),
                    found => return Err(unexpected("a name", found.as_ref())),
                });
            } else if self.skip("[") {
                postfixes.push(self.subscript()?);
            } else if self.skip("(") {
                postfixes.push(Postfix::Call(self.arguments()?));
            } else {
                break;
            }
        }
        Ok(with_postfixes(primary, postfixes))
    }

    fn subscript(&mut self) -> Result<Postfix<'s>, TemplateError> {
        let mut parts = [None, None, None];
        let mut at = 0;
        loop {
            if self.skip("]") {
                break;
            }
            if self.skip(":") {
                at += 1;
                if at > 2 {
                    return Err(TemplateError::new("a slice has at most three parts"));
                }
                continue;
            }
            if parts[at].is_some() {
                return Err(self.unexpected("`]`"));
            }
            parts[at] = Some(self.expression()?);
        }
        match (at, parts) {
            (0, [Some(item), ..]) => Ok(Postfix::Item(item)),
            (0, _) => Err(TemplateError::new("there is nothing within [ ]")),
            (_, parts) => Ok(Postfix::Slice(parts)),
        }
    }

    fn primary(&mut self) -> Result<Expr<'s>, TemplateError> {
        match self.tokens.next() {
            Some(Token::Word("true" | "True")) => Ok(Expr::Bool(true)),
            Some(Token::Word("false" | "False")) => Ok(Expr::Bool(false)),
            Some(Token::Word("none" | "None")) => Ok(Expr::None),
            Some(Token::Word(name)) => Ok(Expr::Name(name)),
            Some(Token::Text(mut text)) => {
                while let Some(Token::Text(_)) = self.tokens.peek() {
                    if let Some(Token::Text(more)) = self.tokens.next() {
                        text.push_str(&more);
                    }
                }
                Ok(Expr::Text(text))
            }
            Some(Token::Int(number)) => Ok(Expr::Int(number)),
            Some(Token::Float(number)) => Ok(Expr::Float(number)),
            Some(Token::Symbol("(")) => self.parenthesis(),
            Some(Token::Symbol("[")) => self.items("]").map(Expr::List),
            Some(Token::Symbol("{")) => self.map(),
            found => Err(unexpected("a value", found.as_ref())),
        }
    }

    /// Parses an expression in parentheses, or a tuple.
    fn parenthesis(&mut self) -> Result<Expr<'s>, TemplateError> {
        if self.skip(")") {
            return Ok(Expr::Tuple(vec![]));
        }
        let first = self.expression()?;
        match self.is(",") {
            true => self.tuple_after(first, Some(")")),
            false => self.expect(")").map(|()| first),
        }
    }

    /// Parses the rest of a tuple, up to `end` or the end of the tag.
    fn tuple_after(&mut self, first: Expr<'s>, end: Option<&str>) -> Result<Expr<'s>, TemplateError> {
        let mut items = vec![first];
        loop {
            let is_over = match end {
                Some(end) => self.skip(end),
                None => self.is_empty(),
            };
            if is_over {
                return Ok(Expr::Tuple(items));
            }
            self.expect(",")?;
            if end.is_none_or(|end| !self.is(end)) && !self.is_empty() {
                items.push(self.expression()?);
            }
        }
    }

    fn items(&mut self, end: &str) -> Result<Vec<Expr<'s>>, TemplateError> {
        let mut items = vec![];
        while !self.skip(end) {
            if !items.is_empty() {
                self.expect(",")?;
                if self.skip(end) {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(items)
    }

    fn map(&mut self) -> Result<Expr<'s>, TemplateError> {
        let mut entries = vec![];
        while !self.skip("}") {
            if !entries.is_empty() {
                self.expect(",")?;
                if self.skip("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect(":")?;
            entries.push((key, self.expression()?));
        }
        Ok(Expr::Map(entries))
    }
}

fn with_postfixes<'s>(operand: Expr<'s>, postfixes: Vec<Postfix<'s>>) -> Expr<'s> {
    match (operand, postfixes) {
        (operand, postfixes) if postfixes.is_empty() => operand,
        (Expr::Access(inner, mut before), postfixes) => {
            before.extend(postfixes);
            Expr::Access(inner, before)
        }
        (operand, postfixes) => Expr::Access(Box::new(operand), postfixes),
    }
}

fn unexpected(wanted: &str, found: Option<&Token<'_>>) -> TemplateError {
    let found = match found {
        None => "the end".to_owned(),
        Some(Token::Word(word)) => format!("`{}`", word.chars().take(40).collect::<String>()),
        Some(Token::Symbol(symbol)) => format!("`{symbol}`"),
        Some(Token::Text(_)) => "a text".to_owned(),
        Some(Token::Int(_) | Token::Float(_)) => "a number".to_owned(),
    };
    TemplateError::new(format!("expected {wanted}, found {found}"))
}
