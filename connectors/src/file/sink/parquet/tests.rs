//! What is written in Parquet is read again by its reader; what does not fit is refused; files are seen whole or not at all.

use std::fs::File;
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use weir_engine::testkit::context;
use weir_engine::{Barrier, CheckpointId, Closing, EventTime, Sink};

use super::super::{FileSink, visible_files};
use super::*;

const SCHEMA: &str = "message order { required int64 id; optional binary user (STRING); required double amount; required boolean paid;
    optional int32 lane; required binary kind (ENUM); optional int64 at (TIMESTAMP(MILLIS,true)); optional float share; }";

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
enum Kind {
    Buy,
    Sell,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Order {
    id: u64,
    user: Option<String>,
    amount: f64,
    paid: bool,
    // Not in the schema's order.
    kind: Kind,
    lane: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<i64>,
    share: f32,
}

fn order(id: u64) -> Order {
    Order {
        id,
        user: (!id.is_multiple_of(3)).then(|| format!("user {id}")),
        amount: id as f64 / 4.0,
        paid: id.is_multiple_of(2),
        kind: if id.is_multiple_of(5) { Kind::Sell } else { Kind::Buy },
        lane: id.is_multiple_of(7).then_some(id as u16),
        at: (!id.is_multiple_of(4)).then_some(id as i64 - 5),
        share: 0.5,
    }
}

fn read(path: &Path) -> Vec<Order> {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let all = reader.get_row_iter(None).unwrap().map(|row| {
        let row = row.unwrap();
        Order {
            id: row.get_long(0).unwrap() as u64,
            user: row.get_string(1).ok().cloned(),
            amount: row.get_double(2).unwrap(),
            paid: row.get_bool(3).unwrap(),
            lane: row.get_int(4).ok().map(|lane| lane as u16),
            kind: if row.get_string(5).unwrap() == "Buy" { Kind::Buy } else { Kind::Sell },
            at: row.get_timestamp_millis(6).ok(),
            share: row.get_float(7).unwrap(),
        }
    });
    all.collect()
}

fn records<T>(values: impl IntoIterator<Item = T>) -> Vec<Record<T>> {
    values.into_iter().map(|value| Record::new(value, EventTime(0))).collect()
}

#[test]
fn rows_are_read_as_they_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut rows = ParquetRows::of(SCHEMA);
    let (mut out, all) = (Vec::new(), (0..GROUP_ROWS as u64 + 1_000).map(order).collect::<Vec<_>>());
    for (n, batch) in all.chunks(250).enumerate() {
        rows.append(&records(batch.to_vec()), n == 0, &mut out).unwrap();
    }
    assert!(
        !out.is_empty() && RowFormat::<Order>::held_back(&rows) > 0,
        "a group was written, another is held back"
    );
    RowFormat::<Order>::finish(&mut rows, &mut out).unwrap();
    assert_eq!(RowFormat::<Order>::held_back(&rows), 0);
    let path = folder.path().join("one.parquet");
    std::fs::write(&path, &out).unwrap();
    assert!(read(&path) == all);
    let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
    assert_eq!(reader.num_row_groups(), 2);
}

#[test]
fn files_are_seen_once_they_are_committed() {
    let folder = tempfile::tempdir().unwrap();
    let mut sink = FileSink::<Order, _>::parquet(folder.path(), SCHEMA).roll_bytes(2_000);
    sink.open(&context("out", 0, 1)).unwrap();
    sink.recover(None).unwrap();
    let cut = |sink: &mut FileSink<Order, ParquetRows>, n| {
        sink.flush().unwrap();
        sink.prepare(Barrier { checkpoint: CheckpointId(n) }).unwrap()
    };
    assert_eq!(cut(&mut sink, 1), None);
    for batch in 0..5 {
        sink.write(&mut records((batch * 20..batch * 20 + 20).map(order))).unwrap();
    }
    let work = cut(&mut sink, 2).unwrap();
    assert!(visible_files(folder.path()).unwrap().is_empty());
    sink.commit(work).unwrap();
    // What no checkpoint counts is not left behind.
    sink.write(&mut records([order(500)])).unwrap();
    sink.close(Closing::Stopped);
    let files = visible_files(folder.path()).unwrap();
    assert!(files.len() > 1, "they roll");
    let mut all: Vec<_> = files.iter().flat_map(|path| read(path)).collect();
    all.sort_by_key(|order| order.id);
    assert!(all == (0..100).map(order).collect::<Vec<_>>());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), files.len());
}

fn refused<T: Serialize + Clone>(schema: &str, value: T) -> String {
    ParquetRows::of(schema).append(&records([value]), true, &mut Vec::new()).unwrap_err()
}

#[test]
fn what_does_not_fit_is_an_error_with_the_column() {
    #[derive(Clone, Serialize)]
    struct One<V> {
        v: V,
    }
    let one = |schema: &str| format!("message m {{ {schema} }}");
    for (schema, reason) in [
        ("required int32 v;", "2147483648 does not fit column v"),
        ("required binary v;", "2147483648 does not fit column v"),
        ("required int64 w;", "field v has no column: add one to the schema, or leave the field out"),
        ("required int64 v; required int32 w;", "column w is required, and the record has no value for it"),
    ] {
        let told = refused(&one(schema), One { v: 2_147_483_648u64 });
        assert_eq!(told, format!("cannot be written as a row of Parquet: {reason}"));
    }
    assert!(
        refused(&one("required int64 v;"), One { v: u64::MAX }).contains("18446744073709551615 does not fit")
    );
    assert!(refused(&one("required double v;"), One { v: (1i64 << 53) + 1 }).contains("does not fit"));
    assert!(refused(&one("required float v;"), One { v: 0.5f64 }).contains("0.5 does not fit"));
    assert!(refused(&one("required int64 v;"), One { v: "x" }).contains("\"x\" does not fit"));
    assert!(refused(&one("required int64 v;"), One { v: None::<i64> }).contains("column v is required"));
    assert!(
        refused(&one("required int64 v;"), One { v: vec![1] })
            .contains("a value that is not plain does not fit")
    );
    assert!(refused(&one("required int64 v;"), 7).contains("it is no struct with named fields"));
}

#[test]
fn schemas_are_looked_at_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    for (schema, says) in [
        ("message m { required int64 }", "cannot be read"),
        ("message m { repeated int64 v; }", "column v of the Parquet files is repeated"),
        ("message m { required int96 v; }", "neither boolean, int32,"),
        ("message m { required group v { required int64 w; } }", "neither boolean, int32,"),
    ] {
        let mut sink = FileSink::<Order, _>::parquet(folder.path(), schema);
        let e = sink.open(&context("out", 0, 1)).unwrap_err().to_string();
        assert!(e.contains(says), "{e}");
    }
}
