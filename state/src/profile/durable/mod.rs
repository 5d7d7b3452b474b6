//! What the store keeps of a profile, and how: copies of pages by key group, written as they change, read back into an index.
//!
//! The index lives in memory; the store is where it survives. A checkpoint writes the pages touched since the last one that
//! settled: [`layout`] says under which keys, [`page`] in which bytes, [`freeze`] finds them, [`restore`] reads them. Bitmaps are
//! not written: they follow from the columns.

mod bytes;
mod freeze;
mod layout;
mod page;
mod restore;

pub use freeze::Written;
pub(crate) use freeze::{FrozenGroups, Kept};
pub(crate) use layout::FORMAT;
pub(crate) use restore::read_group;
