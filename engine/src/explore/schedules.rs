//! The scheduler of an exploration: each schedule follows from its seed, by itself, whatever was explored before it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Once};

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use super::ON_PURPOSE;
use super::dice::Dice;
use super::seeds::{Seeds, say_failure};

/// In CI, and in the long run, for each scenario.
const SHORT: u64 = 1_000;
const LONG: u64 = 50_000;
/// A schedule that takes more steps goes round in circles.
const MOST_STEPS: usize = 200_000;

/// A number below `n`, for whatever a scenario leaves to chance; it follows from the seed.
pub(super) fn pick(n: u64) -> u64 {
    thread_rng().gen_range(0..n)
}

/// Who goes on at each step.
#[derive(Debug)]
enum Order {
    /// Anybody who can.
    Walk,
    /// Whoever has the highest rank and can. At a few steps the one at hand falls behind all others, and so does one that
    /// yields: probabilistic concurrency testing, which finds with good odds what takes a few preemptions at the right
    /// places (Burckhardt et al., ASPLOS 2010).
    Ranks { ranks: Vec<u64>, changes: Vec<u64>, step: u64, lowest: u64 },
}

struct Chance<I> {
    seeds: I,
    at: Arc<At>,
    dice: Dice,
    order: Order,
    steps: u64,
}

/// Where the exploration is.
#[derive(Debug, Default)]
struct At {
    seed: AtomicU64,
    longest: AtomicU64,
    steps: AtomicU64,
    /// Of all choices of the schedule at hand, in their order.
    trace: AtomicU64,
}

impl<I> Chance<I> {
    fn note(&self, choice: u64) {
        let mixed = (self.at.trace.load(Relaxed) ^ choice).wrapping_mul(0x0100_0000_01b3);
        self.at.trace.store(mixed.rotate_left(5), Relaxed);
    }
}

impl<I: Iterator<Item = u64>> Scheduler for Chance<I> {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.at.longest.fetch_max(std::mem::take(&mut self.steps), Relaxed);
        let seed = self.seeds.next()?;
        self.at.seed.store(seed, Relaxed);
        self.at.trace.store(0, Relaxed);
        self.dice = Dice::new(seed);
        // How long the schedule will be is not known: the changes fall into its beginning or are spread over it.
        self.order = match self.dice.below(4) {
            0 | 1 => Order::Walk,
            _ => {
                let (most, within) = (1 + self.dice.below(6), 32 << self.dice.below(7));
                let changes = (0..self.dice.below(most + 1)).map(|_| self.dice.below(within)).collect();
                Order::Ranks { ranks: Vec::new(), changes, step: 0, lowest: 1 << 32 }
            }
        };
        Some(Schedule::new(seed))
    }

    fn next_task(&mut self, ready: &[&Task], current: Option<TaskId>, yields: bool) -> Option<TaskId> {
        self.steps += 1;
        self.at.steps.fetch_add(1, Relaxed);
        let dice = &mut self.dice;
        let chosen = match &mut self.order {
            Order::Walk => dice.of(ready)?.id(),
            Order::Ranks { ranks, changes, step, lowest } => {
                let most = ready.iter().map(|task| usize::from(task.id())).max()?;
                while ranks.len() <= most {
                    ranks.push((1 << 32) + dice.below(1 << 32));
                }
                if ready.len() > 1 {
                    *step += 1;
                    if let Some(current) = current
                        && (yields || changes.contains(step))
                    {
                        *lowest -= 1;
                        ranks[usize::from(current)] = *lowest;
                    }
                }
                ready.iter().map(|task| task.id()).max_by_key(|id| ranks[usize::from(*id)])?
            }
        };
        self.note(usize::from(chosen) as u64);
        Some(chosen)
    }

    fn next_u64(&mut self) -> u64 {
        self.dice.next()
    }
}

thread_local! {
    /// Failures are expected on this thread, and not shown.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Shows no panic that is meant to happen.
fn quieten() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The first run of anything puts shuttle's own hook in place; this one goes around it.
        Runner::new(shuttle::scheduler::RandomScheduler::new_from_seed(0, 1), config()).run(|| ());
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let on_purpose = panic.payload().downcast_ref::<&str>() == Some(&ON_PURPOSE);
            if !on_purpose && !QUIET.get() {
                before(panic);
            }
        }));
    });
}

/// Does it without showing how it panics.
pub(super) fn quietly<T>(run: impl FnOnce() -> T) -> T {
    quieten();
    QUIET.set(true);
    let result = run();
    QUIET.set(false);
    result
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    config.silence_warnings = true;
    // The seed says it all.
    config.failure_persistence = FailurePersistence::None;
    config
}

fn run(
    seeds: impl Iterator<Item = u64> + 'static,
    scenario: impl Fn() + Send + Sync + 'static,
) -> (Arc<At>, std::thread::Result<usize>) {
    quieten();
    let at = Arc::new(At::default());
    let chance = Chance { seeds, at: at.clone(), dice: Dice::new(0), order: Order::Walk, steps: 0 };
    let outcome = catch_unwind(AssertUnwindSafe(|| Runner::new(chance, config()).run(scenario)));
    (at, outcome)
}

/// Runs the scenario under one schedule for each seed.
pub(super) fn explore(name: &str, scenario: impl Fn() + Send + Sync + 'static) {
    let seeds = Seeds::wanted(SHORT, LONG);
    let (at, outcome) = run(seeds.iter(), scenario);
    if let Err(panic) = outcome {
        say_failure(name, at.seed.load(Relaxed));
        resume_unwind(panic);
    }
    let (steps, longest) = (at.steps.load(Relaxed), at.longest.load(Relaxed));
    seeds.say(name, "schedules", &format!(", {steps} steps in all, {longest} in the longest"));
}

/// Expects that the scenario, which has a mistake in it, fails within so many schedules, and again the same way when it is
/// given the same seed; says what it said.
///
/// # Panics
/// When the mistake is not found.
pub(super) fn finds(name: &str, within: u64, scenario: impl Fn() + Send + Sync + Clone + 'static) -> String {
    let fails = |seeds: std::ops::RangeInclusive<u64>| {
        let (at, outcome) = quietly(|| run(seeds, scenario.clone()));
        let said = outcome.err().map(|panic| crate::pipe::panic_message(panic.as_ref()));
        said.map(|said| (at.seed.load(Relaxed), at.trace.load(Relaxed), said))
    };
    let found = fails(1..=within);
    let again = found.as_ref().and_then(|(seed, ..)| fails(*seed..=*seed));
    let Some((seed, trace, said)) = found else { panic!("{name} is not found within {within} schedules") };
    eprintln!("explore: {name}: found with seed {seed}: {}", said.lines().next().unwrap_or_default());
    assert_eq!(again, Some((seed, trace, said.clone())), "{name}: the same seed gives the same schedule");
    said
}

/// The choices of one schedule, as one number.
pub(super) fn trace_of(seed: u64, scenario: impl Fn() + Send + Sync + 'static) -> u64 {
    let (at, outcome) = run(std::iter::once(seed), scenario);
    outcome.unwrap_or_else(|panic| resume_unwind(panic));
    at.trace.load(Relaxed)
}
