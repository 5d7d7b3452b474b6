//! The index of a number tag in one chunk: answers ranges without reading the numbers, but for those at a range's two ends.
//!
//! While a chunk has few distinct numbers, each has its users, like a value of an enum tag. With more, the chunk is cut into
//! up to 256 bins of about as many users each, and every user has the number of its bin in a byte of its own. A range is then a
//! comparison of bytes; only who lies in the two bins that the range cuts through is looked at. Bits in slices would read, and
//! cumulative bitmaps per bin would change, many bitmaps where this does one byte (ADR 0021). Bins lie apart from the numbers: drawing them anew changes nothing that a checkpoint would write again.

use super::PAGE;
use super::column::{Column, IntPage};
use super::heap::{Heap, flat, shared};
use super::locals::{Locals, Posting};
use std::sync::Arc;

/// Distinct numbers a chunk may have while each has its users.
const FEW: usize = 32;
/// Bins are drawn anew after as many changes as there were numbers, but not sooner than this.
const REDRAW: u32 = 4096;
/// Numbers looked at to draw bins.
const SAMPLE: usize = 4096;

/// How the numbers of a chunk are found.
#[derive(Debug, Clone)]
pub(crate) enum NumberIndex {
    /// The users of each number, by number.
    Few(Vec<(i64, Locals)>),
    Bins(Bins),
}

/// Where the bins of a chunk begin, and who is in which.
#[derive(Debug, Clone)]
pub(crate) struct Bins {
    /// Rising; bin `n` begins at bound `n - 1`, bin 0 has no beginning.
    bounds: Arc<[i64]>,
    users: Column<BinPage>,
    /// Changes since they were drawn, and at how many they are drawn anew.
    changes: u32,
    redraw_at: u32,
}

/// Who of neighbouring users has a number, and in which bin it lies.
#[derive(Debug, Clone)]
pub(crate) struct BinPage {
    has: [u64; PAGE / 64],
    bins: [u8; PAGE],
}

impl Default for BinPage {
    fn default() -> Self {
        Self { has: [0; PAGE / 64], bins: [0; PAGE] }
    }
}

flat!(BinPage);

impl Heap for NumberIndex {
    fn heap(&self) -> usize {
        match self {
            NumberIndex::Few(few) => {
                few.capacity() * size_of::<(i64, Locals)>()
                    + few.iter().map(|(_, users)| users.heap()).sum::<usize>()
            }
            NumberIndex::Bins(bins) => shared(&bins.bounds) + bins.users.heap(),
        }
    }
}

impl Default for NumberIndex {
    fn default() -> Self {
        NumberIndex::Few(Vec::new())
    }
}

impl NumberIndex {
    /// The index of a column.
    pub(crate) fn of(forward: &Column<IntPage>) -> Self {
        match Self::each(forward) {
            Some(few) => {
                let few = few.into_iter().map(|(number, users)| (number, Locals::of_sorted(users)));
                NumberIndex::Few(few.collect())
            }
            None => NumberIndex::Bins(Bins::draw(forward)),
        }
    }

    /// The users of each number, by number, if there are few numbers.
    fn each(forward: &Column<IntPage>) -> Option<Vec<(i64, Vec<u16>)>> {
        let mut few: Vec<(i64, Vec<u16>)> = Vec::new();
        for (first, page) in forward.pages() {
            for (slot, number) in (0..PAGE).filter_map(|slot| Some((slot, page.get(slot)?))) {
                let local = (first + slot) as u16;
                match few.binary_search_by_key(&number, |f| f.0) {
                    Ok(at) => few[at].1.push(local),
                    Err(_) if few.len() == FEW => return None,
                    Err(at) => few.insert(at, (number, vec![local])),
                }
            }
        }
        Some(few)
    }

    /// Notes that a user's number is another now, as the column says already.
    #[inline]
    pub(crate) fn put(&mut self, forward: &Column<IntPage>, local: u16, old: Option<i64>, new: Option<i64>) {
        match self {
            NumberIndex::Few(few) => {
                if let Some(Ok(at)) = old.map(|old| few.binary_search_by_key(&old, |f| f.0)) {
                    few[at].1.remove(local);
                    if few[at].1.len() == 0 {
                        few.remove(at);
                    }
                }
                let Some(new) = new else { return };
                match few.binary_search_by_key(&new, |f| f.0) {
                    Ok(at) => few[at].1.insert(local),
                    Err(_) if few.len() == FEW => *self = NumberIndex::Bins(Bins::draw(forward)),
                    Err(at) => few.insert(at, (new, Locals::of_sorted(vec![local]))),
                }
            }
            NumberIndex::Bins(bins) => {
                bins.put(local, new);
                bins.changes += 1;
                if bins.changes >= bins.redraw_at {
                    *bins = Bins::draw(forward);
                }
            }
        }
    }
}

impl Bins {
    /// Cuts what is there into bins of about as many users.
    #[cold]
    fn draw(forward: &Column<IntPage>) -> Self {
        let all = forward.pages().flat_map(|(_, page)| (0..PAGE).filter_map(|slot| page.get(slot)));
        let mut numbers: Vec<i64> = all.collect();
        let count = numbers.len();
        if count > SAMPLE {
            let step = count / SAMPLE;
            numbers = numbers.into_iter().step_by(step).collect();
        }
        numbers.sort_unstable();
        let at = |bin: usize| numbers.get(bin * numbers.len() / 256).copied();
        let mut bounds: Vec<i64> = (1..256).filter_map(at).collect();
        bounds.dedup();
        let (users, redraw_at) = (Column::default(), REDRAW.max(count as u32));
        let mut bins = Bins { bounds: bounds.into(), users, changes: 0, redraw_at };
        for (first, page) in forward.pages() {
            let mut drawn = BinPage { has: page.has, ..BinPage::default() };
            for slot in 0..PAGE {
                drawn.bins[slot] = page.get(slot).map_or(0, |n| bins.bin(n));
            }
            bins.users.put_page(first as u16, drawn);
        }
        bins
    }

