//! Statements that read: SELECT of a count or of rows over tables joined on the user's id, SHOW TABLES and SEGMENTS, DESCRIBE.
//! (over 400 lines: one statement's parts are read in one place, most of them to be refused by name.)

use super::super::catalogue::Catalogue;
use super::super::error::QueryError;
use super::super::predicate::Predicate;
use super::super::reader::{Answer, Page, Snapshot};
use super::super::update::TagValue;
use super::super::user::UserId;
use super::condition::Conditions;
use super::scope::{Column, Scope, Source, implies_row, row};
use super::text::{Command, at, start, statement, unsupported};
use serde::Serialize;
use sqlparser::ast::{
    BinaryOperator, Distinct, DuplicateTreatment, Expr, FunctionArg, FunctionArgExpr, FunctionArguments,
    GroupByExpr, JoinConstraint, JoinOperator, LimitClause, ObjectName, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, Spanned, Statement, TableFactor, Value,
};
use sqlparser::tokenizer::Location;

const SUPPORTED: &str = "SELECT count(*) or the user's id and tags FROM a table, or tables joined on the user's id (a, b WHERE \
     a.id = b.id; JOIN … ON; JOIN … USING), with WHERE, LIMIT and OFFSET; SHOW TABLES; SHOW SEGMENTS; DESCRIBE a table";
/// What changes something, where only reading is done.
const READING: &str = "statements that read; others go to Profiles::sql, over HTTP to POST /sql";

/// Rows that one answer has at most.
const MOST_ROWS: usize = 10_000;
/// Columns that one answer has at most.
const MOST_COLUMNS: usize = 1_000;
/// Values that one answer has at most: elements of sets and entries of maps counted, and 16 bytes of a text like one more.
const MOST_VALUES: usize = 1_000_000;
/// Tables that one statement joins at most.
const MOST_TABLES: usize = 16;

/// What a statement gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rows {
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows, each with a value or nothing for every column. A user's id that is a number is an int, else a text.
    pub rows: Vec<Vec<Option<TagValue>>>,
    /// How the text was read where it was not taken literally, and whether rows were left out.
    pub notes: Vec<String>,
}

