//! Where splits stood in event time, as a checkpoint tells it to every subtask. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::splits::Mark;
use crate::error::{Result, TaskError};
use crate::task_state::RestoredItem;

/// What is known of splits by their names, whichever subtask reads them now.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    known: BTreeMap<String, Mark>,
    /// Those that this subtask hands on as they are, as long as the source has not said which splits are its own.
    unclaimed: BTreeSet<String>,
}

impl Marks {
    /// # Errors
    /// When the checkpoint holds something else.
    pub(crate) fn read(items: Vec<RestoredItem>, subtask: usize, parallelism: usize) -> Result<Self> {
        let mut marks = Marks::default();
        for RestoredItem { subtask: of, key, value } in items {
            let mark: Mark = serde_json::from_value(value.clone()).map_err(|e| {
                let message = format!("the checkpoint holds {key}: {value} as an event time, which is none");
                TaskError::external(message).caused_by(e)
            })?;
            if of % parallelism == subtask {
                marks.unclaimed.insert(key.clone());
            }
            let known = match marks.known.remove(&key) {
                Some(other) => other.further(mark),
                None => mark,
            };
            marks.known.insert(key, known);
        }
        Ok(marks)
    }

    /// What is known of a split; its name is only asked for when anything is.
    pub(crate) fn of(&self, name: impl FnOnce() -> Option<String>) -> Option<Mark> {
        if self.known.is_empty() { None } else { self.known.get(&name()?).cloned() }
    }

    /// The source has said which splits it reads: from now on they are what a checkpoint holds.
    pub(crate) fn claimed(&mut self) {
        self.unclaimed.clear();
    }

    pub(crate) fn unclaimed(&self) -> impl Iterator<Item = (String, Mark)> {
        self.unclaimed.iter().filter_map(|name| Some((name.clone(), self.known.get(name)?.clone())))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn item(subtask: usize, key: &str, value: Value) -> RestoredItem {
        RestoredItem { subtask, key: key.into(), value }
    }

    fn mark(watermark: i64) -> Value {
        json!({"latest": watermark + 1, "at_ms": 0, "watermark": watermark})
    }

    #[test]
    fn every_subtask_knows_all_and_one_hands_each_on() {
        let items = || vec![item(0, "a", mark(1)), item(3, "b", mark(2)), item(2, "a", mark(5))];
        let all: Vec<_> = (0..2).map(|subtask| Marks::read(items(), subtask, 2).unwrap()).collect();
        for marks in &all {
            assert_eq!(serde_json::to_value(marks.of(|| Some("a".into()))).unwrap(), mark(5));
            assert_eq!((marks.of(|| None), marks.of(|| Some("c".into()))), (None, None));
        }
        let handed_on = |i: usize| all[i].unclaimed().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!((handed_on(0), handed_on(1)), (vec!["a".to_owned()], vec!["b".to_owned()]));
    }

    #[test]
    fn something_else_under_that_name_is_said() {
        let error = Marks::read(vec![item(0, "a", json!("x"))], 0, 1).unwrap_err();
        assert_eq!(error.to_string(), "the checkpoint holds a: \"x\" as an event time, which is none");
    }
}
