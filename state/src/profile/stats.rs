//! What a segment is like: its commonest values of a tag against everyone's, sums and percentiles of numbers, and what two segments share.

use super::chunk::{GroupVersion, TagChunk};
use super::error::QueryError;
use super::eval::Query;
use super::predicate::{Predicate, tag};
use super::reader::{Answer, Reader, Snapshot};
use super::scalar::{self, Decimal, Float};
use super::update::{Shape, TagType, TagValue};
use serde::Serialize;
use std::collections::HashMap;
use std::ops::ControlFlow;

/// A value of a tag, or an element of a set, and how many users have it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TopValue {
    /// The value; of a set tag, the element.
    pub value: TagValue,
    /// Users of the segment that have it.
    pub users: u64,
    /// Users of the whole space that have it.
    pub everyone: u64,
    /// How much commoner it is in the segment: the share of the segment's users that have it by that of all users. 1 is as common.
    pub lift: f64,
}

/// What the numbers of a segment come to. Users without a value do not count.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NumberStats {
    /// Users of the segment that have a number, NaNs not counted.
    pub users: u64,
    /// Users whose float is NaN: they are in nothing else of this.
    pub nans: u64,
    /// The sum, exact but for floats, of whole numbers beyond 64 bits a decimal; nothing for bool, dates and moments, and where nobody has a number.
    pub sum: Option<TagValue>,
    /// The sum by the number of users.
    pub mean: Option<f64>,
    /// The least.
    pub min: Option<TagValue>,
    /// The greatest.
    pub max: Option<TagValue>,
    /// For each percentage asked for, the least number that so many percent of the users, rounded up, do not exceed; of 0 the least of all.
    pub percentiles: Vec<(f64, TagValue)>,
}

/// How many users two segments have and share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Overlap {
    /// Users of the first.
    pub first: u64,
    /// Users of the second.
    pub second: u64,
    /// Users of both.
    pub both: u64,
    /// Users of either.
    pub either: u64,
    /// Those of both by those of either; 0 of two empty ones.
    pub jaccard: f64,
    /// How much commoner the second is within the first than among all users; 0 where one of them is empty.
    pub lift: f64,
}

impl Reader {
    /// [`Snapshot::top_values`] on the newest version.
    ///
    /// # Errors
    /// An unknown tag, a map tag, or a condition that does not fit its tag's type.
    pub fn top_values(
        &self,
        of: &str,
        segment: &Predicate,
        most: usize,
    ) -> Result<Answer<Vec<TopValue>>, QueryError> {
        self.snapshot().top_values(of, segment, most)
    }

    /// [`Snapshot::number_stats`] on the newest version.
    ///
    /// # Errors
    /// An unknown tag, a tag that is no number, or a condition that does not fit its tag's type.
    pub fn number_stats(
        &self,
        of: &str,
        segment: &Predicate,
        percentiles: &[f64],
    ) -> Result<Answer<NumberStats>, QueryError> {
        self.snapshot().number_stats(of, segment, percentiles)
    }

    /// [`Snapshot::overlap`] on the newest version.
    ///
    /// # Errors
    /// An unknown tag, or a condition that does not fit its tag's type.
    pub fn overlap(&self, first: &Predicate, second: &Predicate) -> Result<Answer<Overlap>, QueryError> {
        self.snapshot().overlap(first, second)
    }
}

