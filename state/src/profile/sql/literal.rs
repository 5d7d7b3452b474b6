//! Values as they are written: texts, numbers, truth values, dates by function or keyword, arrays and JSON.

use super::super::error::QueryError;
use super::super::scalar::{Decimal, Float, day};
use super::super::update::TagValue;
use super::condition::SUPPORTED;
use super::text::{at, start, unsupported};
use sqlparser::ast::{Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, UnaryOperator, Value};

/// A value, or the piece that is none.
pub(super) fn literal(expr: &Expr) -> Result<TagValue, QueryError> {
    let refuse = |piece: String| Err(at(start(expr), unsupported(piece, SUPPORTED)));
    match expr {
        Expr::Value(v) => match &v.value {
            // In MySQL double quotes make a text; where a value must stand, nothing else can be meant.
            Value::SingleQuotedString(s) | Value::DoubleQuotedString(s) => Ok(TagValue::Text(s.clone())),
            Value::Number(digits, _) => number(digits, expr),
            Value::Boolean(b) => Ok(TagValue::Bool(*b)),
            _ => refuse(expr.to_string()),
        },
        Expr::Identifier(ident) if ident.quote_style == Some('"') => Ok(TagValue::Text(ident.value.clone())),
        Expr::UnaryOp { op: UnaryOperator::Minus, expr: inner } => match &**inner {
            Expr::Value(v) => match &v.value {
                Value::Number(digits, _) => number(&format!("-{digits}"), expr),
                _ => refuse(expr.to_string()),
            },
            _ => refuse("operator -".to_owned()),
        },
        Expr::Nested(inner) => literal(inner),
        Expr::TypedString(typed) => match &typed.value.value {
            Value::SingleQuotedString(s) => Ok(TagValue::Text(s.clone())),
            _ => refuse(expr.to_string()),
        },
        // The type of the tag says how precisely the text is read.
        Expr::Function(f) => {
            match (f.name.to_string().to_ascii_lowercase().as_str(), arguments(f).as_deref()) {
                (called @ ("todate" | "todatetime" | "todatetime64" | "date" | "timestamp"), Some([one])) => {
                    match literal(one)? {
                        TagValue::Text(text) => Ok(match called {
                            "todate" | "date" => day(&text).map_or(TagValue::Text(text), TagValue::Date),
                            _ => TagValue::Text(text),
                        }),
                        _ => refuse(expr.to_string()),
                    }
                }
                _ => refuse(format!("{expr} in place of a literal")),
            }
        }
        Expr::BinaryOp { op, .. } => refuse(format!("operator {op} in place of a literal")),
        _ => refuse(format!("{expr} in place of a literal")),
    }
}

fn number(digits: &str, expr: &Expr) -> Result<TagValue, QueryError> {
    numeral(digits).ok_or_else(|| at(start(expr), unsupported(format_args!("number {digits}"), SUPPORTED)))
}

/// A number as it is written, as exactly as that is.
pub(super) fn numeral(digits: &str) -> Option<TagValue> {
    if let Ok(n) = digits.parse::<i64>() {
        return Some(TagValue::Int(n));
    }
    if let Ok(n) = digits.parse::<u64>() {
        return Some(TagValue::from(n));
    }
    if let Ok(n) = digits.parse::<Decimal>() {
        return Some(TagValue::Decimal(n));
    }
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    digits.parse::<f64>().ok().filter(|_| plain).map(|n| TagValue::Float(Float(n)))
}

/// The arguments of a plain call; nothing if it is more than that.
pub(super) fn arguments(f: &Function) -> Option<Vec<&Expr>> {
    let FunctionArguments::List(list) = &f.args else { return None };
    let decorated = f.over.is_some()
        || f.filter.is_some()
        || f.null_treatment.is_some()
        || !f.within_group.is_empty()
        || !matches!(f.parameters, FunctionArguments::None)
        || list.duplicate_treatment.is_some()
        || !list.clauses.is_empty();
    if decorated {
        return None;
    }
    let each = list.args.iter().map(|argument| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    });
    each.collect()
}

/// The elements of `['a', 'b']` or of `array('a', 'b')`.
pub(super) fn array(expr: &Expr) -> Option<Vec<&Expr>> {
    match expr {
        Expr::Array(all) => Some(all.elem.iter().collect()),
        Expr::Nested(inner) => array(inner),
        Expr::Function(f) if f.name.to_string().eq_ignore_ascii_case("array") => arguments(f),
        _ => None,
    }
}

/// A JSON document's elements: those of a list, or the one it is.
pub(super) fn json(expr: &Expr) -> Result<(Vec<serde_json::Value>, bool), QueryError> {
    let refuse = |piece: String| at(start(expr), unsupported(piece, SUPPORTED));
    let TagValue::Text(text) = literal(expr)? else {
        return Err(refuse(format!("{expr} in place of a JSON text such as '\"TSLA\"'")));
    };
    let read = serde_json::from_str::<serde_json::Value>(&text);
    let value =
        read.map_err(|e| refuse(format!("{expr} in place of a JSON text such as '\"TSLA\"' ({e})")))?;
    let (all, list) = match value {
        serde_json::Value::Array(all) => (all, true),
        one => (vec![one], false),
    };
    match all.iter().find(|v| v.is_object() || v.is_array()) {
        Some(nested) => Err(refuse(format!("{nested} within {expr}"))),
        None => Ok((all, list)),
    }
}

/// What a pattern of LIKE begins with, and whether anything may follow; nothing if wildcards stand elsewhere.
pub(super) fn prefix(pattern: &str) -> Option<(String, bool)> {
    let (mut text, mut chars) = (String::new(), pattern.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.push(chars.next()?),
            '_' => return None,
            '%' => return chars.all(|c| c == '%').then_some((text, true)),
            c => text.push(c),
        }
    }
    Some((text, false))
}
