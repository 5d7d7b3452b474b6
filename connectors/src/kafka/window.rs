//! How much of one partition may be written and not yet read: pure bookkeeping for a sink that follows a reader.

use std::collections::VecDeque;

/// Limits on what is written to one partition and not yet read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

/// What a record costs beside its key and payload, at most: a batch of one record has a header of 61 bytes, the record
/// one of up to 30.
const OVERHEAD: u64 = 91;

/// Bytes are remembered in runs of this many records: exact enough, and a deep backlog stays a short list.
const RUN: i64 = 64;

/// The written end of one partition.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// The offset of the next record to be written.
    end: i64,
    /// Bytes written so far in all, and those of them known to be read.
    bytes: u64,
    read_bytes: u64,
    /// `(offset, bytes)`: what lies before `offset` has `bytes` in all.
    marks: VecDeque<(i64, u64)>,
}

impl Ledger {
    /// A partition whose next record gets offset `end`.
    pub(crate) fn new(end: i64) -> Self {
        Ledger { end, bytes: 0, read_bytes: 0, marks: VecDeque::new() }
    }

    /// Records written and not read when the reader stands at `read`.
    pub(crate) fn unread(&self, read: i64) -> u64 {
        self.end.saturating_sub(read).max(0) as u64
    }

    /// Adds a record of `len` bytes if it fits into the window beside what is unread when the reader stands at `read`.
    /// A record larger than the window fits when nothing else is unread.
    pub(crate) fn add(&mut self, len: usize, read: i64, window: Window) -> bool {
        while let Some(&(offset, bytes)) = self.marks.front()
            && offset <= read
        {
            self.read_bytes = bytes;
            self.marks.pop_front();
        }
        let unread = self.unread(read);
        if unread == 0 {
            self.read_bytes = self.bytes;
            self.marks.clear();
        }
        let len = len as u64 + OVERHEAD;
        if unread > 0 && (unread >= window.records || self.bytes - self.read_bytes + len > window.bytes) {
            return false;
        }
        self.end += 1;
        self.bytes += len;
        if self.end % RUN == 0 {
            self.marks.push_back((self.end, self.bytes));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WIDE: Window = Window { records: u64::MAX, bytes: u64::MAX };

    #[test]
    fn records_are_limited() {
        let mut ledger = Ledger::new(100);
        let window = Window { records: 3, ..WIDE };
        assert_eq!((0..5).filter(|_| ledger.add(1, 100, window)).count(), 3);
        assert_eq!(ledger.unread(100), 3);
        assert!(ledger.add(1, 101, window));
        assert!(!ledger.add(1, 101, window));
        assert_eq!(ledger.unread(0), 104);
    }

    #[test]
    fn a_record_above_the_window_goes_alone() {
        let mut ledger = Ledger::new(0);
        let window = Window { bytes: 1000, ..WIDE };
        assert!(ledger.add(5000, 0, window));
        assert!(!ledger.add(1, 0, window));
        assert!(ledger.add(1, 1, window));
    }

    #[test]
    fn records_there_before_count() {
        let mut ledger = Ledger::new(50);
        assert!(!ledger.add(1, 0, Window { records: 50, ..WIDE }), "a reader at 0 has 50 to read first");
    }

    proptest! {
        #[test]
        fn unread_bytes_never_exceed_the_window(sizes in proptest::collection::vec(0usize..400, 1..600), lag in 0i64..200) {
            let window = Window { records: 150, bytes: 20_000 };
            let mut ledger = Ledger::new(0);
            let (mut written, mut read) = (Vec::new(), 0i64);
            for size in sizes {
                while !ledger.add(size, read, window) {
                    read += 1;
                    prop_assert!(read <= written.len() as i64, "it waits for records that nobody wrote");
                }
                written.push(size as u64 + OVERHEAD);
                read = read.max(written.len() as i64 - lag);
                let unread: u64 = written[read as usize..].iter().sum();
                prop_assert!(unread <= window.bytes.max(*written.last().unwrap()));
                prop_assert!((written.len() as i64 - read) as u64 <= window.records);
            }
        }
    }
}
