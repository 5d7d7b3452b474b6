//! The bytes before a record whose schema is in a registry: a zero, the schema's id, and for Protobuf which message it is. Pure.

/// What begins such a record.
const MAGIC: u8 = 0;

/// The schema's id, and what follows.
#[inline]
pub(crate) fn split(payload: &[u8]) -> Result<(u32, &[u8]), String> {
    match payload {
        [MAGIC, a, b, c, d, rest @ ..] => Ok((u32::from_be_bytes([*a, *b, *c, *d]), rest)),
        [MAGIC, rest @ ..] => Err(format!("{} bytes where the 4 of a schema's id are due", rest.len())),
        [first, ..] => Err(format!(
            "it begins with the byte {first} where one with a schema in a registry begins with 0: was it written without one?"
        )),
        [] => Err("no bytes".to_owned()),
    }
}

/// Begins a record.
#[inline]
pub(crate) fn framed(id: u32, out: &mut Vec<u8>) {
    out.push(MAGIC);
    out.extend_from_slice(&id.to_be_bytes());
}

/// Where in its file a message of Protobuf stands: the index of the outermost one, of the one in it, and so on. Puts it into
/// `path` and answers with what follows.
#[cfg_attr(not(feature = "protobuf"), allow(dead_code))]
#[inline]
pub(crate) fn indexes<'a>(bytes: &'a [u8], path: &mut Vec<u32>) -> Result<&'a [u8], String> {
    path.clear();
    // The first message of a file, which nearly all are, is one zero.
    if let [0, rest @ ..] = bytes {
        path.push(0);
        return Ok(rest);
    }
    let (count, mut rest) = zigzag(bytes)?;
    if !(1..=64).contains(&count) {
        return Err(format!("{count} indexes of a message, where 1 to 64 can be"));
    }
    for _ in 0..count {
        let (index, after) = zigzag(rest)?;
        path.push(u32::try_from(index).map_err(|_| format!("{index} as the index of a message"))?);
        rest = after;
    }
    Ok(rest)
}

/// Writes what [`indexes`] reads.
#[cfg_attr(not(feature = "protobuf"), allow(dead_code))]
pub(crate) fn put_indexes(path: &[u32], out: &mut Vec<u8>) {
    if path == [0] {
        out.push(0);
        return;
    }
    for number in std::iter::once(path.len() as u64).chain(path.iter().map(|i| u64::from(*i))) {
        let mut left = number << 1;
        while left >= 0x80 {
            out.push(left as u8 | 0x80);
            left >>= 7;
        }
        out.push(left as u8);
    }
}

fn zigzag(bytes: &[u8]) -> Result<(i64, &[u8]), String> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(((value >> 1) as i64 ^ -((value & 1) as i64), &bytes[at + 1..]));
        }
    }
    Err("the indexes of its message are cut off".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_what_follows() {
        let mut out = Vec::new();
        framed(0x0102_0304, &mut out);
        out.extend(b"rest");
        assert_eq!(out, b"\0\x01\x02\x03\x04rest");
        assert_eq!(split(&out), Ok((0x0102_0304, &b"rest"[..])));
        assert!(split(b"\0\0\0\x01").unwrap_err().starts_with("3 bytes where the 4"));
        assert!(split(b"{}").unwrap_err().starts_with("it begins with the byte 123 "));
        assert!(split(b"").is_err());
    }

    #[test]
    fn indexes_as_others_write_them() {
        let mut path = Vec::new();
        // From the documentation of the wire format: [1, 0] is 2, 1, 0, each as a zigzag varint.
        assert_eq!(indexes(&[4, 2, 0, 9], &mut path), Ok(&[9][..]));
        assert_eq!(path, [1, 0]);
        assert_eq!(indexes(&[0, 9], &mut path), Ok(&[9][..]));
        assert_eq!(path, [0]);
        for given in [&[0][..], &[1], &[0, 0], &[3, 200, 0], &[70_000]] {
            let mut out = Vec::new();
            put_indexes(given, &mut out);
            out.push(7);
            assert_eq!(indexes(&out, &mut path), Ok(&[7][..]));
            assert_eq!(path, given);
        }
        for bad in [&[][..], &[1], &[4, 2], &[2, 1], &[0x80], &[0xff; 11], &[200, 1]] {
            assert!(indexes(bad, &mut path).is_err(), "{bad:?}");
        }
    }
}
