//! Evaluates a template.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value as Json;

use super::budget::Budget;
use super::parser::{Arguments, Block, Comparison, Expr, For, Postfix, Statement, StatementKind, Target};
use super::value::{Function, Value};
use super::{TemplateError, filters, operators, tests_of_values};

/// The maximum nesting of blocks, expressions, filters and loops that call themselves, together.
const MAX_DEPTH: usize = 100;
/// The maximum number of items of `range`.
const MAX_RANGE: i128 = 100_000;

/// The state of a loop that templates see as `loop`.
#[derive(Debug)]
pub(super) struct Loop {
    index: Cell<usize>,
    length: usize,
    depth: usize,
}

impl Loop {
    pub(super) fn get<'a>(&self, name: &str) -> Value<'a> {
        let (index, length) = (self.index.get(), self.length);
        let int = |number: usize| Value::Int(i128::try_from(number).unwrap_or(i128::MAX));
        match name {
            "index" => int(index + 1),
            "index0" => int(index),
            "revindex" => int(length.saturating_sub(index)),
            "revindex0" => int(length.saturating_sub(index + 1)),
            "first" => Value::Bool(index == 0),
            "last" => Value::Bool(index + 1 == length),
            "length" => int(length),
            "depth" => int(self.depth + 1),
            "depth0" => int(self.depth),
            _ => Value::Undefined,
        }
    }
}

/// The names of one scope.
#[derive(Debug, Default)]
struct Scope<'t, 'a> {
    names: BTreeMap<&'t str, Value<'a>>,
    /// The arguments of the last `loop.changed`.
    changed: Option<Vec<Value<'a>>>,
}

/// The arguments of a filter, a test or a function.
#[derive(Debug)]
pub(super) struct EvaluatedArguments<'t, 'a> {
    pub(super) positional: Vec<Value<'a>>,
    pub(super) named: Vec<(&'t str, Value<'a>)>,
}

impl<'a> EvaluatedArguments<'_, 'a> {
    /// Takes the argument at a position, or the one with a name.
    pub(super) fn take(&mut self, at: usize, name: &str) -> Option<Value<'a>> {
        if let Some(value) = self.positional.get_mut(at) {
            return Some(std::mem::replace(value, Value::Undefined)).filter(|value| !value.is_undefined());
        }
        let named = self.named.iter().position(|(known, _)| *known == name)?;
        Some(self.named.swap_remove(named).1)
    }
}

pub(super) struct Evaluator<'t, 'a> {
    context: &'a Json,
    scopes: Vec<Scope<'t, 'a>>,
    /// The loops around the current statement, the innermost last.
    loops: Vec<&'t For<'t>>,
    /// The text of the template, then the texts of the captured blocks around the current statement, the innermost last.
    output: Vec<String>,
    pub(super) escapes: bool,
    depth: usize,
    pub(super) budget: Budget,
}

/// Renders a block with the variables of `context`.
pub(super) fn render<'t>(
    block: &'t Block<'t>,
    context: &Json,
    budget: Budget,
) -> Result<String, TemplateError> {
    let mut evaluator = Evaluator::new(context, budget);
    evaluator.block(block)?;
    Ok(evaluator.output.pop().unwrap_or_default())
}

/// Returns whether the value of a statement that emits an expression is true.
pub(super) fn is_true<'t>(
    statement: &'t Statement<'t>,
    context: &Json,
    budget: Budget,
) -> Result<bool, TemplateError> {
    match &statement.kind {
        StatementKind::Emit(expr) => Ok(Evaluator::new(context, budget).expr(expr)?.is_true()),
        _ => Ok(false),
    }
}

impl<'t, 'a> Evaluator<'t, 'a> {
    fn new(context: &'a Json, budget: Budget) -> Self {
        Self {
            context,
            scopes: vec![Scope::default()],
            loops: vec![],
            output: vec![String::new()],
            escapes: false,
            depth: 0,
            budget,
        }
    }

    fn block(&mut self, block: &'t Block<'t>) -> Result<(), TemplateError> {
        self.nested(|evaluator| {
            block.iter().try_for_each(|statement| {
                evaluator.statement(statement).map_err(|error| error.at(statement.line))
            })
        })
    }

