//! Questions in SQL: the forms that ClickHouse, MySQL and TiDB are asked in, as far as a profile index answers them.
//!
//! [`text`] reads tokens within limits, [`literal`] reads values, [`scope`] knows what names mean, [`condition`] and [`calls`] make a WHERE clause a
//! [`Predicate`](super::Predicate), [`statement`] does the rest. Whatever is not understood is refused with its place in the text and
//! with what is supported.

mod calls;
mod change;
mod condition;
mod literal;
mod parse;
mod scope;
mod statement;
mod text;
mod types;
mod write;

pub use change::SqlError;
pub use statement::{Rows, SqlAnswer};
