//! What becomes visible when, whose time counts, and what happens to updates that are refused.

use super::*;
use std::sync::Arc;
use weir_engine::testkit::{ManualClock, OpHarness, Saved, SideProbe, context};
use weir_state::key_hash;
use weir_state::profile::tag;

fn profiles() -> Profiles {
    Profiles::named("user_profile").enum_tag("last").int_tag("buys")
}

fn about(user: u64) -> ProfileUpdate {
    ProfileUpdate::of(user)
}

fn keyed(update: ProfileUpdate) -> Keyed<UserId, ProfileUpdate> {
    let key = update.user.clone();
    Keyed { hash: key_hash(&key), key, value: update }
}

type Harness = OpHarness<Keyed<UserId, ProfileUpdate>, UpdateProfile>;

fn harness(target: impl Into<ProfileTarget>) -> (Harness, ManualClock) {
    let mut h = OpHarness::new(UpdateProfile::new(target.into(), SideSlot::default())).unwrap();
    let clock = ManualClock::at(0);
    let open = h.op().open.0.as_mut().unwrap();
    open.clock = Arc::new(clock.clone());
    open.published = Duration::ZERO;
    (h, clock)
}

fn buyers(profiles: &Profiles) -> u64 {
    profiles.reader().count(&tag("buys").ge(1)).unwrap().value
}

fn buy(user: u64) -> Keyed<UserId, ProfileUpdate> {
    keyed(about(user).increment("buys", 1))
}

#[test]
fn publishes_every_twenty_milliseconds_when_quiet_and_at_watermarks() {
    let profiles = profiles();
    let (mut h, clock) = harness(&profiles);
    h.send(buy(1), 10).unwrap();
    assert_eq!(buyers(&profiles), 0, "not per update, not per batch");
    clock.advance(Duration::from_millis(19));
    h.send(buy(2), 11).unwrap();
    assert_eq!(buyers(&profiles), 0);
    clock.advance(Duration::from_millis(1));
    h.send(buy(3), 12).unwrap();
    assert_eq!(buyers(&profiles), 3);
    h.send(buy(4), 13).unwrap();
    assert_eq!(buyers(&profiles), 3);
    h.quiet().unwrap();
    assert_eq!(buyers(&profiles), 4);
    h.send(buy(5), 14).unwrap();
    h.watermark(13).unwrap();
    assert_eq!(buyers(&profiles), 5);
    let version = profiles.reader().count(&tag("buys").ge(1)).unwrap().version;
    assert_eq!((version.watermark, version.stale), (13, false));
}

#[test]
fn a_flush_leaves_the_last_version_and_a_keep_marks_it_stale() {
    for (kind, stale) in [(EndKind::Flush, false), (EndKind::Keep, true)] {
        let profiles = profiles();
        let (mut h, _) = harness(&profiles);
        h.send(buy(1), 10).unwrap();
        h.end(kind).unwrap();
        let answer = profiles.reader().count(&tag("buys").ge(1)).unwrap();
        assert_eq!((answer.value, answer.version.stale), (1, stale), "{kind:?}");
        assert!(profiles.writer(0..profiles.key_groups(), 2).is_ok(), "the key groups are free again");
    }
}

#[test]
fn an_end_whose_checkpoint_fails_leaves_the_version_stale() {
    let profiles = profiles();
    let (mut h, _) = harness(&profiles);
    h.send(buy(1), 10).unwrap();
    h.end_in_vain(EndKind::Flush).unwrap();
    let answer = profiles.reader().count(&tag("buys").ge(1)).unwrap();
    assert_eq!((answer.value, answer.version.stale), (1, true));
    assert!(profiles.writer(0..profiles.key_groups(), 2).is_ok(), "the key groups are free again");
}

#[test]
fn the_time_of_the_record_counts_unless_the_update_has_one() {
    let profiles = profiles();
    let (mut h, _) = harness(&profiles);
    h.send(keyed(about(1).set("last", "buy")), 100).unwrap();
    h.send(keyed(about(1).set("last", "older").at(50)), 200).unwrap();
    h.quiet().unwrap();
    assert_eq!(profiles.reader().count(&tag("last").eq("buy")).unwrap().value, 1);
}

