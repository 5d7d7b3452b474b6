//! The segments that are asked for, live and at the end, and how a plain loop over the input answers them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use weir_connectors::prelude::*;

use crate::days::{Day, day_of};
use crate::input::Input;

/// A segment: a name for people, and a condition in the query language.
pub(crate) struct Question {
    pub(crate) name: String,
    pub(crate) condition: String,
    /// The same condition on one user of the plain loop.
    pub(crate) holds: Box<dyn Fn(&User) -> bool>,
}

/// What the plain loop knows about a user.
#[derive(Default)]
pub(crate) struct User {
    /// The latest behaviour; of several at one moment the greater name, as the profile's rule for ties says.
    pub(crate) last: Option<(i64, &'static str)>,
    pub(crate) buys: i64,
    pub(crate) categories: BTreeSet<u64>,
    pub(crate) active: BTreeSet<Day>,
    pub(crate) buys_per_day: BTreeMap<Day, i64>,
}

/// One pass over the input: the answer that everything else is held against.
pub(crate) fn plain_loop(input: &Input) -> HashMap<u64, User> {
    let mut users: HashMap<u64, User> = HashMap::new();
    for e in input.iter() {
        let user = users.entry(e.user_id).or_default();
        user.last = user.last.max(Some((e.ts, e.behavior.as_str())));
        user.categories.insert(e.category_id);
        user.active.insert(day_of(e.ts));
        if e.behavior == Action::Buy {
            user.buys += 1;
            *user.buys_per_day.entry(day_of(e.ts)).or_default() += 1;
        }
    }
    users
}

/// The questions of this run: its days, and the three categories that lead in its first events.
pub(crate) fn questions(input: &Input) -> Vec<Question> {
    let mut popular: HashMap<u64, u32> = HashMap::new();
    input.iter().take(10_000).for_each(|e| *popular.entry(e.category_id).or_default() += 1);
    let mut popular: Vec<(u64, u32)> = popular.into_iter().collect();
    popular.sort_by_key(|(category, n)| (std::cmp::Reverse(*n), *category));
    let top: Vec<u64> = popular.iter().take(3).map(|(category, _)| *category).collect();
    let quoted: Vec<String> = top.iter().map(|c| format!("'{c}'")).collect();
    let list = quoted.join(", ");
    let days: Vec<Day> = input.days().iter().collect();
    let last_day = days[days.len() - 1];
    let (second, third) = (days[1 % days.len()], days[2 % days.len()]);

    let ask = |name: &str, condition: String, holds: Box<dyn Fn(&User) -> bool>| Question {
        name: name.to_owned(),
        condition,
        holds,
    };
    let last_is = |user: &User, name: &str| user.last.is_some_and(|(_, last)| last == name);
    let (any, all, bought) = (top.clone(), top.clone(), top);
    vec![
        ask("everyone", "last_behaviour is not null".into(), Box::new(|_| true)),
        ask("buyers", "buys_total >= 1".into(), Box::new(|u| u.buys >= 1)),
        ask("frequent buyers", "buys_total >= 5".into(), Box::new(|u| u.buys >= 5)),
        ask("never bought", "not buys_total >= 1".into(), Box::new(|u| u.buys < 1)),
        ask("left at a purchase", "last_behaviour = 'buy'".into(), Box::new(move |u| last_is(u, "buy"))),
        ask(
            "left with a full cart",
            "last_behaviour in ('cart', 'fav') and not buys_total >= 1".into(),
            Box::new(move |u| (last_is(u, "cart") || last_is(u, "fav")) && u.buys < 1),
        ),
        ask(
            "saw a top category",
            format!("hasAny(categories, [{list}])"),
            Box::new(move |u| any.iter().any(|c| u.categories.contains(c))),
        ),
        ask(
            "saw all top categories",
            format!("hasAll(categories, [{list}])"),
            Box::new(move |u| all.iter().all(|c| u.categories.contains(c))),
        ),
        ask(
            "buyers in top categories",
            format!("hasAny(categories, [{list}]) and buys_total between 1 and 9"),
            Box::new(move |u| bought.iter().any(|c| u.categories.contains(c)) && (1..=9).contains(&u.buys)),
        ),
        ask(
            "active on two given days",
            format!("hasAll(active_days, ['{}', '{}'])", second.name(), third.name()),
            Box::new(move |u| u.active.contains(&second) && u.active.contains(&third)),
        ),
        ask(
            "bought on the last day",
            format!("{} >= 1", last_day.buys_tag()),
            Box::new(move |u| u.buys_per_day.contains_key(&last_day)),
        ),
        ask(
            "bought twice on the second day or on the third",
            format!("{} >= 2 or {} >= 2", second.buys_tag(), third.buys_tag()),
            Box::new(move |u| [second, third].iter().any(|d| u.buys_per_day.get(d).is_some_and(|n| *n >= 2))),
        ),
    ]
}
