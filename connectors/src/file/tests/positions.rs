//! A file source goes on in the middle of its files, whoever reads them next, and knows another file when it sees one.

use proptest::prelude::*;

use super::*;

/// Polls once with room for `n` records, and gives what came.
fn poll<T: Data, D: Decoder<T>>(source: &mut FileSource<T, D>, n: usize) -> (Vec<T>, SourceStatus) {
    let mut out = SourceBatch::new(n);
    let status = source.poll(&mut out, Duration::from_secs(1)).unwrap();
    (out.records().iter().map(|r| r.value.clone()).collect(), status)
}

fn items<T: Data, D: Decoder<T>>(of: &mut [FileSource<T, D>]) -> Vec<RestoredItem> {
    let barrier = Barrier::LAST;
    let items = of.iter_mut().enumerate().map(|(subtask, s)| {
        let positions = s.positions(barrier).unwrap();
        positions.into_iter().map(move |(key, value)| RestoredItem { subtask, key, value })
    });
    items.flatten().collect()
}

/// Through JSON and back, as a checkpoint keeps them.
fn begin<T: Data, D: Decoder<T>>(
    source: &FileSource<T, D>,
    subtask: usize,
    parallelism: usize,
    items: &[RestoredItem],
) -> Result<FileSource<T, D>> {
    let mut source = source.clone();
    source.begin(&context("files", subtask, parallelism), items)?;
    Ok(source)
}

#[test]
fn a_split_is_called_as_its_position_is() {
    let files = [file(b"\"a\",1\n"), file(b"\"b\",2\n")];
    let source = FileSource::csv::<Row>(files[0].path()).and_all([files[1].path()]);
    let mut opened = begin(&source, 0, 1, &[]).unwrap();
    let mut named: Vec<_> = (0..3).filter_map(|split| opened.split_name(SplitId(split))).collect();
    named.sort_unstable();
    let mut positions: Vec<_> =
        items(std::slice::from_mut(&mut opened)).into_iter().map(|item| item.key).collect();
    positions.sort_unstable();
    assert_eq!(named, positions);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Lives of any parallelism that stop anywhere, at each of which subtasks have read as much as they like.
    #[test]
    fn every_row_once_over_any_lives(
        sizes in proptest::collection::vec(0usize..40, 1..6),
        lives in proptest::collection::vec((1usize..5, proptest::collection::vec(0usize..30, 5)), 0..5),
        last in 1usize..8,
    ) {
        let files: Vec<_> = sizes.iter().enumerate().map(|(f, rows)| {
            let rows: String = (0..*rows).map(|i| format!("\"a\n{i}\",{}\n\n", f * 100 + i)).collect();
            file(format!("\u{feff}name,id\n{rows}").as_bytes())
        }).collect();
        let source = FileSource::csv::<Row>(files[0].path()).and_all(files[1..].iter().map(|f| f.path())).with_header();
        let (mut held, mut all) = (Vec::new(), Vec::new());
        for (parallelism, counts) in lives {
            let mut subtasks: Vec<_> = (0..parallelism).map(|s| begin(&source, s, parallelism, &held).unwrap()).collect();
            for (subtask, n) in subtasks.iter_mut().zip(counts) {
                all.extend(poll(subtask, n).0.into_iter().map(|row| row.id));
            }
            held = items(&mut subtasks);
            prop_assert_eq!(held.len(), files.len());
        }
        for s in 0..last {
            all.extend(poll(&mut begin(&source, s, last, &held).unwrap(), 1_000).0.into_iter().map(|row| row.id));
        }
        all.sort_unstable();
        let expected: Vec<u64> =
            sizes.iter().enumerate().flat_map(|(f, n)| (0..*n).map(move |i| (f * 100 + i) as u64)).collect();
        prop_assert_eq!(all, expected);
    }
}

#[test]
fn lines_are_counted_on() {
    let f = file(b"1,ann\n2,\"b\nb\"\nx,bob\n");
    let source = FileSource::csv::<Row>(f.path());
    let mut first = begin(&source, 0, 1, &[]).unwrap();
    assert_eq!(poll(&mut first, 2).0.len(), 2);
    let held = items(&mut [first]);
    let mut next = begin(&source, 0, 1, &held).unwrap();
    let mut out = SourceBatch::new(10);
    next.poll(&mut out, Duration::from_secs(1)).unwrap();
    assert_eq!(out.rejected()[0].offset, 4);
}

