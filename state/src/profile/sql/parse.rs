//! Reads a condition from text: the WHERE clause of ClickHouse or MySQL, as far as [`Predicate`] goes.

use super::super::error::QueryError;
use super::super::predicate::Predicate;
use super::condition::Conditions;
use super::scope::Scope;
use super::text::expression;

impl Predicate {
    /// Reads a condition such as `buys_total >= 2 and hasAny(categories, ['123','4']) and not last_behaviour = 'pv'`.
    ///
    /// Keywords and function names are read in any case; tag names as they are, in `"…"` or backticks if they are no
    /// plain words. Whether the tags exist is seen when it is asked of a reader. `not` means all other users of the space here, as
    /// that of Rust does, and a value must be written as the tag's type asks; a whole statement
    /// ([`Snapshot::sql`](crate::profile::Snapshot::sql)) is read as SQL does both.
    ///
    /// # Errors
    /// A text over 64 KiB, with over 1024 words and operators, or nested over 50 deep; what is no expression; and what is one
    /// but not supported, named together with what is.
    pub fn parse(text: &str) -> Result<Predicate, QueryError> {
        let (expr, mut notes) = (expression(text)?, Vec::new());
        Conditions { scope: &Scope::Bare, notes: &mut notes, subquery: None }.read(&expr, false)
    }
}

impl std::str::FromStr for Predicate {
    type Err = QueryError;
    fn from_str(text: &str) -> Result<Self, QueryError> {
        Predicate::parse(text)
    }
}
