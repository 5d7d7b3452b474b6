//! What a file source does with the files that there are in the world.

use serde::Deserialize;
use weir_engine::testkit::context;

use super::*;
use crate::behaviour::{Behaviour, BehaviourCsv};

mod positions;

/// What a subtask read: values, and dead letters as (line, reason, payload).
type Read<T> = (Vec<T>, Vec<(i64, String, Vec<u8>)>);

fn read<T: Data, D: Decoder<T>>(mut source: FileSource<T, D>, subtask: usize, parallelism: usize) -> Read<T> {
    source.open(&context("files", subtask, parallelism)).unwrap();
    let (mut values, mut letters) = (Vec::new(), Vec::new());
    loop {
        let mut out = SourceBatch::new(7);
        let status = source.poll(&mut out, Duration::from_millis(5)).unwrap();
        values.extend(out.records().iter().map(|r| r.value.clone()));
        letters.extend(out.rejected().iter().map(|l| (l.offset, l.reason.clone(), l.payload.clone())));
        if status == SourceStatus::End {
            return (values, letters);
        }
    }
}

fn file(content: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    file
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Row {
    id: u64,
    name: String,
}

#[test]
fn csv_rows_bad_ones_beside_good_ones() {
    let f = file(b"1,ann\r\n\r\nx,bob\r\n2,\"c\nd\"\r\n3\r\n4,dan");
    let (rows, letters) = read(FileSource::csv::<Row>(f.path()), 0, 1);
    let names: Vec<_> = rows.iter().map(|r| (r.id, r.name.as_str())).collect();
    assert_eq!(names, [(1, "ann"), (2, "c\nd"), (4, "dan")]);
    assert_eq!(letters.len(), 2);
    assert_eq!((letters[0].0, &letters[0].2[..]), (3, &b"x,bob"[..]));
    assert_eq!(letters[0].1, "field 1 is 'x': invalid digit found in string");
    assert_eq!((letters[1].0, &letters[1].2[..]), (6, &b"3"[..]));
}

#[test]
fn csv_by_name_in_every_file() {
    let (a, b) = (file(b"id;name\n1;ann\n"), file(b"name;id\nbob;2\n"));
    let source = FileSource::csv::<Row>(a.path()).and(b.path()).delimiter(b';').with_header();
    let (rows, letters) = read(source, 0, 1);
    assert_eq!(rows.iter().map(|r| r.id).collect::<Vec<_>>(), [1, 2]);
    assert!(letters.is_empty(), "{letters:?}");
}

#[test]
fn json_lines_and_empty_files() {
    let f = file(b"{\"id\":1,\"name\":\"a\"}\n\n{\"id\":}\n{\"id\":2,\"name\":\"b\"}");
    let (rows, letters) = read(FileSource::json_lines::<Row>(f.path()), 0, 1);
    assert_eq!(rows.iter().map(|r| r.id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((letters[0].0, &letters[0].2[..]), (3, &b"{\"id\":}"[..]));
    assert!(letters[0].1.starts_with("not the expected JSON"), "{}", letters[0].1);

    let empty = file(b"");
    assert_eq!(read(FileSource::lines(empty.path()), 0, 1), (vec![], vec![]));
}

#[test]
fn long_lines_are_cut_not_buffered() {
    let mut content = vec![b'x'; 3 << 20];
    content.extend_from_slice(b"\nshort\n");
    let f = file(&content);
    let (lines, letters) = read(FileSource::lines(f.path()).line_limit(1 << 20), 0, 1);
    assert_eq!(lines, ["short"]);
    assert_eq!((letters[0].0, letters[0].2.len()), (1, framing::HEAD));
    assert!(letters[0].1.starts_with("3145729 bytes long, above the limit of 1048576"), "{}", letters[0].1);
}

#[test]
fn a_file_of_bad_rows_only_does_not_hold_a_poll() {
    let f = file("x\n".repeat(10_000).as_bytes());
    let mut source = FileSource::csv::<Row>(f.path());
    source.open(&context("files", 0, 1)).unwrap();
    let mut out = SourceBatch::new(1024);
    assert_eq!(source.poll(&mut out, Duration::from_secs(1)).unwrap(), SourceStatus::More);
    assert_eq!(out.rejected().len(), REJECTED_PER_POLL);
    let (rows, letters) = read(source, 0, 1);
    assert_eq!((rows.len(), letters.len()), (0, 10_000));
}

#[test]
fn files_are_shared_among_subtasks() {
    let files: Vec<_> = (0..5).map(|i| file(format!("f{i}\n").as_bytes())).collect();
    let source = FileSource::lines(files[0].path()).and_all(files[1..].iter().map(|f| f.path()));
    for p in [1, 2, 5, 9] {
        let mut all: Vec<String> = (0..p).flat_map(|s| read(source.clone(), s, p).0).collect();
        all.sort();
        assert_eq!(all, ["f0", "f1", "f2", "f3", "f4"], "parallelism {p}");
    }
}

#[test]
fn a_missing_file_stops_the_start_and_is_named() {
    let mut source = FileSource::lines("/no/such/file.csv");
    let e = source.open(&context("files", 0, 1)).unwrap_err();
    assert_eq!(e.to_string(), "cannot read /no/such/file.csv");
    assert!(e.chain().contains("No such file"), "{}", e.chain());

    let folder = tempfile::tempdir().unwrap();
    let e = FileSource::lines(folder.path()).open(&context("files", 0, 1)).unwrap_err();
    assert!(e.chain().ends_with("it is a folder: name the files in it"), "{}", e.chain());
}

#[test]
fn behaviour_rows() {
    let f = file(b"1,2,3,pv,1511848894\n1,2,3,pay,1511848894\n");
    let (rows, letters) = read(FileSource::decoded::<Behaviour, _>(f.path(), BehaviourCsv::default()), 0, 1);
    assert_eq!(rows[0].ts, 1_511_848_894_000);
    assert_eq!(letters[0].0, 2);
}
