//! Lists of users that are read page by page from one version: a token keeps it for a minute after the last page, and for 15 minutes at most.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_state::profile::{Predicate, Snapshot};

/// How long a version is kept after a page of it was answered.
pub(super) const KEPT: Duration = Duration::from_secs(60);
/// How long it is kept at most, whatever is asked: it holds all that has changed since.
pub(super) const OLDEST: Duration = Duration::from_secs(15 * 60);
/// Lists that are kept at once: each holds what its version had and later ones have not.
pub(super) const MOST: usize = 64;

/// Where the next page begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) list: u64,
    pub(super) offset: u64,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.{}", self.list, self.offset)
    }
}

impl FromStr for Token {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (list, offset) = text.split_once('.').filter(|(list, _)| list.len() == 16).ok_or(())?;
        let list = u64::from_str_radix(list, 16).map_err(|_| ())?;
        Ok(Token { list, offset: offset.parse().map_err(|_| ())? })
    }
}

/// A list that is being read.
#[derive(Debug, Clone)]
pub(super) struct List {
    pub(super) snapshot: Snapshot,
    pub(super) predicate: Arc<Predicate>,
    /// When its version was taken.
    pub(super) since: Instant,
}

#[derive(Debug)]
struct Pinned {
    id: u64,
    list: List,
    /// When a page of it was last asked for or answered.
    used: Instant,
    /// Its last page was read: it stays for who asks again, as long as there is room.
    ended: bool,
}

impl Pinned {
    /// When it goes, unless it is asked for again.
    fn until(&self) -> Instant {
        (self.used + KEPT).min(self.list.since + OLDEST)
    }
}

/// The lists that are being read.
#[derive(Debug, Default)]
pub(super) struct Pages {
    kept: Mutex<Kept>,
    /// Makes ids that nobody guesses.
    ids: RandomState,
}

#[derive(Debug, Default)]
struct Kept {
    lists: Vec<Pinned>,
    /// Somebody sweeps until there are none.
    swept: bool,
}

/// What is kept no longer.
#[derive(Debug)]
#[must_use = "it is freed where that disturbs nobody"]
pub(super) struct Dropped(Vec<Pinned>);

impl Dropped {
    /// Frees what no other version has. *Blocking*: it may be a whole index.
    pub(super) fn free(self) {
        drop(self.0);
    }
}

impl Pages {
    /// Nothing under the lock can panic half-way.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a list, in place of the one that was used least recently where there is no room, first of all one that was read to its end. Its id, and
    /// whether somebody is to [`sweep`](Self::sweep) from now on.
    pub(super) fn keep(&self, list: List, now: Instant) -> (u64, bool, Dropped) {
        let mut kept = self.kept();
        let mut dropped = kept.take_old(now);
        let (version, mut made) = (list.snapshot.version().sequence, 0u64);
        let id = loop {
            let id = self.ids.hash_one((now, version, kept.lists.len(), made));
            if kept.lists.iter().all(|p| p.id != id) {
                break id;
            }
            made += 1;
        };
        let sweep = kept.put(Pinned { id, list, used: now, ended: false }, &mut dropped);
        (id, sweep, Dropped(dropped))
    }

    /// The list of an id, which is kept on; nothing when it is gone.
    pub(super) fn find(&self, id: u64, now: Instant) -> Option<List> {
        let mut kept = self.kept();
        let found = kept.lists.iter_mut().find(|p| p.id == id && now < p.until())?;
        // Who asks reads on, even after the last page.
        (found.used, found.ended) = (now, false);
        Some(found.list.clone())
    }

    /// Notes that a page of a list is answered, the last of them if it has `ended`: its minute begins now, even if it went while the page was looked for.
    /// Whether somebody is to [`sweep`](Self::sweep) from now on.
    pub(super) fn answered(&self, id: u64, list: List, ended: bool, now: Instant) -> (bool, Dropped) {
        let mut kept = self.kept();
        let answered = Pinned { id, list, used: now, ended };
        let mut dropped = match kept.lists.iter().position(|p| p.id == id) {
            Some(at) => vec![kept.lists.swap_remove(at)],
            None => Vec::new(),
        };
        dropped.extend(kept.take_old(now));
        let mut sweep = false;
        if now < answered.until() {
            sweep = kept.put(answered, &mut dropped);
        } else {
            dropped.push(answered);
        }
        (sweep, Dropped(dropped))
    }

    /// Takes out what nobody asked for in time; and how long until the next may go, or nothing when none is kept and nobody need sweep.
    pub(super) fn sweep(&self, now: Instant) -> (Option<Duration>, Dropped) {
        let mut kept = self.kept();
        let dropped = kept.take_old(now);
        let next = kept.lists.iter().map(Pinned::until).min();
        kept.swept = next.is_some();
        let wait = next.map(|next| next.saturating_duration_since(now).max(Duration::from_millis(10)));
        (wait, Dropped(dropped))
    }
}

impl Kept {
    /// Takes out the lists whose time is over.
    fn take_old(&mut self, now: Instant) -> Vec<Pinned> {
        self.lists.extract_if(.., |p| now >= p.until()).collect()
    }

    /// Puts a list among the others, in place of one where there is no room; whether somebody is to sweep from now on.
    fn put(&mut self, new: Pinned, dropped: &mut Vec<Pinned>) -> bool {
        if self.lists.len() >= MOST
            && let Some((at, _)) = self.lists.iter().enumerate().min_by_key(|(_, p)| (!p.ended, p.used))
        {
            dropped.push(self.lists.swap_remove(at));
        }
        self.lists.push(new);
        !std::mem::replace(&mut self.swept, true)
    }
}

