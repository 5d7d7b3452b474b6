//! What a request asks: parameters of its query, or fields of its JSON body, each with a clear word when it is missing or wrong.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use actix_web::HttpRequest;
use actix_web::web::{Bytes, Query};
use serde_json::Value;
use weir_state::profile::Predicate;

use super::answers::Refusal;

/// A request's body, or why it could not be read.
pub(super) type Given = Result<Bytes, actix_web::Error>;

/// The parameters of a request.
#[derive(Debug, Default)]
pub(super) struct Params {
    texts: BTreeMap<String, String>,
    /// Conditions that were written as JSON.
    conditions: BTreeMap<String, Value>,
}

impl Params {
    /// Reads a query, and a body if there is one: a JSON object, whose fields are the same as the query's parameters.
    pub(super) fn of(request: &HttpRequest, body: Given) -> Result<Self, Refusal> {
        let body = body.map_err(|e| Refusal::bad(e.to_string()))?;
        let query = Query::<BTreeMap<String, String>>::from_query(request.query_string());
        let query = query.map_err(|e| Refusal::bad(format!("the query cannot be read: {e}")))?;
        let mut params = Params { texts: query.into_inner(), conditions: BTreeMap::new() };
        if body.is_empty() {
            return Ok(params);
        }
        let bad = |why: &dyn Display| {
            Refusal::bad(format!("the body is no JSON object such as {{\"q\": \"buys_total >= 2\"}}: {why}"))
        };
        let fields: BTreeMap<String, Value> = serde_json::from_slice(&body).map_err(|e| bad(&e))?;
        for (name, value) in fields {
            match value {
                Value::String(text) => drop(params.texts.insert(name, text)),
                Value::Number(_) | Value::Bool(_) => drop(params.texts.insert(name, value.to_string())),
                Value::Object(_) => drop(params.conditions.insert(name, value)),
                Value::Null => {}
                // As in percentiles=50,95.
                Value::Array(list) if list.iter().all(Value::is_number) => {
                    let list: Vec<String> = list.iter().map(Value::to_string).collect();
                    params.texts.insert(name, list.join(","));
                }
                Value::Array(_) => return Err(bad(&format_args!("{name} is a list"))),
            }
        }
        Ok(params)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.texts.contains_key(name) || self.conditions.contains_key(name)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }

    /// A text that must be there.
    pub(super) fn needed(&self, name: &str, what: &str) -> Result<&str, Refusal> {
        let given = self.text(name).filter(|text| !text.trim().is_empty());
        given.ok_or_else(|| Refusal::bad(format!("{name} is missing: {what}")))
    }

    /// A number from 0 to `most`.
    pub(super) fn up_to(&self, name: &str, default: u64, most: u64, how: &str) -> Result<u64, Refusal> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let wrong = || Refusal::bad(format!("{name} is {text:?}: a whole number from 0 to {most}{how}"));
        text.trim().parse::<u64>().ok().filter(|n| *n <= most).ok_or_else(wrong)
    }

    /// A value of a type that is read from text.
    pub(super) fn read<T: FromStr>(&self, name: &str, what: &str) -> Result<Option<T>, Refusal> {
        let read = |text: &str| {
            let wrong = |_| Refusal::bad(format!("{name} is {text:?}: {what}"));
            text.trim().parse::<T>().map_err(wrong)
        };
        self.text(name).map(read).transpose()
    }

    /// A condition: a text, or JSON.
    pub(super) fn condition(&self, name: &str) -> Result<Predicate, Refusal> {
        if let Some(json) = self.conditions.get(name) {
            return Predicate::from_json(json).map_err(|e| Refusal::bad(format!("{name}: {e}")));
        }
        let text = self.needed(name, &format!("the condition, e.g. {name}=buys_total >= 2"))?;
        Predicate::parse(text).map_err(|e| Refusal::bad(e.to_string()))
    }
}
