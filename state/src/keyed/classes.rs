//! `Classes`: a hash table that grows smoothly: 64 tables of different shares, so that they double at different times.
//!
//! One large table doubles all at once: three times its memory for a moment, a pause of seconds for millions of entries, and
//! half a budget unused just before. Here class `i` of 64 holds a share of the hashes in proportion to `1 / (64 + i)`, so that
//! from one doubling of all to the next the classes double one by one, at even steps: memory follows the number of
//! entries, and the longest pause is that of one class. A small table has one class only.
// HOT: `find` and `at` are called per record: one probe of one table; no allocation, no lock, no clock.

use std::ops::Range;

use super::marked::Marked;

const CLASSES: usize = 64;
const CELLS: usize = 4096;
/// Above this many entries there are 64 classes, or above fewer where memory is short. Up to there one table is about as large as
/// what a core caches by itself: 64 of them, and the way to the right one, would only take more of that.
const SMALL: usize = 64 << 10;

/// Which class a cell of the hashes belongs to.
static CLASS_OF: [u8; CELLS] = {
    let (mut shares, mut i) = (0.0, 0);
    while i < CLASSES {
        shares += 1.0 / (CLASSES + i) as f64;
        i += 1;
    }
    let mut cells = [0; CELLS];
    let (mut cell, mut class, mut end) = (0, 0, 1.0 / CLASSES as f64);
    while cell < CELLS {
        while class + 1 < CLASSES && (cell as f64 + 0.5) / CELLS as f64 * shares >= end {
            class += 1;
            end += 1.0 / (CLASSES + class) as f64;
        }
        cells[cell] = class as u8;
        cell += 1;
    }
    cells
};

#[inline]
fn class_of(slot: u64, mask: usize) -> usize {
    if mask == 0 {
        return 0;
    }
    // Bits that neither hashbrown's tag (the top seven) nor the place in a table of usual size are made of.
    usize::from(CLASS_OF[(slot >> 40) as usize % CELLS])
}

/// Where an entry lies, until an entry is added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    class: u32,
    bucket: u32,
}

/// How far a walk through all buckets has come. It goes by stripes: a part of each class, then the next part of each, so that
/// what is removed on the way makes room in all of them alike.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    stripe: usize,
    class: usize,
    bucket: usize,
}

const STRIPES: usize = 64;

impl Cursor {
    /// The buckets that are next, of the so many of the class.
    fn buckets(&self, of: usize) -> Range<usize> {
        let end = of * (self.stripe + 1) / STRIPES;
        self.bucket.max(of * self.stripe / STRIPES).min(end)..end
    }

    fn next_class(&mut self, mask: usize) {
        self.bucket = 0;
        self.class = (self.class + 1) & mask;
        if self.class == 0 {
            self.stripe = (self.stripe + 1) % STRIPES;
        }
    }
}

/// What a walk does with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    /// Leave it.
    Keep,
    /// Remove it.
    Drop,
    /// Leave it and end the walk.
    Stop,
}

/// Entries by slot, which is a hash turned by [`KeyHash::in_group`](crate::KeyHash::in_group) or as good.
#[derive(Debug)]
pub(super) struct Classes<E> {
    tables: Vec<Marked<E>>,
    /// One less than the number of tables.
    mask: usize,
    len: usize,
    bytes: usize,
    /// How many entries a class is made for when its first one comes.
    expected: usize,
    /// Above this many entries there are 64 classes.
    small: usize,
}

impl<E> Default for Classes<E> {
    fn default() -> Self {
        Classes { tables: vec![Marked::default()], mask: 0, len: 0, bytes: 0, expected: 0, small: SMALL }
    }
}

impl<E> Classes<E> {
    /// One that will not have many more than so many entries: one table of them would be anything from full to half empty.
    pub(super) fn of_at_most(entries: usize) -> Self {
        Classes { small: (entries / 8).clamp(1 << 10, SMALL), ..Classes::default() }
    }

