//! Writes files exactly once: hidden while they are written, visible by one rename when their checkpoint is complete (over 400 lines: one protocol).
// HOT: per batch, but for the format's loop.

mod names;
#[cfg(feature = "parquet")]
mod parquet;
mod part;
mod rows;
mod visible;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_engine::memory::Footprint;
use weir_engine::{Barrier, Closing, Counter, Data, OperatorContext, Record, Result, Sink, TaskError};

use self::names::Names;
#[cfg(feature = "parquet")]
pub use self::parquet::ParquetRows;
use self::part::{Part, Prepared, cannot, publish, remove, sync_folder};
pub use self::rows::{CsvRows, EncodedLines, JsonLines, RowFormat};
pub use self::visible::{visible_files, visible_lines};
use crate::format::Encoder;

/// A file is closed when it has so many bytes, unless told otherwise.
const ROLL_BYTES: u64 = 128 << 20;
/// What is held back to be written at once.
const BUFFER: usize = 64 << 10;
/// The list of a checkpoint that holds what the engine keeps of [`Sink::prepare`].
const PREPARED: &str = "prepared";

/// Writes records into files of one folder, exactly once.
///
/// *Visible files* are whole and never change: `part-<uid>-<subtask>-<attempt>-<number>.jsonl` (or `.csv`). A record is seen
/// once the checkpoint after it is complete, so a checkpoint's interval is how long a reader waits. Without checkpoints each
/// subtask shows its records when its input has ended, and a restart after that writes them again. Each subtask writes a file a checkpoint, or more when they grow over
/// [`FileSink::roll_bytes`]; none when it got no record. Files whose names begin with a dot are none of a reader's business.
///
/// *After a failure* the next life shows what the checkpoint counts as written, and removes what was written since. It never
/// touches visible files: a job that begins anew, or from anything but its last checkpoint, adds to those that are there.
///
/// *The folder* is made if it is not there. It may hold the files of several sinks, but not of two jobs whose sinks have the
/// same uid: each would take the other's unfinished files for its own leftovers.
///
/// *Blocking*: as long as the disk does. A full disk fails the job and names the file.
///
/// ```
/// # use weir_engine::{prelude::*, testkit::ScriptSource};
/// use weir_connectors::file::{FileSink, visible_lines};
/// # let folder = std::env::temp_dir().join(format!("weir-doc-sink-{}", std::process::id()));
/// let job = Job::named("copy").parallelism(1);
/// job.source("in", ScriptSource::of([(1, 0), (2, 5)])).without_event_time().sink("out", FileSink::json_lines(&folder));
/// job.run()?;
/// assert_eq!(visible_lines(&folder).unwrap(), ["1", "2"]);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), JobError>(())
/// ```
pub struct FileSink<T, F> {
    folder: PathBuf,
    format: F,
    prefix: Option<String>,
    roll_bytes: u64,
    taken_away: bool,
    open: Option<Open>,
    of: PhantomData<fn(T)>,
    /// What the disk has left for a file.
    #[cfg(test)]
    room: Option<u64>,
}

/// What a subtask has while it runs.
struct Open {
    cx: OperatorContext,
    names: Names,
    /// Of the next file.
    number: u64,
    part: Option<Part>,
    /// Lines that are not in the file yet.
    buffer: Vec<u8>,
    /// Closed since the last barrier.
    closed: Vec<Prepared>,
    committed: Counter,
}

/// The answer to [`Sink::prepare`]. Its JSON is part of what checkpoints hold.
#[derive(Debug, Serialize, Deserialize)]
struct Work {
    files: Vec<Prepared>,
}

/// Where a file sink begins: `FileSink::json_lines(folder)`, `FileSink::csv(folder)`.
impl<T: Serialize> FileSink<T, JsonLines> {
    /// One JSON value a line.
    pub fn json_lines(folder: impl Into<PathBuf>) -> Self {
        FileSink::of_format(folder, JsonLines)
    }
}

impl<T: Serialize> FileSink<T, CsvRows> {
    /// One CSV row a record: a struct or tuple of plain values.
    pub fn csv(folder: impl Into<PathBuf>) -> Self {
        FileSink::of_format(folder, CsvRows { delimiter: b',', header: false })
    }

    /// Begins every file with the names of the fields; a tuple has none, and gets no such row.
    #[must_use]
    pub fn with_header(mut self) -> Self {
        self.format.header = true;
        self
    }

    /// Another byte than a comma between fields.
    #[must_use]
    pub fn delimiter(mut self, delimiter: u8) -> Self {
        self.format.delimiter = delimiter;
        self
    }
}

