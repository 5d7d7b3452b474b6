//! From text to a syntax tree, within limits that keep its depth harmless, and errors that name a place in the text.

use super::super::error::QueryError;
use sqlparser::ast::{Expr, Ident, Query, Spanned, Statement};
use sqlparser::dialect::{ClickHouseDialect, Dialect};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Token, Tokenizer};
use std::any::TypeId;

/// Longer texts are refused unread.
const MAX_BYTES: usize = 64 << 10;
/// Words and operators beside list values: bounds how deep the parsed tree can be, since its pieces are freed recursively.
const MAX_WORDS: usize = 1024;
const MAX_NESTING: usize = 50;

/// What ClickHouse writes, and of MySQL what does not contradict it.
#[derive(Debug)]
struct Forms;

impl Dialect for Forms {
    /// Where the parser asks for one by name, it is this.
    fn dialect(&self) -> TypeId {
        TypeId::of::<ClickHouseDialect>()
    }
    fn is_identifier_start(&self, c: char) -> bool {
        c.is_alphabetic() || c == '_'
    }
    fn is_identifier_part(&self, c: char) -> bool {
        c.is_alphanumeric() || c == '_' || c == '$'
    }
    fn supports_string_literal_backslash_escape(&self) -> bool {
        true
    }
    /// `\%` and `\_` are for LIKE to read.
    fn ignores_wildcard_escapes(&self) -> bool {
        true
    }
    fn supports_lambda_functions(&self) -> bool {
        true
    }
    fn supports_add_column_if_not_exists(&self) -> bool {
        true
    }
    fn supports_array_typedef_with_parentheses(&self) -> bool {
        true
    }
    fn supports_alter_column_position(&self) -> bool {
        true
    }
    fn supports_limit_comma(&self) -> bool {
        true
    }
    fn supports_hash_comment(&self) -> bool {
        true
    }
    fn requires_hash_comment_space(&self) -> bool {
        true
    }
    // These are read so that they can be refused, or passed over, by name.
    fn supports_prewhere(&self) -> bool {
        true
    }
    fn supports_settings(&self) -> bool {
        true
    }
    fn supports_select_format(&self) -> bool {
        true
    }
    fn supports_limit_by(&self) -> bool {
        true
    }
    fn supports_global_in(&self) -> bool {
        true
    }
}

/// Reads a condition alone.
pub(super) fn expression(text: &str) -> Result<Expr, QueryError> {
    let mut parser = parser(text)?;
    let expr = parser.parse_expr().map_err(|e| unread(&e, text, &parser))?;
    end(&parser, "condition")?;
    Ok(expr)
}

/// A statement: one that the parser knows, or one of segments.
#[derive(Debug)]
pub(super) enum Command {
    Statement(Box<Statement>),
    PutSegment { name: Ident, definition: Definition },
    DropSegment { name: Ident, if_exists: bool },
    ShowSegments,
}

/// What a segment is defined by.
#[derive(Debug)]
pub(super) enum Definition {
    Condition(Box<Expr>),
    Query(Box<Query>),
}

/// Whether the next tokens are these words; they are taken if so.
fn words(parser: &mut Parser<'_>, wanted: &[&str]) -> bool {
    let is = |(n, wanted): (usize, &&str)| match &parser.peek_nth_token_ref(n).token {
        Token::Word(word) => word.quote_style.is_none() && word.value.eq_ignore_ascii_case(wanted),
        _ => false,
    };
    let all = wanted.iter().enumerate().all(is);
    if all {
        wanted.iter().for_each(|_| drop(parser.next_token()));
    }
    all
}

fn command(parser: &mut Parser<'_>) -> Result<Command, ParserError> {
    let put = words(parser, &["create", "segment"])
        || words(parser, &["create", "or", "replace", "segment"])
        || words(parser, &["alter", "segment"]);
    if put {
        let name = parser.parse_identifier()?;
        parser.expect_keyword(Keyword::AS)?;
        let definition = if parser.peek_keyword(Keyword::SELECT) {
            Definition::Query(parser.parse_query()?)
        } else {
            Definition::Condition(Box::new(parser.parse_expr()?))
        };
        return Ok(Command::PutSegment { name, definition });
    }
    if words(parser, &["drop", "segment"]) {
        let if_exists = words(parser, &["if", "exists"]);
        return Ok(Command::DropSegment { name: parser.parse_identifier()?, if_exists });
    }
    if words(parser, &["show", "segments"]) {
        return Ok(Command::ShowSegments);
    }
    parser.parse_statement().map(|statement| Command::Statement(Box::new(statement)))
}

