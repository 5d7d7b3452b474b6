//! Which checkpoints a life may begin from, and what it makes visible first.

use super::*;

fn prepared(life: &str, pieces: &[(usize, u64)]) -> Prepared {
    let piece =
        |(subtask, number): &(usize, u64)| Piece { subtask: *subtask, number: *number, group: 0, chunks: 1 };
    Prepared {
        format: FORMAT,
        life: life.to_owned(),
        pieces: pieces.iter().map(piece).collect(),
        last: false,
    }
}

fn marker(life: &str, from: Option<(&str, &[(usize, u64)])>, reached: &[(usize, u64)]) -> Marker {
    let from = from.map(|(life, of)| Begun { life: life.to_owned(), reached: of.iter().copied().collect() });
    let since = if life == "new" { 9 } else { 5 };
    Marker { format: FORMAT, life: life.to_owned(), since, from, reached: reached.iter().copied().collect() }
}

fn replay(found: Option<&Marker>, prepared: &[Prepared]) -> Result<Vec<(usize, u64)>, Refusal> {
    let beginning = begin(("new", 9), found, prepared, false)?;
    Ok(beginning.replay.iter().map(|p| (p.subtask, p.number)).collect())
}

#[test]
fn a_fresh_life_replays_nothing_and_is_refused_where_something_is_visible() {
    let nothing_shown = marker("old", None, &[]);
    for found in [None, Some(&nothing_shown)] {
        let beginning = begin(("new", 9), found, &[], false).unwrap();
        assert_eq!(beginning.marker, marker("new", None, &[]));
        assert!(beginning.replay.is_empty() && beginning.accepted.is_none());
    }
    for shown in [marker("old", None, &[(0, 7)]), marker("old", Some(("older", &[(0, 1)])), &[])] {
        let refusal = begin(("new", 9), Some(&shown), &[], false).unwrap_err();
        assert_eq!(refusal, Refusal::Anew { found: "old".to_owned() });
        assert!(refusal.may_be_accepted());
        let beginning = begin(("new", 9), Some(&shown), &[], true).unwrap();
        assert_eq!((beginning.marker, beginning.accepted), (marker("new", None, &[]), Some(refusal)));
        assert!(beginning.replay.is_empty());
    }
}

#[test]
fn what_a_subtask_prepared_last_counts_alone() {
    // Piece 1 became visible after the savepoint that names it, and its bytes are gone.
    let held = [prepared("a", &[(0, 1), (0, 2)]), prepared("a", &[(0, 2), (0, 3)]), prepared("a", &[(1, 3)])];
    assert_eq!(replay(Some(&marker("a", None, &[(0, 1)])), &held).unwrap(), [(0, 2), (0, 3), (1, 3)]);
    let accepted = begin(("new", 9), None, &held, true).unwrap();
    assert_eq!(accepted.accepted, Some(Refusal::Missing));
    assert_eq!(
        accepted.replay.iter().map(|p| (p.subtask, p.number)).collect::<Vec<_>>(),
        [(0, 2), (0, 3), (1, 3)]
    );
}

#[test]
fn what_the_marker_does_not_name_is_replayed_oldest_first() {
    let held = [prepared("a", &[(0, 2), (0, 3)]), prepared("a", &[(0, 2)]), prepared("a", &[(1, 3)])];
    assert_eq!(replay(Some(&marker("a", None, &[(0, 2), (1, 2)])), &held).unwrap(), [(0, 3), (1, 3)]);
    assert_eq!(replay(Some(&marker("a", None, &[])), &held).unwrap(), [(0, 2), (0, 3), (1, 3)]);
    assert_eq!(replay(Some(&marker("a", None, &[(0, 3), (1, 3)])), &held).unwrap(), []);
    let beginning = begin(("new", 9), Some(&marker("a", None, &[(0, 2)])), &held, false).unwrap();
    assert_eq!(beginning.marker, marker("new", Some(("a", &[(0, 3), (1, 3)])), &[]));
}

#[test]
fn a_life_that_ended_before_its_first_checkpoint_has_replayed_for_the_next() {
    let held = [prepared("a", &[(0, 3)]), prepared("a", &[(1, 3)])];
    let begun = marker("b", Some(("a", &[(0, 3), (1, 3)])), &[]);
    assert_eq!(replay(Some(&begun), &held).unwrap(), []);
    // From a savepoint that was taken after the checkpoint that it began from.
    let later = [prepared("a", &[(0, 3), (0, 4)]), prepared("a", &[(1, 4)])];
    assert_eq!(replay(Some(&begun), &later).unwrap(), [(0, 4), (1, 4)]);
}

#[test]
fn what_is_not_known_or_newer_is_refused_unless_accepted() {
    let held = [prepared("a", &[(0, 3)]), prepared("a", &[(1, 3)])];
    let newer = |subtask, visible, known| Refusal::Newer { subtask, visible, known };
    for (found, refusal, replayed) in [
        (None, Refusal::Missing, 2),
        (Some(marker("a", None, &[(0, 4), (1, 3)])), newer(0, 4, 3), 0),
        (Some(marker("a", None, &[(0, 3), (2, 1)])), newer(2, 1, 0), 1),
        (Some(marker("b", Some(("a", &[(0, 3), (1, 3)])), &[(0, 1)])), newer(0, 1, 0), 0),
        (Some(marker("b", Some(("a", &[(0, 5), (1, 5)])), &[])), newer(0, 5, 3), 0),
        (Some(marker("c", None, &[])), Refusal::Another { found: "c".to_owned(), wanted: "a".to_owned() }, 2),
    ] {
        assert_eq!(replay(found.as_ref(), &held).unwrap_err(), refusal);
        assert!(refusal.may_be_accepted());
        let accepted = begin(("new", 9), found.as_ref(), &held, true).unwrap();
        assert_eq!(accepted.accepted, Some(refusal));
        assert_eq!(accepted.replay.len(), replayed, "what is known to be visible is not written again");
    }
}

#[test]
fn what_cannot_be_read_is_refused_always() {
    let mixed = [prepared("a", &[(0, 3)]), prepared("b", &[(1, 3)])];
    assert!(matches!(begin(("new", 9), None, &mixed, true), Err(Refusal::Mixed { .. })));
    let mut later = marker("a", None, &[]);
    later.format = FORMAT + 1;
    assert_eq!(begin(("new", 9), Some(&later), &[], true), Err(Refusal::Format { found: FORMAT + 1 }));
    assert!(!Refusal::Format { found: 2 }.may_be_accepted());
}

#[test]
fn the_json_is_kept() {
    let marker = marker("b", Some(("a", &[(0, 3), (1, 4)])), &[(0, 1)]);
    let json =
        r#"{"format":1,"life":"b","since":5,"from":{"life":"a","reached":{"0":3,"1":4}},"reached":{"0":1}}"#;
    assert_eq!(serde_json::to_string(&marker).unwrap(), json);
    assert_eq!(serde_json::from_str::<Marker>(json).unwrap(), marker);
    let json =
        r#"{"format":1,"life":"a","pieces":[{"subtask":0,"number":2,"group":0,"chunks":1}],"last":false}"#;
    assert_eq!(serde_json::to_string(&prepared("a", &[(0, 2)])).unwrap(), json);
}