impl<T, E> FileSink<T, EncodedLines<E>> {
    /// One line a record, made by an encoder of your own, which puts no line end into it. Names of files end in `extension`.
    pub fn encoded(folder: impl Into<PathBuf>, extension: impl Into<String>, encoder: E) -> Self
    where
        E: Encoder<T>,
    {
        FileSink::of_format(folder, EncodedLines { encoder, extension: extension.into() })
    }
}

#[cfg(feature = "parquet")]
impl<T: Serialize> FileSink<T, ParquetRows> {
    /// Files in Parquet, compressed with Snappy. `schema` has a column for each field of the record, as Parquet writes schemas; see
    /// [`ParquetRows`].
    ///
    /// ```no_run
    /// use weir_connectors::file::FileSink;
    /// #[derive(Clone, serde::Serialize)]
    /// struct Order { id: u64, user: String, at: Option<i64> }
    /// let schema = "message order { required int64 id; required binary user (STRING); optional int64 at (TIMESTAMP(MILLIS,true)); }";
    /// let sink = FileSink::<Order, _>::parquet("/data/orders", schema);
    /// # drop(sink);
    /// ```
    pub fn parquet(folder: impl Into<PathBuf>, schema: impl Into<String>) -> Self {
        FileSink::of_format(folder, ParquetRows::of(schema))
    }
}

impl<T, F> FileSink<T, F> {
    /// Files of a format of your own.
    pub fn of_format(folder: impl Into<PathBuf>, format: F) -> Self {
        FileSink {
            folder: folder.into(),
            format,
            prefix: None,
            roll_bytes: ROLL_BYTES,
            taken_away: false,
            open: None,
            of: PhantomData,
            #[cfg(test)]
            room: None,
        }
    }

    /// What visible names begin with instead of `part-<uid>`: up to 64 letters, digits, dots, underscores and hyphens, or
    /// the job does not start. Another sink that writes to the same folder must have another.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Closes a file when it has this many bytes, and begins another (default: 128 MiB). A file is over that by a batch at
    /// most.
    #[must_use]
    pub fn roll_bytes(mut self, bytes: u64) -> Self {
        self.roll_bytes = bytes;
        self
    }

    /// Whoever reads the visible files moves them away. Without this, a life that begins from a checkpoint fails when a file
    /// of it is neither hidden nor visible: it was lost. With it, such a file counts as read.
    #[must_use]
    pub fn taken_away(mut self) -> Self {
        self.taken_away = true;
        self
    }
}

impl Open {
    /// Writes out what is held back.
    fn empty(&mut self) -> Result<()> {
        if let Some(part) = self.part.as_mut().filter(|_| !self.buffer.is_empty()) {
            part.write(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Everything written so far is on the disk.
    fn sync(&mut self) -> Result<()> {
        self.empty()?;
        self.part.as_mut().map_or(Ok(()), Part::sync)
    }

    /// Closes the file at hand.
    fn close_part<T, F: RowFormat<T>>(&mut self, format: &mut F) -> Result<()> {
        if self.part.is_some() {
            format.finish(&mut self.buffer).map_err(TaskError::user)?;
        }
        self.sync()?;
        self.closed.extend(self.part.take().map(Part::close));
        Ok(())
    }
}

impl<T, F> FileSink<T, F> {
    /// Gives prepared files their names.
    fn publish(&self, open: &Open, prepared: &serde_json::Value) -> Result<()> {
        let mut renamed = 0;
        for file in read(prepared)?.files {
            renamed += u64::from(publish(&self.folder, &file, self.taken_away)?);
        }
        if renamed > 0 {
            sync_folder(&self.folder)?;
            open.committed.add(renamed);
        }
        Ok(())
    }

    /// Removes the hidden files that no life will ever show. Nobody writes yet, so all there are were left by earlier lives.
    fn remove_leftovers(&self, open: &Open) -> Result<()> {
        // Those of other subtasks may still wait to be shown.
        let mut kept = BTreeSet::new();
        for item in open.cx.restored(PREPARED) {
            kept.extend(read(&item.value)?.files.into_iter().map(|file| file.temp));
        }
        for name in entries(&self.folder)? {
            // Each is removed by the subtask that stands in for the one that wrote it, and has shown what it prepared.
            let own = |old: usize| old % open.cx.parallelism() == open.cx.subtask();
            if open.names.hidden_of(&name).is_some_and(own) && !kept.contains(&name) {
                tracing::debug!(operator = %open.cx.uid(), file = name, "removes what a life that ended had not finished");
                remove(&self.folder.join(name))?;
            }
        }
        Ok(())
    }
}

impl<T: Data, F: RowFormat<T>> Sink<T> for FileSink<T, F> {
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let extension = self.format.extension();
        if extension.is_empty() || !extension.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.') {
            let message =
                format!("{extension:?} cannot end the names of files: take letters, digits and dots");
            return Err(TaskError::user(message));
        }
        self.format.check().map_err(TaskError::user)?;
        let names = Names::new(cx, self.prefix.as_deref(), extension)?;
        fs::create_dir_all(&self.folder).map_err(|e| cannot("create folder", &self.folder, e))?;
        // The start is the time to hear that nothing can be written here.
        let trial = self.folder.join(names.trial());
        fs::File::create(&trial).map_err(|e| cannot("create a file in", &self.folder, e))?;
        remove(&trial)?;
        let numbers = entries(&self.folder)?;
        let number = numbers.iter().filter_map(|name| names.number(name)).max().map_or(0, |last| last + 1);
        self.open = Some(Open {
            committed: cx.counter("files_committed"),
            cx: cx.clone(),
            names,
            number,
            part: None,
            buffer: Vec::with_capacity(BUFFER),
            closed: Vec::new(),
        });
        Ok(())
    }

    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        let open = self.open.as_mut().ok_or_else(not_open)?;
        #[cfg(not(test))]
        let room = None;
        #[cfg(test)]
        let room = self.room;
        let first = open.part.is_none();
        let part = match &mut open.part {
            Some(part) => part,
            none => none.insert(Part::create(&self.folder, &open.names, &mut open.number, room)?),
        };
        self.format.append(batch, first, &mut open.buffer).map_err(TaskError::user)?;
        part.records += batch.len() as u64;
        batch.clear();
        let bytes = part.bytes + open.buffer.len() as u64 + self.format.held_back();
        if open.buffer.len() >= BUFFER {
            open.empty()?;
        }
        if bytes >= self.roll_bytes { open.close_part::<T, F>(&mut self.format) } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.open.as_mut().map_or(Ok(()), Open::sync)
    }

