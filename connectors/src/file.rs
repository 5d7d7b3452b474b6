//! Reads files of CSV rows, JSON lines or plain lines, streamed through a fixed buffer; writes such files exactly once.

mod framing;
mod place;
mod sink;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use weir_engine::{
    Barrier, Data, DeadLetter, EventTime, OperatorContext, RestoredItem, Result, Source, SourceBatch,
    SourceStatus, SplitId, TaskError,
};

use self::framing::{Frame, Framer, Framing};
use self::place::{Place, open_at, still_done, whole};
pub use self::sink::{CsvRows, EncodedLines, FileSink, JsonLines, RowFormat, visible_files, visible_lines};
use crate::format::{Csv, Decoder, Json, Utf8};
use crate::stripes::POSITIONS;

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
/// *Checkpoints* hold, by each file's path as it is given here and by its whole path, the byte and line that reading has come to. A
/// life that begins from one goes on there, at whatever parallelism, and so it does when the path is written otherwise (`./a.csv`,
/// `/data/a.csv`). A file that was read to its end is not read again and need not be there any more. A file that has become
/// shorter, or another at its start or where reading stopped, is refused: a path that means another file now, too. Files may be
/// added, and read ones left out, but not one that is half read.
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
    /// This subtask's files.
    files: Vec<Share>,
    /// Indices of those that are still to be read.
    waiting: VecDeque<usize>,
    reading: Option<Reading>,
    announced: bool,
    of: std::marker::PhantomData<fn() -> T>,
}

type SetHeader<D> = fn(&mut D, &[u8]) -> Result<(), String>;

/// One file of a subtask.
#[derive(Clone)]
struct Share {
    split: SplitId,
    path: PathBuf,
    /// As in checkpoints.
    name: String,
    /// The same wherever the process stands.
    whole: String,
    /// Where reading began or ended.
    place: Place,
}

/// The file at hand. A clone of a source is a recipe and reads nothing yet.
#[derive(Default)]
struct Reading(Option<Open>);

struct Open {
    split: SplitId,
    /// The index into `files`.
    share: usize,
    /// As in messages and dead letters.
    path: String,
    framer: Framer<BufReader<File>>,
    /// The same file again, to look at what was read without moving the reader.
    again: File,
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
            files: Vec::new(),
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

/// The files by their names in checkpoints: their paths, a second mention numbered.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let of = |path: &PathBuf| path.to_str().map_or_else(|| format!("{path:?}"), str::to_owned);
    let plain: Vec<String> = paths.iter().map(of).collect();
    let mut names: Vec<String> = Vec::with_capacity(plain.len());
    for (at, name) in plain.iter().enumerate() {
        let mut mention = 1 + plain[..at].iter().filter(|other| *other == name).count();
        let numbered =
            |mention: usize| if mention == 1 { name.clone() } else { format!("{name} #{mention}") };
        // A file may be called as another's second mention is.
        let taken = |called: &String| names.contains(called) || (called != name && plain.contains(called));
        while taken(&numbered(mention)) {
            mention += 1;
        }
        names.push(numbered(mention));
    }
    names
}

/// Where a checkpoint says that each file stands.
fn places(restored: &[RestoredItem]) -> Result<BTreeMap<&str, Place>> {
    let place = |item: &RestoredItem| {
        serde_json::from_value(item.value.clone()).map_err(|e| {
            let message = format!(
                "the checkpoint holds {}: {} as a position of this source, which is none in a file: was there another source \
                 under this uid? Give this one a uid of its own",
                item.key, item.value
            );
            TaskError::user(message).caused_by(e)
        })
    };
    restored.iter().map(|item| Ok((item.key.as_str(), place(item)?))).collect()
}

impl<T: Data, D: Decoder<T>> FileSource<T, D> {
    /// Opens where `restored` says, what the checkpoint holds of all subtasks.
    fn begin(&mut self, cx: &OperatorContext, restored: &[RestoredItem]) -> Result<()> {
        let (names, mut places) = (names(&self.paths), places(restored)?);
        let mut all: Vec<Share> = (self.paths.iter().zip(names).enumerate())
            .map(|(i, (path, name))| {
                let place = places.remove(name.as_str()).unwrap_or(Place::START);
                Share { split: SplitId(i as u32), path: path.clone(), whole: whole(path), name, place }
            })
            .collect();
        // The same file, its path written otherwise.
        for share in all.iter_mut().filter(|share| share.place == Place::START) {
            let same = places.iter().find(|(_, place)| place.path.as_ref() == Some(&share.whole));
            if let Some(name) = same.map(|(name, _)| *name) {
                share.place = places.remove(name).unwrap_or(Place::START);
            }
        }
        let half_read = |place: &Place| !place.done && place.offset > 0;
        if let Some((name, place)) = places.iter().find(|(_, place)| half_read(place)) {
            return Err(TaskError::user(format!(
                "the checkpoint stands at byte {} (line {}) of {name}, which this source does not read any more: name the file \
                 again, and leave it out once it was read to its end",
                place.offset, place.line
            )));
        }
        let own = |share: &Share| share.split.0 as usize % cx.parallelism() == cx.subtask();
        self.files = all.into_iter().filter(own).collect();
        for share in self.files.iter().filter(|share| share.place.done) {
            still_done(&share.path, &share.place)?;
        }
        self.waiting = (0..self.files.len()).filter(|i| !self.files[*i].place.done).collect();
        self.announced = false;
        self.reading = None;
        // All of them now: the start is the time to hear of a file that is not there.
        for share in self.waiting.iter().map(|i| &self.files[*i]) {
            open_at(&share.path, &share.place)?;
        }
        Ok(())
    }