    /// An empty one, as this one was at first.
    pub(super) fn anew(&self) -> Self {
        Classes { small: self.small, ..Classes::default() }
    }

    /// An empty one that expects about as many entries as `other` has.
    pub(super) fn like(other: &Self) -> Self {
        let tables: Vec<_> = other.tables.iter().map(|_| Marked::default()).collect();
        // Half of them: too much would be memory for nothing, and one doubling is cheap.
        Classes { mask: tables.len() - 1, expected: other.len / tables.len() / 2, tables, ..other.anew() }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory of the tables; not what entries own elsewhere.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline(always)]
    pub(super) fn find(&self, slot: u64, same: impl FnMut(&E) -> bool) -> Option<Place> {
        let class = class_of(slot, self.mask);
        let bucket = self.tables[class].find(slot, same)?;
        Some(Place { class: class as u32, bucket: bucket as u32 })
    }

    /// # Panics
    /// When the place is stale and empty.
    #[inline]
    pub(super) fn at(&self, place: Place) -> &E {
        let entry = self.tables[place.class as usize].at(place.bucket as usize);
        entry.expect("a place is used before the table changes")
    }

    /// The entry and its marks.
    ///
    /// # Panics
    /// When the place is stale and empty.
    #[inline(always)]
    pub(super) fn at_mut(&mut self, place: Place) -> (&mut E, &mut u8) {
        let entry = self.tables[place.class as usize].at_mut(place.bucket as usize);
        entry.expect("a place is used before the table changes")
    }

    /// Adds an entry that is not there yet.
    pub(super) fn insert(
        &mut self,
        slot: u64,
        entry: E,
        marks: u8,
        slot_of: impl Fn(&E) -> u64 + Copy,
    ) -> Place {
        if self.outgrown_by(1) {
            self.spread(slot_of);
        }
        let class = class_of(slot, self.mask);
        let table = &mut self.tables[class];
        let before = table.bytes();
        let bucket = table.insert(slot, entry, marks, self.expected, slot_of);
        self.bytes = self.bytes + table.bytes() - before;
        self.len += 1;
        Place { class: class as u32, bucket: bucket as u32 }
    }

    pub(super) fn remove(&mut self, slot: u64, same: impl FnMut(&E) -> bool) -> Option<(E, u8)> {
        if self.len == 0 {
            return None;
        }
        let class = class_of(slot, self.mask);
        let removed = self.tables[class].remove(slot, same)?;
        self.len -= 1;
        Some(removed)
    }

    /// The entry and its marks, if there is one at the place.
    pub(super) fn get_mut(&mut self, place: Place) -> Option<(&mut E, &mut u8)> {
        self.tables.get_mut(place.class as usize)?.at_mut(place.bucket as usize)
    }

    /// True when places change if an entry with this slot is added.
    #[inline]
    pub(super) fn would_move(&self, slot: u64) -> bool {
        self.outgrown_by(1) || self.tables[class_of(slot, self.mask)].is_full()
    }

    /// True when it is one table, and would be too large for that with so many more entries.
    pub(super) fn outgrown_by(&self, more: usize) -> bool {
        self.mask == 0 && self.len + more > self.small
    }

