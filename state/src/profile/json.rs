//! Conditions as JSON: `{"tag": "age", "ge": 18}` and what combines such, read as the builder would make them and written as they are read.

use super::error::QueryError;
use super::predicate::{Node, Predicate, Tag, Test, tag};
use super::scalar::{Date, Decimal, Float, Timestamp};
use super::update::{Element, Form, TagValue};
use super::user::UserId;
use serde_json::{Map, Value, json};

/// Deeper ones are refused; those that a query takes are no deeper.
const MAX_DEPTH: usize = 200;

const SUPPORTED: &str = "{\"and\": […]}, {\"or\": […]}, {\"not\": …}, {\"at_least\": 2, \"of\": […]}, {\"users\": […]}, {\"segment\": \"name\"}, \
     {\"everyone\": true} and {\"tag\": \"name\", …} with \"key\" for a key of a map and one of eq, ne, lt, le, gt, ge, in, not_in, between \
     (two values), starts_with, exists (true), has_any, has_all, has_none, size (two numbers)";

impl Predicate {
    /// Reads a condition from JSON.
    ///
    /// ```
    /// use weir_state::profile::{Predicate, tag};
    /// let text = r#"{"and": [{"tag": "age", "ge": 18}, {"not": {"tag": "watched", "has_any": ["TSLA"]}}]}"#;
    /// let read = Predicate::from_json(&serde_json::from_str(text)?)?;
    /// assert_eq!(read, tag("age").ge(18).and(!tag("watched").has_any(["TSLA"])));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Texts, numbers and truth values are values; `{"decimal": "1.50"}`, `{"date": "2026-11-30"}`, `{"timestamp": 0}` (ms since the epoch) and `{"float":
    /// "NaN"}` are those that JSON has not.
    ///
    /// # Errors
    /// What is no condition, named together with what is.
    pub fn from_json(value: &Value) -> Result<Predicate, QueryError> {
        read(value, 0)
    }

    /// Writes a condition as [`from_json`](Self::from_json) reads it.
    pub fn to_json(&self) -> Value {
        let many = |parts: &[Predicate]| parts.iter().map(Predicate::to_json).collect::<Value>();
        match &self.node {
            Node::All => json!({"everyone": true}),
            Node::And(parts) => json!({"and": many(parts)}),
            Node::Or(parts) => json!({"or": many(parts)}),
            Node::Not(inner) => json!({"not": inner.to_json()}),
            Node::AtLeast(needed, parts) => json!({"at_least": needed, "of": many(parts)}),
            Node::Users(users) => json!({"users": users}),
            Node::Segment(name) => json!({"segment": &**name}),
            Node::Leaf(tag, test) => {
                let mut object = Map::new();
                object.insert("tag".to_owned(), (&**tag).into());
                write(test, &mut object);
                Value::Object(object)
            }
        }
    }
}

#[cold]
fn refuse(value: &Value) -> QueryError {
    let mut piece = value.to_string();
    if let Some((cut, _)) = piece.char_indices().nth(120) {
        piece.truncate(cut);
        piece.push('…');
    }
    QueryError::Unsupported { piece, supported: SUPPORTED }
}

fn read(value: &Value, depth: usize) -> Result<Predicate, QueryError> {
    if depth > MAX_DEPTH {
        return Err(QueryError::TooLarge { what: "nesting depth", size: depth, limit: MAX_DEPTH });
    }
    let no = || refuse(value);
    let object = value.as_object().ok_or_else(no)?;
    if object.contains_key("tag") {
        return leaf(object).ok_or_else(no);
    }
    let list = |value: &Value| {
        let parts = value.as_array().ok_or_else(no)?;
        parts.iter().map(|part| read(part, depth + 1)).collect::<Result<Vec<_>, _>>()
    };
    let fields: Vec<(&str, &Value)> = object.iter().map(|(name, value)| (name.as_str(), value)).collect();
    Ok(match fields.as_slice() {
        [("and", parts)] => list(parts)?.into_iter().reduce(Predicate::and).ok_or_else(no)?,
        [("or", parts)] => list(parts)?.into_iter().reduce(Predicate::or).ok_or_else(no)?,
        [("not", inner)] => !read(inner, depth + 1)?,
        [("at_least", needed), ("of", parts)] | [("of", parts), ("at_least", needed)] => {
            let needed = needed.as_u64().and_then(|n| usize::try_from(n).ok()).ok_or_else(no)?;
            Predicate::at_least(needed, list(parts)?)
        }
        [("users", users)] => {
            let users: Vec<UserId> = serde_json::from_value((*users).clone()).map_err(|_| no())?;
            Predicate::users(users)
        }
        [("segment", Value::String(name))] => Predicate::segment(name.as_str()),
        [("everyone", Value::Bool(true))] => Predicate::all(),
        _ => return Err(no()),
    })
}

