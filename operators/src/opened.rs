//! What an operator holds only once it is open: a copy of the recipe has none.

use std::fmt;

/// Something made in `open`. Operators are cloned before they open, so a clone is empty whatever the original holds.
pub(crate) struct Opened<T>(pub(crate) Option<T>);

impl<T> Clone for Opened<T> {
    fn clone(&self) -> Self {
        Opened(None)
    }
}

impl<T> Default for Opened<T> {
    fn default() -> Self {
        Opened(None)
    }
}

impl<T> fmt::Debug for Opened<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "open" } else { "not open" })
    }
}
