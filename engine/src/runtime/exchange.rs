//! The writing side of a task: routes records to channels in batches, and is the only place that waits on data downstream.
// HOT: no allocation per record, no lock, no log, no clock on the fast path, no `dyn` per record.

use weir_state::KeyHash;

use crate::context::TaskContext;
use crate::element::{Barrier, Data, Element, EndKind, Key, Keyed, Notice, Record};
use crate::error::Result;
use crate::ids::OperatorUid;
use crate::operator::{Closing, Collector};
use crate::pipe::Stage;
use crate::protocol::ProtocolCheck;
use crate::runtime::batch_size::{BATCH, BatchSizer};
use crate::runtime::channel::Tx;
use crate::runtime::edge::Partitioning;
use crate::runtime::stats::TaskStats;
use crate::runtime::sync::Instant;
use crate::time::Watermark;

/// One channel with the batch that is being filled for it. Aligned as tasks are.
#[repr(align(128))]
struct Output<T> {
    tx: Tx<T>,
    buffer: Vec<Record<T>>,
    sizer: BatchSizer,
    last_wait: Instant,
    consumer: OperatorUid,
    check: ProtocolCheck,
}

impl<T: Data> Output<T> {
    fn new(tx: Tx<T>, consumer: OperatorUid) -> Self {
        let (sizer, check) = (BatchSizer::new(BATCH, tx.capacity()), ProtocolCheck::default());
        Output { tx, buffer: Vec::new(), sizer, last_wait: Instant::now(), consumer, check }
    }

    #[inline]
    fn push(&mut self, record: Record<T>, cx: &TaskContext) -> Result<()> {
        self.buffer.push(record);
        if self.buffer.len() >= self.sizer.limit() { self.send_buffer(cx) } else { Ok(()) }
    }

    fn send_buffer(&mut self, cx: &TaskContext) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let batch = std::mem::replace(&mut self.buffer, self.tx.batch(self.sizer.limit()));
        self.send_batch(batch, cx)
    }

    fn send_batch(&mut self, batch: Vec<Record<T>>, cx: &TaskContext) -> Result<()> {
        self.check.passes();
        let n = batch.len();
        TaskStats::add(&cx.stats.records_out, n as u64);
        TaskStats::add(&cx.stats.batches_out, 1);
        match self.tx.try_send(Element::Batch(batch))? {
            None => self.sizer.sent(n),
            Some(batch) => {
                self.wait_and_send(batch, cx)?;
                let now = Instant::now();
                self.sizer.waited(n, now - self.last_wait);
                self.last_wait = now;
            }
        }
        Ok(())
    }

    /// Flush, then signal: nothing can come between the two.
    fn signal(&mut self, signal: Element<T>, cx: &TaskContext) -> Result<()> {
        self.send_buffer(cx)?;
        match &signal {
            Element::Watermark(w) => self.check.watermark(*w),
            Element::End(_) => self.check.end(),
            _ => self.check.passes(),
        }
        match self.tx.try_send(signal)? {
            None => Ok(()),
            Some(signal) => self.wait_and_send(signal, cx),
        }
    }

    #[cold]
    fn wait_and_send(&mut self, element: Element<T>, cx: &TaskContext) -> Result<()> {
        let _blocked = cx.stats.blocked(&self.consumer);
        self.tx.send_blocking(element, &cx.cancel)
    }
}

/// One edge out of the task.
struct Leg<T> {
    outs: Vec<Output<T>>,
    partitioning: Partitioning,
    next: usize,
}

impl<T: Data> Leg<T> {
    fn limit(&self) -> usize {
        match self.partitioning {
            Partitioning::Broadcast => self.outs.iter().map(|o| o.sizer.limit()).min().unwrap_or(BATCH),
            _ => self.outs.get(self.next).map_or(BATCH, |o| o.sizer.limit()),
        }
    }

    fn send(&mut self, batch: Vec<Record<T>>, cx: &TaskContext) -> Result<()> {
        if self.partitioning == Partitioning::Broadcast {
            let Some((last, others)) = self.outs.split_last_mut() else { return Ok(()) };
            for out in others {
                out.send_batch(batch.clone(), cx)?;
            }
            last.send_batch(batch, cx)
        } else {
            let Some(out) = self.outs.get_mut(self.next) else { return Ok(()) };
            out.send_batch(batch, cx)?;
            self.next = (self.next + 1) % self.outs.len();
            Ok(())
        }
    }
}

/// One buffer feeds every edge, so the slowest one's limit holds.
fn limit_of<T: Data>(legs: &[Leg<T>]) -> usize {
    legs.iter().map(Leg::limit).min().unwrap_or(BATCH)
}

/// Sends whole batches along any number of edges: forward, rebalance or broadcast. The last edge gets the move, the
/// others a clone.
pub(crate) struct Exchange<T> {
    buffer: Vec<Record<T>>,
    limit: usize,
    legs: Vec<Leg<T>>,
    cx: TaskContext,
}

impl<T: Data> Exchange<T> {
    pub(crate) fn new(
        legs: impl IntoIterator<Item = (Vec<Tx<T>>, Partitioning, OperatorUid)>,
        cx: TaskContext,
    ) -> Self {
        let legs: Vec<_> = (legs.into_iter())
            .map(|(tx, partitioning, consumer)| Leg {
                outs: tx.into_iter().map(|tx| Output::new(tx, consumer.clone())).collect(),
                partitioning,
                next: 0,
            })
            .collect();
        let limit = limit_of(&legs);
        Exchange { buffer: Vec::new(), limit, legs, cx }
    }

