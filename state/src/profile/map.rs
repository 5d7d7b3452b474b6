//! Map tags: one entry per key of a user, each with its own clock, kept as elements of a set: `key NUL value`.
//!
//! A value is its JSON text, so an entry is one text in the tag's dictionary, and a condition on a key looks at the dictionary's
//! entries of that key, each once however many users have it. `key NUL` alone, which nobody has, stands for a key that was removed.

use super::dict::ValueDict;
use super::group::{Here, SetMemory};
use super::predicate::Test;
use super::scalar::{self, Float, Place};
use super::update::{TagType, TagValue};
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

/// Sets a key and its value apart.
const NUL: char = '\0';

/// A value of a map as its text; nothing for what a map does not hold.
fn encode(value: &TagValue) -> Option<String> {
    Some(match value {
        TagValue::Text(text) => serde_json::to_string(text).ok()?,
        TagValue::Int(n) => n.to_string(),
        TagValue::UInt(n) => n.to_string(),
        TagValue::Bool(b) => b.to_string(),
        // One image for each number: 0.0 for −0.0; JSON has neither NaN nor infinity.
        TagValue::Float(n) if n.0.is_finite() => serde_json::to_string(&(n.0 + 0.0)).ok()?,
        _ => return None,
    })
}

fn decode(text: &str) -> Option<TagValue> {
    Some(match text {
        "true" => TagValue::Bool(true),
        "false" => TagValue::Bool(false),
        _ if text.starts_with('"') => TagValue::Text(serde_json::from_str(text).ok()?),
        // Not by serde_json, which reads a float in two roundings and so, at times, as its neighbour.
        _ => match (text.parse::<i64>(), text.parse::<u64>()) {
            (Ok(n), _) => TagValue::Int(n),
            (_, Ok(n)) => TagValue::from(n),
            _ => TagValue::Float(text.parse::<f64>().ok().filter(|n| n.is_finite()).map(Float)?),
        },
    })
}

/// Whether a map takes an entry.
pub(crate) fn is_entry(key: &str, value: &TagValue) -> bool {
    !key.contains(NUL) && encode(value).is_some()
}

/// The key and value of an entry.
pub(crate) fn entry(text: &str) -> Option<(&str, TagValue)> {
    let (key, value) = text.split_once(NUL)?;
    Some((key, decode(value)?))
}

/// Whether an entry is of a key and its value passes a test.
pub(crate) fn holds(text: &str, key: &str, test: &Test) -> bool {
    text.split_once(NUL)
        .is_some_and(|(of, value)| of == key && decode(value).is_some_and(|v| passes(&v, test)))
}

/// Whether values of a map can be tested so.
pub(crate) fn can_test(test: &Test) -> bool {
    matches!(
        test,
        Test::Exists
            | Test::In(_)
            | Test::NotIn(_)
            | Test::Prefix(_)
            | Test::Lt(_)
            | Test::Le(_)
            | Test::Gt(_)
            | Test::Ge(_)
            | Test::Between(..)
    )
}

fn passes(value: &TagValue, test: &Test) -> bool {
    use Ordering::{Equal, Greater, Less};
    let is = |bound: &TagValue| order(value, bound);
    match test {
        Test::Exists => true,
        Test::In(list) => list.iter().any(|b| is(b) == Some(Equal)),
        Test::NotIn(list) => list.iter().all(|b| is(b) != Some(Equal)),
        Test::Prefix(prefix) => value.as_text().is_some_and(|text| text.starts_with(prefix.as_str())),
        Test::Lt(b) => is(b) == Some(Less),
        Test::Le(b) => matches!(is(b), Some(Less | Equal)),
        Test::Gt(b) => is(b) == Some(Greater),
        Test::Ge(b) => matches!(is(b), Some(Greater | Equal)),
        Test::Between(low, high) => {
            matches!(is(low), Some(Greater | Equal)) && matches!(is(high), Some(Less | Equal))
        }
        _ => false,
    }
}