impl Rows {
    /// The count that a `SELECT count(*)` gave.
    pub fn count(&self) -> Option<u64> {
        match self.rows.as_slice() {
            [row] => match row.as_slice() {
                [Some(TagValue::Int(n))] => u64::try_from(*n).ok(),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The answer to a statement, and the version it is true of.
pub type SqlAnswer = Answer<Rows>;

/// A statement that was read.
#[derive(Debug)]
enum Read {
    Count { predicate: Predicate, name: String },
    Rows { predicate: Predicate, columns: Vec<Shown>, page: Page, limited: bool },
    Given(Rows),
}

/// A column of the result.
#[derive(Debug, Clone)]
struct Shown {
    name: String,
    /// The tag's number; nothing for the user's id.
    tag: Option<u32>,
}

impl Snapshot {
    /// Answers a statement in SQL: `SELECT`, `SHOW TABLES` or `DESCRIBE`, in the forms of ClickHouse, MySQL and TiDB.
    ///
    /// A tag `b.score` is column `score` of table `b`, a tag without a point a column of the table of the space's name; the user's id is
    /// [`Profiles::key_column`](crate::profile::Profiles::key_column). A user has a row in a table while any of its tags has a value.
    /// A comparison with nothing is unknown, `not` of it too. `docs/profiles.md` has all forms and a truth table.
    ///
    /// ```
    /// use weir_state::profile::{ProfileUpdate, Profiles, TagType};
    /// let profiles = Profiles::named("crowd").key_column("uuid").tag("b.score", TagType::Float).tag("b.watched", TagType::Set);
    /// let mut writer = profiles.writer(0..profiles.key_groups(), 1)?;
    /// writer.apply(ProfileUpdate::of(7u64).at(1).set("b.score", 0.3).add("b.watched", "TSLA"))?;
    /// writer.publish(1);
    /// let answer = profiles.reader().sql("select count() from b where score > 0.2 and hasAny(watched, ['TSLA'])")?;
    /// assert_eq!(answer.value.count(), Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`QueryError`], with the line and column where what it is about begins: no SQL, or SQL that is not supported (and what is); an unknown
    /// table or tag; a condition that does not fit its tag's type; a text that is too long, too deep, or asks for over 10,000 rows.
    pub fn sql(&self, text: &str) -> Result<SqlAnswer, QueryError> {
        self.read(&statement(text)?)
    }

    /// Answers a statement that reads.
    pub(super) fn read(&self, command: &Command) -> Result<SqlAnswer, QueryError> {
        let mut notes = Vec::new();
        let mut rows = match read(self.catalogue(), command, &mut notes)? {
            Read::Given(rows) => rows,
            Read::Count { predicate, name } => {
                let count = self.count(&predicate)?.value;
                let rows = vec![vec![Some(TagValue::from(count))]];
                Rows { columns: vec![name], rows, notes: Vec::new() }
            }
            Read::Rows { predicate, columns, page, limited } => {
                let mut rows: Vec<Vec<Option<TagValue>>> = Vec::new();
                let (mut values, mut more, mut large) = (0, false, None);
                // One more than there may be shows whether there are more.
                let asked = Page { limit: page.limit + usize::from(!limited), ..page };
                self.each_match(&predicate, asked, |group, local, user| {
                    more |= rows.len() == page.limit;
                    if more {
                        return;
                    }
                    let mut row = Vec::with_capacity(columns.len());
                    for column in &columns {
                        let cell = match column.tag {
                            None => Some(id(user)),
                            Some(tag) => self.value(group, local, tag),
                        };
                        // After each cell: one row can have a thousand, each a whole set.
                        values += size(&cell);
                        if values > MOST_VALUES {
                            more = true;
                            large = rows.is_empty().then(|| user.clone());
                            return;
                        }
                        row.push(cell);
                    }
                    rows.push(row);
                })?;
                if let Some(user) = large {
                    return Err(QueryError::RowTooLarge { user, limit: MOST_VALUES });
                }
                if more {
                    notes.push(format!("only the first {} rows: go on with LIMIT and OFFSET", rows.len()));
                }
                Rows { columns: columns.into_iter().map(|c| c.name).collect(), rows, notes: Vec::new() }
            }
        };
        rows.notes = notes;
        Ok(self.answer(rows))
    }
}

/// How many values a cell counts for.
fn size(cell: &Option<TagValue>) -> usize {
    let text = |text: &str| text.len() / 16;
    let entry = |(key, value): (&String, &TagValue)| 1 + text(key) + value.as_text().map_or(0, text);
    1 + match cell {
        Some(TagValue::Text(one)) => text(one),
        Some(TagValue::Set(all)) => all.iter().map(|t| 1 + text(t)).sum(),
        Some(TagValue::IntSet(all)) => all.len(),
        Some(TagValue::Map(all)) => all.iter().map(entry).sum(),
        _ => 0,
    }
}

fn id(user: &UserId) -> TagValue {
    match user {
        UserId::Number(n) => TagValue::from(*n),
        UserId::Text(text) => TagValue::Text(text.to_string()),
    }
}

fn refuse(place: Location, piece: impl std::fmt::Display) -> QueryError {
    at(place, unsupported(piece, SUPPORTED))
}

fn read(catalogue: &Catalogue, command: &Command, notes: &mut Vec<String>) -> Result<Read, QueryError> {
    let text = |text: &str| Some(TagValue::from(text));
    let statement = match command {
        Command::Statement(statement) => &**statement,
        Command::ShowSegments => {
            let row = |(name, condition): (&std::sync::Arc<str>, &Predicate)| {
                vec![text(name), text(&condition.to_json().to_string())]
            };
            let rows = catalogue.segments().map(row).collect();
            return Ok(Read::Given(Rows {
                columns: vec!["name".into(), "condition".into()],
                rows,
                notes: Vec::new(),
            }));
        }
        Command::PutSegment { name, .. } | Command::DropSegment { name, .. } => {
            return Err(at(
                name.span.start,
                unsupported(format_args!("a change of segment {name}"), READING),
            ));
        }
    };
    match statement {
        Statement::Query(query) => select(catalogue, query, notes),
        Statement::ShowTables {
            terse: false,
            history: false,
            extended: false,
            full: false,
            external: false,
            show_options,
        } if show_options.show_in.is_none() && show_options.filter_position.is_none() => {
            let rows = catalogue.tables().into_iter().map(|table| vec![Some(TagValue::from(table))]);
            Ok(Read::Given(Rows { columns: vec!["name".into()], rows: rows.collect(), notes: Vec::new() }))
        }
        Statement::ExplainTable { hive_format: None, table_name, .. } => {
            let table = known_table(catalogue, table_name)?;
            let mut rows = vec![vec![text(&catalogue.key), text("user id")]];
            for (name, kind, _) in catalogue.columns(&table) {
                rows.push(vec![text(name), text(&kind.to_string())]);
            }
            Ok(Read::Given(Rows { columns: vec!["name".into(), "type".into()], rows, notes: Vec::new() }))
        }
        other => {
            let changes = matches!(
                other,
                Statement::AlterTable(_)
                    | Statement::CreateTable(_)
                    | Statement::Insert(_)
                    | Statement::Update(_)
                    | Statement::Delete(_)
            );
            let first = other.to_string();
            let verb = first.split_whitespace().next().unwrap_or("this");
            let supported = if changes { READING } else { SUPPORTED };
            Err(at(Location { line: 1, column: 1 }, unsupported(format_args!("{verb} …"), supported)))
        }
    }
}

/// The table of a name; a database before it does not matter.
pub(super) fn known_table(catalogue: &Catalogue, name: &ObjectName) -> Result<String, QueryError> {
    let last = name.0.last().and_then(|part| part.as_ident());
    let Some(ident) = last else { return Err(refuse(name.span().start, name)) };
    let tables = catalogue.tables();
    if tables.contains(&ident.value.as_str()) {
        return Ok(ident.value.clone());
    }
    let known = if tables.is_empty() { "none".to_owned() } else { tables.join(", ") };
    Err(at(ident.span.start, QueryError::UnknownTable { table: ident.value.clone(), known }))
}

/// The one SELECT that a query is, without what is not supported.
pub(super) fn plain(query: &Query) -> Result<&Select, QueryError> {
    let place = query.span().start;
    let refused = [
        (query.with.is_some(), "WITH"),
        (query.fetch.is_some(), "FETCH"),
        (!query.locks.is_empty(), "FOR UPDATE or SHARE"),
        (query.for_clause.is_some(), "FOR"),
        (query.format_clause.is_some(), "FORMAT"),
        (!query.pipe_operators.is_empty(), "a pipe operator"),
    ];
    if let Some((_, what)) = refused.iter().find(|(is, _)| *is) {
        return Err(refuse(place, what));
    }
    if let Some(order) = &query.order_by {
        return Err(refuse(order.span().start, "ORDER BY"));
    }
    let select = match &*query.body {
        SetExpr::Select(select) => select,
        other => return Err(refuse(other.span().start, other)),
    };
    let refused = [
        (select.top.is_some(), "TOP"),
        (matches!(select.distinct, Some(Distinct::On(_))), "DISTINCT ON"),
        (select.exclude.is_some(), "EXCLUDE"),
        (select.into.is_some(), "INTO"),
        (!select.lateral_views.is_empty(), "LATERAL VIEW"),
        (!select.connect_by.is_empty(), "CONNECT BY"),
        (!select.cluster_by.is_empty() || !select.distribute_by.is_empty(), "CLUSTER BY or DISTRIBUTE BY"),
        (!select.sort_by.is_empty(), "SORT BY"),
        (!select.named_window.is_empty() || select.qualify.is_some(), "WINDOW or QUALIFY"),
        (select.value_table_mode.is_some(), "AS VALUE"),
    ];
    if let Some((_, what)) = refused.iter().find(|(is, _)| *is) {
        return Err(refuse(select.span().start, what));
    }
    match &select.group_by {
        GroupByExpr::Expressions(all, with) if all.is_empty() && with.is_empty() => {}
        GroupByExpr::Expressions(all, _) => {
            return Err(refuse(all.first().map_or(place, start), "GROUP BY"));
        }
        GroupByExpr::All(_) => return Err(refuse(place, "GROUP BY ALL")),
    }
    if let Some(having) = &select.having {
        return Err(refuse(start(having), "HAVING"));
    }
    Ok(select)
}

fn select(catalogue: &Catalogue, query: &Query, notes: &mut Vec<String>) -> Result<Read, QueryError> {
    let select = plain(query)?;
    if query.settings.is_some() {
        notes.push("SETTINGS are of no effect".to_owned());
    }
    let (predicate, scope) = from_where(catalogue, select, notes)?;
    if let [item] = select.projection.as_slice()
        && let Some(name) = counted(item, &scope)
    {
        if let Some(limit) = &query.limit_clause {
            // A count is one row, which any limit but 0 leaves; an offset does not.
            let (page, _) = page(limit)?;
            if page.offset > 0 || page.limit == 0 {
                return Err(refuse(limit.span().start, "LIMIT 0 or OFFSET of a count"));
            }
        }
        return Ok(Read::Count { predicate, name });
    }
    let columns = columns(select, &scope)?;
    if matches!(select.distinct, Some(Distinct::Distinct)) && columns.iter().all(|c| c.tag.is_some()) {
        return Err(refuse(select.span().start, "DISTINCT without the user's id"));
    }
    let (page, limited) = match &query.limit_clause {
        Some(limit) => page(limit)?,
        None => (Page::first(MOST_ROWS), false),
    };
    Ok(Read::Rows { predicate, columns, page, limited })
}

/// Which rows, and whether the text said how many at most.
fn page(limit: &LimitClause) -> Result<(Page, bool), QueryError> {
    let number = |expr: &Expr| match expr {
        Expr::Value(v) => match &v.value {
            Value::Number(n, _) => n.parse::<u64>().map_err(|_| refuse(start(expr), expr)),
            _ => Err(refuse(start(expr), expr)),
        },
        _ => Err(refuse(start(expr), expr)),
    };
    let (limit, offset) = match limit {
        LimitClause::LimitOffset { limit, offset, limit_by } => {
            if let Some(by) = limit_by.first() {
                return Err(refuse(start(by), "LIMIT BY"));
            }
            (limit.as_ref(), offset.as_ref().map(|offset| &offset.value))
        }
        LimitClause::OffsetCommaLimit { offset, limit } => (Some(limit), Some(offset)),
    };
    let rows = match limit {
        None => None,
        Some(expr) => match number(expr)? {
            n if n > MOST_ROWS as u64 => {
                let what = "a LIMIT of";
                let size = usize::try_from(n).unwrap_or(usize::MAX);
                return Err(at(start(expr), QueryError::TooLarge { what, size, limit: MOST_ROWS }));
            }
            n => Some(n as usize),
        },
    };
    let offset = offset.map(number).transpose()?.unwrap_or(0);
    Ok((Page { offset, limit: rows.unwrap_or(MOST_ROWS) }, rows.is_some()))
}

/// FROM and WHERE: who is asked for, and where names are looked up.
pub(super) fn from_where<'a>(
    catalogue: &'a Catalogue,
    select: &Select,
    notes: &mut Vec<String>,
) -> Result<(Predicate, Scope<'a>), QueryError> {
    let (mut sources, mut conditions, mut using) = (Vec::new(), Vec::new(), Vec::new());
    for from in &select.from {
        sources.push(source(catalogue, &from.relation)?);
        enough(&sources, &from.relation)?;
        for join in &from.joins {
            let constraint = match &join.join_operator {
                JoinOperator::Join(on) | JoinOperator::Inner(on) | JoinOperator::CrossJoin(on)
                    if !join.global =>
                {
                    on
                }
                _ => return Err(refuse(join.span().start, join)),
            };
            sources.push(source(catalogue, &join.relation)?);
            enough(&sources, &join.relation)?;
            match constraint {
                JoinConstraint::On(expr) => conditions.push(expr),
                JoinConstraint::None => {}
                JoinConstraint::Using(columns) => match columns.as_slice() {
                    [one] if one.to_string() == *catalogue.key => using.push(sources.len() - 1),
                    _ => return Err(refuse(join.span().start, join)),
                },
                _ => return Err(refuse(join.span().start, join)),
            }
        }
    }
    let place = select.span().start;
    if sources.is_empty() {
        return Err(refuse(place, "SELECT without FROM"));
    }
    for (i, source) in sources.iter().enumerate() {
        if sources[..i].iter().any(|s| s.alias == source.alias) {
            let reason = format!("two tables go by the name '{}': give one an alias", source.alias);
            return Err(at(place, QueryError::Syntax { reason }));
        }
    }
    let tables = sources.clone();
    let scope = Scope::Tables(catalogue, sources);
    conditions.extend(&select.prewhere);
    conditions.extend(&select.selection);

    // Conditions that hold together: those on the users' ids join tables, the others narrow.
    let mut parts = Vec::new();
    conditions.into_iter().for_each(|condition| conjuncts(condition, &mut parts));
    let mut joined: Vec<usize> = (0..tables.len()).collect();
    let mut join = |a: usize, b: usize| {
        let (a, b) = (joined[a], joined[b]);
        joined.iter_mut().filter(|root| **root == b).for_each(|root| *root = a);
    };
    using.into_iter().for_each(|at| join(at - 1, at));
    let subquery = |query: &Query, notes: &mut Vec<String>| subquery(catalogue, query, notes);
    let mut reading = Conditions { scope: &scope, notes, subquery: Some(&subquery) };
    let mut predicates = Vec::new();
    for part in parts {
        match on_ids(part, &scope) {
            Some((a, b)) => join(a, b),
            None => predicates.push(reading.read(part, false)?),
        }
    }
    if let Some(apart) = (1..tables.len()).find(|i| joined[*i] != joined[0]) {
        let (key, one, other) = (&catalogue.key, &tables[0].alias, &tables[apart].alias);
        let piece = format!("'{one}' and '{other}' without {one}.{key} = {other}.{key}");
        return Err(refuse(place, piece));
    }
    // Who is asked for has a row in every table; mostly the conditions say so already.
    let mut needed: Vec<&str> = Vec::new();
    for Source { table, .. } in &tables {
        if !needed.contains(&table.as_str()) && !predicates.iter().any(|p| implies_row(catalogue, p, table)) {
            needed.push(table);
        }
    }
    let all = predicates.into_iter().chain(needed.iter().map(|table| row(catalogue, table)));
    Ok((all.reduce(Predicate::and).unwrap_or_else(Predicate::all), scope))
}

/// Refuses the table that is one too many.
fn enough(sources: &[Source], last: &TableFactor) -> Result<(), QueryError> {
    if sources.len() <= MOST_TABLES {
        return Ok(());
    }
    let what = "a number of tables of";
    let error = QueryError::TooLarge { what, size: sources.len(), limit: MOST_TABLES };
    Err(at(last.span().start, error))
}

fn source(catalogue: &Catalogue, factor: &TableFactor) -> Result<Source, QueryError> {
    match factor {
        TableFactor::Table {
            name,
            alias,
            args: None,
            with_hints,
            version: None,
            sample: None,
            json_path: None,
            ..
        } if with_hints.is_empty() && alias.as_ref().is_none_or(|a| a.columns.is_empty()) => {
            let table = known_table(catalogue, name)?;
            let alias = alias.as_ref().map_or_else(|| table.clone(), |alias| alias.name.value.clone());
            Ok(Source { table, alias })
        }
        other => Err(refuse(other.span().start, other)),
    }
}

/// What an `and` of any shape holds together. Walked in a loop: it may be long.
fn conjuncts<'e>(expr: &'e Expr, into: &mut Vec<&'e Expr>) {
    let mut rest = vec![expr];
    while let Some(expr) = rest.pop() {
        match expr {
            Expr::Nested(inner) => rest.push(inner),
            Expr::BinaryOp { left, op: BinaryOperator::And, right } => rest.extend([&**right, &**left]),
            other => into.push(other),
        }
    }
}

/// The two tables whose users' ids a condition equates.
fn on_ids(expr: &Expr, scope: &Scope<'_>) -> Option<(usize, usize)> {
    let Expr::BinaryOp { left, op: BinaryOperator::Eq, right } = expr else { return None };
    match (scope.column(left), scope.column(right)) {
        (Ok(Column::Key(a)), Ok(Column::Key(b))) => Some((a, b)),
        _ => None,
    }
}

/// The users that `select key from …` gives.
pub(super) fn subquery(
    catalogue: &Catalogue,
    query: &Query,
    notes: &mut Vec<String>,
) -> Result<Predicate, QueryError> {
    let select = plain(query)?;
    if let Some(limit) = &query.limit_clause {
        return Err(refuse(limit.span().start, "LIMIT in a subquery"));
    }
    let (predicate, scope) = from_where(catalogue, select, notes)?;
    match columns(select, &scope)?.as_slice() {
        [Shown { tag: None, .. }] => Ok(predicate),
        _ => Err(refuse(select.span().start, "a subquery of anything but the user's id")),
    }
}

/// The name of a column that counts the rows, if that is what it does.
fn counted(item: &SelectItem, scope: &Scope<'_>) -> Option<String> {
    let (expr, name) = match item {
        SelectItem::UnnamedExpr(expr) => (expr, expr.to_string()),
        SelectItem::ExprWithAlias { expr, alias } => (expr, alias.value.clone()),
        _ => return None,
    };
    let Expr::Function(f) = expr else { return None };
    let called = f.name.to_string().to_ascii_lowercase();
    let FunctionArguments::List(list) = &f.args else { return None };
    if f.over.is_some() || f.filter.is_some() || !list.clauses.is_empty() {
        return None;
    }
    // Each user is one row, so the ids are distinct as they are.
    let distinct = matches!(list.duplicate_treatment, Some(DuplicateTreatment::Distinct));
    let all = match (called.as_str(), list.args.as_slice()) {
        ("count", [] | [FunctionArg::Unnamed(FunctionArgExpr::Wildcard)]) => !distinct,
        ("count", [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(v)))]) => {
            !distinct && matches!(v.value, Value::Number(..))
        }
        ("count" | "uniq" | "uniqexact", [FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))]) => {
            matches!(scope.column(expr), Ok(Column::Key(_)))
        }
        _ => false,
    };
    all.then_some(name)
}

