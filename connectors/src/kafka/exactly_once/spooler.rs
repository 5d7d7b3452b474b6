//! One subtask of an exactly-once sink: keeps records back in its spool, and hands them to the pump checkpoint by checkpoint.
// HOT: per record one encode into one buffer.

use std::sync::Arc;
use std::time::Duration;

use weir_engine::{Barrier, OperatorContext, Piece, Record, Result, Spool, TaskError};

use super::super::recipe::Recipe;
use super::kept::{Kept, kafka_time};
use super::marker::{FORMAT, Prepared};
use super::pump::Pump;
use crate::format::Encoder;

/// How many bytes of records make a chunk.
const CHUNK: usize = 256 << 10;
/// How often the pump is looked at while it is waited for.
const SLICE: Duration = Duration::from_millis(2);

pub(in super::super) struct Spooler {
    cx: OperatorContext,
    pump: Arc<Pump>,
    spool: Spool,
    topic: String,
    partitions: i32,
    next_partition: i32,
    largest: usize,
    /// What is written now.
    piece: Piece,
    chunk: Vec<u8>,
    /// Complete pieces that are not known to be visible, oldest first.
    outstanding: Vec<Piece>,
    handed: u64,
}

impl Spooler {
    pub(super) fn open(
        cx: &OperatorContext,
        pump: Arc<Pump>,
        topic: &str,
        partitions: i32,
        largest: usize,
    ) -> Result<Spooler> {
        // Dropped with the last subtask, whether this one opens or not.
        let spool = Spool::open(cx)?;
        pump.join(spool.clone());
        Ok(Spooler {
            pump,
            spool,
            topic: topic.to_owned(),
            partitions,
            next_partition: cx.subtask() as i32 % partitions,
            largest,
            // 0 stands for no piece.
            piece: Piece::new(cx, 1),
            chunk: Vec::with_capacity(CHUNK + (CHUNK >> 2)),
            outstanding: Vec::new(),
            handed: 0,
            cx: cx.clone(),
        })
    }

    /// Waits until all that the checkpoint held is visible.
    pub(in super::super) fn begin(&mut self) -> Result<()> {
        while !self.pump.has_begun()? {
            self.cx.wait(SLICE)?;
        }
        // Of former lives: it is visible, or no checkpoint knew of it.
        self.spool.forget_all()
    }

    pub(in super::super) fn write<T, E: Encoder<T>>(
        &mut self,
        batch: &mut Vec<Record<T>>,
        encoder: &mut E,
        recipe: &mut Recipe<T>,
    ) -> Result<()> {
        for record in batch.drain(..) {
            if let Err(reason) = recipe.make(&record.value, encoder) {
                recipe.reject(&self.topic, reason, &self.cx)?;
                continue;
            }
            let partition = recipe.partition(&record.value, self.partitions, &mut self.next_partition)?;
            let (key, payload, headers) = (recipe.key(), recipe.payload(), recipe.headers());
            let bytes = key.map_or(0, <[u8]>::len) + payload.map_or(0, <[u8]>::len) + headers.len();
            if bytes > self.largest {
                let reason = format!(
                    "{bytes} bytes for partition {partition} are more than message.max.bytes allows: raise it, here and on the broker"
                );
                recipe.reject(&self.topic, reason, &self.cx)?;
                continue;
            }
            let time = kafka_time(record.time);
            Kept { partition, time, key, payload, headers }.push(&mut self.chunk);
            if self.chunk.len() >= CHUNK {
                self.spool.append(&mut self.piece, &self.chunk)?;
                self.chunk.clear();
            }
        }
        self.pump.visible(self.cx.subtask()).map(drop)
    }

    /// Ends the piece at hand, and says what the checkpoint has to know.
    pub(in super::super) fn prepare(&mut self, barrier: Barrier) -> Result<serde_json::Value> {
        if !self.chunk.is_empty() {
            self.spool.append(&mut self.piece, &self.chunk)?;
            self.chunk.clear();
        }
        // What is visible is in no checkpoint from this one on, and the one before it is over.
        let visible = self.pump.visible(self.cx.subtask())?;
        let (gone, mut left): (Vec<Piece>, Vec<Piece>) =
            std::mem::take(&mut self.outstanding).into_iter().partition(|p| p.number <= visible);
        gone.iter().filter(|p| p.chunks > 0).try_for_each(|piece| self.spool.forget(piece))?;
        left.push(self.piece);
        self.piece = Piece::new(&self.cx, self.piece.number + 1);
        self.outstanding = left;
        let prepared = Prepared {
            format: FORMAT,
            life: self.pump.life().to_owned(),
            pieces: self.outstanding.clone(),
            last: barrier == Barrier::LAST,
        };
        serde_json::to_value(prepared)
            .map_err(|e| TaskError::internal("a list of pieces is no JSON").caused_by(e))
    }

    /// The checkpoint that has this is complete. Waits until what was handed over before is visible; the last piece is waited
    /// for too.
    pub(in super::super) fn commit(&mut self, prepared: &serde_json::Value) -> Result<()> {
        let prepared = read(prepared)?;
        self.until_visible(self.handed)?;
        let news: Vec<Piece> = prepared.pieces.into_iter().filter(|p| p.number > self.handed).collect();
        let Some(newest) = news.last().map(|piece| piece.number) else { return Ok(()) };
        self.pump.hand(news);
        self.handed = newest;
        if prepared.last { self.until_visible(newest) } else { Ok(()) }
    }

    fn until_visible(&self, number: u64) -> Result<()> {
        while self.pump.visible(self.cx.subtask())? < number {
            self.cx.wait(SLICE)?;
        }
        Ok(())
    }

    /// Lets go of the pump; the last subtask closes it.
    pub(in super::super) fn close(self) -> OperatorContext {
        let Spooler { pump, cx, .. } = self;
        drop(pump);
        cx
    }
}

/// Reads what a checkpoint holds of this sink.
pub(super) fn read(prepared: &serde_json::Value) -> Result<Prepared> {
    serde::Deserialize::deserialize(prepared).map_err(|e| {
        let message = format!(
            "the checkpoint holds {prepared} as prepared by this sink, which an exactly-once Kafka sink does not write: was there \
             another sink under this uid? Give this one a uid of its own"
        );
        TaskError::user(message).caused_by(e)
    })
}
