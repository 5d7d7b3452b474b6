//! One list of partitions for all subtasks of a life, dealt out like cards: every partition to one subtask, whatever each of
//! them heard from the brokers, and those found later behind the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use weir_engine::OperatorContext;

use super::assign::{PER_TOPIC, TopicPartition};

/// Topics and their partitions, as somebody found them.
pub(super) type Found = Vec<(String, Vec<i32>)>;

/// A partition that was dealt to a subtask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    pub(super) name: Arc<str>,
    pub(super) at: TopicPartition,
    /// The oldest offset, of a partition that was found while the job ran.
    pub(super) oldest: Option<i64>,
}

/// The partitions of one life.
#[derive(Debug, Default)]
pub(super) struct Deal {
    cards: Mutex<Cards>,
    /// How many there are.
    len: AtomicUsize,
    /// How often readers were told to look into partitions that do not move.
    suspected: AtomicUsize,
    /// How often it was seen where partitions end.
    measured: AtomicUsize,
}

#[derive(Debug, Default)]
struct Cards {
    topics: Vec<Arc<str>>,
    /// In the order in which they were found: card `i` is subtask `i % parallelism`'s.
    dealt: Vec<Card>,
    known: BTreeSet<(Arc<str>, i32)>,
}

impl Deal {
    /// How many partitions there are.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Readers are to look into those of their partitions that are suspect.
    pub(super) fn suspect(&self) {
        self.suspected.fetch_add(1, Ordering::AcqRel);
    }