/// Reads one statement, which may end in a semicolon.
pub(super) fn statement(text: &str) -> Result<Command, QueryError> {
    let mut parser = parser(text)?;
    let statement = command(&mut parser).map_err(|e| unread(&e, text, &parser))?;
    while parser.consume_token(&Token::SemiColon) {}
    end(&parser, "statement")?;
    Ok(statement)
}

fn parser(text: &str) -> Result<Parser<'static>, QueryError> {
    let limit = |what, size, limit| Err(QueryError::TooLarge { what, size, limit });
    if text.len() > MAX_BYTES {
        return limit("a length in bytes of", text.len(), MAX_BYTES);
    }
    let tokens = Tokenizer::new(&Forms, text).tokenize_with_location().map_err(|e| syntax(&e, text))?;
    let plain = |t: &Token| {
        !matches!(t, Token::Whitespace(_) | Token::Comma | Token::SingleQuotedString(_) | Token::Number(..))
    };
    let mut words = tokens.iter().filter(|t| plain(&t.token));
    if let Some(first) = words.nth(MAX_WORDS) {
        let (what, size) = ("a number of words and operators of", MAX_WORDS + 1 + words.count());
        return Err(at(first.span.start, QueryError::TooLarge { what, size, limit: MAX_WORDS }));
    }
    Ok(Parser::new(&Forms).with_recursion_limit(MAX_NESTING).with_tokens_with_locations(tokens))
}

fn end(parser: &Parser<'_>, what: &str) -> Result<(), QueryError> {
    let rest = parser.peek_token();
    match rest.token {
        Token::EOF => Ok(()),
        token => {
            let reason = format!("unexpected '{token}' after a complete {what}");
            Err(at(rest.span.start, QueryError::Syntax { reason }))
        }
    }
}

/// Why a parser stopped, and where.
fn unread(e: &ParserError, text: &str, parser: &Parser<'_>) -> QueryError {
    if matches!(e, ParserError::RecursionLimitExceeded) {
        let reason = format!("it is nested more than {MAX_NESTING} deep");
        return at(parser.peek_token().span.start, QueryError::Syntax { reason });
    }
    syntax(e, text)
}

fn syntax(e: &dyn std::fmt::Display, text: &str) -> QueryError {
    let reason = e.to_string();
    let reason = reason.trim_start_matches("sql parser error: ");
    // The parser says where in its text alone.
    if let Some((reason, place)) = reason.rsplit_once(" at Line: ")
        && let Some((line, column)) = place.split_once(", Column: ")
        && let (Ok(line), Ok(column)) = (line.trim().parse(), column.trim().parse())
    {
        return at(Location { line, column }, QueryError::Syntax { reason: reason.to_owned() });
    }
    // It says no place where the text ends too early.
    let last = text.rsplit('\n').next().unwrap_or_default();
    let place = Location { line: text.split('\n').count() as u64, column: last.chars().count() as u64 + 1 };
    at(place, QueryError::Syntax { reason: reason.to_owned() })
}

/// Puts a place before an error, unless it has one or there is none.
pub(super) fn at(place: Location, error: QueryError) -> QueryError {
    match error {
        error if place.line == 0 => error,
        QueryError::At { .. } => error,
        error => QueryError::At { line: place.line, column: place.column, problem: Box::new(error) },
    }
}

/// Where an expression begins.
pub(super) fn start(expr: &Expr) -> Location {
    match expr {
        // The span of a call is that of its name and arguments; of a value, it is kept with it.
        Expr::Value(value) => value.span.start,
        // The parser keeps no place for these.
        Expr::RLike { expr, .. } => start(expr),
        expr => expr.span().start,
    }
}

/// Refuses a piece of text; `supported` says what there is instead.
#[cold]
pub(super) fn unsupported(piece: impl std::fmt::Display, supported: &'static str) -> QueryError {
    let mut piece = piece.to_string();
    if let Some((cut, _)) = piece.char_indices().nth(120) {
        piece.truncate(cut);
        piece.push('…');
    }
    QueryError::Unsupported { piece: format!("'{piece}'"), supported }
}