impl Snapshot {
    /// The values of a tag that most users of a segment have, at most `most`: commonest first, the lesser value first of equally common ones. Of set
    /// tags the elements. Looks at the value of every user of the segment, and of a tag of numbers once more at everyone's.
    ///
    /// # Errors
    /// An unknown tag, a map tag, or a condition that does not fit its tag's type.
    pub fn top_values(
        &self,
        of: &str,
        segment: &Predicate,
        most: usize,
    ) -> Result<Answer<Vec<TopValue>>, QueryError> {
        let (number, kind) = self.tag(of)?;
        let all = self.users();
        if kind == TagType::Map {
            return Err(QueryError::Unsupported {
                piece: format!("top values of map tag '{of}'"),
                supported: "tags of all other types",
            });
        }
        let mut users = 0u64;
        let mut texts: HashMap<String, u64> = HashMap::new();
        let mut keys: HashMap<i64, u64> = HashMap::new();
        let query = Query::new(segment, self.catalogue(), self.groups().len())?;
        for (at, group) in self.groups().iter().enumerate() {
            // By the group's own numbers first: a text is made once per group.
            let mut values: HashMap<u32, u64> = HashMap::new();
            let _ = query.chunks(at, group, |chunk, found| {
                users += found.len;
                match group.chunks.get(chunk).and_then(|c| c.tag(number)) {
                    Some(TagChunk::Enum { forward, .. }) => {
                        found
                            .locals()
                            .filter_map(|l| forward.value(l))
                            .for_each(|v| *values.entry(v).or_default() += 1);
                    }
                    Some(TagChunk::Set { forward, .. }) => {
                        let each = found.locals().flat_map(|l| forward.values(l));
                        each.for_each(|v| *values.entry(*v).or_default() += 1);
                    }
                    Some(TagChunk::Int { forward, .. }) => {
                        let wide = wide(group, number, kind);
                        found
                            .locals()
                            .filter_map(|l| forward.value(l))
                            .for_each(|k| *keys.entry(wide(k)).or_default() += 1);
                    }
                    None => {}
                }
                ControlFlow::Continue(())
            });
            for (value, count) in values {
                if let Some(text) = group.values.get(number as usize).and_then(|dict| dict.name(value)) {
                    *texts.entry(text.to_string()).or_default() += count;
                }
            }
        }
        let texts = texts.into_iter().filter_map(|(text, count)| {
            let value = if kind == TagType::IntSet {
                TagValue::Int(text.parse().ok()?)
            } else {
                TagValue::Text(text)
            };
            Some((value, count))
        });
        let numbers = keys.into_iter().map(|(key, count)| (scalar::value(kind, key), count));
        let mut tops: Vec<(TagValue, u64)> = texts.chain(numbers).collect();
        // A uint below 2^63 is an int, and ints order before uints.
        let commonest = |a: &(TagValue, u64), b: &(TagValue, u64)| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0));
        if most < tops.len() {
            // Of very many values few are to be sorted.
            tops.select_nth_unstable_by(most, commonest);
            tops.truncate(most);
        }
        tops.sort_unstable_by(commonest);
        let all_keys = self.keys_of_everyone(number, kind, &tops)?;
        let tops = tops.into_iter().map(|(value, count)| {
            let everyone = match scalar::key(kind, &value).and_then(|key| all_keys.get(&key)) {
                Some(everyone) => *everyone,
                None => self.count(&having(of, kind, &value))?.value,
            };
            let lift = lift(count, users, everyone, all);
            Ok(TopValue { value, users: count, everyone, lift })
        });
        Ok(self.answer(tops.collect::<Result<_, QueryError>>()?))
    }

    /// How many users have each of these numbers, in one pass over everyone's; of other tags nothing, whose values know their users' number.
    fn keys_of_everyone(
        &self,
        number: u32,
        kind: TagType,
        tops: &[(TagValue, u64)],
    ) -> Result<HashMap<i64, u64>, QueryError> {
        let keys = tops.iter().filter_map(|(value, _)| Some((scalar::key(kind, value)?, 0)));
        let mut users: HashMap<i64, u64> = keys.collect();
        if users.is_empty() {
            return Ok(users);
        }
        let everyone = Predicate::all();
        let query = Query::new(&everyone, self.catalogue(), self.groups().len())?;
        for (at, group) in self.groups().iter().enumerate() {
            let _ = query.chunks(at, group, |chunk, found| {
                if let Some(TagChunk::Int { forward, .. }) =
                    group.chunks.get(chunk).and_then(|c| c.tag(number))
                {
                    for key in found.locals().filter_map(|l| forward.value(l)).map(wide(group, number, kind))
                    {
                        if let Some(users) = users.get_mut(&key) {
                            *users += 1;
                        }
                    }
                }
                ControlFlow::Continue(())
            });
        }
        Ok(users)
    }

    /// What the numbers of a segment come to: how many, sum, mean, least, greatest, and the percentiles asked for (0 to 100, others are cut to
    /// that). Looks at the number of every user of the segment, and holds them all while percentiles are asked for.
    ///
    /// # Errors
    /// An unknown tag, a tag that is no number, or a condition that does not fit its tag's type.
    pub fn number_stats(
        &self,
        of: &str,
        segment: &Predicate,
        percentiles: &[f64],
    ) -> Result<Answer<NumberStats>, QueryError> {
        let (number, kind) = self.tag(of)?;
        if kind.shape() != Shape::Number {
            return Err(QueryError::Unsupported {
                piece: format!("statistics of {kind} tag '{of}'"),
                supported: "tags of numbers, dates and moments",
            });
        }
        let query = Query::new(segment, self.catalogue(), self.groups().len())?;
        let top = scalar::top(kind);
        let (mut users, mut nans, mut least, mut greatest) = (0u64, 0u64, i64::MAX, i64::MIN);
        let (mut whole, mut float, mut small) = (0i128, Compensated::default(), Compensated::default());
        let mut held = Vec::new();
        for (at, group) in self.groups().iter().enumerate() {
            let _ = query.chunks(at, group, |chunk, found| {
                let Some(TagChunk::Int { forward, .. }) = group.chunks.get(chunk).and_then(|c| c.tag(number))
                else {
                    return ControlFlow::Continue(());
                };
                for key in found.locals().filter_map(|l| forward.value(l)).map(wide(group, number, kind)) {
                    if key > top {
                        nans += 1;
                        continue;
                    }
                    users += 1;
                    (least, greatest) = (least.min(key), greatest.max(key));
                    match kind {
                        TagType::Float => {
                            let number = Float::of_key(key).0;
                            float.add(number);
                            small.add(number * SCALE);
                        }
                        // At most 2^32 users of below 2^64 each.
                        TagType::UInt => whole += i128::from(key) - i128::from(i64::MIN),
                        _ => whole += i128::from(key),
                    }
                    if !percentiles.is_empty() {
                        held.push(key);
                    }
                }
                ControlFlow::Continue(())
            });
        }
        let value = |key: i64| scalar::value(kind, key);
        let finite = [least, greatest].iter().all(|key| Float::of_key(*key).0.is_finite());
        // On the way to a sum that is finite a part of it may not be.
        let total = if finite && !float.sum().is_finite() { small.sum() / SCALE } else { float.sum() };
        let sum = (users > 0).then_some(()).and_then(|()| match kind {
            TagType::Float => Some(TagValue::Float(Float(total))),
            TagType::Int | TagType::UInt => Some(match (i64::try_from(whole), u64::try_from(whole)) {
                (Ok(sum), _) => TagValue::Int(sum),
                (_, Ok(sum)) => TagValue::UInt(sum),
                _ => TagValue::Decimal(Decimal::new(whole, 0)),
            }),
            TagType::Decimal(scale) => Some(TagValue::Decimal(Decimal::new(whole, scale))),
            _ => None,
        });
        let mean = sum.as_ref().map(|_| match kind {
            // Of finite numbers the mean is finite, if the sum is not.
            TagType::Float if finite && !total.is_finite() => small.sum() / users as f64 / SCALE,
            TagType::Float => total / users as f64,
            TagType::Decimal(scale) => whole as f64 / users as f64 / 10f64.powi(scale.into()),
            _ => whole as f64 / users as f64,
        });
        held.sort_unstable();
        let at =
            |percent: f64| Some((percent, value(*held.get(rank(percent, held.len()).saturating_sub(1))?)));
        Ok(self.answer(NumberStats {
            users,
            nans,
            sum,
            mean,
            min: (users > 0).then(|| value(least)),
            max: (users > 0).then(|| value(greatest)),
            percentiles: percentiles.iter().filter_map(|p| at(*p)).collect(),
        }))
    }

    /// How many users two segments have and share.
    ///
    /// # Errors
    /// An unknown tag, or a condition that does not fit its tag's type.
    pub fn overlap(&self, first: &Predicate, second: &Predicate) -> Result<Answer<Overlap>, QueryError> {
        let count = |p: &Predicate| self.count(p).map(|answer| answer.value);
        let (a, b, both) = (count(first)?, count(second)?, count(&first.clone().and(second.clone()))?);
        let either = a + b - both;
        let jaccard = if either == 0 { 0.0 } else { both as f64 / either as f64 };
        let lift = lift(both, a, b, self.users());
        Ok(self.answer(Overlap { first: a, second: b, both, either, jaccard, lift }))
    }

    fn tag(&self, name: &str) -> Result<(u32, TagType), QueryError> {
        self.catalogue().find(name).ok_or_else(|| self.catalogue().unknown_to_query(name))
    }
}

