//! The few shapes that pages are made of: varints, texts, bits and runs of integers in as few bytes as the run needs.

use super::super::PAGE;

/// What is wrong with bytes that should have been a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bad(pub(super) &'static str);

/// Seven bits a byte, lowest first; the top bit says that more follow.
pub(super) fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Length in bytes, then the bytes.
pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// The first `n` bits of a bitmap, in as many bytes as they need.
pub(super) fn bits(out: &mut Vec<u8>, words: &[u64], n: usize) {
    out.extend(words.iter().flat_map(|w| w.to_le_bytes()).take(n.div_ceil(8)));
}

/// A run of integers: the least as a varint, the width in bytes (0, 1, 2, 4, 8), then each one's distance from the least,
/// little-endian. An empty run is nothing. Width 0, all alike, is for runs of up to [`PAGE`]: a damaged length cannot grow a
/// few bytes into gigabytes.
pub(super) fn ints(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = u64> + Clone) {
    let Some(least) = values.clone().min() else { return };
    let n = values.len();
    let width = match values.clone().map(|v| v - least).max().unwrap_or(0) {
        0 if n <= PAGE => 0,
        0..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => 8,
    };
    varint(out, least);
    out.push(width);
    let distances = values.map(|v| v - least);
    match width {
        0 => {}
        1 => out.extend(distances.map(|d| d as u8)),
        2 => out.extend(distances.flat_map(|d| (d as u16).to_le_bytes())),
        4 => out.extend(distances.flat_map(|d| (d as u32).to_le_bytes())),
        _ => out.extend(distances.flat_map(u64::to_le_bytes)),
    }
}

/// An `i64` as the `u64` of the same order.
pub(super) const fn ordered(n: i64) -> u64 {
    (n as u64) ^ (1 << 63)
}

/// The `i64` that [`ordered`] was given.
pub(super) const fn signed(n: u64) -> i64 {
    (n ^ (1 << 63)) as i64
}

/// Reads what the functions above wrote; every length is checked against what is there.
#[derive(Debug, Clone)]
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8], Bad> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(Bad("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Bad> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn i64(&mut self) -> Result<i64, Bad> {
        let (first, rest) = self.0.split_first_chunk::<8>().ok_or(Bad("it ends too early"))?;
        self.0 = rest;
        Ok(i64::from_le_bytes(*first))
    }

    pub(super) fn varint(&mut self) -> Result<u64, Bad> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                break;
            }
            n |= part << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(Bad("a number has more than 64 bits"))
    }

    /// A varint that is at most `most`.
    pub(super) fn count(&mut self, most: usize) -> Result<usize, Bad> {
        let n = self.varint()?;
        usize::try_from(n).ok().filter(|n| *n <= most).ok_or(Bad("a count is too large"))
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Bad> {
        let length = self.count(self.0.len())?;
        std::str::from_utf8(self.take(length)?).map_err(|_| Bad("a text is not UTF-8"))
    }

    /// The first `n` bits of a bitmap; those behind must be 0.
    pub(super) fn bits<const WORDS: usize>(&mut self, n: usize) -> Result<[u64; WORDS], Bad> {
        let mut words = [0u64; WORDS];
        for (i, byte) in self.take(n.div_ceil(8))?.iter().enumerate() {
            words[i / 8] |= u64::from(*byte) << (i % 8 * 8);
        }
        if (n..n.next_multiple_of(8)).any(|i| words[i / 64] >> (i % 64) & 1 == 1) {
            return Err(Bad("bits are set behind the last one"));
        }
        Ok(words)
    }

    /// A run of `n` integers, none above `most`.
    pub(super) fn ints(&mut self, n: usize, most: u64) -> Result<Ints<'a>, Bad> {
        if n == 0 {
            return Ok(Ints { least: 0, width: 1, bytes: &[], left: 0 });
        }
        let (least, width) = (self.varint()?, self.byte()? as usize);
        if !matches!(width, 0 | 1 | 2 | 4 | 8) || (width == 0 && n > PAGE) {
            return Err(Bad("the width of a run is none"));
        }
        let bytes = self.take(n.checked_mul(width).ok_or(Bad("it ends too early"))?)?;
        let run = Ints { least, width, bytes, left: n };
        let greatest = run.clone().map(|d| d.wrapping_sub(least)).max().unwrap_or(0);
        match least.checked_add(greatest) {
            Some(n) if n <= most => Ok(run),
            _ => Err(Bad("a number is out of range")),
        }
    }

    pub(super) fn end(&self) -> Result<(), Bad> {
        if self.0.is_empty() { Ok(()) } else { Err(Bad("bytes are left over")) }
    }
}

/// The integers of a run.
#[derive(Debug, Clone)]
pub(super) struct Ints<'a> {
    least: u64,
    width: usize,
    bytes: &'a [u8],
    left: usize,
}

impl Iterator for Ints<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        let mut distance = [0u8; 8];
        let (taken, rest) = self.bytes.split_at(self.width);
        distance[..self.width].copy_from_slice(taken);
        self.bytes = rest;
        Some(self.least.wrapping_add(u64::from_le_bytes(distance)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_come_back(values in prop_oneof![
            prop::collection::vec(any::<u64>(), 0..600),
            prop::collection::vec(5u64..9, 0..600),
            prop::collection::vec(Just(77u64), 0..600),
            prop::collection::vec(1u64 << 40..(1u64 << 40) + 70_000, 0..50),
        ], n in any::<u64>(), s in ".{0,20}") {
            let mut out = Vec::new();
            ints(&mut out, values.iter().copied());
            varint(&mut out, n);
            text(&mut out, &s);
            let mut input = Input(&out);
            prop_assert!(input.ints(values.len(), u64::MAX).unwrap().eq(values.iter().copied()));
            prop_assert_eq!(input.varint().unwrap(), n);
            prop_assert_eq!(input.text().unwrap(), s);
            prop_assert_eq!(input.end(), Ok(()));
            prop_assert_eq!(signed(ordered(n as i64)), n as i64);
            if let Some(&most) = values.iter().max().filter(|m| **m > 0) {
                prop_assert!(Input(&out).ints(values.len(), most).is_ok());
                prop_assert!(Input(&out).ints(values.len(), most - 1).is_err());
            }
        }

        #[test]
        fn bits_come_back(words: [u64; 4], n in 0usize..=256) {
            let held: [u64; 4] = std::array::from_fn(|w| match n.saturating_sub(w * 64) {
                0 => 0,
                64.. => words[w],
                rest => words[w] & ((1 << rest) - 1),
            });
            let mut out = Vec::new();
            bits(&mut out, &held, n);
            prop_assert_eq!(Input(&out).bits::<4>(n), Ok(held));
        }
    }

    #[test]
    fn long_varints_are_refused() {
        assert_eq!(Input(&[0xff; 9]).varint(), Err(Bad("it ends too early")));
        assert_eq!(Input(&[0xff; 20]).varint(), Err(Bad("a number has more than 64 bits")));
        let mut most = [0xff; 10];
        most[9] = 1;
        assert_eq!(Input(&most).varint(), Ok(u64::MAX));
        most[9] = 2;
        assert!(Input(&most).varint().is_err());
    }
}
