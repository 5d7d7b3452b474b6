//! Holds every answer of the profile against the plain loop: counts, members, and the whole row of each user.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use weir_state::profile::{Page, Predicate, Reader, TagValue, UserId};

use crate::input::Input;
use crate::questions::{Question, User, plain_loop};

/// How many answers there were, and the first few that differ.
pub(crate) struct Verdict {
    pub(crate) asked: usize,
    pub(crate) differing: Vec<String>,
    /// Count of each question, in order, for the table.
    pub(crate) counts: Vec<u64>,
}

pub(crate) fn verify(input: &Input, reader: &Reader, questions: &[Question]) -> anyhow::Result<Verdict> {
    let users = plain_loop(input);
    let snapshot = reader.snapshot();
    let mut verdict = Verdict { asked: 0, differing: Vec::new(), counts: Vec::new() };
    let mut check = |same: bool, differs: &dyn Fn() -> String| {
        verdict.asked += 1;
        if !same {
            verdict.differing.push(differs());
        }
    };
    for q in questions {
        let predicate = Predicate::parse(&q.condition).with_context(|| format!("segment {:?}", q.name))?;
        let expected: BTreeSet<UserId> =
            users.iter().filter(|(_, u)| (q.holds)(u)).map(|(id, _)| UserId::from(*id)).collect();
        let count = snapshot.count(&predicate)?.value;
        check(count == expected.len() as u64, &|| {
            format!("{}: count {count}, expected {}", q.name, expected.len())
        });
        let page = Page { offset: 0, limit: users.len() + 1 };
        let ids: BTreeSet<UserId> = snapshot.ids(&predicate, page)?.value.into_iter().collect();
        check(ids == expected, &|| format!("{}: other members than expected", q.name));
        verdict.counts.push(count);
    }
    for (id, user) in &users {
        let tags = snapshot.profile(&UserId::from(*id)).value.unwrap_or_default();
        let expected = row(user);
        check(tags == expected, &|| format!("user {id}: {tags:?}, expected {expected:?}"));
    }
    let known = snapshot.users();
    check(known == users.len() as u64, &|| format!("{known} users, expected {}", users.len()));
    Ok(verdict)
}

/// The row that the profile should hold for `user`.
fn row(user: &User) -> BTreeMap<String, TagValue> {
    let mut row = BTreeMap::new();
    if let Some((_, last)) = user.last {
        row.insert("last_behaviour".to_owned(), TagValue::from(last));
    }
    if user.buys > 0 {
        row.insert("buys_total".to_owned(), TagValue::from(user.buys));
    }
    let categories: BTreeSet<String> = user.categories.iter().map(u64::to_string).collect();
    row.insert("categories".to_owned(), TagValue::from(categories));
    let days: BTreeSet<String> = user.active.iter().map(|d| d.name()).collect();
    row.insert("active_days".to_owned(), TagValue::from(days));
    for (day, n) in &user.buys_per_day {
        row.insert(day.buys_tag(), TagValue::from(*n));
    }
    row
}
