//! What names mean: tables of a space, tags of a table, the column that is the user's id.

use super::super::catalogue::Catalogue;
use super::super::error::QueryError;
use super::super::predicate::{Node, Predicate, Test, tag};
use super::super::update::TagType;
use super::condition::SUPPORTED;
use super::literal::arguments;
use super::text::{at, start, unsupported};
use sqlparser::ast::{AccessExpr, Expr, Ident, Subscript, Value};
use std::borrow::Cow;
use std::sync::Arc;

/// One table of a FROM clause.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// The table's name.
    pub(super) table: String,
    /// The name it goes by in this statement.
    pub(super) alias: String,
}

/// What a name stands for.
#[derive(Debug, Clone)]
pub(super) enum Column {
    /// The id of the user, of this source.
    Key(usize),
    /// A tag, and its type where tags are known already.
    Tag(Named, Option<TagType>),
}

/// A tag by its whole name, or what is under a key of a map.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub(super) tag: Arc<str>,
    key: Option<String>,
}

impl Named {
    fn tag(name: impl Into<Arc<str>>) -> Self {
        Named { tag: name.into(), key: None }
    }

    pub(super) fn test(&self, test: Test) -> Test {
        match &self.key {
            Some(key) => Test::Key(key.clone(), Box::new(test)),
            None => test,
        }
    }

    pub(super) fn leaf(&self, test: Test) -> Predicate {
        Predicate::leaf(self.tag.clone(), self.test(test))
    }

    /// What is under a key of it; nothing if it is that already.
    fn under(self, key: &str) -> Option<Self> {
        self.key.is_none().then(|| Named { key: Some(key.to_owned()), ..self })
    }

    pub(super) fn is_under_key(&self) -> bool {
        self.key.is_some()
    }
}

/// Where names are looked up.
#[derive(Debug)]
pub(super) enum Scope<'a> {
    /// Names are tags; whether they exist is seen when the condition is asked of a reader.
    Bare,
    Tables(&'a Catalogue, Vec<Source>),
}

impl Scope<'_> {
    /// Whether a comparison with nothing is unknown, as in SQL, rather than false.
    pub(super) fn three_valued(&self) -> bool {
        matches!(self, Scope::Tables(..))
    }

    pub(super) fn column(&self, expr: &Expr) -> Result<Column, QueryError> {
        match expr {
            Expr::Nested(inner) => self.column(inner),
            Expr::Identifier(ident) => self.plain(ident).map_err(|e| at(ident.span.start, e)),
            Expr::CompoundIdentifier(parts) if self.three_valued() => {
                self.qualified(parts).map_err(|e| at(start(expr), e))
            }
            Expr::BinaryOp { op, .. } => {
                Err(at(start(expr), unsupported(format_args!("operator {op} on a tag"), SUPPORTED)))
            }
            _ => match entry(expr) {
                Some((map, key)) => self.under(&map, &key, expr),
                None => {
                    Err(at(start(expr), unsupported(format_args!("{expr} in place of a tag"), SUPPORTED)))
                }
            },
        }
    }

    /// What is under a key of a map.
    pub(super) fn under(&self, map: &Expr, key: &str, place: &Expr) -> Result<Column, QueryError> {
        if let Column::Tag(map, kind @ (None | Some(TagType::Map))) = self.column(map)?
            && let Some(under) = map.under(key)
        {
            return Ok(Column::Tag(under, kind));
        }
        Err(at(start(place), unsupported(format_args!("{place} of what is no map"), SUPPORTED)))
    }

    fn plain(&self, ident: &Ident) -> Result<Column, QueryError> {
        let Scope::Tables(catalogue, sources) = self else {
            return Ok(Column::Tag(Named::tag(ident.value.as_str()), None));
        };
        let name = ident.value.as_str();
        if name == &*catalogue.key {
            return Ok(Column::Key(0));
        }
        let mut found = sources.iter().filter_map(|source| {
            let (_, kind) = catalogue.find(&catalogue.tag_of(&source.table, name))?;
            Some((source, kind))
        });
        match (found.next(), found.next()) {
            (Some((source, kind)), None) => {
                Ok(Column::Tag(Named::tag(catalogue.tag_of(&source.table, name)), Some(kind)))
            }
            (Some((one, _)), Some((other, _))) => {
                let reason = format!(
                    "'{name}' is a tag of both '{}' and '{}': write which, as '{}.{name}'",
                    one.alias, other.alias, one.alias
                );
                Err(QueryError::Syntax { reason })
            }
            (None, _) => Err(unknown(catalogue, sources, name)),
        }
    }

    fn qualified(&self, parts: &[Ident]) -> Result<Column, QueryError> {
        let Scope::Tables(catalogue, sources) = self else { return Err(unsupported("a table", SUPPORTED)) };
        let [.., table, name] = parts else { return Err(unsupported("a name", SUPPORTED)) };
        let Some(at) = sources.iter().position(|s| s.alias == table.value) else {
            let known: Vec<&str> = sources.iter().map(|s| s.alias.as_str()).collect();
            let reason =
                format!("'{}' is no table of this FROM clause, which has {}", table.value, known.join(", "));
            return Err(QueryError::Syntax { reason });
        };
        if name.value == *catalogue.key {
            return Ok(Column::Key(at));
        }
        let whole = catalogue.tag_of(&sources[at].table, &name.value);
        match catalogue.find(&whole) {
            Some((_, kind)) => Ok(Column::Tag(Named::tag(whole), Some(kind))),
            None => Err(unknown(catalogue, &sources[at..=at], &name.value)),
        }
    }
}

