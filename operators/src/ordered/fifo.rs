//! `Fifo`: a queue per key, each element in state by itself, so that a change writes what changed and not the queue.
// HOT: an access is one probe for the key and one for the element.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_engine::{Key, Result, TaskError};

use crate::process::{KeyedContext, MapState, NamedState};

/// Which elements there are: from the first number on, up to the last, which is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) head: u64,
    pub(crate) tail: u64,
}

impl Span {
    pub(crate) fn is_empty(self) -> bool {
        self.head == self.tail
    }
}

/// Elements by number. Which are there is for the caller to keep, in a [`Span`] in the state of the key.
#[derive(Clone, Debug)]
pub(crate) struct Fifo<K: Key, V: Clone + Send + Serialize + DeserializeOwned + 'static> {
    elements: MapState<K, u64, V>,
}

impl<K: Key, V: Clone + Send + Serialize + DeserializeOwned + 'static> Fifo<K, V> {
    pub(crate) fn named(name: &str) -> Self {
        Fifo { elements: MapState::named(name) }
    }

    pub(crate) fn state(&mut self) -> &mut dyn NamedState<K> {
        &mut self.elements
    }

    /// Appends an element.
    pub(crate) fn push<S>(&mut self, cx: &KeyedContext<'_, K, S>, span: &mut Span, element: V) -> Result<()> {
        self.elements.put(cx, span.tail, element)?;
        span.tail += 1;
        Ok(())
    }

    /// The element of a number that is in the span.
    pub(crate) fn at<S>(&mut self, cx: &KeyedContext<'_, K, S>, number: u64) -> Result<&V> {
        self.elements.get(cx, &number)?.ok_or_else(|| missing(number))
    }

    /// Puts another element in place of one.
    pub(crate) fn set<S>(&mut self, cx: &KeyedContext<'_, K, S>, number: u64, element: V) -> Result<()> {
        self.elements.put(cx, number, element)
    }

    /// Takes the elements before `head` away.
    pub(crate) fn drop_until<S>(
        &mut self,
        cx: &KeyedContext<'_, K, S>,
        span: &mut Span,
        head: u64,
    ) -> Result<()> {
        if head >= span.tail {
            return self.clear(cx, span);
        }
        while span.head < head {
            self.elements.remove(cx, &span.head)?;
            span.head += 1;
        }
        Ok(())
    }

    /// Takes all elements away. Numbers begin anew.
    pub(crate) fn clear<S>(&mut self, cx: &KeyedContext<'_, K, S>, span: &mut Span) -> Result<()> {
        if !span.is_empty() {
            self.elements.clear(cx)?;
        }
        *span = Span::default();
        Ok(())
    }
}

#[cold]
fn missing(number: u64) -> TaskError {
    TaskError::internal(format!("element {number} of a queue in state is missing"))
}
