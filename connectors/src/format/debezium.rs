//! Changes of a table as Debezium writes them: before and after, what was done, where and when.

use std::fmt;

use serde::de::{self, DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Decoder, Json};

/// One change of one row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change<T> {
    /// The row was there when the connector looked through the table.
    Read(T),
    /// The row was inserted.
    Created(T),
    /// The row was changed.
    Updated {
        /// What it was, when the database tells (PostgreSQL: `REPLICA IDENTITY FULL`).
        before: Option<T>,
        /// What it is.
        after: T,
    },
    /// The row was deleted.
    Deleted {
        /// What it was, when the database tells.
        before: Option<T>,
    },
    /// All rows of the table were deleted.
    Truncated,
}

impl<T> Change<T> {
    /// The row as it is after the change; none when it is no more.
    pub fn after(&self) -> Option<&T> {
        match self {
            Change::Read(row) | Change::Created(row) | Change::Updated { after: row, .. } => Some(row),
            Change::Deleted { .. } | Change::Truncated => None,
        }
    }

    /// The row as it was before the change, when it was and the database tells.
    pub fn before(&self) -> Option<&T> {
        match self {
            Change::Updated { before, .. } | Change::Deleted { before } => before.as_ref(),
            Change::Read(_) | Change::Created(_) | Change::Truncated => None,
        }
    }
}

/// A change, and where and when it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed<T> {
    /// What was changed.
    pub change: Change<T>,
    /// Where.
    pub origin: Origin,
    /// When the connector saw it, in milliseconds since the epoch.
    pub ts_ms: Option<i64>,
}

impl<T> Changed<T> {
    /// When the change was made in the database, in milliseconds since the epoch; if that is not said, when the connector saw it.
    pub fn millis(&self) -> Option<i64> {
        self.origin.ts_ms.or(self.ts_ms)
    }
}

/// Where a change was made, of what most databases tell. What is not told is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// The kind of database: `mysql`, `postgresql`.
    pub connector: String,
    /// The connector's name for the server (`topic.prefix`).
    pub name: String,
    /// When the change was made, in milliseconds since the epoch.
    pub ts_ms: Option<i64>,
    /// Whether it comes of looking through the table.
    #[serde(deserialize_with = "snapshot")]
    pub snapshot: bool,
    /// The database.
    pub db: Option<String>,
    /// The schema, where a database has such.
    pub schema: Option<String>,
    /// The table.
    pub table: Option<String>,
    /// PostgreSQL: the place in its log.
    pub lsn: Option<u64>,
    /// MySQL: the file of its log.
    pub file: Option<String>,
    /// MySQL: the place in that file.
    pub pos: Option<u64>,
    /// MySQL: the transaction.
    pub gtid: Option<String>,
}

/// `true`, `"true"`, `"first"`, `"last"`, … or not: versions differ.
fn snapshot<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    struct Flag;
    impl<'de> Visitor<'de> for Flag {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("whether it is a snapshot")
        }

        fn visit_bool<E: de::Error>(self, flag: bool) -> Result<bool, E> {
            Ok(flag)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<bool, E> {
            Ok(!matches!(text, "" | "false"))
        }

        fn visit_unit<E: de::Error>(self) -> Result<bool, E> {
            Ok(false)
        }

        fn visit_none<E: de::Error>(self) -> Result<bool, E> {
            Ok(false)
        }

        fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
            from.deserialize_any(self)
        }
    }
    from.deserialize_any(Flag)
}

/// An envelope as it is written: what [`Debezium`] reads, and what a decoder of another format, such as Avro, can read too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct Envelope<T> {
    /// The row before.
    #[serde(default = "nothing")]
    pub before: Option<T>,
    /// The row after.
    #[serde(default = "nothing")]
    pub after: Option<T>,
    /// What was done, as one letter.
    #[serde(default)]
    pub op: Option<String>,
    /// Where.
    #[serde(default)]
    pub source: Option<Origin>,
    /// When the connector saw it, in milliseconds since the epoch.
    #[serde(default)]
    pub ts_ms: Option<i64>,
}

fn nothing<T>() -> Option<T> {
    None
}

impl<T> Envelope<T> {
    /// What the envelope says.
    ///
    /// # Errors
    /// The reason in one sentence, when it says nothing that a change can be.
    pub fn change(self) -> Result<Changed<T>, String> {
        let Envelope { before, after, op, source, ts_ms } = self;
        let Some(op) = op else {
            return Err("no change of Debezium: it has no field op".to_owned());
        };
        let row = |after: Option<T>| {
            after.ok_or_else(|| format!("a change {op:?} without the row as it is after it (field after)"))
        };
        let change = match op.as_str() {
            "r" => Change::Read(row(after)?),
            "c" => Change::Created(row(after)?),
            "u" => Change::Updated { before, after: row(after)? },
            "d" => Change::Deleted { before },
            "t" => Change::Truncated,
            other => {
                return Err(format!("a change {other:?} (field op), which is none of r, c, u, d and t"));
            }
        };
        Ok(Changed { change, origin: source.unwrap_or_default(), ts_ms })
    }
}

/// Debezium's changes in JSON, one per record: with its schema (`{"schema": …, "payload": …}`), which is passed over, or without.
///
/// Columns go to the fields of `T` by their names; what a column's type becomes in JSON (decimals, dates) is the connector's to say.
///
/// ```
/// use weir_connectors::format::{Change, Changed, Debezium, Decoder};
/// let record = br#"{"before": null, "after": {"id": 7}, "op": "c", "source": {"table": "orders"}, "ts_ms": 1500}"#;
/// #[derive(Debug, PartialEq, serde::Deserialize)]
/// struct Order { id: u64 }
/// let changed: Changed<Order> = Debezium.decode(record)?;
/// assert_eq!((changed.change, changed.origin.table.as_deref()), (Change::Created(Order { id: 7 }), Some("orders")));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Debezium;

