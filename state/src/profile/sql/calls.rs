//! Calls in a WHERE clause: membership in sets, as ClickHouse's functions and MySQL's JSON functions ask for it.

use super::super::error::QueryError;
use super::super::predicate::{Predicate, Test};
use super::super::update::{Element, Form, TagType, TagValue};
use super::condition::Conditions;
use super::literal::{arguments, array, json, literal};
use super::scope::Column;
use sqlparser::ast::{BinaryOperator, Expr, Function, InTarget};

impl Conditions<'_> {
    /// An element of a set as the set keeps it.
    pub(super) fn element(
        &self,
        kind: Option<TagType>,
        value: TagValue,
        written: &Expr,
    ) -> Result<Element, QueryError> {
        match (kind, value) {
            (Some(TagType::IntSet), TagValue::Text(text)) => {
                Err(self.refuse(written, format_args!("'{text}' as an element of whole numbers")))
            }
            (_, TagValue::Text(text)) => Ok(text.into()),
            (None | Some(TagType::IntSet), TagValue::Int(n)) => Ok(n.into()),
            (_, other) => Err(self.refuse(written, format_args!("{other} as an element (write '{other}')"))),
        }
    }

    fn elements(&self, kind: Option<TagType>, written: &[&Expr]) -> Result<Vec<Element>, QueryError> {
        written.iter().map(|e| self.element(kind, literal(e)?, e)).collect()
    }

    pub(super) fn call(&mut self, f: &Function, expr: &Expr, not: bool) -> Result<Predicate, QueryError> {
        let Some(arguments) = arguments(f) else { return Err(self.refuse(expr, expr)) };
        let called = f.name.to_string().to_ascii_lowercase();
        let (set, test) = match (called.as_str(), arguments.as_slice()) {
            ("not", [inner]) if self.scope.three_valued() => return self.read(inner, !not),
            ("isnull", [tag]) => return self.read(&Expr::IsNull(Box::new((*tag).clone())), not),
            ("isnotnull", [tag]) => return self.read(&Expr::IsNotNull(Box::new((*tag).clone())), not),
            ("segment", [name]) => match literal(name)? {
                // Whether somebody is in it is known of everybody.
                TagValue::Text(name) => {
                    let members = Predicate::segment(name);
                    return Ok(if not { !members } else { members });
                }
                other => return Err(self.refuse(name, format_args!("{other} in place of a segment's name"))),
            },
            ("has", [set, one]) => (*set, Test::HasAny(self.elements(self.tag(set)?.1, &[one])?)),
            ("hasany" | "hasall", [set, all]) => {
                let Some(all) = array(all) else { return Err(self.refuse(expr, expr)) };
                let all = self.elements(self.tag(set)?.1, &all)?;
                (*set, if called == "hasany" { Test::HasAny(all) } else { Test::HasAll(all) })
            }
            ("json_contains", [set, document, path @ ..]) => {
                self.whole_document(path, expr)?;
                let (all, list) = json(document)?;
                let all = all.iter().map(of_json).collect();
                (*set, if list { Test::HasAll(all) } else { Test::HasAny(all) })
            }
            ("json_overlaps", [one, other]) => {
                let document_first = matches!(one, Expr::Value(_));
                let (set, document) = if document_first { (*other, *one) } else { (*one, *other) };
                let (all, _) = json(document)?;
                (set, Test::HasAny(all.iter().map(of_json).collect()))
            }
            ("arrayexists", [Expr::Lambda(lambda), set]) => match (&lambda.params[..], &*lambda.body) {
                ([variable], body) => {
                    let all = self.lambda(self.tag(set)?.1, &variable.name.value, body)?;
                    (*set, Test::HasAny(all))
                }
                _ => return Err(self.refuse(expr, expr)),
            },
            ("mapcontains", [map, key]) => match literal(key)? {
                TagValue::Text(key) => match self.scope.under(map, &key, expr)? {
                    // Of a map that is not there nothing is known; a key that is not there is not there.
                    Column::Tag(under, _) if not && self.scope.three_valued() => {
                        let map = self.tag(map)?.0;
                        return Ok(map.leaf(Test::Exists).and(!under.leaf(Test::Exists)));
                    }
                    Column::Tag(under, _) => {
                        let there = under.leaf(Test::Exists);
                        return Ok(if not { !there } else { there });
                    }
                    Column::Key(_) => return Err(self.refuse(expr, expr)),
                },
                other => return Err(self.refuse(key, format_args!("{other} in place of a key"))),
            },
            ("empty", [set]) => (*set, Test::Size(0, 0)),
            ("notempty", [set]) => (*set, Test::Size(1, u32::MAX)),
            ("startswith", [tag, text]) => match literal(text)? {
                TagValue::Text(text) => (*tag, Test::Prefix(text)),
                other => return Err(self.refuse(text, format_args!("{other} in place of a text"))),
            },
            _ => return Err(self.refuse(expr, expr)),
        };
        let (name, kind) = self.tag(set)?;
        self.leaf(name, kind, test, expr, not)
    }

    /// A tag is its whole document.
    fn whole_document(&self, path: &[&Expr], call: &Expr) -> Result<(), QueryError> {
        match path {
            [] => Ok(()),
            [one] => match literal(one)? {
                TagValue::Text(path) if path == "$" => Ok(()),
                _ => Err(self.refuse(one, format_args!("path {one}"))),
            },
            _ => Err(self.refuse(call, call)),
        }
    }

    /// The elements that `x = 'a'`, `x in ('a', 'b')`, or several of them joined by or, hold for.
    fn lambda(&self, kind: Option<TagType>, variable: &str, body: &Expr) -> Result<Vec<Element>, QueryError> {
        let named = |expr: &Expr| matches!(expr, Expr::Identifier(ident) if ident.value == variable);
        match body {
            Expr::Nested(inner) => self.lambda(kind, variable, inner),
            Expr::BinaryOp { left, op: BinaryOperator::Eq, right } if named(left) => {
                self.elements(kind, &[right])
            }
            Expr::BinaryOp { left, op: BinaryOperator::Eq, right } if named(right) => {
                self.elements(kind, &[left])
            }
            Expr::BinaryOp { left, op: BinaryOperator::Or, right } => {
                let mut all = self.lambda(kind, variable, left)?;
                all.extend(self.lambda(kind, variable, right)?);
                Ok(all)
            }
            Expr::In { expr, target: InTarget::List(list), negated: false, global: false } if named(expr) => {
                self.elements(kind, &list.iter().collect::<Vec<_>>())
            }
            _ => Err(self.refuse(body, format_args!("{variable} -> {body}"))),
        }
    }
}

/// A JSON value as an element asked for. Whole numbers are numbers however they are written.
fn of_json(value: &serde_json::Value) -> Element {
    let (text, form) = match value {
        serde_json::Value::String(text) => (text.clone(), Form::JsonText),
        serde_json::Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(n), _) => (n.to_string(), Form::JsonNumber),
            // Below 2^53 each whole float is the number that was written.
            (None, Some(f)) if f.fract() == 0.0 && f.abs() < 9_007_199_254_740_992.0 => {
                ((f as i64).to_string(), Form::JsonNumber)
            }
            _ => (n.to_string(), Form::JsonOther),
        },
        other => (other.to_string(), Form::JsonOther),
    };
    Element { text, form }
}

/// A literal before MEMBER OF, which compares as JSON does.
pub(super) fn member(value: &TagValue) -> Option<Element> {
    match value {
        TagValue::Text(text) => Some(Element { text: text.clone(), form: Form::JsonText }),
        TagValue::Int(n) => Some(Element { text: n.to_string(), form: Form::JsonNumber }),
        _ => None,
    }
}
