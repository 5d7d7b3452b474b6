//! Makes a WHERE clause a [`Predicate`]: comparisons, lists, ranges, prefixes and membership, in the forms of ClickHouse and MySQL.

use super::super::error::QueryError;
use super::super::eval;
use super::super::predicate::{Predicate, Test};
use super::super::update::{TagType, TagValue};
use super::super::user::UserId;
use super::calls::member as member_of;
use super::literal::{arguments, literal, numeral, prefix};
use super::scope::{Column, Named, Scope};
use super::text::{at, start, unsupported};
use sqlparser::ast::{BinaryOperator, Expr, InTarget, Query, UnaryOperator, Value};

pub(super) const SUPPORTED: &str = "and, or, not, parentheses, =, !=, <, <=, >, >=, between, in, like 'prefix%', is null, is not null on a tag and \
     literals, hasAny(tag, ['a']), hasAll(tag, ['a']), has(tag, 'a'), JSON_CONTAINS(tag, '\"a\"', '$'), \
     JSON_OVERLAPS(tag, '[\"a\"]'), 'a' MEMBER OF(tag), arrayExists(x -> x = 'a', tag), map['key'] or JSON_EXTRACT(map, '$.key') in place of a tag, mapContains(map, 'key'), length(tag) or JSON_LENGTH(tag) compared \
     with a number, empty(tag), notEmpty(tag), startsWith(tag, 'a'), segment('name'), true and false; texts in single quotes, numbers, dates as \
     '2026-11-30' or '2026-11-30 12:00:00' (UTC)";

/// Reads who `select key from …` gives, and notes.
pub(super) type Subquery<'a> = dyn Fn(&Query, &mut Vec<String>) -> Result<Predicate, QueryError> + 'a;

/// Reads conditions in one scope.
pub(super) struct Conditions<'a> {
    pub(super) scope: &'a Scope<'a>,
    /// What the asker should know about how the text was read; each once.
    pub(super) notes: &'a mut Vec<String>,
    /// Makes `key in (select …)` a predicate; nothing where there are no subqueries.
    pub(super) subquery: Option<&'a Subquery<'a>>,
}

