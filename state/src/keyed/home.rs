//! `Home`: what every map of one table needs of its store; shared with the snapshot thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::coder::Coder;
use super::spec::Table;
use super::{Key, State};
use crate::backend::StateBackend;
use crate::codec::CodecId;
use crate::error::StateError;
use crate::store::{Cancelled, Clocks, Ledger, Store};
use crate::ttl::{Ttl, TtlClock};

pub(crate) struct Home<K, V> {
    pub(super) coder: Coder<K, V>,
    pub(super) table: u16,
    pub(super) backend: Arc<dyn StateBackend>,
    pub(super) ledger: Arc<Ledger>,
    /// Nothing of this table was in a checkpoint that the store was restored from.
    pub(super) fresh: bool,
    clocks: Arc<Clocks>,
    pub(super) ttl: Option<Ttl>,
    /// Where the machine's clock stood when it was last looked at, once per batch, if the TTL goes by that.
    now: AtomicI64,
    /// When the TTL was turned on over values that were there: `i64::MIN` when it was not, `i64::MAX` while unknown.
    adopted_at: AtomicI64,
}

impl<K: Key, V: State> Home<K, V> {
    /// Registers the table, its keys being laid out so.
    pub(super) fn new(store: &Store, table: &Table<K, V>, keys: CodecId) -> Result<Arc<Self>, StateError> {
        // Asked before it is registered: afterwards it is claimed.
        let fresh = !store.unclaimed().contains(&table.name);
        let (coder, id) = Coder::new(store, table, keys)?;
        let clocks = store.clocks().clone();
        let home = Home {
            coder,
            table: id,
            backend: store.backend().clone(),
            ledger: store.ledger().clone(),
            fresh,
            ttl: table.ttl,
            now: AtomicI64::new(i64::MIN),
            adopted_at: AtomicI64::new(clocks.adopted_at(id).unwrap_or(i64::MIN)),
            clocks,
        };
        home.look_at_the_clock();
        Ok(Arc::new(home))
    }

    /// Registers a table that may have no TTL.
    pub(super) fn without_ttl(
        store: &Store,
        table: &Table<K, V>,
        keys: CodecId,
    ) -> Result<Arc<Self>, StateError> {
        if table.ttl.is_some() {
            return Err(StateError::Misused {
                uid: store.uid().to_owned(),
                table: table.name.clone(),
                what: "a StateMap honours no TTL: use ValueState or another of the states".to_owned(),
            });
        }
        Self::new(store, table, keys)
    }

    /// Where the clock of the TTL stands: event time just now, or the machine's clock at the last look. Without a TTL, any number.
    #[inline]
    pub(super) fn now(&self) -> i64 {
        match self.ttl {
            // It moves between two timers of one batch.
            Some(Ttl { clock: TtlClock::EventTime, .. }) => self.clocks.by(TtlClock::EventTime),
            _ => self.now.load(Ordering::Relaxed),
        }
    }

    /// Reads the machine's clock, if the TTL goes by it.
    pub(super) fn look_at_the_clock(&self) {
        let Some(ttl) = self.ttl else { return };
        if ttl.clock == TtlClock::ProcessingTime {
            self.now.store(self.clocks.by(ttl.clock), Ordering::Relaxed);
        }
        if self.adopted_at.load(Ordering::Relaxed) == i64::MAX {
            let adopted = self.clocks.adopted_at(self.table).unwrap_or(i64::MIN);
            self.adopted_at.store(adopted, Ordering::Relaxed);
        }
    }

    /// True when a value last touched then has expired.
    #[inline]
    pub(super) fn is_over(&self, touched: Option<i64>) -> bool {
        let Some(ttl) = self.ttl else { return false };
        let adopted = self.adopted_at.load(Ordering::Relaxed);
        ttl.is_over(touched, (adopted != i64::MIN).then_some(adopted), self.now())
    }

    /// Where event time stands, if that is what the TTL goes by.
    pub(super) fn event_time(&self) -> Option<i64> {
        let by_event_time = self.ttl.is_some_and(|ttl| ttl.clock == TtlClock::EventTime);
        by_event_time.then(|| self.clocks.reached())
    }

    /// An error of use.
    pub(super) fn misused(&self, what: &str) -> StateError {
        let Coder { uid, table, .. } = &self.coder;
        StateError::Misused { uid: uid.clone(), table: table.clone(), what: what.to_owned() }
    }

    /// What a wait that was broken off comes to.
    pub(super) fn cancelled(&self, _: Cancelled) -> StateError {
        StateError::Cancelled { uid: self.coder.uid.clone() }
    }
}
