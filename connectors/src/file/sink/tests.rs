//! What a file sink does at each step of the protocol, and after a crash at each of them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_engine::testkit::context;
use weir_engine::{CheckpointId, EventTime};

use super::*;

type Lines = FileSink<u64, JsonLines>;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Subtask `subtask` of `parallelism`, with what it is given to recover.
fn open(sink: &Lines, subtask: usize, parallelism: usize, prepared: Option<Vec<Value>>) -> Result<Lines> {
    let mut sink = sink.clone();
    sink.open(&context("out", subtask, parallelism))?;
    sink.recover(prepared)?;
    Ok(sink)
}

fn write(sink: &mut Lines, values: impl IntoIterator<Item = u64>) -> Result<()> {
    sink.write(&mut values.into_iter().map(|v| Record::new(v, EventTime(0))).collect())
}

fn cut(sink: &mut Lines, checkpoint: u64) -> Result<Option<Value>> {
    sink.flush()?;
    sink.prepare(Barrier { checkpoint: CheckpointId(checkpoint) })
}

fn seen(folder: &TempDir) -> Vec<u64> {
    let mut numbers: Vec<u64> = visible_lines(folder).unwrap().iter().map(|l| l.parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

fn hidden(folder: &TempDir) -> Vec<String> {
    let mut names = entries(folder.path()).unwrap();
    names.retain(|name| name.starts_with('.'));
    names.sort();
    names
}

#[test]
fn records_are_seen_once_they_are_committed() {
    let folder = folder();
    let mut sink = open(&Lines::json_lines(folder.path()), 1, 2, None).unwrap();
    assert_eq!(cut(&mut sink, 1).unwrap(), None, "no record, no file");
    write(&mut sink, 0..10).unwrap();
    let first = cut(&mut sink, 2).unwrap().unwrap();
    assert_eq!(
        first,
        json!({ "files": [{
            "temp": ".part-out-1-1-00000.jsonl~out.tmp", "name": "part-out-1-1-00000.jsonl", "bytes": 20, "records": 10
        }] })
    );
    write(&mut sink, 10..15).unwrap();
    assert_eq!((seen(&folder), hidden(&folder).len()), (vec![], 2));
    sink.commit(first.clone()).unwrap();
    assert_eq!(seen(&folder), (0..10).collect::<Vec<_>>());
    sink.commit(first).unwrap();
    let last = cut(&mut sink, u64::MAX).unwrap().unwrap();
    sink.commit(last).unwrap();
    sink.close(Closing::Ended);
    assert_eq!((seen(&folder), hidden(&folder)), ((0..15).collect(), vec![]));
}

#[test]
fn files_roll() {
    let folder = folder();
    let mut sink = open(&Lines::json_lines(folder.path()).roll_bytes(100).prefix("n"), 0, 1, None).unwrap();
    for batch in 0..10 {
        write(&mut sink, batch * 10..batch * 10 + 10).unwrap();
    }
    let prepared = cut(&mut sink, 1).unwrap().unwrap();
    assert_eq!(prepared["files"].as_array().unwrap().len(), 3, "{prepared}");
    sink.commit(prepared).unwrap();
    assert_eq!(seen(&folder), (0..100).collect::<Vec<_>>());
    let names: Vec<_> =
        visible_files(&folder).unwrap().iter().map(|p| p.file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["n-0-1-00000.jsonl", "n-0-1-00001.jsonl", "n-0-1-00002.jsonl"]);
}

#[test]
fn every_csv_file_has_its_header() {
    #[derive(Clone, Serialize)]
    struct Row {
        id: u64,
        name: &'static str,
    }
    let folder = folder();
    let mut sink = FileSink::csv(folder.path()).with_header().delimiter(b';');
    sink.open(&context("out", 0, 1)).unwrap();
    for (id, name) in [(1, "a"), (2, "b;")] {
        sink.write(&mut vec![Record::new(Row { id, name }, EventTime(0)); 2]).unwrap();
        sink.write(&mut vec![Record::new(Row { id, name }, EventTime(0))]).unwrap();
        sink.flush().unwrap();
        let prepared = sink.prepare(Barrier::LAST).unwrap().unwrap();
        sink.commit(prepared).unwrap();
    }
    let texts: Vec<_> =
        visible_files(&folder).unwrap().iter().map(|p| fs::read_to_string(p).unwrap()).collect();
    assert_eq!(texts, ["id;name\n1;a\n1;a\n1;a\n", "id;name\n2;\"b;\"\n2;\"b;\"\n2;\"b;\"\n"]);
}

#[test]
fn a_failed_life_leaves_nothing_that_nobody_prepared() {
    let folder = folder();
    let sink = Lines::json_lines(folder.path()).roll_bytes(10);
    let mut failing = open(&sink, 0, 1, None).unwrap();
    write(&mut failing, 0..3).unwrap();
    let prepared = cut(&mut failing, 1).unwrap().unwrap();
    write(&mut failing, 3..30).unwrap();
    write(&mut failing, 30..33).unwrap();
    failing.close(Closing::Stopped);
    assert_eq!(hidden(&folder).len(), 1, "only what the checkpoint knows");
    let next = open(&sink, 0, 1, Some(vec![prepared])).unwrap();
    assert_eq!((seen(&folder), hidden(&folder)), (vec![0, 1, 2], vec![]));
    drop(next);
}

/// Subtask 0 opens, and looks for leftovers, before the others have shown what was prepared.
#[test]
fn a_rescale_leaves_what_others_have_yet_to_show() {
    for parallelism in [1, 2, 3, 5] {
        let folder = folder();
        let sink = Lines::json_lines(folder.path());
        let mut prepared: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
        for subtask in 0..3 {
            let mut old = open(&sink, subtask, 3, None).unwrap();
            for checkpoint in 1..3 {
                write(&mut old, [10 * subtask as u64 + checkpoint]).unwrap();
                let work = cut(&mut old, checkpoint).unwrap().unwrap();
                prepared.entry(subtask % parallelism).or_default().push(work);
            }
            // Prepared, but for a checkpoint that never was.
            write(&mut old, [100 + subtask as u64]).unwrap();
            cut(&mut old, 3).unwrap();
            write(&mut old, [200]).unwrap();
            old.sync_for_test();
            std::mem::forget(old);
        }
        assert_eq!(hidden(&folder).len(), 12);
        for subtask in 0..parallelism {
            drop(
                open(&sink, subtask, parallelism, Some(prepared.remove(&subtask).unwrap_or_default()))
                    .unwrap(),
            );
        }
        assert_eq!(
            (seen(&folder), hidden(&folder)),
            (vec![1, 2, 11, 12, 21, 22], vec![]),
            "to {parallelism}"
        );
    }
}

#[test]
fn beginning_anew_removes_leftovers_of_this_sink_only() {
    let folder = folder();
    let sink = Lines::json_lines(folder.path());
    let mut old = open(&sink, 1, 2, None).unwrap();
    write(&mut old, [1]).unwrap();
    let done = cut(&mut old, 1).unwrap().unwrap();
    old.commit(done).unwrap();
    write(&mut old, [2]).unwrap();
    cut(&mut old, 2).unwrap();
    std::mem::forget(old);
    let mut other = sink.clone();
    other.open(&context("other", 1, 2)).unwrap();
    write(&mut other, [9]).unwrap();
    fs::write(folder.path().join(".hidden"), "x").unwrap();

    drop(open(&sink, 0, 2, None).unwrap());
    assert_eq!(hidden(&folder).len(), 3, "that is for the other subtask");
    let mut fresh = open(&sink, 1, 2, None).unwrap();
    assert_eq!(hidden(&folder), [".hidden", ".part-other-1-1-00000.jsonl~other.tmp"]);
    // The same attempt and subtask again: no name comes twice.
    write(&mut fresh, [3]).unwrap();
    let work = cut(&mut fresh, 1).unwrap().unwrap();
    assert_eq!(work["files"][0]["name"], "part-out-1-1-00002.jsonl");
    fresh.commit(work).unwrap();
    assert_eq!(seen(&folder), [1, 3], "files that are seen stay");
}

#[test]
fn what_somebody_did_to_a_file_is_said() {
    let folder = folder();
    let sink = Lines::json_lines(folder.path());
    let mut old = open(&sink, 0, 1, None).unwrap();
    let mut file = |values: std::ops::Range<u64>, checkpoint| {
        write(&mut old, values).unwrap();
        let work = cut(&mut old, checkpoint).unwrap().unwrap();
        let path = |key: &str| folder.path().join(work["files"][0][key].as_str().unwrap());
        (path("temp"), path("name"), work.clone())
    };
    let recover = |sink: &Lines, work: &Value| {
        open(sink, 0, 1, Some(vec![work.clone()])).map(drop).map_err(|e| e.chain())
    };

    let (temp, name, work) = file(0..9, 1);
    fs::remove_file(&temp).unwrap();
    let e = recover(&sink, &work).unwrap_err();
    assert!(
        e.starts_with(&format!("{} is gone, and so is .part-out-0-1-00000.jsonl~out.tmp", name.display())),
        "{e}"
    );
    assert!(e.contains("somebody removed it, with 9 records") && e.contains("FileSink::taken_away"), "{e}");
    recover(&sink.clone().taken_away(), &work).unwrap();
    fs::write(&name, "0\n").unwrap();
    let e = recover(&sink, &work).unwrap_err();
    assert!(
        e.starts_with(&format!("{} has 2 bytes and not the 18 that the sink wrote", name.display())),
        "{e}"
    );

    let (temp, name, work) = file(0..9, 2);
    fs::write(&temp, "0\n").unwrap();
    let e = recover(&sink, &work).unwrap_err();
    assert!(e.starts_with(&format!("{} has 2 bytes and not the 18", temp.display())), "{e}");
    fs::write(&name, "0\n").unwrap();
    let e = recover(&sink, &work).unwrap_err();
    assert!(e.starts_with(&format!("{} is there already, and is not the file", name.display())), "{e}");
    let e = recover(&sink, &json!([1])).unwrap_err();
    assert!(e.starts_with("the checkpoint holds [1] as prepared by this sink"), "{e}");
}

#[test]
fn a_full_disk_is_named_and_the_next_life_goes_on() {
    let folder = folder();
    let sink = Lines::json_lines(folder.path());
    let mut full = Lines { room: Some(1_000), ..sink.clone() };
    full.open(&context("out", 0, 1)).unwrap();
    write(&mut full, 0..100).unwrap();
    full.flush().unwrap();
    write(&mut full, 100..1_000).unwrap();
    let e = full.flush().unwrap_err().chain();
    let temp = folder.path().join(".part-out-0-1-00000.jsonl~out.tmp");
    assert_eq!(e, format!("cannot write {}: No space left on device (os error 28)", temp.display()));
    full.close(Closing::Stopped);
    assert_eq!(hidden(&folder), [] as [&str; 0], "it gives its room back at once");
    let mut next = open(&sink, 0, 1, Some(vec![])).unwrap();
    write(&mut next, 0..1_000).unwrap();
    let work = cut(&mut next, 1).unwrap().unwrap();
    next.commit(work).unwrap();
    assert_eq!(seen(&folder), (0..1_000).collect::<Vec<_>>());
}

#[test]
fn a_place_that_cannot_be_written_fails_the_start() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below")] {
        let e = Lines::json_lines(&path).open(&context("out", 0, 1)).unwrap_err().chain();
        assert!(e.starts_with(&format!("cannot create folder {}: ", path.display())), "{e}");
    }
    let e = FileSink::<String, _>::encoded(folder.path(), "t/xt", crate::format::Utf8)
        .open(&context("out", 0, 1));
    assert_eq!(
        e.unwrap_err().to_string(),
        "\"t/xt\" cannot end the names of files: take letters, digits and dots"
    );
    let mut below = Lines::json_lines(folder.path().join("a/b"));
    below.open(&context("out", 0, 1)).unwrap();
}

