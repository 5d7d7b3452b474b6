//! Evaluates a condition over one chunk in one pass: 64 users a word, no bitmap made in between.
//!
//! A condition narrows candidates: it is given the users that are left of a block of 4,096 and takes away those it does not hold
//! for. So what comes later in an `and` sees fewer users, and pages of numbers that nobody is left in are not read. The commonest
//! condition, an `and` of values that many users have, is a loop of its own whose words stay in registers.
// HOT: no allocation per block or user.

use super::PAGE;
use super::column::{Column, IntPage, SetPage};
use super::locals::{Posting, WORDS, each_bit};
use super::number::{Bins, Listed, Range};

/// Words of a block.
const BLOCK: usize = 64;
/// Words of a page of users.
const PAGE_WORDS: usize = PAGE / 64;
/// Values that the loop with words in registers takes at once.
const MOST_AT_ONCE: usize = 8;

/// Binary digits in which [`Cond::AtLeast`] counts.
const DIGITS: usize = 8;
/// Conditions that [`Cond::AtLeast`] can count.
pub(crate) const MOST_COUNTED: usize = (1 << DIGITS) - 1;

type Block = [u64; BLOCK];

/// A condition over one chunk: everything looked up, nothing evaluated.
#[derive(Debug)]
pub(crate) enum Cond<'g> {
    Nobody,
    Everybody,
    One(Posting<'g>),
    /// Who is in any of them; `apart` says that nobody is in two.
    Any {
        postings: Vec<Posting<'g>>,
        apart: bool,
    },
    Numbers(&'g Bins, &'g Column<IntPage>, Range),
    Listed(&'g Bins, &'g Column<IntPage>, Listed<'g>),
    /// Whose set has this many elements, both ends included.
    Sized(&'g Column<SetPage>, u32, u32),
    /// One user, or a few, by position.
    Users(Vec<u16>),
    And(Vec<Cond<'g>>),
    Or(Vec<Cond<'g>>),
    Not(Box<Cond<'g>>),
    /// At least so many hold.
    AtLeast(usize, Vec<Cond<'g>>),
}

impl<'g> Cond<'g> {
    pub(crate) fn one(posting: Option<Posting<'g>>, users: u32) -> Self {
        match posting {
            Some(p) if p.len() == users => Cond::Everybody,
            Some(p) if p.len() > 0 => Cond::One(p),
            _ => Cond::Nobody,
        }
    }

    pub(crate) fn any(mut postings: Vec<Posting<'g>>, apart: bool, users: u32) -> Self {
        match postings.len() {
            0 | 1 => Cond::one(postings.pop(), users),
            _ => Cond::Any { postings, apart },
        }
    }

    /// All of them: cheapest first, then smallest.
    pub(crate) fn all(parts: Vec<Cond<'g>>, users: u32) -> Self {
        let mut kept = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Cond::Nobody => return Cond::Nobody,
                Cond::Everybody => {}
                Cond::And(inner) => kept.extend(inner),
                part => kept.push(part),
            }
        }
        kept.sort_by_cached_key(|part| (part.class(), part.at_most(users)));
        match kept.len() {
            0 | 1 => kept.pop().unwrap_or(Cond::Everybody),
            _ => Cond::And(kept),
        }
    }

    pub(crate) fn either(parts: Vec<Cond<'g>>, users: u32) -> Self {
        let mut kept = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Cond::Everybody => return Cond::Everybody,
                Cond::Nobody => {}
                Cond::Or(inner) => kept.extend(inner),
                part => kept.push(part),
            }
        }
        // What many match is found first: fewer candidates are left for the others.
        kept.sort_by_cached_key(|part| (part.class(), u32::MAX - part.at_most(users)));
        match kept.len() {
            0 | 1 => kept.pop().unwrap_or(Cond::Nobody),
            _ => Cond::Or(kept),
        }
    }

    pub(crate) fn not(self) -> Self {
        match self {
            Cond::Nobody => Cond::Everybody,
            Cond::Everybody => Cond::Nobody,
            Cond::Not(inner) => *inner,
            part => Cond::Not(Box::new(part)),
        }
    }

    /// What it reads, for people.
    pub(crate) fn reads(&self) -> &'static str {
        match self {
            Cond::Nobody | Cond::Everybody => "nothing",
            Cond::One(Posting::Bits(_)) => "bits",
            Cond::One(Posting::List(_)) => "list",
            Cond::Any { .. } => "union",
            Cond::Numbers(..) => "bins",
            Cond::Listed(..) => "bins of a list",
            Cond::Sized(..) => "sizes",
            Cond::Users(_) => "ids",
            Cond::And(_) | Cond::Or(_) | Cond::Not(_) | Cond::AtLeast(..) => "combined",
        }
    }

    /// How dear it is to evaluate.
    fn class(&self) -> u8 {
        match self {
            Cond::Nobody | Cond::Everybody | Cond::One(_) | Cond::Users(_) => 0,
            Cond::Any { .. } => 1,
            Cond::And(_) | Cond::Or(_) | Cond::Not(_) | Cond::AtLeast(..) => 2,
            Cond::Numbers(..) => 3,
            Cond::Listed(..) | Cond::Sized(..) => 4,
        }
    }

    /// No more users than this match.
    fn at_most(&self, users: u32) -> u32 {
        let least = |parts: &[Cond<'_>]| parts.iter().map(|p| p.at_most(users)).min().unwrap_or(users);
        let sum = |parts: &[Cond<'_>]| parts.iter().fold(0u32, |sum, p| sum.saturating_add(p.at_most(users)));
        let most = match self {
            Cond::Nobody => 0,
            Cond::One(p) => p.len(),
            Cond::Users(list) => list.len() as u32,
            Cond::Any { postings, .. } => postings.iter().map(Posting::len).fold(0, u32::saturating_add),
            Cond::And(parts) => least(parts),
            Cond::Or(parts) => sum(parts),
            _ => users,
        };
        most.min(users)
    }

    /// Counts who matches among the first `users` of the chunk.
    pub(crate) fn count(&self, users: u32) -> u32 {
        match self {
            Cond::Nobody => return 0,
            Cond::Everybody => return users,
            Cond::One(p) => return p.len(),
            Cond::Any { postings, apart: true } => return postings.iter().map(Posting::len).sum(),
            Cond::Not(inner) => return users - inner.count(users),
            Cond::And(parts) if parts.len() <= MOST_AT_ONCE => {
                if let Some(count) = count_bits(parts) {
                    return count;
                }
            }
            _ => {}
        }
        let mut count = 0;
        self.blocks(users, |_, block| count += block.iter().map(|word| word.count_ones()).sum::<u32>());
        count
    }

    /// Sets the bits of who matches among the first `users` of the chunk; the others are 0.
    pub(crate) fn fill(&self, users: u32, into: &mut [u64; WORDS]) {
        into.fill(0);
        self.blocks(users, |at, block| into[at * BLOCK..][..BLOCK].copy_from_slice(block));
    }

    fn blocks(&self, users: u32, mut each: impl FnMut(usize, &Block)) {
        let users = users as usize;
        for at in 0..users.div_ceil(BLOCK * 64) {
            let mut block: Block = [!0; BLOCK];
            let here = users - at * BLOCK * 64;
            if here < BLOCK * 64 {
                block[here / 64] &= (1 << (here % 64)) - 1;
                block[here / 64 + 1..].fill(0);
            }
            self.narrow(at, &mut block);
            each(at, &block);
        }
    }

    /// Leaves of the candidates in block `at` those that match.
    fn narrow(&self, at: usize, left: &mut Block) {
        match self {
            Cond::Nobody => left.fill(0),
            Cond::Everybody => {}
            Cond::One(Posting::Bits(bits)) => and(left, &bits.words()[at * BLOCK..]),
            Cond::One(Posting::List(list)) => narrow_to(list, at, left),
            Cond::Users(list) => narrow_to(list, at, left),
            Cond::Any { postings, .. } => {
                let mut any = [0; BLOCK];
                for posting in postings {
                    match posting {
                        Posting::Bits(bits) => or(&mut any, &bits.words()[at * BLOCK..]),
                        Posting::List(list) => mark(list, at, &mut any),
                    }
                }
                and(left, &any);
            }
            Cond::Numbers(bins, numbers, range) => {
                pages(bins.users(), at, left, |page, first, word, candidates| {
                    range.narrow(page, word, candidates, |slot| numbers.value(first + slot as u16))
                });
            }
            Cond::Listed(bins, numbers, list) => {
                pages(bins.users(), at, left, |page, first, word, candidates| {
                    list.narrow(page, word, candidates, |slot| numbers.value(first + slot as u16))
                });
            }
            Cond::Sized(column, low, high) => {
                pages(column, at, left, |page, _, word, candidates| {
                    sized(page, word, candidates, *low, *high)
                });
            }
            Cond::And(parts) => {
                for part in parts {
                    part.narrow(at, left);
                    if is_empty(left) {
                        return;
                    }
                }
            }
            Cond::Or(parts) => {
                let mut rest = *left;
                for part in parts {
                    let mut found = rest;
                    part.narrow(at, &mut found);
                    without(&mut rest, &found);
                    if is_empty(&rest) {
                        return;
                    }
                }
                without(left, &rest);
            }
            Cond::Not(inner) => {
                let mut found = *left;
                inner.narrow(at, &mut found);
                without(left, &found);
            }
            Cond::AtLeast(needed, parts) => at_least(*needed, parts, at, left),
        }
    }
}

/// Counts how many of the parts hold for each user in binary, a word per binary digit, and keeps who reaches the number.
fn at_least(needed: usize, parts: &[Cond<'_>], at: usize, left: &mut Block) {
    let digits = ((usize::BITS - parts.len().leading_zeros()) as usize).min(DIGITS);
    let mut counts = [[0u64; BLOCK]; DIGITS];
    for part in parts {
        let mut carry = *left;
        part.narrow(at, &mut carry);
        for count in &mut counts[..digits] {
            for (digit, carry) in count.iter_mut().zip(&mut carry) {
                (*digit, *carry) = (*digit ^ *carry, *digit & *carry);
            }
        }
    }
    if needed >> digits != 0 {
        return left.fill(0);
    }
    for (word, left) in left.iter_mut().enumerate() {
        // From the highest digit: above is decided, equal goes on.
        let (mut above, mut equal) = (0u64, !0u64);
        for digit in (0..digits).rev() {
            let has = counts[digit][word];
            if needed >> digit & 1 == 1 {
                equal &= has;
            } else {
                above |= equal & has;
                equal &= !has;
            }
        }
        *left &= above | equal;
    }
}

/// Counts who is in all of them, if each is a bit per user.
fn count_bits(parts: &[Cond<'_>]) -> Option<u32> {
    let mut words: [&[u64; WORDS]; MOST_AT_ONCE] = [&[0; WORDS]; MOST_AT_ONCE];
    for (place, part) in words.iter_mut().zip(parts) {
        let Cond::One(Posting::Bits(bits)) = part else { return None };
        *place = bits.words();
    }
    let first = |n: usize| &words[..n];
    Some(match parts.len() {
        2 => in_all::<2>(first(2)),
        3 => in_all::<3>(first(3)),
        4 => in_all::<4>(first(4)),
        5 => in_all::<5>(first(5)),
        6 => in_all::<6>(first(6)),
        7 => in_all::<7>(first(7)),
        8 => in_all::<8>(first(8)),
        _ => return None,
    })
}

/// The loop with words in registers: eight of each at a time, for a known number of them.
fn in_all<const N: usize>(words: &[&[u64; WORDS]]) -> u32 {
    let parts: [&[[u64; 8]]; N] = std::array::from_fn(|n| words[n].as_chunks::<8>().0);
    let mut counts = [0u64; 8];
    for at in 0..WORDS / 8 {
        let mut all = parts[0][at];
        for part in &parts[1..] {
            let other = &part[at];
            for lane in 0..8 {
                all[lane] &= other[lane];
            }
        }
        for lane in 0..8 {
            counts[lane] += u64::from(all[lane].count_ones());
        }
    }
    counts.iter().sum::<u64>() as u32
}

fn and(left: &mut Block, other: &[u64]) {
    left.iter_mut().zip(other).for_each(|(word, other)| *word &= other);
}

fn or(left: &mut Block, other: &[u64]) {
    left.iter_mut().zip(other).for_each(|(word, other)| *word |= other);
}

fn without(left: &mut Block, other: &Block) {
    left.iter_mut().zip(other).for_each(|(word, other)| *word &= !other);
}

fn is_empty(block: &Block) -> bool {
    block.iter().fold(0, |any, word| any | word) == 0
}

/// Sets the bits of those of a rising list that are in block `at`.
fn mark(list: &[u16], at: usize, into: &mut Block) {
    let first = at * BLOCK * 64;
    let from = list.partition_point(|local| (*local as usize) < first);
    for local in &list[from..] {
        let place = *local as usize - first;
        let Some(word) = into.get_mut(place / 64) else { break };
        *word |= 1 << (place % 64);
    }
}

fn narrow_to(list: &[u16], at: usize, left: &mut Block) {
    let mut some = [0; BLOCK];
    mark(list, at, &mut some);
    and(left, &some);
}

/// Shows each word of users that has candidates with its page and the first user of that; without a page there is nobody.
fn pages<P: Clone>(
    column: &Column<P>,
    at: usize,
    left: &mut Block,
    mut narrow: impl FnMut(&P, u16, usize, u64) -> u64,
) {
    for (page, words) in left.chunks_exact_mut(PAGE_WORDS).enumerate() {
        if words.iter().all(|word| *word == 0) {
            continue;
        }
        let first = ((at * BLOCK + page * PAGE_WORDS) * 64) as u16;
        match column.page(first) {
            Some(page) => {
                for (at, word) in words.iter_mut().enumerate() {
                    *word = narrow(page, first, at, *word);
                }
            }
            None => words.fill(0),
        }
    }
}

fn sized(page: &SetPage, word: usize, candidates: u64, low: u32, high: u32) -> u64 {
    let fits = |slot: &u16| {
        let length = page.lists.get(word * 64 + *slot as usize).len() as u32;
        low <= length && length <= high
    };
    each_bit(&[candidates & page.has[word]]).filter(fits).fold(0, |found, slot| found | 1 << slot)
}
