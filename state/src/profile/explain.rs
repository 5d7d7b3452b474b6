//! Says how a condition is answered: for each of its parts who matches, how long that takes, and what is read of the index.

use super::catalogue::Catalogue;
use super::error::QueryError;
use super::eval::{Query, Told};
use super::predicate::{Node, Predicate};
use super::reader::{Answer, Reader, Snapshot};
use serde::Serialize;
use std::collections::BTreeMap;

/// A condition, or a part of one, as it is answered alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explained {
    /// What it is: `and`, `or`, `not`, a count of parts, or the condition on one tag.
    pub condition: String,
    /// How many users match it, without the conditions around it.
    pub users: u64,
    /// How long that took to look up and count alone, in microseconds.
    pub micros: u64,
    /// Of how many chunks of 65,536 users what is read: `bits`, `list` (users of one value), `union` (users of several), `bins` and
    /// `bins of a list` (numbers), `sizes` (of sets), `ids`, `combined` (what its parts read), `nothing` (nobody or everybody).
    pub reads: BTreeMap<&'static str, u64>,
    /// Its parts.
    pub parts: Vec<Explained>,
}

impl Reader {
    /// [`Snapshot::explain`] on the newest version.
    ///
    /// # Errors
    /// An unknown tag, or a condition that does not fit its tag's type.
    pub fn explain(&self, predicate: &Predicate) -> Result<Answer<Explained>, QueryError> {
        self.snapshot().explain(predicate)
    }
}

impl Snapshot {
    /// Answers a condition part by part: counts each alone and says what that reads. For people who wonder why a segment is small or slow. Looks
    /// values up once, and then counts each condition on a tag as often as it is nested, 1,000 times in all at most.
    ///
    /// ```
    /// use weir_state::profile::{ProfileUpdate, Profiles, tag};
    /// let profiles = Profiles::named("p").int_tag("n").enum_tag("city");
    /// let mut writer = profiles.writer(0..profiles.key_groups(), 1)?;
    /// writer.apply(ProfileUpdate::of(7u64).at(1).set("n", 3).set("city", "Paris"))?;
    /// writer.publish(1);
    /// let explained = profiles.reader().snapshot().explain(&tag("n").gt(1).and(tag("city").eq("Pau")))?.value;
    /// assert_eq!((explained.condition.as_str(), explained.users), ("and", 0));
    /// assert_eq!((explained.parts[0].condition.as_str(), explained.parts[0].users), ("n > 1", 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An unknown tag, a condition that does not fit its tag's type, or one that has too many parts, too deep within each other.
    pub fn explain(&self, predicate: &Predicate) -> Result<Answer<Explained>, QueryError> {
        // This refuses what is wrong or too deep before anything is walked.
        let query = Query::new(predicate, self.catalogue(), self.groups().len())?;
        let catalogue = self.catalogue();
        let (nodes, counts) = work(catalogue, predicate, 1);
        if counts > MOST_COUNTS {
            let what = "parts, each as often as it is nested:";
            return Err(QueryError::TooLarge { what, size: counts, limit: MOST_COUNTS });
        }
        let mut told = vec![Told::default(); nodes];
        for (at, group) in self.groups().iter().enumerate() {
            query.tell(at, group, &mut told);
        }
        Ok(self.answer(explained(catalogue, predicate, &mut told.into_iter())))
    }
}

/// Conditions on tags that one answer counts at most, each as often as it is nested.
const MOST_COUNTS: usize = 1_000;

/// The parts of a condition; of a segment, what it is defined as.
fn parts<'p>(catalogue: &'p Catalogue, predicate: &'p Predicate) -> &'p [Predicate] {
    match &predicate.node {
        Node::Segment(name) => catalogue.segment(name).map_or(&[], std::slice::from_ref),
        node => node.parts(),
    }
}

/// How many parts there are, this one among them, and how often those without parts are counted, which is each alone and in all around it.
fn work(catalogue: &Catalogue, predicate: &Predicate, depth: usize) -> (usize, usize) {
    let parts = parts(catalogue, predicate);
    let own = (1, if parts.is_empty() { depth } else { 0 });
    parts
        .iter()
        .map(|part| work(catalogue, part, depth + 1))
        .fold(own, |a, b| (a.0 + b.0, a.1.saturating_add(b.1)))
}

/// Puts what is told of the parts, each before its own parts, to their names.
fn explained(catalogue: &Catalogue, predicate: &Predicate, told: &mut std::vec::IntoIter<Told>) -> Explained {
    let Told { users, took, reads } = told.next().unwrap_or_default();
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let parts = parts(catalogue, predicate);
    let parts = parts.iter().map(|part| explained(catalogue, part, told)).collect();
    Explained { condition: named(predicate), users, micros, reads, parts }
}

/// Texts of lists are cut here.
const MOST_CHARS: usize = 200;

fn named(predicate: &Predicate) -> String {
    match &predicate.node {
        Node::All => "everyone".to_owned(),
        Node::And(_) => "and".to_owned(),
        Node::Or(_) => "or".to_owned(),
        Node::Not(_) => "not".to_owned(),
        Node::AtLeast(needed, of) => format!("at least {needed} of {}", of.len()),
        Node::Users(users) => format!("one of {} users", users.len()),
        Node::Segment(name) => format!("segment '{name}'"),
        Node::Leaf(tag, test) => {
            let text = format!("{tag} {test}");
            match text.char_indices().nth(MOST_CHARS) {
                Some((cut, _)) => format!("{}…", &text[..cut]),
                None => text,
            }
        }
    }
}
