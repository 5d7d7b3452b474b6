//! User-behaviour events: the type, its CSV row, and a seeded generator of days that look like a shop's.

use serde::{Deserialize, Serialize};
use weir_engine::EventTime;

use crate::format::{Csv, Decoder};
use crate::generator::Generator;
use crate::random::Random;

/// What a user did to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Looked at its page.
    Pv,
    /// Put it into the cart.
    Cart,
    /// Marked it as a favourite.
    Fav,
    /// Bought it.
    Buy,
}

impl Action {
    /// The name used in JSON and CSV.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Pv => "pv",
            Action::Cart => "cart",
            Action::Fav => "fav",
            Action::Buy => "buy",
        }
    }
}

/// One thing that one user did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Behaviour {
    /// Who.
    pub user_id: u64,
    /// To what.
    pub item_id: u64,
    /// The item's category.
    pub category_id: u64,
    /// What.
    pub behavior: Action,
    /// When, in milliseconds since the Unix epoch.
    pub ts: i64,
}

impl Behaviour {
    /// When it happened.
    pub fn time(&self) -> EventTime {
        EventTime(self.ts)
    }

    /// The event of the CSV row `user_id,item_id,category_id,behavior,seconds` (Unix seconds, no header).
    ///
    /// # Errors
    /// The reason why the row is not one.
    pub fn from_csv_row(row: &[u8]) -> Result<Behaviour, String> {
        BehaviourCsv::default().decode(row)
    }
}

/// Decodes rows `user_id,item_id,category_id,behavior,seconds` into [`Behaviour`].
#[derive(Clone, Debug)]
pub struct BehaviourCsv(Csv<(u64, u64, u64, Action, i64)>);

impl Default for BehaviourCsv {
    fn default() -> Self {
        BehaviourCsv(Csv::new(b','))
    }
}

impl Decoder<Behaviour> for BehaviourCsv {
    fn decode(&mut self, row: &[u8]) -> Result<Behaviour, String> {
        let (user_id, item_id, category_id, behavior, seconds) = self.0.decode(row)?;
        let Some(ts) = seconds.checked_mul(1000) else {
            return Err(format!("field 5: {seconds} seconds do not fit into milliseconds"));
        };
        Ok(Behaviour { user_id, item_id, category_id, behavior, ts })
    }
}

/// How [`BehaviourGenerator`]'s events are distributed.
#[derive(Clone, Copy, Debug)]
pub struct Shop {
    /// Users, numbered from 1. Some are far more active than others.
    pub users: u64,
    /// Categories, numbered from 1. Some are far more popular than others.
    pub categories: u64,
    /// Items in each category.
    pub items_per_category: u64,
    /// The first event's time, in milliseconds since the Unix epoch.
    pub start_ms: i64,
    /// Events in one second of event time.
    pub events_per_s: f64,
    /// Up to how many milliseconds an event's time may lie behind its place in the stream. 0 for a stream in order.
    pub disorder_ms: u64,
}

impl Default for Shop {
    /// 100,000 users, 2,000 categories of 500 items; 1,000 events/s from 2017-11-27T00:00:00Z, in order.
    fn default() -> Self {
        Shop {
            users: 100_000,
            categories: 2_000,
            items_per_category: 500,
            start_ms: 1_511_740_800_000,
            events_per_s: 1_000.0,
            disorder_ms: 0,
        }
    }
}

impl Shop {
    /// Event `index` of the stream that the seed behind `random` names.
    pub fn event(&self, index: u64, random: &mut Random) -> Behaviour {
        let user_id = scatter(random.skewed_below(self.users, 3), self.users);
        let category = scatter(random.skewed_below(self.categories, 2), self.categories);
        let item_id =
            (category - 1) * self.items_per_category + random.skewed_below(self.items_per_category, 2) + 1;
        // Shares of the public data set this imitates: 89.6 % page views, 5.5 % cart, 2.9 % favourites, 2.0 % purchases.
        let behavior = match random.below(1000) {
            0..20 => Action::Buy,
            20..49 => Action::Fav,
            49..104 => Action::Cart,
            _ => Action::Pv,
        };
        let behind = if self.disorder_ms == 0 { 0 } else { random.below(self.disorder_ms + 1) as i64 };
        let ts = self.start_ms + (index as f64 * 1000.0 / self.events_per_s) as i64 - behind;
        Behaviour { user_id, item_id, category_id: category, behavior, ts }
    }
}

