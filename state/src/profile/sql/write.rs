//! Statements that write: INSERT, UPDATE and DELETE as updates of users, which take the way of all updates.
//! (over 400 lines: three statements, each with all it refuses)

use super::super::catalogue::Catalogue;
use super::super::error::QueryError;
use super::super::predicate::{Predicate, Test};
use super::super::reader::{Page, Snapshot};
use super::super::space::Profiles;
use super::super::update::{Delta, ProfileUpdate, TagType, TagValue};
use super::super::user::UserId;
use super::super::writes::WriteError;
use super::change::SqlError;
use super::condition::Conditions;
use super::literal::{arguments, array, json, literal, numeral};
use super::scope::{Column, Scope, Source, row};
use super::statement::{Rows, SqlAnswer, from_where, known_table, plain};
use super::text::{at, start, unsupported};
use sqlparser::ast::{
    AssignmentTarget, BinaryOperator, Delete, Expr, FromTable, Ident, Insert, ObjectName, SelectItem,
    SetExpr, Spanned, Statement, TableFactor, TableObject, TableWithJoins, Update, Value,
};
use std::collections::BTreeMap;
use std::time::Duration;

const SUPPORTED: &str = "INSERT INTO a table (the user's id, tags) VALUES of literals or SELECT; UPDATE a table SET tag = a literal, NULL, or tag + number WHERE …; DELETE FROM a \
     table WHERE …";

/// How long a statement waits until what it wrote is visible.
const PATIENCE: Duration = Duration::from_secs(30);
/// Users that one statement writes at most.
const MOST_USERS: usize = 1_000_000;

fn refuse(place: sqlparser::tokenizer::Location, piece: impl std::fmt::Display) -> QueryError {
    at(place, unsupported(piece, SUPPORTED))
}

impl Profiles {
    /// Carries out a statement that writes; nothing if it is another.
    pub(super) fn written(&self, statement: &Statement) -> Result<Option<SqlAnswer>, SqlError> {
        let ready = self.space.are_ready();
        let snapshot = self.reader().snapshot();
        let mut notes = Vec::new();
        let writes = matches!(statement, Statement::Insert(_) | Statement::Update(_) | Statement::Delete(_));
        if writes && !ready {
            // Whom it is about is not known until the job has read its checkpoint.
            return Err(WriteError::NoWriter { space: self.name() }.into());
        }
        let updates = match statement {
            Statement::Insert(insert) => inserted(&snapshot, insert, &mut notes)?,
            Statement::Update(update) => updated(&snapshot, update, &mut notes)?,
            Statement::Delete(delete) => deleted(&snapshot, delete, &mut notes)?,
            _ => return Ok(None),
        };
        drop(snapshot);
        let done = self.write(updates, PATIENCE)?;
        for (user, reason) in done.refused.iter().take(10) {
            notes.push(format!("the update of user {user} was refused: {reason}"));
        }
        let written = TagValue::from(done.updates - done.refused.len());
        let rows = Rows { columns: vec!["written".into()], rows: vec![vec![Some(written)]], notes };
        Ok(Some(self.reader().snapshot().answer(rows)))
    }
}

fn too_many(place: sqlparser::tokenizer::Location) -> QueryError {
    let what = "a number of users to write of over";
    at(place, QueryError::TooLarge { what, size: MOST_USERS, limit: MOST_USERS })
}

fn whole(
    catalogue: &Catalogue,
    table: &str,
    name: &ObjectName,
) -> Result<Option<(String, TagType)>, QueryError> {
    let place = name.span().start;
    let last: Option<&Ident> = name.0.last().and_then(|part| part.as_ident());
    let Some(ident) = last else { return Err(refuse(place, name)) };
    if ident.value == *catalogue.key {
        return Ok(None);
    }
    let tag = catalogue.tag_of(table, &ident.value);
    match catalogue.find(&tag) {
        Some((_, kind)) => Ok(Some((tag, kind))),
        None => Err(at(place, catalogue.unknown_to_query(&tag))),
    }
}

