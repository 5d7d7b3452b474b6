//! How pages of columns, stamps and set elements are written, format 1: frozen by golden bytes.
//!
//! A page holds the first `n` of its users, those behind have nothing; texts are numbers here, see the dictionary.

use super::super::PAGE;
use super::super::column::{EnumPage, IntPage, NONE, SetPage};
use super::super::element::{ELEMENT_PAGE, ElementPage};
use super::super::packed::Packed;
use super::super::stamp::{NEVER, StampPage};
use super::bytes::{Bad, Input, bits, ints, ordered, signed, varint};
use std::fmt::Debug;

/// A page that can be written and read back alike.
pub(crate) trait Page: Debug + Send + Sync + 'static {
    /// Appends its bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads what [`encode`](Self::encode) wrote.
    fn decode(input: &mut Input<'_>) -> Result<Self, Bad>
    where
        Self: Sized;
}

/// `n | run of n: value number + 1, or 0 for none`.
impl Page for EnumPage {
    fn encode(&self, out: &mut Vec<u8>) {
        let n = self.0.iter().rposition(|v| *v != NONE).map_or(0, |last| last + 1);
        varint(out, n as u64);
        ints(out, self.0[..n].iter().map(|v| u64::from(v.wrapping_add(1))));
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, Bad> {
        let mut page = EnumPage::default();
        let n = input.count(PAGE)?;
        for (slot, value) in page.0.iter_mut().zip(input.ints(n, u64::from(u32::MAX))?) {
            *slot = (value as u32).wrapping_sub(1);
        }
        Ok(page)
    }
}

/// `n | n bits: who has a value | run of their values, the sign bit flipped`.
impl Page for IntPage {
    fn encode(&self, out: &mut Vec<u8>) {
        let n = used(&self.has);
        varint(out, n as u64);
        bits(out, &self.has, n);
        let values: Vec<u64> = (0..n).filter_map(|slot| self.get(slot)).map(ordered).collect();
        ints(out, values.iter().copied());
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, Bad> {
        let n = input.count(PAGE)?;
        let mut page = IntPage { has: input.bits(n)?, ..IntPage::default() };
        let held = (0..n).filter(|slot| page.has[slot / 64] >> (slot % 64) & 1 == 1);
        let slots: Vec<usize> = held.collect();
        for (slot, value) in slots.iter().zip(input.ints(slots.len(), u64::MAX)?) {
            page.values[*slot] = signed(value);
        }
        Ok(page)
    }
}

/// `n | n bits: who has a set | run of n lengths | run of all value numbers`.
impl Page for SetPage {
    fn encode(&self, out: &mut Vec<u8>) {
        let n = used(&self.has);
        varint(out, n as u64);
        bits(out, &self.has, n);
        ints(out, (0..n).map(|slot| self.lists.get(slot).len() as u64));
        ints(out, self.lists.items().iter().map(|v| u64::from(*v)));
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, Bad> {
        let n = input.count(PAGE)?;
        let has = input.bits(n)?;
        let lengths = Lengths::read(input, n)?;
        let mut values = input.ints(lengths.total, u64::from(NONE - 1))?;
        let mut lists = Packed::default();
        for (slot, length) in lengths.each.enumerate() {
            if length > 0 && has[slot / 64] >> (slot % 64) & 1 == 0 {
                return Err(Bad("elements belong to a user without a set"));
            }
            lists.append(slot, values.by_ref().take(length as usize).map(|v| v as u32));
        }
        Ok(SetPage { has, lists })
    }
}

const NARROW: u8 = 0;
const WIDE: u8 = 1;

/// `0 | base: i64 LE | n | run of n offsets`, or `1 | n | run of n times, the sign bit flipped`.
impl Page for StampPage {
    fn encode(&self, out: &mut Vec<u8>) {
        let n = (0..PAGE).rev().find(|slot| self.get(*slot) != NEVER).map_or(0, |last| last + 1);
        match self {
            StampPage::Narrow { base, offsets } => {
                out.push(NARROW);
                out.extend_from_slice(&base.to_le_bytes());
                varint(out, n as u64);
                ints(out, offsets[..n].iter().map(|o| u64::from(*o)));
            }
            StampPage::Wide(times) => {
                out.push(WIDE);
                varint(out, n as u64);
                ints(out, times[..n].iter().map(|t| ordered(*t)));
            }
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, Bad> {
        if kind(input)? == NARROW {
            let base = base(input)?;
            let n = input.count(PAGE)?;
            let mut offsets = [0; PAGE];
            for (slot, offset) in offsets.iter_mut().zip(input.ints(n, u64::from(u32::MAX))?) {
                *slot = offset as u32;
            }
            return Ok(StampPage::Narrow { base, offsets });
        }
        let n = input.count(PAGE)?;
        let mut times = Box::new([NEVER; PAGE]);
        for (slot, time) in times.iter_mut().zip(input.ints(n, u64::MAX)?) {
            *slot = signed(time);
        }
        Ok(StampPage::Wide(times))
    }
}

/// `0 | base: i64 LE` or `1`, then `n | run of n lengths | run of all value numbers, ascending for each user | run of all
/// offsets, or of all times with the sign bit flipped`.
impl Page for ElementPage {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ElementPage::Narrow { base, lists } => {
                out.push(NARROW);
                out.extend_from_slice(&base.to_le_bytes());
                elements(out, lists, |offset| u64::from(*offset));
            }
            ElementPage::Wide(lists) => {
                out.push(WIDE);
                elements(out, lists, |time| ordered(*time));
            }
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, Bad> {
        Ok(if kind(input)? == NARROW {
            let base = base(input)?;
            ElementPage::Narrow { base, lists: element_lists(input, u64::from(u32::MAX), |o| o as u32)? }
        } else {
            ElementPage::Wide(element_lists(input, u64::MAX, signed)?)
        })
    }
}

fn elements<T: Copy + PartialEq>(
    out: &mut Vec<u8>,
    lists: &Packed<(u32, T), ELEMENT_PAGE>,
    time: impl Fn(&T) -> u64 + Clone,
) {
    let n = (0..ELEMENT_PAGE).rev().find(|slot| !lists.get(*slot).is_empty()).map_or(0, |last| last + 1);
    varint(out, n as u64);
    ints(out, (0..n).map(|slot| lists.get(slot).len() as u64));
    ints(out, lists.items().iter().map(|e| u64::from(e.0)));
    ints(out, lists.items().iter().map(|e| time(&e.1)));
}

fn element_lists<T: Copy + PartialEq>(
    input: &mut Input<'_>,
    most: u64,
    time: impl Fn(u64) -> T,
) -> Result<Packed<(u32, T), ELEMENT_PAGE>, Bad> {
    let n = input.count(ELEMENT_PAGE)?;
    let lengths = Lengths::read(input, n)?;
    let values = input.ints(lengths.total, u64::from(NONE - 1))?;
    let mut all = values.zip(input.ints(lengths.total, most)?).map(|(v, t)| (v as u32, time(t)));
    let mut lists = Packed::default();
    for (slot, length) in lengths.each.enumerate() {
        lists.append(slot, all.by_ref().take(length as usize));
        if !lists.get(slot).is_sorted_by(|a, b| a.0 < b.0) {
            return Err(Bad("the elements of a set are not in order"));
        }
    }
    Ok(lists)
}

/// The lengths of a page's lists, and their sum, which fits the ends of a [`Packed`].
struct Lengths<'a> {
    each: super::bytes::Ints<'a>,
    total: usize,
}

impl<'a> Lengths<'a> {
    fn read(input: &mut Input<'a>, n: usize) -> Result<Self, Bad> {
        let each = input.ints(n, u64::from(u32::MAX))?;
        let total: u64 = each.clone().sum();
        let total = u32::try_from(total).map_err(|_| Bad("a count is too large"))? as usize;
        Ok(Lengths { each, total })
    }
}

/// How many users lie up to the last that has something.
fn used(has: &[u64]) -> usize {
    let last = has.iter().rposition(|word| *word != 0);
    last.map_or(0, |word| word * 64 + 64 - has[word].leading_zeros() as usize)
}

fn kind(input: &mut Input<'_>) -> Result<u8, Bad> {
    match input.byte()? {
        kind @ (NARROW | WIDE) => Ok(kind),
        _ => Err(Bad("it is of no known kind")),
    }
}

/// A base that every offset can be added to.
fn base(input: &mut Input<'_>) -> Result<i64, Bad> {
    input
        .i64()?
        .checked_add(i64::from(u32::MAX))
        .map(|n| n - i64::from(u32::MAX))
        .ok_or(Bad("a time is out of range"))
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