/// Gives rank `rank` a number in `1..=n` that does not tell its rank: a permutation, since the factor is a prime above any
/// sensible `n`.
fn scatter(rank: u64, n: u64) -> u64 {
    (u128::from(rank) * 2_654_435_761 % u128::from(n)) as u64 + 1
}

/// A source of [`Behaviour`] events.
pub type BehaviourGenerator = Generator<fn(u64, &mut Random) -> (Behaviour, EventTime)>;

/// `n` events (endless when `None`) of the default [`Shop`]: the same seed gives the same events at any parallelism.
pub fn behaviours(seed: u64, n: Option<u64>) -> BehaviourGenerator {
    Generator::new(seed, n, |i, random| {
        let event = Shop::default().event(i, random);
        (event, event.time())
    })
}

/// `n` events (endless when `None`) of `shop`.
pub fn behaviours_of(
    shop: Shop,
    seed: u64,
    n: Option<u64>,
) -> Generator<impl FnMut(u64, &mut Random) -> (Behaviour, EventTime) + Clone + Send + 'static> {
    Generator::new(seed, n, move |i, random| {
        let event = shop.event(i, random);
        (event, event.time())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn csv_row() {
        let got = Behaviour::from_csv_row(b"999477,2200475,3607361,pv,1511848894").unwrap();
        let expected = Behaviour {
            user_id: 999_477,
            item_id: 2_200_475,
            category_id: 3_607_361,
            behavior: Action::Pv,
            ts: 1_511_848_894_000,
        };
        assert_eq!(got, expected);
        let reason = Behaviour::from_csv_row(b"1,2,3,steal,5").unwrap_err();
        assert!(reason.contains("steal"), "{reason}");
        let reason = Behaviour::from_csv_row(b"1,2,3,pv,9223372036854775807").unwrap_err();
        assert!(reason.contains("do not fit"), "{reason}");
    }

    #[test]
    fn json_form() {
        let event = Shop::default().event(0, &mut Random::of(1, 0));
        let json = serde_json::to_string(&event).unwrap();
        assert!(json.contains(&format!("\"behavior\":\"{}\"", event.behavior.as_str())), "{json}");
        assert_eq!(serde_json::from_str::<Behaviour>(&json).unwrap(), event);
    }

    #[test]
    fn golden_event() {
        let event = Shop::default().event(1_234_567, &mut Random::of(42, 1_234_567));
        let golden =
            r#"{"user_id":28950,"item_id":498389,"category_id":997,"behavior":"pv","ts":1511742034567}"#;
        assert_eq!(serde_json::to_string(&event).unwrap(), golden);
    }

    #[test]
    fn shares_skew_and_order_are_as_promised() {
        let shop = Shop { disorder_ms: 5_000, ..Shop::default() };
        let n = 100_000;
        let mut actions = HashMap::<Action, u32>::new();
        let mut users = HashMap::<u64, u32>::new();
        let mut furthest_behind = 0;
        for i in 0..n {
            let e = shop.event(i, &mut Random::of(9, i));
            *actions.entry(e.behavior).or_default() += 1;
            *users.entry(e.user_id).or_default() += 1;
            assert!((1..=shop.users).contains(&e.user_id) && (1..=shop.categories).contains(&e.category_id));
            assert_eq!(
                (e.item_id - 1) / shop.items_per_category + 1,
                e.category_id,
                "an item has one category"
            );
            furthest_behind = furthest_behind.max(shop.start_ms + i as i64 - e.ts);
        }
        assert!((4_900..=5_000).contains(&furthest_behind), "{furthest_behind}");
        let share = |a| f64::from(actions[&a]) / n as f64;
        for (action, expected) in
            [(Action::Pv, 0.896), (Action::Cart, 0.055), (Action::Fav, 0.029), (Action::Buy, 0.02)]
        {
            assert!((share(action) - expected).abs() < 0.003, "{action:?}: {}", share(action));
        }
        let busiest = users.values().max().copied().unwrap_or(0);
        assert!(busiest > 200, "the busiest user has {busiest} of {n} events");
        assert!(users.len() > 20_000, "{} users", users.len());
    }
}