    /// From one class to all of them.
    pub(super) fn spread(&mut self, slot_of: impl Fn(&E) -> u64 + Copy) {
        if self.mask > 0 {
            return;
        }
        let all = std::mem::take(&mut self.tables[0]);
        *self = Classes {
            tables: (0..CLASSES).map(|_| Marked::default()).collect(),
            mask: CLASSES - 1,
            expected: all.len() / CLASSES,
            ..self.anew()
        };
        for (entry, marks) in all {
            let slot = slot_of(&entry);
            self.insert(slot, entry, marks, slot_of);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&E, u8)> {
        self.tables.iter().flat_map(Marked::iter)
    }

    /// Walks on from where the cursor is, at most once around, visiting at most `most` entries. Entries may not be added
    /// meanwhile.
    pub(super) fn walk(
        &mut self,
        cursor: &mut Cursor,
        most: usize,
        visit: impl FnMut(&mut E, &mut u8) -> Walk,
    ) {
        self.walk_and_take(cursor, most, visit, |_, _| {});
    }

    /// Takes out up to `most` entries.
    pub(super) fn take_some(&mut self, cursor: &mut Cursor, most: usize, take: impl FnMut(E, u8)) {
        self.walk_and_take(cursor, most, |_, _| Walk::Drop, take);
    }

    fn walk_and_take(
        &mut self,
        cursor: &mut Cursor,
        most: usize,
        mut visit: impl FnMut(&mut E, &mut u8) -> Walk,
        mut take: impl FnMut(E, u8),
    ) {
        let (mut visited, mut left) = (0, self.tables.len() * STRIPES + 1);
        cursor.class &= self.mask;
        while left > 0 && self.len > 0 {
            let table = &mut self.tables[cursor.class];
            for bucket in cursor.buckets(table.buckets()) {
                if visited == most {
                    return;
                }
                cursor.bucket = bucket + 1;
                let Some((entry, marks)) = table.at_mut(bucket) else { continue };
                visited += 1;
                match visit(entry, marks) {
                    Walk::Keep => {}
                    Walk::Drop => {
                        if let Some((entry, marks)) = table.take(bucket) {
                            take(entry, marks);
                            self.len -= 1;
                        }
                    }
                    Walk::Stop => return,
                }
            }
            cursor.next_class(self.mask);
            left -= 1;
        }
    }

    /// An entry near the cursor, which moves on; none when there is none nearby.
    pub(super) fn sample(&self, cursor: &mut Cursor) -> Option<&E> {
        const NEAR: usize = 16;
        cursor.class &= self.mask;
        let table = &self.tables[cursor.class];
        let mut near = cursor.buckets(table.buckets()).take(NEAR);
        let found = near.find_map(|bucket| table.at(bucket));
        cursor.next_class(self.mask);
        found
    }

    /// Gives memory back when half of it will do for a class. Looks at one class, so that it can be called often.
    pub(super) fn tidy(&mut self, class: usize, slot_of: impl Fn(&E) -> u64 + Copy) {
        let table = &mut self.tables[class & self.mask];
        let before = table.bytes();
        table.fit(slot_of);
        self.bytes = self.bytes + table.bytes() - before;
    }

    /// Merges the entries of one class, none of which is here, by moving the fewer of both. Gives how many those were.
    pub(super) fn merge(
        &mut self,
        class: usize,
        from: Marked<E>,
        slot_of: impl Fn(&E) -> u64 + Copy,
    ) -> usize {
        let mine = std::mem::take(&mut self.tables[class]);
        self.bytes -= mine.bytes();
        self.len += from.len();
        let (mut all, fewer) = if from.len() > mine.len() { (from, mine) } else { (mine, from) };
        let moved = fewer.len();
        for (entry, marks) in fewer {
            all.insert(slot_of(&entry), entry, marks, moved, slot_of);
        }
        self.bytes += all.bytes();
        self.tables[class] = all;
        moved
    }

    /// The same memory, with nothing in it.
    pub(super) fn emptied(mut self) -> Self {
        self.tables.iter_mut().for_each(Marked::clear);
        Classes { len: 0, ..self }
    }

    /// How many classes there are.
    pub(super) fn classes(&self) -> usize {
        self.tables.len()
    }

    /// Takes the tables apart: one per class.
    pub(super) fn into_tables(self) -> Vec<Marked<E>> {
        self.tables
    }
}

/// The class of a slot among so many: for tables that were taken apart.
pub(super) fn class_among(slot: u64, classes: usize) -> usize {
    class_of(slot, classes - 1)
}

#[cfg(test)]
#[path = "classes_tests.rs"]
mod tests;
