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
//! * who has a value, and for enum and set tags who has each value, as lists or bits;
//! * a forward column with each user's value in pages of 256 users: it answers [`Reader::profile`] and finds the bitmap a
//!   user leaves.
//!
//! Everything is copied on write, only if a published version still shares it, and then only the piece: 10,000 updates
//! scattered over 12.8 M users touch about one page each, whatever the page size, so a page must be small (1 or 2 KiB to
//! copy); but each chunk touched also copies its list of pages, so pages must not be too many (256 pointers per chunk). A
//! value that many users of a chunk have is 8 KiB of bits: what a copy costs, and what a query reads at once.
//! Values that few users of a chunk have are short lists, packed 64 values to a page, so that a tag with ten thousand
//! values copies kilobytes, not thousands of small bitmaps.
//!
//! Queries are fused: a condition is evaluated over a chunk in one pass, 64 users a word, without bitmaps in between. Number tags
//! have bins of about as many users each and a byte per user that names the bin, so a range compares bytes and looks only at
//! the numbers of the two bins it cuts through; few distinct numbers are kept like values of an enum tag.
//!
//! # What wins
//!
//! Event times decide, not arrival: the outcome of `Set`, `Unset`, `Add`, `Remove` does not depend on the order of
//! updates.
//!
//! * *Tags of one value* (enum, bool, numbers, dates, moments): the newest `Set` or `Unset` wins. At equal times the greater value wins, texts compared by
//!   bytes, and any value beats `Unset`.
//! * *Set tags*: per element, the newest `Add` or `Remove` wins, `Add` at equal times. `Unset` removes all elements
//!   not added at its time or later, and the value itself unless something as new gave one. `Set` does the same, then
//!   adds its elements (so two at one time leave both their elements). `Add` and `Remove` give the tag a value: after the
//!   last element is removed there is the empty set.
//! * *Map tags*: per key, the newest `Put` or `Remove`; at equal times any value beats `Remove`, and of two values that with the greater
//!   text in JSON. `Set` and `Unset` are to entries what they are to elements of a set.
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
//!   say unknown; write `x != 'a'` for that, or ask in SQL: [`Snapshot::sql`] knows three values.) A user is in the space from the first update, even one that loses.
//! * `hasAll(x, [])` holds and `hasAny(x, [])` does not for whoever has `x`, the empty set included. Neither holds for
//!   others. `x in ()` never holds.
//! * A value nobody ever had matches nobody; it is no error. An unknown tag is.

mod catalogue;
mod change;
mod chunk;
mod column;
mod define;
mod dict;
mod durable;
mod element;
mod error;
mod eval;
mod explain;
mod fresh;
mod fused;
mod group;
mod heap;
mod journal;
mod json;
mod locals;
mod map;
mod number;
mod packed;
mod posting;
mod predicate;
mod reader;
mod scalar;
mod segments;
mod space;
mod sql;
mod stamp;
mod stats;
mod update;
mod user;
mod wire;
mod writer;
mod writes;

#[cfg(test)]
mod tests;

pub use durable::Written;
pub use error::{ProfileError, QueryError, RestoreError};
pub use explain::Explained;
pub use predicate::{Predicate, Tag, tag};
pub use reader::{Answer, Digest, Page, Reader, Snapshot, Version};
pub use scalar::{Date, Decimal, Float, NoSuchValue, Timestamp};
pub use space::Profiles;
pub use sql::{Rows, SqlAnswer, SqlError};
pub use stats::{NumberStats, Overlap, TopValue};
pub use update::{Delta, Element, ProfileUpdate, TagDelta, TagName, TagType, TagValue};
pub use user::UserId;
pub use writer::{Applied, Writer};
pub use writes::{WriteDone, WriteError};

/// Users per forward page.
pub(crate) const PAGE: usize = 256;
/// Users per chunk, as a power of two: 1,024 words of bits.
pub(crate) const CHUNK_BITS: u32 = 16;
/// Values whose bitmaps share a page.
pub(crate) const VALUES_PAGE: usize = 64;