/// The map and the key of `map['key']`, `JSON_EXTRACT(map, '$.key')`, or `JSON_VALUE` of the same.
fn entry(expr: &Expr) -> Option<(Cow<'_, Expr>, String)> {
    match expr {
        Expr::CompoundFieldAccess { root, access_chain } => {
            let (AccessExpr::Subscript(Subscript::Index { index: Expr::Value(key) }), before) =
                access_chain.split_last()?
            else {
                return None;
            };
            let Value::SingleQuotedString(key) = &key.value else { return None };
            match (&**root, before) {
                (root, []) => Some((Cow::Borrowed(root), key.clone())),
                // `table.map['key']` comes as steps from the table.
                (Expr::Identifier(table), [AccessExpr::Dot(Expr::Identifier(map))]) => {
                    let whole = Expr::CompoundIdentifier(vec![table.clone(), map.clone()]);
                    Some((Cow::Owned(whole), key.clone()))
                }
                _ => None,
            }
        }
        Expr::Function(f) => {
            match (f.name.to_string().to_ascii_lowercase().as_str(), arguments(f)?.as_slice()) {
                ("json_extract" | "json_value", [map, Expr::Value(path)]) => match &path.value {
                    Value::SingleQuotedString(path) => Some((Cow::Borrowed(*map), path_key(path)?)),
                    _ => None,
                },
                ("json_unquote", [inner]) => entry(inner),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The key that a path of one step names: `$.key` or `$."key"`.
fn path_key(path: &str) -> Option<String> {
    let step = path.strip_prefix("$.")?;
    match step.strip_prefix('"') {
        Some(quoted) => serde_json::from_str(&format!("\"{quoted}")).ok(),
        None => step
            .chars()
            .all(|c| c.is_alphanumeric() || c == '_')
            .then(|| step.to_owned())
            .filter(|s| !s.is_empty()),
    }
}

fn unknown(catalogue: &Catalogue, sources: &[Source], tag: &str) -> QueryError {
    let tables: Vec<&str> = sources.iter().map(|s| s.table.as_str()).collect();
    let known = sources.iter().flat_map(|s| catalogue.columns(&s.table)).map(|(name, ..)| name);
    let known: Vec<&str> = std::iter::once(&*catalogue.key).chain(known).collect();
    QueryError::UnknownTag { tag: tag.to_owned(), space: tables.join(", "), known: known.join(", ") }
}

/// Who has a row in a table: whoever has a value of any of its tags.
pub(super) fn row(catalogue: &Catalogue, table: &str) -> Predicate {
    let tags = catalogue.columns(table).map(|(name, ..)| tag(catalogue.tag_of(table, name)).exists());
    tags.reduce(Predicate::or).unwrap_or_else(|| !Predicate::all())
}

/// Whether whoever matches has a row in the table.
pub(super) fn implies_row(catalogue: &Catalogue, predicate: &Predicate, table: &str) -> bool {
    match &predicate.node {
        Node::Leaf(name, _) => catalogue.split(name).0 == table,
        Node::And(parts) => parts.iter().any(|p| implies_row(catalogue, p, table)),
        Node::Or(parts) => parts.iter().all(|p| implies_row(catalogue, p, table)),
        Node::Segment(name) => catalogue.segment(name).is_some_and(|p| implies_row(catalogue, p, table)),
        Node::All | Node::Not(_) | Node::AtLeast(..) | Node::Users(_) => false,
    }
}
