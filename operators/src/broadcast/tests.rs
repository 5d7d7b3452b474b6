//! Rules against a plain map, through failures and at any parallelism; and with states and timers beside them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weir_engine::testkit::{OpHarness, Saved};
use weir_state::{KEY_GROUPS, key_hash};

use super::*;

type Prices = BTreeMap<(u8, String), i64>;
/// An item, and its price from now on; none to take it away.
type Price = ((u8, String), Option<i64>);

/// What items cost.
#[derive(Clone)]
struct Priced;

fn set(rules: &mut Prices, (item, price): Price) {
    match price {
        Some(price) => rules.insert(item, price),
        None => rules.remove(&item),
    };
}

impl BroadcastFunction<(u8, String), Price> for Priced {
    type Out = Option<i64>;
    type Rules = Prices;
    fn process(
        &mut self,
        record: Record<(u8, String)>,
        rules: &Prices,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        out.emit(record.with(rules.get(&record.value).copied()))
    }
    fn rule(
        &mut self,
        rule: Record<Price>,
        rules: &mut Prices,
        _: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        set(rules, rule.value);
        Ok(())
    }
}

/// The same for what users spend in all, told by a timer.
#[derive(Clone)]
struct Spent;

impl KeyedBroadcastFunction<u64, (u8, String), Price> for Spent {
    type Out = (u64, i64, usize);
    type State = i64;
    type Rules = Prices;
    fn process(
        &mut self,
        record: Record<(u8, String)>,
        rules: &Prices,
        cx: &mut KeyedContext<'_, u64, i64>,
        _: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        *cx.state()? += rules.get(&record.value).copied().unwrap_or(0);
        cx.set_timer(record.time);
        Ok(())
    }
    fn rule(
        &mut self,
        rule: Record<Price>,
        rules: &mut Prices,
        _: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        set(rules, rule.value);
        Ok(())
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        rules: &Prices,
        cx: &mut KeyedContext<'_, u64, i64>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let told = (*cx.key(), *cx.state()?, rules.len());
        out.emit(Record::new(told, time))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Data(u64, (u8, String)),
    Rule(Price),
    Save,
    Lose,
    Restore(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let item = (0..3u8, "[ab]");
    let step = prop_oneof![
        6 => (0..9u64, item.clone()).prop_map(|(key, item)| Step::Data(key, item)),
        4 => (item, prop::option::of(0..100i64)).prop_map(Step::Rule),
        2 => Just(Step::Save),
        1 => Just(Step::Lose),
        1 => (1..6usize).prop_map(Step::Restore),
    ];
    prop::collection::vec(step, 0..60)
}

/// All subtasks of an operator with rules.
struct Fleet<T: weir_engine::Data, Op: Operator<Either<T, Price>>> {
    recipe: Op,
    subtasks: Vec<OpHarness<Either<T, Price>, Op>>,
    saves: u64,
}

impl<T: weir_engine::Data, Op: Operator<Either<T, Price>>> Fleet<T, Op> {
    fn of(recipe: Op) -> Self {
        let mut fleet = Fleet { recipe, subtasks: Vec::new(), saves: 0 };
        fleet.subtasks.extend((0..2).map(|n| {
            OpHarness::with(fleet.recipe.clone(), &weir_engine::testkit::context("under-test", n, 2)).unwrap()
        }));
        fleet
    }

    fn rule(&mut self, rule: &Price) {
        self.subtasks.iter_mut().for_each(|s| s.send(Either::Right(rule.clone()), 0).unwrap());
    }

    fn save(&mut self) -> Vec<Saved> {
        self.saves += 1;
        self.subtasks.iter_mut().map(|s| s.save(self.saves).unwrap()).collect()
    }

    fn lose(&mut self) {
        self.saves += 1;
        self.subtasks.iter_mut().for_each(|s| s.barrier(self.saves).unwrap());
    }

    fn restore(&mut self, saved: &[Saved], parallelism: usize) {
        let saved: Vec<&Saved> = saved.iter().collect();
        let open = |n| OpHarness::restored(self.recipe.clone(), &saved, n, parallelism).unwrap();
        self.subtasks = (0..parallelism).map(open).collect();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]
    #[test]
    fn every_subtask_has_the_rules_there_are(steps in steps()) {
        let mut fleet = Fleet::of(Broadcast::new(Priced));
        let mut rules = Prices::new();
        let mut saved = (fleet.save(), rules.clone());
        for step in steps {
            match step {
                // Whichever subtask gets it.
                Step::Data(_, item) => for subtask in &mut fleet.subtasks {
                    subtask.send(Either::Left(item.clone()), 0).unwrap();
                    prop_assert_eq!(subtask.take_values(), [rules.get(&item).copied()]);
                },
                Step::Rule(rule) => {
                    fleet.rule(&rule);
                    set(&mut rules, rule);
                }
                Step::Save => saved = (fleet.save(), rules.clone()),
                Step::Lose => fleet.lose(),
                Step::Restore(parallelism) => {
                    fleet.restore(&saved.0, parallelism);
                    rules = saved.1.clone();
                }
            }
        }
    }

    #[test]
    fn states_of_keys_lie_beside_the_rules(steps in steps()) {
        let mut fleet = Fleet::of(KeyedBroadcast::new(Spent));
        let (mut rules, mut spent, mut now) = (Prices::new(), BTreeMap::<u64, i64>::new(), 0);
        let mut saved = (fleet.save(), rules.clone(), spent.clone(), now);
        for step in steps {
            match step {
                Step::Data(key, item) => {
                    *spent.entry(key).or_default() += rules.get(&item).copied().unwrap_or(0);
                    now += 1;
                    let hash = key_hash(&key);
                    let owner = hash.group(KEY_GROUPS).subtask(KEY_GROUPS, fleet.subtasks.len());
                    let keyed = vec![(Either::Left(Keyed { hash, key, value: item }), now)];
                    let owner = &mut fleet.subtasks[owner];
                    owner.prefetch(keyed.clone()).unwrap();
                    owner.batch(keyed).unwrap();
                    fleet.subtasks.iter_mut().for_each(|s| s.watermark(now).unwrap());
                    let told: Vec<_> = fleet.subtasks.iter_mut().flat_map(OpHarness::take_values).collect();
                    prop_assert_eq!(told, [(key, spent[&key], rules.len())]);
                }
                Step::Rule(rule) => {
                    fleet.rule(&rule);
                    set(&mut rules, rule);
                }
                Step::Save => saved = (fleet.save(), rules.clone(), spent.clone(), now),
                Step::Lose => fleet.lose(),
                Step::Restore(parallelism) => {
                    fleet.restore(&saved.0, parallelism);
                    (rules, spent, now) = (saved.1.clone(), saved.2.clone(), saved.3);
                }
            }
        }
    }
}

/// Rules of another type.
#[derive(Clone)]
struct Counted(Option<fn(Prices) -> Vec<String>>);

impl BroadcastFunction<(u8, String), Price> for Counted {
    type Out = usize;
    type Rules = Vec<String>;
    fn schema(&self) -> Schema<Vec<String>> {
        self.0
            .map_or_else(Schema::first, |step| Schema::<Vec<String>>::after(Schema::<Prices>::first(), step))
    }
    fn process(
        &mut self,
        record: Record<(u8, String)>,
        rules: &Vec<String>,
        out: &mut impl Collector<usize>,
    ) -> Result<()> {
        out.emit(record.with(rules.len()))
    }
    fn rule(&mut self, _: Record<Price>, _: &mut Vec<String>, _: &mut impl Collector<usize>) -> Result<()> {
        Ok(())
    }
}

#[test]
fn rules_of_an_older_type_are_brought_on_or_refused() {
    let mut fleet = Fleet::of(Broadcast::new(Priced));
    fleet.rule(&((1, "a".to_owned()), Some(7)));
    fleet.rule(&((2, "b".to_owned()), Some(8)));
    let saved = fleet.save();
    let saved: Vec<&Saved> = saved.iter().collect();
    let step = |old: Prices| old.into_keys().map(|(_, item)| item).collect();
    let mut h = OpHarness::restored(Broadcast::new(Counted(Some(step))), &saved, 2, 3).unwrap();
    h.send(Either::Left((1, "a".to_owned())), 0).unwrap();
    assert_eq!(h.take_values(), [2]);
    let refused = OpHarness::restored(Broadcast::new(Counted(None)), &saved, 0, 1).err().unwrap().to_string();
    assert!(refused.contains("rules of operator 'under-test' that cannot be read"), "{refused}");
}
