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
    /// What it is, where its first part ends, where its second does.
    ends: Vec<(Kind, usize, usize)>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Put,
    Delete,
    DeleteRange,
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
        self.bytes.extend_from_slice(first);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(second);
        self.ends.push((kind, middle, self.bytes.len()));
    }

    /// How many writes it holds.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True when it holds none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many bytes of keys and values it holds.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets all writes.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// The writes in order.
    pub fn iter(&self) -> impl Iterator<Item = Write<'_>> {
        let mut start = 0;
        self.ends.iter().map(move |&(kind, middle, end)| {
            let (first, second) = (&self.bytes[start..middle], &self.bytes[middle..end]);
            start = end;
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
}
