//! Segments by name: a condition is registered, changed and dropped while questions are asked, and never comes back to itself.

use super::catalogue::{Catalogue, Segment};
use super::error::{ProfileError, QueryError};
use super::eval::{MAX_DEPTH, Query};
use super::predicate::{Node, Predicate};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Parts that a segment has at most, with those of the segments that it names.
const MOST_PARTS: usize = 10_000;
/// Bytes of a name at most.
pub(super) const MOST_NAME: usize = 1_000;

/// How deep a condition is nested, and how many parts it has.
type Size = (usize, usize);

impl Catalogue {
    /// Registers a segment, or changes it; true if it is another than before.
    pub(crate) fn put_segment(&mut self, name: &str, predicate: Predicate) -> Result<bool, ProfileError> {
        if name.is_empty() || name.len() > MOST_NAME {
            return Err(ProfileError::BadName { name: name.to_owned(), most: MOST_NAME });
        }
        if self.segment(name) == Some(&predicate) {
            return Ok(false);
        }
        let bad = |problem| ProfileError::BadSegment { segment: name.to_owned(), problem: Box::new(problem) };
        if predicate.depth > MAX_DEPTH {
            return Err(bad(too_deep(predicate.depth)));
        }
        for through in named(&predicate) {
            if self.comes_to(&through, name) {
                return Err(ProfileError::SegmentCycle {
                    segment: name.to_owned(),
                    through: through.to_string(),
                });
            }
        }
        let mut next = self.clone();
        next.segments.insert(name.into(), Arc::new(Segment { predicate, built: false, depth: 0, parts: 0 }));
        next.measure_all()?;
        let (segment, _) =
            next.segments.get_key_value(name).ok_or_else(|| bad(self.unknown_segment(name)))?;
        let asked = Predicate::segment(segment.clone());
        Query::new(&asked, &next, 1).map_err(bad)?;
        *self = next;
        Ok(true)
    }