    /// It was seen where partitions end.
    pub(super) fn measure(&self) {
        self.measured.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn measured(&self) -> usize {
        self.measured.load(Ordering::Acquire)
    }

    pub(super) fn suspected(&self) -> usize {
        self.suspected.load(Ordering::Acquire)
    }

    /// The cards of a subtask among those from the `from`th on, and how many there are in all.
    pub(super) fn own(&self, cx: &OperatorContext, from: usize) -> (Vec<Card>, usize) {
        let cards = self.lock();
        let own = cards.dealt.iter().enumerate().skip(from);
        let own = own.filter(|(i, _)| i % cx.parallelism().max(1) == cx.subtask());
        (own.map(|(_, card)| card.clone()).collect(), cards.dealt.len())
    }

    /// All partitions, with their topics' names.
    pub(super) fn all(&self) -> Vec<Card> {
        self.lock().dealt.clone()
    }

    /// Those of `found` that are not dealt yet.
    pub(super) fn unknown(&self, found: &Found) -> Vec<(String, i32)> {
        let cards = self.lock();
        let all = found.iter().flat_map(|(topic, partitions)| partitions.iter().map(move |p| (topic, *p)));
        let new = all.filter(|(topic, p)| !cards.known.contains(&(Arc::from(&topic[..]), *p)));
        new.map(|(topic, p)| (topic.clone(), p)).collect()
    }

    /// Deals these too, those that are not known yet; `oldest` is where the records of one begin. False when a number does
    /// not fit.
    pub(super) fn add(&self, new: impl IntoIterator<Item = (String, i32, Option<i64>)>) -> bool {
        let mut cards = self.lock();
        let mut fits = true;
        for (topic, partition, oldest) in new {
            let topic: Arc<str> = topic.into();
            let place = cards.topics.iter().position(|t| *t == topic);
            let at = TopicPartition { topic: place.unwrap_or(cards.topics.len()), partition };
            if at.topic >= PER_TOPIC as usize || !(0..PER_TOPIC as i32).contains(&partition) {
                fits = false;
            } else if cards.known.insert((Arc::clone(&topic), partition)) {
                if place.is_none() {
                    cards.topics.push(Arc::clone(&topic));
                }
                cards.dealt.push(Card { name: topic, at, oldest });
            }
        }
        self.len.store(cards.dealt.len(), Ordering::Release);
        fits
    }

    fn lock(&self) -> MutexGuard<'_, Cards> {
        // Cards are whole between calls, whoever panicked.
        self.cards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who a deal is for: the operator, its life and its parallelism.
type Table = (String, u32, usize);

/// Brings the subtasks of a life together: shared by all copies of a source.
#[derive(Clone, Debug, Default)]
pub(super) struct Dealer(Arc<Mutex<BTreeMap<Table, Weak<Deal>>>>);

impl Dealer {
    /// The deal of this subtask's life: what the first of its subtasks found.
    pub(super) fn join(&self, cx: &OperatorContext, found: &Found) -> Option<Arc<Deal>> {
        let table = (cx.uid().to_string(), cx.attempt().0, cx.parallelism());
        let mut deals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        deals.retain(|_, deal| deal.strong_count() > 0);
        if let Some(deal) = deals.get(&table).and_then(Weak::upgrade) {
            return Some(deal);
        }
        let deal = Arc::new(Deal::default());
        let all = found.iter().flat_map(|(topic, of)| of.iter().map(move |p| (topic.clone(), *p, None)));
        let fits = deal.add(all);
        deals.insert(table, Arc::downgrade(&deal));
        fits.then_some(deal)
    }
}

#[cfg(test)]
mod tests {
    use weir_engine::testkit::context;

    use super::super::assign::assign;
    use super::*;

    fn found(of: &[(&str, i32)]) -> Found {
        of.iter().map(|(topic, n)| ((*topic).to_owned(), (0..*n).collect())).collect()
    }

    fn names(cards: &[Card]) -> Vec<(String, i32)> {
        cards.iter().map(|c| (c.name.to_string(), c.at.partition)).collect()
    }

    #[test]
    fn subtasks_that_heard_different_things_still_share_every_partition_out() {
        let dealer = Dealer::default();
        let views =
            [found(&[("a", 1), ("b", 4)]), found(&[("a", 2), ("b", 4)]), found(&[("a", 3), ("b", 5)])];
        let deals: Vec<_> = views
            .iter()
            .enumerate()
            .map(|(s, view)| (context("in", s, 3), dealer.join(&context("in", s, 3), view).unwrap()))
            .collect();
        let mut all: Vec<_> = deals.iter().flat_map(|(cx, deal)| names(&deal.own(cx, 0).0)).collect();
        all.sort();
        let wanted: Vec<_> =
            [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("b", 3)].map(|(t, p)| (t.to_owned(), p)).into();
        assert_eq!(all, wanted, "none twice, none left out");
        for (s, (cx, deal)) in deals.iter().enumerate() {
            let own: Vec<_> = deal.own(cx, 0).0.iter().map(|card| card.at).collect();
            assert_eq!(own, assign(&[1, 4], s, 3), "what the pure function says");
        }
    }

    #[test]
    fn what_is_found_later_moves_nothing() {
        let dealer = Dealer::default();
        let cx = |s| context("in", s, 2);
        let deal = dealer.join(&cx(0), &found(&[("a", 2), ("b", 1)])).unwrap();
        let before: Vec<_> = (0..2).map(|s| deal.own(&cx(s), 0)).collect();
        let later = found(&[("a", 3), ("b", 2), ("c", 1)]);
        let new = deal.unknown(&later);
        assert_eq!(new, [("a".to_owned(), 2), ("b".to_owned(), 1), ("c".to_owned(), 0)]);
        assert!(deal.add(new.into_iter().map(|(t, p)| (t, p, Some(7)))));
        assert!(deal.unknown(&later).is_empty() && deal.len() == 6);
        for (s, (own, len)) in before.iter().enumerate() {
            let (now, _) = deal.own(&cx(s), 0);
            assert_eq!(now[..own.len()], own[..]);
            let (new, all) = deal.own(&cx(s), *len);
            assert_eq!((new.as_slice(), all), (&now[own.len()..], 6));
            assert!(new.iter().all(|card| card.oldest == Some(7)));
        }
        let mut splits: Vec<_> = deal.all().iter().map(|card| card.at.split()).collect();
        splits.sort();
        splits.dedup();
        assert_eq!(splits.len(), 6);
        assert!(!deal.add([("a".to_owned(), PER_TOPIC as i32, None)]), "it does not fit");
    }

    #[test]
    fn each_life_is_dealt_anew() {
        let dealer = Dealer::default();
        let cx = context("in", 0, 1);
        let deal = dealer.join(&cx, &found(&[("a", 1)])).unwrap();
        assert_eq!(dealer.join(&context("other", 0, 1), &found(&[("a", 5)])).unwrap().len(), 5);
        drop(deal);
        assert_eq!(dealer.join(&cx, &found(&[("a", 2)])).unwrap().len(), 2);
    }
}
