//! A sink that prints: one line per record, whole lines only, one lock per batch.

use std::any::type_name;
use std::fmt::{self, Display, Write as _};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use weir_engine::{Data, Record, Result, Sink, TaskError};

/// Prints each record as a line. Lines of one subtask stay in order; subtasks mix by the batch, never within a line.
///
/// *Blocking*: as long as the terminal or pipe does.
pub struct PrintSink<T> {
    show: Arc<Show<T>>,
    to: Target,
    /// The lines of the batch at hand.
    text: String,
}

/// Appends a record's line, without its end.
type Show<T> = dyn Fn(&T, &mut String) -> fmt::Result + Send + Sync;

#[derive(Clone)]
enum Target {
    Stdout,
    Stderr,
    #[cfg_attr(not(test), allow(dead_code, reason = "tests read back what was written"))]
    Other(Arc<Mutex<dyn Write + Send>>),
}

impl<T: Display> PrintSink<T> {
    /// Prints records as they display themselves, to standard output.
    pub fn new() -> Self {
        Self::showing(|value, text| write!(text, "{value}"))
    }
}

impl<T: Display> Default for PrintSink<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> PrintSink<T> {
    /// Prints what `show` makes of each record, to standard output.
    pub fn with<S: Display>(show: impl Fn(&T) -> S + Send + Sync + 'static) -> Self {
        Self::showing(move |value, text| write!(text, "{}", show(value)))
    }

    fn showing(show: impl Fn(&T, &mut String) -> fmt::Result + Send + Sync + 'static) -> Self {
        PrintSink { show: Arc::new(show), to: Target::Stdout, text: String::new() }
    }

    /// Prints to standard error instead.
    #[must_use]
    pub fn to_stderr(mut self) -> Self {
        self.to = Target::Stderr;
        self
    }

    #[cfg(test)]
    fn onto(mut self, to: Arc<Mutex<dyn Write + Send>>) -> Self {
        self.to = Target::Other(to);
        self
    }

    fn print(&self) -> io::Result<()> {
        fn put(mut to: impl Write, text: &str) -> io::Result<()> {
            to.write_all(text.as_bytes())?;
            to.flush()
        }
        match &self.to {
            Target::Stdout => put(io::stdout().lock(), &self.text),
            Target::Stderr => put(io::stderr().lock(), &self.text),
            Target::Other(to) => put(&mut *to.lock().unwrap_or_else(PoisonError::into_inner), &self.text),
        }
    }
}

impl<T: Data> Sink<T> for PrintSink<T> {
    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        self.text.clear();
        for record in batch.drain(..) {
            if (self.show)(&record.value, &mut self.text).is_err() {
                return Err(TaskError::user(format!(
                    "cannot print a {}: its Display gave up",
                    type_name::<T>()
                )));
            }
            self.text.push('\n');
        }
        self.print().map_err(|e| {
            let to = match self.to {
                Target::Stdout => "standard output",
                Target::Stderr => "standard error",
                Target::Other(_) => "the writer",
            };
            let message = if e.kind() == io::ErrorKind::BrokenPipe {
                format!("cannot print: the program that read {to} has gone away")
            } else {
                format!("cannot print to {to}")
            };
            TaskError::external(message).caused_by(e)
        })
    }
}

impl<T> Clone for PrintSink<T> {
    fn clone(&self) -> Self {
        PrintSink { show: Arc::clone(&self.show), to: self.to.clone(), text: String::new() }
    }
}

impl<T> fmt::Debug for PrintSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = match self.to {
            Target::Stdout => "stdout",
            Target::Stderr => "stderr",
            Target::Other(_) => "other",
        };
        f.debug_struct("PrintSink").field("to", &to).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use weir_engine::EventTime;

    use super::*;

    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn one_line_per_record() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let mut sink = PrintSink::with(|n: &u64| format!("<{n}>")).onto(written.clone());
        let mut batch: Vec<_> = (1..4).map(|n| Record::new(n, EventTime::NONE)).collect();
        sink.write(&mut batch).unwrap();
        assert!(batch.is_empty());
        assert_eq!(*written.lock().unwrap(), b"<1>\n<2>\n<3>\n");
    }

    #[test]
    fn a_broken_pipe_is_named() {
        let mut sink = PrintSink::<u64>::new().onto(Arc::new(Mutex::new(Broken)));
        let e = sink.write(&mut vec![Record::new(1, EventTime::NONE)]).unwrap_err();
        assert!(e.chain().contains("has gone away"), "{}", e.chain());
    }
}
