//! The open windows of one subtask: found by time at the cost of two comparisons, taken out in the order they end.
// HOT: `last_if_of` is called once per record; the map is touched only when the window is another than the last.

use weir_engine::{EventTime, Key, Keyed, OperatorContext, Record, Result, TaskError, Watermark};
use weir_state::keyed::{Space, Spaces, State, StateMap, Table};
use weir_state::store::Snapshot;

use crate::window::TimeWindow;
use crate::window::assign::Grid;

/// A map of accumulators per open window, in a namespace of the table `windows` by the window's start, from which its end
/// follows. (The end will not do: at the end of time a whole window may end and a cut one.) A watermark touches only windows
/// that it ends; one that opens and ends between two barriers never leaves memory.
pub(crate) struct Panes<K, A> {
    grid: Grid,
    spaces: Spaces<K, A>,
    /// The window used last, and where its accumulators are.
    last: Option<(TimeWindow, Space)>,
}

/// The list of the checkpoint that says how the windows lie.
const LIST: &str = "window";
const SIZE: &str = "size_ms";
const OFFSET: &str = "offset_ms";

impl<K: Key, A: State> Panes<K, A> {
    /// The windows that were open at the checkpoint, or none.
    ///
    /// # Errors
    /// The store cannot be read, or the open windows lie otherwise.
    pub(crate) fn open(cx: &OperatorContext, grid: Grid) -> Result<Self> {
        let panes = Panes { grid, spaces: cx.store()?.spaces(Table::new("windows"))?, last: None };
        if let Some((start, _)) = panes.spaces.namespaces().next() {
            check_kept(cx, grid, start)?;
        }
        Ok(panes)
    }

    /// The map of the window used last, if `time` is in it.
    #[inline]
    pub(crate) fn last_if_of(&mut self, time: EventTime) -> Option<&mut StateMap<K, A>> {
        match self.last {
            Some((window, space)) if window.contains(time) => Some(self.spaces.map(space)),
            _ => None,
        }
    }

    /// The window of a time.
    pub(crate) fn window_of(&self, time: EventTime) -> TimeWindow {
        self.grid.window_of(time)
    }

    /// The map of a window, opened if it is not.
    pub(crate) fn map_of(&mut self, window: TimeWindow) -> &mut StateMap<K, A> {
        let space = self.spaces.open(window.start.0);
        self.last = Some((window, space));
        self.spaces.map(space)
    }

    /// Fetches what is kept of the keys of these records.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn prefetch<T>(&mut self, records: &[Record<Keyed<K, T>>]) -> Result<()> {
        let mut rest = records;
        while let Some(first) = rest.first() {
            let window = self.grid.window_of(first.time);
            let run = rest.iter().take_while(|r| window.contains(r.time)).count().max(1);
            let (of_window, others) = rest.split_at(run);
            rest = others;
            if let Some(space) = self.spaces.get(window.start.0) {
                let keys = of_window.iter().map(|r| (r.value.hash, &r.value.key));
                self.spaces.map(space).prefetch(keys)?;
            }
        }
        Ok(())
    }

    /// The window that ends first, if it is over.
    pub(crate) fn first_over(&self, watermark: Watermark) -> Option<(TimeWindow, Space)> {
        let (start, space) = self.spaces.namespaces().next()?;
        let window = self.grid.window_of(EventTime(start));
        window.is_over(watermark).then_some((window, space))
    }

    /// Takes accumulators of a window out, about `most` of them; false when there are no more. From the first call on the
    /// window takes no records. Barriers may come between two calls.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn pop(&mut self, space: Space, most: usize, into: &mut Vec<(K, A)>) -> Result<bool> {
        Ok(self.spaces.map(space).pop(most, into)?)
    }

    /// Forgets a window that was taken out.
    pub(crate) fn close(&mut self, window: TimeWindow) {
        self.last = self.last.filter(|(last, _)| *last != window);
        self.spaces.close(window.start.0);
    }

    pub(crate) fn batch_end(&mut self) -> Result<()> {
        Ok(self.spaces.batch_end()?)
    }

    pub(crate) fn freeze(&mut self, into: &mut Snapshot) -> Result<()> {
        self.spaces.freeze(into)?;
        into.item(LIST, SIZE, self.grid.size().into());
        into.item(LIST, OFFSET, self.grid.offset().into());
        Ok(())
    }
}

/// The window that begins at `start` was open: it must be one of today's.
fn check_kept(cx: &OperatorContext, grid: Grid, start: i64) -> Result<()> {
    for item in cx.restored(LIST) {
        let now = match item.key.as_str() {
            SIZE => grid.size(),
            OFFSET => grid.offset(),
            _ => continue,
        };
        if item.value.as_i64() != Some(now) {
            return Err(TaskError::user(format!(
                "the checkpoint has an open window from {start} with {} = {}, the job declares {now}: declare it as it was \
                 until that window is over, or give the operator another uid and drop the state of this one",
                item.key, item.value
            )));
        }
    }
    Ok(())
}
