//! Version stamps: the event time of the newest delta per user, in four bytes unless times lie 49 days apart.

use super::column::Column;
use super::heap::Heap;
use super::{CHUNK_BITS, PAGE};
use std::sync::Arc;

/// No delta yet; also older than any other time.
pub(crate) const NEVER: i64 = i64::MIN;

/// Half the range of four bytes, so that times on both sides of the first one fit.
const HALF: i64 = 1 << 31;

/// The base for offsets around `time`.
#[inline]
pub(crate) fn base_around(time: i64) -> i64 {
    time.clamp(i64::MIN + HALF, i64::MAX - 2 * HALF) - HALF
}

/// `time` as an offset above `base`: 1 or more; nothing if four bytes do not hold it.
#[inline]
pub(crate) fn offset_of(base: i64, time: i64) -> Option<u32> {
    time.checked_sub(base).and_then(|d| u32::try_from(d.checked_add(1)?).ok()).filter(|&n| n > 0)
}

/// The time an offset stands for; offset 0 is never.
#[inline]
pub(crate) fn time_of(base: i64, offset: u32) -> i64 {
    if offset == 0 { NEVER } else { base + i64::from(offset - 1) }
}

/// One time per user of a key group, in ms. Owned by the writer, not published: readers do not need it. Pages are shared
/// with what was frozen until they are touched again, so a clone copies a pointer per chunk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stamps(pub(crate) Vec<Arc<Column<StampPage>>>);

/// The times of neighbouring users.
#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every page is narrow, and it lies behind a pointer already"
)]
pub(crate) enum StampPage {
    /// Offsets above a base; see [`time_of`].
    Narrow { base: i64, offsets: [u32; PAGE] },
    /// Times more than 24 days around the first one: plain.
    Wide(Box<[i64; PAGE]>),
}

impl Heap for StampPage {
    fn heap(&self) -> usize {
        match self {
            StampPage::Narrow { .. } => 0,
            StampPage::Wide(times) => size_of_val(&**times),
        }
    }
}

impl Heap for Stamps {
    fn heap(&self) -> usize {
        self.0.heap()
    }
}

impl StampPage {
    #[inline]
    pub(crate) fn get(&self, slot: usize) -> i64 {
        match self {
            StampPage::Narrow { base, offsets } => time_of(*base, offsets[slot]),
            StampPage::Wide(times) => times[slot],
        }
    }

    #[inline]
    pub(crate) fn set(&mut self, slot: usize, time: i64) {
        if let StampPage::Narrow { base, offsets } = self {
            match offset_of(*base, time) {
                Some(n) => {
                    offsets[slot] = n;
                    return;
                }
                None => *self = StampPage::Wide(Box::new(std::array::from_fn(|i| self.get(i)))),
            }
        }
        if let StampPage::Wide(times) = self {
            times[slot] = time;
        }
    }
}

impl Stamps {
    #[inline]
    pub(crate) fn get(&self, local: u32) -> i64 {
        let chunk = self.0.get((local >> CHUNK_BITS) as usize);
        chunk.and_then(|c| c.page(local as u16)).map_or(NEVER, |p| p.get(local as usize % PAGE))
    }

    #[inline]
    pub(crate) fn set(&mut self, local: u32, time: i64) {
        let new = || StampPage::Narrow { base: base_around(time), offsets: [0; PAGE] };
        let page = chunk_mut(&mut self.0, local).page_or(local as u16, new);
        page.set(local as usize % PAGE, time);
    }
}

/// The chunk of a user, made if there is none, copied if it is shared.
#[inline]
pub(crate) fn chunk_mut<C: Clone + Default>(chunks: &mut Vec<Arc<C>>, local: u32) -> &mut C {
    let at = (local >> CHUNK_BITS) as usize;
    if at >= chunks.len() {
        chunks.resize_with(at + 1, Arc::default);
    }
    Arc::make_mut(&mut chunks[at])
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
            let mut frozen = None;
            for (i, (user, time)) in writes.into_iter().enumerate() {
                if i == 100 {
                    frozen = Some((stamps.clone(), model.clone()));
                }
                stamps.set(user, time);
                model.insert(user, time);
                prop_assert_eq!(stamps.get(user), time);
            }
            for (stamps, model) in frozen.into_iter().chain([(stamps, model)]) {
                for user in 0..700 {
                    prop_assert_eq!(stamps.get(user), model.get(&user).copied().unwrap_or(NEVER));
                }
            }
        }
    }
}