/// How a value stands to a bound: texts by bytes, numbers as numbers, others of one type by its order.
fn order(value: &TagValue, bound: &TagValue) -> Option<Ordering> {
    let kind = match value {
        TagValue::Text(text) => return bound.as_text().map(|b| text.as_str().cmp(b)),
        TagValue::Int(_) => TagType::Int,
        TagValue::UInt(_) => TagType::UInt,
        TagValue::Float(_) => TagType::Float,
        TagValue::Bool(_) => TagType::Bool,
        _ => return None,
    };
    let key = scalar::key(kind, value)?;
    match scalar::place(kind, bound)? {
        Place::Unordered => None,
        Place::Below => Some(Ordering::Greater),
        Place::At(at, exact) if exact || key > at => Some(key.cmp(&at)),
        Place::At(..) => Some(Ordering::Less),
    }
}

/// What was last said of a key: when, the value's text (empty if it was removed), and the number of the entry.
type Said = (i64, String, u32);

impl SetMemory {
    /// Puts an entry, or removes its key, if nothing newer spoke of the key. At equal times a value beats none, and of two values
    /// that with the greater text.
    pub(crate) fn put(
        &mut self,
        here: &mut Here<'_>,
        time: i64,
        dict: &ValueDict,
        key: &str,
        value: Option<&TagValue>,
    ) -> bool {
        let local = here.local;
        self.touch(here, time);
        let Some(value) = value.map_or(Some(String::new()), encode) else { return false };
        if time < self.cleared.get(local) {
            return false;
        }
        let of_key =
            |text: &str| text.strip_prefix(key).and_then(|rest| rest.strip_prefix(NUL)).map(str::to_owned);
        let said = self.elements.list(local).into_iter().filter_map(|(number, at)| {
            let value = of_key(dict.name(number)?)?;
            Some((at, value, number))
        });
        let old = said.max();
        self.put_over(here, time, dict, key, &value, old)
    }

    /// Puts all entries of a map: as [`put`](Self::put) each, but what was said before is gathered once.
    pub(crate) fn put_all(
        &mut self,
        here: &mut Here<'_>,
        time: i64,
        dict: &ValueDict,
        all: &BTreeMap<String, TagValue>,
    ) -> bool {
        let local = here.local;
        self.touch(here, time);
        if time < self.cleared.get(local) {
            return false;
        }
        let mut said: HashMap<String, Said> = HashMap::new();
        for (number, at) in self.elements.list(local) {
            let Some((key, value)) = dict.name(number).and_then(|text| text.split_once(NUL)) else {
                continue;
            };
            let new = (at, value.to_owned(), number);
            match said.get_mut(key) {
                Some(old) if *old >= new => {}
                Some(old) => *old = new,
                None => drop(said.insert(key.to_owned(), new)),
            }
        }
        let mut wins = false;
        for (key, value) in all {
            let Some(value) = encode(value) else { continue };
            wins |= self.put_over(here, time, dict, key, &value, said.remove(key));
        }
        wins
    }

    /// Puts the text of an entry's value, empty for none, over what was last said of its key, unless that was newer.
    fn put_over(
        &mut self,
        here: &mut Here<'_>,
        time: i64,
        dict: &ValueDict,
        key: &str,
        value: &str,
        old: Option<Said>,
    ) -> bool {
        let local = here.local;
        let wins = old.as_ref().is_none_or(|(at, old, _)| (time, value) >= (*at, old.as_str()));
        if !wins {
            return false;
        }
        let number = dict.intern(&format!("{key}{NUL}{value}"));
        if let Some((_, _, gone)) = old.filter(|old| old.2 != number) {
            let had = here.seen().and_then(|c| c.posting(gone)).is_some_and(|p| p.contains(local as u16));
            if had {
                here.tag().put_element(local as u16, gone, false);
            }
            self.elements.drop_value(local, gone);
        }
        self.elements.note(local, number, time, true);
        let has = here.seen().and_then(|c| c.posting(number)).is_some_and(|p| p.contains(local as u16));
        if !has && !value.is_empty() {
            here.tag().put_element(local as u16, number, true);
        }
        true
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
