//! Reads a condition from text: the WHERE clause of ClickHouse or MySQL, as far as [`Predicate`] goes.

use super::error::QueryError;
use super::predicate::{Predicate, Test};
use super::update::TagValue;
use sqlparser::ast::{
    BinaryOperator, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, InTarget, UnaryOperator, Value,
};
use sqlparser::dialect::ClickHouseDialect;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Token, Tokenizer};
use std::sync::Arc;

/// Longer texts are refused unread.
const MAX_BYTES: usize = 64 << 10;
/// Words and operators beside list values: bounds how deep the parsed tree can be, since its pieces are freed recursively.
const MAX_WORDS: usize = 1024;
const MAX_NESTING: usize = 50;

const SUPPORTED: &str = "and, or, not, parentheses, =, !=, <, <=, >, >=, between, in, is null, is not null on a tag and \
                         literals, hasAny(tag, ['a']), hasAll(tag, ['a']), has(tag, 'a'), true and false; texts in \
                         single quotes, whole numbers of 64 bits";

impl Predicate {
    /// Reads a condition such as `buys_total >= 2 and hasAny(categories, ['123','4']) and not last_behaviour = 'pv'`.
    ///
    /// Keywords and function names are read in any case; tag names as they are, in `"…"` or backticks if they are no
    /// plain words. Whether the tags exist is seen when it is asked of a reader.
    ///
    /// # Errors
    /// A text over 64 KiB, with over 1024 words and operators, or nested over 50 deep; what is no expression; and what is one
    /// but not supported, named together with what is.
    pub fn parse(text: &str) -> Result<Predicate, QueryError> {
        let limit = |what, size, limit| Err(QueryError::TooLarge { what, size, limit });
        if text.len() > MAX_BYTES {
            return limit("a length in bytes of", text.len(), MAX_BYTES);
        }
        let dialect = ClickHouseDialect {};
        let tokens = Tokenizer::new(&dialect, text).tokenize().map_err(|e| syntax(&e))?;
        let plain = |t: &&Token| {
            !matches!(
                t,
                Token::Whitespace(_) | Token::Comma | Token::SingleQuotedString(_) | Token::Number(..)
            )
        };
        let words = tokens.iter().filter(plain).count();
        if words > MAX_WORDS {
            return limit("a number of words and operators of", words, MAX_WORDS);
        }
        let mut parser = Parser::new(&dialect).with_recursion_limit(MAX_NESTING).with_tokens(tokens);
        let expr = parser.parse_expr().map_err(|e| syntax(&e))?;
        match parser.peek_token().token {
            Token::EOF => condition(&expr),
            rest => {
                Err(QueryError::Syntax { reason: format!("unexpected '{rest}' after a complete condition") })
            }
        }
    }
}

impl std::str::FromStr for Predicate {
    type Err = QueryError;
    fn from_str(text: &str) -> Result<Self, QueryError> {
        Predicate::parse(text)
    }
}

fn syntax(e: &dyn std::fmt::Display) -> QueryError {
    let reason = e.to_string();
    let reason = match reason.contains("recursion limit") {
        true => format!("it is nested more than {MAX_NESTING} deep"),
        false => reason.trim_start_matches("sql parser error: ").to_owned(),
    };
    QueryError::Syntax { reason }
}

#[cold]
fn unsupported(piece: impl std::fmt::Display) -> QueryError {
    let mut piece = piece.to_string();
    if let Some((cut, _)) = piece.char_indices().nth(80) {
        piece.truncate(cut);
        piece.push('…');
    }
    QueryError::Unsupported { piece: format!("'{piece}'"), supported: SUPPORTED }
}

fn condition(expr: &Expr) -> Result<Predicate, QueryError> {
    match expr {
        Expr::Nested(inner) => condition(inner),
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => Ok(!condition(expr)?),
        Expr::BinaryOp { op: op @ (BinaryOperator::And | BinaryOperator::Or), .. } => chain(expr, op),
        Expr::BinaryOp { left, op, right } => comparison(left, op, right),
        Expr::Between { expr, negated, low, high } => {
            let (tag, low, high) = (name(expr)?, whole(low)?, whole(high)?);
            let leaf = |test| Predicate::leaf(tag.clone(), test);
            Ok(match negated {
                false => leaf(Test::Between(low, high)),
                // As in SQL: a user without the tag is not between either.
                true => leaf(Test::Lt(low)).or(leaf(Test::Gt(high))),
            })
        }
        Expr::In { expr, target: InTarget::List(list), negated, global: false } => {
            let (tag, values) = (name(expr)?, list.iter().map(literal).collect::<Result<Vec<_>, _>>()?);
            Ok(Predicate::leaf(tag, if *negated { Test::NotIn(values) } else { Test::In(values) }))
        }
        Expr::IsNull(expr) => Ok(!Predicate::leaf(name(expr)?, Test::Exists)),
        Expr::IsNotNull(expr) => Ok(Predicate::leaf(name(expr)?, Test::Exists)),
        Expr::Function(_) => membership(expr),
        Expr::Value(v) => match v.value {
            Value::Boolean(true) => Ok(Predicate::all()),
            Value::Boolean(false) => Ok(!Predicate::all()),
            _ => Err(unsupported(expr)),
        },
        _ => Err(unsupported(expr)),
    }
}

