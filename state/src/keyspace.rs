//! How the keys of a state database are laid out, frozen by golden tests: group first, so that rescaling is a range.
//!
//! `group: u16 BE | table: u16 BE | [namespace: i64, sign flipped, BE] | key`. Namespaces are for windows: all keys of one
//! namespace lie together within a group, so that forgetting a window is one range delete per group.

use std::ops::Range;

use crate::key::KeyGroup;

/// How many bytes the group and the table take.
pub const PREFIX: usize = 4;

/// The bytes that every key of a table in one group begins with.
#[inline]
pub const fn prefix(group: KeyGroup, table: u16) -> [u8; PREFIX] {
    let (g, t) = (group.0.to_be_bytes(), table.to_be_bytes());
    [g[0], g[1], t[0], t[1]]
}

/// The bytes of a namespace: in the order of the numbers, negative ones first.
#[inline]
pub const fn namespace(of: i64) -> [u8; 8] {
    ((of as u64) ^ (1 << 63)).to_be_bytes()
}

/// The namespace that these bytes are.
#[inline]
pub const fn namespace_of(bytes: [u8; 8]) -> i64 {
    (u64::from_be_bytes(bytes) ^ (1 << 63)) as i64
}

/// The group and the table of a key, if it has both.
#[inline]
pub fn split(key: &[u8]) -> Option<(KeyGroup, u16)> {
    let (&[g0, g1, t0, t1], _) = key.split_first_chunk::<PREFIX>()?;
    Some((KeyGroup(u16::from_be_bytes([g0, g1])), u16::from_be_bytes([t0, t1])))
}

/// The least key greater than every key that begins with `prefix`; empty when there is none, which
/// [`scan`](crate::backend::StateBackend::scan) takes as no bound.
pub fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|b| *b != 0xFF).map_or(0, |last| last + 1);
    let mut end = prefix[..kept].to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// The keys of these groups, as bounds for [`scan`](crate::backend::StateBackend::scan).
pub fn bounds_of(groups: Range<u16>) -> (Vec<u8>, Vec<u8>) {
    (groups.start.to_be_bytes().to_vec(), groups.end.to_be_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_frozen() {
        assert_eq!(prefix(KeyGroup(0x0102), 0x0304), [1, 2, 3, 4]);
        assert_eq!(namespace(0), [0x80, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(namespace(-1), [0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
        assert_eq!(namespace(i64::MIN), [0; 8]);
        assert_eq!(namespace(1_511_539_200_000), [0x80, 0, 0x01, 0x5F, 0xEE, 0xC1, 0xD0, 0]);
        for ns in [i64::MIN, -1, 0, 1, i64::MAX] {
            assert_eq!(namespace_of(namespace(ns)), ns);
        }
        assert_eq!(split(&[1, 2, 3, 4, 5]), Some((KeyGroup(0x0102), 0x0304)));
        assert_eq!(split(&[1, 2, 3]), None);
        assert_eq!(bounds_of(1..256), (vec![0, 1], vec![1, 0]));
    }

    #[test]
    fn e29_the_end_of_a_prefix_is_right_even_when_it_has_no_successor() {
        assert_eq!(after_prefix(b"g"), b"h");
        assert_eq!(after_prefix(&[1, 0xFF]), [2]);
        assert_eq!(after_prefix(&[0xFF, 0xFE, 0xFF, 0xFF]), [0xFF, 0xFF]);
        assert_eq!(after_prefix(&[0xFF, 0xFF]), b"");
        assert_eq!(after_prefix(b""), b"");
    }
}
