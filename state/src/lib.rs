//! Weir's state: the stable key hash that routes everything, and the profile index that segment queries read.
//!
//! This crate is the bottom of the house: it knows nothing of streams, tasks or actors, starts no thread, touches no
//! file, and holds no lock while data is applied or read.
//!
//! * [`key`]: keys become [`KeyHash`]es, [`KeyGroup`]s and subtasks. Frozen: state and routing depend on it.
//! * [`profile`]: [`Profiles`](profile::Profiles), a space of users with typed tags. One
//!   [`Writer`](profile::Writer) per range of key groups applies updates and publishes; any number of
//!   [`Reader`](profile::Reader)s count, list and look up, each answer true of one published version.
//!
//! All event times are `i64` milliseconds since the Unix epoch, negative ones included.

pub mod key;
pub mod profile;

pub use key::{KEY_GROUPS, KeyGroup, KeyHash, key_groups_of, key_hash};