/// A run of ands or of ors leans to the left and may be long: walked in a loop, not by recursion.
fn chain(expr: &Expr, run: &BinaryOperator) -> Result<Predicate, QueryError> {
    let (mut parts, mut rest) = (Vec::new(), expr);
    while let Expr::BinaryOp { left, op, right } = rest {
        if op != run {
            break;
        }
        parts.push(&**right);
        rest = left;
    }
    parts.iter().rev().try_fold(condition(rest)?, |done, part| {
        let part = condition(part)?;
        Ok(if *run == BinaryOperator::And { done.and(part) } else { done.or(part) })
    })
}

fn comparison(left: &Expr, op: &BinaryOperator, right: &Expr) -> Result<Predicate, QueryError> {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    let flipped = match op {
        Eq | NotEq => op,
        Lt => &Gt,
        LtEq => &GtEq,
        Gt => &Lt,
        GtEq => &LtEq,
        _ => return Err(unsupported(format_args!("operator {op}"))),
    };
    let literal_first = matches!(left, Expr::Value(_) | Expr::UnaryOp { op: UnaryOperator::Minus, .. });
    let (tag, op, value) = if literal_first { (right, flipped, left) } else { (left, op, right) };
    let tag = name(tag)?;
    let test = match op {
        Eq => Test::In(vec![literal(value)?]),
        NotEq => Test::NotIn(vec![literal(value)?]),
        Lt => Test::Lt(whole(value)?),
        LtEq => Test::Le(whole(value)?),
        Gt => Test::Gt(whole(value)?),
        _ => Test::Ge(whole(value)?),
    };
    Ok(Predicate::leaf(tag, test))
}

/// `hasAny`, `hasAll` and `has`.
fn membership(expr: &Expr) -> Result<Predicate, QueryError> {
    let Expr::Function(f) = expr else { return Err(unsupported(expr)) };
    let FunctionArguments::List(list) = &f.args else { return Err(unsupported(expr)) };
    let decorated = f.over.is_some() || f.filter.is_some() || f.null_treatment.is_some();
    if decorated
        || !f.within_group.is_empty()
        || list.duplicate_treatment.is_some()
        || !list.clauses.is_empty()
    {
        return Err(unsupported(expr));
    }
    let [
        FunctionArg::Unnamed(FunctionArgExpr::Expr(tag)),
        FunctionArg::Unnamed(FunctionArgExpr::Expr(values)),
    ] = list.args.as_slice()
    else {
        return Err(unsupported(expr));
    };
    let text = |e: &Expr| match literal(e)? {
        TagValue::Text(t) => Ok(t),
        other => Err(unsupported(format_args!("{other} as an element (write '{other}')"))),
    };
    let called = f.name.to_string().to_ascii_lowercase();
    let test = match (called.as_str(), values) {
        ("has", one) => Test::HasAny(vec![text(one)?]),
        ("hasany", Expr::Array(all)) => Test::HasAny(all.elem.iter().map(text).collect::<Result<_, _>>()?),
        ("hasall", Expr::Array(all)) => Test::HasAll(all.elem.iter().map(text).collect::<Result<_, _>>()?),
        _ => return Err(unsupported(expr)),
    };
    Ok(Predicate::leaf(name(tag)?, test))
}

fn name(expr: &Expr) -> Result<Arc<str>, QueryError> {
    match expr {
        Expr::Identifier(ident) => Ok(ident.value.as_str().into()),
        Expr::Nested(inner) => name(inner),
        Expr::BinaryOp { op, .. } => Err(unsupported(format_args!("operator {op} on a tag"))),
        _ => Err(unsupported(format_args!("{expr} in place of a tag"))),
    }
}

fn literal(expr: &Expr) -> Result<TagValue, QueryError> {
    match expr {
        Expr::Value(v) => match &v.value {
            Value::SingleQuotedString(s) => Ok(TagValue::Text(s.clone())),
            Value::Number(digits, _) => number(digits),
            _ => Err(unsupported(expr)),
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr: inner } => match &**inner {
            Expr::Value(v) => match &v.value {
                Value::Number(digits, _) => number(&format!("-{digits}")),
                _ => Err(unsupported(expr)),
            },
            _ => Err(unsupported("operator -")),
        },
        Expr::Nested(inner) => literal(inner),
        Expr::BinaryOp { op, .. } => Err(unsupported(format_args!("operator {op} in place of a literal"))),
        _ => Err(unsupported(format_args!("{expr} in place of a literal"))),
    }
}

fn number(digits: &str) -> Result<TagValue, QueryError> {
    digits.parse().map(TagValue::Int).map_err(|_| unsupported(format_args!("number {digits}")))
}

fn whole(expr: &Expr) -> Result<i64, QueryError> {
    match literal(expr)? {
        TagValue::Int(n) => Ok(n),
        other => Err(unsupported(format_args!("{other} where a whole number is needed"))),
    }
}
