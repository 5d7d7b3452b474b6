//! What a file sink writes: a format turns a batch of records into the bytes of their lines, or of a file that is no text.

use serde::Serialize;
use weir_engine::Record;

use crate::format::{Encoder, Json};

/// Turns batches of records into the bytes of files, lines as a rule. `Clone` is for the recipe: one copy per subtask.
pub trait RowFormat<T>: Clone + Send + 'static {
    /// What the names of its files end in, without the dot.
    fn extension(&self) -> &str;

    /// Appends the lines of `batch` to `out`, line ends included, but for what it holds back; `first` when they are the first ones of a file. HOT: no
    /// allocation per record.
    ///
    /// # Errors
    /// The reason in one sentence. A value that cannot be written fails the job: it would be lost otherwise.
    fn append(&mut self, batch: &[Record<T>], first: bool, out: &mut Vec<u8>) -> Result<(), String>;

    /// Appends what a file ends with, and what was held back: nothing, for lines.
    ///
    /// # Errors
    /// The reason in one sentence.
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        let _ = out;
        Ok(())
    }

    /// About how many bytes of the file are held back.
    fn held_back(&self) -> u64 {
        0
    }

    /// Looks at what the format was told, before anything is written.
    ///
    /// # Errors
    /// The reason in one sentence; the job does not start.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// How much memory it takes for each subtask, beside the sink's own buffer.
    fn memory(&self) -> u64 {
        0
    }
}

/// One JSON value a line.
#[derive(Clone, Copy, Debug, Default)]
pub struct JsonLines;

impl<T: Serialize> RowFormat<T> for JsonLines {
    fn extension(&self) -> &str {
        "jsonl"
    }

    fn append(&mut self, batch: &[Record<T>], _first: bool, out: &mut Vec<u8>) -> Result<(), String> {
        for record in batch {
            Json.encode(&record.value, out)?;
            out.push(b'\n');
        }
        Ok(())
    }
}

/// One CSV row a record (RFC 4180, but with a line feed alone at its end).
#[derive(Clone, Copy, Debug)]
pub struct CsvRows {
    pub(super) delimiter: u8,
    pub(super) header: bool,
}

impl<T: Serialize> RowFormat<T> for CsvRows {
    fn extension(&self) -> &str {
        "csv"
    }

    fn append(&mut self, batch: &[Record<T>], first: bool, out: &mut Vec<u8>) -> Result<(), String> {
        let mut rows = csv::WriterBuilder::new()
            .delimiter(self.delimiter)
            .has_headers(self.header && first)
            .from_writer(std::mem::take(out));
        let written = batch.iter().try_for_each(|record| rows.serialize(&record.value));
        written.map_err(|e| format!("cannot be written as a CSV row: {e}"))?;
        *out = rows.into_inner().map_err(|e| format!("cannot be written as CSV rows: {}", e.error()))?;
        Ok(())
    }
}

/// Lines made by an [`Encoder`].
#[derive(Clone, Debug)]
pub struct EncodedLines<E> {
    pub(super) encoder: E,
    pub(super) extension: String,
}

impl<T, E: Encoder<T>> RowFormat<T> for EncodedLines<E> {
    fn extension(&self) -> &str {
        &self.extension
    }

    fn append(&mut self, batch: &[Record<T>], _first: bool, out: &mut Vec<u8>) -> Result<(), String> {
        for record in batch {
            self.encoder.encode(&record.value, out)?;
            out.push(b'\n');
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use weir_engine::EventTime;

    use super::*;

    #[derive(Clone, Serialize)]
    struct Row {
        id: u64,
        name: &'static str,
    }

    fn text<T: Clone, F: RowFormat<T>>(mut format: F, values: &[T]) -> String {
        let mut out = b"before\n".to_vec();
        for (i, value) in values.iter().enumerate() {
            format.append(&[Record::new(value.clone(), EventTime(0))], i == 0, &mut out).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_and_rows() {
        let rows = [Row { id: 1, name: "a;\"b" }, Row { id: 2, name: "c\nd" }];
        assert_eq!(
            text(JsonLines, &rows),
            "before\n{\"id\":1,\"name\":\"a;\\\"b\"}\n{\"id\":2,\"name\":\"c\\nd\"}\n"
        );
        let csv = |delimiter, header| CsvRows { delimiter, header };
        assert_eq!(text(csv(b',', false), &rows), "before\n1,\"a;\"\"b\"\n2,\"c\nd\"\n");
        assert_eq!(text(csv(b';', true), &rows), "before\nid;name\n1;\"a;\"\"b\"\n2;\"c\nd\"\n");
        assert_eq!(
            text(csv(b',', true), &[(1, "x"), (2, "y")]),
            "before\n1,x\n2,y\n",
            "a tuple has no names"
        );
        let plain = EncodedLines { encoder: crate::format::Utf8, extension: "txt".into() };
        assert_eq!(text(plain, &["a", "b"]), "before\na\nb\n");
    }

    #[test]
    fn what_a_row_cannot_say_is_an_error() {
        let map = std::collections::BTreeMap::from([("a", 1)]);
        let batch = [Record::new(map, EventTime(0))];
        let format = &mut CsvRows { delimiter: b',', header: false };
        let e = format.append(&batch, true, &mut Vec::new()).unwrap_err();
        assert!(e.starts_with("cannot be written as a CSV row: "), "{e}");
    }
}
