//! Random numbers that depend on a seed and a record's index only, so that any subtask can make any record.

use std::convert::Infallible;

use rand_core::{Rng, TryRng};
use rand_pcg::Pcg64Mcg;

/// The random numbers of one record. Not for secrets. Its sequence for a seed and an index is part of the contract:
/// golden tests hold it.
///
/// It implements `rand_core`'s traits, so the distributions of the `rand` crates work with it.
#[derive(Clone, Debug)]
pub struct Random(Pcg64Mcg);

impl Random {
    /// The numbers of record `index` of the stream that `seed` names.
    #[inline]
    pub fn of(seed: u64, index: u64) -> Self {
        // Neighbouring indices and seeds must give unrelated states, so both halves go through a mixer.
        let a = mix(seed ^ 0x9e37_79b9_7f4a_7c15);
        let low = mix(a ^ mix(index));
        let high = mix(low ^ a.rotate_left(32));
        Random(Pcg64Mcg::new((u128::from(high) << 64) | u128::from(low)))
    }

    /// Any `u64`, all equally likely.
    #[inline]
    pub fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`, all equally likely (to within n / 2^64).
    ///
    /// # Panics
    /// When `n` is 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "no number is below 0");
        ((u128::from(self.any()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `[0, 1)`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.any() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with this probability.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A number below `n`, low ones much likelier: the share of the first `x` of all is `x^(1/skew)`. A skew of 1 is
    /// uniform; with 3 the first 1 % of the numbers take 22 % of the draws.
    ///
    /// # Panics
    /// When `n` is 0.
    #[inline]
    pub fn skewed_below(&mut self, n: u64, skew: i32) -> u64 {
        assert!(n > 0, "no number is below 0");
        ((self.unit().powi(skew) * n as f64) as u64).min(n - 1)
    }
}

/// splitmix64's finaliser.
#[inline]
fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl TryRng for Random {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.0.next_u32())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.next_u64())
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill_bytes(out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_sequence() {
        let mut r = Random::of(42, 7);
        assert_eq!([r.any(), r.any()], [15_705_729_037_483_840_319, 17_652_040_974_988_505_695]);
        assert_eq!(Random::of(0, 0).any(), 9_598_851_242_394_995_443);
    }

    #[test]
    fn neighbours_are_unrelated() {
        let mean = (0..10_000).map(|i| Random::of(1, i).unit()).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        let mean = (0..10_000).map(|s| Random::of(s, 1).unit()).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    #[test]
    fn bounds_hold() {
        let mut r = Random::of(3, 3);
        for _ in 0..10_000 {
            assert!(r.below(7) < 7);
            assert!(r.skewed_below(7, 3) < 7);
        }
        let low = (0..10_000).filter(|_| r.skewed_below(1000, 3) < 10).count();
        assert!((1_900..2_500).contains(&low), "{low}");
    }
}
