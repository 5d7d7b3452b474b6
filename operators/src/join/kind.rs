//! What a join gives of pairs and of records that met nothing: inner, outer, semi, anti.
// HOT: called per pair. Inlined; a kind has no size.

use weir_engine::Data;

use crate::aggregate::Kept;

/// A kind of join: [`Inner`], [`LeftOuter`], [`RightOuter`], [`FullOuter`], [`Semi`] or [`Anti`].
///
/// A join tells of each pair once, and of each record once more when nothing more can meet it.
pub trait JoinKind<A: Kept, B: Kept>: Clone + Send + 'static {
    /// A row of the join.
    type Out: Data;

    /// Whether it matters if a left record has met one.
    const MARKS_LEFT: bool;
    /// Whether it matters if a right record has met one.
    const MARKS_RIGHT: bool;
    /// Whether a pair gives a row.
    const PAIRS: bool;
    /// Whether more records of a key and window may leave nothing where there was a row, as those that a record of an [`Anti`] join meets late: the
    /// newest rows are then not all that there is to know. So it is, unless a kind says otherwise, where pairs give none.
    const TAKES_BACK: bool = !Self::PAIRS;

    /// The row of two records that met; none unless a kind says otherwise.
    #[inline]
    fn pair(_left: &A, _right: &B) -> Option<Self::Out> {
        None
    }

    /// The row of a left record that nothing more can meet; none unless a kind says otherwise.
    #[inline]
    fn left_over(_left: &A, _met: bool) -> Option<Self::Out> {
        None
    }

    /// The row of a right record that nothing more can meet; none unless a kind says otherwise.
    #[inline]
    fn right_over(_right: &B, _met: bool) -> Option<Self::Out> {
        None
    }
}

/// A kind of join that is about the left side only, as a join with a table is: [`Inner`], [`LeftOuter`], [`Semi`] or [`Anti`].
pub trait TableJoinKind<A: Kept, B: Kept>: JoinKind<A, B> {}

/// Gives each pair, and nothing of records that meet none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner;

impl<A: Kept, B: Kept> JoinKind<A, B> for Inner {
    type Out = (A, B);
    const MARKS_LEFT: bool = false;
    const MARKS_RIGHT: bool = false;
    const PAIRS: bool = true;

    #[inline]
    fn pair(left: &A, right: &B) -> Option<Self::Out> {
        Some((left.clone(), right.clone()))
    }
}

/// Gives each pair, and each left record that met none, once it can meet none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOuter;

impl<A: Kept, B: Kept> JoinKind<A, B> for LeftOuter {
    type Out = (A, Option<B>);
    const MARKS_LEFT: bool = true;
    const MARKS_RIGHT: bool = false;
    const PAIRS: bool = true;

    #[inline]
    fn pair(left: &A, right: &B) -> Option<Self::Out> {
        Some((left.clone(), Some(right.clone())))
    }
    #[inline]
    fn left_over(left: &A, met: bool) -> Option<Self::Out> {
        (!met).then(|| (left.clone(), None))
    }
}

/// Gives each pair, and each right record that met none, once it can meet none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RightOuter;

impl<A: Kept, B: Kept> JoinKind<A, B> for RightOuter {
    type Out = (Option<A>, B);
    const MARKS_LEFT: bool = false;
    const MARKS_RIGHT: bool = true;
    const PAIRS: bool = true;

    #[inline]
    fn pair(left: &A, right: &B) -> Option<Self::Out> {
        Some((Some(left.clone()), right.clone()))
    }
    #[inline]
    fn right_over(right: &B, met: bool) -> Option<Self::Out> {
        (!met).then(|| (None, right.clone()))
    }
}

/// Gives each pair, and each record of either side that met none, once it can meet none any more. Never both sides `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullOuter;

impl<A: Kept, B: Kept> JoinKind<A, B> for FullOuter {
    type Out = (Option<A>, Option<B>);
    const MARKS_LEFT: bool = true;
    const MARKS_RIGHT: bool = true;
    const PAIRS: bool = true;

    #[inline]
    fn pair(left: &A, right: &B) -> Option<Self::Out> {
        Some((Some(left.clone()), Some(right.clone())))
    }
    #[inline]
    fn left_over(left: &A, met: bool) -> Option<Self::Out> {
        (!met).then(|| (Some(left.clone()), None))
    }
    #[inline]
    fn right_over(right: &B, met: bool) -> Option<Self::Out> {
        (!met).then(|| (None, Some(right.clone())))
    }
}

/// Gives each left record that met one, once, when it can meet none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Semi;

impl<A: Kept, B: Kept> JoinKind<A, B> for Semi {
    type Out = A;
    const MARKS_LEFT: bool = true;
    const MARKS_RIGHT: bool = false;
    const PAIRS: bool = false;
    // Who has met one has met one, whatever comes.
    const TAKES_BACK: bool = false;

    #[inline]
    fn left_over(left: &A, met: bool) -> Option<Self::Out> {
        met.then(|| left.clone())
    }
}

/// Gives each left record that met none, when it can meet none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anti;

impl<A: Kept, B: Kept> JoinKind<A, B> for Anti {
    type Out = A;
    const MARKS_LEFT: bool = true;
    const MARKS_RIGHT: bool = false;
    const PAIRS: bool = false;

    #[inline]
    fn left_over(left: &A, met: bool) -> Option<Self::Out> {
        (!met).then(|| left.clone())
    }
}

impl<A: Kept, B: Kept> TableJoinKind<A, B> for Inner {}
impl<A: Kept, B: Kept> TableJoinKind<A, B> for LeftOuter {}
impl<A: Kept, B: Kept> TableJoinKind<A, B> for Semi {}
impl<A: Kept, B: Kept> TableJoinKind<A, B> for Anti {}