fn inserted(
    snapshot: &Snapshot,
    insert: &Insert,
    notes: &mut Vec<String>,
) -> Result<Vec<ProfileUpdate>, QueryError> {
    let catalogue = snapshot.catalogue();
    let TableObject::TableName(name) = &insert.table else {
        return Err(refuse(insert.table.span().start, &insert.table));
    };
    let place = name.span().start;
    let table = known_table(catalogue, name)?;
    let odd = [
        (
            insert.on.is_some(),
            "ON DUPLICATE KEY or CONFLICT (an INSERT sets the tags that it names, whether there were values or not)",
        ),
        (insert.returning.is_some(), "RETURNING"),
        (insert.overwrite, "OVERWRITE"),
        (!insert.assignments.is_empty(), "INSERT … SET"),
        (insert.partitioned.is_some(), "PARTITION"),
    ];
    if let Some((_, what)) = odd.iter().find(|(is, _)| *is) {
        return Err(refuse(place, what));
    }
    let columns: Vec<Option<(String, TagType)>> = if insert.columns.is_empty() {
        let tags = catalogue.columns(&table);
        let tags = tags.map(|(name, kind, _)| Some((catalogue.tag_of(&table, name), kind)));
        std::iter::once(None).chain(tags).collect()
    } else {
        insert.columns.iter().map(|name| whole(catalogue, &table, name)).collect::<Result<_, _>>()?
    };
    let keys: Vec<usize> =
        columns.iter().enumerate().filter(|(_, c)| c.is_none()).map(|(at, _)| at).collect();
    let [key] = keys[..] else {
        return Err(refuse(place, format_args!("INSERT without '{}' once among its columns", catalogue.key)));
    };
    let counts = |place, given: usize| {
        let reason = format!("{given} values for {} columns", columns.len());
        at(place, QueryError::Syntax { reason })
    };
    let Some(source) = &insert.source else { return Err(refuse(place, "INSERT without VALUES or SELECT")) };
    let mut updates = Vec::new();
    match &*source.body {
        SetExpr::Values(values) => {
            for given in &values.rows {
                let given = &given.content;
                let begins = given.first().map_or(place, start);
                if given.len() != columns.len() {
                    return Err(counts(begins, given.len()));
                }
                if updates.len() >= MOST_USERS {
                    return Err(too_many(begins));
                }
                let mut update = ProfileUpdate::of(user_id(&given[key])?);
                for (column, expr) in columns.iter().zip(given) {
                    if let Some((tag, kind)) = column {
                        update = update.delta(tag.clone(), set(*kind, expr)?);
                    }
                }
                updates.push(update);
            }
        }
        SetExpr::Select(_) => {
            let select = plain(source)?;
            let (predicate, scope) = from_where(catalogue, select, notes)?;
            if select.projection.len() != columns.len() {
                return Err(counts(select.span().start, select.projection.len()));
            }
            let mut given = Vec::new();
            for (item, column) in select.projection.iter().zip(&columns) {
                let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item else {
                    return Err(refuse(item.span().start, item));
                };
                given.push(Given::of(&scope, column.as_ref().map(|c| c.1), expr)?);
            }
            let page = match &source.limit_clause {
                Some(limit) => return Err(refuse(limit.span().start, "LIMIT of an INSERT")),
                None => Page::first(MOST_USERS + 1),
            };
            snapshot.each_match(&predicate, page, |group, local, user| {
                let value = |given: &Given| match given {
                    Given::User => Some(match user {
                        UserId::Number(n) => Delta::Set(TagValue::from(*n)),
                        other => Delta::Set(TagValue::Text(other.to_string())),
                    }),
                    Given::Tag(number) => snapshot.value(group, local, *number).map(Delta::Set),
                    Given::Literal(delta) => Some(delta.clone()),
                };
                let mut update = ProfileUpdate::of(user.clone());
                for (column, given) in columns.iter().zip(&given) {
                    if let Some((tag, _)) = column {
                        update = update.delta(tag.clone(), value(given).unwrap_or(Delta::Unset));
                    }
                }
                updates.push(update);
            })?;
            if !matches!(given[key], Given::User) {
                return Err(refuse(
                    select.span().start,
                    "INSERT … SELECT of anything but the user's id as the user's id",
                ));
            }
            if updates.len() > MOST_USERS {
                return Err(too_many(place));
            }
        }
        other => return Err(refuse(other.span().start, other)),
    }
    Ok(updates)
}

