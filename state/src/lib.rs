//! Weir's state: the stable key hash that routes everything, keyed state that survives, and the profile index.
//!
//! This crate is the bottom of the house: it knows nothing of streams, tasks or actors, and starts no thread but
//! those that RocksDB flushes and compacts with.
//!
//! * [`key`]: keys become [`KeyHash`]es, [`KeyGroup`]s and subtasks. Frozen: state and routing depend on it.
//! * [`store`]: a [`Store`](store::Store) is the state of one subtask of one operator: tables and items, frozen at a
//!   barrier into files and restored from them, whatever the parallelism.
//! * [`backend`]: where bytes lie: memory, or RocksDB. [`keyspace`] and [`value`] say how keys and values are laid out.
//! * [`checkpoint`]: where frozen files go and come back from: manifests, savepoints, the lease, in a folder, memory or S3.
//! * [`int_set`]: exact sets of integers that can be state.
//! * [`codec`]: how values become bytes. [`ttl`]: how long they live.
//! * [`profile`]: [`Profiles`](profile::Profiles), a space of users with typed tags. One
//!   [`Writer`](profile::Writer) per range of key groups applies updates and publishes; any number of
//!   [`Reader`](profile::Reader)s count, list and look up, each answer true of one published version.
//!
//! All event times are `i64` milliseconds since the Unix epoch, negative ones included.

pub mod backend;
pub mod checkpoint;
pub mod codec;
pub mod error;
pub mod int_set;
pub mod key;
pub mod keyed;
pub mod keyspace;
pub mod profile;
pub mod schema;
pub mod store;
pub mod ttl;
pub mod value;

#[cfg(test)]
mod testing;

pub use error::StateError;
pub use key::{KEY_GROUPS, KeyGroup, KeyHash, key_groups_of, key_hash};
