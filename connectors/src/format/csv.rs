//! CSV rows: one row per record, fields by position or, after a header row, by name.

use std::marker::PhantomData;

use csv::ByteRecord;
use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use serde::de::DeserializeOwned;

use super::Decoder;

/// One CSV row (RFC 4180: quotes, doubled quotes, line ends inside quotes) per record, decoded by serde.
///
/// Fields go to a tuple or struct by position. After [`Csv::set_header`] they go to a struct by name, and a row with more
/// or fewer fields than the header is bad.
pub struct Csv<T> {
    reader: Box<Reader>,
    delimiter: u8,
    header: Option<ByteRecord>,
    /// Scratch: unquoted bytes and field ends of the row at hand.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    record: ByteRecord,
    of: PhantomData<fn() -> T>,
}

impl<T> Csv<T> {
    /// Rows whose fields are separated by `delimiter`, a comma as a rule.
    pub fn new(delimiter: u8) -> Self {
        Csv {
            reader: Box::new(ReaderBuilder::new().delimiter(delimiter).build()),
            delimiter,
            header: None,
            bytes: Vec::new(),
            ends: Vec::new(),
            record: ByteRecord::new(),
            of: PhantomData,
        }
    }

    /// What separates the fields.
    pub fn delimiter(&self) -> u8 {
        self.delimiter
    }

    /// Takes the names of the fields from a row.
    ///
    /// # Errors
    /// When the row is not a CSV row.
    pub fn set_header(&mut self, row: &[u8]) -> Result<(), String> {
        self.split(row)?;
        self.header = Some(self.record.clone());
        Ok(())
    }

    /// Splits `row` into `self.record`.
    fn split(&mut self, row: &[u8]) -> Result<(), String> {
        self.reader.reset();
        // Unquoting only shortens, and a row of n bytes has at most n + 1 fields, so these never grow in the loop below.
        self.bytes.resize(row.len() + 1, 0);
        self.ends.resize(row.len() + 2, 0);
        let (mut read, mut written, mut fields) = (0, 0, 0);
        loop {
            // An empty input ends the row when it has no line end of its own.
            let (result, nin, nout, nend) =
                self.reader.read_record(&row[read..], &mut self.bytes[written..], &mut self.ends[fields..]);
            (read, written, fields) = (read + nin, written + nout, fields + nend);
            match result {
                ReadRecordResult::Record => break,
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::End => return Err("the row is empty".to_owned()),
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    return Err(format!("the row has more fields than its {} bytes allow", row.len()));
                }
            }
        }
        // A bare carriage return ends a row too: what follows one must not go missing.
        if row[read..].iter().any(|byte| !matches!(byte, b'\r' | b'\n')) {
            return Err("more than one row: a line end, or a bare carriage return, outside quotes".to_owned());
        }
        self.record.clear();
        let mut start = 0;
        for &end in &self.ends[..fields] {
            self.record.push_field(&self.bytes[start..end]);
            start = end;
        }
        Ok(())
    }
}

impl<T: DeserializeOwned + 'static> Decoder<T> for Csv<T> {
    fn decode(&mut self, row: &[u8]) -> Result<T, String> {
        self.split(row)?;
        if let Some(header) = &self.header
            && header.len() != self.record.len()
        {
            return Err(format!("{} fields where the header has {}", self.record.len(), header.len()));
        }
        self.record.deserialize(self.header.as_ref()).map_err(|e| reason(&e))
    }
}

/// The error without the place: the csv crate counts from its own start, the caller knows the file and line.
fn reason(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => match err.field() {
            Some(field) => format!("field {}: {}", field + 1, err.kind()),
            None => err.kind().to_string(),
        },
        _ => error.to_string(),
    }
}

impl<T> Clone for Csv<T> {
    fn clone(&self) -> Self {
        let mut copy = Csv::new(self.delimiter);
        copy.header = self.header.clone();
        copy
    }
}

impl<T> std::fmt::Debug for Csv<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Csv")
            .field("delimiter", &char::from(self.delimiter))
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Row {
        id: u64,
        name: String,
        note: Option<String>,
    }

    fn row(id: u64, name: &str, note: Option<&str>) -> Row {
        Row { id, name: name.to_owned(), note: note.map(str::to_owned) }
    }

    #[test]
    fn two_rows_in_one_are_an_error_and_no_row_goes_missing() {
        for two in [&b"1,a,x\r2,b,y"[..], b"1,a,x\n2,b,y\n", b"7,hello\rworld,x\n"] {
            let error = Csv::<Row>::new(b',').decode(two).unwrap_err();
            assert!(error.contains("more than one row"), "{error}");
        }
        let header = Csv::<Row>::new(b',').set_header(b"id,name,note\r1,a,x\r2,b,y\r");
        assert!(header.is_err(), "a file whose lines end in bare carriage returns has no rows to give");
        for one in [&b"1,a,x"[..], b"1,a,x\r", b"1,a,x\n", b"1,a,x\r\n", b"1,\"a\",x\r\n"] {
            assert_eq!(Csv::<Row>::new(b',').decode(one), Ok(row(1, "a", Some("x"))));
        }
    }

    #[test]
    fn by_position() {
        let mut csv = Csv::<Row>::new(b',');
        assert_eq!(csv.decode(b"1,ann,x\r\n"), Ok(row(1, "ann", Some("x"))));
        assert_eq!(csv.decode(b"2,\"a,\"\"b\n\",\n"), Ok(row(2, "a,\"b\n", None)));
        assert_eq!(csv.decode(b"3,bob,y"), Ok(row(3, "bob", Some("y"))), "no line end");
        let reason = csv.decode(b"x,bob,y").unwrap_err();
        assert_eq!(reason, "field 1: invalid digit found in string");
        assert!(csv.decode(b"3\n").is_err(), "missing fields");
        assert!(csv.decode(b"").unwrap_err().contains("empty"));
        assert!(csv.decode(b"1,\xff,\n").is_err(), "not UTF-8");
        assert_eq!(csv.decode(b"4,d,\n"), Ok(row(4, "d", None)), "a bad row leaves nothing behind");
    }

    #[test]
    fn by_name() {
        let mut csv = Csv::<Row>::new(b';');
        csv.set_header(b"note;name;id\n").unwrap();
        assert_eq!(csv.decode(b"n;ann;7\n"), Ok(row(7, "ann", Some("n"))));
        assert_eq!(csv.clone().decode(b"n;ann;8\n"), Ok(row(8, "ann", Some("n"))));
        assert_eq!(csv.decode(b"n;ann\n").unwrap_err(), "2 fields where the header has 3");
    }
}