/// What stands in a column of INSERT … SELECT.
enum Given {
    User,
    Tag(u32),
    Literal(Delta),
}

impl Given {
    fn of(scope: &Scope<'_>, kind: Option<TagType>, expr: &Expr) -> Result<Self, QueryError> {
        let Scope::Tables(catalogue, _) = scope else { return Err(refuse(start(expr), expr)) };
        if let Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Nested(_) = expr {
            return match scope.column(expr)? {
                Column::Key(_) => Ok(Given::User),
                Column::Tag(named, _) if named.is_under_key() => Err(refuse(start(expr), expr)),
                Column::Tag(named, _) => match catalogue.find(&named.tag) {
                    Some((number, _)) => Ok(Given::Tag(number)),
                    None => Err(refuse(start(expr), expr)),
                },
            };
        }
        match kind {
            Some(kind) => Ok(Given::Literal(set(kind, expr)?)),
            None => Err(refuse(start(expr), format_args!("{expr} as a user's id"))),
        }
    }
}

fn user_id(expr: &Expr) -> Result<UserId, QueryError> {
    match literal(expr)? {
        TagValue::Text(text) if !text.is_empty() => Ok(UserId::from(text)),
        TagValue::Int(n) if n >= 0 => Ok(UserId::from(n as u64)),
        TagValue::UInt(n) => Ok(UserId::from(n)),
        other => Err(refuse(start(expr), format_args!("{other} as a user's id"))),
    }
}

fn is_null(expr: &Expr) -> bool {
    match expr {
        Expr::Value(v) => matches!(v.value, Value::Null),
        Expr::Identifier(ident) => ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default"),
        Expr::Nested(inner) => is_null(inner),
        _ => false,
    }
}

/// Gives a tag a literal's value, or takes its value away for NULL.
fn set(kind: TagType, expr: &Expr) -> Result<Delta, QueryError> {
    if is_null(expr) {
        return Ok(Delta::Unset);
    }
    let no = |piece: &dyn std::fmt::Display| {
        refuse(start(expr), format_args!("{piece} as a value of type {kind}"))
    };
    let elements = || -> Result<Vec<TagValue>, QueryError> {
        if let Some(list) = array(expr) {
            return list.into_iter().map(literal).collect();
        }
        let (all, list) = json(expr)?;
        if !list {
            return Err(no(&expr));
        }
        all.iter().map(|one| super::super::json::value(one).ok_or_else(|| no(one))).collect()
    };
    Ok(Delta::Set(match kind {
        TagType::Set => {
            let texts = elements()?.into_iter().map(|value| match value {
                TagValue::Text(text) => Ok(text),
                other => Err(no(&other)),
            });
            TagValue::Set(texts.collect::<Result<_, _>>()?)
        }
        TagType::IntSet => {
            let numbers = elements()?.into_iter().map(|value| match value {
                TagValue::Int(n) => Ok(n),
                other => Err(no(&other)),
            });
            TagValue::IntSet(numbers.collect::<Result<_, _>>()?)
        }
        TagType::Map => TagValue::Map(map(expr).ok_or_else(|| no(&expr))?),
        _ => {
            let value = literal(expr)?;
            match (kind, value) {
                (TagType::Enum, value @ (TagValue::Int(_) | TagValue::UInt(_))) => {
                    TagValue::Text(value.to_string())
                }
                (TagType::Bool, TagValue::Int(n @ (0 | 1))) => TagValue::Bool(n == 1),
                (TagType::Bool, TagValue::Text(text)) => match text.to_ascii_lowercase().as_str() {
                    "true" => TagValue::Bool(true),
                    "false" => TagValue::Bool(false),
                    _ => return Err(no(&expr)),
                },
                (
                    TagType::Int | TagType::UInt | TagType::Float | TagType::Decimal(_),
                    TagValue::Text(text),
                ) => numeral(text.trim()).ok_or_else(|| no(&expr))?,
                (_, value) => value,
            }
        }
    }))
}

