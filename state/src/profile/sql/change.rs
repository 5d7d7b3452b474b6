//! Statements that change what there is: tags by CREATE and ALTER TABLE, segments by CREATE, ALTER and DROP SEGMENT, whole or not at all.

use super::super::catalogue::Catalogue;
use super::super::change::Change;
use super::super::error::{ProfileError, QueryError};
use super::super::predicate::Predicate;
use super::super::space::Profiles;
use super::super::writes::WriteError;
use super::condition::Conditions;
use super::scope::Scope;
use super::statement::{Rows, SqlAnswer, known_table, subquery};
use super::text::{Command, Definition, at, statement, unsupported};
use super::types;
use sqlparser::ast::{
    AlterColumnOperation, AlterTable, AlterTableOperation, CreateTable, DataType, Ident, ObjectName, Spanned,
    Statement,
};

const SUPPORTED: &str = "ALTER TABLE … ADD COLUMN, MODIFY COLUMN (a wider type), CHANGE COLUMN, DROP COLUMN, RENAME COLUMN … TO, ALTER COLUMN … TYPE; CREATE TABLE of \
     columns; CREATE SEGMENT name AS a condition or SELECT the user's id, ALTER SEGMENT, DROP SEGMENT";

/// Why a statement was refused. Nothing of it took effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SqlError {
    /// It cannot be read, or not be answered.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// What it changes cannot be so.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// What it writes cannot be written, or is not visible yet.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Profiles {
    /// Carries out a statement in SQL: one that reads, as [`Snapshot::sql`](crate::profile::Snapshot::sql) does; one that changes tags or segments while
    /// writers and readers run; or `INSERT`, `UPDATE` and `DELETE`, which are [written](Profiles::write) and answered when they are visible. What was changed is so for every reader that pins a version from now on, and for every update that is applied from now on.
    ///
    /// ```
    /// use weir_state::profile::Profiles;
    /// let profiles = Profiles::named("crowd").int_tag("b.buys");
    /// profiles.sql("alter table b add column city LowCardinality(String), modify column buys Float64")?;
    /// profiles.sql("create segment buyers as select user_id from b where buys > 0.5 and city = 'Paris'")?;
    /// assert_eq!(profiles.sql("select count() from b where segment('buyers')")?.value.count(), Some(0));
    /// # Ok::<(), weir_state::profile::SqlError>(())
    /// ```
    ///
    /// # Errors
    /// What cannot be read or is not supported, with its place; an unknown table or tag; a type that is not wider; a segment that would be part of
    /// itself. Of a statement that is refused nothing takes effect.
    pub fn sql(&self, text: &str) -> Result<SqlAnswer, SqlError> {
        let command = statement(text)?;
        let (catalogue, mut notes) = (self.space.catalogue(), Vec::new());
        let changes = match &command {
            Command::PutSegment { name, definition } => {
                let predicate = condition(&catalogue, definition, &mut notes)?;
                self.define_segment(&name.value, predicate)?;
                Vec::new()
            }
            Command::DropSegment { name, if_exists } => {
                if !if_exists && catalogue.segment(&name.value).is_none() {
                    return Err(at(name.span.start, catalogue.unknown_segment(&name.value)).into());
                }
                vec![Change::DropSegment { segment: name.value.clone() }]
            }
            Command::Statement(statement) => match &**statement {
                Statement::AlterTable(alter) => altered(&catalogue, alter, &mut notes)?,
                Statement::CreateTable(create) => created(&catalogue, create)?,
                other => {
                    if let Some(done) = self.written(other)? {
                        return Ok(done);
                    }
                    return Ok(self.reader().snapshot().read(&command)?);
                }
            },
            Command::ShowSegments => return Ok(self.reader().snapshot().read(&command)?),
        };
        self.change_all(changes)?;
        let done = Rows { columns: Vec::new(), rows: Vec::new(), notes };
        Ok(self.reader().snapshot().answer(done))
    }
}

fn refuse(place: sqlparser::tokenizer::Location, piece: impl std::fmt::Display) -> QueryError {
    at(place, unsupported(piece, SUPPORTED))
}