    /// Evaluates something that is one level deeper. An error leaves `depth` as it is, because it ends the evaluation.
    pub(super) fn nested<T>(
        &mut self,
        evaluate: impl FnOnce(&mut Self) -> Result<T, TemplateError>,
    ) -> Result<T, TemplateError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(TemplateError::new(format!("the template is nested more than {MAX_DEPTH} deep")));
        }
        let result = evaluate(self)?;
        self.depth -= 1;
        Ok(result)
    }

    /// Appends to the text, or to the innermost captured block.
    fn write(&mut self, text: &str) -> Result<(), TemplateError> {
        match self.output.len() {
            1 => self.budget.output(text.len())?,
            _ => self.budget.bytes(text.len())?,
        }
        if let Some(output) = self.output.last_mut() {
            output.push_str(text);
        }
        Ok(())
    }

    fn statement(&mut self, statement: &'t Statement<'t>) -> Result<(), TemplateError> {
        self.budget.step()?;
        match &statement.kind {
            StatementKind::Text(text) => self.write(text),
            StatementKind::Emit(expr) => {
                let value = self.expr(expr)?;
                self.emit(&value)
            }
            StatementKind::If { branches, otherwise } => {
                for (condition, block) in branches {
                    if self.expr(condition)?.is_true() {
                        return self.block(block);
                    }
                }
                self.block(otherwise)
            }
            StatementKind::For(each) => {
                let items = self.expr(&each.items)?;
                self.repeat(each, &items)
            }
            StatementKind::Set { target, value } => {
                let value = self.expr(value)?;
                self.assign(target, value)
            }
            StatementKind::SetBlock { target, filters, body } => {
                let value = self.captured(body)?;
                let value = self.postfixes(value, filters)?;
                self.assign(target, value)
            }
            StatementKind::With { values, body } => {
                self.scopes.push(Scope::default());
                for (target, value) in values {
                    let value = self.expr(value)?;
                    self.assign(target, value)?;
                }
                self.block(body)?;
                self.scopes.pop();
                Ok(())
            }
            StatementKind::Filter { filters, body } => {
                let value = self.captured(body)?;
                let value = self.postfixes(value, filters)?;
                self.emit(&value)
            }
            StatementKind::AutoEscape { enabled, body } => {
                let enabled = self.expr(enabled)?;
                let enabled = enabled.as_str().map_or(enabled.is_true(), |kind| kind != "none");
                let before = std::mem::replace(&mut self.escapes, enabled);
                self.block(body)?;
                self.escapes = before;
                Ok(())
            }
            StatementKind::Do(call) => self.expr(call).map(drop),
        }
    }

    fn emit(&mut self, value: &Value<'a>) -> Result<(), TemplateError> {
        let mut text = String::new();
        operators::display(value, &mut text, &mut self.budget)?;
        if self.escapes && !matches!(value, Value::Safe(_)) {
            let plain = std::mem::take(&mut text);
            operators::escape(&plain, &mut text, &mut self.budget)?;
        }
        self.write(&text)
    }

    /// Renders a block into a value.
    fn captured(&mut self, block: &'t Block<'t>) -> Result<Value<'a>, TemplateError> {
        self.output.push(String::new());
        self.block(block)?;
        let text = self.output.pop().unwrap_or_default();
        self.budget.bytes(text.len())?;
        Ok(if self.escapes { Value::Safe(text.into()) } else { Value::Text(text.into()) })
    }

    fn repeat(&mut self, each: &'t For<'t>, items: &Value<'a>) -> Result<(), TemplateError> {
        let depth = self.loops.iter().filter(|outer| std::ptr::eq(**outer, each)).count();
        let mut items = items.items(&mut self.budget)?;
        if let Some(condition) = &each.condition {
            items = self.filtered(each, condition, items)?;
        }
        if items.is_empty() {
            return self.block(&each.otherwise);
        }
        let state = Rc::new(Loop { index: Cell::new(0), length: items.len(), depth });
        self.loops.push(each);
        self.scopes.push(Scope::default());
        for (index, item) in items.into_iter().enumerate() {
            self.budget.step()?;
            state.index.set(index);
            if let Some(scope) = self.scopes.last_mut() {
                scope.names.clear();
                scope.names.insert("loop", Value::Loop(state.clone()));
            }
            self.assign(&each.target, item)?;
            self.block(&each.body)?;
        }
        self.scopes.pop();
        self.loops.pop();
        Ok(())
    }

    /// The items for which the condition of a loop holds.
    fn filtered(
        &mut self,
        each: &'t For<'t>,
        condition: &'t Expr<'t>,
        items: Vec<Value<'a>>,
    ) -> Result<Vec<Value<'a>>, TemplateError> {
        let mut kept = vec![];
        self.scopes.push(Scope::default());
        for item in items {
            self.budget.step()?;
            self.assign(&each.target, item.clone())?;
            if self.expr(condition)?.is_true() {
                kept.push(item);
            }
        }
        self.scopes.pop();
        Ok(kept)
    }

    fn assign(&mut self, target: &'t Target<'t>, value: Value<'a>) -> Result<(), TemplateError> {
        match target {
            Target::Name(name) => {
                if let Some(scope) = self.scopes.last_mut() {
                    scope.names.insert(name, value);
                }
                Ok(())
            }
            Target::Attribute(name, attribute) => {
                value.check_storable()?;
                match self.lookup(name)? {
                    Value::Namespace(values) => {
                        self.budget.bytes(attribute.len() + 64)?;
                        values.borrow_mut().insert((*attribute).to_owned(), value);
                        Ok(())
                    }
                    other => {
                        let kind = other.kind();
                        Err(TemplateError::new(format!(
                            "only namespaces have attributes to set, not a {kind}"
                        )))
                    }
                }
            }
            Target::Names(targets) => {
                let items = value.items(&mut self.budget)?;
                if items.len() != targets.len() {
                    let (wanted, found) = (targets.len(), items.len());
                    return Err(TemplateError::new(format!(
                        "{wanted} values are expected, there are {found}"
                    )));
                }
                targets.iter().zip(items).try_for_each(|(target, item)| self.assign(target, item))
            }
        }
    }

    fn lookup(&mut self, name: &str) -> Result<Value<'a>, TemplateError> {
        if let Some(value) = self.scopes.iter().rev().find_map(|scope| scope.names.get(name)) {
            return Ok(value.clone());
        }
        if let Some(value) = self.context.get(name) {
            return Value::of_json(value, &mut self.budget);
        }
        Ok(match name {
            "range" => Value::Function(Function::Range),
            "dict" => Value::Function(Function::Dict),
            "namespace" => Value::Function(Function::Namespace),
            _ => Value::Undefined,
        })
    }

    fn expr(&mut self, expr: &'t Expr<'t>) -> Result<Value<'a>, TemplateError> {
        self.budget.step()?;
        self.nested(|evaluator| evaluator.expr_within(expr))
    }

    fn expr_within(&mut self, expr: &'t Expr<'t>) -> Result<Value<'a>, TemplateError> {
        match expr {
            Expr::None => Ok(Value::None),
            Expr::Bool(value) => Ok(Value::Bool(*value)),
            Expr::Int(number) => Ok(Value::Int(*number)),
            Expr::Float(number) => Ok(Value::Float(*number)),
            Expr::Text(text) => Value::text(text, &mut self.budget),
            Expr::Name(name) => self.lookup(name),
            Expr::List(items) => Value::list(self.all(items)?, false),
            Expr::Tuple(items) => Value::list(self.all(items)?, true),
            Expr::Map(entries) => {
                let mut values = vec![];
                for (key, value) in entries {
                    values.push((self.expr(key)?, self.expr(value)?));
                }
                Value::map(values, &mut self.budget)
            }
            Expr::Not(inner) => Ok(Value::Bool(!self.expr(inner)?.is_true())),
            Expr::Negative(inner) => operators::negate(&self.expr(inner)?),
            Expr::Or(parts) => self.short_circuit(parts, true),
            Expr::And(parts) => self.short_circuit(parts, false),
            Expr::Chain(first, rest) => {
                let mut value = self.expr(first)?;
                for (symbol, operand) in rest {
                    let operand = self.expr(operand)?;
                    value = operators::apply(symbol, &value, &operand, &mut self.budget)?;
                }
                Ok(value)
            }
            Expr::Compare(first, rest) => self.comparisons(first, rest),
            Expr::If(parts) => {
                let (value, test, otherwise) = &**parts;
                match (self.expr(test)?.is_true(), otherwise) {
                    (true, _) => self.expr(value),
                    (false, Some(otherwise)) => self.expr(otherwise),
                    (false, None) => Ok(Value::Undefined),
                }
            }
            Expr::Access(inner, postfixes) => {
                let value = self.expr(inner)?;
                self.postfixes(value, postfixes)
            }
        }
    }

    fn all(&mut self, items: &'t [Expr<'t>]) -> Result<Vec<Value<'a>>, TemplateError> {
        self.budget.values(items.len() + 1)?;
        items.iter().map(|item| self.expr(item)).collect()
    }

    /// Evaluates `parts` in order, up to the first one whose truth equals `stop_at`. Returns the last evaluated value.
    fn short_circuit(&mut self, parts: &'t [Expr<'t>], stop_at: bool) -> Result<Value<'a>, TemplateError> {
        let mut value = Value::Undefined;
        for part in parts {
            value = self.expr(part)?;
            if value.is_true() == stop_at {
                break;
            }
        }
        Ok(value)
    }

    fn comparisons(
        &mut self,
        first: &'t Expr<'t>,
        rest: &'t [(Comparison, Expr<'t>)],
    ) -> Result<Value<'a>, TemplateError> {
        let mut left = self.expr(first)?;
        for (comparison, right) in rest {
            let right = self.expr(right)?;
            let budget = &mut self.budget;
            let holds = match comparison {
                Comparison::In => operators::contains(&right, &left, budget)?,
                Comparison::NotIn => !operators::contains(&right, &left, budget)?,
                Comparison::Is("==") => operators::equals(&left, &right, budget)?,
                Comparison::Is("!=") => !operators::equals(&left, &right, budget)?,
                Comparison::Is("<") => operators::compare(&left, &right, budget)?.is_lt(),
                Comparison::Is("<=") => operators::compare(&left, &right, budget)?.is_le(),
                Comparison::Is(">") => operators::compare(&left, &right, budget)?.is_gt(),
                Comparison::Is(_) => operators::compare(&left, &right, budget)?.is_ge(),
            };
            if !holds {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn postfixes(
        &mut self,
        value: Value<'a>,
        postfixes: &'t [Postfix<'t>],
    ) -> Result<Value<'a>, TemplateError> {
        let mut value = value;
        let mut rest = postfixes.iter();
        while let Some(postfix) = rest.next() {
            self.budget.step()?;
            value = match postfix {
                Postfix::Attribute(name @ ("cycle" | "changed")) if matches!(value, Value::Loop(_)) => {
                    let Some(Postfix::Call(arguments)) = rest.next() else {
                        return Err(TemplateError::new(format!("loop.{name} is called with arguments")));
                    };
                    let given = self.evaluate_arguments(arguments)?;
                    self.loop_method(&value, name, &given.positional)?
                }
                Postfix::Attribute(name) => {
                    let key = Value::text(name, &mut self.budget)?;
                    value.get(&key, &mut self.budget)?
                }
                Postfix::Item(key) => {
                    let key = self.expr(key)?;
                    value.get(&key, &mut self.budget)?
                }
                Postfix::Slice(parts) => self.slice(&value, parts)?,
                Postfix::Call(arguments) => {
                    let given = self.evaluate_arguments(arguments)?;
                    self.call(&value, given)?
                }
                Postfix::Filter(name, arguments) => {
                    let given = self.evaluate_arguments(arguments)?;
                    filters::apply(self, name, value, given)
                        .map_err(|error| TemplateError::new(format!("filter {name}: {}", error.message)))?
                }
                Postfix::Test { name, arguments, is_negated } => {
                    let given = self.evaluate_arguments(arguments)?;
                    let holds = tests_of_values::holds(name, &value, &given.positional, &mut self.budget)?;
                    Value::Bool(holds != *is_negated)
                }
            };
        }
        Ok(value)
    }

    fn evaluate_arguments(
        &mut self,
        arguments: &'t Arguments<'t>,
    ) -> Result<EvaluatedArguments<'t, 'a>, TemplateError> {
        let positional = self.all(&arguments.positional)?;
        let mut named = vec![];
        for (name, value) in &arguments.named {
            named.push((*name, self.expr(value)?));
        }
        Ok(EvaluatedArguments { positional, named })
    }

    fn loop_method(
        &mut self,
        value: &Value<'a>,
        name: &str,
        arguments: &[Value<'a>],
    ) -> Result<Value<'a>, TemplateError> {
        let Value::Loop(state) = value else { return Ok(Value::Undefined) };
        if name == "cycle" {
            let at = state.index.get().checked_rem(arguments.len());
            return Ok(at.and_then(|at| arguments.get(at)).cloned().unwrap_or(Value::Undefined));
        }
        let scope = self.scopes.iter_mut().rev().find(|scope| scope.names.contains_key("loop"));
        let Some(scope) = scope else { return Ok(Value::Undefined) };
        let before = scope.changed.replace(arguments.to_vec());
        let Some(before) = before.filter(|before| before.len() == arguments.len()) else {
            return Ok(Value::Bool(true));
        };
        for (before, now) in before.iter().zip(arguments) {
            if !operators::equals(before, now, &mut self.budget)? {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }

    fn call(
        &mut self,
        function: &Value<'a>,
        mut given: EvaluatedArguments<'t, 'a>,
    ) -> Result<Value<'a>, TemplateError> {
        match function {
            Value::Function(Function::Range) => self.range(&given.positional),
            Value::Function(Function::Dict | Function::Namespace) => {
                let mut entries = match given.take(0, "") {
                    Some(map) => map.entries(&mut self.budget)?,
                    None => vec![],
                };
                for (name, value) in std::mem::take(&mut given.named) {
                    entries.push((Value::text(name, &mut self.budget)?, value));
                }
                if matches!(function, Value::Function(Function::Dict)) {
                    return Value::map(entries, &mut self.budget);
                }
                let mut values = BTreeMap::new();
                for (name, value) in entries {
                    value.check_storable()?;
                    let name = name.as_str().unwrap_or_default();
                    self.budget.bytes(name.len())?;
                    values.insert(name.to_owned(), value);
                }
                Ok(Value::Namespace(Rc::new(RefCell::new(values))))
            }
            Value::Loop(_) => {
                let each = self.loops.last().copied().filter(|each| each.is_recursive);
                let (Some(each), Some(items)) = (each, given.take(0, "")) else {
                    return Err(TemplateError::new(
                        "only a loop with `recursive` can be called, with the items of the next level",
                    ));
                };
                self.output.push(String::new());
                self.repeat(each, &items)?;
                let text = self.output.pop().unwrap_or_default();
                self.budget.bytes(text.len())?;
                Ok(Value::Safe(text.into()))
            }
            other => Err(TemplateError::new(format!("a {} cannot be called", other.kind()))),
        }
    }

    fn range(&mut self, arguments: &[Value<'a>]) -> Result<Value<'a>, TemplateError> {
        let int = |value: &Value<'a>| match value {
            Value::Int(number) => Ok(*number),
            other => Err(TemplateError::new(format!("range takes whole numbers, not a {}", other.kind()))),
        };
        let (start, end, step) = match arguments {
            [end] => (0, int(end)?, 1),
            [start, end] => (int(start)?, int(end)?, 1),
            [start, end, step] => (int(start)?, int(end)?, int(step)?),
            _ => return Err(TemplateError::new("range takes one to three numbers")),
        };
        let distance = if step > 0 { end.checked_sub(start) } else { start.checked_sub(end) };
        let (Some(distance), true) = (distance, step != 0) else {
            return Err(TemplateError::new("range has no such numbers"));
        };
        let step_size = i128::try_from(step.unsigned_abs()).unwrap_or(i128::MAX);
        let distance = distance.max(0);
        let count = distance / step_size + i128::from(distance % step_size != 0);
        if count > MAX_RANGE {
            return Err(TemplateError::new(format!("range has more than {MAX_RANGE} numbers")));
        }
        self.budget.values(usize::try_from(count).unwrap_or(usize::MAX))?;
        Value::list((0..count).map(|at| Value::Int(start + at * step)).collect(), false)
    }

    fn slice(
        &mut self,
        value: &Value<'a>,
        parts: &'t [Option<Expr<'t>>; 3],
    ) -> Result<Value<'a>, TemplateError> {
        let mut bounds = [None; 3];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            *bound = match part.as_ref().map(|part| self.expr(part)).transpose()? {
                None | Some(Value::None | Value::Undefined) => None,
                Some(Value::Int(number)) => Some(number),
                Some(other) => {
                    return Err(TemplateError::new(format!("a slice takes numbers, not a {}", other.kind())));
                }
            };
        }
        let is_text = value.as_str().is_some();
        if !is_text && !value.is_sequence() && !value.is_undefined() {
            return Err(TemplateError::new(format!("a {} has no slices", value.kind())));
        }
        let items = value.items(&mut self.budget)?;
        let length = i128::try_from(items.len()).unwrap_or(i128::MAX);
        let step = bounds[2].unwrap_or(1);
        if step == 0 {
            return Err(TemplateError::new("a slice has no step of 0"));
        }
        let clamp = |bound: i128, low, high| {
            let from_start = if bound < 0 { bound.saturating_add(length) } else { bound };
            from_start.clamp(low, high)
        };
        let (mut at, end) = match step > 0 {
            true => (
                bounds[0].map_or(0, |bound| clamp(bound, 0, length)),
                bounds[1].map_or(length, |bound| clamp(bound, 0, length)),
            ),
            false => (
                bounds[0].map_or(length - 1, |bound| clamp(bound, -1, length - 1)),
                bounds[1].map_or(-1, |bound| clamp(bound, -1, length - 1)),
            ),
        };
        let mut picked = vec![];
        while (step > 0 && at < end) || (step < 0 && at > end) {
            picked.extend(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned());
            at = at.saturating_add(step);
        }
        if is_text {
            let text: String = picked.iter().filter_map(Value::as_str).collect();
            return Value::text(&text, &mut self.budget);
        }
        let is_tuple = matches!(value, Value::List(list) if list.is_tuple);
        Value::list(picked, is_tuple)
    }
}
