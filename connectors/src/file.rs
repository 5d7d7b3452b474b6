//! Reads files of CSV rows, JSON lines or plain lines, streamed through a fixed buffer.

mod framing;

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use weir_engine::{
    Data, DeadLetter, EventTime, OperatorContext, Result, Source, SourceBatch, SourceStatus, SplitId,
    TaskError,
};

use self::framing::{Frame, Framer, Framing};
use crate::format::{Csv, Decoder, Json, Utf8};

/// The longest line or row, in bytes, unless told otherwise.
pub const LINE_LIMIT: usize = 16 << 20;
/// What one open file may read ahead.
const BUFFER: usize = 256 << 10;
/// How many bad rows one poll passes on: they count against no room, and a file may hold nothing else.
const REJECTED_PER_POLL: usize = 256;

/// Reads files from start to end. Each file is a split; with `p` subtasks, subtask `s` reads files `s`, `s + p`, …, one
/// after the other.
///
/// *Watermarks*: every file is announced at the start, so the watermark stays back until the last file has begun, and no row
/// is late merely because its file is read after another; a file that waits its turn is not idle, however long that takes.
/// A file that is not in event-time order itself takes the strategy `at_end`. Records have no time until an extractor
/// gives one.
///
/// *Bad rows* go to the dead-letter output with path, line and reason; so does a row above [`FileSource::line_limit`], cut
/// to its first 4 KiB. Empty lines are no rows, except in plain lines. A byte order mark is skipped. Files must not be
/// compressed, and what is appended after the end was reached is not read.
///
/// *Memory*: one buffer of 256 KiB, and one row when it does not lie whole in it.
#[derive(Clone)]
pub struct FileSource<T, D> {
    paths: Vec<PathBuf>,
    decoder: D,
    framing: Framing,
    limit: usize,
    /// Takes the header row when files have one.
    header: Option<SetHeader<D>>,
    /// This subtask's files that are still to be read.
    waiting: VecDeque<(SplitId, PathBuf)>,
    reading: Option<Reading>,
    announced: bool,
    of: std::marker::PhantomData<fn() -> T>,
}

type SetHeader<D> = fn(&mut D, &[u8]) -> Result<(), String>;

/// The file at hand. A clone of a source is a recipe and reads nothing yet.
#[derive(Default)]
struct Reading(Option<Open>);

struct Open {
    split: SplitId,
    /// As in messages and dead letters.
    path: String,
    framer: Framer<BufReader<File>>,
    header_due: bool,
}

impl Clone for Reading {
    fn clone(&self) -> Self {
        Reading(None)
    }
}

/// Where a file source begins: `FileSource::csv::<Row>(path)`, `FileSource::json_lines::<Event>(path)`.
impl FileSource<(), ()> {
    /// Rows of comma-separated values without a header, decoded into `T` by position.
    pub fn csv<T: DeserializeOwned + Data>(path: impl Into<PathBuf>) -> FileSource<T, Csv<T>> {
        FileSource::framed(path, Framing::Csv(b','), Csv::new(b','))
    }

    /// One JSON value per line.
    pub fn json_lines<T: DeserializeOwned + Data>(path: impl Into<PathBuf>) -> FileSource<T, Json> {
        FileSource::framed(path, Framing::FilledLines, Json)
    }

    /// Lines as text, empty ones too.
    pub fn lines(path: impl Into<PathBuf>) -> FileSource<String, Utf8> {
        FileSource::framed(path, Framing::Lines, Utf8)
    }

    /// Lines decoded by a decoder of your own; empty lines are skipped.
    pub fn decoded<T: Data, D: Decoder<T>>(path: impl Into<PathBuf>, decoder: D) -> FileSource<T, D> {
        FileSource::framed(path, Framing::FilledLines, decoder)
    }
}

impl<T: DeserializeOwned + Data> FileSource<T, Csv<T>> {
    /// The first row of every file names the fields; rows are decoded by name.
    #[must_use]
    pub fn with_header(mut self) -> Self {
        self.header = Some(|decoder, row| decoder.set_header(row));
        self
    }

    /// Another byte than a comma separates the fields.
    #[must_use]
    pub fn delimiter(mut self, delimiter: u8) -> Self {
        self.framing = Framing::Csv(delimiter);
        self.decoder = Csv::new(delimiter);
        self
    }
}