/// `map('k', 1, 'l', 'x')`, or a JSON object as a text.
fn map(expr: &Expr) -> Option<BTreeMap<String, TagValue>> {
    if let Expr::Function(f) = expr
        && f.name.to_string().eq_ignore_ascii_case("map")
    {
        let arguments = arguments(f)?;
        let (pairs, []) = arguments.as_chunks::<2>() else { return None };
        let pair = |[key, value]: &[&Expr; 2]| match literal(key).ok()? {
            TagValue::Text(key) => Some((key, entry(literal(value).ok()?))),
            _ => None,
        };
        return pairs.iter().map(pair).collect();
    }
    let TagValue::Text(text) = literal(expr).ok()? else { return None };
    let object: BTreeMap<String, serde_json::Value> = serde_json::from_str(&text).ok()?;
    let pairs = object.into_iter().map(|(key, value)| Some((key, super::super::json::value(&value)?)));
    pairs.collect()
}

/// A number with digits behind the point is a float in a map.
fn entry(value: TagValue) -> TagValue {
    match value {
        TagValue::Decimal(n) => n.to_string().parse::<f64>().map_or(TagValue::Decimal(n), TagValue::from),
        other => other,
    }
}

/// Who has a row in a table and matches a condition on it.
fn matching(
    catalogue: &Catalogue,
    table: &TableWithJoins,
    condition: Option<&Expr>,
    notes: &mut Vec<String>,
) -> Result<(String, Predicate), QueryError> {
    let (TableFactor::Table { name, alias, .. }, true) = (&table.relation, table.joins.is_empty()) else {
        return Err(refuse(table.span().start, table));
    };
    let of = known_table(catalogue, name)?;
    let alias = alias.as_ref().map_or_else(|| of.clone(), |alias| alias.name.value.clone());
    let scope = Scope::Tables(catalogue, vec![Source { table: of.clone(), alias }]);
    let there = row(catalogue, &of);
    let subquery = |query: &sqlparser::ast::Query, notes: &mut Vec<String>| {
        super::statement::subquery(catalogue, query, notes)
    };
    let predicate = match condition {
        Some(condition) => {
            let mut reading = Conditions { scope: &scope, notes, subquery: Some(&subquery) };
            reading.read(condition, false)?.and(there)
        }
        None => there,
    };
    Ok((of, predicate))
}

fn each(
    snapshot: &Snapshot,
    predicate: &Predicate,
    deltas: &[(String, Delta)],
) -> Result<Vec<ProfileUpdate>, QueryError> {
    let mut updates = Vec::new();
    snapshot.each_match(predicate, Page::first(MOST_USERS + 1), |_, _, user| {
        let update = ProfileUpdate::of(user.clone());
        updates.push(
            deltas.iter().fold(update, |update, (tag, delta)| update.delta(tag.clone(), delta.clone())),
        );
    })?;
    if updates.len() > MOST_USERS {
        return Err(too_many(sqlparser::tokenizer::Location { line: 1, column: 1 }));
    }
    Ok(updates)
}

