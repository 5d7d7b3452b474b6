//! Questions in SQL: the forms that ClickHouse, MySQL and TiDB are asked in, as far as a profile index answers them.
//!
//! [`text`] reads tokens within limits, [`literal`] reads values, [`scope`] knows what names mean, [`condition`] and [`calls`] make a WHERE clause a
//! [`Predicate`](super::Predicate), [`statement`] does the rest. Whatever is not understood is refused with its place in the text and
//! with what is supported.

mod calls;
mod condition;
mod literal;
mod parse;
mod scope;
mod statement;
mod text;

pub use statement::{Rows, SqlAnswer};