impl<T, D> FileSource<T, D> {
    fn framed(path: impl Into<PathBuf>, framing: Framing, decoder: D) -> Self {
        FileSource {
            paths: vec![path.into()],
            decoder,
            framing,
            limit: LINE_LIMIT,
            header: None,
            waiting: VecDeque::new(),
            reading: None,
            announced: false,
            of: std::marker::PhantomData,
        }
    }

    /// Reads this file too.
    #[must_use]
    pub fn and(mut self, path: impl Into<PathBuf>) -> Self {
        self.paths.push(path.into());
        self
    }

    /// Reads these files too.
    #[must_use]
    pub fn and_all<P: Into<PathBuf>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.paths.extend(paths.into_iter().map(Into::into));
        self
    }

    /// The longest line or row in bytes, its line end included; a longer one is bad. [`LINE_LIMIT`] unless set.
    #[must_use]
    pub fn line_limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }
}

/// Opens `path` for reading; a folder is refused, since reading one only fails later.
fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder: name the files in it"));
    }
    Ok(file)
}

impl<T: Data, D: Decoder<T>> FileSource<T, D> {
    /// Opens the next file of this subtask; false when there is none.
    fn next_file(&mut self) -> Result<bool> {
        let Some((split, path)) = self.waiting.pop_front() else { return Ok(false) };
        let name = path.display().to_string();
        let file =
            open(&path).map_err(|e| TaskError::external(format!("cannot read {name}")).caused_by(e))?;
        let framer = Framer::new(BufReader::with_capacity(BUFFER, file), self.framing, self.limit);
        let header_due = self.header.is_some();
        self.reading = Some(Reading(Some(Open { split, path: name, framer, header_due })));
        Ok(true)
    }
}

impl<T: Data, D: Decoder<T>> Source for FileSource<T, D> {
    type Out = T;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.waiting = (self.paths.iter().enumerate())
            .filter(|(i, _)| i % cx.parallelism() == cx.subtask())
            .map(|(i, path)| (SplitId(i as u32), path.clone()))
            .collect();
        self.announced = false;
        self.reading = None;
        // All of them now: the start is the time to hear of a file that is not there.
        for (_, path) in &self.waiting {
            open(path).map_err(|e| {
                let message = format!("subtask {} cannot read {}", cx.subtask(), path.display());
                TaskError::external(message).caused_by(e)
            })?;
        }
        Ok(())
    }

    fn poll(&mut self, out: &mut SourceBatch<T>, budget: Duration) -> Result<SourceStatus> {
        if !std::mem::replace(&mut self.announced, true) {
            self.waiting.iter().for_each(|(split, _)| out.split_started(*split));
        }
        let deadline = Instant::now() + budget;
        let mut turns = 0u32;
        while out.room() > 0 && out.rejected().len() < REJECTED_PER_POLL {
            turns += 1;
            // The clock costs as much as a short row.
            if turns.is_multiple_of(64) && Instant::now() >= deadline {
                break;
            }
            let Some(Reading(Some(file))) = &mut self.reading else {
                if self.next_file()? {
                    continue;
                }
                return Ok(SourceStatus::End);
            };
            let frame = file
                .framer
                .next()
                .map_err(|e| TaskError::external(format!("cannot read on in {}", file.path)).caused_by(e))?;
            match frame {
                Frame::Record { bytes, line } if std::mem::take(&mut file.header_due) => {
                    if let Some(Err(reason)) = self.header.map(|set| set(&mut self.decoder, bytes)) {
                        let at =
                            format!("the header of {} (line {line}) cannot be used: {reason}", file.path);
                        return Err(TaskError::user(at));
                    }
                }
                Frame::Record { bytes, line } => match self.decoder.decode(bytes) {
                    Ok(value) => out.push(file.split, value, EventTime::NONE),
                    Err(reason) => out.reject(DeadLetter::new(&file.path, 0, line as i64, reason, bytes)),
                },
                Frame::Overlong { head, len, line } => {
                    let reason = format!(
                        "{len} bytes long, above the limit of {} (line_limit); the first {} are kept",
                        self.limit,
                        head.len()
                    );
                    out.reject(DeadLetter::new(&file.path, 0, line as i64, reason, head));
                }
                Frame::End => {
                    out.split_finished(file.split);
                    self.reading = None;
                }
            }
        }
        Ok(SourceStatus::More)
    }
}

impl<T, D> fmt::Debug for FileSource<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSource")
            .field("paths", &self.paths)
            .field("framing", &self.framing)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
