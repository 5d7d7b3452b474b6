//! JSON files with a format number first and a checksum of their own last: whatever is read back is what was written.

use serde::Serialize;
use serde::de::{Deserialize, DeserializeOwned};
use xxhash_rust::xxh3::xxh3_128;

const BEFORE: &str = ",\n  \"checksum\": \"";
const AFTER: &str = "\"\n}\n";
const HEX: usize = 32;

/// Why a document is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Not what was written.
    Unreadable(String),
    /// Written in another format.
    Format(u64),
}

/// The hexadecimal form that checksums have in files.
pub(crate) fn hex(checksum: u128) -> String {
    format!("{checksum:032x}")
}

/// A value that serialises as an object, as indented JSON with the checksum of all that precedes it as its last field.
pub(crate) fn write<T: Serialize>(value: &T) -> Vec<u8> {
    let mut text = serde_json::to_string_pretty(value).expect("documents have text keys and finite numbers");
    let body = text.strip_suffix("\n}").expect("documents are objects that have fields").len();
    text.truncate(body);
    let checksum = hex(xxh3_128(text.as_bytes()));
    text.push_str(BEFORE);
    text.push_str(&checksum);
    text.push_str(AFTER);
    text.into_bytes()
}

/// Reads what [`write`] wrote, if its format is `known`.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8], known: u32) -> Result<T, Refused> {
    #[derive(serde::Deserialize)]
    struct Numbered {
        format: u64,
    }
    if bytes.is_empty() {
        return Err(Refused::Unreadable("it is empty".into()));
    }
    // The format comes first: the rest may have changed with it.
    let numbered: Numbered = parse(bytes)?;
    if numbered.format != u64::from(known) {
        return Err(Refused::Format(numbered.format));
    }
    let (body, found) = split(bytes)
        .ok_or_else(|| Refused::Unreadable("it does not end with the checksum it was written with".into()))?;
    let expected = hex(xxh3_128(body));
    if found != expected.as_bytes() {
        return Err(Refused::Unreadable(
            "it was changed after it was written: its checksum does not match".into(),
        ));
    }
    parse(bytes)
}

fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Refused> {
    serde_json::from_slice(bytes)
        .map_err(|e| Refused::Unreadable(format!("it is not the JSON expected: {e}")))
}

/// The text that the checksum is of, and the checksum.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = bytes.strip_suffix(AFTER.as_bytes())?;
    let (rest, checksum) = rest.split_at_checked(rest.len().checked_sub(HEX)?)?;
    Some((rest.strip_suffix(BEFORE.as_bytes())?, checksum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Note {
        format: u32,
        text: String,
        number: i64,
    }

    fn note() -> Note {
        Note { format: 3, text: "a } \" b".into(), number: -7 }
    }

    #[test]
    fn what_is_written_is_read_and_is_plain_json() {
        let bytes = write(&note());
        assert_eq!(read::<Note>(&bytes, 3), Ok(note()));
        let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(value["number"], -7);
        assert_eq!(value["checksum"].as_str().unwrap().len(), 32);
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_refused() {
        let bytes = write(&note());
        for cut in 0..bytes.len() {
            assert!(read::<Note>(&bytes[..cut], 3).is_err(), "cut at {cut}");
        }
        for i in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[i / 8] ^= 1 << (i % 8);
            assert!(read::<Note>(&bytes, 3).is_err(), "bit {i}");
        }
        assert!(matches!(read::<Note>(b"", 3), Err(Refused::Unreadable(why)) if why == "it is empty"));
    }

    #[test]
    fn another_format_is_told_from_garbage() {
        assert_eq!(read::<Note>(&write(&note()), 2), Err(Refused::Format(3)));
        assert_eq!(read::<Note>(br#"{"format": 9, "unheard": {"of": 1}}"#, 3), Err(Refused::Format(9)));
        assert!(matches!(read::<Note>(b"{\"formatt\": 9}", 3), Err(Refused::Unreadable(_))));
    }
}