    /// An empty buffer, if possible one that the next consumer has emptied.
    fn spare(&self) -> Vec<Record<T>> {
        let next = self.legs.last().and_then(|leg| leg.outs.get(leg.next));
        next.map_or_else(Vec::new, |out| out.tx.batch(self.limit))
    }

    fn dispatch(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let room = self.spare();
        let batch = std::mem::replace(&mut self.buffer, room);
        let Some((last, others)) = self.legs.split_last_mut() else { return Ok(()) };
        for leg in others {
            leg.send(batch.clone(), &self.cx)?;
        }
        last.send(batch, &self.cx)?;
        self.limit = limit_of(&self.legs);
        Ok(())
    }

    fn signal(&mut self, signal: &Element<T>) -> Result<()> {
        self.dispatch()?;
        for out in self.legs.iter_mut().flat_map(|leg| &mut leg.outs) {
            out.signal(signal.clone(), &self.cx)?;
        }
        Ok(())
    }
}

impl<T: Data> Collector<T> for Exchange<T> {
    #[inline]
    fn emit(&mut self, record: Record<T>) -> Result<()> {
        self.buffer.push(record);
        if self.buffer.len() >= self.limit { self.dispatch() } else { Ok(()) }
    }
}

impl<T: Data> Stage<T> for Exchange<T> {
    fn open(&mut self, _: &TaskContext) -> Result<()> {
        Ok(())
    }
    fn batch_end(&mut self) -> Result<()> {
        Ok(())
    }
    fn quiet(&mut self) -> Result<()> {
        self.dispatch()
    }
    fn watermark(&mut self, w: Watermark) -> Result<()> {
        self.signal(&Element::Watermark(w))
    }
    fn idle(&mut self) -> Result<()> {
        self.signal(&Element::Idle)
    }
    fn active(&mut self) -> Result<()> {
        self.signal(&Element::Active)
    }
    fn barrier(&mut self, b: Barrier) -> Result<()> {
        self.signal(&Element::Barrier(b))
    }
    fn end(&mut self, kind: EndKind) -> Result<()> {
        self.signal(&Element::End(kind))
    }
    fn notice(&mut self, _: Notice) -> Result<()> {
        Ok(())
    }
    fn close(&mut self, _: Closing) {}
}

/// Key group to consumer subtask: read for each record, so on lines that nobody writes to, aligned as tasks are.
struct Owners(Box<[Lane]>);

#[derive(Clone)]
#[repr(align(128))]
struct Lane([u16; LANE]);

const LANE: usize = 64;

impl Owners {
    fn new(owners: impl ExactSizeIterator<Item = u16>) -> Self {
        let mut lanes = vec![Lane([0; LANE]); owners.len().div_ceil(LANE)];
        owners.enumerate().for_each(|(group, owner)| lanes[group / LANE].0[group % LANE] = owner);
        Owners(lanes.into())
    }

    #[inline]
    fn of(&self, group: u16) -> usize {
        usize::from(self.0[usize::from(group) / LANE].0[usize::from(group) % LANE])
    }
}

/// Sends each record to the subtask that owns its key group.
pub(crate) struct KeyedExchange<K, T> {
    outs: Vec<Output<Keyed<K, T>>>,
    owners: Owners,
    groups: u16,
    cx: TaskContext,
}

impl<K: Key, T: Data> KeyedExchange<K, T> {
    pub(crate) fn new(tx: Vec<Tx<Keyed<K, T>>>, consumer: OperatorUid, cx: TaskContext) -> Self {
        let groups = cx.key_groups;
        let owners =
            Owners::new((0..groups).map(|g| weir_state::KeyGroup(g).subtask(groups, tx.len()) as u16));
        KeyedExchange {
            outs: tx.into_iter().map(|tx| Output::new(tx, consumer.clone())).collect(),
            owners,
            groups,
            cx,
        }
    }

    #[inline]
    fn owner(&self, hash: KeyHash) -> usize {
        self.owners.of(hash.group(self.groups).0)
    }

    fn signal(&mut self, signal: &Element<Keyed<K, T>>) -> Result<()> {
        for out in &mut self.outs {
            out.signal(signal.clone(), &self.cx)?;
        }
        Ok(())
    }
}

impl<K: Key, T: Data> Collector<Keyed<K, T>> for KeyedExchange<K, T> {
    #[inline]
    fn emit(&mut self, record: Record<Keyed<K, T>>) -> Result<()> {
        let owner = self.owner(record.value.hash);
        self.outs[owner].push(record, &self.cx)
    }
}

impl<K: Key, T: Data> Stage<Keyed<K, T>> for KeyedExchange<K, T> {
    fn open(&mut self, _: &TaskContext) -> Result<()> {
        Ok(())
    }
    fn batch_end(&mut self) -> Result<()> {
        Ok(())
    }
    fn quiet(&mut self) -> Result<()> {
        self.outs.iter_mut().try_for_each(|out| out.send_buffer(&self.cx))
    }
    fn watermark(&mut self, w: Watermark) -> Result<()> {
        self.signal(&Element::Watermark(w))
    }
    fn idle(&mut self) -> Result<()> {
        self.signal(&Element::Idle)
    }
    fn active(&mut self) -> Result<()> {
        self.signal(&Element::Active)
    }
    fn barrier(&mut self, b: Barrier) -> Result<()> {
        self.signal(&Element::Barrier(b))
    }
    fn end(&mut self, kind: EndKind) -> Result<()> {
        self.signal(&Element::End(kind))
    }
    fn notice(&mut self, _: Notice) -> Result<()> {
        Ok(())
    }
    fn close(&mut self, _: Closing) {}
}