#[test]
fn bad_updates_are_rejected_and_counted_and_nothing_stops() {
    let profiles = profiles();
    let slot = SideSlot::default();
    let probe = SideProbe::attach(&slot);
    let cx = context("profile", 0, 1);
    let op = UpdateProfile::new(ProfileTarget::new(&profiles), slot);
    let mut h = OpHarness::with(op, &cx).unwrap();
    h.send(keyed(about(1).set("nope", "x")), 1).unwrap();
    h.send(keyed(about(2).increment("last", 1)), 2).unwrap();
    h.send(keyed(about(3).set("buys", i64::MAX)), 3).unwrap();
    h.send(keyed(about(3).increment("buys", 1).set("last", "buy")), 4).unwrap();
    h.send(keyed(about(4).increment("buys", 1)), EventTime::NONE.0).unwrap();
    h.send(buy(5), 6).unwrap();
    h.quiet().unwrap();
    let refused = probe.take();
    let users: Vec<_> = refused.iter().map(|r| (r.value.user.to_string(), r.value.time)).collect();
    let expected = [("1", Some(1)), ("2", Some(2)), ("3", Some(4)), ("4", None)];
    assert_eq!(users, expected.map(|(user, time)| (user.to_owned(), time)));
    assert!(refused[0].value.reason.contains("'nope'"), "{}", refused[0].value);
    assert_eq!(refused[0].time, EventTime(1));
    assert_eq!(cx.counter("bad_updates").get(), 4);
    assert_eq!(buyers(&profiles), 2, "users 3 and 5; nothing of a refused update took effect");
    assert_eq!(profiles.reader().count(&tag("last").eq("buy")).unwrap().value, 0);
}

#[test]
fn a_bad_update_fails_the_job_when_asked_to() {
    let profiles = profiles();
    let (mut h, _) = harness(ProfileTarget::new(&profiles).on_bad_update(BadUpdates::Fail));
    let error = h.send(keyed(about(1).set("nope", "x")), 1).unwrap_err();
    assert!(error.chain().contains("'nope'"), "{error:?}");
}

#[test]
fn each_subtask_takes_the_users_that_key_by_sends_it() {
    let profiles = profiles();
    let mut tasks: Vec<Harness> = (0..3)
        .map(|subtask| {
            let op = UpdateProfile::new(ProfileTarget::new(&profiles), SideSlot::default());
            OpHarness::with(op, &context("profile", subtask, 3)).unwrap()
        })
        .collect();
    for user in 0..1_000 {
        let update = buy(user);
        let owner = update.hash.group(profiles.key_groups()).subtask(profiles.key_groups(), 3);
        tasks[owner].send(update, 1).unwrap();
    }
    for task in &mut tasks {
        task.quiet().unwrap();
    }
    assert_eq!(buyers(&profiles), 1_000);
    let error =
        OpHarness::new(UpdateProfile::new(ProfileTarget::new(&profiles), SideSlot::default())).unwrap_err();
    assert!(error.chain().contains("already owned"), "one operator writes a space: {error:?}");
}

#[test]
fn key_groups_must_be_those_of_the_job() {
    let profiles = Profiles::with_key_groups("small", 4);
    let op = UpdateProfile::new(ProfileTarget::new(&profiles), SideSlot::default());
    let error = OpHarness::new(op).unwrap_err();
    assert!(error.chain().contains("with_key_groups"), "{error:?}");
}

#[test]
fn bad_updates_are_logged_now_and_then() {
    let mut log = BadLog::default();
    let due: Vec<_> = [0, 1, 9, 10, 11, 30].map(|s| log.due(Duration::from_secs(s))).into();
    assert_eq!(due, [Some(1), None, None, Some(3), None, Some(2)]);
}

