//! For differential tests of keyed operators: an input in any order within a bound, cut by watermarks, saves, losses and restores.

use proptest::prelude::*;
use weir_engine::{EndKind, Key, Keyed, Operator, Record};

use crate::fleet::Fleet;

/// How far a record may come behind the latest.
pub(crate) const BOUND: i64 = 30;

/// What happens after some more records.
#[derive(Clone, Debug)]
pub(crate) enum Then {
    Watermark,
    Save,
    Lose,
    /// What came after the last save did not happen; that many subtasks go on from there.
    Restore(usize),
}

/// `(records, what then)`.
pub(crate) type Cuts = Vec<(usize, Then)>;

pub(crate) fn cuts() -> impl Strategy<Value = Cuts> {
    let then = prop_oneof![
        5 => Just(Then::Watermark),
        2 => Just(Then::Save),
        1 => Just(Then::Lose),
        1 => (1..5usize).prop_map(Then::Restore),
    ];
    prop::collection::vec((0..12usize, then), 0..40)
}

/// Records with many ties of time and key, some before the epoch, as they come; a number tells each from the others.
pub(crate) fn input() -> impl Strategy<Value = Vec<(u64, (i64, usize), i64)>> {
    let record = (0..4u64, -5..6i64, -80..80i64, 0..BOUND);
    prop::collection::vec(record, 0..120).prop_map(|mut records| {
        records.sort_by_key(|(.., time, delay)| time + delay);
        let numbered = records.into_iter().enumerate();
        numbered.map(|(number, (key, value, time, _))| (key, (value, number), time)).collect()
    })
}

/// Everything in event-time order, what is of one time in the order in which it came; as a plain computation wants it.
pub(crate) fn in_order<T: Clone>(input: &[(u64, T, i64)], key: u64) -> Vec<(T, i64)> {
    let mut of_key: Vec<_> = input.iter().filter(|r| r.0 == key).map(|r| (r.1.clone(), r.2)).collect();
    of_key.sort_by_key(|r| r.1);
    of_key
}

/// All that the operator gives, in the end, once: nothing behind the watermark. `by_watermark`: everything must be given by one, with a
/// time that this one passes and the one before did not.
pub(crate) fn run<K: Key, T: weir_engine::Data, Op: Operator<Keyed<K, T>>>(
    recipe: Op,
    input: &[(K, T, i64)],
    cuts: &[(usize, Then)],
    by_watermark: bool,
) -> Vec<Record<Op::Out>> {
    let mut fleet = Fleet::of(recipe, 2);
    let (mut at, mut watermark) = (0, i64::MIN);
    let mut given = Vec::new();
    let mut saved = (fleet.save(), at, watermark, 0);
    let check = |given: &[Record<Op::Out>], from: i64, to: i64| {
        let on_time = |time: i64| from < time && (!by_watermark || time <= to);
        assert!(given.iter().all(|r| on_time(r.time.0)), "from {from} to {to}");
    };
    for (records, then) in cuts {
        let end = input.len().min(at + records);
        fleet.batch(input[at..end].iter().cloned());
        at = end;
        let at_once = fleet.take();
        assert!(!by_watermark || at_once.is_empty());
        check(&at_once, watermark, i64::MAX);
        given.extend(at_once);
        match then {
            Then::Watermark => {
                let latest = input[..at].iter().map(|r| r.2).max();
                let next = latest.map_or(i64::MIN, |latest| latest - BOUND - 1);
                if next > watermark {
                    fleet.watermark(next);
                    let by_this = fleet.take();
                    check(&by_this, watermark, next);
                    given.extend(by_this);
                    watermark = next;
                }
            }
            Then::Save => saved = (fleet.save(), at, watermark, given.len()),
            Then::Lose => fleet.lose(),
            Then::Restore(parallelism) => {
                fleet.restore(&saved.0, *parallelism);
                (at, watermark) = (saved.1, saved.2);
                given.truncate(saved.3);
            }
        }
    }
    fleet.batch(input[at..].iter().cloned());
    given.extend(fleet.take());
    fleet.end(EndKind::Flush);
    let at_end = fleet.take();
    check(&at_end, watermark, i64::MAX);
    given.extend(at_end);
    given
}
