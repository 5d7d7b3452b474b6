//! The portable file: keys and values in order, in blocks with checksums. Every savepoint, and what the memory backend freezes to.
//!
//! `"WEIRKV" | format: u16 LE`, then blocks: `length: u32 LE | xxh3 of the payload: u64 LE | payload`, the payload a run of
//! `key length: varint | value length: varint | key | value`. A block of length 0 ends the file; its checksum is the xxh3 of
//! all checksums before it, so that a lost block is noticed. Nothing is read from a block before its checksum was right.

use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::Visit;
use crate::error::StateError;

const MAGIC: &[u8; 6] = b"WEIRKV";
const FORMAT: u16 = 1;
/// A block is closed when it has reached this length.
const BLOCK: usize = 64 << 10;

/// Writes a portable file.
#[derive(Debug)]
pub struct PortableWriter {
    path: PathBuf,
    file: BufWriter<File>,
    block: Vec<u8>,
    sums: Xxh3Debug,
    bytes: u64,
}

/// Keeps `derive(Debug)` where the hasher has none.
struct Xxh3Debug(Xxh3);

impl std::fmt::Debug for Xxh3Debug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Xxh3")
    }
}

impl PortableWriter {
    /// Begins a new file.
    ///
    /// # Errors
    /// It is there already, or cannot be created.
    pub fn create(path: &Path) -> Result<Self, StateError> {
        let file = File::create_new(path).map_err(StateError::io("create", path))?;
        let mut writer = PortableWriter {
            path: path.to_owned(),
            file: BufWriter::with_capacity(BLOCK, file),
            block: Vec::with_capacity(BLOCK),
            sums: Xxh3Debug(Xxh3::new()),
            bytes: 0,
        };
        writer.out(&[&MAGIC[..], &FORMAT.to_le_bytes()].concat())?;
        Ok(writer)
    }

    /// Appends a key, which must be greater than the one before, and its value.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        varint(key.len(), &mut self.block);
        varint(value.len(), &mut self.block);
        self.block.extend_from_slice(key);
        self.block.extend_from_slice(value);
        if self.block.len() >= BLOCK { self.end_block() } else { Ok(()) }
    }

    /// Ends the file and gives its length in bytes.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> Result<u64, StateError> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        let sum = self.sums.0.digest().to_le_bytes();
        self.out(&[&[0; 4][..], &sum].concat())?;
        self.file.flush().map_err(StateError::io("write", &self.path))?;
        Ok(self.bytes)
    }

    fn end_block(&mut self) -> Result<(), StateError> {
        let length = u32::try_from(self.block.len()).map_err(|_| StateError::Io {
            doing: "write a key and value of over 4 GiB to",
            path: self.path.clone(),
            source: ErrorKind::FileTooLarge.into(),
        })?;
        let sum = xxh3_64(&self.block).to_le_bytes();
        self.sums.0.update(&sum);
        self.out(&[&length.to_le_bytes()[..], &sum].concat())?;
        let block = std::mem::take(&mut self.block);
        let written = self.out(&block);
        self.block = block;
        self.block.clear();
        written
    }

    fn out(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(StateError::io("write", &self.path))
    }
}

/// Reads a portable file from its beginning to its end.
#[derive(Debug)]
pub struct PortableReader {
    path: PathBuf,
    file: BufReader<File>,
}

impl PortableReader {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be read, or is no portable file of a format that this build knows.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let file = File::open(path).map_err(StateError::io("open", path))?;
        let mut reader =
            PortableReader { path: path.to_owned(), file: BufReader::with_capacity(2 * BLOCK, file) };
        let mut head = [0; 8];
        reader.fill(&mut head)?;
        let format = u16::from_le_bytes([head[6], head[7]]);
        if &head[..6] != MAGIC {
            return Err(reader.damaged("it does not begin as a state file does"));
        }
        if format != FORMAT {
            return Err(reader.damaged(&format!("it has format {format}, this build reads {FORMAT}")));
        }
        Ok(reader)
    }

    /// Visits every key and value in order, until told to stop.
    ///
    /// # Errors
    /// The file cannot be read, or is not what was written; `visit` saw only blocks that are right.
    pub fn scan(mut self, visit: &mut Visit<'_>) -> Result<(), StateError> {
        let mut sums = Xxh3::new();
        let mut block = Vec::new();
        loop {
            let mut head = [0; 12];
            self.fill(&mut head)?;
            let (length, sum) = head.split_first_chunk::<4>().expect("12 is more than 4");
            let length = u32::from_le_bytes(*length) as usize;
            if length == 0 {
                let whole = sums.digest().to_le_bytes() == sum;
                return if whole { Ok(()) } else { Err(self.damaged("a block of it is missing or moved")) };
            }
            sums.update(sum);
            // Grown as bytes come: a length that is wrong must not ask for gigabytes.
            block.clear();
            let read = (&mut self.file).take(length as u64).read_to_end(&mut block);
            if read.map_err(StateError::io("read", &self.path))? != length {
                return Err(self.damaged("it ends too early"));
            }
            if xxh3_64(&block).to_le_bytes() != sum {
                return Err(self.damaged("a checksum is wrong"));
            }
            let mut rest = &block[..];
            while !rest.is_empty() {
                let Some((key, value)) = entry(&mut rest) else {
                    return Err(self.damaged("an entry goes beyond its block"));
                };
                if visit(key, value).is_break() {
                    return Ok(());
                }
            }
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), StateError> {
        match self.file.read_exact(bytes) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => Err(self.damaged("it ends too early")),
            Err(e) => Err(StateError::io("read", &self.path)(e)),
        }
    }

    fn damaged(&self, what: &str) -> StateError {
        StateError::Damaged { path: self.path.clone(), what: what.to_owned() }
    }
}

fn varint(mut value: usize, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

fn read_varint(from: &mut &[u8]) -> Option<usize> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        value |= usize::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn entry<'a>(from: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (key, value) = (read_varint(from)?, read_varint(from)?);
    let (key, rest) = from.split_at_checked(key)?;
    let (value, rest) = rest.split_at_checked(value)?;
    *from = rest;
    Some((key, value))
}

#[cfg(test)]
#[path = "portable_tests.rs"]
mod tests;
