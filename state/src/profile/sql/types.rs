//! The types that columns are given in SQL, in the spellings of ClickHouse and MySQL, as types of tags.

use super::super::update::TagType;
use sqlparser::ast::DataType;

pub(super) const SUPPORTED: &str = "String, VARCHAR(n), TEXT and Enum (enum), Int8 to Int64, TINYINT to BIGINT (int), UInt8 to UInt64, … UNSIGNED (uint), Float32, \
     Float64, DOUBLE (float), Decimal(p, s) (decimal(s)), Bool, Date, DateTime, TIMESTAMP, Array(String), SET('a', …) (set), Array(Int64) (intset), \
     Map(String, String) (map), each within Nullable or LowCardinality too";

/// The type of tag that a column of this type is; nothing if there is none.
pub(super) fn tag_type(written: &DataType) -> Option<TagType> {
    match written {
        DataType::Nullable(inner) | DataType::LowCardinality(inner) => return tag_type(inner),
        DataType::Map(..) => return Some(TagType::Map),
        DataType::Set(_) => return Some(TagType::Set),
        DataType::Enum(..) => return Some(TagType::Enum),
        _ => {}
    }
    let text = written.to_string().to_ascii_lowercase();
    of_text(&text)
}

fn of_text(text: &str) -> Option<TagType> {
    let text = text.trim();
    let (name, inner) = match text.split_once('(') {
        Some((name, rest)) => (name.trim(), rest.rsplit_once(')').map(|(inner, _)| inner.trim())),
        None => (text, None),
    };
    let first = name.split_whitespace().next()?;
    let unsigned = text.ends_with(" unsigned") || first == "unsigned";
    Some(match first {
        "nullable" | "lowcardinality" => of_text(inner?)?,
        "array" => match of_text(inner?)? {
            TagType::Enum => TagType::Set,
            TagType::Int | TagType::UInt => TagType::IntSet,
            _ => return None,
        },
        "map" => TagType::Map,
        "set" => TagType::Set,
        "intset" => TagType::IntSet,
        "tinyint" | "smallint" | "mediumint" | "int" | "integer" | "bigint" | "int2" | "int4" if unsigned => {
            TagType::UInt
        }
        "tinyint" | "smallint" | "mediumint" | "int" | "integer" | "bigint" | "int2" | "int4" | "int8"
        | "int16" | "int32" | "int64" | "signed" => TagType::Int,
        "uint8" | "uint16" | "uint32" | "uint64" | "uint" | "unsigned" => TagType::UInt,
        "float" | "float4" | "float8" | "float32" | "float64" | "double" | "real" => TagType::Float,
        "decimal" | "numeric" | "dec" => {
            let mut numbers = inner.unwrap_or("10").split(',').map(|n| n.trim().parse::<u8>().ok());
            let first = numbers.next()??;
            match numbers.next() {
                Some(scale) => TagType::Decimal(scale?),
                // DECIMAL(10) has no digits behind the point; decimal(2) as DESCRIBE shows it is written with two numbers here.
                None if first > 0 => TagType::Decimal(0),
                None => return None,
            }
        }
        "bool" | "boolean" => TagType::Bool,
        "date" | "date32" => TagType::Date,
        "datetime" | "datetime64" | "timestamp" => TagType::Timestamp,
        "string" | "text" | "tinytext" | "mediumtext" | "longtext" | "varchar" | "char" | "character"
        | "nvarchar" | "fixedstring" | "uuid" | "enum" | "enum8" | "enum16" => TagType::Enum,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_both_are_types_of_tags() {
        for (text, kind) in [
            ("int(11) unsigned", TagType::UInt),
            ("bigint", TagType::Int),
            ("uint64", TagType::UInt),
            ("double precision", TagType::Float),
            ("decimal(10,2)", TagType::Decimal(2)),
            ("decimal(10)", TagType::Decimal(0)),
            ("datetime64(3, 'utc')", TagType::Timestamp),
            ("timestamp", TagType::Timestamp),
            ("varchar(255)", TagType::Enum),
            ("lowcardinality(nullable(string))", TagType::Enum),
            ("array(lowcardinality(string))", TagType::Set),
            ("array(uint32)", TagType::IntSet),
            ("map(string, float64)", TagType::Map),
            ("bool", TagType::Bool),
            ("date", TagType::Date),
        ] {
            assert_eq!(of_text(text), Some(kind), "{text}");
        }
        for wrong in ["json", "array(float64)", "array", "tuple(a int)", "", "blob"] {
            assert_eq!(of_text(wrong), None, "{wrong}");
        }
    }
}