    #[inline]
    fn put(&mut self, local: u16, number: Option<i64>) {
        let (slot, bin) = (local as usize % PAGE, number.map_or(0, |n| self.bin(n)));
        let (page, bit) = (self.users.page_mut(local), 1 << (slot % 64));
        page.bins[slot] = bin;
        let word = &mut page.has[slot / 64];
        *word = if number.is_some() { *word | bit } else { *word & !bit };
    }

    /// The bins of users.
    pub(crate) fn users(&self) -> &Column<BinPage> {
        &self.users
    }

    /// Which bin a number lies in.
    #[inline]
    pub(crate) fn bin(&self, number: i64) -> u8 {
        self.bounds.partition_point(|bound| *bound <= number) as u8
    }

    /// How to find the numbers from `low` to `high`, both included.
    pub(crate) fn range(&self, low: i64, high: i64) -> Range {
        let (first, last) = (self.bin(low), self.bin(high));
        // The whole of a bin is inside when the range does not begin after it does, or end before it does.
        let begins = first.checked_sub(1).map_or(i64::MIN, |at| self.bounds[at as usize]);
        let ends = self.bounds.get(last as usize).map_or(i64::MAX, |next| next - 1);
        Range { low, high, first, last, cuts_first: low > begins, cuts_last: high < ends }
    }
}

/// A range of numbers over bins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    low: i64,
    high: i64,
    first: u8,
    last: u8,
    /// Only a part of the first and of the last bin is inside.
    cuts_first: bool,
    cuts_last: bool,
}

impl Range {
    /// Leaves of the candidates among 64 users those whose number, by position in the page, is inside.
    #[inline]
    pub(crate) fn narrow(
        &self,
        page: &BinPage,
        word: usize,
        candidates: u64,
        number: impl Fn(usize) -> Option<i64>,
    ) -> u64 {
        let candidates = candidates & page.has[word];
        if candidates == 0 {
            return 0;
        }
        let Some(bins) = page.bins.as_chunks::<64>().0.get(word) else { return 0 };
        let (first, span) = (self.first, self.last - self.first);
        let mut inside = pack(bins, |bin| bin.wrapping_sub(first) <= span) & candidates;
        let (cut_first, cut_last) = (self.cuts_first, self.cuts_last);
        if cut_first | cut_last {
            // Where only one end cuts, both names mean its bin.
            let a = if cut_first { self.first } else { self.last };
            let b = if cut_last { self.last } else { self.first };
            let mut unsure = pack(bins, |bin| (bin == a) | (bin == b)) & inside;
            while unsure != 0 {
                let bit = unsure.trailing_zeros() as usize;
                unsure &= unsure - 1;
                let inside_too = number(word * 64 + bit).is_some_and(|n| self.low <= n && n <= self.high);
                inside &= !(u64::from(!inside_too) << bit);
            }
        }
        inside
    }
}

/// One bit per byte, by a test of each: compared sixteen at a time, then gathered by one multiplication per eight.
#[inline]
fn pack(bytes: &[u8; 64], test: impl Fn(u8) -> bool) -> u64 {
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let mut flags = [0u8; 64];
    for (flag, byte) in flags.iter_mut().zip(bytes) {
        *flag = u8::from(test(*byte));
    }
    let (eights, _) = flags.as_chunks::<8>();
    let bits = |eight: &[u8; 8]| u64::from_le_bytes(*eight).wrapping_mul(GATHER) >> 56;
    eights.iter().enumerate().fold(0, |word, (at, eight)| word | bits(eight) << (at * 8))
}

/// Whose number is in a rising list, by bins: a test of the byte first, then of the number.
#[derive(Debug, Clone)]
pub(crate) struct Listed<'p> {
    numbers: &'p [i64],
    bins: Box<[bool; 256]>,
}

impl<'p> Listed<'p> {
    pub(crate) fn new(bins: &Bins, numbers: &'p [i64]) -> Self {
        let mut hit = Box::new([false; 256]);
        numbers.iter().for_each(|n| hit[bins.bin(*n) as usize] = true);
        Listed { numbers, bins: hit }
    }

    /// Leaves of the candidates among 64 users those whose number, by position in the page, is in the list.
    #[inline]
    pub(crate) fn narrow(
        &self,
        page: &BinPage,
        word: usize,
        candidates: u64,
        number: impl Fn(usize) -> Option<i64>,
    ) -> u64 {
        let mut rest = candidates & page.has[word];
        let mut inside = 0;
        while rest != 0 {
            let bit = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let slot = word * 64 + bit;
            let hit = self.bins[page.bins[slot] as usize]
                && number(slot).is_some_and(|n| self.numbers.binary_search(&n).is_ok());
            inside |= u64::from(hit) << bit;
        }
        inside
    }
}

impl NumberIndex {
    /// The users of each number from `low` to `high`, if each has its own.
    pub(crate) fn few(&self, low: i64, high: i64) -> Option<impl Iterator<Item = (i64, Posting<'_>)>> {
        let NumberIndex::Few(few) = self else { return None };
        let from = few.partition_point(|f| f.0 < low);
        Some(
            few[from..]
                .iter()
                .take_while(move |f| f.0 <= high)
                .map(|(number, users)| (*number, users.view())),
        )
    }
}

#[cfg(test)]
#[path = "number_tests.rs"]
mod tests;
