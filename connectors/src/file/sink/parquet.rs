//! Files in Parquet: the fields of records go to columns, a row group at a time, and the footer comes when the file is closed.
// HOT: per field one comparison of names and one push; strings lie one behind the other.

mod columns;

use std::fmt;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::TypePtr;
use serde::Serialize;
use weir_engine::Record;

use self::columns::Columns;
use super::rows::RowFormat;

/// A row group is written when it has so many rows or bytes.
const GROUP_ROWS: usize = 100_000;
const GROUP_BYTES: u64 = 16 << 20;

/// Parquet: a record is a struct of plain values, and each of its fields goes to the column of its name.
///
/// The schema is flat: `boolean`, `int32`, `int64`, `float`, `double` and `binary` columns, `required` or `optional`, with any logical
/// type that these may carry (`STRING`, `TIMESTAMP(MILLIS,true)`, …), which says what readers make of them. Whole numbers go where they fit,
/// and to `double` when that is exact; an enum's variants go by their names; `None` goes to optional columns, and so does a field
/// that the record does not have. A field without a column, or a value that does not fit, fails the job: it would be lost otherwise.
pub struct ParquetRows {
    schema: String,
    open: Option<Open>,
}

/// The file at hand.
struct Open {
    writer: SerializedFileWriter<Vec<u8>>,
    columns: Columns,
}

impl ParquetRows {
    pub(super) fn of(schema: impl Into<String>) -> Self {
        ParquetRows { schema: schema.into(), open: None }
    }

    /// The schema, and a place for each column.
    fn parsed(&self) -> Result<(TypePtr, Columns), String> {
        let schema = parse_message_type(&self.schema)
            .map_err(|e| format!("the schema of the Parquet files cannot be read: {e}"))?;
        let columns = Columns::of(&schema)?;
        Ok((Arc::new(schema), columns))
    }

    fn begin(&mut self) -> Result<(), String> {
        let (schema, columns) = self.parsed()?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let writer =
            SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).map_err(not_written)?;
        self.open = Some(Open { writer, columns });
        Ok(())
    }
}

impl Open {
    /// Writes the rows so far as a group, and moves all bytes of the file to `out`.
    fn write_group(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        if self.columns.rows() > 0 {
            let mut group = self.writer.next_row_group().map_err(not_written)?;
            self.columns.write(&mut group).map_err(not_written)?;
            group.close().map_err(not_written)?;
        }
        self.take(out)
    }

    fn take(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        self.writer.flush().map_err(|e| e.to_string())?;
        // The writer counts what it has written by itself.
        out.append(self.writer.inner_mut());
        Ok(())
    }
}

fn not_written(e: parquet::errors::ParquetError) -> String {
    format!("cannot be written as Parquet: {e}")
}

impl<T: Serialize> RowFormat<T> for ParquetRows {
    fn extension(&self) -> &str {
        "parquet"
    }

    fn append(&mut self, batch: &[Record<T>], first: bool, out: &mut Vec<u8>) -> Result<(), String> {
        if first {
            self.begin()?;
        }
        let Some(open) = &mut self.open else {
            return Err("a Parquet file was written to before it was begun".to_owned());
        };
        for record in batch {
            open.columns.push(&record.value)?;
        }
        if open.columns.rows() >= GROUP_ROWS || open.columns.bytes() >= GROUP_BYTES {
            open.write_group(out)?;
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        open.write_group(out)?;
        open.writer.finish().map_err(not_written)?;
        open.take(out)
    }

    fn held_back(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.columns.bytes())
    }

    fn check(&self) -> Result<(), String> {
        self.parsed().map(|_| ())
    }

    fn memory(&self) -> u64 {
        // The rows, and what they are encoded into.
        2 * GROUP_BYTES
    }
}

impl Clone for ParquetRows {
    /// The recipe; what is open stays with the original.
    fn clone(&self) -> Self {
        ParquetRows::of(&*self.schema)
    }
}

impl fmt::Debug for ParquetRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParquetRows").field("schema", &self.schema).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