#[test]
fn a_file_that_was_read_is_not_needed_any_more() {
    let (a, b) = (file(b"a\n"), file(b"b\nc\n"));
    let source = FileSource::lines(a.path()).and(b.path());
    let mut first = begin(&source, 0, 1, &[]).unwrap();
    assert_eq!(poll(&mut first, 2).0, ["a", "b"]);
    let held = items(&mut [first]);
    drop(a);
    let mut next = begin(&source, 0, 1, &held).unwrap();
    assert_eq!(poll(&mut next, 10), (vec!["c".to_owned()], SourceStatus::End));
    // At the end nothing is read again, by anybody.
    let held = items(&mut [next]);
    drop(b);
    for s in 0..3 {
        assert_eq!(poll(&mut begin(&source, s, 3, &held).unwrap(), 10), (vec![], SourceStatus::End));
    }
}

#[test]
fn files_may_be_added_but_not_left_out_half_read() {
    let (a, b) = (file(b"a\nb\n"), file(b"c\n"));
    let path = a.path().display();
    let mut first = begin(&FileSource::lines(a.path()), 0, 1, &[]).unwrap();
    poll(&mut first, 1);
    let held = items(&mut [first]);
    let e = begin(&FileSource::lines(b.path()), 0, 1, &held).unwrap_err().to_string();
    assert!(
        e.starts_with(&format!("the checkpoint stands at byte 2 (line 2) of {path}, which this source")),
        "{e}"
    );
    let mut more = begin(&FileSource::lines(b.path()).and(a.path()), 0, 1, &held).unwrap();
    assert_eq!(poll(&mut more, 10).0, ["c", "b"]);
    let held = items(&mut [more]);
    begin(&FileSource::lines(b.path()), 0, 1, &held).unwrap();
}

#[test]
fn the_same_file_twice_is_read_twice() {
    let f = file(b"a\nb\n");
    let source = FileSource::lines(f.path()).and(f.path());
    let mut first = begin(&source, 0, 1, &[]).unwrap();
    assert_eq!(poll(&mut first, 3).0, ["a", "b", "a"]);
    let held = items(&mut [first]);
    assert_eq!(held[1].key, format!("{} #2", f.path().display()));
    assert_eq!(poll(&mut begin(&source, 0, 1, &held).unwrap(), 10).0, ["b"]);
}

#[test]
fn another_file_is_refused_by_name() {
    let long: String = (0..2_000).map(|i| format!("line {i}\n")).collect();
    let f = file(long.as_bytes());
    let source = FileSource::lines(f.path());
    let mut first = begin(&source, 0, 1, &[]).unwrap();
    poll(&mut first, 1_500);
    let held = items(&mut [first]);
    let read = long.match_indices('\n').nth(1_499).unwrap().0 + 1;
    let refused = |content: &str| {
        std::fs::write(f.path(), content).unwrap();
        let e = begin(&source, 0, 1, &held).unwrap_err().to_string();
        let start = format!(
            "{} is not the file any more that was read up to byte {read} (line 1501)",
            f.path().display()
        );
        assert!(e.starts_with(&start), "{e}");
        e
    };
    assert!(refused(&long[..read - 1]).contains(&format!("it has shrunk to {} bytes", read - 1)));
    assert!(refused(&long.replacen("line 0", "Line 0", 1)).contains("what was read has changed"));
    refused(&long.replacen("line 1499\n", "lime 1499\n", 1));
    // It may have grown.
    std::fs::write(f.path(), format!("{long}more\n")).unwrap();
    assert_eq!(poll(&mut begin(&source, 0, 1, &held).unwrap(), 1_000).0.len(), 501);

    let stranger = [RestoredItem { subtask: 0, key: "17".into(), value: 17.into() }];
    let e = begin(&source, 0, 1, &stranger).unwrap_err().to_string();
    assert!(e.starts_with("the checkpoint holds 17: 17 as a position of this source"), "{e}");
}

