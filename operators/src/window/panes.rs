//! The open windows of one subtask: found by time at the cost of two comparisons, taken out in the order they end.
// HOT: `table_of` is called once per record; the map is touched only when the window is another than the last.

use std::collections::BTreeMap;

use weir_engine::{EventTime, Key, Watermark};

use crate::state_table::StateTable;
use crate::window::TimeWindow;

/// A table of accumulators per open window. A watermark touches only windows that it ends.
#[derive(Clone, Debug)]
pub(crate) struct Panes<K, A> {
    /// By end and start, where the table is. The end alone will not do: at `i64::MAX` a whole window may end and a cut one.
    open: BTreeMap<(EventTime, EventTime), usize>,
    tables: Vec<StateTable<K, A>>,
    /// Places in `tables` that are not in use.
    free: Vec<usize>,
    /// The emptied table of the window that ended last: the next one is likely to need its memory.
    spare: Option<StateTable<K, A>>,
    /// The window used last, and where its table is.
    last: Option<(TimeWindow, usize)>,
}

impl<K, A> Default for Panes<K, A> {
    fn default() -> Self {
        Panes { open: BTreeMap::new(), tables: Vec::new(), free: Vec::new(), spare: None, last: None }
    }
}

impl<K: Key, A> Panes<K, A> {
    /// The table of the window used last, if `time` is in it.
    #[inline]
    pub(crate) fn last_if_of(&mut self, time: EventTime) -> Option<&mut StateTable<K, A>> {
        match self.last {
            Some((window, at)) if window.contains(time) => Some(&mut self.tables[at]),
            _ => None,
        }
    }

    /// The table of a window, opened if it is not.
    pub(crate) fn table_of(&mut self, window: TimeWindow) -> &mut StateTable<K, A> {
        let Panes { open, tables, free, spare, .. } = self;
        let at = *open.entry((window.end, window.start)).or_insert_with(|| {
            let at = free.pop().unwrap_or_else(|| {
                tables.push(StateTable::default());
                tables.len() - 1
            });
            tables[at] = spare.take().unwrap_or_default();
            at
        });
        self.last = Some((window, at));
        &mut self.tables[at]
    }

    /// Takes out the window that ends first, if it is over.
    pub(crate) fn take_over(&mut self, watermark: Watermark) -> Option<(TimeWindow, StateTable<K, A>)> {
        let entry = self.open.first_entry()?;
        let &(end, start) = entry.key();
        let window = TimeWindow { start, end };
        if !window.is_over(watermark) {
            return None;
        }
        let at = entry.remove();
        self.free.push(at);
        self.last = self.last.filter(|(_, last)| *last != at);
        Some((window, std::mem::take(&mut self.tables[at])))
    }

    /// Takes the emptied table of a window that was taken out, for its memory.
    pub(crate) fn recycle(&mut self, table: StateTable<K, A>) {
        self.spare = Some(table);
    }

    /// How many windows are open.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }
}