fn restored(profiles: &Profiles, saved: &[&Saved], subtask: usize, of: usize) -> Harness {
    let op = UpdateProfile::new(ProfileTarget::new(profiles), SideSlot::default());
    OpHarness::restored(op, saved, subtask, of).unwrap()
}

#[test]
fn a_published_version_never_goes_back_in_event_time() {
    let before = profiles();
    let mut h = harness(&before).0;
    h.send(buy(1), 10).unwrap();
    h.watermark(13).unwrap();
    let saved = h.save(1).unwrap();
    let after = profiles();
    let mut h = restored(&after, &[&saved], 0, 1);
    // After a restore event time first comes to where it was.
    for (watermark, published) in [(5, 13), (14, 14)] {
        h.watermark(watermark).unwrap();
        let version = after.reader().count(&tag("buys").ge(1)).unwrap().version;
        assert_eq!(version.watermark, published);
    }
}

#[test]
fn what_was_applied_before_the_barrier_is_there_again_once_with_its_times() {
    let before = profiles();
    let (mut h, _) = harness(&before);
    for user in 0..100 {
        h.send(buy(user), 10).unwrap();
        h.send(keyed(about(user).set("last", "buy").at(50)), 10).unwrap();
    }
    h.watermark(7).unwrap();
    let saved = h.save(1).unwrap();
    // This is not in it, and comes again.
    h.send(buy(1), 11).unwrap();
    h.quiet().unwrap();
    let ahead = before.reader().digest().value;

    // Another process, three subtasks.
    let after = profiles();
    let mut tasks: Vec<Harness> = (0..3).map(|subtask| restored(&after, &[&saved], subtask, 3)).collect();
    assert_eq!(buyers(&after), 100, "it is there before any input");
    let version = after.reader().snapshot().version();
    assert_eq!((version.watermark, version.stale), (7, false));
    let groups = after.key_groups();
    let mut send = |update: Keyed<UserId, ProfileUpdate>| {
        let owner = update.hash.group(groups).subtask(groups, 3);
        tasks[owner].send(update, 11).unwrap();
        tasks[owner].quiet().unwrap();
    };
    send(keyed(about(1).set("last", "too late").at(49)));
    send(buy(1));
    assert_eq!(after.reader().digest().value, ahead);
}

#[test]
fn readers_see_the_life_before_until_the_checkpoint_is_read() {
    let profiles = profiles();
    let (mut h, _) = harness(&profiles);
    h.send(buy(1), 10).unwrap();
    let saved = h.save(1).unwrap();
    h.send(buy(2), 11).unwrap();
    h.quiet().unwrap();
    h.op().close(Closing::Stopped);
    assert_eq!((buyers(&profiles), profiles.reader().snapshot().version().stale), (2, true));
    let again = restored(&profiles, &[&saved], 0, 1);
    assert_eq!((buyers(&profiles), profiles.reader().snapshot().version().stale), (1, false));
    drop(again);
}

#[test]
fn checkpoints_after_the_end_hold_all_there_was() {
    for kind in [EndKind::Flush, EndKind::Keep] {
        let before = profiles();
        let (mut h, _) = harness(&before);
        h.send(buy(1), 10).unwrap();
        h.save(1).unwrap();
        h.send(buy(2), 11).unwrap();
        h.end(kind).unwrap();
        let saved = h.saved_at_end().unwrap();
        let after = profiles();
        let again = restored(&after, &[&saved], 0, 1);
        assert_eq!(after.reader().digest().value, before.reader().digest().value, "{kind:?}");
        drop(again);
    }
}

#[test]
fn a_tag_of_another_type_fails_the_job_with_both() {
    let (mut h, _) = harness(&profiles());
    h.send(buy(1), 10).unwrap();
    let saved = h.save(1).unwrap();
    let other = Profiles::named("user_profile").set_tag("last").int_tag("buys");
    let op = UpdateProfile::new(ProfileTarget::new(&other), SideSlot::default());
    let error = OpHarness::restored(op, &[&saved], 0, 1).unwrap_err();
    assert!(error.chain().contains("is set in the job but enum in the checkpoint"), "{error:?}");
}