fn leaf(object: &Map<String, Value>) -> Option<Predicate> {
    let mut named: Tag = tag(object.get("tag")?.as_str()?);
    if let Some(key) = object.get("key") {
        named = named.key(key.as_str()?);
    }
    let mut tests = object.iter().filter(|(name, _)| !matches!(name.as_str(), "tag" | "key"));
    let ((name, given), None) = (tests.next()?, tests.next()) else { return None };
    let one = || value(given);
    let values = || given.as_array()?.iter().map(value).collect::<Option<Vec<_>>>();
    let elements = || given.as_array()?.iter().map(element).collect::<Option<Vec<_>>>();
    Some(match name.as_str() {
        "eq" => named.eq(one()?),
        "ne" => named.ne(one()?),
        "lt" => named.lt(one()?),
        "le" => named.le(one()?),
        "gt" => named.gt(one()?),
        "ge" => named.ge(one()?),
        "in" => named.is_in(values()?),
        "not_in" => named.not_in(values()?),
        "between" => {
            let [low, high] = values()?.try_into().ok()?;
            named.between(low, high)
        }
        "starts_with" => named.starts_with(given.as_str()?),
        "exists" if *given == Value::Bool(true) => named.exists(),
        "has_any" => named.has_any(elements()?),
        "has_all" => named.has_all(elements()?),
        "has_none" => named.has_none(elements()?),
        "size" => {
            let [least, most] = &given.as_array()?[..] else { return None };
            let size = |n: &Value| u32::try_from(n.as_u64()?).ok();
            named.size_between(size(least)?, size(most)?)
        }
        _ => return None,
    })
}

/// A value; nothing if it is none.
pub(super) fn value(given: &Value) -> Option<TagValue> {
    Some(match given {
        Value::String(text) => TagValue::Text(text.clone()),
        Value::Bool(b) => TagValue::Bool(*b),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => TagValue::Int(n),
            (_, Some(n)) => TagValue::from(n),
            _ => TagValue::Float(Float(n.as_f64()?)),
        },
        Value::Object(one) if one.len() == 1 => match one.iter().next()? {
            (kind, Value::String(text)) => match kind.as_str() {
                "decimal" => TagValue::Decimal(text.parse::<Decimal>().ok()?),
                "date" => TagValue::Date(text.parse::<Date>().ok()?),
                "timestamp" => TagValue::Timestamp(text.parse::<Timestamp>().ok()?),
                "float" => TagValue::Float(serde_json::from_value(Value::from(text.as_str())).ok()?),
                _ => return None,
            },
            (kind, Value::Number(n)) => match kind.as_str() {
                "date" => TagValue::Date(Date(i32::try_from(n.as_i64()?).ok()?)),
                "timestamp" => TagValue::Timestamp(Timestamp(n.as_i64()?)),
                "float" => TagValue::Float(Float(n.as_f64()?)),
                _ => return None,
            },
            _ => return None,
        },
        _ => return None,
    })
}

fn element(given: &Value) -> Option<Element> {
    Some(match given {
        Value::String(text) => Element::from(text),
        Value::Number(n) => Element::from(n.as_i64()?),
        // As JSON compares, which does not convert.
        Value::Object(one) if one.len() == 1 => match one.iter().next()? {
            (kind, Value::String(text)) => {
                let form = match kind.as_str() {
                    "json_text" => Form::JsonText,
                    "json_number" => Form::JsonNumber,
                    "json" => Form::JsonOther,
                    _ => return None,
                };
                Element { text: text.clone(), form }
            }
            _ => return None,
        },
        _ => return None,
    })
}

