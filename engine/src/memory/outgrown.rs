//! When to speak of a share that takes more than was planned for it. Pure.

use std::collections::HashMap;

use super::share::Share;

/// Shares are spoken of when they first take more than planned, and again whenever they have grown by a quarter since.
#[derive(Debug, Default)]
pub(crate) struct Outgrown {
    /// What a share took when it was last spoken of.
    told: HashMap<Share, u64>,
}

impl Outgrown {
    /// Whether a share of which so many bytes are taken has to be spoken of. Ten percent beyond the plan are nobody's concern;
    /// one that has come back below its plan begins anew.
    pub(crate) fn is_news(&mut self, share: Share, planned: u64, used: u64) -> bool {
        if used <= planned {
            self.told.remove(&share);
            return false;
        }
        let least = match self.told.get(&share) {
            Some(told) => told.saturating_add(told / 4),
            None => planned.saturating_add(planned / 10),
        };
        let news = used > least;
        if news {
            self.told.insert(share, used);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speaks_when_a_share_first_takes_more_and_whenever_it_has_grown_by_a_quarter() {
        let mut outgrown = Outgrown::default();
        let mut news = |used| outgrown.is_news(Share::Index, 1000, used);
        assert!(!news(0) && !news(1000) && !news(1100), "within the plan, or nearly");
        assert!(news(1101));
        assert!(!news(1101) && !news(1376), "known");
        assert!(news(1377));
        assert!(!news(1050), "less than before is no news");
        assert!(!news(1000) && news(1200), "back within the plan it begins anew");
    }

    #[test]
    fn shares_are_told_apart_and_none_overflows() {
        let mut outgrown = Outgrown::default();
        assert!(outgrown.is_news(Share::Index, 0, 1));
        assert!(outgrown.is_news(Share::StateCaches, 0, 1));
        assert!(!outgrown.is_news(Share::BlockCache, u64::MAX, u64::MAX));
        assert!(outgrown.is_news(Share::Index, 0, u64::MAX));
        assert!(!outgrown.is_news(Share::Index, 0, u64::MAX));
    }
}
