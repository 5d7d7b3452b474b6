//! What one subtask keeps for windows made of slices, and how its key groups move from one window to the next, some at a time
//! (over 400 lines: one state, that moves, is read, and is written).

use std::ops::Range;

use weir_engine::{Key, KeyHash, OperatorContext, Result, Watermark};
use weir_state::key_hash;
use weir_state::keyed::{Space, Spaces, State, StateMap, Table, Tour};
use weir_state::store::Snapshot;

use super::fronts::{Front, Fronts, Run};
use crate::aggregate::Aggregate;
use crate::window::cuts::{Cuts, check_kept};
use crate::window::panes::Panes;
use crate::window::running::Running;
use crate::window::slices::{Slicing, cut};
use crate::window::tumbling::AT_ONCE;

/// About so many results are made at a time: as many as take some tens of milliseconds with what is looked through for them. In tests of this
/// crate few.
const CHUNK: usize = if cfg!(test) { 2 } else { 1 << 16 };
/// So many entries are looked through between two uses of what was found.
const LOOK: usize = 16 * AT_ONCE;

pub(super) struct Kept<K, A> {
    pub(super) slicing: Slicing,
    pub(super) slices: Panes<K, A>,
    /// By key, the slices of the window that was given last of its group, merged.
    running: StateMap<K, Running<A>>,
    /// How many results a key has had in a window that was given again, by the window's end.
    late_panes: Spaces<K, u32>,
    pub(super) fronts: Fronts,
    /// No slice from here on belongs to a window that is over for any group.
    pub(super) closed: i128,
    /// What the groups that moved last have come to, still to be given; and the end of their window.
    ready: Vec<(K, A)>,
    ready_end: i128,
    /// What of it was there at a barrier: by the end of the window, which is also where some group stands.
    left: Spaces<K, A>,
    /// There may be something in a `running` that cumulates.
    alive: bool,
    /// How many groups move at a time.
    stride: usize,
    /// What was read, and is still to be merged.
    taken: Vec<(K, A)>,
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
        let left = store.spaces(Table::new("ready_windows"))?;
        let fronts = Fronts::open(cx, &slicing, watermark)?;
        let mut runs = false;
        if cx.is_restored() {
            // Any one tells.
            running.visit_some(&mut Tour::default(), 1, |_, _| runs = true)?;
        }
        if runs {
            // Slices that cumulate are gone when they are merged: then only this tells of the window.
            check_kept(cx, &slicing.layout(), cut(slicing.begin(fronts.least())))?;
        }
        let mut kept = Kept {
            alive: runs && slicing.cumulates(),
            slicing,
            slices,
            running,
            late_panes,
            fronts,
            closed: 0,
            ready: Vec::new(),
            ready_end: 0,
            left,
            stride: 1,
            taken: Vec::new(),
        };
        kept.event_time(watermark);
        Ok(kept)
    }

    /// Event time advances: the slices of windows that are over now take no more records unasked.
    pub(super) fn event_time(&mut self, watermark: Watermark) {
        let Kept { slicing, fronts, .. } = self;
        let closed = |front: Front| front.position.max(slicing.position(front.reached(watermark)));
        self.closed = fronts.each().map(closed).max().unwrap_or(i128::MAX);
        self.slices.forget_last();
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

    /// The end of the next window that has something in it, of groups that stand there.
    fn next_end(&self, position: i128) -> Option<i128> {
        let slicing = &self.slicing;
        let from = if slicing.cumulates() { position } else { slicing.begin(position) };
        let mut open = self.slices.spaces.namespaces().map(|(start, _)| i128::from(start));
        let first = open.find(|start| *start >= from);
        match first {
            _ if self.alive && !self.begins_anew(position) => Some(slicing.next_end(position)),
            Some(start) if start < position => Some(slicing.next_end(position)),
            first => first.map(|start| slicing.first_end(start)),
        }
    }

    /// A window that cumulates ends there for good.
    fn begins_anew(&self, position: i128) -> bool {
        self.slicing.last_end(position - 1) == position
    }

    /// The next groups that are to move on, and where to. `by`: what event time has reached, for what is given now.
    pub(super) fn next_run(&self, by: impl Fn(&Front) -> Watermark) -> Option<Run> {
        let is_over = |end: i128, front: &Front| self.slicing.is_over(end, by(front));
        self.fronts.next_run(self.stride, |position| self.next_end(position), is_over)
    }

    /// What a move costs beside its results, in results.
    pub(super) fn cost(&self) -> usize {
        1 + self.running.cached() / 64
    }

    /// Moves some groups on to their next window: what is no longer in it leaves, what has been completed since arrives, and what it comes to
    /// is ready to be given. Nothing else may be ready.
    pub(super) fn move_on<T>(&mut self, run: Run, aggregate: &impl Aggregate<T, Acc = A>) -> Result<()> {
        let Run { groups, position, end } = run;
        self.slices.forget_last();
        let begin = self.slicing.begin(end);
        if !self.slicing.cumulates() {
            for (start, space) in self.between(self.slicing.begin(position), begin) {
                self.leaves(start, space, position, &groups, aggregate)?;
            }
        } else if self.alive && begin >= position {
            self.forget_running(&groups)?;
        }
        for (_, space) in self.between(position, end) {
            self.arrives(space, &groups, aggregate)?;
        }
        self.comes_to(&groups, end, aggregate)?;
        self.fronts.moved(&groups, end);
        let results = self.ready.len();
        if results < CHUNK / 2 {
            self.stride = (2 * self.stride).min(self.fronts.own().max(1));
        } else if results > CHUNK && groups.len() > 1 {
            self.stride = (self.stride / 2).max(1);
        }
        self.let_go();
        self.batch_end()
    }

    /// A tour of the keys of these groups.
    fn tour(&self, groups: &Range<u16>) -> Tour {
        Tour::of_groups(groups.clone(), self.fronts.groups())
    }

    fn leaves<T>(
        &mut self,
        start: i64,
        space: Space,
        position: i128,
        groups: &Range<u16>,
        aggregate: &impl Aggregate<T, Acc = A>,
    ) -> Result<()> {
        let rest = self.between(i128::from(start) + 1, position);
        let (mut tour, mut more, mut keys) = (self.tour(groups), true, Vec::new());
        while more {
            more =
                self.slices.spaces.map(space).visit_some(&mut tour, LOOK, |key, _| keys.push(key.clone()))?;
            self.running.prefetch(keys.iter().map(|key| (key_hash(key), key)))?;
            for key in keys.drain(..) {
                let hash = key_hash(&key);
                if !self.leaves_running(start, hash, &key)? {
                    self.make_anew(&rest, aggregate, hash, &key)?;
                }
            }
            self.running.batch_end()?;
        }
        Ok(())
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

    fn arrives<T>(
        &mut self,
        space: Space,
        groups: &Range<u16>,
        aggregate: &impl Aggregate<T, Acc = A>,
    ) -> Result<()> {
        self.alive = self.slicing.cumulates();
        let (mut tour, mut more) = (self.tour(groups), true);
        while more {
            let Kept { slices, running, taken, .. } = self;
            let copy = |key: &K, acc: &A| taken.push((key.clone(), acc.clone()));
            more = slices.spaces.map(space).visit_some(&mut tour, LOOK, copy)?;
            running.prefetch(taken.iter().map(|(key, _)| (key_hash(key), key)))?;
            for (key, acc) in taken.drain(..) {
                let place = running.find_or_insert_with(key_hash(&key), &key, Running::default)?;
                running.at(place).arrives(aggregate, acc);
            }
            running.batch_end()?;
        }
        Ok(())
    }

    /// What the groups have in the window that ends there is ready.
    fn comes_to<T>(
        &mut self,
        groups: &Range<u16>,
        end: i128,
        aggregate: &impl Aggregate<T, Acc = A>,
    ) -> Result<()> {
        self.ready_end = end;
        let (mut tour, mut more, mut emptied) = (self.tour(groups), true, Vec::new());
        while more {
            let ready = &mut self.ready;
            more = self.running.visit_some(&mut tour, LOOK, |key, running| {
                let total = running.total(aggregate).unwrap_or_else(|| {
                    emptied.push(key.clone());
                    aggregate.create()
                });
                ready.push((key.clone(), total));
            })?;
        }
        emptied.iter().for_each(|key| self.running.remove(key_hash(key), key));
        Ok(())
    }

    /// What is running of these groups is of a window that has ended.
    fn forget_running(&mut self, groups: &Range<u16>) -> Result<()> {
        let (mut tour, mut keys) = (self.tour(groups), Vec::new());
        while self.running.visit_some(&mut tour, LOOK, |key, _| keys.push(key.clone()))? {}
        keys.iter().for_each(|key| self.running.remove(key_hash(key), key));
        Ok(())
    }

    /// Something is ready to be given.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty() || self.left.namespaces().next().is_some()
    }

    /// Takes out about `most` results that are ready; tells the end of their window.
    pub(super) fn take_ready(&mut self, most: usize, into: &mut Vec<(K, A)>) -> Result<i128> {
        if !self.ready.is_empty() {
            into.extend(self.ready.drain(self.ready.len().saturating_sub(most)..));
            return Ok(self.ready_end);
        }
        let Some((name, space)) = self.left.namespaces().next() else { return Ok(self.ready_end) };
        if !self.left.map(space).pop(most, into)? {
            self.left.close(name);
        }
        // What ends behind the end of time is named by the lower half of its end.
        let end = self.fronts.each().map(|front| front.position).find(|end| *end as i64 == name);
        Ok(end.unwrap_or(name.into()))
    }

    /// A record came for a slice that was merged already: what is running of its key takes it in.
    pub(super) fn add_behind<T, G: Aggregate<T, Acc = A>>(
        &mut self,
        aggregate: &G,
        position: i128,
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
        let slices = self.between(self.slicing.begin(position), position);
        self.make_anew(&slices, aggregate, hash, key)
    }

    /// The number of the next late result of a key in the window that ends there; `had`: it had an on-time one.
    pub(super) fn next_late_pane(&mut self, end: i128, hash: KeyHash, key: &K, had: bool) -> Result<u32> {
        let space = self.late_panes.open(cut(end));
        let panes = self.late_panes.map(space).get_or_insert_with(hash, key.clone(), || u32::from(had))?;
        *panes = panes.saturating_add(1);
        Ok(*panes - 1)
    }

    /// Lets go what no group needs any more.
    fn let_go(&mut self) {
        if self.alive && self.fronts.all_at().is_some_and(|position| self.begins_anew(position)) {
            self.running.clear();
            self.alive = false;
        }
        if self.slicing.is_lenient() {
            return;
        }
        let least = self.fronts.least();
        let needed = if self.slicing.cumulates() { least } else { self.slicing.begin(least) };
        for (start, _) in self.between(i128::MIN, needed) {
            self.slices.spaces.close(start);
        }
    }

    /// Every window that is over was given: forgets what nothing can change any more.
    pub(super) fn pass(&mut self, by: impl Fn(&Front) -> Watermark, watermark: Watermark) -> Result<()> {
        self.let_go();
        if self.alive {
            // Of some groups a window has ended that others are still in.
            for ended in self.fronts.runs(|position| self.begins_anew(position)) {
                self.forget_running(&ended)?;
            }
        }
        let Kept { slicing, fronts, .. } = self;
        fronts.pass(|front| slicing.position(by(front)));
        self.slices.forget_last();
        self.let_go();
        let Kept { slicing, slices, late_panes, fronts, .. } = self;
        let least = fronts.least();
        let merged = if slicing.cumulates() { least } else { slicing.begin(least) };
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
        self.left.batch_end()?;
        Ok(self.late_panes.batch_end()?)
    }

    pub(super) fn freeze(&mut self, watermark: Watermark, into: &mut Snapshot) -> Result<()> {
        if !self.ready.is_empty() {
            let space = self.left.open(self.ready_end as i64);
            let left = self.left.map(space);
            for (key, acc) in self.ready.drain(..) {
                left.insert(key_hash(&key), key, acc)?;
            }
        }
        self.slices.freeze(into)?;
        self.running.freeze(into)?;
        self.left.freeze(into)?;
        self.late_panes.freeze(into)?;
        self.fronts.keep(watermark, into);
        Ok(())
    }
}
