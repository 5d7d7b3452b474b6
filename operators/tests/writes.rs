//! Writes in SQL beside a running job: taken though its input is silent, seen when they are answered, and there once after a crash.

use std::time::{Duration, Instant};

use weir_engine::testkit::ScriptSource;
use weir_engine::{Checkpoints, EndKind, Job, JobHandle, RestartPolicy, StateBackend, Watermarks};
use weir_operators::prelude::*;
use weir_state::profile::{ProfileUpdate, Profiles, SqlError, WriteError};

const LIMIT: Duration = Duration::from_secs(60);

fn profiles(folder: &std::path::Path) -> Profiles {
    let profiles = Profiles::named("b").int_tag("n").enum_tag("city").keep_checkpoints();
    profiles.journal(folder.join("journal")).expect("a journal")
}

/// A job whose input is silent from the start.
fn start(folder: &std::path::Path, profiles: &Profiles) -> JobHandle {
    let url = folder.join("checkpoints");
    let job = Job::named("writes")
        .parallelism(2)
        .state(StateBackend::memory().folder(folder.join("state")))
        .restart(RestartPolicy::FixedDelay { restarts: 3, delay: Duration::ZERO })
        .checkpoints(Checkpoints::to(url.display().to_string()).every(Duration::from_millis(10)));
    job.source("in", ScriptSource::of([(ProfileUpdate::of(1u64).set("n", 1), 5)]).endless())
        .parallelism(1)
        .source_time(Watermarks::monotonic())
        .update_profile("profile", profiles);
    job.start().expect("it starts")
}

/// Carries a statement out, once the job is there to take it.
fn run(profiles: &Profiles, text: &str) -> u64 {
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        match profiles.sql(text) {
            Ok(answer) => return answer.value.count().unwrap_or(0),
            Err(SqlError::Write(WriteError::NoWriter { .. })) => std::thread::yield_now(),
            Err(error) => panic!("{text}: {error}"),
        }
    }
    panic!("{text}: nobody takes it");
}

fn count(profiles: &Profiles, text: &str) -> u64 {
    profiles.sql(text).expect(text).value.count().expect("a count")
}

#[test]
fn statements_are_taken_by_a_silent_job_and_survive_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = profiles(folder.path());
    let handle = start(folder.path(), &first);
    assert_eq!(run(&first, "insert into b (user_id, n, city) values (2, 2, 'Pau'), (3, 3, 'Nice')"), 2);
    assert_eq!(count(&first, "select count() from b where n in (2, 3)"), 2);
    for _ in 0..20 {
        assert_eq!(run(&first, "update b set n = n + 1 where city = 'Pau'"), 1);
    }
    assert_eq!(count(&first, "select count() from b where n = 22"), 1);
    first.sql("create segment pau as select user_id from b where city = 'Pau'").expect("a segment");
    handle.cancel();
    let _ = handle.wait_for(LIMIT).expect("it ends");
    drop(handle);
    drop(first);

    let again = profiles(folder.path());
    let handle = start(folder.path(), &again);
    assert_eq!(run(&again, "update b set n = n + 1 where segment('pau')"), 1);
    assert_eq!(count(&again, "select count() from b where n = 23"), 1);
    handle.drain(EndKind::Keep);
    let _ = handle.wait_for(LIMIT).expect("it ends");
}