fn condition(
    catalogue: &Catalogue,
    definition: &Definition,
    notes: &mut Vec<String>,
) -> Result<Predicate, QueryError> {
    match definition {
        Definition::Query(query) => subquery(catalogue, query, notes),
        Definition::Condition(expr) => {
            Conditions { scope: &Scope::Bare, notes, subquery: None }.read(expr, false)
        }
    }
}

fn kind(name: &Ident, written: &DataType) -> Result<super::super::update::TagType, QueryError> {
    let refuse = || at(name.span.start, unsupported(format_args!("{name} {written}"), types::SUPPORTED));
    types::tag_type(written).ok_or_else(refuse)
}

/// The whole name of a tag that there may be or not.
fn whole(catalogue: &Catalogue, table: &str, name: &Ident) -> Result<String, QueryError> {
    if name.value == *catalogue.key {
        return Err(refuse(name.span.start, format_args!("{name}, the user's id, in place of a tag")));
    }
    Ok(catalogue.tag_of(table, &name.value))
}

fn altered(
    catalogue: &Catalogue,
    alter: &AlterTable,
    notes: &mut Vec<String>,
) -> Result<Vec<Change>, QueryError> {
    let table = known_table(catalogue, &alter.name)?;
    let mut changes = Vec::new();
    let known = |name: &Ident| -> Result<(String, bool), QueryError> {
        let tag = whole(catalogue, &table, name)?;
        let there = catalogue.find(&tag).is_some();
        Ok((tag, there))
    };
    for operation in &alter.operations {
        match operation {
            AlterTableOperation::AddColumn { column_def, if_not_exists, .. } => {
                let (tag, there) = known(&column_def.name)?;
                if there {
                    notes.push(format!("'{tag}' was there already"));
                }
                if !(there && *if_not_exists) {
                    changes
                        .push(Change::AddTag { tag, kind: kind(&column_def.name, &column_def.data_type)? });
                }
            }
            AlterTableOperation::ModifyColumn { col_name, data_type, .. } => {
                changes.push(Change::AlterTag { tag: known(col_name)?.0, kind: kind(col_name, data_type)? });
            }
            AlterTableOperation::AlterColumn {
                column_name,
                op: AlterColumnOperation::SetDataType { data_type, using: None, .. },
            } => {
                changes.push(Change::AlterTag {
                    tag: known(column_name)?.0,
                    kind: kind(column_name, data_type)?,
                });
            }
            AlterTableOperation::ChangeColumn { old_name, new_name, data_type, .. } => {
                let tag = known(old_name)?.0;
                changes.push(Change::AlterTag { tag: tag.clone(), kind: kind(old_name, data_type)? });
                changes.push(Change::RenameTag { tag, to: whole(catalogue, &table, new_name)? });
            }
            AlterTableOperation::RenameColumn { old_column_name, new_column_name } => {
                let to = whole(catalogue, &table, new_column_name)?;
                changes.push(Change::RenameTag { tag: known(old_column_name)?.0, to });
            }
            AlterTableOperation::DropColumn { column_names, if_exists, .. } => {
                for name in column_names {
                    let (tag, there) = known(name)?;
                    if there || !if_exists {
                        changes.push(Change::DropTag { tag });
                    }
                }
            }
            other => return Err(refuse(other.span().start, other)),
        }
    }
    Ok(changes)
}

fn created(catalogue: &Catalogue, create: &CreateTable) -> Result<Vec<Change>, QueryError> {
    let table = table_name(&create.name)?;
    if create.if_not_exists && catalogue.tables().contains(&table) {
        return Ok(Vec::new());
    }
    let columns = create.columns.iter().filter(|column| column.name.value != *catalogue.key);
    let mut changes = Vec::new();
    for column in columns {
        let tag = whole(catalogue, table, &column.name)?;
        changes.push(Change::AddTag { tag, kind: kind(&column.name, &column.data_type)? });
    }
    if changes.is_empty() {
        return Err(refuse(create.name.span().start, "CREATE TABLE without a tag"));
    }
    Ok(changes)
}

fn table_name(name: &ObjectName) -> Result<&str, QueryError> {
    let last = name.0.last().and_then(|part| part.as_ident()).map(|ident| ident.value.as_str());
    last.filter(|name| !name.contains('.')).ok_or_else(|| refuse(name.span().start, name))
}