fn columns(select: &Select, scope: &Scope<'_>) -> Result<Vec<Shown>, QueryError> {
    let Scope::Tables(catalogue, sources) = scope else { return Ok(Vec::new()) };
    let mut columns = Vec::new();
    let every = |source: &Source| {
        let key = Shown { name: catalogue.key.to_string(), tag: None };
        let tags = catalogue.columns(&source.table);
        let tags = tags.map(|(name, _, number)| Shown { name: name.to_owned(), tag: Some(number) });
        std::iter::once(key).chain(tags).collect::<Vec<_>>()
    };
    for item in &select.projection {
        if columns.len() > MOST_COLUMNS {
            break;
        }
        let (expr, alias) = match item {
            SelectItem::UnnamedExpr(expr) => (expr, None),
            SelectItem::ExprWithAlias { expr, alias } => (expr, Some(alias.value.clone())),
            SelectItem::Wildcard(_) => {
                sources.iter().for_each(|source| columns.extend(every(source)));
                continue;
            }
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) => {
                let Some(source) = sources.iter().find(|s| s.alias == name.to_string()) else {
                    return Err(refuse(item.span().start, item));
                };
                columns.extend(every(source));
                continue;
            }
            other => return Err(refuse(other.span().start, other)),
        };
        let (name, tag) = match (expr, scope.column(expr)) {
            (Expr::Function(_), _) => return Err(refuse(start(expr), expr)),
            (_, column) => match column? {
                Column::Key(_) => (catalogue.key.to_string(), None),
                Column::Tag(named, _) if named.is_under_key() => return Err(refuse(start(expr), expr)),
                Column::Tag(named, _) => {
                    let number = catalogue.find(&named.tag).map(|(number, _)| number);
                    (catalogue.split(&named.tag).1.to_owned(), number)
                }
            },
        };
        columns.push(Shown { name: alias.unwrap_or(name), tag });
    }
    if columns.len() > MOST_COLUMNS {
        let what = "a number of columns of at least";
        let error = QueryError::TooLarge { what, size: columns.len(), limit: MOST_COLUMNS };
        return Err(at(select.span().start, error));
    }
    Ok(columns)
}

#[cfg(test)]
#[path = "statement_tests.rs"]
mod tests;
