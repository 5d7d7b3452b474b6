//! Calls that take their time, against a plain map.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Values, and how many tenths of a millisecond their calls take.
    Batch(Vec<u64>),
    Watermark,
    Quiet,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => prop::collection::vec(0..30u64, 0..20).prop_map(Step::Batch),
        2 => Just(Step::Watermark),
        1 => Just(Step::Quiet),
    ];
    prop::collection::vec(step, 0..20)
}

/// Calls that take as long as the value says, fail now and then at the first try, and count themselves.
fn run(io: Io, steps: &[Step]) -> (Vec<Given<u64>>, Vec<Given<u64>>) {
    let slow = |n: u64| async move {
        tokio::time::sleep(Duration::from_micros(100 * (n % 100))).await;
        Ok::<_, String>(n)
    };
    let mut h = OpHarness::new(operator(slow, io)).unwrap();
    let (mut came, mut number, mut given) = (Vec::new(), 0, Vec::new());
    for step in steps {
        match step {
            Step::Batch(delays) => {
                let values: Vec<u64> = delays
                    .iter()
                    .map(|d| {
                        number += 1;
                        100 * number + d
                    })
                    .collect();
                came.extend(values.iter().map(|n| record(*n)));
                h.batch(values.into_iter().map(|n| (n, n as i64))).unwrap();
            }
            Step::Watermark => {
                let at = 100 * number as i64 + 99;
                if came.iter().all(|given| *given != watermark(at)) {
                    h.watermark(at).unwrap();
                    came.push(watermark(at));
                }
            }
            Step::Quiet => h.quiet().unwrap(),
        }
        given.extend(h.take_given());
    }
    h.end(EndKind::Keep).unwrap();
    given.extend(h.take_given());
    (came, given)
}

fn segments(all: Vec<Given<u64>>) -> Vec<Vec<u64>> {
    let mut segments = vec![Vec::new()];
    for given in all {
        match given {
            Given::Record(record) => segments.last_mut().unwrap().push(record.value),
            Given::Signal(_) => segments.push(Vec::new()),
        }
    }
    segments.iter_mut().for_each(|segment| segment.sort_unstable());
    segments
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn ordered_calls_are_a_map(steps in steps(), capacity in 1..40usize) {
        let (came, given) = run(AsyncIo::ordered(capacity, SECOND * 60), &steps);
        // Watermarks with no record between come as the last of them.
        prop_assert_eq!(merged(given), merged(came));
    }

    #[test]
    fn unordered_calls_are_a_map_between_watermarks(steps in steps(), capacity in 1..40usize) {
        let (came, given) = run(AsyncIo::unordered(capacity, SECOND * 60), &steps);
        prop_assert_eq!(segments(merged(given)), segments(merged(came)));
    }
}

fn merged(all: Vec<Given<u64>>) -> Vec<Given<u64>> {
    let mut merged: Vec<Given<u64>> = Vec::new();
    for given in all {
        if matches!((&given, merged.last()), (Given::Signal(_), Some(Given::Signal(_)))) {
            merged.pop();
        }
        merged.push(given);
    }
    merged
}