/// Makes keys that a group may keep of a narrower type yet those of the tag's type.
fn wide(group: &GroupVersion, tag: u32, kind: TagType) -> impl Fn(i64) -> i64 {
    let from = group.kind(tag).filter(|is| *is != kind);
    move |key| from.map_or(key, |from| scalar::widened_or_below(from, kind, key))
}

/// So many percent of `of`, rounded up. By the digits that the percentage is written in: in floats, 7 / 100 · 100 is more than 7.
fn rank(percent: f64, of: usize) -> usize {
    let percent = if percent.is_nan() { 0.0 } else { percent.clamp(0.0, 100.0) };
    let exact = percent.to_string().parse::<Decimal>().ok().and_then(|written| {
        let all = 10i128.checked_pow(written.scale().into())?.checked_mul(100)?;
        let part = written.unscaled().checked_mul(of as i128)?;
        usize::try_from(part / all + i128::from(part % all > 0)).ok()
    });
    // More digits than a decimal has: far too little for two.
    exact.unwrap_or(usize::from(percent > 0.0))
}

/// The share of those in a segment by the share of those in all.
fn lift(those: u64, segment: u64, everyone: u64, all: u64) -> f64 {
    if segment == 0 || everyone == 0 || all == 0 {
        return 0.0;
    }
    (those as f64 / segment as f64) / (everyone as f64 / all as f64)
}

/// Who has a value.
fn having(name: &str, kind: TagType, value: &TagValue) -> Predicate {
    let tag = || tag(name);
    match value {
        TagValue::Text(text) if kind == TagType::Set => tag().has_any([text.as_str()]),
        TagValue::Int(n) if kind == TagType::IntSet => tag().has_any([*n]),
        value => tag().eq(value.clone()),
    }
}

/// By so much smaller, the sum of any 2^39 floats is finite; what it loses of them is far below what such a sum shows.
const SCALE: f64 = 1.0 / (1u64 << 40) as f64;

/// A sum of floats that keeps what each addition loses (Neumaier 1974); infinities and their difference come out as IEEE says.
#[derive(Debug, Default)]
struct Compensated {
    sum: f64,
    lost: f64,
}

impl Compensated {
    fn add(&mut self, n: f64) {
        let sum = self.sum + n;
        if sum.is_finite() {
            self.lost += if self.sum.abs() >= n.abs() { (self.sum - sum) + n } else { (n - sum) + self.sum };
        }
        self.sum = sum;
    }

    fn sum(&self) -> f64 {
        if self.sum.is_finite() { self.sum + self.lost } else { self.sum }
    }
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
