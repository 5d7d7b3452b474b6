//! Cuts a byte stream into records within fixed memory: lines, or CSV rows whose quotes may hold line ends.
// HOT: a record that lies whole in the read buffer is lent out, not copied.

use std::io::{self, BufRead};

/// What ends a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// A line feed, with or without a carriage return before it. Empty lines are records.
    Lines,
    /// The same, but empty lines are no records.
    FilledLines,
    /// A line end outside quotes, as in RFC 4180; empty lines are no records. The byte separates fields.
    Csv(u8),
}

/// What came next in the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// A record without its line end, and the 1-based line it starts on.
    Record { bytes: &'a [u8], line: u64 },
    /// A record above the limit: its first bytes, its length in all, and the line it starts on.
    Overlong { head: &'a [u8], len: u64, line: u64 },
    /// The stream is over.
    End,
}

/// How much of an overlong record is kept.
pub(super) const HEAD: usize = 4096;

/// Where in a CSV row the scan stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quote {
    /// At the start of a field: a quote would open it.
    Start,
    /// In a field without quotes: a quote is a byte like any other.
    Plain,
    /// Between quotes: a line end is a byte like any other.
    Inside,
    /// After a quote between quotes: doubled, or the end of them.
    Closing,
}

/// A record that was found: its length with its line end, and whether it has one.
struct Scanned {
    len: u64,
    ended: bool,
}

/// Reads records from `reader`, keeping at most one record of `limit` bytes besides the reader's own buffer.
#[derive(Debug)]
pub(super) struct Framer<R> {
    reader: R,
    framing: Framing,
    limit: usize,
    /// The start of a record that began in an earlier buffer; at most `limit` bytes of it.
    carry: Vec<u8>,
    /// Bytes of the reader's buffer that the last frame borrowed.
    lent: usize,
    /// Where in the stream the reader stands, the lent bytes not counted.
    at: u64,
    /// The 1-based line of the next byte.
    line: u64,
    at_start: bool,
}

impl<R: BufRead> Framer<R> {
    pub(super) fn new(reader: R, framing: Framing, limit: usize) -> Self {
        Self::resume(reader, framing, limit, 0, 1)
    }

    /// Goes on at byte `at`, which `reader` stands at and where a record or an empty line begins, on line `line`.
    pub(super) fn resume(reader: R, framing: Framing, limit: usize, at: u64, line: u64) -> Self {
        Framer { reader, framing, limit, carry: Vec::new(), lent: 0, at, line, at_start: at == 0 }
    }

    /// The byte after the last frame, where the next one may be looked for by `resume`, and its line.
    pub(super) fn position(&self) -> (u64, u64) {
        (self.at + self.lent as u64, self.line)
    }

    fn consume(&mut self, n: usize) {
        self.reader.consume(n);
        self.at += n as u64;
    }

    fn give_back(&mut self) {
        let lent = std::mem::take(&mut self.lent);
        self.consume(lent);
    }

    /// The next record.
    pub(super) fn next(&mut self) -> io::Result<Frame<'_>> {
        self.give_back();
        if std::mem::take(&mut self.at_start) && self.reader.fill_buf()?.starts_with(b"\xef\xbb\xbf") {
            // A byte order mark says "UTF-8" and belongs to no record.
            self.consume(3);
        }
        loop {
            let line = self.line;
            let Some(Scanned { len, ended }) = self.scan()? else { return Ok(Frame::End) };
            let blank = match self.bytes()? {
                // At the end of the stream inside quotes, a line feed is data.
                bytes if ended => trimmed(bytes).is_empty(),
                _ => false,
            };
            if blank && self.framing != Framing::Lines {
                self.give_back();
                continue;
            }
            let limit = self.limit as u64;
            let bytes = self.bytes()?;
            return Ok(if len > limit {
                Frame::Overlong { head: &bytes[..bytes.len().min(HEAD)], len, line }
            } else {
                Frame::Record { bytes: if ended { trimmed(bytes) } else { bytes }, line }
            });
        }
    }

    /// The record that was scanned: in the reader's buffer when some of that is lent, else in `carry`.
    fn bytes(&mut self) -> io::Result<&[u8]> {
        if self.lent > 0 { Ok(&self.reader.fill_buf()?[..self.lent]) } else { Ok(&self.carry) }
    }

    /// Finds the end of the record at hand and puts it where `bytes` finds it; none at the end of the stream.
    fn scan(&mut self) -> io::Result<Option<Scanned>> {
        self.carry.clear();
        let mut quote = Quote::Start;
        let mut len = 0u64;
        loop {
            let buffer = match self.reader.fill_buf() {
                Ok(buffer) => buffer,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            if buffer.is_empty() {
                return Ok((len > 0).then_some(Scanned { len, ended: false }));
            }
            let (end, lines) = match self.framing {
                Framing::Lines | Framing::FilledLines => {
                    let end = memchr::memchr(b'\n', buffer).map(|at| at + 1);
                    (end, u64::from(end.is_some()))
                }
                Framing::Csv(delimiter) => row_end(buffer, delimiter, &mut quote),
            };
            self.line += lines;
            let taken = end.unwrap_or(buffer.len());
            len += taken as u64;
            if end.is_some() && len == taken as u64 {
                self.lent = taken;
                return Ok(Some(Scanned { len, ended: true }));
            }
            // One byte above the limit is enough to know that it is too long.
            let room = self.limit.saturating_add(1).saturating_sub(self.carry.len());
            self.carry.extend_from_slice(&buffer[..taken.min(room)]);
            self.consume(taken);
            if end.is_some() {
                return Ok(Some(Scanned { len, ended: true }));
            }
        }
    }
}

