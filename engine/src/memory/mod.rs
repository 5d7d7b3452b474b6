//! One process, one budget: a limit, and named shares for everything that takes memory or threads, planned before a job starts.
//!
//! What a job needs whatever happens (the program, full channels, the resident part of stacks, what connectors declare) is
//! counted; what that leaves is divided by percent among the caches, RocksDB, the index and the headroom. A job that does not
//! fit is refused at the start, with every share and what to change, instead of being killed at its busiest hour.

mod ask;
mod config;
mod display;
mod error;
mod footprint;
mod limit;
mod meters;
mod outgrown;
mod plan;
mod share;

pub use config::MemoryConfig;
pub use error::{MemoryError, Shortage};
pub use footprint::Footprint;
pub use limit::{Limit, LimitOrigin};
pub use meters::{MemoryBudget, Metered};
pub use plan::{ChannelsAsk, Declared, MemoryAsk, MemoryPlan, ThreadGroup, ThreadKind};
pub use share::Share;

pub(crate) use ask::{Surroundings, ask, declared};
pub(crate) use display::Bytes;
pub(crate) use limit::raise_files;
pub(crate) use outgrown::Outgrown;
