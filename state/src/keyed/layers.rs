//! `Layers`: the entries of one map in layers over each other, so that those of a large map are frozen by sharing and not copied.
//!
//! On top lies what was put or read since the map was last frozen. That layer is shared by the thread that writes it and by the map
//! that goes on, which copies what it reads of it onto a new top; older layers are the latter's alone. Once the generation is
//! written the layers below are merged again, some entries at a time, the fewer into the more.
// HOT: `find` in a map of one layer: one probe. No allocation, lock or clock.

use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::layer::{Layer, STORED, Sub, slot};
use super::{Key, State};

/// So many entries are copied rather than shared: a layer more costs as much. Tests see both with few.
pub(super) const FEW: usize = if cfg!(test) { 2 } else { 64 };
/// More layers than this are merged before another is added.
const MANY: usize = 4;
/// How many buckets of one layer a touch looks at for what has expired.
const SWEEP: usize = 64;

/// A layer that is being written, or was a moment ago: the thread that writes it has it too.
type Shared<M, V> = Arc<Mutex<Layer<M, V>>>;

fn locked<M, V>(shared: &Mutex<Layer<M, V>>) -> MutexGuard<'_, Layer<M, V>> {
    // Nothing that panics runs under the lock but the user's own code for one entry.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The layer, if nobody else has it any more.
