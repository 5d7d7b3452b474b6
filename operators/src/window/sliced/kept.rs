//! What one subtask keeps for windows made of slices, and how it moves from one window to the next.

use weir_engine::{Key, KeyHash, OperatorContext, Result, Watermark};
use weir_state::key_hash;
use weir_state::keyed::{Space, Spaces, State, StateMap, Table, Tour};
use weir_state::store::Snapshot;

use crate::aggregate::Aggregate;
use crate::window::cuts::{Cuts, check_kept};
use crate::window::panes::Panes;
use crate::window::running::Running;
use crate::window::slices::{Slicing, cut};
use crate::window::tumbling::AT_ONCE;

pub(super) struct Kept<K, A> {
    pub(super) slicing: Slicing,
    pub(super) slices: Panes<K, A>,
    /// By key, the slices of the window that ends at `position`, merged.
    pub(super) running: StateMap<K, Running<A>>,
    /// How many results a key has had in a window that was given again, by the window's end.
    late_panes: Spaces<K, u32>,
    /// Where the last window ended that was over. It follows from the watermark, so that after a restore it is where it was.
    pub(super) position: i128,
    /// There may be something in a `running` that cumulates.
    alive: bool,
    /// What was read or taken out, and is still to be given or merged.
    pub(super) taken: Vec<(K, A)>,
}

impl<K: Key, A: State> Kept<K, A> {
    /// What was kept at the checkpoint, or nothing.
    ///
    /// # Errors
    /// The store cannot be read, or what is open lies otherwise.
    pub(super) fn open(cx: &OperatorContext, slicing: Slicing, watermark: Watermark) -> Result<Self> {
        let store = cx.store()?;
        let slices = Panes::open(cx, "slices", Cuts::Grid(slicing.slices()), slicing.layout())?;
        let mut running: StateMap<K, Running<A>> = store.state_map(Table::new("running"))?;
        let late_panes = store.spaces(Table::new("late_panes"))?;
        let position = slicing.position(watermark);
        let mut runs = false;
        if cx.is_restored() {
            // Any one tells.
            running.visit_some(&mut Tour::default(), 1, |_, _| runs = true)?;
        }
        if runs {
            // Slices that cumulate are gone when they are merged: then only this tells of the window.
            check_kept(cx, &slicing.layout(), cut(slicing.begin(position)))?;
        }
        let alive = runs && slicing.cumulates();
        Ok(Kept { slicing, slices, running, late_panes, position, alive, taken: Vec::new() })
    }

    /// The slices that begin in a span, in order.
    fn between(&self, from: i128, to: i128) -> Vec<(i64, Space)> {
        let open = self.slices.spaces.namespaces();
        open.skip_while(|(start, _)| i128::from(*start) < from)
            .take_while(|(start, _)| i128::from(*start) < to)
            .collect()
    }

    /// What a key has in each of the slices that begin in a span.
    pub(super) fn slices_of(
        &mut self,
        from: i128,
        to: i128,
        hash: KeyHash,
        key: &K,
    ) -> Result<Vec<(i64, A)>> {
        let slices = self.between(from, to);
        self.found_in(&slices, hash, key)
    }

    fn found_in(&mut self, slices: &[(i64, Space)], hash: KeyHash, key: &K) -> Result<Vec<(i64, A)>> {
        let mut found = Vec::new();
        for (start, space) in slices {
            if let Some(acc) = self.slices.spaces.map(*space).get(hash, key)? {
                found.push((*start, acc.clone()));
            }
        }
        Ok(found)
    }

    /// The end of the next window that has something in it.
    pub(super) fn next_end(&self) -> Option<i128> {
        let Kept { slicing, position, .. } = self;
        let from = if slicing.cumulates() { *position } else { slicing.begin(*position) };
        let mut open = self.slices.spaces.namespaces().map(|(start, _)| i128::from(start));
        let first = open.find(|start| *start >= from);
        match first {
            _ if self.alive => Some(slicing.next_end(*position)),
            Some(start) if start < *position => Some(slicing.next_end(*position)),
            first => first.map(|start| slicing.first_end(start)),
        }
    }

    /// Moves on to the window that ends there: what is no longer in it leaves, what has been completed since arrives.
    pub(super) fn move_to<T>(&mut self, end: i128, aggregate: &impl Aggregate<T, Acc = A>) -> Result<()> {
        self.slices.forget_last();
        if !self.slicing.cumulates() {
            let leaving = self.between(self.slicing.begin(self.position), self.slicing.begin(end));
            for (start, space) in leaving {
                self.leaves(start, space, aggregate)?;
            }
        }
        for (start, space) in self.between(self.position, end) {
            self.arrives(start, space, aggregate)?;
        }
        self.position = end;
        self.batch_end()
    }

    fn leaves<T>(&mut self, start: i64, space: Space, aggregate: &impl Aggregate<T, Acc = A>) -> Result<()> {
        let rest = self.between(i128::from(start) + 1, self.position);
        let (mut tour, mut more) = (Tour::default(), true);
        while more {
            more = self.take_some(space, self.slicing.is_lenient().then_some(&mut tour))?;
            let mut taken = std::mem::take(&mut self.taken);
            self.running.prefetch(taken.iter().map(|(key, _)| (key_hash(key), key)))?;
            for (key, _) in taken.drain(..) {
                let hash = key_hash(&key);
                if !self.leaves_running(start, hash, &key)? {
                    self.make_anew(&rest, aggregate, hash, &key)?;
                }
            }
            self.taken = taken;
            self.running.batch_end()?;
        }
        if !self.slicing.is_lenient() {
            self.slices.spaces.close(start);
        }
        Ok(())
    }

