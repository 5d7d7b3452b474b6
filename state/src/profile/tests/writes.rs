//! Writes from outside a stream: seen when they are answered, once whatever crashes, and under the names that tags have by then.

use super::super::*;
use super::rig::{Folders, Rig};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

fn built(journal: &Path) -> Profiles {
    let profiles = Profiles::named("b").key_column("uuid").int_tag("n").enum_tag("city").set_tag("s");
    profiles.tag("m", TagType::Map).tag("day", TagType::Date).journal(journal).unwrap()
}

/// Lets a job's writers run while something asks and writes.
fn running<T: Send>(rig: &mut Rig, then: impl FnOnce(&Profiles) -> T + Send) -> T {
    let profiles = rig.profiles.clone();
    let done = AtomicBool::new(false);
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let _done = Done(&done);
            then(&profiles)
        });
        while !done.load(Ordering::Acquire) {
            for (_, writer) in &mut rig.subtasks {
                if writer.take_writes() > 0 {
                    writer.publish(1);
                }
            }
            std::thread::yield_now();
        }
        asking.join().unwrap()
    })
}

fn count(profiles: &Profiles, text: &str) -> u64 {
    profiles.sql(text).unwrap_or_else(|e| panic!("{text}: {e}")).value.count().unwrap()
}

#[test]
fn statements_write_and_are_answered_when_they_are_visible() {
    let (mut folders, folder) = (Folders::new(), TempDir::new().unwrap());
    let mut rig = Rig::open(&mut folders, built(&folder.path().join("journal")), 3, &[]);
    rig.publish(0);
    running(&mut rig, |profiles| {
        let run = |text: &str| profiles.sql(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let written = run(
            "insert into b (uuid, n, city, s, m, day) values (1, 5, 'Pau', ['x', 'y'], map('k', 1.5), '2026-11-30'), \
             ('u-2', NULL, 'Nice', '[\"x\"]', '{\"k\": \"v\"}', date('2026-11-29'))",
        );
        assert_eq!(written.value.count(), Some(2));
        assert_eq!(count(profiles, "select count() from b where has(s, 'x')"), 2);
        assert_eq!(
            count(profiles, "select count() from b where n = 5 and m['k'] = 1.5 and day > '2026-11-29'"),
            1
        );
        run("update b set n = n + 3 where city in ('Pau', 'Nice')");
        assert_eq!(count(profiles, "select count() from b where n = 8"), 1);
        assert_eq!(
            count(profiles, "select count() from b where n is null"),
            1,
            "of nothing plus a number comes nothing"
        );
        run("update b set city = 'Lyon', s = [] where n is null");
        assert_eq!(count(profiles, "select count() from b where city = 'Lyon' and empty(s)"), 1);
        // The result of a query as a tag.
        run("alter table b add column vip Bool, add column was String");
        run("insert into b (uuid, vip, was) select uuid, true, city from b where n > 7");
        assert_eq!(count(profiles, "select count() from b where vip and was = 'Pau'"), 1);
        run("delete from b where city = 'Lyon'");
        assert_eq!(count(profiles, "select count() from b"), 1);
        assert_eq!(profiles.reader().snapshot().users(), 2, "ordinals stay");
        for (text, says) in [
            ("insert into b (n) values (1)", "without 'uuid'"),
            ("insert into b (uuid, n) values (1)", "1 values for 2 columns"),
            ("insert into b (uuid, n) values (1, 'x')", "'x'"),
            ("insert into b (uuid, n) values (-1, 1)", "as a user's id"),
            ("insert into b (uuid, nope) values (1, 1)", "'nope' is not known"),
            ("insert into b (uuid, n) select n, n from b", "as the user's id"),
            ("update b set uuid = 7", "the user's id"),
            ("update b set n = n * 2", "operator *"),
            ("update b set n = 0.5", "does not fit int tag"),
            ("delete from b where nope = 1", "'nope' is not known"),
            ("update b set n = 1 where n = 1 limit 1", ""),
        ] {
            let error = profiles.sql(text).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        let most = ProfileUpdate::of(1u64).set("n", i64::MAX).increment("n", 1);
        let done = profiles.write(vec![most, ProfileUpdate::of(3u64).set("n", 1)], PATIENCE).unwrap();
        assert_eq!((done.updates, done.refused.len()), (2, 1), "{done:?}");
        assert!(done.refused[0].1.contains("leaves the 64-bit range"), "{done:?}");
    });
}

#[test]
fn a_write_without_a_journal_or_a_job_is_refused_and_one_that_nobody_takes_is_told_of() {
    let folder = TempDir::new().unwrap();
    let none = Profiles::named("b").int_tag("n");
    let _writer = none.writer(0..none.key_groups(), 1).unwrap();
    let update = || vec![ProfileUpdate::of(1u64).set("n", 1)];
    assert!(matches!(none.write(update(), PATIENCE), Err(WriteError::NoJournal { .. })));
    let profiles = built(&folder.path().join("journal"));
    assert!(matches!(profiles.write(update(), PATIENCE), Err(WriteError::NoWriter { .. })));
    let mut writer = profiles.writer(0..profiles.key_groups(), 1).unwrap();
    let error = profiles.write(update(), Duration::from_millis(1)).unwrap_err();
    assert!(matches!(error, WriteError::NotVisible { sequence: 1, .. }), "{error}");
    assert_eq!(writer.take_writes(), 1);
    writer.publish(1);
    assert_eq!(count(&profiles, "select count() from b where n = 1"), 1);
    assert!(matches!(profiles.journal(folder.path().join("other")), Err(ProfileError::Journal { .. })));
}

/// The same writes and changes, crashed at each step and at any parallelism, come to the same.
#[test]
fn what_was_acknowledged_survives_a_crash_and_counts_once() {
    let steps: Vec<&str> = vec![
        "insert into b (uuid, n, city) values (1, 1, 'Pau'), (2, 2, 'Nice'), (3, 3, 'Lyon'), (4, 4, 'Pau')",
        "update b set n = n + 10 where city = 'Pau'",
        "create segment rich as select uuid from b where n > 10",
        "alter table b rename column city to town",
        "update b set n = n + 100",
        "insert into b (uuid, s) select uuid, ['r'] from b where segment('rich')",
        "alter table b drop column day, add column day Int64",
        "update b set day = 7 where has(s, 'r')",
        "delete from b where town = 'Lyon'",
    ];
    let digest = |crash: Option<usize>, checkpoint: Option<usize>, parallelism: usize| {
        let (mut folders, folder) = (Folders::new(), TempDir::new().unwrap());
        let path = folder.path().join("journal");
        let mut rig = Rig::open(&mut folders, built(&path), 2, &[]);
        rig.publish(0);
        let mut parts = rig.checkpoint();
        for (step, text) in steps.iter().enumerate() {
            running(&mut rig, |profiles| profiles.sql(text).map(drop))
                .unwrap_or_else(|e| panic!("{text}: {e}"));
            if checkpoint == Some(step) {
                let snapshots: Vec<_> = rig
                    .subtasks
                    .iter_mut()
                    .map(|(_, writer)| {
                        let mut snapshot = crate::store::Snapshot::default();
                        writer.freeze_for(step as u64, &mut snapshot).unwrap();
                        snapshot
                    })
                    .collect();
                parts = rig.settle(snapshots).unwrap();
                // The notice may be lost in the crash.
                if step % 2 == 0 {
                    rig.subtasks.iter_mut().for_each(|(_, writer)| writer.completed(step as u64));
                }
            }
            if crash == Some(step) {
                drop(rig);
                rig = Rig::open(&mut folders, built(&path), parallelism, &parts);
                rig.publish(0);
            }
        }
        (
            rig.seen().digest().value,
            rig.profiles.segments().len(),
            count(&rig.profiles, "select count() from b where segment('rich')"),
        )
    };
    let expected = digest(None, None, 2);
    for crash in 0..steps.len() {
        for checkpoint in [None, Some(crash), crash.checked_sub(1), crash.checked_sub(3)] {
            let parallelism = [1, 2, 7][crash % 3];
            assert_eq!(
                digest(Some(crash), checkpoint, parallelism),
                expected,
                "crash {crash}, checkpoint {checkpoint:?}"
            );
        }
    }
}

#[test]
fn the_journal_is_cut_when_a_checkpoint_that_has_it_is_complete() {
    let (mut folders, folder) = (Folders::new(), TempDir::new().unwrap());
    let path = folder.path().join("journal");
    let mut rig = Rig::open(&mut folders, built(&path), 2, &[]);
    let size = || std::fs::metadata(&path).unwrap().len();
    let empty = size();
    running(&mut rig, |profiles| profiles.sql("insert into b (uuid, n) values (1, 1), (2, 2)").map(drop))
        .unwrap();
    assert!(size() > empty);
    let freeze = |rig: &mut Rig, number: u64| {
        let mut snapshots = Vec::new();
        for (_, writer) in &mut rig.subtasks {
            let mut snapshot = crate::store::Snapshot::default();
            writer.freeze_for(number, &mut snapshot).unwrap();
            snapshots.push(snapshot);
        }
        rig.settle(snapshots).unwrap()
    };
    freeze(&mut rig, 1);
    rig.subtasks[0].1.completed(1);
    assert!(size() > empty, "not all have told");
    rig.subtasks[1].1.completed(1);
    assert_eq!(size(), empty);
    let parts = freeze(&mut rig, 2);
    drop(rig);
    // Numbers go on, so that nothing new is taken for something old.
    let mut rig = Rig::open(&mut folders, built(&path), 1, &parts);
    let early = rig.profiles.sql("update b set n = n + 1").unwrap_err();
    assert!(
        matches!(early, SqlError::Write(WriteError::NoWriter { .. })),
        "nobody sees yet whom it is about"
    );
    rig.publish(0);
    running(&mut rig, |profiles| profiles.sql("update b set n = n + 1").map(drop)).unwrap();
    assert_eq!(count(&rig.profiles, "select count() from b where n in (2, 3)"), 2);
}

#[test]
fn versions_are_waited_for_and_those_of_checkpoints_are_kept() {
    let mut folders = Folders::new();
    let mut rig = Rig::open(&mut folders, Profiles::named("b").int_tag("n").keep_checkpoints(), 2, &[]);
    let reader = rig.profiles.reader();
    let none = reader.at_checkpoint().unwrap();
    assert_eq!((none.version().checkpoint, none.users()), (Some(0), 0), "what it began from");
    (0..50u64).for_each(|user| rig.apply(&ProfileUpdate::of(user).at(1).set("n", user)));
    rig.publish(10);
    let freeze = |rig: &mut Rig, number: u64| {
        let mut snapshots = Vec::new();
        for (_, writer) in &mut rig.subtasks {
            let mut snapshot = crate::store::Snapshot::default();
            writer.freeze_for(number, &mut snapshot).unwrap();
            snapshots.push(snapshot);
        }
        rig.settle(snapshots).unwrap()
    };
    freeze(&mut rig, 1);
    (50..60u64).for_each(|user| rig.apply(&ProfileUpdate::of(user).at(2).set("n", user)));
    rig.publish(20);
    assert_eq!(reader.at_checkpoint().unwrap().users(), 0, "it is not complete");
    rig.subtasks[1].1.completed(1);
    let at = reader.at_checkpoint().unwrap();
    assert_eq!((at.users(), at.version().watermark, at.version().checkpoint), (50, 10, Some(1)));
    assert_eq!(reader.snapshot().users(), 60);
    // One that is given up is passed over.
    freeze(&mut rig, 2);
    let parts = freeze(&mut rig, 3);
    rig.subtasks[0].1.completed(3);
    assert_eq!(reader.at_checkpoint().unwrap().version().checkpoint, Some(3));
    let profiles = rig.profiles.clone();
    drop(rig);
    let again = Rig::open(&mut folders, profiles, 3, &parts);
    assert_eq!(reader.at_checkpoint().unwrap().version().checkpoint, Some(3));
    drop(again);
    let fresh = Profiles::named("b").int_tag("n").keep_checkpoints();
    let mut again = Rig::open(&mut folders, fresh, 3, &parts);
    let reader = again.profiles.reader();
    assert_eq!(reader.at_checkpoint().unwrap().users(), 60);
    again.publish(20);

    assert!(reader.at_least(20, Duration::ZERO).is_ok());
    let error = reader.at_least(21, Duration::from_millis(1)).unwrap_err();
    assert!(matches!(error, QueryError::NotYet { wanted: 21, is: 20, .. }), "{error}");
    let waited = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| reader.at_least(30, PATIENCE).map(|s| s.version().watermark));
        // Not before all have come so far.
        again.subtasks[0].1.publish(31);
        again.subtasks[1].1.publish(30);
        again.subtasks[2].1.publish(40);
        waiting.join().unwrap()
    });
    assert_eq!(waited, Ok(30));
    let off = Profiles::named("b");
    let error = off.reader().at_checkpoint().unwrap_err().to_string();
    assert!(error.contains("keep_checkpoints"), "{error}");
}