/// Either form; which one, `payload` tells.
#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
struct Wire<T> {
    #[serde(default = "nothing")]
    payload: Option<Envelope<T>>,
    #[serde(default = "nothing")]
    before: Option<T>,
    #[serde(default = "nothing")]
    after: Option<T>,
    #[serde(default)]
    op: Option<String>,
    #[serde(default)]
    source: Option<Origin>,
    #[serde(default)]
    ts_ms: Option<i64>,
}

impl<T: DeserializeOwned> Decoder<Changed<T>> for Debezium {
    fn decode(&mut self, payload: &[u8]) -> Result<Changed<T>, String> {
        let Wire { payload, before, after, op, source, ts_ms } = Json.decode(payload)?;
        payload.unwrap_or(Envelope { before, after, op, source, ts_ms }).change()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Deserialize)]
    struct Row {
        id: u64,
        #[serde(default)]
        name: Option<String>,
    }

    fn row(id: u64, name: &str) -> Row {
        Row { id, name: Some(name.to_owned()) }
    }

    fn decoded(text: &str) -> Result<Changed<Row>, String> {
        let alone = Debezium.decode(text.as_bytes());
        let schema = r#"{"type":"struct","fields":[{"type":"struct","fields":[],"optional":true,"field":"before"}],"name":"e"}"#;
        let with_schema = Debezium.decode(format!(r#"{{"schema":{schema},"payload":{text}}}"#).as_bytes());
        assert_eq!(alone.is_ok(), with_schema.is_ok(), "{alone:?} {with_schema:?}");
        if alone.is_ok() {
            assert_eq!(alone, with_schema);
        }
        alone
    }

    #[test]
    fn every_kind_of_change() {
        let (a, b) = (r#"{"id":1,"name":"a"}"#, r#"{"id":1,"name":"b"}"#);
        let change = |text: String| decoded(&text).unwrap().change;
        assert_eq!(change(format!(r#"{{"before":null,"after":{a},"op":"r"}}"#)), Change::Read(row(1, "a")));
        assert_eq!(
            change(format!(r#"{{"after":{a},"op":"c","transaction":null}}"#)),
            Change::Created(row(1, "a"))
        );
        let update = change(format!(r#"{{"before":{a},"after":{b},"op":"u"}}"#));
        assert_eq!(update, Change::Updated { before: Some(row(1, "a")), after: row(1, "b") });
        assert_eq!((update.before(), update.after()), (Some(&row(1, "a")), Some(&row(1, "b"))));
        assert_eq!(
            change(format!(r#"{{"before":null,"after":{b},"op":"u"}}"#)),
            Change::Updated { before: None, after: row(1, "b") },
            "a database that does not tell"
        );
        let delete = change(format!(r#"{{"before":{b},"after":null,"op":"d"}}"#));
        assert_eq!((delete.before(), delete.after()), (Some(&row(1, "b")), None));
        assert_eq!(change(r#"{"op":"t"}"#.to_owned()), Change::Truncated);
    }

    #[test]
    fn where_and_when() {
        let mysql = r#"{"before":null,"after":{"id":1},"op":"c","ts_ms":1589362330904,"source":{"version":"2.7","connector":"mysql",
            "name":"shop","ts_ms":1589362330000,"snapshot":"false","db":"inventory","table":"orders","server_id":0,"gtid":null,
            "file":"mysql-bin.000003","pos":154,"row":0,"thread":7,"query":null}}"#;
        let changed = decoded(mysql).unwrap();
        let origin = Origin {
            connector: "mysql".into(),
            name: "shop".into(),
            ts_ms: Some(1_589_362_330_000),
            db: Some("inventory".into()),
            table: Some("orders".into()),
            file: Some("mysql-bin.000003".into()),
            pos: Some(154),
            ..Origin::default()
        };
        assert_eq!((changed.millis(), &changed.origin), (Some(1_589_362_330_000), &origin));
        for (snapshot, is) in
            [("true", true), ("\"last\"", true), ("\"false\"", false), ("false", false), ("null", false)]
        {
            let text = format!(
                r#"{{"after":{{"id":1}},"op":"r","ts_ms":5,"source":{{"snapshot":{snapshot},"lsn":24023128}}}}"#
            );
            let changed = decoded(&text).unwrap();
            assert_eq!(
                (changed.origin.snapshot, changed.origin.lsn, changed.millis()),
                (is, Some(24_023_128), Some(5))
            );
        }
    }

    #[test]
    fn what_is_no_change_is_refused_with_the_field() {
        for (text, says) in [
            (r#"{"after":{"id":1}}"#, "it has no field op"),
            (r#"{"op":"u","before":{"id":1}}"#, "(field after)"),
            (r#"{"op":"c","after":null}"#, "(field after)"),
            (r#"{"op":"m","message":{}}"#, "a change \"m\" (field op)"),
            (r#"{"op":"c","after":{"id":"x"}}"#, "after.id)"),
            (r#"{"op":"c","after":{"id":1},"source":{"pos":-1}}"#, "source.pos)"),
            ("7", "not the expected JSON"),
        ] {
            let reason = decoded(text).unwrap_err();
            assert!(reason.contains(says), "{reason}");
        }
        let empty: Result<Changed<Row>, _> = Debezium.decode(br#"{"schema":null,"payload":null}"#);
        assert!(empty.unwrap_err().contains("no field op"));
    }
}
