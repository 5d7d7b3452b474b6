//! The body of a bulk request, and what its answer says of each document: taken, to be tried again, or refused. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::Value;

/// Actions, each one or two lines of JSON.
#[derive(Debug, Default)]
pub(super) struct Bulk {
    body: Vec<u8>,
    /// Where each action ends.
    ends: Vec<usize>,
}

/// What is done to a document.
pub(super) enum Action<'a, T> {
    Index(&'a T),
    Upsert(&'a T),
    Delete,
}

#[derive(Serialize)]
struct Head<'a> {
    _index: &'a str,
    _id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_on_conflict: Option<u32>,
}

#[derive(Serialize)]
struct Upserted<'a, T> {
    doc: &'a T,
    doc_as_upsert: bool,
}

#[derive(Deserialize)]
struct Answer {
    errors: bool,
    #[serde(default)]
    items: Vec<BTreeMap<String, Item>>,
}

#[derive(Deserialize)]
struct Item {
    status: u16,
    #[serde(default)]
    _id: Value,
    #[serde(default)]
    error: Option<Value>,
}

/// What an answer says.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) taken: u64,
    /// In their order.
    pub(super) again: Bulk,
    /// Of the first of those.
    pub(super) why_again: String,
    /// Why each was refused.
    pub(super) refused: Vec<String>,
}

