//! `Line`: the timers of one key, so that those of a key are found without a look at the others.

use std::collections::BTreeSet;

use weir_engine::KeyHash;

use super::Place;

/// The timers of a key: mostly one, which allocates nothing.
#[derive(Debug)]
pub(super) struct Line<K> {
    pub(super) hash: KeyHash,
    pub(super) key: K,
    set: Places,
    /// Those that were set too late for the advance under way.
    late: Option<Box<BTreeSet<Place>>>,
}

#[derive(Debug)]
enum Places {
    None,
    One(Place),
    /// One at least.
    Many(Box<BTreeSet<Place>>),
}

/// One of that time.
fn at(places: &BTreeSet<Place>, time: i64) -> Option<Place> {
    places.range(Place { time, number: 0 }..=Place { time, number: u64::MAX }).next().copied()
}

impl Places {
    fn first(&self) -> Option<Place> {
        match self {
            Places::None => None,
            Places::One(place) => Some(*place),
            Places::Many(places) => places.first().copied(),
        }
    }

    fn at(&self, time: i64) -> Option<Place> {
        match self {
            Places::None => None,
            Places::One(place) => Some(*place).filter(|place| place.time == time),
            Places::Many(places) => at(places, time),
        }
    }

    fn has(&self, place: Place) -> bool {
        match self {
            Places::None => false,
            Places::One(one) => *one == place,
            Places::Many(places) => places.contains(&place),
        }
    }

    fn add(&mut self, place: Place) {
        match self {
            Places::None => *self = Places::One(place),
            Places::One(one) => *self = Places::Many(Box::new(BTreeSet::from([*one, place]))),
            Places::Many(places) => {
                places.insert(place);
            }
        }
    }

    fn take(&mut self, place: Place) -> bool {
        let (taken, empty) = match self {
            Places::None => (false, true),
            Places::One(one) => (*one == place, *one == place),
            Places::Many(places) => (places.remove(&place), places.is_empty()),
        };
        if empty {
            *self = Places::None;
        }
        taken
    }

    fn each(&self) -> impl Iterator<Item = Place> {
        let (one, many) = match self {
            Places::None => (None, None),
            Places::One(place) => (Some(*place), None),
            Places::Many(places) => (None, Some(places.iter().copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

impl<K: PartialEq> Line<K> {
    pub(super) fn is_of(&self, hash: KeyHash, key: &K) -> bool {
        self.hash == hash && self.key == *key
    }
}

impl<K> Line<K> {
    /// A key without timers.
    pub(super) fn new(hash: KeyHash, key: K) -> Self {
        Line { hash, key, set: Places::None, late: None }
    }

    /// False when there is one of that time already.
    pub(super) fn add(&mut self, place: Place, late: bool) -> bool {
        let is_late = |late: &BTreeSet<Place>| at(late, place.time).is_some();
        if self.set.at(place.time).is_some() || self.late.as_deref().is_some_and(is_late) {
            return false;
        }
        if late {
            self.late.get_or_insert_default().insert(place);
        } else {
            self.set.add(place);
        }
        true
    }

    /// The first of those that are not late.
    pub(super) fn first(&self) -> Option<Place> {
        self.set.first()
    }

    pub(super) fn has(&self, place: Place) -> bool {
        self.set.has(place) || self.late.as_ref().is_some_and(|late| late.contains(&place))
    }

    /// Takes out the one of that time.
    pub(super) fn take_at(&mut self, time: i64) -> Option<Place> {
        let place = self.set.at(time).or_else(|| self.late.as_ref().and_then(|late| at(late, time)))?;
        self.take(place);
        Some(place)
    }

    pub(super) fn take(&mut self, place: Place) {
        if !self.set.take(place) {
            self.take_late(place);
        }
    }

    fn take_late(&mut self, place: Place) {
        let Some(late) = &mut self.late else { return };
        late.remove(&place);
        if late.is_empty() {
            self.late = None;
        }
    }

    /// It is late no more.
    pub(super) fn promote(&mut self, place: Place) {
        self.take_late(place);
        self.set.add(place);
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self.set, Places::None) && self.late.is_none()
    }

    /// All of them, in no order.
    pub(super) fn each(&self) -> impl Iterator<Item = Place> {
        self.set.each().chain(self.late.iter().flat_map(|late| late.iter().copied()))
    }
}
