//! CSV rows: one row per record, fields by position or, after a header row, by name.

use std::fmt::{self, Write};
use std::marker::PhantomData;

use csv::{ByteRecord, DeserializeErrorKind};
use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};

use super::Decoder;

/// One CSV row (RFC 4180: quotes, doubled quotes, line ends inside quotes) per record, decoded by serde.
///
/// Fields go to a tuple or struct by position, and a row with more or fewer fields than that has is bad; a `Vec` takes any
/// number. After [`Csv::set_header`] they go to a struct by name, and a row with more or fewer fields than the header is bad.
/// The reason why a row is bad names the field, by its name too where there is one, and shows its value.
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
    /// When the row is not a CSV row, a name is not UTF-8, or a name is there twice.
    pub fn set_header(&mut self, row: &[u8]) -> Result<(), String> {
        self.split(row)?;
        for (at, name) in self.record.iter().enumerate() {
            if std::str::from_utf8(name).is_err() {
                return Err(format!("the name of field {} is not UTF-8: '{}'", at + 1, Shown(name)));
            }
            if let Some(first) = self.record.iter().take(at).position(|other| other == name) {
                let fields = (first + 1, at + 1);
                return Err(format!(
                    "fields {} and {} are both called '{}'",
                    fields.0,
                    fields.1,
                    Shown(name)
                ));
            }
        }
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
        if self.header.is_some() {
            return self.record.deserialize(self.header.as_ref()).map_err(|e| self.reason(&e));
        }
        let Whole { value, rest } = self.record.deserialize(None).map_err(|e| self.reason(&e))?;
        if rest > 0 {
            let (fields, wanted) = (self.record.len(), self.record.len() - rest);
            let first = Shown(self.record.get(wanted).unwrap_or_default());
            return Err(format!(
                "{fields} fields where {wanted} are wanted: field {} is '{first}'",
                wanted + 1
            ));
        }
        Ok(value)
    }
}

impl<T: DeserializeOwned + 'static> Csv<T> {
    /// What is wrong with the row at hand, without the place of the row: the csv crate counts from its own start, the caller knows
    /// the file and line.
    #[cold]
    fn reason(&self, error: &csv::Error) -> String {
        let csv::ErrorKind::Deserialize { err, .. } = error.kind() else { return error.to_string() };
        if is_end_of_row(error) {
            return format!("too few fields: {} ({})", self.record.len(), err.kind());
        }
        let what = match err.kind() {
            DeserializeErrorKind::InvalidUtf8(e) => format!("not UTF-8 from its byte {} on", e.valid_up_to()),
            kind => kind.to_string(),
        };
        let at = err.field().and_then(|field| usize::try_from(field).ok()).or_else(|| self.culprit(&what));
        let Some((at, value)) = at.and_then(|at| Some((at, self.record.get(at)?))) else { return what };
        let mut reason = format!("field {}", at + 1);
        if let Some(name) = self.header.as_ref().and_then(|header| header.get(at)) {
            let _ = write!(reason, " ({})", Shown(name));
        }
        let lines = self.record.iter().take(at).flatten().filter(|byte| **byte == b'\n').count();
        if lines > 0 {
            let _ = write!(reason, ", on line {} of the row,", lines + 1);
        }
        let _ = write!(reason, " is '{}': {what}", Shown(value));
        reason
    }

    /// The field that a deserializer of the user's own refuses, which does not say where it is: the first that is refused when
    /// nothing follows it.
    fn culprit(&self, what: &str) -> Option<usize> {
        /// Among so many it is looked for.
        const MOST: usize = 256;
        let mut few = ByteRecord::new();
        for (at, field) in self.record.iter().enumerate().take(MOST) {
            few.push_field(field);
            let error = few.deserialize::<T>(self.header.as_ref()).err()?;
            if !is_end_of_row(&error) {
                // Behind the last field the value as a whole may be what is refused.
                let of_field = at + 1 < self.record.len()
                    || std::str::from_utf8(field).is_ok_and(|text| !text.is_empty() && what.contains(text));
                return of_field.then_some(at);
            }
        }
        None
    }
}

/// True when the row has ended before its type had all fields.
fn is_end_of_row(error: &csv::Error) -> bool {
    let csv::ErrorKind::Deserialize { err, .. } = error.kind() else { return false };
    match err.kind() {
        DeserializeErrorKind::UnexpectedEndOfRow => true,
        // What tuples and structs say of a sequence that is too short.
        DeserializeErrorKind::Message(message) => message.starts_with("invalid length "),
        _ => false,
    }
}

