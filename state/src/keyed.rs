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
//! [`Spaces`] are such maps by namespace, for windows. [`ValueState`], [`ListState`], [`MapState`], [`ReducingState`] and
//! [`AggregatingState`] are what user code declares; they may have a TTL. All of them are a [`KeyedState`].

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::StateError;
use crate::store::Snapshot;
#[cfg(doc)]
use crate::store::Store;

mod bundle;
mod cache;
mod cell;
mod classes;
mod coder;
mod drain;
mod evict;
mod generation;
mod heavy;
mod home;
mod layer;
mod layers;
mod list_state;
mod locked;
mod map_state;
mod marked;
mod prefetch;
mod spaces;
mod spec;
mod state_map;
mod states;
mod timed;
mod tour;
mod upkeep;
mod weigh;

pub use classes::Place;
pub use list_state::ListState;
pub use map_state::MapState;
pub use spaces::{Space, Spaces};
pub use spec::Table;
pub use state_map::StateMap;
pub use states::{AggregatingState, Fold, ReducingState, ValueState};
pub use tour::Tour;

/// What state can be kept by. Implemented for every type that qualifies. Keys that are equal must serialise equally.
pub trait Key: Clone + Send + Eq + Serialize + DeserializeOwned + 'static {}
impl<T: Clone + Send + Eq + Serialize + DeserializeOwned + 'static> Key for T {}

/// What an operator does with every state it holds, whatever it keeps.
pub trait KeyedState {
    /// Ends a batch: takes back what was frozen and is written by now, and makes room if the store's budget asks for it.
    ///
    /// *Blocking*: writes to the backend when memory is short. Waits for the snapshot to be written when that is not done and
    /// memory is very short ([`Store::waited`]).
    ///
    /// # Errors
    /// The backend's, or the wait was cancelled.
    fn batch_end(&mut self) -> Result<(), StateError>;

    /// Adds to the snapshot what changed since the last barrier. Costs nothing per entry.
    ///
    /// *Blocking*: waits until every earlier snapshot of the store is settled ([`Store::is_settled`]).
    ///
    /// # Errors
    /// The wait was cancelled.
    fn freeze(&mut self, snapshot: &mut Snapshot) -> Result<(), StateError>;
}

/// What can be kept. Implemented for every type that qualifies.
pub trait State: Clone + Send + Serialize + DeserializeOwned + 'static {}
impl<T: Clone + Send + Serialize + DeserializeOwned + 'static> State for T {}