#[cfg(test)]
mod tests {
    use weir_state::profile::{ProfileUpdate, Profiles, tag};

    use super::*;

    fn list(profiles: &Profiles, since: Instant) -> List {
        let predicate = Arc::new(tag("n").exists());
        List { snapshot: profiles.reader().snapshot(), predicate, since }
    }

    fn profiles() -> Profiles {
        let profiles = Profiles::named("p").int_tag("n");
        let mut writer = profiles.writer(0..profiles.key_groups(), 1).unwrap();
        writer.apply(ProfileUpdate::of(1u64).at(1).set("n", 1)).unwrap();
        writer.finish(1);
        profiles
    }

    #[test]
    fn tokens_are_read_as_written_and_nothing_else_is() {
        for token in [Token { list: 0, offset: 0 }, Token { list: u64::MAX, offset: 12_345 }] {
            assert_eq!(token.to_string().parse(), Ok(token));
        }
        for wrong in [
            "",
            ".",
            "00.1",
            "000000000000000g.1",
            "0000000000000001",
            "0000000000000001.",
            "0000000000000001.-1",
        ] {
            assert_eq!(wrong.parse::<Token>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn a_list_is_kept_for_a_minute_after_each_page() {
        let (pages, profiles, start) = (Pages::default(), profiles(), Instant::now());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let (id, first, _) = pages.keep(list(&profiles, start), start);
        assert!(first);
        assert!(pages.find(id ^ 1, start).is_none());
        for seconds in [59, 118, 177] {
            let found = pages.find(id, after(seconds)).expect("read in time");
            assert_eq!(found.snapshot.version().sequence, 1);
        }
        let (wait, dropped) = pages.sweep(after(207));
        assert_eq!((wait, dropped.0.len()), (Some(Duration::from_secs(30)), 0));
        assert!(pages.find(id, after(237)).is_none(), "before it is swept");
        let (wait, dropped) = pages.sweep(after(237));
        assert_eq!((wait, dropped.0.len()), (None, 1));
    }

    #[test]
    fn a_list_goes_after_a_quarter_of_an_hour_however_often_it_is_read() {
        let (pages, profiles, start) = (Pages::default(), profiles(), Instant::now());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let (id, ..) = pages.keep(list(&profiles, start), start);
        let mut seconds = 0;
        while let Some(found) = pages.find(id, after(seconds)) {
            assert!(seconds < OLDEST.as_secs());
            let _ = pages.answered(id, found, false, after(seconds));
            seconds += 59;
        }
        assert_eq!(seconds, OLDEST.as_secs().next_multiple_of(59));
        let pages = Pages::default();
        let (id, ..) = pages.keep(list(&profiles, start), after(880));
        assert_eq!(
            pages.sweep(after(890)).0,
            Some(Duration::from_secs(10)),
            "the age counts from its version"
        );
        let found = pages.find(id, after(899)).unwrap();
        let (_, dropped) = pages.answered(id, found, false, after(901));
        assert!(dropped.0.iter().all(|p| p.id == id) && pages.find(id, after(901)).is_none());
        assert_eq!(pages.kept().lists.len(), 0);
    }

    #[test]
    fn the_minute_begins_when_a_page_is_answered() {
        let (pages, profiles, start) = (Pages::default(), profiles(), Instant::now());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let (id, ..) = pages.keep(list(&profiles, start), start);
        let found = pages.find(id, after(30)).unwrap();
        // Looking for the page takes so long that the list is swept meanwhile.
        assert_eq!(pages.sweep(after(90)).0, None);
        let (first, dropped) = pages.answered(id, found, false, after(100));
        assert!(first && dropped.0.is_empty(), "it is to be swept again");
        assert!(pages.find(id, after(159)).is_some());
    }

    #[test]
    fn the_list_that_was_used_least_recently_makes_room() {
        let (pages, profiles, start) = (Pages::default(), profiles(), Instant::now());
        let after = |ms: u64| start + Duration::from_millis(ms);
        let ids: Vec<u64> =
            (0..MOST as u64).map(|n| pages.keep(list(&profiles, start), after(n)).0).collect();
        let kept = |id: u64| pages.kept().lists.iter().any(|p| p.id == id);
        assert!(pages.find(ids[0], after(100)).is_some());
        let (new, first, dropped) = pages.keep(list(&profiles, start), after(101));
        assert!(!first && !ids.contains(&new));
        assert_eq!((dropped.0.len(), dropped.0[0].id), (1, ids[1]));
        assert!(kept(new) && kept(ids[0]) && !kept(ids[1]));
        // One that was read to its end goes first, unless it is asked for again.
        let found = pages.find(ids[9], after(102)).unwrap();
        let _ = pages.answered(ids[9], found, true, after(102));
        let _ = pages.keep(list(&profiles, start), after(103));
        assert!(!kept(ids[9]) && kept(ids[2]));
        let found = pages.find(ids[8], after(104)).unwrap();
        let _ = pages.answered(ids[8], found, true, after(104));
        assert!(pages.find(ids[8], after(105)).is_some(), "it can be asked for again");
        let _ = pages.keep(list(&profiles, start), after(106));
        assert!(kept(ids[8]) && !kept(ids[2]));
        assert_eq!(pages.kept().lists.len(), MOST);
    }
}
