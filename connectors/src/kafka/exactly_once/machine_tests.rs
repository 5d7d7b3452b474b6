//! The machine against a model of the broker: transactions in doubt, fencing, crashes at any step, rescales, late former lives.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::marker::FORMAT;
use super::*;

/// Source partitions, each read by one subtask; what a piece holds is a range of each.
const LANES: usize = 4;

type Content = Vec<(usize, u64)>;

#[derive(Clone, Debug)]
struct Checkpoint {
    prepared: Vec<Prepared>,
    /// What each piece holds, by life, subtask and number.
    content: BTreeMap<(String, usize, u64), Content>,
    next: [u64; LANES],
}

/// One life: its machine, and the job around it.
struct Life {
    id: usize,
    name: String,
    /// The life that took the checkpoint it begins from.
    from: Option<String>,
    parallelism: usize,
    machine: Machine,
    next: [u64; LANES],
    number: u64,
    /// Per subtask, what is not known to be visible.
    outstanding: Vec<Vec<Piece>>,
    handed: u64,
    content: BTreeMap<(String, usize, u64), Content>,
}

#[derive(Default)]
struct Broker {
    owner: usize,
    marker: Option<Marker>,
    visible: Vec<(usize, u64)>,
}

impl Life {
    fn begin(id: usize, parallelism: usize, from: Option<&Checkpoint>) -> Life {
        let name = format!("life-{id}");
        let prepared = from.map_or_else(Vec::new, |c| c.prepared.clone());
        Life {
            id,
            machine: Machine::new(name.clone(), id as i64, prepared, false),
            name,
            from: from.map(|c| c.prepared[0].life.clone()),
            parallelism,
            next: from.map_or([0; LANES], |c| c.next),
            number: 0,
            outstanding: vec![Vec::new(); parallelism],
            handed: 0,
            content: from.map_or_else(BTreeMap::new, |c| c.content.clone()),
        }
    }

    /// Every subtask writes something and cuts.
    fn barrier(&mut self, records: u64) -> Checkpoint {
        self.number += 1;
        let mut prepared = Vec::new();
        for subtask in 0..self.parallelism {
            let mut content = Content::new();
            for lane in (subtask..LANES).step_by(self.parallelism) {
                content.extend((self.next[lane]..self.next[lane] + records).map(|n| (lane, n)));
                self.next[lane] += records;
            }
            self.content.insert((self.name.clone(), subtask, self.number), content);
            let piece = Piece { subtask, number: self.number, group: 0, chunks: 1 };
            self.outstanding[subtask].push(piece);
            let pieces = self.outstanding[subtask].clone();
            prepared.push(Prepared { format: FORMAT, life: self.name.clone(), pieces, last: false });
        }
        Checkpoint { prepared, content: self.content.clone(), next: self.next }
    }

    /// The checkpoint is complete: what it holds is handed over.
    fn complete(&mut self, checkpoint: &Checkpoint) {
        let mut pieces: Vec<Piece> = checkpoint.prepared.iter().flat_map(|p| p.pieces.clone()).collect();
        pieces.retain(|p| p.number > self.handed);
        pieces.sort_unstable_by_key(|p| p.number);
        pieces.into_iter().for_each(|piece| self.machine.hand(piece));
        self.handed = self.number;
    }

    fn content_of(&self, piece: &Piece) -> Content {
        let own = (self.name.clone(), piece.subtask, piece.number);
        if self.machine.has_begun() {
            return self.content[&own].clone();
        }
        let from = self.from.clone().unwrap();
        self.content[&(from, piece.subtask, piece.number)].clone()
    }

    /// One step of the pump; `luck` says how it goes.
    fn step(&mut self, broker: &mut Broker, luck: u8) {
        match self.machine.step() {
            Step::Replace if luck.is_multiple_of(4) => {}
            Step::Replace => {
                broker.owner = self.id;
                self.machine.replaced();
            }
            Step::ReadMarker if luck.is_multiple_of(5) => {}
            Step::ReadMarker => self.machine.read(broker.marker.clone()),
            Step::Send(offer) => {
                let contents: Vec<Content> = offer.pieces.iter().map(|p| self.content_of(p)).collect();
                self.machine.sending();
                let owns = broker.owner == self.id;
                let (took_effect, sent) = match luck % 8 {
                    _ if !owns => (false, Sent::InDoubt),
                    0 => (false, Sent::InDoubt),
                    1 => (true, Sent::InDoubt),
                    2 => (false, Sent::Abortable),
                    _ => (true, Sent::Committed),
                };
                if took_effect {
                    broker.marker = Some(offer.marker);
                    broker.visible.extend(contents.into_iter().flatten());
                }
                self.machine.sent(sent);
            }
            Step::Abort => self.machine.aborted(broker.owner == self.id && luck.is_multiple_of(2)),
            Step::Wait | Step::Stop(_) => {}
        }
        for piece in self.machine.take_visible() {
            if let Some(own) = self.outstanding.get_mut(piece.subtask)
                && self.machine.has_begun()
            {
                own.retain(|p| p.number > piece.number);
            }
        }
    }
}

fn settle(life: &mut Life, broker: &mut Broker) {
    for _ in 0..100 {
        life.step(broker, 7);
    }
    assert_eq!(life.machine.step(), Step::Wait, "{:?}", life.machine);
}

