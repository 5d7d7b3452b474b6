//! Where the first life of a job began, remembered in this process until a checkpoint knows it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::begin::Offsets;
use super::deal::Found;

/// Where the first life of a job began, for its next ones: until a checkpoint is complete nothing else knows it, and "the end" is
/// somewhere else by then. Shared by all copies of a source; by operator.
#[derive(Clone, Debug, Default)]
pub(super) struct Firsts(Arc<Mutex<BTreeMap<String, First>>>);

#[derive(Debug, Default)]
struct First {
    /// What there was when it began.
    seen: BTreeSet<(String, i32)>,
    /// Where it began.
    began: Offsets,
}

impl Firsts {
    /// A life of `uid` begins that no checkpoint knows of, and finds these partitions; answers what the first such life found.
    pub(super) fn begin(&self, uid: &str, found: &Found) -> BTreeSet<(String, i32)> {
        let mut firsts = self.lock();
        let first = firsts.entry(uid.to_owned()).or_insert_with(|| {
            let all = found.iter().flat_map(|(topic, of)| of.iter().map(|p| (topic.clone(), *p)));
            First { seen: all.collect(), began: Offsets::new() }
        });
        first.seen.clone()
    }

    /// Where the partitions of `uid` began.
    pub(super) fn of(&self, uid: &str) -> Offsets {
        self.lock().get(uid).map(|first| first.began.clone()).unwrap_or_default()
    }

    /// These partitions of `uid` begin here.
    pub(super) fn keep(&self, uid: &str, began: impl IntoIterator<Item = ((String, i32), i64)>) {
        self.lock().entry(uid.to_owned()).or_default().began.extend(began);
    }

    /// A checkpoint knows better, or nobody will ask. With the last of them it is forgotten that there was such a life.
    pub(super) fn forget<'a>(&self, uid: &str, partitions: impl IntoIterator<Item = (&'a str, i32)>) {
        let mut firsts = self.lock();
        let Some(first) = firsts.get_mut(uid) else { return };
        for (topic, partition) in partitions {
            if first.began.is_empty() {
                break;
            }
            first.began.remove(&(topic.to_owned(), partition));
        }
        if first.began.is_empty() {
            firsts.remove(uid);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, First>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_life_is_remembered_until_a_checkpoint_knows_it() {
        let key = ("t".to_owned(), 0);
        let firsts = |at| Offsets::from([(key.clone(), at)]);
        let kept = Firsts::default();
        let seen = |partitions: &[i32]| partitions.iter().map(|p| ("t".to_owned(), *p)).collect();
        let found = |partitions: &[i32]| vec![("t".to_owned(), partitions.to_vec())];
        assert_eq!(kept.begin("in", &found(&[0])), seen(&[0]));
        kept.keep("in", [(key.clone(), 7)]);
        assert_eq!((kept.clone().of("in"), kept.of("other")), (firsts(7), Offsets::new()));
        assert_eq!(kept.begin("in", &found(&[0, 1])), seen(&[0]), "what the first life found");
        kept.forget("in", [("t", 1)]);
        assert_eq!(kept.of("in"), firsts(7));
        kept.forget("in", [("t", 0)]);
        assert_eq!(kept.of("in"), Offsets::new());
        assert_eq!(kept.begin("in", &found(&[0, 1])), seen(&[0, 1]), "a job that begins anew");
    }
}