    /// Drops a segment; true if it was there.
    pub(crate) fn drop_segment(&mut self, name: &str) -> Result<bool, ProfileError> {
        let uses = |other: &Segment| named(&other.predicate).iter().any(|n| &**n == name);
        if let Some((by, _)) = self.segments.iter().find(|(_, segment)| uses(segment)) {
            return Err(ProfileError::SegmentUsed { segment: name.to_owned(), by: by.to_string() });
        }
        match self.segments.remove(name) {
            Some(segment) => {
                if segment.built {
                    self.dropped_segments.insert(name.into());
                }
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Notes that the program registers a segment.
    pub(crate) fn built_segment(&mut self, name: &str) {
        if let Some(segment) = self.segments.get_mut(name) {
            *segment = Arc::new(Segment { built: true, ..(**segment).clone() });
        }
    }

    /// Refuses a change of a tag that a segment could not be asked after.
    pub(super) fn check_segments(&self, tag: &str) -> Result<(), ProfileError> {
        let Some(segment) = self.segment_of_tag(tag) else { return Ok(()) };
        let bad =
            |problem| ProfileError::BadSegment { segment: segment.to_string(), problem: Box::new(problem) };
        for name in self.segments.keys() {
            Query::new(&Predicate::segment(name.clone()), self, 1).map_err(bad)?;
        }
        Ok(())
    }

    /// A segment that asks for a tag.
    pub(crate) fn segment_of_tag(&self, tag: &str) -> Option<&Arc<str>> {
        let asks = |segment: &Segment| {
            let mut asks = false;
            each(&segment.predicate, &mut |node| asks |= matches!(node, Node::Leaf(of, _) if &**of == tag));
            asks
        };
        self.segments.iter().find(|(_, segment)| asks(segment)).map(|(name, _)| name)
    }

    /// Refuses a condition that is too large with the segments that it names.
    pub(crate) fn measure(&self, predicate: &Predicate) -> Result<(), QueryError> {
        if self.segments.is_empty() {
            return Ok(());
        }
        let known = |name: &str| self.segments.get(name).map_or((1, 1), |s| (s.depth, s.parts));
        let mut named = 0usize;
        each(predicate, &mut |node| {
            if let Node::Segment(name) = node {
                named = named.saturating_add(known(name).1);
            }
        });
        fits((size(predicate, &known).0, named))
    }

    /// Whether a segment is another, or names one that comes to it.
    fn comes_to(&self, from: &str, to: &str) -> bool {
        // Each is looked at once, however often it is named.
        let mut seen: Vec<Arc<str>> = vec![from.into()];
        let mut at = 0;
        while let Some(name) = seen.get(at).cloned() {
            if &*name == to {
                return true;
            }
            let named = self.segment(&name).map(named).unwrap_or_default();
            seen.extend(named.into_iter().filter(|n| !seen.contains(n)).collect::<Vec<_>>());
            at += 1;
        }
        false
    }

    /// Measures every segment anew: one that changed may be named by others.
    fn measure_all(&mut self) -> Result<(), ProfileError> {
        let mut sizes: BTreeMap<Arc<str>, Size> = BTreeMap::new();
        // Those go first whose segments are measured; without a cycle each round has some.
        let mut left: Vec<Arc<str>> = self.segments.keys().cloned().collect();
        while !left.is_empty() {
            let before = left.len();
            let mut later = Vec::new();
            for name in left {
                let Some(predicate) = self.segment(&name) else { continue };
                let ready = |n: &Arc<str>| sizes.contains_key(n) || !self.segments.contains_key(n);
                if !named(predicate).iter().all(ready) {
                    later.push(name);
                    continue;
                }
                let known = |name: &str| sizes.get(name).copied().unwrap_or((1, 1));
                let size = size(predicate, &known);
                let bad = |problem| ProfileError::BadSegment {
                    segment: name.to_string(),
                    problem: Box::new(problem),
                };
                fits(size).map_err(bad)?;
                sizes.insert(name, size);
            }
            left = later;
            if left.len() == before {
                break;
            }
        }
        for (name, segment) in &mut self.segments {
            let (depth, parts) = sizes.get(name).copied().unwrap_or((1, 1));
            if (segment.depth, segment.parts) != (depth, parts) {
                *segment = Arc::new(Segment { depth, parts, ..(**segment).clone() });
            }
        }
        Ok(())
    }
}

fn too_deep(size: usize) -> QueryError {
    QueryError::TooLarge { what: "nesting depth", size, limit: MAX_DEPTH }
}

fn fits((depth, parts): Size) -> Result<(), QueryError> {
    if depth > MAX_DEPTH {
        return Err(too_deep(depth));
    }
    if parts > MOST_PARTS {
        let what = "parts, with those of its segments:";
        return Err(QueryError::TooLarge { what, size: parts, limit: MOST_PARTS });
    }
    Ok(())
}

/// Shows all parts of a condition; its depth is bounded.
fn each<'p>(predicate: &'p Predicate, show: &mut impl FnMut(&'p Node)) {
    show(&predicate.node);
    predicate.node.parts().iter().for_each(|part| each(part, show));
}

/// The segments that a condition names, each once.
pub(super) fn named(predicate: &Predicate) -> Vec<Arc<str>> {
    let mut names: Vec<Arc<str>> = Vec::new();
    each(predicate, &mut |node| {
        if let Node::Segment(name) = node
            && !names.contains(name)
        {
            names.push(name.clone());
        }
    });
    names
}

fn size(predicate: &Predicate, known: &impl Fn(&str) -> Size) -> Size {
    if let Node::Segment(name) = &predicate.node {
        let (depth, parts) = known(name);
        return (depth + 1, parts.saturating_add(1));
    }
    let parts = predicate.node.parts().iter().map(|part| size(part, known));
    let (depth, parts) = parts.fold((0, 0usize), |a, b| (a.0.max(b.0), a.1.saturating_add(b.1)));
    (depth + 1, parts.saturating_add(1))
}