/// The place after the line end of the row that `buffer` starts in or continues, and how many line feeds were passed.
fn row_end(buffer: &[u8], delimiter: u8, quote: &mut Quote) -> (Option<usize>, u64) {
    let mut lines = 0;
    for (i, &byte) in buffer.iter().enumerate() {
        if byte == b'\n' {
            lines += 1;
            if *quote != Quote::Inside {
                return (Some(i + 1), lines);
            }
        }
        *quote = match (*quote, byte) {
            (Quote::Start, b'"') | (Quote::Closing, b'"') => Quote::Inside,
            (Quote::Inside, b'"') => Quote::Closing,
            (Quote::Inside, _) => Quote::Inside,
            (_, b) if b == delimiter => Quote::Start,
            _ => Quote::Plain,
        };
    }
    (None, lines)
}

/// The record without its line end.
fn trimmed(bytes: &[u8]) -> &[u8] {
    match bytes {
        [rest @ .., b'\r', b'\n'] | [rest @ .., b'\n'] => rest,
        _ => bytes,
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use proptest::prelude::*;

    use super::*;

    /// Every record as (line, text), overlong ones as (line, "!length:head").
    fn frames(input: &[u8], framing: Framing, limit: usize, buffer: usize) -> Vec<(u64, String)> {
        frames_of(Framer::new(BufReader::with_capacity(buffer, input), framing, limit))
    }

    #[test]
    fn no_limit_loses_nothing_at_the_edge_of_a_buffer() {
        for framing in [Framing::FilledLines, Framing::Lines, Framing::Csv(b',')] {
            let got = frames(b"abcdef\nghi\n", framing, usize::MAX, 3);
            assert_eq!(got, [(1, "abcdef".to_owned()), (2, "ghi".to_owned())], "{framing:?}");
        }
    }

    fn frames_of<R: BufRead>(mut framer: Framer<R>) -> Vec<(u64, String)> {
        let mut got = Vec::new();
        loop {
            match framer.next().unwrap() {
                Frame::Record { bytes, line } => {
                    got.push((line, String::from_utf8_lossy(bytes).into_owned()))
                }
                Frame::Overlong { head, len, line } => {
                    got.push((line, format!("!{len}:{}", String::from_utf8_lossy(head))));
                }
                Frame::End => {
                    assert_eq!(framer.next().unwrap(), Frame::End, "the end stays the end");
                    return got;
                }
            }
        }
    }

    fn texts(input: &str, framing: Framing) -> Vec<(u64, String)> {
        let small = frames(input.as_bytes(), framing, 1 << 20, 3);
        assert_eq!(small, frames(input.as_bytes(), framing, 1 << 20, 1 << 16), "buffer size does not matter");
        small
    }

    fn list(of: &[(u64, &str)]) -> Vec<(u64, String)> {
        of.iter().map(|(line, text)| (*line, (*text).to_owned())).collect()
    }

    #[test]
    fn lines_of_all_kinds() {
        assert_eq!(texts("", Framing::Lines), []);
        assert_eq!(texts("a\nbc\n", Framing::Lines), list(&[(1, "a"), (2, "bc")]));
        assert_eq!(texts("a\r\n\r\nbc", Framing::Lines), list(&[(1, "a"), (2, ""), (3, "bc")]));
        assert_eq!(texts("a\r\n\r\nbc", Framing::FilledLines), list(&[(1, "a"), (3, "bc")]));
        assert_eq!(texts("\n\n", Framing::FilledLines), []);
        assert_eq!(texts("a\rb\n", Framing::Lines), list(&[(1, "a\rb")]), "a lone CR is data");
    }

    #[test]
    fn a_byte_order_mark_is_not_data() {
        let got = frames(b"\xef\xbb\xbfa\nb\n", Framing::Lines, 100, 64);
        assert_eq!(got, list(&[(1, "a"), (2, "b")]));
    }

    #[test]
    fn rows_keep_line_ends_inside_quotes() {
        let got = texts("1,\"a\nb\"\n2,c\"d\n3,\"e\"\"\n\"\n4\n", Framing::Csv(b','));
        assert_eq!(got, list(&[(1, "1,\"a\nb\""), (3, "2,c\"d"), (4, "3,\"e\"\"\n\""), (6, "4")]));
    }

    #[test]
    fn overlong_records_are_cut_and_passed() {
        for buffer in [1, 2, 4, 64] {
            let got = frames(b"ab\n12345678\ncd\n", Framing::Lines, 4, buffer);
            assert_eq!(got[0], (1, "ab".to_owned()));
            assert!(got[1].1.starts_with("!9:1234"), "{got:?} with a buffer of {buffer}");
            assert_eq!(got[2], (3, "cd".to_owned()));
        }
    }

    #[test]
    fn an_unclosed_quote_takes_the_rest_but_no_memory() {
        let mut input = b"1,a\n2,\"b\n".to_vec();
        input.resize(1 << 20, b'x');
        let mut framer = Framer::new(BufReader::with_capacity(512, &input[..]), Framing::Csv(b','), 1000);
        assert!(matches!(framer.next().unwrap(), Frame::Record { line: 1, .. }));
        let Frame::Overlong { head, len, line } = framer.next().unwrap() else { panic!("not overlong") };
        assert_eq!((head.len(), len, line), (1001, (1 << 20) - 4, 2));
        assert_eq!(framer.next().unwrap(), Frame::End);
        assert!(framer.carry.capacity() <= 4096, "{}", framer.carry.capacity());
    }

    proptest! {
        /// Wherever reading stops, it goes on with the same records on the same lines.
        #[test]
        fn reading_goes_on_from_any_position(
            tokens in proptest::collection::vec(prop::sample::select(vec!["a", "bcdef", "\"", ",", "\n", "\r\n", "\u{feff}"]), 0..30),
            buffer in 1usize..20,
            csv: bool,
        ) {
            let input = tokens.concat();
            let framing = if csv { Framing::Csv(b',') } else { Framing::FilledLines };
            let whole = frames(input.as_bytes(), framing, 4, buffer);
            for read in 0..=whole.len() {
                let mut framer = Framer::new(BufReader::with_capacity(buffer, input.as_bytes()), framing, 4);
                (0..read).for_each(|_| assert_ne!(framer.next().unwrap(), Frame::End));
                let (at, line) = framer.position();
                let rest = BufReader::with_capacity(buffer, &input.as_bytes()[at as usize..]);
                let got = frames_of(Framer::resume(rest, framing, 4, at, line));
                // How much of an overlong one is kept depends on the buffer.
                let known = |of: &[(u64, String)]| -> Vec<(u64, String)> {
                    let text = |t: &String| if t.starts_with('!') { t.split(':').next().unwrap_or(t) } else { t }.to_owned();
                    of.iter().map(|(line, t)| (*line, text(t))).collect()
                };
                prop_assert_eq!(known(&got), known(&whole[read..]), "after {} of {:?}", read, input);
            }
        }

        #[test]
        fn rows_are_those_of_the_csv_crate(
            tokens in proptest::collection::vec(prop::sample::select(vec!["a", "\"", ",", "\n", "\r\n"]), 0..30),
            buffer in 1usize..20,
        ) {
            let input = tokens.concat();
            let mut builder = csv::ReaderBuilder::new();
            builder.has_headers(false).flexible(true);
            let rows = |text: &str| -> Vec<csv::ByteRecord> {
                builder.from_reader(text.as_bytes()).byte_records().map(|r| r.unwrap()).collect()
            };
            let ours: Vec<_> = frames(input.as_bytes(), Framing::Csv(b','), 1000, buffer).iter().flat_map(|f| rows(&f.1)).collect();
            prop_assert_eq!(ours, rows(&input));
        }
    }
}