fn updated(
    snapshot: &Snapshot,
    update: &Update,
    notes: &mut Vec<String>,
) -> Result<Vec<ProfileUpdate>, QueryError> {
    let catalogue = snapshot.catalogue();
    let place = update.table.span().start;
    let odd = [
        (update.from.is_some(), "UPDATE … FROM"),
        (update.returning.is_some(), "RETURNING"),
        (!update.order_by.is_empty() || update.limit.is_some(), "ORDER BY or LIMIT of an UPDATE"),
    ];
    if let Some((_, what)) = odd.iter().find(|(is, _)| *is) {
        return Err(refuse(place, what));
    }
    let (table, predicate) = matching(catalogue, &update.table, update.selection.as_ref(), notes)?;
    let alone = update.assignments.len() == 1;
    let mut deltas = Vec::new();
    for assignment in &update.assignments {
        let AssignmentTarget::ColumnName(name) = &assignment.target else {
            return Err(refuse(place, &assignment.target));
        };
        let Some((tag, kind)) = whole(catalogue, &table, name)? else {
            return Err(refuse(
                name.span().start,
                format_args!("a change of '{}', the user's id", catalogue.key),
            ));
        };
        match grown(&assignment.value, name) {
            // Of nothing plus a number SQL makes nothing: of those who have none, nothing is changed.
            Some(by) if alone => {
                let there = Predicate::leaf(tag.as_str().into(), Test::Exists);
                return each(snapshot, &predicate.and(there), &[(tag, Delta::Increment(by?))]);
            }
            Some(_) => {
                return Err(refuse(start(&assignment.value), "tag + number beside other assignments"));
            }
            None => deltas.push((tag, set(kind, &assignment.value)?)),
        }
    }
    each(snapshot, &predicate, &deltas)
}

/// What is added to a tag by `tag + 1` or `tag - 1`; nothing if it is something else.
fn grown(expr: &Expr, name: &ObjectName) -> Option<Result<TagValue, QueryError>> {
    let Expr::BinaryOp { left, op, right } = expr else { return None };
    let is_tag =
        matches!(&**left, Expr::Identifier(ident) if name.0.last().and_then(|p| p.as_ident()) == Some(ident));
    if !is_tag {
        return None;
    }
    let text = match (op, literal(right)) {
        (_, Err(error)) => return Some(Err(error)),
        (BinaryOperator::Plus, Ok(by)) => return Some(Ok(by)),
        (BinaryOperator::Minus, Ok(by)) => by.to_string(),
        _ => return None,
    };
    let negative = match text.strip_prefix('-') {
        Some(positive) => positive.to_owned(),
        None => format!("-{text}"),
    };
    Some(numeral(&negative).ok_or_else(|| refuse(start(right), right)))
}

fn deleted(
    snapshot: &Snapshot,
    delete: &Delete,
    notes: &mut Vec<String>,
) -> Result<Vec<ProfileUpdate>, QueryError> {
    let catalogue = snapshot.catalogue();
    let (FromTable::WithFromKeyword(tables) | FromTable::WithoutKeyword(tables)) = &delete.from;
    let [table] = tables.as_slice() else {
        return Err(refuse(delete.span().start, "DELETE from several tables"));
    };
    let place = table.span().start;
    let odd = [
        (delete.using.is_some() || !delete.tables.is_empty(), "DELETE … USING"),
        (delete.returning.is_some(), "RETURNING"),
        (!delete.order_by.is_empty() || delete.limit.is_some(), "ORDER BY or LIMIT of a DELETE"),
    ];
    if let Some((_, what)) = odd.iter().find(|(is, _)| *is) {
        return Err(refuse(place, what));
    }
    let (table, predicate) = matching(catalogue, table, delete.selection.as_ref(), notes)?;
    let tags = catalogue.columns(&table).map(|(name, ..)| (catalogue.tag_of(&table, name), Delta::Unset));
    each(snapshot, &predicate, &tags.collect::<Vec<_>>())
}