impl Bulk {
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.body.len()
    }

    pub(super) fn body(&self) -> Bytes {
        Bytes::copy_from_slice(&self.body)
    }

    /// Adds an action.
    pub(super) fn add<T: Serialize>(
        &mut self,
        index: &str,
        id: &str,
        version: Option<u64>,
        action: Action<'_, T>,
    ) -> Result<(), String> {
        let start = self.body.len();
        let added = self.lines(index, id, version, action);
        match added {
            Ok(()) => self.ends.push(self.body.len()),
            Err(_) => self.body.truncate(start),
        }
        added.map_err(|e| format!("cannot be written as JSON: {e}"))
    }

    fn lines<T: Serialize>(
        &mut self,
        index: &str,
        id: &str,
        version: Option<u64>,
        action: Action<'_, T>,
    ) -> serde_json::Result<()> {
        let (name, retries) = match action {
            Action::Index(_) => ("index", None),
            Action::Upsert(_) => ("update", Some(3)),
            Action::Delete => ("delete", None),
        };
        let version_type = version.map(|_| "external_gte");
        let head = Head { _index: index, _id: id, version, version_type, retry_on_conflict: retries };
        self.line(&BTreeMap::from([(name, head)]))?;
        match action {
            Action::Index(value) => self.line(value),
            Action::Upsert(value) => self.line(&Upserted { doc: value, doc_as_upsert: true }),
            Action::Delete => Ok(()),
        }
    }

    fn line(&mut self, value: &impl Serialize) -> serde_json::Result<()> {
        serde_json::to_writer(&mut self.body, value)?;
        self.body.push(b'\n');
        Ok(())
    }

    fn action(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.body[start..self.ends[at]]
    }

    /// What the server's answer to this bulk says. With versions, a conflict says that something newer is there.
    ///
    /// # Errors
    /// When it is no answer to it.
    pub(super) fn judge(&self, answer: &[u8], versions: bool) -> Result<Judged, String> {
        let Answer { errors, items } =
            serde_json::from_slice(answer).map_err(|e| format!("no answer to a bulk: {e}"))?;
        let mut judged =
            Judged { taken: 0, again: Bulk::default(), why_again: String::new(), refused: Vec::new() };
        if items.len() != self.len() {
            return Err(format!("an answer for {} documents to a bulk of {}", items.len(), self.len()));
        }
        if !errors {
            judged.taken = self.len() as u64;
            return Ok(judged);
        }
        for (at, item) in items.into_iter().enumerate() {
            let Some((name, Item { status, _id, error })) = item.into_iter().next() else {
                return Err(format!("an answer to a bulk that says nothing of document {at}"));
            };
            let shown = || {
                let error = error.as_ref().map_or_else(String::new, |e| format!(": {e}"));
                format!("{name} of {_id} got status {status}{error}")
            };
            match status {
                200..300 => judged.taken += 1,
                // What is not there is deleted.
                404 if name == "delete" && error.is_none() => judged.taken += 1,
                409 if versions => judged.taken += 1,
                409 | 429 | 500 | 502 | 503 | 504 => {
                    if judged.again.is_empty() {
                        judged.why_again = shown();
                    }
                    judged.again.body.extend_from_slice(self.action(at));
                    judged.again.ends.push(judged.again.body.len());
                }
                _ => judged.refused.push(shown()),
            }
        }
        Ok(judged)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bulk() -> Bulk {
        let mut bulk = Bulk::default();
        bulk.add("i", "1", None, Action::Index(&json!({"n": 1}))).unwrap();
        bulk.add("i", "a\"b", Some(7), Action::Index(&json!({"n": 2}))).unwrap();
        bulk.add("j", "3", None, Action::Upsert(&json!({"n": 3}))).unwrap();
        bulk.add("j", "4", None, Action::<Value>::Delete).unwrap();
        bulk
    }

    #[test]
    fn one_or_two_lines_each() {
        let text = String::from_utf8(bulk().body().to_vec()).unwrap();
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                r#"{"index":{"_index":"i","_id":"1"}}"#,
                r#"{"n":1}"#,
                r#"{"index":{"_index":"i","_id":"a\"b","version":7,"version_type":"external_gte"}}"#,
                r#"{"n":2}"#,
                r#"{"update":{"_index":"j","_id":"3","retry_on_conflict":3}}"#,
                r#"{"doc":{"n":3},"doc_as_upsert":true}"#,
                r#"{"delete":{"_index":"j","_id":"4"}}"#,
            ]
        );
        let mut bulk = bulk();
        let before = bulk.bytes();
        let bad = BTreeMap::from([((1, 2), 3)]);
        assert!(bulk.add("i", "5", None, Action::Index(&bad)).unwrap_err().contains("key must be a string"));
        assert_eq!((bulk.len(), bulk.bytes()), (4, before), "nothing is left of it");
    }

    fn answer(statuses: [u16; 4]) -> Vec<u8> {
        let names = ["index", "index", "update", "delete"];
        let item = |(name, status): (&str, u16)| {
            let error = (status >= 400).then(|| json!({"type": "t", "reason": format!("r{status}")}));
            json!({name: {"_id": "x", "status": status, "error": error}})
        };
        let items: Vec<_> = names.into_iter().zip(statuses).map(item).collect();
        json!({"took": 1, "errors": statuses.iter().any(|s| *s >= 400), "items": items})
            .to_string()
            .into_bytes()
    }

    #[test]
    fn each_document_is_judged_alone() {
        let judged = bulk().judge(&answer([201, 200, 200, 200]), false).unwrap();
        assert_eq!((judged.taken, judged.again.len(), judged.refused.len()), (4, 0, 0));

        let judged = bulk().judge(&answer([429, 400, 503, 200]), false).unwrap();
        assert_eq!((judged.taken, judged.again.len()), (1, 2));
        let again = String::from_utf8(judged.again.body().to_vec()).unwrap();
        assert!(
            again.starts_with(r#"{"index":{"_index":"i","_id":"1"}}"#) && again.contains(r#""doc":{"n":3}"#),
            "{again}"
        );
        assert_eq!(again.lines().count(), 4);
        assert!(
            judged.why_again.contains("status 429") && judged.why_again.contains("r429"),
            "{}",
            judged.why_again
        );
        assert_eq!(judged.refused.len(), 1);
        assert!(
            judged.refused[0].contains("index of \"x\" got status 400") && judged.refused[0].contains("r400")
        );

        let conflict = answer([200, 409, 200, 200]);
        assert_eq!(bulk().judge(&conflict, true).unwrap().taken, 4, "something newer is there");
        assert_eq!(bulk().judge(&conflict, false).unwrap().again.len(), 1);
    }

    #[test]
    fn what_is_not_there_is_deleted() {
        let answer = br#"{"errors":true,"items":[{"delete":{"_id":"4","status":404,"result":"not_found"}}]}"#;
        let mut one = Bulk::default();
        one.add("j", "4", None, Action::<Value>::Delete).unwrap();
        assert_eq!(one.judge(answer, false).unwrap().taken, 1);
        assert!(bulk().judge(answer, false).unwrap_err().contains("1 documents to a bulk of 4"));
        assert!(bulk().judge(b"<html>", false).is_err());
    }
}