/// What a life does before it dies; the number says how much.
#[derive(Clone, Debug)]
enum Deed {
    Write(u64),
    Checkpoint,
    /// The checkpoint is complete, and so many subtasks hear of it.
    Complete(usize),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Lives of any parallelism that die anywhere, each beginning from the last complete checkpoint: what is seen in the end is
    /// what the last life's checkpoint counts, once.
    #[test]
    fn seen_once_over_any_lives(
        lives in proptest::collection::vec((1usize..4, proptest::collection::vec(prop_oneof![
            (1u64..20).prop_map(Deed::Write),
            Just(Deed::Checkpoint),
            (0usize..4).prop_map(Deed::Complete),
        ], 0..12)), 1..6),
    ) {
        let folder = folder();
        let sink = Lines::json_lines(folder.path()).roll_bytes(30);
        // The source's position, and what was prepared, by subtask and in order; as of the last complete checkpoint.
        let (mut from, mut held): (u64, Vec<Vec<Value>>) = (0, Vec::new());
        let mut any = false;
        for (parallelism, deeds) in lives {
            let mut next = from;
            let mut subtasks: Vec<Lines> = (0..parallelism).map(|s| {
                let old = (s..held.len()).step_by(parallelism);
                open(&sink, s, parallelism, any.then(|| old.flat_map(|o| held[o].clone()).collect())).unwrap()
            }).collect();
            prop_assert_eq!(seen(&folder), (0..from).collect::<Vec<_>>());
            prop_assert!(hidden(&folder).is_empty());
            let mut waiting: Vec<Vec<Value>> = vec![Vec::new(); parallelism];
            let mut at_barrier = None;
            for deed in deeds {
                match deed {
                    Deed::Write(n) => {
                        let subtask = (next % parallelism as u64) as usize;
                        write(&mut subtasks[subtask], next..next + n).unwrap();
                        next += n;
                    }
                    Deed::Checkpoint if at_barrier.is_none() => {
                        for (s, w) in subtasks.iter_mut().zip(&mut waiting) {
                            w.extend(cut(s, 1).unwrap());
                        }
                        at_barrier = Some((next, waiting.clone()));
                    }
                    Deed::Checkpoint => {}
                    Deed::Complete(hear) => if let Some((position, prepared)) = at_barrier.take() {
                        (from, held, any) = (position, prepared, true);
                        for s in 0..hear.min(parallelism) {
                            std::mem::take(&mut waiting[s]).into_iter().for_each(|w| subtasks[s].commit(w).unwrap());
                        }
                    }
                }
            }
            // A kill closes nothing; a failure does.
            if from % 2 == 0 { subtasks.into_iter().for_each(std::mem::forget) } else {
                subtasks.iter_mut().for_each(|s| s.close(Closing::Stopped));
            }
        }
        let prepared = any.then(|| held.into_iter().flatten().collect());
        drop(open(&sink, 0, 1, prepared).unwrap());
        prop_assert_eq!(seen(&folder), (0..from).collect::<Vec<_>>());
    }
}

impl Lines {
    fn sync_for_test(&mut self) {
        self.open.as_mut().unwrap().sync().unwrap();
    }
}