    /// Opens the next file of this subtask; false when there is none.
    fn next_file(&mut self) -> Result<bool> {
        let Some(index) = self.waiting.pop_front() else { return Ok(false) };
        let Share { split, path, place, .. } = &self.files[index];
        let reader = |file| BufReader::with_capacity(BUFFER, file);
        let (at, line) = (place.offset, place.line);
        if at > 0 && self.header.is_some() {
            let mut framer = Framer::new(reader(open_at(path, &Place::START)?), self.framing, self.limit);
            take_header(&mut self.decoder, self.header, &mut framer, &path.display().to_string())?;
        }
        let framer = Framer::resume(reader(open_at(path, place)?), self.framing, self.limit, at, line);
        let again = open_at(path, &Place::START)?;
        let (path, header_due) = (path.display().to_string(), at == 0 && self.header.is_some());
        self.reading =
            Some(Reading(Some(Open { split: *split, share: index, path, framer, again, header_due })));
        Ok(true)
    }
}

/// Reads the header row, which has the names of the fields, if there is any row at all.
fn take_header<D>(
    decoder: &mut D,
    header: Option<SetHeader<D>>,
    framer: &mut Framer<BufReader<File>>,
    path: &str,
) -> Result<()> {
    let unusable = |line: u64, reason: String| {
        TaskError::user(format!("the header of {path} (line {line}) cannot be used: {reason}"))
    };
    match framer.next().map_err(|e| cannot_read_on(path, e))? {
        Frame::Record { bytes, line } => {
            header.map_or(Ok(()), |set| set(decoder, bytes)).map_err(|reason| unusable(line, reason))
        }
        Frame::Overlong { len, line, .. } => {
            Err(unusable(line, format!("it is {len} bytes long (line_limit)")))
        }
        Frame::End => Ok(()),
    }
}

fn cannot_read_on(path: &str, e: std::io::Error) -> TaskError {
    TaskError::external(format!("cannot read on in {path}")).caused_by(e)
}

impl<T: Data, D: Decoder<T>> Source for FileSource<T, D> {
    type Out = T;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.begin(cx, &cx.restored(POSITIONS))
    }

    fn poll(&mut self, out: &mut SourceBatch<T>, budget: Duration) -> Result<SourceStatus> {
        if !std::mem::replace(&mut self.announced, true) {
            self.waiting.iter().for_each(|i| out.split_started(self.files[*i].split));
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
            if std::mem::take(&mut file.header_due) {
                take_header(&mut self.decoder, self.header, &mut file.framer, &file.path)?;
            }
            match file.framer.next().map_err(|e| cannot_read_on(&file.path, e))? {
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
                    let (offset, line) = file.framer.position();
                    let place = Place::end(&mut file.again, offset, line);
                    self.files[file.share].place = place.map_err(|e| cannot_read_on(&file.path, e))?;
                    out.split_finished(file.split);
                    self.reading = None;
                }
            }
        }
        Ok(SourceStatus::More)
    }

    fn split_name(&self, split: SplitId) -> Option<String> {
        self.files.iter().find(|share| share.split == split).map(|share| share.name.clone())
    }

    fn positions(&mut self, _: Barrier) -> Result<Vec<(String, serde_json::Value)>> {
        if let Some(Reading(Some(file))) = &mut self.reading {
            let (offset, line) = file.framer.position();
            let place = Place::at(&mut file.again, offset, line).map_err(|e| {
                TaskError::external(format!("cannot read again what was read of {}", file.path)).caused_by(e)
            })?;
            self.files[file.share].place = place;
        }
        let place = |share: &Share| {
            let place = Place { path: Some(share.whole.clone()), ..share.place.clone() };
            Ok((share.name.clone(), serde_json::to_value(&place)?))
        };
        (self.files.iter().map(place).collect::<serde_json::Result<_>>())
            .map_err(|e| TaskError::internal("a position in a file is no JSON").caused_by(e))
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
