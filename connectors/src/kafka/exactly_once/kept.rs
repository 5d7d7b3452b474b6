//! How records lie in a spool until they are written: partition, time, key, payload and headers, one after the other.
// HOT: per record some pushes into one buffer.

use weir_engine::EventTime;

/// A record that is ready to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept<'a> {
    pub(super) partition: i32,
    /// Milliseconds since the epoch; none when the record has no time that Kafka takes.
    pub(super) time: Option<i64>,
    pub(super) key: Option<&'a [u8]>,
    /// None for a tombstone.
    pub(super) payload: Option<&'a [u8]>,
    /// As [`push_header`] made them.
    pub(super) headers: &'a [u8],
}

/// The time that Kafka takes: the library has 0 for "now", and a broker takes no negative times.
pub(in super::super) fn kafka_time(time: EventTime) -> Option<i64> {
    (time.millis() > 0).then_some(time.millis())
}

fn push_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// A length and so many bytes; 0 stands for none, so a length is one more than it is.
fn push_bytes(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    push_number(out, bytes.map_or(0, |b| b.len() as u64 + 1));
    out.extend_from_slice(bytes.unwrap_or_default());
}

#[allow(clippy::option_option, reason = "no bytes and no more bytes are not the same")]
fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let Some(len) = take_number(bytes)?.checked_sub(1) else { return Some(None) };
    let (taken, rest) = bytes.split_at_checked(usize::try_from(len).ok()?)?;
    *bytes = rest;
    Some(Some(taken))
}

/// Adds a header to a record's headers.
pub(in super::super) fn push_header(out: &mut Vec<u8>, name: &str, value: Option<&[u8]>) {
    push_bytes(out, Some(name.as_bytes()));
    push_bytes(out, value);
}

/// Takes the first header off; none when there is no other.
pub(in super::super) fn take_header<'a>(headers: &mut &'a [u8]) -> Option<(&'a str, Option<&'a [u8]>)> {
    let name = std::str::from_utf8(take_bytes(headers)??).ok()?;
    Some((name, take_bytes(headers)?))
}

impl<'a> Kept<'a> {
    /// Adds the record to a chunk.
    pub(super) fn push(&self, out: &mut Vec<u8>) {
        push_number(out, self.partition as u64);
        push_number(out, self.time.unwrap_or(0) as u64);
        push_bytes(out, self.key);
        push_bytes(out, self.payload);
        push_bytes(out, Some(self.headers));
    }

    /// Takes the first record off a chunk; none when it is damaged.
    pub(super) fn take(bytes: &mut &'a [u8]) -> Option<Kept<'a>> {
        Some(Kept {
            partition: i32::try_from(take_number(bytes)?).ok()?,
            time: Some(i64::try_from(take_number(bytes)?).ok()?).filter(|time| *time > 0),
            key: take_bytes(bytes)?,
            payload: take_bytes(bytes)?,
            headers: take_bytes(bytes)??,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::option::of;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_layout_is_frozen() {
        let mut headers = Vec::new();
        push_header(&mut headers, "h", Some(b"v"));
        push_header(&mut headers, "n", None);
        let mut out = Vec::new();
        let (key, payload) = (Some(&b"k"[..]), Some(&b""[..]));
        Kept { partition: 300, time: Some(1), key, payload, headers: &headers }.push(&mut out);
        Kept { partition: 0, time: None, key: None, payload: None, headers: &[] }.push(&mut out);
        let expected = [0xac, 2, 1, 2, b'k', 1, 8, 2, b'h', 2, b'v', 2, b'n', 0, 0, 0, 0, 0, 1];
        assert_eq!(out, expected);
    }

    proptest! {
        #[test]
        fn records_come_back(
            records in proptest::collection::vec(
                (0i32.., of(1i64..), of(any::<Vec<u8>>()), of(any::<Vec<u8>>()),
                    proptest::collection::vec((any::<String>(), of(any::<Vec<u8>>())), 0..3)),
                0..20,
            ),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut chunk = Vec::new();
            for (partition, time, key, payload, headers) in &records {
                let mut flat = Vec::new();
                headers.iter().for_each(|(n, v)| push_header(&mut flat, n, v.as_deref()));
                let (key, payload) = (key.as_deref(), payload.as_deref());
                Kept { partition: *partition, time: *time, key, payload, headers: &flat }.push(&mut chunk);
            }
            let mut left = &chunk[..];
            for (partition, time, key, payload, headers) in &records {
                let kept = Kept::take(&mut left).unwrap();
                prop_assert_eq!((kept.partition, kept.time), (*partition, *time));
                prop_assert_eq!((kept.key, kept.payload), (key.as_deref(), payload.as_deref()));
                let mut flat = kept.headers;
                for (name, value) in headers {
                    prop_assert_eq!(take_header(&mut flat), Some((&name[..], value.as_deref())));
                }
                prop_assert!(flat.is_empty());
            }
            prop_assert!(left.is_empty());
            // Damaged bytes end it and do not panic.
            let mut left = &chunk[..cut.index(chunk.len() + 1)];
            while Kept::take(&mut left).is_some() {}
        }
    }
}
