//! For tests: an outside that a test answers by hand, call by call.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

pub(super) const SOON: Duration = Duration::from_secs(20);

/// What there is of a call, by who asks for it.
#[derive(Default)]
struct Desk {
    /// By the place of the call in `begun`: one that was broken off may be here until after the next has begun.
    open: BTreeMap<u64, BTreeMap<usize, oneshot::Sender<Result<u64, String>>>>,
    /// Each call that began, in order.
    begun: Vec<u64>,
    /// Calls whose futures were dropped before they were answered.
    dropped: Vec<u64>,
    at_once: usize,
    most_at_once: usize,
}

/// Calls by number, answered by hand. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Outside(Arc<Mutex<Desk>>);

/// Notes that a call is over, and how.
struct Under<'a> {
    outside: &'a Outside,
    number: u64,
    place: usize,
    answered: bool,
}

impl Drop for Under<'_> {
    fn drop(&mut self) {
        let mut desk = self.outside.lock();
        desk.at_once -= 1;
        if !self.answered {
            desk.dropped.push(self.number);
            if let Some(calls) = desk.open.get_mut(&self.number) {
                calls.remove(&self.place);
            }
        }
    }
}

impl Outside {
    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The call: waits until the test answers.
    pub(super) async fn ask(&self, number: u64) -> Result<u64, String> {
        let (place, answer) = {
            let mut desk = self.lock();
            let (answers, answer) = oneshot::channel();
            let place = desk.begun.len();
            desk.open.entry(number).or_default().insert(place, answers);
            desk.begun.push(number);
            desk.at_once += 1;
            desk.most_at_once = desk.most_at_once.max(desk.at_once);
            (place, answer)
        };
        let mut under = Under { outside: self, number, place, answered: false };
        let answer = answer.await.unwrap_or_else(|_| Err("nobody answers any more".into()));
        under.answered = true;
        answer
    }

    /// A function to be mapped.
    pub(super) fn function(
        &self,
    ) -> impl Fn(u64) -> std::pin::Pin<Box<dyn Future<Output = Result<u64, String>> + Send>> + Clone + use<>
    {
        let outside = self.clone();
        move |number| {
            let outside = outside.clone();
            Box::pin(async move { outside.ask(number).await })
        }
    }

    /// Waits until there is one call of `number`, no less and no more, and answers it.
    pub(super) fn answer(&self, number: u64, answer: Result<u64, &str>) {
        let the_only = |desk: &mut Desk| {
            let calls = desk.open.get_mut(&number).filter(|calls| calls.len() == 1)?;
            calls.pop_first().map(|(_, call)| call)
        };
        let call = self.until(the_only, &format!("one call for {number}"));
        let _ = call.send(answer.map_err(str::to_owned));
    }

    /// Waits until so many calls have begun, in all; gives their numbers, sorted.
    pub(super) fn begun(&self, calls: usize) -> Vec<u64> {
        let enough = |desk: &mut Desk| (desk.begun.len() >= calls).then(|| desk.begun.clone());
        let mut begun = self.until(enough, &format!("{calls} calls"));
        begun.sort_unstable();
        begun
    }

    /// The calls that have begun so far.
    pub(super) fn calls(&self) -> usize {
        self.lock().begun.len()
    }

    /// Waits until so many calls were broken off.
    pub(super) fn dropped(&self, calls: usize) -> Vec<u64> {
        let enough = |desk: &mut Desk| (desk.dropped.len() >= calls).then(|| desk.dropped.clone());
        let mut dropped = self.until(enough, &format!("{calls} calls that are broken off"));
        dropped.sort_unstable();
        dropped
    }

    pub(super) fn most_at_once(&self) -> usize {
        self.lock().most_at_once
    }

    fn until<R>(&self, mut of: impl FnMut(&mut Desk) -> Option<R>, what: &str) -> R {
        let began = Instant::now();
        loop {
            if let Some(found) = of(&mut self.lock()) {
                return found;
            }
            assert!(began.elapsed() < SOON, "not within {SOON:?}: {what}");
            std::thread::park_timeout(Duration::from_micros(200));
        }
    }
}