#[test]
fn a_path_that_is_written_otherwise_is_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("a"), "a1\na2\na3\n").unwrap();
    std::fs::write(path("b"), "b1\n").unwrap();
    let mut first = begin(&FileSource::lines(path("b")).and(path("a")), 0, 1, &[]).unwrap();
    assert_eq!(poll(&mut first, 2).0, ["b1", "a1"]);
    let held = items(&mut [first]);
    let otherwise = FileSource::lines(folder.path().join("./a")).and(folder.path().join("./b"));
    let mut next = begin(&otherwise, 0, 1, &held).unwrap();
    assert_eq!(poll(&mut next, 10).0, ["a2", "a3"], "on in the one, and nothing of the other");
    let held = items(&mut [next]);
    let mut last = begin(&FileSource::lines(path("a")).and(path("b")), 0, 1, &held).unwrap();
    assert_eq!(poll(&mut last, 10), (vec![], SourceStatus::End));
}

#[test]
fn a_file_in_the_place_of_one_that_was_read_is_refused() {
    let f = file(b"a\nb\n");
    let source = FileSource::lines(f.path());
    let mut first = begin(&source, 0, 1, &[]).unwrap();
    assert_eq!(poll(&mut first, 10).1, SourceStatus::End);
    let held = items(&mut [first]);
    for other in ["c\nd\n", "a\n", ""] {
        std::fs::write(f.path(), other).unwrap();
        let e = begin(&source, 0, 1, &held).unwrap_err().to_string();
        let start = format!(
            "{} is not the file any more that was read to its end (byte 4) before",
            f.path().display()
        );
        assert!(e.starts_with(&start), "{e}");
    }
    // What is appended is not read, and told in the log.
    std::fs::write(f.path(), "a\nb\nc\n").unwrap();
    assert_eq!(poll(&mut begin(&source, 0, 1, &held).unwrap(), 10), (vec![], SourceStatus::End));
    // Of an earlier version's checkpoint nothing is known but that it was read.
    let value = serde_json::json!({"offset": 4, "line": 3, "mark": "", "done": true});
    let old = [RestoredItem { subtask: 0, key: held[0].key.clone(), value }];
    std::fs::write(f.path(), "c\n").unwrap();
    assert_eq!(poll(&mut begin(&source, 0, 1, &old).unwrap(), 10), (vec![], SourceStatus::End));
}

#[test]
fn a_path_that_means_another_file_now_says_which_it_was() {
    let f = file(b"a\nb\n");
    let source = FileSource::lines(f.path());
    let mut first = begin(&source, 0, 1, &[]).unwrap();
    poll(&mut first, 1);
    let mut held = items(&mut [first]);
    // As if it had been given as a relative path, from another folder.
    held[0].value["path"] = "/elsewhere/a".into();
    std::fs::write(f.path(), "x\ny\n").unwrap();
    let e = begin(&source, 0, 1, &held).unwrap_err().to_string();
    let which = format!("(that was /elsewhere/a, this is {})", f.path().display());
    assert!(e.contains(&which), "{e}");
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_not_read_to_its_end() {
    let f = file("line\n".repeat(200_000).as_bytes());
    let mut source = begin(&FileSource::lines(f.path()), 0, 1, &[]).unwrap();
    assert_eq!(poll(&mut source, 10).0.len(), 10);
    f.as_file().set_len(1_000).unwrap();
    let mut out = SourceBatch::new(200_000);
    let e = loop {
        match source.poll(&mut out, Duration::from_secs(1)) {
            Ok(status) => assert_ne!(status, SourceStatus::End, "the rest is missing"),
            Err(e) => break e,
        }
    };
    assert!(e.chain().contains("it has shrunk to 1000 bytes while it was read"), "{}", e.chain());
}

#[test]
fn no_two_files_have_one_name_in_a_checkpoint() {
    let paths = ["x", "x", "x #2", "x", "x #2"].map(PathBuf::from);
    let mut names = names(&paths);
    assert_eq!(names[0], "x");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 5, "{names:?}");
}
