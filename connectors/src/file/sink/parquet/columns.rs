//! The columns of a row group: the fields of records, taken apart by serde, until they are written (over 400 lines: a serializer has thirty methods).
// HOT: per field one comparison of names and one push.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use parquet::basic::{Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::Result as ParquetResult;
use parquet::file::writer::SerializedRowGroupWriter;
use parquet::schema::types::Type;
use serde::ser::{self, Impossible, Serialize};

/// The columns, in the schema's order.
pub(super) struct Columns {
    columns: Vec<Column>,
    rows: usize,
    /// Strings of all columns.
    text: Vec<u8>,
}

struct Column {
    name: String,
    optional: bool,
    values: Values,
    /// For each row of an optional column: 1 when it has a value.
    levels: Vec<i16>,
    /// How many rows have been here.
    rows: usize,
}

enum Values {
    Bool(Vec<bool>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    /// Where in the text.
    Bytes(Vec<Range<usize>>),
}

impl Columns {
    /// Those of a flat schema.
    pub(super) fn of(schema: &Type) -> Result<Columns, String> {
        let column = |field: &std::sync::Arc<Type>| {
            let name = field.name().to_owned();
            let values = match field.is_primitive().then(|| field.get_physical_type()) {
                Some(Physical::BOOLEAN) => Values::Bool(Vec::new()),
                Some(Physical::INT32) => Values::I32(Vec::new()),
                Some(Physical::INT64) => Values::I64(Vec::new()),
                Some(Physical::FLOAT) => Values::F32(Vec::new()),
                Some(Physical::DOUBLE) => Values::F64(Vec::new()),
                Some(Physical::BYTE_ARRAY) => Values::Bytes(Vec::new()),
                _ => {
                    return Err(format!(
                        "column {name} of the Parquet files is neither boolean, int32, int64, float, double nor binary"
                    ));
                }
            };
            let optional = match field.get_basic_info().repetition() {
                Repetition::REQUIRED => false,
                Repetition::OPTIONAL => true,
                Repetition::REPEATED => {
                    return Err(format!(
                        "column {name} of the Parquet files is repeated: make it required or optional"
                    ));
                }
            };
            Ok(Column { name, optional, values, levels: Vec::new(), rows: 0 })
        };
        let columns = schema.get_fields().iter().map(column).collect::<Result<Vec<_>, _>>()?;
        if columns.is_empty() {
            return Err("the schema of the Parquet files has no column".to_owned());
        }
        Ok(Columns { columns, rows: 0, text: Vec::new() })
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// About what they hold.
    pub(super) fn bytes(&self) -> u64 {
        let one = |column: &Column| match column.values {
            Values::Bool(_) => 1,
            Values::I32(_) | Values::F32(_) => 4,
            _ => 8,
        };
        (self.columns.iter().map(one).sum::<usize>() * self.rows + self.text.len()) as u64
    }

    /// Adds a row.
    pub(super) fn push(&mut self, row: &impl Serialize) -> Result<(), String> {
        row.serialize(Row { columns: self, next: 0 })
            .map_err(|e| format!("cannot be written as a row of Parquet: {}", e.0))?;
        self.rows += 1;
        for column in self.columns.iter_mut().filter(|column| column.rows < self.rows) {
            column.null().map_err(|e| format!("cannot be written as a row of Parquet: {}", e.0))?;
        }
        Ok(())
    }

    /// Writes all rows, and forgets them.
    pub(super) fn write(&mut self, group: &mut SerializedRowGroupWriter<'_, Vec<u8>>) -> ParquetResult<()> {
        let text = Bytes::from(std::mem::take(&mut self.text));
        for column in &mut self.columns {
            let Some(mut writer) = group.next_column()? else { break };
            let levels = column.optional.then_some(&column.levels[..]);
            match (writer.untyped(), &mut column.values) {
                (ColumnWriter::BoolColumnWriter(to), Values::Bool(all)) => {
                    to.write_batch(all, levels, None)?
                }
                (ColumnWriter::Int32ColumnWriter(to), Values::I32(all)) => {
                    to.write_batch(all, levels, None)?
                }
                (ColumnWriter::Int64ColumnWriter(to), Values::I64(all)) => {
                    to.write_batch(all, levels, None)?
                }
                (ColumnWriter::FloatColumnWriter(to), Values::F32(all)) => {
                    to.write_batch(all, levels, None)?
                }
                (ColumnWriter::DoubleColumnWriter(to), Values::F64(all)) => {
                    to.write_batch(all, levels, None)?
                }
                (ColumnWriter::ByteArrayColumnWriter(to), Values::Bytes(all)) => {
                    let all: Vec<_> =
                        all.iter().map(|range| ByteArray::from(text.slice(range.clone()))).collect();
                    to.write_batch(&all, levels, None)?
                }
                // The values were chosen by the type that the writer was made of.
                _ => return Err(parquet::errors::ParquetError::General("another type of column".to_owned())),
            };
            writer.close()?;
            column.clear();
        }
        self.rows = 0;
        Ok(())
    }
}

impl Column {
    fn clear(&mut self) {
        match &mut self.values {
            Values::Bool(all) => all.clear(),
            Values::I32(all) => all.clear(),
            Values::I64(all) => all.clear(),
            Values::F32(all) => all.clear(),
            Values::F64(all) => all.clear(),
            Values::Bytes(all) => all.clear(),
        }
        self.levels.clear();
        self.rows = 0;
    }