/// A row's value, and how many fields were left over.
struct Whole<T> {
    value: T,
    rest: usize,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Takes<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Takes<T> {
            type Value = Whole<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the fields of a row")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<Whole<T>, A::Error> {
                let Some(value) = fields.next_element()? else {
                    return Err(A::Error::invalid_length(0, &self));
                };
                let mut rest = 0;
                while fields.next_element::<IgnoredAny>()?.is_some() {
                    rest += 1;
                }
                Ok(Whole { value, rest })
            }
        }
        deserializer.deserialize_seq(Takes(PhantomData))
    }
}

/// The start of a value as text; what is not UTF-8 and what cannot be seen is escaped.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// So many bytes are enough to find it again.
        const START: usize = 64;
        let mut end = self.0.len().min(START);
        // Not in the middle of a character.
        while end < self.0.len() && end > START - 4 && self.0[end] & 0xC0 == 0x80 {
            end -= 1;
        }
        for chunk in self.0[..end].utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        if self.0.len() > START { f.write_str("…") } else { Ok(()) }
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
        assert_eq!(reason, "field 1 is 'x': invalid digit found in string");
        assert!(csv.decode(b"3\n").unwrap_err().starts_with("too few fields: 1 ("));
        assert!(csv.decode(b"").unwrap_err().contains("empty"));
        let reason = csv.decode(b"1,\xff,\n").unwrap_err();
        assert_eq!(reason, "field 2 is '\\xff': not UTF-8 from its byte 0 on");
        let reason = csv.decode(b"1,\"a\nb\n\",\xe4\xb8\xadx\xff\n").unwrap_err();
        assert_eq!(reason, "field 3, on line 3 of the row, is '中x\\xff': not UTF-8 from its byte 4 on");
        assert_eq!(csv.decode(b"4,d,\n"), Ok(row(4, "d", None)), "a bad row leaves nothing behind");
    }

    #[test]
    fn by_name() {
        let mut csv = Csv::<Row>::new(b';');
        csv.set_header(b"note;name;id\n").unwrap();
        assert_eq!(csv.decode(b"n;ann;7\n"), Ok(row(7, "ann", Some("n"))));
        assert_eq!(csv.clone().decode(b"n;ann;8\n"), Ok(row(8, "ann", Some("n"))));
        assert_eq!(csv.decode(b"n;ann\n").unwrap_err(), "2 fields where the header has 3");
        let reason = csv.decode(b"n;ann;x7\n").unwrap_err();
        assert_eq!(reason, "field 3 (id) is 'x7': invalid digit found in string");
        let reason = csv.set_header(b"id;name;id").unwrap_err();
        assert_eq!(reason, "fields 1 and 3 are both called 'id'");
        let reason = csv.set_header(b"id;\xffname;note").unwrap_err();
        assert_eq!(reason, "the name of field 2 is not UTF-8: '\\xffname'");
    }

    #[test]
    fn a_row_with_too_many_fields_is_bad() {
        let mut rows = Csv::<Row>::new(b',');
        for (row, first) in [("1,ann,x,y", "y"), ("1,ann,x,", ""), ("1,ann,x,y,z", "y")] {
            let fields = row.split(',').count();
            let reason = rows.decode(row.as_bytes()).unwrap_err();
            assert_eq!(reason, format!("{fields} fields where 3 are wanted: field 4 is '{first}'"));
        }
        assert_eq!(rows.decode(b"1,ann,x"), Ok(row(1, "ann", Some("x"))));
        assert!(Csv::<(u64, String)>::new(b',').decode(b"1,ann,x").is_err());
        assert!(Csv::<u64>::new(b',').decode(b"1,2").is_err());
        assert_eq!(Csv::<Vec<u64>>::new(b',').decode(b"1,2,3"), Ok(vec![1, 2, 3]), "any number");
        assert_eq!(Csv::<(u64, Vec<u64>)>::new(b',').decode(b"1,2,3"), Ok((1, vec![2, 3])));
    }

    #[test]
    fn what_a_field_s_own_type_refuses_is_shown_with_its_field() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        #[serde(try_from = "String")]
        struct Even(usize);
        impl TryFrom<String> for Even {
            type Error = &'static str;
            fn try_from(text: String) -> Result<Even, &'static str> {
                if text.len().is_multiple_of(2) { Ok(Even(text.len())) } else { Err("its length is odd") }
            }
        }
        let mut rows = Csv::<(u64, Even, u64)>::new(b',');
        assert_eq!(rows.decode(b"1,ab,2"), Ok((1, Even(2), 2)));
        assert_eq!(rows.decode(b"1,abc,2").unwrap_err(), "field 2 is 'abc': its length is odd");
        let long = "x".repeat(101);
        let reason = rows.decode(format!("1,{long},2").as_bytes()).unwrap_err();
        assert_eq!(reason, format!("field 2 is '{}…': its length is odd", &long[..64]));
    }
}
