//! Keyed state as operators hold it: typed caches over a store's tables, which touch the disk only when they must.
//!
//! A [`StateMap`] keeps a value per key. The record path meets one hash table, by the hash that came with the record. The
//! rest happens at batch ends and barriers:
//!
//! * *Freezing* swaps that table for an empty one and costs nothing per entry. The old one stays readable until the
//!   snapshot thread has written it, then becomes the *settled* tier: clean entries, the first to go when memory is short.
//! * *Evicting* drops settled entries that were not touched for a while, then writes dirty ones of the live tier.
//! * A map that was never evicted from nor restored is *complete*: what is not in it does not exist, and no disk is asked.
//!
//! [`Spaces`] are such maps by namespace, for windows.

use serde::Serialize;
use serde::de::DeserializeOwned;

mod cache;
mod classes;
mod coder;
mod drain;
mod generation;
mod home;
mod spaces;
mod spec;
mod state_map;
mod upkeep;

pub use classes::Place;
pub use spaces::{Space, Spaces};
pub use spec::Table;
pub use state_map::StateMap;

/// What state can be kept by. Implemented for every type that qualifies. Keys that are equal must serialise equally.
pub trait Key: Clone + Send + Eq + Serialize + DeserializeOwned + 'static {}
impl<T: Clone + Send + Eq + Serialize + DeserializeOwned + 'static> Key for T {}

/// What can be kept. Implemented for every type that qualifies.
pub trait State: Clone + Send + Serialize + DeserializeOwned + 'static {}
impl<T: Clone + Send + Serialize + DeserializeOwned + 'static> State for T {}