    fn null(&mut self) -> Result<(), Unfit> {
        if !self.optional {
            return Err(Unfit(format!(
                "column {} is required, and the record has no value for it",
                self.name
            )));
        }
        self.levels.push(0);
        self.rows += 1;
        Ok(())
    }

    #[inline]
    fn filled(&mut self) {
        if self.optional {
            self.levels.push(1);
        }
        self.rows += 1;
    }
}

/// Why a value does not fit.
#[derive(Debug)]
pub(super) struct Unfit(String);

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unfit {}

impl ser::Error for Unfit {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Unfit(message.to_string())
    }
}

/// Takes a record apart.
struct Row<'a> {
    columns: &'a mut Columns,
    /// The column that the next field is most likely of.
    next: usize,
}

impl ser::SerializeStruct for Row<'_> {
    type Ok = ();
    type Error = Unfit;

    #[inline]
    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Unfit> {
        let columns = &mut self.columns.columns;
        let at = match columns.get(self.next) {
            Some(column) if column.name == name => self.next,
            _ => columns.iter().position(|column| column.name == name).ok_or_else(|| {
                Unfit(format!("field {name} has no column: add one to the schema, or leave the field out"))
            })?,
        };
        self.next = at + 1;
        value.serialize(Cell { column: &mut columns[at], text: &mut self.columns.text })
    }

    fn end(self) -> Result<(), Unfit> {
        Ok(())
    }
}

/// Takes one value.
struct Cell<'a> {
    column: &'a mut Column,
    text: &'a mut Vec<u8>,
}

impl Cell<'_> {
    #[cold]
    fn unfit(&self, what: impl fmt::Display) -> Unfit {
        Unfit(format!("{what} does not fit column {}", self.column.name))
    }

    fn whole(self, value: i128) -> Result<(), Unfit> {
        let fits = match &mut self.column.values {
            Values::I32(all) => i32::try_from(value).map(|v| all.push(v)).is_ok(),
            Values::I64(all) => i64::try_from(value).map(|v| all.push(v)).is_ok(),
            // Further on not every whole number is one.
            Values::F64(all) if value.unsigned_abs() <= 1 << 53 => {
                all.push(value as f64);
                true
            }
            _ => false,
        };
        if !fits {
            return Err(self.unfit(value));
        }
        self.column.filled();
        Ok(())
    }

    fn raw(self, bytes: &[u8], shown: impl FnOnce() -> String) -> Result<(), Unfit> {
        let Values::Bytes(all) = &mut self.column.values else { return Err(self.unfit(shown())) };
        let start = self.text.len();
        self.text.extend_from_slice(bytes);
        all.push(start..self.text.len());
        self.column.filled();
        Ok(())
    }
}

macro_rules! whole {
    ($($method:ident: $of:ty),*) => {
        $(#[inline]
        fn $method(self, value: $of) -> Result<(), Unfit> {
            self.whole(i128::from(value))
        })*
    };
}

/// Refuses what is no plain value, and what is no struct.
macro_rules! refused {
    ($what:expr; $($method:ident($($arg:ident: $of:ty),*) -> $ok:ty),* $(,)?) => {
        $(fn $method(self, $($arg: $of),*) -> Result<$ok, Unfit> {
            $(let _ = $arg;)*
            Err($what(&self))
        })*
    };
}

