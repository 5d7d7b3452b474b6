//! The profile index: live tags of many users, updated by streams, questioned while it changes.
//!
//! # Shape
//!
//! A [`Profiles`] space is split by key group. One [`Writer`] owns a range of key groups, [applies](Writer::apply) whole
//! [`ProfileUpdate`]s and [publishes](Writer::publish) them by swapping one pointer. A [`Reader`] pins what is published
//! ([`Reader::snapshot`]) and evaluates [`Predicate`]s on it: it never locks, never makes a writer wait, never sees
//! half an update, and every [`Answer`] names its [`Version`].
//!
//! A user's ordinal is key group ‖ local sequence in 32 bits (7 ‖ 25 for 128 groups), given at the first update and never
//! given again. A key group is cut into chunks of 65,536 ordinals; within a chunk each tag has
//!
//! * a bitmap of who has a value, and for enum and set tags a bitmap per value;
//! * a forward column with each user's value in pages of 256 users: it answers [`Reader::profile`] and finds the bitmap a
//!   user leaves.
//!
//! Everything is copied on write, only if a published version still shares it, and then only the piece: 10,000 updates
//! scattered over 12.8 M users touch about one page each, whatever the page size, so a page must be small (1 or 2 KiB to
//! copy); but each chunk touched also copies its list of pages, so pages must not be too many (256 pointers per chunk). A
//! chunk is one roaring container: a smaller one would pay the same 8 KiB for a dense value, a larger one more per copy.
//! Values that few users of a chunk have are short lists, packed 64 values to a page, so that a tag with ten thousand
//! values copies kilobytes, not thousands of small bitmaps.
//!
//! Measured on one core with `examples/profile_rate`, 1 M users met at random, publishing every 10,000 updates with a
//! snapshot always pinned: 0.4 M enum, 0.7 M int and 0.3 M set deltas a second, 1 to 3 ms of each publish for
//! swapping and for freeing what nobody reads any more. Users met in order run at over 1 M deltas a second: what
//! is left is memory latency.
//!
//! # What wins
//!
//! Event times decide, not arrival: the outcome of `Set`, `Unset`, `Add`, `Remove` does not depend on the order of
//! updates.
//!
//! * *Enum and int tags*: the newest `Set` or `Unset` wins. At equal times the greater value wins, texts compared by
//!   bytes, and any value beats `Unset`.
//! * *Set tags*: per element, the newest `Add` or `Remove` wins, `Add` at equal times. `Unset` removes all elements
//!   not added at its time or later, and the value itself unless something as new gave one. `Set` does the same, then
//!   adds its elements (so two at one time leave both their elements). `Add` and `Remove` give the tag a value: after the
//!   last element is removed there is the empty set.
//! * *`Increment`, `Max`, `Min`* commute with their own kind and are each counted when applied: replays must be prevented
//!   by checkpoints. One older than the newest `Set` or `Unset` is covered by it and ignored. Mixing kinds on one tag
//!   depends on arrival order as far as times do not decide.
//!
//! Each (user, tag) keeps the time of its newest `Set` or `Unset` in 4 bytes (8 where users of one page are updated more
//! than 24 days from its first time); a set tag keeps two such times per user and 8 bytes (16) per element ever added or
//! removed since the last `Set` or `Unset`. Only writers hold these.
//!
//! # What survives
//!
//! A writer made by [`Profiles::restore_writer`] over a [`Store`](crate::store::Store) survives with it. At a barrier
//! [`Writer::freeze`] hands over what is shared with readers anyway; the snapshot thread writes the pages that changed
//! since the last snapshot that settled, as keys and values of their key group: so a checkpoint is incremental, and another
//! parallelism reads other groups. Dictionaries, columns, stamps and the list of tags are written, bitmaps are built again
//! from the columns.
//! A restored profile is the one that was frozen, to the ordinal and the stamp. Tags are kept by name: the order in which a
//! job defines them may change; a stored tag that it does not define is defined; another type is refused.
//!
//! # Null rules
//!
//! * A user without a value of the tag matches no condition on it, `!=` and `not in` included.
//! * `Not` is the complement among all users of the space: `!tag("x").eq("a")` holds for users without `x`. (SQL would
//!   say unknown; write `x != 'a'` for that.) A user is in the space from the first update, even one that loses.
//! * `hasAll(x, [])` holds and `hasAny(x, [])` does not for whoever has `x`, the empty set included. Neither holds for
//!   others. `x in ()` never holds.
//! * A value nobody ever had matches nobody; it is no error. An unknown tag is.

mod catalogue;
mod chunk;
mod column;
mod dict;
mod durable;
mod element;
mod error;
mod eval;
mod group;
mod packed;
mod parse;
mod posting;
mod predicate;
mod reader;
mod space;
mod stamp;
mod update;
mod user;
mod writer;

#[cfg(test)]
mod tests;

pub use durable::Written;
pub use error::{ProfileError, QueryError, RestoreError};
pub use predicate::{Predicate, Tag, tag};
pub use reader::{Answer, Digest, Page, Reader, Snapshot, Version};
pub use space::Profiles;
pub use update::{Delta, ProfileUpdate, TagDelta, TagName, TagType, TagValue};
pub use user::UserId;
pub use writer::{Applied, Writer};

/// Users per forward page.
pub(crate) const PAGE: usize = 256;
/// Users per chunk, as a power of two: one roaring container.
pub(crate) const CHUNK_BITS: u32 = 16;
/// Values whose bitmaps share a page.
pub(crate) const VALUES_PAGE: usize = 64;