    /// Reads some entries of a slice that is still needed, with a tour, or takes them out; false when those were the last.
    fn take_some(&mut self, space: Space, tour: Option<&mut Tour>) -> Result<bool> {
        let Kept { slices, taken, .. } = self;
        match tour {
            None => slices.pop(space, AT_ONCE, taken),
            Some(tour) => {
                let copy = |key: &K, acc: &A| taken.push((key.clone(), acc.clone()));
                Ok(slices.spaces.map(space).visit_some(tour, AT_ONCE, copy)?)
            }
        }
    }

    /// The oldest slice of a key leaves what is running. False when that has to be made anew of what is left.
    fn leaves_running(&mut self, start: i64, hash: KeyHash, key: &K) -> Result<bool> {
        let Some(place) = self.running.find(hash, key)? else { return Ok(true) };
        let running = self.running.at(place);
        let known = running.leaves(start);
        if known && running.is_empty() && !self.slicing.tells_emptied() {
            self.running.remove(hash, key);
        }
        Ok(known)
    }

    /// Makes what is running of a key anew, of these slices.
    fn make_anew<T>(
        &mut self,
        slices: &[(i64, Space)],
        aggregate: &impl Aggregate<T, Acc = A>,
        hash: KeyHash,
        key: &K,
    ) -> Result<()> {
        let left = self.found_in(slices, hash, key)?;
        if left.is_empty() && !self.slicing.tells_emptied() {
            self.running.remove(hash, key);
        } else {
            let place = self.running.find_or_insert_with(hash, key, Running::default)?;
            *self.running.at(place) = Running::of(aggregate, left);
        }
        Ok(())
    }

    fn arrives<T>(&mut self, start: i64, space: Space, aggregate: &impl Aggregate<T, Acc = A>) -> Result<()> {
        self.alive = self.slicing.cumulates();
        // Of a window that slides it is asked again when it leaves.
        let done = self.slicing.cumulates() && !self.slicing.is_lenient();
        let (mut tour, mut more) = (Tour::default(), true);
        while more {
            more = self.take_some(space, (!done).then_some(&mut tour))?;
            self.running.prefetch(self.taken.iter().map(|(key, _)| (key_hash(key), key)))?;
            for (key, acc) in self.taken.drain(..) {
                let place = self.running.find_or_insert_with(key_hash(&key), &key, Running::default)?;
                self.running.at(place).arrives(aggregate, acc);
            }
            self.running.batch_end()?;
        }
        if done {
            self.slices.spaces.close(start);
        }
        Ok(())
    }

    /// A record came for a slice that was merged already: what is running of its key takes it in.
    pub(super) fn add_behind<T, G: Aggregate<T, Acc = A>>(
        &mut self,
        aggregate: &G,
        hash: KeyHash,
        key: &K,
        value: &T,
    ) -> Result<()> {
        if self.slicing.cumulates() {
            self.alive = true;
            let place = self.running.find_or_insert_with(hash, key, Running::default)?;
            let back = self.running.at(place).back();
            aggregate.add(back.get_or_insert_with(|| aggregate.create()), value);
            return Ok(());
        }
        let slices = self.between(self.slicing.begin(self.position), self.position);
        self.make_anew(&slices, aggregate, hash, key)
    }

    /// The number of the next late result of a key in the window that ends there; `had`: it had an on-time one.
    pub(super) fn next_late_pane(&mut self, end: i128, hash: KeyHash, key: &K, had: bool) -> Result<u32> {
        let space = self.late_panes.open(cut(end));
        let panes = self.late_panes.map(space).get_or_insert_with(hash, key.clone(), || u32::from(had))?;
        *panes = panes.saturating_add(1);
        Ok(*panes - 1)
    }

    /// The window that ends there was given.
    pub(super) fn was_given(&mut self, end: i128) -> Result<()> {
        if self.slicing.cumulates() && self.slicing.last_end(end - 1) == end {
            self.running.clear();
            self.alive = false;
        }
        Ok(self.running.batch_end()?)
    }

    /// Every window that is over was given: forgets what nothing can change any more.
    pub(super) fn pass(&mut self, watermark: Watermark) -> Result<()> {
        self.slices.forget_last();
        let Kept { slicing, slices, late_panes, .. } = self;
        self.position = self.position.max(slicing.position(watermark));
        let merged = if slicing.cumulates() { self.position } else { slicing.begin(self.position) };
        loop {
            let first = slices.spaces.namespaces().next();
            let Some((start, _)) = first else { break };
            let at = i128::from(start);
            if at >= merged || !slicing.is_forgotten(slicing.last_end(at), watermark) {
                break;
            }
            slices.spaces.close(start);
        }
        loop {
            let first = late_panes.namespaces().next();
            let Some((end, _)) = first else { break };
            if !slicing.is_forgotten(end.into(), watermark) {
                break;
            }
            late_panes.close(end);
        }
        self.batch_end()
    }

    pub(super) fn batch_end(&mut self) -> Result<()> {
        self.slices.batch_end()?;
        self.running.batch_end()?;
        Ok(self.late_panes.batch_end()?)
    }

    pub(super) fn freeze(&mut self, into: &mut Snapshot) -> Result<()> {
        self.slices.freeze(into)?;
        self.running.freeze(into)?;
        Ok(self.late_panes.freeze(into)?)
    }
}
