//! Version stamps: the event time of the newest delta per user, in four bytes unless times lie 49 days apart.

use super::PAGE;

/// No delta yet; also older than any other time.
pub(crate) const NEVER: i64 = i64::MIN;

/// Half the range of a narrow page, so that times on both sides of its first fit.
const HALF: i64 = 1 << 31;

/// One time per user of a key group, in ms. Owned by the writer, not published: readers do not need it.
#[derive(Debug, Default)]
pub(crate) struct Stamps(Vec<Option<Page>>);

#[derive(Debug)]
enum Page {
    /// `base + offset - 1`; offset 0 is never.
    Narrow { base: i64, offsets: Box<[u32; PAGE]> },
    /// Times more than 24 days around the first one: plain.
    Wide(Box<[i64; PAGE]>),
}

impl Page {
    #[inline]
    fn get(&self, slot: usize) -> i64 {
        match self {
            Page::Narrow { base, offsets } => match offsets[slot] {
                0 => NEVER,
                n => base + i64::from(n - 1),
            },
            Page::Wide(times) => times[slot],
        }
    }
}

impl Stamps {
    #[inline]
    pub(crate) fn get(&self, local: u32) -> i64 {
        let at = local as usize / PAGE;
        self.0.get(at).and_then(Option::as_ref).map_or(NEVER, |p| p.get(local as usize % PAGE))
    }

    #[inline]
    pub(crate) fn set(&mut self, local: u32, time: i64) {
        let (at, slot) = (local as usize / PAGE, local as usize % PAGE);
        if at >= self.0.len() {
            self.0.resize_with(at + 1, || None);
        }
        let page = self.0[at].get_or_insert_with(|| Page::Narrow {
            base: time.clamp(i64::MIN + HALF, i64::MAX - 2 * HALF) - HALF,
            offsets: Box::new([0; PAGE]),
        });
        if let Page::Narrow { base, offsets } = page {
            let offset = time.checked_sub(*base).and_then(|d| u32::try_from(d.checked_add(1)?).ok());
            match offset {
                Some(n) if n > 0 => {
                    offsets[slot] = n;
                    return;
                }
                _ => *page = Page::Wide(Box::new(std::array::from_fn(|i| page.get(i)))),
            }
        }
        if let Page::Wide(times) = page {
            times[slot] = time;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn keeps_any_time(writes in prop::collection::vec((0u32..600, prop_oneof![
            1_511_544_000_000i64..1_512_544_000_000, any::<i64>(), Just(i64::MIN), Just(i64::MAX), -5i64..5
        ]), 0..200)) {
            let mut stamps = Stamps::default();
            let mut model = HashMap::new();
            for (user, time) in writes {
                stamps.set(user, time);
                model.insert(user, time);
                prop_assert_eq!(stamps.get(user), time);
            }
            for user in 0..700 {
                prop_assert_eq!(stamps.get(user), model.get(&user).copied().unwrap_or(NEVER));
            }
        }
    }
}
