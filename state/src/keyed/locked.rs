//! `Locked`: the entries of a frozen generation, shared by the task and the thread that writes them out, class by class.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::classes::{Classes, class_among};
use super::marked::Marked;

/// Entries that two threads look at: the task, and the one that writes them out.
#[derive(Debug)]
pub(super) struct Locked<E> {
    tables: Vec<Mutex<Marked<E>>>,
    /// As it was when they were locked up.
    pub(super) len: usize,
}

impl<E> Locked<E> {
    /// The same entries, each class behind a lock of its own.
    pub(super) fn new(entries: Classes<E>) -> Self {
        let len = entries.len();
        Locked { tables: entries.into_tables().into_iter().map(Mutex::new).collect(), len }
    }

    /// Locks the class that the slot belongs to. Entries may be changed; they cannot move.
    pub(super) fn of(&self, slot: u64) -> MutexGuard<'_, Marked<E>> {
        self.class(class_among(slot, self.tables.len()))
    }

    pub(super) fn class(&self, class: usize) -> MutexGuard<'_, Marked<E>> {
        // Nothing that panics runs under the lock but the user's own code for one entry.
        self.tables[class].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn classes(&self) -> usize {
        self.tables.len()
    }

    /// Visits all entries and their marks. A class is locked for a few buckets at a time, so that nobody waits long, and no longer once
    /// `visit` gives true; `between` is called while none is.
    ///
    /// # Errors
    /// The first of either.
    pub(super) fn visit<C, X>(
        &self,
        with: &mut C,
        mut visit: impl FnMut(&mut C, &mut E, &mut u8) -> Result<bool, X>,
        mut between: impl FnMut(&mut C) -> Result<(), X>,
    ) -> Result<(), X> {
        const FEW: usize = 512;
        for class in 0..self.classes() {
            let mut next = 0;
            loop {
                let mut table = self.class(class);
                let all = table.buckets();
                let mut end = (next + FEW).min(all);
                for bucket in next..end {
                    if let Some((entry, marks)) = table.at_mut(bucket)
                        && visit(with, entry, marks)?
                    {
                        end = bucket + 1;
                        break;
                    }
                }
                drop(table);
                between(with)?;
                if end == all {
                    break;
                }
                next = end;
            }
        }
        Ok(())
    }

    /// Visits entries from a class and bucket on until `visit` gives false; true when all have been visited.
    pub(super) fn visit_on(
        &self,
        at: &mut (usize, usize),
        mut visit: impl FnMut(&mut E, &mut u8) -> bool,
    ) -> bool {
        while at.0 < self.classes() {
            let mut table = self.class(at.0);
            while at.1 < table.buckets() {
                if table.at_mut(at.1).is_some_and(|(entry, marks)| !visit(entry, marks)) {
                    return false;
                }
                at.1 += 1;
            }
            *at = (at.0 + 1, 0);
        }
        true
    }

    /// Takes the tables apart: one per class.
    pub(super) fn into_tables(self) -> Vec<Marked<E>> {
        let inner = |table: Mutex<Marked<E>>| table.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.tables.into_iter().map(inner).collect()
    }
}