    fn prepare(&mut self, _: Barrier) -> Result<Option<serde_json::Value>> {
        let open = self.open.as_mut().ok_or_else(not_open)?;
        open.close_part::<T, F>(&mut self.format)?;
        if open.closed.is_empty() {
            return Ok(None);
        }
        sync_folder(&self.folder)?;
        let work = Work { files: std::mem::take(&mut open.closed) };
        let prepared = serde_json::to_value(&work)
            .map_err(|e| TaskError::internal("a list of files is no JSON").caused_by(e))?;
        Ok(Some(prepared))
    }

    fn commit(&mut self, prepared: serde_json::Value) -> Result<()> {
        let open = self.open.as_ref().ok_or_else(not_open)?;
        self.publish(open, &prepared)
    }

    fn recover(&mut self, prepared: Option<Vec<serde_json::Value>>) -> Result<()> {
        let open = self.open.as_ref().ok_or_else(not_open)?;
        prepared.iter().flatten().try_for_each(|work| self.publish(open, work))?;
        self.remove_leftovers(open)
    }

    fn footprint(&self) -> Footprint {
        match self.format.memory() {
            0 => Footprint::none(),
            bytes => Footprint::per_subtask("rows of a file that are held back", bytes, 0),
        }
    }

    fn close(&mut self, _: Closing) {
        let Some(Open { part, closed, .. }) = self.open.take() else { return };
        // What is left has not been prepared, so no checkpoint knows of it.
        part.into_iter().for_each(Part::discard);
        for file in closed {
            if let Err(e) = remove(&self.folder.join(&file.temp)) {
                tracing::warn!("an unfinished file is left behind: {}", e.chain());
            }
        }
    }
}

impl<T, F: Clone> Clone for FileSink<T, F> {
    /// The recipe; what is open stays with the original.
    fn clone(&self) -> Self {
        FileSink {
            folder: self.folder.clone(),
            format: self.format.clone(),
            prefix: self.prefix.clone(),
            roll_bytes: self.roll_bytes,
            taken_away: self.taken_away,
            open: None,
            of: PhantomData,
            #[cfg(test)]
            room: self.room,
        }
    }
}

impl<T, F> fmt::Debug for FileSink<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSink")
            .field("folder", &self.folder)
            .field("prefix", &self.prefix)
            .field("roll_bytes", &self.roll_bytes)
            .field("taken_away", &self.taken_away)
            .field("open", &self.open.is_some())
            .finish_non_exhaustive()
    }
}

fn read(prepared: &serde_json::Value) -> Result<Work> {
    Work::deserialize(prepared).map_err(|e| {
        let message = format!(
            "the checkpoint holds {prepared} as prepared by this sink, which is no list of files: was there another sink under \
             this uid? Give this one a uid of its own"
        );
        TaskError::user(message).caused_by(e)
    })
}

fn entries(folder: &Path) -> Result<Vec<String>> {
    let names =
        || fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>();
    let names = names().map_err(|e| cannot("look into", folder, e))?;
    Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

fn not_open() -> TaskError {
    TaskError::internal("a file sink was used before it was opened")
}

#[cfg(test)]
mod tests;
