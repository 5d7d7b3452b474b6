//! The open windows of one subtask: found by time at the cost of two comparisons, taken out in the order they end.
// HOT: `last_if_of` is called once per record; the map is touched only when the window is another than the last.

use weir_engine::{EventTime, Key, Keyed, OperatorContext, Record, Result, Watermark};
use weir_state::keyed::{Space, Spaces, State, StateMap, Table};
use weir_state::store::Snapshot;

use crate::window::TimeWindow;
use crate::window::cuts::{Cuts, Layout, check_kept, check_start, keep_layout};

/// A map of accumulators per open window, in a namespace of one table by the window's start, from which its end
/// follows. (The end will not do: at the end of time a whole window may end and a cut one.) A watermark touches only windows
/// that it ends; one that opens and ends between two barriers never leaves memory.
pub(crate) struct Panes<K, A> {
    cuts: Cuts,
    layout: Layout,
    pub(super) spaces: Spaces<K, A>,
    /// The window used last, and where its accumulators are.
    last: Option<(TimeWindow, Space)>,
}

impl<K: Key, A: State> Panes<K, A> {
    /// The windows that were open at the checkpoint, or none, in the table of that name.
    ///
    /// # Errors
    /// The store cannot be read, or the open windows lie otherwise than windows do now.
    pub(crate) fn open(
        cx: &OperatorContext,
        table: &'static str,
        cuts: Cuts,
        layout: Layout,
    ) -> Result<Self> {
        let panes = Panes { cuts, layout, spaces: cx.store()?.spaces(Table::new(table))?, last: None };
        if let Some((start, _)) = panes.spaces.namespaces().next() {
            check_kept(cx, &panes.layout, start)?;
        }
        panes.spaces.namespaces().try_for_each(|(start, _)| check_start(cx, &panes.cuts, start))?;
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

    /// The window used last, if `time` is in it.
    #[inline]
    pub(crate) fn last_window(&self, time: EventTime) -> Option<TimeWindow> {
        self.last.map(|(window, _)| window).filter(|window| window.contains(time))
    }

    /// The map of the window used last.
    #[inline]
    pub(crate) fn last(&mut self) -> Option<&mut StateMap<K, A>> {
        self.last.map(|(_, space)| self.spaces.map(space))
    }

    /// The window of a time.
    pub(crate) fn window_of(&self, time: EventTime) -> TimeWindow {
        self.cuts.window_of(time)
    }

    /// The window that is kept under `start`, which is its start whatever cuts say: so closing it always closes that one.
    pub(crate) fn window_from(&self, start: i64) -> TimeWindow {
        TimeWindow { start: EventTime(start), ..self.cuts.window_of(EventTime(start)) }
    }

    /// The map of a window, opened if it is not.
    pub(crate) fn map_of(&mut self, window: TimeWindow) -> &mut StateMap<K, A> {
        let space = self.spaces.open(window.start.0);
        self.last = Some((window, space));
        self.spaces.map(space)
    }

    /// The map of a window that is not to be the one used last; opened if it is not.
    pub(crate) fn map_of_past(&mut self, window: TimeWindow) -> &mut StateMap<K, A> {
        let space = self.spaces.open(window.start.0);
        self.spaces.map(space)
    }

    /// Whatever was used last may be over.
    pub(crate) fn forget_last(&mut self) {
        self.last = None;
    }

    /// If what was used last is over it takes no more records, though it is still open.
    pub(crate) fn forget_last_if_over(&mut self, watermark: Watermark) {
        self.last = self.last.filter(|(window, _)| !window.is_over(watermark));
    }

    /// The open windows, in order.
    pub(crate) fn windows(&self) -> impl Iterator<Item = (TimeWindow, Space)> + '_ {
        self.spaces.namespaces().map(|(start, space)| (self.window_from(start), space))
    }

    /// Fetches what is kept of the keys of these records.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn prefetch<T>(&mut self, records: &[Record<Keyed<K, T>>]) -> Result<()> {
        prefetch(&self.cuts, &mut self.spaces, records)
    }

    /// Fetches what `spaces`, which are windows by their start as these here, keep of the keys of these records.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn prefetch_in<T>(
        &self,
        spaces: &mut Spaces<K, A>,
        records: &[Record<Keyed<K, T>>],
    ) -> Result<()> {
        prefetch(&self.cuts, spaces, records)
    }

    /// The window that ends first, if it is over.
    pub(crate) fn first_over(&self, watermark: Watermark) -> Option<(TimeWindow, Space)> {
        let (start, space) = self.spaces.namespaces().next()?;
        let window = self.window_from(start);
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
        keep_layout(&self.layout, into);
        Ok(())
    }
}

fn prefetch<K: Key, A: State, T>(
    cuts: &Cuts,
    spaces: &mut Spaces<K, A>,
    records: &[Record<Keyed<K, T>>],
) -> Result<()> {
    for (window, of_window) in runs(|time| cuts.window_of(time), records) {
        if let Some(space) = spaces.get(window.start.0) {
            spaces.map(space).prefetch(of_window.iter().map(|r| (r.value.hash, &r.value.key)))?;
        }
    }
    Ok(())
}

/// The records, as far as they follow each other in one window together, each time with that window.
pub(crate) fn runs<K, T>(
    window_of: impl Fn(EventTime) -> TimeWindow,
    mut records: &[Record<Keyed<K, T>>],
) -> impl Iterator<Item = (TimeWindow, &[Record<Keyed<K, T>>])> {
    std::iter::from_fn(move || {
        let window = window_of(records.first()?.time);
        let run = records.iter().take_while(|r| window.contains(r.time)).count().max(1);
        let (of_window, others) = records.split_at(run);
        records = others;
        Some((window, of_window))
    })
}
