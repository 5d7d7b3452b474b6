//! What the parts of an index take on the heap, by their own sizes: no allocator is asked, and none of its rounding counts.

use std::mem::size_of;
use std::sync::Arc;

/// Two counts lie before what an `Arc` points to.
pub(crate) const COUNTS: usize = 2 * size_of::<usize>();

/// Something that owns memory beyond itself.
pub(crate) trait Heap {
    /// The bytes it owns on the heap, what is shared with older versions included. Visits pages, never users.
    fn heap(&self) -> usize;
}

/// Nothing of their own.
macro_rules! flat {
    ($($flat:ty),*) => { $(impl Heap for $flat {
        fn heap(&self) -> usize {
            0
        }
    })* };
}
pub(crate) use flat;

impl<T: Heap> Heap for Arc<T> {
    fn heap(&self) -> usize {
        COUNTS + size_of::<T>() + (**self).heap()
    }
}

impl Heap for Arc<str> {
    fn heap(&self) -> usize {
        COUNTS + self.len()
    }
}

impl<T: Heap> Heap for Option<T> {
    fn heap(&self) -> usize {
        self.as_ref().map_or(0, Heap::heap)
    }
}

impl<T: Heap> Heap for Vec<T> {
    fn heap(&self) -> usize {
        self.capacity() * size_of::<T>() + self.iter().map(Heap::heap).sum::<usize>()
    }
}

/// The bytes of an `Arc` of so many plain values.
pub(crate) fn shared<T: Copy>(values: &[T]) -> usize {
    COUNTS + size_of_val(values)
}

/// The bytes of a list of plain values.
pub(crate) fn plain<T: Copy>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}
