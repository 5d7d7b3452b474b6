//! What a user does to a stream: map, filter, flat_map, inspect, process, window, profile update.
//!
//! Import [`prelude`] and write `stream.map(…)`; the traits there put these operators on the engine's streams. Each adds
//! to the chain it is called on, so steps that follow each other run in one task without a queue between them.
//!
//! *Stateless*: [`map`](prelude::StreamOps::map), [`filter`](prelude::StreamOps::filter),
//! [`flat_map`](prelude::StreamOps::flat_map), [`inspect`](prelude::StreamOps::inspect). They keep event times and order.
//!
//! *Keyed*, each with a uid that its state is kept under: [`process`](prelude::KeyedOps::process) gives user code states
//! per key and timers; [`aggregate`](prelude::WindowOps::aggregate) computes an [`Aggregate`] per key and
//! window; [`over`](prelude::PerKeyOps::over) one per record; [`deduplicate`](prelude::PerKeyOps::deduplicate),
//! [`detect`](prelude::PerKeyOps::detect) and [`top_n`](prelude::PerKeyOps::top_n) remember what came before for a key;
//! [`update_profile`](prelude::ProfileOps::update_profile) writes what a stream says of users into a
//! [`Profiles`](weir_state::profile::Profiles) space that readers question meanwhile.
//!
//! *Of two streams*, [connected](weir_engine::KeyedStream::connect): [`co_process`](prelude::JoinOps::co_process),
//! [`interval_join`](prelude::JoinOps::interval_join), [`temporal_join`](prelude::JoinOps::temporal_join), and over windows
//! [`join`](prelude::WindowJoinOps::join) and [`co_group`](prelude::WindowJoinOps::co_group); beside rules that every subtask has,
//! [`process`](prelude::BroadcastOps::process) and [`process_keyed`](prelude::KeyedBroadcastOps::process_keyed).
//! *To the outside*: [`map_async`](prelude::AsyncOps::map_async) and [`lookup_join`](prelude::AsyncOps::lookup_join) make a call per
//! record, many at a time, on threads that are not the task's.
//!
//! Event times are milliseconds since the Unix epoch, negative ones included. State lies in the store of the subtask that
//! owns its key, in checkpoints, and comes back from these whatever the parallelism; each operator says what it keeps. But for
//! async I/O no operator here starts a thread or takes a lock per record; only `deduplicate_by_clock` reads a clock per record.

pub mod aggregate;
pub mod argument;
pub mod async_io;
pub mod broadcast;
pub mod co_process;
pub mod deduplicate;
mod filter;
mod flat_map;
#[cfg(test)]
mod fleet;
mod inspect;
pub mod join;
mod kept_with;
mod late;
mod map;
mod opened;
mod ordered;
pub mod over;
pub mod pattern;
pub mod per_key;
pub mod prelude;
pub mod process;
pub mod profile;
mod progress;
mod settled;
mod timers;
pub mod top_n;
#[cfg(test)]
mod trial;
pub mod window;

pub use aggregate::Aggregate;
pub use filter::Filter;
pub use flat_map::FlatMap;
pub use inspect::Inspect;
pub use map::Map;
pub use process::{KeyedContext, ProcessFunction};
pub use profile::{BadUpdates, ProfileTarget, RejectedUpdate};
pub use settled::Settled;
pub use window::{Sliding, TimeWindow, Tumbling, WindowResult};
