//! The named shares of the budget, and the division of what is left among those that grow. Pure.

use std::fmt;

use serde::Serialize;

/// One named part of the memory of a process. All of them add up to the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Share {
    /// The program itself, and whatever it holds when the job starts.
    Base,
    /// What waits between tasks.
    Channels,
    /// The resident part of every thread.
    Stacks,
    /// What sources and sinks declare, and other parts of the engine beside.
    Connectors,
    /// The write-back caches of keyed state.
    StateCaches,
    /// RocksDB's block cache, one for all stores.
    BlockCache,
    /// RocksDB's write buffers, all stores together.
    WriteBuffers,
    /// The profile index.
    Index,
    /// What is left: the allocator's slack, snapshots, batches in hand, and whatever this plan does not know of.
    Headroom,
}

impl Share {
    /// Every share, in the order that they are printed.
    pub const ALL: [Share; 9] = [
        Share::Base,
        Share::Channels,
        Share::Stacks,
        Share::Connectors,
        Share::StateCaches,
        Share::BlockCache,
        Share::WriteBuffers,
        Share::Index,
        Share::Headroom,
    ];

    /// Those that take a part of what the others leave.
    pub(crate) const DIVIDED: [Share; 5] =
        [Share::StateCaches, Share::BlockCache, Share::WriteBuffers, Share::Index, Share::Headroom];

    /// Its name in metrics: `state_caches`.
    pub fn label(self) -> &'static str {
        match self {
            Share::Base => "base",
            Share::Channels => "channels",
            Share::Stacks => "stacks",
            Share::Connectors => "connectors",
            Share::StateCaches => "state_caches",
            Share::BlockCache => "block_cache",
            Share::WriteBuffers => "write_buffers",
            Share::Index => "index",
            Share::Headroom => "headroom",
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Share::StateCaches => "state caches",
            Share::BlockCache => "block cache",
            Share::WriteBuffers => "write buffers",
            other => other.label(),
        })
    }
}

/// What one share wants of the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    /// Its weight among the others.
    pub(crate) weight: u64,
    /// It is never given less.
    pub(crate) least: u64,
}

/// Divides `rest` by weight, nobody getting less than its least: whoever would is given that, and the others divide what
/// then remains. The parts add up to `rest`; what does not divide goes to the last. None when the least of all do not fit.
pub(crate) fn divide(rest: u64, wants: &[Want]) -> Option<Vec<u64>> {
    let leasts = wants.iter().try_fold(0u64, |sum, want| sum.checked_add(want.least))?;
    if leasts > rest || wants.is_empty() {
        return None;
    }
    let mut given: Vec<Option<u64>> = vec![None; wants.len()];
    loop {
        let free = || wants.iter().zip(&given).filter(|(_, given)| given.is_none()).map(|(want, _)| want);
        let weights: u128 = free().map(|want| u128::from(want.weight)).sum();
        let left = rest - given.iter().flatten().sum::<u64>();
        let part = |want: &Want| match weights {
            0 => 0,
            // At most `left`, for the weight is one of those in the sum.
            _ => (u128::from(left) * u128::from(want.weight) / weights) as u64,
        };
        if free().all(|want| part(want) >= want.least) {
            let mut parts: Vec<u64> =
                wants.iter().zip(&given).map(|(want, given)| given.unwrap_or_else(|| part(want))).collect();
            let over = rest - parts.iter().sum::<u64>();
            *parts.last_mut()? += over;
            return Some(parts);
        }
        // Raising one to its least leaves less for the others: look again.
        let raised: Vec<bool> =
            wants.iter().zip(&given).map(|(w, given)| given.is_none() && part(w) < w.least).collect();
        for ((want, given), _) in wants.iter().zip(&mut given).zip(raised).filter(|(_, raised)| *raised) {
            *given = Some(want.least);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn want(weight: u64, least: u64) -> Want {
        Want { weight, least }
    }

    #[test]
    fn weights_divide_and_the_least_is_kept() {
        assert_eq!(divide(100, &[want(1, 0), want(3, 0)]), Some(vec![25, 75]));
        assert_eq!(divide(100, &[want(1, 40), want(3, 0)]), Some(vec![40, 60]));
        // Raising the first leaves the second with less than its own least.
        assert_eq!(divide(100, &[want(1, 40), want(3, 29), want(3, 0)]), Some(vec![40, 30, 30]));
        assert_eq!(divide(100, &[want(1, 40), want(3, 31), want(3, 0)]), Some(vec![40, 31, 29]));
        assert_eq!(divide(10, &[want(1, 0), want(1, 0), want(1, 0)]), Some(vec![3, 3, 4]));
        assert_eq!(
            divide(10, &[want(0, 2), want(0, 3)]),
            Some(vec![2, 8]),
            "without weights the last has it"
        );
        assert_eq!(divide(4, &[want(0, 2), want(0, 3)]), None);
        assert_eq!(divide(u64::MAX, &[want(1, u64::MAX), want(1, 1)]), None);
        assert_eq!(
            divide(u64::MAX, &[want(u64::MAX, 1), want(u64::MAX, 1)]).map(|p| p[0]),
            Some(u64::MAX / 2)
        );
    }

    proptest! {
        #[test]
        fn parts_add_up_and_follow_the_weights(
            rest in 0u64..1 << 40,
            wants in proptest::collection::vec((0u64..1000, 0u64..1 << 36), 1..8),
        ) {
            let wants: Vec<Want> = wants.into_iter().map(|(weight, least)| want(weight, least)).collect();
            let fits = wants.iter().map(|w| w.least).sum::<u64>() <= rest;
            let parts = divide(rest, &wants);
            prop_assert_eq!(parts.is_some(), fits);
            let Some(parts) = parts else { return Ok(()) };
            prop_assert_eq!(parts.iter().sum::<u64>(), rest);
            for (part, want) in parts.iter().zip(&wants) {
                prop_assert!(*part >= want.least);
            }
            // Of two that got more than their least, the heavier got no less; the last also has the remainder.
            let grown: Vec<_> = (wants.iter().zip(&parts).take(wants.len() - 1))
                .filter(|(want, part)| **part > want.least)
                .collect();
            for (a, of_a) in &grown {
                for (b, of_b) in &grown {
                    prop_assert!(a.weight > b.weight || *of_a <= *of_b || a.weight == b.weight && of_a == of_b);
                }
            }
        }
    }
}
