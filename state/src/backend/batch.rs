//! `WriteBatch`: puts, deletes and range deletes in one arena, applied in order and all at once.

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write<'a> {
    /// The key has this value from now on.
    Put(&'a [u8], &'a [u8]),
    /// The key has no value.
    Delete(&'a [u8]),
    /// No key from the first (inclusive) to the second (exclusive) has a value. An empty second key is no bound.
    DeleteRange(&'a [u8], &'a [u8]),
}

/// Writes in the order they are to happen. Cleared, it keeps its memory.
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    bytes: Vec<u8>,
    writes: Vec<Span>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Put,
    Delete,
    DeleteRange,
}

/// Where the two parts of a write lie.
#[derive(Clone, Copy, Debug)]
struct Span {
    kind: Kind,
    start: usize,
    middle: usize,
    end: usize,
}

impl WriteBatch {
    /// Puts a value.
    #[inline]
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.push(Kind::Put, key, value);
    }

    /// Deletes a key; nothing happens when it is not there.
    #[inline]
    pub fn delete(&mut self, key: &[u8]) {
        self.push(Kind::Delete, key, &[]);
    }

    /// Deletes every key from `from` (inclusive) to `to` (exclusive); an empty `to` is no bound.
    pub fn delete_range(&mut self, from: &[u8], to: &[u8]) {
        self.push(Kind::DeleteRange, from, to);
    }

    #[inline]
    fn push(&mut self, kind: Kind, first: &[u8], second: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(first);
        self.bytes.extend_from_slice(second);
        self.writes.push(Span { kind, start, middle: start + first.len(), end: self.bytes.len() });
    }

    /// Puts a value; key and value are appended by those who make them. Gives what `key` gave.
    ///
    /// # Errors
    /// Theirs; the batch is then as before.
    #[inline]
    pub fn put_with<T, E>(
        &mut self,
        key: impl FnOnce(&mut Vec<u8>) -> Result<T, E>,
        value: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<T, E> {
        self.push_with(Kind::Put, key, value)
    }

    /// Deletes a key, appended by the one who makes it. Gives what `key` gave.
    ///
    /// # Errors
    /// Its own; the batch is then as before.
    pub fn delete_with<T, E>(&mut self, key: impl FnOnce(&mut Vec<u8>) -> Result<T, E>) -> Result<T, E> {
        self.push_with(Kind::Delete, key, |_| Ok(()))
    }

    #[inline]
    fn push_with<T, E>(
        &mut self,
        kind: Kind,
        first: impl FnOnce(&mut Vec<u8>) -> Result<T, E>,
        second: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<T, E> {
        let start = self.bytes.len();
        let made = first(&mut self.bytes).and_then(|told| {
            let middle = self.bytes.len();
            second(&mut self.bytes)?;
            Ok((told, middle))
        });
        match made {
            Ok((told, middle)) => {
                self.writes.push(Span { kind, start, middle, end: self.bytes.len() });
                Ok(told)
            }
            Err(error) => {
                self.bytes.truncate(start);
                Err(error)
            }
        }
    }

    /// Puts the writes in the order of their keys, which a database takes in faster. Writes of one key stay in their order;
    /// a batch with range deletes is not to be sorted.
    pub fn sort(&mut self) {
        debug_assert!(self.writes.iter().all(|w| !matches!(w.kind, Kind::DeleteRange)));
        let bytes = &self.bytes;
        self.writes.sort_by(|a, b| bytes[a.start..a.middle].cmp(&bytes[b.start..b.middle]));
    }

    /// Of the writes of one key that follow each other, as they do once sorted, only the last stays.
    pub fn keep_last(&mut self) {
        let bytes = &self.bytes;
        self.writes.dedup_by(|next, kept| {
            let same = bytes[next.start..next.middle] == bytes[kept.start..kept.middle];
            if same {
                *kept = *next;
            }
            same
        });
    }

    /// True when there is a range delete among them.
    pub fn has_ranges(&self) -> bool {
        self.writes.iter().any(|w| matches!(w.kind, Kind::DeleteRange))
    }

    /// Adds the writes of another batch behind these.
    pub fn append(&mut self, other: &WriteBatch) {
        let by = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        let moved =
            |w: &Span| Span { kind: w.kind, start: w.start + by, middle: w.middle + by, end: w.end + by };
        self.writes.extend(other.writes.iter().map(moved));
    }

    /// How many writes it holds.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// True when it holds none.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// How many bytes of keys and values it holds.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// How many bytes of memory its writes take.
    pub fn memory(&self) -> usize {
        self.bytes.len() + self.writes.len() * size_of::<Span>()
    }

    /// Forgets all writes.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.writes.clear();
    }

    /// The writes in order.
    pub fn iter(&self) -> impl Iterator<Item = Write<'_>> {
        self.writes.iter().map(|&Span { kind, start, middle, end }| {
            let (first, second) = (&self.bytes[start..middle], &self.bytes[middle..end]);
            match kind {
                Kind::Put => Write::Put(first, second),
                Kind::Delete => Write::Delete(first),
                Kind::DeleteRange => Write::DeleteRange(first, second),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_come_back_in_order() {
        let mut batch = WriteBatch::default();
        batch.put(b"a", b"1");
        batch.delete(b"");
        batch.delete_range(b"b", b"");
        batch.put(b"c", b"");
        assert_eq!((batch.len(), batch.bytes()), (4, 4));
        let all: Vec<_> = batch.iter().collect();
        assert_eq!(
            all,
            [
                Write::Put(b"a", b"1"),
                Write::Delete(b""),
                Write::DeleteRange(b"b", b""),
                Write::Put(b"c", b"")
            ]
        );
        batch.clear();
        assert!(batch.is_empty() && batch.iter().next().is_none());
    }

    #[test]
    fn what_fails_leaves_nothing_and_writes_can_be_sorted() {
        let mut batch = WriteBatch::default();
        let key = |key: &'static [u8]| {
            move |into: &mut Vec<u8>| {
                into.extend_from_slice(key);
                Ok::<_, ()>(key.len())
            }
        };
        let value = |into: &mut Vec<u8>| {
            into.push(7);
            Ok(())
        };
        assert_eq!(batch.put_with(key(b"bb"), value), Ok(2));
        assert_eq!(batch.put_with(key(b"cc"), |into| value(into).and(Err(()))), Err(()));
        assert_eq!(batch.delete_with(key(b"a")), Ok(1));
        batch.put(b"bb", b"2");
        assert_eq!(batch.bytes(), 7);
        batch.sort();
        let all: Vec<_> = batch.iter().collect();
        assert_eq!(all, [Write::Delete(b"a"), Write::Put(b"bb", &[7]), Write::Put(b"bb", b"2")]);
        let mut behind = WriteBatch::default();
        behind.put(b"0", b"1");
        behind.append(&batch);
        assert!(!behind.has_ranges());
        behind.keep_last();
        let all: Vec<_> = behind.iter().collect();
        assert_eq!(all, [Write::Put(b"0", b"1"), Write::Delete(b"a"), Write::Put(b"bb", b"2")]);
        behind.delete_range(b"", b"");
        assert!(behind.has_ranges());
    }
}