impl ser::Serializer for Cell<'_> {
    type Ok = ();
    type Error = Unfit;
    type SerializeSeq = Impossible<(), Unfit>;
    type SerializeTuple = Impossible<(), Unfit>;
    type SerializeTupleStruct = Impossible<(), Unfit>;
    type SerializeTupleVariant = Impossible<(), Unfit>;
    type SerializeMap = Impossible<(), Unfit>;
    type SerializeStruct = Impossible<(), Unfit>;
    type SerializeStructVariant = Impossible<(), Unfit>;

    whole!(serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_u8: u8, serialize_u16: u16,
        serialize_u32: u32, serialize_u64: u64);

    fn serialize_bool(self, value: bool) -> Result<(), Unfit> {
        let Values::Bool(all) = &mut self.column.values else { return Err(self.unfit(value)) };
        all.push(value);
        self.column.filled();
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), Unfit> {
        match &mut self.column.values {
            Values::F32(all) => all.push(value),
            Values::F64(all) => all.push(f64::from(value)),
            _ => return Err(self.unfit(value)),
        }
        self.column.filled();
        Ok(())
    }

    fn serialize_f64(self, value: f64) -> Result<(), Unfit> {
        let Values::F64(all) = &mut self.column.values else { return Err(self.unfit(value)) };
        all.push(value);
        self.column.filled();
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), Unfit> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), Unfit> {
        self.raw(value.as_bytes(), || format!("{value:?}"))
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Unfit> {
        self.raw(value, || format!("a value of {} bytes", value.len()))
    }

    fn serialize_none(self) -> Result<(), Unfit> {
        self.column.null()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Unfit> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Unfit> {
        self.column.null()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Unfit> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Unfit> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), Unfit> {
        Err(self.unfit("a value that is not plain"))
    }

    refused! { |cell: &Cell<'_>| cell.unfit("a value that is not plain");
        serialize_unit_struct(_n: &'static str) -> (),
        serialize_seq(_n: Option<usize>) -> Self::SerializeSeq,
        serialize_tuple(_n: usize) -> Self::SerializeTuple,
        serialize_tuple_struct(_n: &'static str, _l: usize) -> Self::SerializeTupleStruct,
        serialize_tuple_variant(_n: &'static str, _i: u32, _v: &'static str, _l: usize) -> Self::SerializeTupleVariant,
        serialize_map(_n: Option<usize>) -> Self::SerializeMap,
        serialize_struct(_n: &'static str, _l: usize) -> Self::SerializeStruct,
        serialize_struct_variant(_n: &'static str, _i: u32, _v: &'static str, _l: usize) -> Self::SerializeStructVariant,
    }
}

impl ser::Serializer for Row<'_> {
    type Ok = ();
    type Error = Unfit;
    type SerializeSeq = Impossible<(), Unfit>;
    type SerializeTuple = Impossible<(), Unfit>;
    type SerializeTupleStruct = Impossible<(), Unfit>;
    type SerializeTupleVariant = Impossible<(), Unfit>;
    type SerializeMap = Impossible<(), Unfit>;
    type SerializeStruct = Self;
    type SerializeStructVariant = Impossible<(), Unfit>;

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Unfit> {
        Ok(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Unfit> {
        value.serialize(self)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Unfit> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), Unfit> {
        Err(no_struct(&self))
    }

    refused! { no_struct;
        serialize_bool(_v: bool) -> (), serialize_i8(_v: i8) -> (), serialize_i16(_v: i16) -> (), serialize_i32(_v: i32) -> (),
        serialize_i64(_v: i64) -> (), serialize_u8(_v: u8) -> (), serialize_u16(_v: u16) -> (), serialize_u32(_v: u32) -> (),
        serialize_u64(_v: u64) -> (), serialize_f32(_v: f32) -> (), serialize_f64(_v: f64) -> (), serialize_char(_v: char) -> (),
        serialize_str(_v: &str) -> (), serialize_bytes(_v: &[u8]) -> (), serialize_none() -> (), serialize_unit() -> (),
        serialize_unit_struct(_n: &'static str) -> (),
        serialize_unit_variant(_n: &'static str, _i: u32, _v: &'static str) -> (),
        serialize_seq(_n: Option<usize>) -> Self::SerializeSeq,
        serialize_tuple(_n: usize) -> Self::SerializeTuple,
        serialize_tuple_struct(_n: &'static str, _l: usize) -> Self::SerializeTupleStruct,
        serialize_tuple_variant(_n: &'static str, _i: u32, _v: &'static str, _l: usize) -> Self::SerializeTupleVariant,
        serialize_map(_n: Option<usize>) -> Self::SerializeMap,
        serialize_struct_variant(_n: &'static str, _i: u32, _v: &'static str, _l: usize) -> Self::SerializeStructVariant,
    }
}

fn no_struct(_: &Row<'_>) -> Unfit {
    Unfit("it is no struct with named fields".to_owned())
}