/// What is visible is every record up to `next`, once, in order within its lane.
fn assert_exact(broker: &Broker, next: [u64; LANES]) {
    for (lane, end) in next.into_iter().enumerate() {
        let seen: Vec<u64> = broker.visible.iter().filter(|(l, _)| *l == lane).map(|(_, n)| *n).collect();
        assert!(seen.iter().copied().eq(0..end), "lane {lane}: {seen:?}, not 0..{end}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn every_record_once_whatever_happens(acts in proptest::collection::vec((0u8..16, any::<u8>()), 1..120)) {
        let mut broker = Broker::default();
        let mut newest: Option<Checkpoint> = None;
        let mut life = Life::begin(1, 2, None);
        let mut former: Option<Life> = None;
        for (act, luck) in acts {
            match act {
                // Records flow only once the life has begun.
                0..=2 if life.machine.has_begun() => {
                    let checkpoint = life.barrier(u64::from(luck % 3));
                    // Given up, complete, or complete without anybody having been told before a crash.
                    if luck % 5 > 0 {
                        if luck % 7 > 0 {
                            life.complete(&checkpoint);
                        }
                        newest = Some(checkpoint);
                    }
                }
                3 => {
                    let next = Life::begin(life.id + 1, 1 + usize::from(luck % 3), newest.as_ref());
                    former = Some(std::mem::replace(&mut life, next));
                }
                4..=6 => if let Some(former) = &mut former {
                    former.step(&mut broker, luck);
                },
                _ => life.step(&mut broker, luck),
            }
        }
        // In the end a life comes up that nothing happens to, and takes a last checkpoint.
        let mut last = Life::begin(life.id + 1, 3, newest.as_ref());
        settle(&mut last, &mut broker);
        assert_exact(&broker, newest.map_or([0; LANES], |c| c.next));
        let checkpoint = last.barrier(2);
        last.complete(&checkpoint);
        settle(&mut last, &mut broker);
        assert_exact(&broker, checkpoint.next);
    }
}

#[test]
fn who_was_overtaken_says_so_and_writes_nothing() {
    let mut broker = Broker::default();
    let mut first = Life::begin(1, 1, None);
    settle(&mut first, &mut broker);
    let checkpoint = first.barrier(3);
    first.complete(&checkpoint);
    // It is slow: the next life begins from its checkpoint meanwhile.
    let mut second = Life::begin(2, 1, Some(&checkpoint));
    settle(&mut second, &mut broker);
    for _ in 0..10 {
        first.step(&mut broker, 7);
    }
    assert_eq!(first.machine.step(), Step::Stop(Trouble::Overtaken { by: "life-2".to_owned() }));
    settle(&mut second, &mut broker);
    assert_exact(&broker, [3; LANES]);
}

#[test]
fn a_life_that_is_late_to_begin_takes_over_from_nobody() {
    let mut broker = Broker::default();
    let mut late = Life::begin(1, 1, None);
    let mut life = Life::begin(2, 2, None);
    settle(&mut life, &mut broker);
    let checkpoint = life.barrier(2);
    life.complete(&checkpoint);
    for _ in 0..10 {
        late.step(&mut broker, 7);
    }
    assert_eq!(late.machine.step(), Step::Stop(Trouble::Overtaken { by: "life-2".to_owned() }));
    settle(&mut life, &mut broker);
    assert_exact(&broker, [2; LANES]);
}

#[test]
fn a_clock_that_was_ahead_is_passed_by_who_accepts_duplicates() {
    let mut broker = Broker::default();
    let mut ahead = Life::begin(1_000, 1, None);
    settle(&mut ahead, &mut broker);
    let checkpoint = ahead.barrier(2);
    ahead.complete(&checkpoint);
    settle(&mut ahead, &mut broker);
    let mut next = Life::begin(2, 1, Some(&checkpoint));
    for _ in 0..10 {
        next.step(&mut broker, 7);
    }
    assert_eq!(next.machine.step(), Step::Stop(Trouble::Overtaken { by: "life-1000".to_owned() }));
    let mut next = Life::begin(3, 1, Some(&checkpoint));
    next.machine = Machine::new("life-3".to_owned(), 3, checkpoint.prepared.clone(), true);
    settle(&mut next, &mut broker);
    assert_exact(&broker, [2; LANES]);
    let checkpoint = next.barrier(1);
    next.complete(&checkpoint);
    settle(&mut next, &mut broker);
    assert_exact(&broker, [3; LANES]);
}

#[test]
fn a_marker_that_went_away_stops_the_pump() {
    let mut broker = Broker::default();
    let mut life = Life::begin(1, 1, None);
    settle(&mut life, &mut broker);
    let checkpoint = life.barrier(1);
    life.complete(&checkpoint);
    broker.marker = None;
    broker.owner = 9;
    for _ in 0..10 {
        life.step(&mut broker, 7);
    }
    assert_eq!(life.machine.step(), Step::Stop(Trouble::MarkerLost));
    assert!(broker.visible.is_empty());
}

#[test]
fn an_older_checkpoint_is_refused_before_anything_is_written() {
    let mut broker = Broker::default();
    let mut life = Life::begin(1, 2, None);
    settle(&mut life, &mut broker);
    let older = life.barrier(1);
    life.complete(&older);
    settle(&mut life, &mut broker);
    let newer = life.barrier(1);
    life.complete(&newer);
    settle(&mut life, &mut broker);
    let mut next = Life::begin(2, 2, Some(&older));
    for _ in 0..10 {
        next.step(&mut broker, 7);
    }
    let Step::Stop(Trouble::Refused(refusal)) = next.machine.step() else { panic!("{:?}", next.machine) };
    assert_eq!(refusal, Refusal::Newer { subtask: 0, visible: 2, known: 1 });
    assert_exact(&broker, [2; LANES]);
}
