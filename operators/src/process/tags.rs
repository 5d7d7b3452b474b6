//! `Tag`: a side output of a process function, with a name and a type of its own.

use std::fmt;

use weir_engine::{
    Barrier, Collector, Data, EndKind, Key, OperatorContext, Pipe, Record, Result, SideOutput, SideSlot,
    SignalPort, Stream, TaskError, Watermark,
};

use super::{Process, ProcessFunction};
use crate::opened::Opened;

/// A side output: a field of a process function, which gives it in [`tags`](super::ProcessFunction::tags). A copy of it, kept by who
/// writes the job, reads what comes out ([`TagOps::tagged`]); the type of the tag is that of the stream.
///
/// Signals go to every tag as they go to the main output: what is given before a watermark comes before it. What is given to a tag that
/// nobody reads goes nowhere.
pub struct Tag<T: Data> {
    name: &'static str,
    slot: SideSlot<T>,
    output: Opened<SideOutput<T>>,
}

impl<T: Data> Tag<T> {
    /// A tag; `name` shows in the plan.
    pub fn named(name: &'static str) -> Self {
        Tag { name, slot: SideSlot::default(), output: Opened(None) }
    }

    /// Gives a record to the side output.
    ///
    /// *Blocking*: while the reader's channel is full.
    ///
    /// # Errors
    /// The function does not give the tag in `tags`; the attempt is cancelled: pass it on.
    #[inline]
    pub fn emit(&mut self, record: Record<T>) -> Result<()> {
        match &mut self.output.0 {
            Some(output) => output.emit(record),
            None => Err(self.not_given()),
        }
    }

    #[cold]
    fn not_given(&self) -> TaskError {
        TaskError::user(format!(
            "the side output {:?} was used, but it is not open: let the function give it in tags()",
            self.name
        ))
    }
}

impl<T: Data> Clone for Tag<T> {
    /// Of the same side output; not open.
    fn clone(&self) -> Self {
        Tag { name: self.name, slot: self.slot.clone(), output: Opened(None) }
    }
}

impl<T: Data> fmt::Debug for Tag<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({:?})", self.name)
    }
}

/// A [`Tag`], whatever its type.
pub trait Tagged {
    /// Opens it in one subtask.
    fn open(&mut self, cx: &OperatorContext);

    /// Where signals go on, once it is open.
    fn signals(&mut self) -> Option<&mut dyn SignalPort>;
}

impl<T: Data> Tagged for Tag<T> {
    fn open(&mut self, cx: &OperatorContext) {
        self.output = Opened(Some(self.slot.open(cx)));
    }

    fn signals(&mut self) -> Option<&mut dyn SignalPort> {
        self.output.0.as_mut().map(SideOutput::signals)
    }
}

/// Passes signals on to all side outputs of its function.
impl<K: Key, In: Data, F: ProcessFunction<K, In>> SignalPort for Process<K, In, F> {
    fn quiet(&mut self) -> Result<()> {
        self.each_tag(|port| port.quiet())
    }
    fn watermark(&mut self, watermark: Watermark) -> Result<()> {
        self.each_tag(|port| port.watermark(watermark))
    }
    fn idle(&mut self) -> Result<()> {
        self.each_tag(|port| port.idle())
    }
    fn active(&mut self) -> Result<()> {
        self.each_tag(|port| port.active())
    }
    fn barrier(&mut self, barrier: Barrier) -> Result<()> {
        self.each_tag(|port| port.barrier(barrier))
    }
    fn end(&mut self, kind: EndKind) -> Result<()> {
        self.each_tag(|port| port.end(kind))
    }
}

impl<K: Key, In: Data, F: ProcessFunction<K, In>> Process<K, In, F> {
    fn each_tag(&mut self, pass: impl Fn(&mut dyn SignalPort) -> Result<()>) -> Result<()> {
        self.function().tags().into_iter().filter_map(Tagged::signals).try_for_each(pass)
    }
}

/// Reads the side outputs of a process function.
pub trait TagOps {
    /// What the function gives to `tag`. To be called right behind the function that has it; each call is one more reader. A tag that
    /// belongs to another operator, or that its function does not give in `tags`, fails the job.
    fn tagged<U: Data>(&self, tag: &Tag<U>) -> Stream<U>;
}

impl<T: Data, P: Pipe<Out = T>> TagOps for Stream<T, P> {
    fn tagged<U: Data>(&self, tag: &Tag<U>) -> Stream<U> {
        self.side(&tag.slot, tag.name)
    }
}

#[cfg(test)]
#[path = "tags_tests.rs"]
mod tests;