fn alone<M, V>(shared: Shared<M, V>) -> Result<Layer<M, V>, Shared<M, V>> {
    Arc::try_unwrap(shared).map(|layer| layer.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The top layer of a map.
#[derive(Clone, Debug)]
enum Top<M, V> {
    Own(Layer<M, V>),
    Frozen(Shared<M, V>),
}

/// The layers below, of a map that has some.
#[derive(Clone, Debug)]
struct Below<M, V> {
    /// Those that may be shared still, the newest first.
    frozen: Vec<Shared<M, V>>,
    /// Older ones, the newest first.
    layers: Vec<Layer<M, V>>,
    /// The first bucket that is not yet merged of one of the first two of these, and whether that is the second.
    merging: Option<(usize, bool)>,
    /// The first bucket of the last layer in which what has expired was not looked for this time around.
    sweep: usize,
}

impl<M, V> Default for Below<M, V> {
    fn default() -> Self {
        Below { frozen: Vec::new(), layers: Vec::new(), merging: None, sweep: 0 }
    }
}

impl<M: Key, V: State> Below<M, V> {
    /// A layer over all of these.
    fn push(&mut self, layer: Layer<M, V>) {
        if !self.frozen.is_empty() {
            self.frozen.insert(0, Arc::new(Mutex::new(layer)));
        } else if layer.len() > 0 {
            self.merging = None;
            self.layers.insert(0, layer);
        }
    }

    /// Takes back what nobody else has any more.
    fn thaw(&mut self) {
        while let Some(oldest) = self.frozen.pop() {
            match alone(oldest) {
                Ok(layer) => {
                    self.merging = None;
                    self.layers.insert(0, layer);
                }
                Err(shared) => return self.frozen.push(shared),
            }
        }
    }

    fn find(&self, slot: u64, key: &M) -> Option<&Sub<M, V>> {
        self.layers.iter().find_map(|layer| layer.find(slot, key))
    }
}

/// The entries of one map.
#[derive(Clone, Debug)]
pub(super) struct Layers<M, V> {
    top: Top<M, V>,
    below: Option<Box<Below<M, V>>>,
    /// The slot of an entry on top whose value was given away to be changed.
    lent: Option<u64>,
}

impl<M: Key, V: State> Layers<M, V> {
    pub(super) fn new() -> Self {
        Layers { top: Top::Own(Layer::default()), below: None, lent: None }
    }

    /// Looks at the top layer; while that is written, no longer than others can wait.
    pub(super) fn with_top<R>(&self, look: impl FnOnce(&Layer<M, V>) -> R) -> R {
        match &self.top {
            Top::Own(top) => look(top),
            Top::Frozen(top) => look(&locked(top)),
        }
    }

    /// The top layer, to be changed.
    #[inline]
    pub(super) fn top_mut(&mut self) -> &mut Layer<M, V> {
        if let Some(lent) = self.lent.take() {
            self.own_top().weigh_again(lent);
        }
        self.own_top()
    }

    #[inline]
    fn own_top(&mut self) -> &mut Layer<M, V> {
        if let Top::Frozen(shared) = &mut self.top {
            // Whoever wrote it has given it up by now, else this costs a copy.
            let own = alone(take(shared)).unwrap_or_else(|shared| locked(&shared).clone());
            self.top = Top::Own(own);
        }
        match &mut self.top {
            Top::Own(top) => top,
            Top::Frozen(_) => unreachable!("it was taken back just now"),
        }
    }

    /// The entry of a key, as it was last put or read.
    #[inline]
    pub(super) fn find(&mut self, slot: u64, key: &M) -> Option<&Sub<M, V>> {
        if self.below.is_some() {
            self.bring_up(slot, key);
        }
        let below = self.below.as_deref();
        let top = match &self.top {
            Top::Own(top) => top.find(slot, key),
            // Nobody looks into what is being written.
            Top::Frozen(_) => None,
        };
        top.or_else(|| below?.find(slot, key))
    }

    /// Copies the entry of a key onto the top, if it is in a layer that is being written.
    fn bring_up(&mut self, slot: u64, key: &M) {
        let top = self.own_top();
        if top.find(slot, key).is_some() {
            return;
        }
        let Layers { top: Top::Own(top), below: Some(below), .. } = self else { return };
        below.thaw();
        let frozen = below.frozen.iter().find_map(|layer| locked(layer).find(slot, key).cloned());
        if let Some(sub) = frozen {
            top.add(slot, Sub { flags: STORED, ..sub });
        }
    }

    /// Copies onto the top all that is in layers that are being written.
    pub(super) fn bring_all_up(&mut self) {
        self.own_top();
        let Layers { top: Top::Own(top), below: Some(below), .. } = self else { return };
        below.thaw();
        for layer in &below.frozen {
            for sub in locked(layer).iter() {
                let slot = slot(&sub.key);
                if top.find(slot, &sub.key).is_none() {
                    top.add(slot, Sub { flags: STORED, ..sub.clone() });
                }
            }
        }
    }

    /// True when a layer below the top has an entry of the key, with or without a value.
    pub(super) fn is_below(&self, slot: u64, key: &M) -> bool {
        let Some(below) = &self.below else { return false };
        below.frozen.iter().any(|layer| locked(layer).find(slot, key).is_some())
            || below.find(slot, key).is_some()
    }

    /// Copies the entry of a key onto the top, wherever it is.
    fn copy_up(&mut self, slot: u64, key: &M) {
        self.bring_up(slot, key);
        if self.own_top().find(slot, key).is_none()
            && let Some(sub) = self.below.as_ref().and_then(|below| below.find(slot, key))
        {
            let copy = Sub { flags: STORED, ..sub.clone() };
            self.own_top().add(slot, copy);
        }
    }

    /// The entry of a key, on top, to be changed other than in size.
    pub(super) fn find_mut(&mut self, slot: u64, key: &M) -> Option<&mut Sub<M, V>> {
        if self.below.is_some() {
            self.copy_up(slot, key);
        }
        self.top_mut().find_mut(slot, key)
    }

    /// As [`find_mut`](Self::find_mut), of which the value may become larger or smaller.
    pub(super) fn lend(&mut self, slot: u64, key: &M) -> Option<&mut Sub<M, V>> {
        if self.below.is_some() {
            self.copy_up(slot, key);
        }
        self.top_mut();
        if Layer::<M, V>::OWNS {
            self.lent = Some(slot);
        }
        self.own_top().lend(slot, key)
    }

    /// Every entry, once: as it was last put or read. What is being written is not among them unless it was
    /// [brought up](Self::bring_all_up).
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sub<M, V>> {
        let layers = self.below.as_ref().map_or(&[][..], |below| &below.layers[..]);
        let top = match &self.top {
            Top::Own(top) => Some(top),
            Top::Frozen(_) => None,
        };
        let old = layers.iter().enumerate().flat_map(move |(at, layer)| {
            layer.iter().filter(move |sub| {
                let slot = slot(&sub.key);
                let mut newer = top.into_iter().chain(&layers[..at]);
                !newer.any(|layer| layer.find(slot, &sub.key).is_some())
            })
        });
        top.into_iter().flat_map(|layer| layer.iter()).chain(old)
    }

    /// True when a layer is being written.
    pub(super) fn is_being_written(&self) -> bool {
        matches!(self.top, Top::Frozen(_))
            || self.below.as_ref().is_some_and(|below| !below.frozen.is_empty())
    }

    /// True when nothing is known.
    pub(super) fn is_empty(&self) -> bool {
        self.below.is_none() && self.with_top(|top| top.len() == 0)
    }

    /// True when it is small enough to be copied, and has one layer.
    pub(super) fn is_small(&self) -> bool {
        self.below.is_none() && self.with_top(|top| top.len() <= FEW && !top.is_heavy())
    }

    /// The top layer for who writes it.
    pub(super) fn share_top(&mut self) -> Self {
        if let Top::Own(_) = &self.top {
            let top = take(self.top_mut());
            self.top = Top::Frozen(Arc::new(Mutex::new(top)));
        }
        Layers { top: self.top.clone(), below: None, lent: None }
    }

    /// All layers for a map that goes on, under an empty top; of these, only the top stays with this one, to be written.
    pub(super) fn share(&mut self) -> Self {
        let mut below = self.below.take().unwrap_or_default();
        if below.layers.len() > MANY {
            below.tidy(usize::MAX, None::<fn(Option<i64>) -> bool>);
        }
        if let Top::Frozen(top) = self.share_top().top {
            below.frozen.insert(0, top);
        }
        Layers { below: Some(below), ..Layers::new() }
    }

    /// The top layer is written: it is one of those below.
    pub(super) fn push_down(&mut self) {
        let top = take(self.top_mut());
        let below = self.below.get_or_insert_default();
        below.thaw();
        below.push(top);
        self.forget_below();
    }

    /// Merges about so many entries of the layers below the top, as far as nobody else has them, and then looks at as many of what is
    /// one layer. What has expired goes, where anything does: true when there was any, which the backend may hold still.
    pub(super) fn tidy(&mut self, most: usize, is_over: Option<impl Fn(Option<i64>) -> bool>) -> bool {
        self.top_mut();
        let Some(below) = &mut self.below else { return false };
        below.thaw();
        let expired = below.tidy(most, is_over);
        self.forget_below();
        expired
    }

    fn forget_below(&mut self) {
        let empty =
            |below: &Below<M, V>| below.frozen.is_empty() && below.layers.iter().all(|of| of.len() == 0);
        if self.below.as_ref().is_some_and(|below| empty(below)) {
            self.below = None;
        }
    }

    /// About how many bytes it takes, without what is being written.
    pub(super) fn weight(&self) -> usize {
        let below = |below: &Below<M, V>| {
            let alone = |layer: &&Shared<M, V>| Arc::strong_count(layer) == 1;
            let frozen: usize = below.frozen.iter().filter(alone).map(|layer| locked(layer).weight()).sum();
            frozen + below.layers.iter().map(Layer::weight).sum::<usize>()
        };
        self.with_top(Layer::weight) + self.below.as_ref().map_or(0, |of| below(of))
    }
}

impl<M: Key, V: State> Below<M, V> {
    /// See [`Layers::tidy`].
    fn tidy(&mut self, mut most: usize, is_over: Option<impl Fn(Option<i64>) -> bool>) -> bool {
        let mut expired = false;
        let is_over = is_over.as_ref();
        let Below { layers, merging, sweep, .. } = self;
        while most > 0 {
            // Else there is something below that what has no value must go on hiding.
            let last = layers.len() == 2;
            let [newer, older, ..] = &mut layers[..] else { break };
            let (begun, of_older) = *merging.get_or_insert((0, older.len() < newer.len()));
            let (from, into) = if of_older { (older, newer) } else { (newer, older) };
            let end = from.buckets().min(begun.saturating_add(most));
            for bucket in begun..end {
                let Some(mut sub) = from.take(bucket) else { continue };
                let slot = slot(&sub.key);
                if !of_older {
                    into.remove(slot, &sub.key);
                } else if into.find(slot, &sub.key).is_some() {
                    continue;
                }
                if last && sub.value.is_some() && is_over.is_some_and(|over| over(sub.millis())) {
                    expired = true;
                } else if !last || sub.value.is_some() {
                    sub.flags = STORED;
                    into.add(slot, sub);
                }
            }
            most -= end - begun;
            *merging = Some((end, of_older));
            if end == from.buckets() {
                into.fit();
                layers.remove(usize::from(of_older));
                (*merging, *sweep) = (None, 0);
            }
        }
        let (Some(over), [base]) = (is_over, &mut layers[..]) else { return expired };
        // Each touch looks at a few: a batch may touch a thousand maps.
        let end = base.buckets().min(sweep.saturating_add(most.min(SWEEP)));
        for bucket in *sweep..end {
            if base.at(bucket).is_some_and(|sub| over(sub.millis())) {
                base.take(bucket);
                expired = true;
            }
        }
        *sweep = end;
        if end == base.buckets() {
            base.fit();
            *sweep = 0;
        }
        expired
    }
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