impl Conditions<'_> {
    /// Reads a condition, or its contrary.
    ///
    /// In SQL what a comparison says of nothing is unknown, and so is the contrary: so a `not` is carried down to the leaves, each of which
    /// needs a value. Where names are bare tags, `not` is all other users; see [`crate::profile`].
    pub(super) fn read(&mut self, expr: &Expr, not: bool) -> Result<Predicate, QueryError> {
        let of = |predicate: Predicate| if not { !predicate } else { predicate };
        match expr {
            Expr::Nested(inner) => self.read(inner, not),
            Expr::UnaryOp { op: UnaryOperator::Not, expr } => {
                if self.scope.three_valued() {
                    self.read(expr, !not)
                } else {
                    Ok(!self.read(expr, false)?)
                }
            }
            Expr::BinaryOp { op: op @ (BinaryOperator::And | BinaryOperator::Or), .. } => {
                self.chain(expr, op, not)
            }
            Expr::BinaryOp { left, op, right } => self.comparison(left, op, right, not),
            Expr::Between { expr, negated, low, high } => {
                let (from, to) = (literal(low)?, literal(high)?);
                let Column::Tag(name, kind) = self.scope.column(expr)? else {
                    return Err(self.refuse(expr, "a range of user ids"));
                };
                let from = self.compared(kind, from, low, true)?;
                let to = self.compared(kind, to, high, true)?;
                if !negated {
                    return self.leaf(name, kind, Test::Between(from, to), expr, not);
                }
                // Below or above, as SQL says: so a NaN, which is neither, is not found.
                let below = self.leaf(name.clone(), kind, Test::Lt(from), expr, false)?;
                let outside = below.or(self.leaf(name.clone(), kind, Test::Gt(to), expr, false)?);
                Ok(if not { name.leaf(Test::Exists).and(!outside) } else { outside })
            }
            Expr::In { expr, target: InTarget::List(list), negated, global: false } => {
                let column = self.scope.column(expr)?;
                let values = list.iter().map(literal).collect::<Result<Vec<_>, _>>()?;
                self.listed(column, values, list, expr, *negated != not)
            }
            Expr::In { expr, target: InTarget::Subquery(query), negated, .. } => {
                match (self.subquery, self.scope.column(expr)) {
                    (Some(read), Ok(Column::Key(_))) => {
                        let users = read(query, self.notes)?;
                        Ok(if *negated != not { !users } else { users })
                    }
                    _ => Err(self.refuse(expr, format_args!("in ({query})"))),
                }
            }
            Expr::IsNull(inner) | Expr::IsNotNull(inner) => {
                let missing = matches!(expr, Expr::IsNull(_)) != not;
                Ok(match self.scope.column(inner)? {
                    Column::Key(_) => {
                        if missing {
                            !Predicate::all()
                        } else {
                            Predicate::all()
                        }
                    }
                    Column::Tag(name, _) => {
                        let there = name.leaf(Test::Exists);
                        if missing { !there } else { there }
                    }
                })
            }
            // What is unknown is not true, and that is known.
            // Again and again says no more, and is not bounded by the parser: walked in a loop.
            Expr::IsTrue(inner) => {
                let mut inner = inner;
                while let Expr::IsTrue(deeper) | Expr::Nested(deeper) = &**inner {
                    inner = deeper;
                }
                Ok(of(self.read(inner, false)?))
            }
            Expr::Like { negated, any: false, expr, pattern, escape_char: None } => {
                self.like(expr, pattern, *negated != not)
            }
            Expr::MemberOf(member) => {
                let value = literal(&member.value)?;
                let (name, kind) = self.tag(&member.array)?;
                let Some(element) = member_of(&value) else {
                    return Err(self.refuse(&member.value, format_args!("{value} as an element")));
                };
                self.leaf(name, kind, Test::HasAny(vec![element]), expr, not)
            }
            Expr::Function(f) => self.call(f, expr, not),
            Expr::Value(v) => match &v.value {
                Value::Boolean(yes) => Ok(of(if *yes { Predicate::all() } else { !Predicate::all() })),
                Value::Number(n, _) if self.scope.three_valued() && (n == "1" || n == "0") => {
                    Ok(of(if n == "1" { Predicate::all() } else { !Predicate::all() }))
                }
                _ => Err(self.refuse(expr, expr)),
            },
            // A bool tag alone is a condition.
            Expr::Identifier(_) | Expr::CompoundIdentifier(_) if self.scope.three_valued() => {
                match self.scope.column(expr)? {
                    Column::Tag(name, kind @ Some(TagType::Bool)) => {
                        self.leaf(name, kind, Test::In(vec![TagValue::Bool(true)]), expr, not)
                    }
                    _ => Err(self.refuse(expr, format_args!("{expr} as a condition"))),
                }
            }
            _ => Err(self.refuse(expr, expr)),
        }
    }

    pub(super) fn refuse(&self, place: &Expr, piece: impl std::fmt::Display) -> QueryError {
        at(start(place), unsupported(piece, SUPPORTED))
    }

    /// A leaf, or its contrary among those who have a value.
    pub(super) fn leaf(
        &self,
        name: Named,
        kind: Option<TagType>,
        test: Test,
        place: &Expr,
        not: bool,
    ) -> Result<Predicate, QueryError> {
        if let Some(kind) = kind
            && !eval::fits(kind, &name.test(test.clone()))
        {
            let (condition, tag) = (test.to_string(), name.tag.to_string());
            let problem = QueryError::Mismatch { condition, tag, is: kind, takes: eval::takes(kind) };
            return Err(at(start(place), problem));
        }
        let leaf = name.leaf(test);
        Ok(if not { name.leaf(Test::Exists).and(!leaf) } else { leaf })
    }

    /// A run of ands or of ors leans to the left and may be long: walked in a loop, not by recursion.
    fn chain(&mut self, expr: &Expr, run: &BinaryOperator, not: bool) -> Result<Predicate, QueryError> {
        let (mut parts, mut rest) = (Vec::new(), expr);
        while let Expr::BinaryOp { left, op, right } = rest {
            if op != run {
                break;
            }
            parts.push(&**right);
            rest = left;
        }
        let and = (*run == BinaryOperator::And) != not;
        let mut done = self.read(rest, not)?;
        for part in parts.iter().rev() {
            let part = self.read(part, not)?;
            done = if and { done.and(part) } else { done.or(part) };
        }
        Ok(done)
    }

    fn comparison(
        &mut self,
        left: &Expr,
        op: &BinaryOperator,
        right: &Expr,
        not: bool,
    ) -> Result<Predicate, QueryError> {
        use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
        let flipped = match op {
            Eq | NotEq => op,
            Lt => &Gt,
            LtEq => &GtEq,
            Gt => &Lt,
            GtEq => &LtEq,
            _ => return Err(self.refuse(left, format_args!("operator {op}"))),
        };
        let literal_first = matches!(left, Expr::Value(_) | Expr::UnaryOp { op: UnaryOperator::Minus, .. });
        let (tag, op, value) = if literal_first { (right, flipped, left) } else { (left, op, right) };
        if let Some((name, kind)) = self.length(tag)? {
            return self.sized(name, kind, op, value, not);
        }
        let (column, bound) = (self.scope.column(tag)?, literal(value)?);
        let (name, kind, bound) = match column {
            Column::Key(_) if matches!(op, Eq | NotEq) => {
                return self.listed(
                    column,
                    vec![bound],
                    std::slice::from_ref(value),
                    tag,
                    (*op == NotEq) != not,
                );
            }
            Column::Key(_) => return Err(self.refuse(tag, "a range of user ids")),
            Column::Tag(name, kind) => {
                let bound = self.compared(kind, bound, value, !matches!(op, Eq | NotEq))?;
                (name, kind, bound)
            }
        };
        let test = match op {
            Eq => Test::In(vec![bound]),
            NotEq => Test::NotIn(vec![bound]),
            Lt => Test::Lt(bound),
            LtEq => Test::Le(bound),
            Gt => Test::Gt(bound),
            _ => Test::Ge(bound),
        };
        self.leaf(name, kind, test, tag, not)
    }

    /// `in`, and `=` on a user's id.
    fn listed(
        &mut self,
        column: Column,
        values: Vec<TagValue>,
        written: &[Expr],
        place: &Expr,
        not: bool,
    ) -> Result<Predicate, QueryError> {
        match column {
            Column::Key(_) => {
                // An id of digits is the user of that number and the one of that name, as in a column of either type.
                let mut users = Vec::with_capacity(values.len());
                for (value, written) in values.into_iter().zip(written) {
                    let number = match &value {
                        TagValue::Text(text) => {
                            users.push(UserId::from(text.as_str()));
                            text.parse::<u64>().ok().filter(|n| n.to_string() == *text)
                        }
                        TagValue::Int(n) if *n >= 0 => Some(*n as u64),
                        TagValue::UInt(n) => Some(*n),
                        other => return Err(self.refuse(written, format_args!("{other} as a user id"))),
                    };
                    if let Some(number) = number {
                        users.push(UserId::from(number));
                        users.push(UserId::from(number.to_string()));
                    }
                }
                let users = Predicate::users(users);
                Ok(if not { !users } else { users })
            }
            Column::Tag(name, kind) => {
                let compared =
                    |(value, written): (TagValue, &Expr)| self.compared(kind, value, written, false);
                let values = values.into_iter().zip(written).map(compared).collect::<Result<_, _>>()?;
                let test = if not { Test::NotIn(values) } else { Test::In(values) };
                self.leaf(name, kind, test, place, false)
            }
        }
    }

    /// A value as a tag of this type compares with it, where the type is known; `ordered` says that it is not only for equality.
    ///
    /// Converts where ClickHouse and MySQL would and mean the same by it; refuses where one of them would answer otherwise.
    fn compared(
        &mut self,
        kind: Option<TagType>,
        value: TagValue,
        written: &Expr,
        ordered: bool,
    ) -> Result<TagValue, QueryError> {
        let Some(kind) = kind else { return Ok(value) };
        let converted = match (kind, &value) {
            (TagType::Enum, TagValue::Int(_) | TagValue::UInt(_)) if !ordered => {
                TagValue::Text(value.to_string())
            }
            (
                TagType::Enum,
                TagValue::Int(_) | TagValue::UInt(_) | TagValue::Decimal(_) | TagValue::Float(_),
            ) => {
                return Err(
                    self.refuse(written, format_args!("{value} compared with texts (write '{value}')"))
                );
            }
            // Seconds to ClickHouse, digits of a date to MySQL.
            (
                TagType::Date | TagType::Timestamp,
                TagValue::Int(_) | TagValue::UInt(_) | TagValue::Decimal(_) | TagValue::Float(_),
            ) => {
                let piece = format_args!("{value} as a date or moment (write it as '2026-11-30 12:00:00')");
                return Err(self.refuse(written, piece));
            }
            (TagType::Bool, TagValue::Int(n @ (0 | 1))) => TagValue::Bool(*n == 1),
            (TagType::Bool, TagValue::Text(t)) => match t.to_ascii_lowercase().as_str() {
                "true" | "1" => TagValue::Bool(true),
                "false" | "0" => TagValue::Bool(false),
                _ => return Err(self.refuse(written, format_args!("{value} as a truth value"))),
            },
            (TagType::Int | TagType::UInt | TagType::Float | TagType::Decimal(_), TagValue::Text(t)) => {
                match numeral(t.trim()) {
                    Some(number) => number,
                    None => return Err(self.refuse(written, format_args!("{value} as a number"))),
                }
            }
            (TagType::Int | TagType::UInt | TagType::Float | TagType::Decimal(_), TagValue::Bool(b)) => {
                TagValue::Int((*b).into())
            }
            (TagType::Date | TagType::Timestamp, TagValue::Text(_)) => {
                if eval::fits(kind, &Test::In(vec![value.clone()])) {
                    return Ok(value);
                }
                return Err(self.refuse(written, format_args!("{value} as a date or moment")));
            }
            _ => return Ok(value),
        };
        // One of each kind, however long the list.
        let why = format!("since the tag is {kind}");
        if !self.notes.iter().any(|note| note.ends_with(&why)) {
            self.notes.push(format!("{value} was read as {converted}, {why}"));
        }
        Ok(converted)
    }

    pub(super) fn tag(&self, expr: &Expr) -> Result<(Named, Option<TagType>), QueryError> {
        match self.scope.column(expr)? {
            Column::Tag(name, kind) => Ok((name, kind)),
            Column::Key(_) => {
                Err(self.refuse(expr, format_args!("{expr}, the user's id, in place of a tag")))
            }
        }
    }

    fn like(&mut self, expr: &Expr, pattern: &Expr, not: bool) -> Result<Predicate, QueryError> {
        let (name, kind) = self.tag(expr)?;
        let TagValue::Text(text) = literal(pattern)? else {
            return Err(self.refuse(pattern, format_args!("like {pattern}")));
        };
        let test = match prefix(&text) {
            Some((text, true)) => Test::Prefix(text),
            Some((text, false)) => Test::In(vec![TagValue::Text(text)]),
            None => return Err(self.refuse(pattern, format_args!("like {pattern}"))),
        };
        self.leaf(name, kind, test, expr, not)
    }

    /// The tag whose elements a call counts, if it is one.
    fn length(&self, expr: &Expr) -> Result<Option<(Named, Option<TagType>)>, QueryError> {
        let Expr::Function(f) = expr else { return Ok(None) };
        match (f.name.to_string().to_ascii_lowercase().as_str(), arguments(f).as_deref()) {
            ("length" | "json_length" | "cardinality", Some([set])) => self.tag(set).map(Some),
            _ => Ok(None),
        }
    }

    fn sized(
        &self,
        name: Named,
        kind: Option<TagType>,
        op: &BinaryOperator,
        bound: &Expr,
        not: bool,
    ) -> Result<Predicate, QueryError> {
        use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
        let TagValue::Int(n) = literal(bound)? else {
            return Err(self.refuse(bound, format_args!("{bound} as a number of elements")));
        };
        // No set has less than no elements: a range that is crossed holds for nobody.
        let most = u32::MAX;
        let cut = |n: i64| n.clamp(0, most.into()) as u32;
        let (low, high, other) = match op {
            Eq | NotEq => (if n < 0 { most } else { cut(n) }, if n < 0 { 0 } else { cut(n) }, *op == NotEq),
            Lt if n <= 0 => (most, 0, false),
            Lt => (0, cut(n - 1), false),
            LtEq if n < 0 => (most, 0, false),
            LtEq => (0, cut(n), false),
            Gt => (cut(n.saturating_add(1)), most, false),
            GtEq => (cut(n), most, false),
            _ => return Err(self.refuse(bound, format_args!("operator {op}"))),
        };
        self.leaf(name, kind, Test::Size(low, high), bound, other != not)
    }
}
