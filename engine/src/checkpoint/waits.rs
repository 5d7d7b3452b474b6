//! `Waits`: ends what the tasks of one attempt wait for outside their channels: for their stores, and for the storage.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use weir_state::store::Store;

use crate::error::{Result, TaskError};

/// Hears once that the attempt is cancelled. Who begins to wait after that does not wait.
pub(crate) struct Waits {
    cancelled: watch::Sender<bool>,
    /// What ends the waits of each store. They keep no store open.
    stores: Mutex<Vec<Box<dyn Fn() + Send>>>,
}

impl Default for Waits {
    fn default() -> Self {
        Waits { cancelled: watch::Sender::new(false), stores: Mutex::default() }
    }
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waits({} stores, cancelled: {})", self.stores().len(), *self.cancelled.borrow())
    }
}

impl Waits {
    fn stores(&self) -> MutexGuard<'_, Vec<Box<dyn Fn() + Send>>> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A store was opened.
    pub(crate) fn add(&self, store: &Store) {
        let cancel = store.canceller();
        let mut stores = self.stores();
        if *self.cancelled.borrow() {
            cancel();
        }
        stores.push(Box::new(cancel));
    }

    /// Does what takes long, unless it is cancelled first.
    ///
    /// # Errors
    /// It was cancelled.
    pub(crate) async fn unless_cancelled<T>(&self, what: impl Future<Output = T>) -> Result<T> {
        let mut cancelled = self.cancelled.subscribe();
        tokio::select! {
            biased;
            _ = cancelled.wait_for(|cancelled| *cancelled) => Err(TaskError::cancelled()),
            done = what => Ok(done),
        }
    }

    /// Ends every wait, now and later. Idempotent.
    pub(crate) fn cancel(&self) {
        // Held over both: a store that comes meanwhile is in the list, or sees the flag.
        let stores = self.stores();
        self.cancelled.send_replace(true);
        stores.iter().for_each(|cancel| cancel());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weir_state::keyed::Table;
    use weir_state::store::Snapshot;

    use super::*;
    use crate::checkpoint::{RestoreFrom, StateEnv};
    use crate::error::Cause;

    /// Freezes twice, the first time being never written: the second one waits for that.
    fn wait_in(store: &Store) -> TaskError {
        let mut map = store.state_map(Table::<u64, u64>::new("t")).unwrap();
        let (mut first, mut second) = (Snapshot::default(), Snapshot::default());
        map.freeze(&mut first).unwrap();
        map.freeze(&mut second).map_err(TaskError::from).unwrap_err()
    }

    #[test]
    fn a_cancel_ends_the_wait_of_a_store_and_of_one_that_is_opened_later() {
        let env = Arc::new(StateEnv::in_memory(RestoreFrom::Nothing));
        let early = env.open_store(&"early".into(), 0, 1).unwrap();
        let waited = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait_in(&early));
            env.waits.cancel();
            waiting.join().unwrap()
        });
        let late = env.open_store(&"late".into(), 0, 1).unwrap();
        for error in [waited, wait_in(&late)] {
            assert_eq!(error.cause(), Cause::Cancelled, "it is no failure of its own: {error}");
        }
    }
}
