//! `Marked`: a hash table with a byte of marks for each entry, kept beside the entries so that a key and a number take no more
//! than that.
// HOT: `find` and `at_mut` are called per record: one probe; no allocation, no lock, no clock.

use hashbrown::HashTable;

/// Entries by slot, each with its marks. Where an entry lies it stays until the table is made anew, which only
/// [`insert`](Self::insert) into a full table and [`fit`](Self::fit) do.
#[derive(Debug)]
pub(super) struct Marked<E> {
    table: HashTable<E>,
    /// By bucket.
    marks: Vec<u8>,
}

impl<E> Default for Marked<E> {
    fn default() -> Self {
        Marked { table: HashTable::new(), marks: Vec::new() }
    }
}

impl<E> Marked<E> {
    fn with_capacity(entries: usize) -> Self {
        let table = HashTable::with_capacity(entries);
        let marks = if entries == 0 { Vec::new() } else { vec![0; table.num_buckets()] };
        Marked { table, marks }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// True when the next entry makes it anew, so that all of them move.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.table.len() == self.table.capacity()
    }

    /// The memory of the table; not what entries own elsewhere.
    pub(super) fn bytes(&self) -> usize {
        self.table.allocation_size() + self.marks.len()
    }

    /// How many places for entries there are; bucket numbers are below this.
    pub(super) fn buckets(&self) -> usize {
        self.marks.len()
    }

    /// The bucket of an entry.
    #[inline(always)]
    pub(super) fn find(&self, slot: u64, same: impl FnMut(&E) -> bool) -> Option<usize> {
        self.table.find_bucket_index(slot, same)
    }

    /// The entry of a bucket, if there is one.
    #[inline]
    pub(super) fn at(&self, bucket: usize) -> Option<&E> {
        self.table.get_bucket(bucket)
    }

    /// The entry of a bucket with its marks, if there is one.
    #[inline(always)]
    pub(super) fn at_mut(&mut self, bucket: usize) -> Option<(&mut E, &mut u8)> {
        self.table.get_bucket_mut(bucket).zip(self.marks.get_mut(bucket))
    }

    /// Adds an entry that is not there yet. An empty table that must grow makes room for so many as are expected.
    pub(super) fn insert(
        &mut self,
        slot: u64,
        entry: E,
        marks: u8,
        expected: usize,
        slot_of: impl Fn(&E) -> u64 + Copy,
    ) -> usize {
        if self.is_full() {
            self.make_room(expected, slot_of);
        }
        // There is room: nothing moves.
        let bucket = self.table.insert_unique(slot, entry, slot_of).bucket_index();
        self.marks[bucket] = marks;
        bucket
    }

    /// Makes room in a table that takes no more. One that is full of removed entries' tombstones is made anew at its size, where
    /// hashbrown would double it once it is half full: with entries coming and going it would never be fuller than that.
    fn make_room(&mut self, expected: usize, slot_of: impl Fn(&E) -> u64 + Copy) {
        let full = full(self.buckets());
        let room = match self.len() {
            0 => expected.max(1),
            len if len * 100 > full * 94 => full + 1,
            _ => full,
        };
        self.rebuild(room, slot_of);
    }

    /// Gives memory back when half of it will do.
    pub(super) fn fit(&mut self, slot_of: impl Fn(&E) -> u64 + Copy) {
        let half = self.buckets() / 2;
        if half >= 4 && self.len() * 100 < full(half) * 88 {
            self.rebuild(self.len() * 100 / 88, slot_of);
        }
    }

    fn rebuild(&mut self, room: usize, slot_of: impl Fn(&E) -> u64 + Copy) {
        let mut anew = Marked::with_capacity(room);
        for (entry, marks) in std::mem::take(self) {
            anew.insert(slot_of(&entry), entry, marks, 0, slot_of);
        }
        *self = anew;
    }

    /// Takes out the entry of a bucket, if there is one.
    pub(super) fn take(&mut self, bucket: usize) -> Option<(E, u8)> {
        let (entry, _) = self.table.get_bucket_entry(bucket).ok()?.remove();
        Some((entry, self.marks[bucket]))
    }

    pub(super) fn remove(&mut self, slot: u64, same: impl FnMut(&E) -> bool) -> Option<(E, u8)> {
        self.find(slot, same).and_then(|bucket| self.take(bucket))
    }

    /// Takes out the entries for which `keep`, given the entry and its marks, says no.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut E, &mut u8) -> bool) {
        for bucket in 0..self.buckets() {
            if self.at_mut(bucket).is_some_and(|(entry, marks)| !keep(entry, marks)) {
                self.take(bucket);
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&E, u8)> {
        let at = |(bucket, marks): (usize, &u8)| self.at(bucket).map(|entry| (entry, *marks));
        self.marks.iter().enumerate().filter_map(at)
    }

    /// The same memory, with nothing in it.
    pub(super) fn clear(&mut self) {
        self.table.clear();
    }
}

impl<E> IntoIterator for Marked<E> {
    type Item = (E, u8);
    type IntoIter = IntoIter<E>;

    fn into_iter(self) -> IntoIter<E> {
        IntoIter { from: self, next: 0 }
    }
}

/// What was in a table.
#[derive(Debug)]
pub(super) struct IntoIter<E> {
    from: Marked<E>,
    next: usize,
}

impl<E> Iterator for IntoIter<E> {
    type Item = (E, u8);

    fn next(&mut self) -> Option<(E, u8)> {
        while self.next < self.from.buckets() {
            self.next += 1;
            let taken = self.from.take(self.next - 1);
            if taken.is_some() {
                return taken;
            }
        }
        None
    }
}

/// What a table of so many buckets holds when it is full.
fn full(buckets: usize) -> usize {
    if buckets < 8 { buckets.saturating_sub(1) } else { buckets / 8 * 7 }
}
