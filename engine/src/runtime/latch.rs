//! A value that arrives once and that any number of threads outside the job may wait for.

use std::sync::PoisonError;
use std::time::Duration;

use crate::runtime::sync::{Condvar, Instant, Mutex};

#[derive(Debug)]
pub(crate) struct Latch<T> {
    value: Mutex<Option<T>>,
    opened: Condvar,
}

impl<T: Clone> Latch<T> {
    pub(crate) fn new() -> Self {
        Latch { value: Mutex::new(None), opened: Condvar::new() }
    }

    /// Opens the latch with `value`; the first value stays.
    pub(crate) fn open(&self, value: T) {
        self.value.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(value);
        self.opened.notify_all();
    }

    /// The value, if it has arrived.
    pub(crate) fn get(&self) -> Option<T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for the value, at most for `time` when given.
    pub(crate) fn wait(&self, time: Option<Duration>) -> Option<T> {
        // A time too long for the clock is for ever.
        let deadline = time.and_then(|t| Instant::now().checked_add(t));
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(v) = &*value {
                return Some(v.clone());
            }
            value = match deadline {
                None => self.opened.wait(value).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.opened.wait_timeout(value, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_value_stays_and_every_waiter_gets_it() {
        let latch = Latch::new();
        assert_eq!(latch.wait(Some(Duration::from_millis(1))), None);
        latch.open(1);
        latch.open(2);
        assert_eq!((latch.wait(None), latch.wait(None), latch.get()), (Some(1), Some(1), Some(1)));
    }
}