fn write(test: &Test, into: &mut Map<String, Value>) {
    let values = |list: &[TagValue]| list.iter().map(written).collect::<Value>();
    let elements = |list: &[Element]| list.iter().map(written_element).collect::<Value>();
    let (name, value) = match test {
        Test::Key(key, inner) => {
            into.insert("key".to_owned(), key.as_str().into());
            return write(inner, into);
        }
        Test::Exists => ("exists", true.into()),
        Test::In(list) if list.len() == 1 => ("eq", written(&list[0])),
        Test::In(list) => ("in", values(list)),
        Test::NotIn(list) if list.len() == 1 => ("ne", written(&list[0])),
        Test::NotIn(list) => ("not_in", values(list)),
        Test::HasAny(list) => ("has_any", elements(list)),
        Test::HasAll(list) => ("has_all", elements(list)),
        Test::Prefix(text) => ("starts_with", text.as_str().into()),
        Test::Size(least, most) => ("size", json!([least, most])),
        Test::Lt(n) => ("lt", written(n)),
        Test::Le(n) => ("le", written(n)),
        Test::Gt(n) => ("gt", written(n)),
        Test::Ge(n) => ("ge", written(n)),
        Test::Between(low, high) => ("between", json!([written(low), written(high)])),
    };
    into.insert(name.to_owned(), value);
}

fn written(value: &TagValue) -> Value {
    match value {
        TagValue::Text(text) => text.as_str().into(),
        TagValue::Int(n) => (*n).into(),
        TagValue::UInt(n) => (*n).into(),
        TagValue::Bool(b) => (*b).into(),
        TagValue::Float(n) if n.0.is_finite() => json!(n.0),
        TagValue::Float(n) => json!({"float": n.to_string()}),
        TagValue::Decimal(n) => json!({"decimal": n.to_string()}),
        TagValue::Date(day) => json!({"date": day.0}),
        TagValue::Timestamp(at) => json!({"timestamp": at.0}),
        // No condition takes these.
        TagValue::Set(_) | TagValue::IntSet(_) | TagValue::Map(_) => Value::Null,
    }
}

fn written_element(element: &Element) -> Value {
    let text = element.text.as_str();
    match element.form {
        Form::Text => text.into(),
        Form::Number => text.parse::<i64>().map_or_else(|_| text.into(), Value::from),
        Form::JsonText => json!({"json_text": text}),
        Form::JsonNumber => json!({"json_number": text}),
        Form::JsonOther => json!({"json": text}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn through(predicate: &Predicate) -> Predicate {
        let text = predicate.to_json().to_string();
        let value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        Predicate::from_json(&value).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn all_texts_of_conditions_go_through_json() {
        for text in [
            "n >= 2 and hasAny(c, ['123','4']) and not l = 'pv'",
            "n in (1, 2.5, 18446744073709551615) or n not in (1) or n between 0.1 and 1e300",
            "JSON_CONTAINS(c, '[\"a\", 1, null]') and hasAll(c, [7]) and length(c) > 2",
            "m['k'] = 'x' or mapContains(m, 'k') or segment('other') or l like 'p%'",
            "b = true and d > toDate('2026-11-30') and x is not null and x is null",
        ] {
            let predicate = Predicate::parse(text).unwrap();
            assert_eq!(through(&predicate), predicate, "{text}");
        }
        let built =
            Predicate::at_least(2, [Predicate::all(), Predicate::users([7u64]), tag("f").lt(f64::INFINITY)]);
        assert_eq!(through(&built), built);
        let at = tag("at").between(Timestamp(-1), Timestamp(1)).or(tag("f").eq(2.0));
        assert_eq!(through(&at), at);
    }

    #[test]
    fn what_is_no_condition_is_refused_with_what_is() {
        for text in [
            "1",
            "{}",
            "{\"and\": []}",
            "{\"tag\": \"x\"}",
            "{\"tag\": \"x\", \"eq\": null}",
            "{\"tag\": \"x\", \"eq\": 1, \"ne\": 2}",
            "{\"tag\": 7, \"eq\": 1}",
            "{\"not\": {\"what\": 1}}",
            "{\"at_least\": -1, \"of\": []}",
            "{\"tag\": \"x\", \"between\": [1]}",
        ] {
            let error = Predicate::from_json(&serde_json::from_str(text).unwrap()).unwrap_err();
            assert!(matches!(error, QueryError::Unsupported { .. }), "{text}: {error}");
        }
        let mut deep = serde_json::json!({"everyone": true});
        (0..300).for_each(|_| deep = serde_json::json!({"not": deep.clone()}));
        assert!(matches!(Predicate::from_json(&deep), Err(QueryError::TooLarge { .. })));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_json_is_read_or_refused(text in "[\\[\\]{}:,\"a-z0-9 ]{0,60}") {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                let _ = Predicate::from_json(&value);
            }
        }
    }
}
