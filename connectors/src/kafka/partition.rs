//! Which partition a key belongs to: exactly what the Java client's default partitioner says, forever.

/// The partition of `key` among `partitions`: murmur2 over the key's bytes, sign bit masked, modulo.
///
/// # Panics
/// When `partitions` is not above 0.
#[inline]
pub fn partition_of(key: &[u8], partitions: i32) -> i32 {
    assert!(partitions > 0, "a topic has at least one partition, not {partitions}");
    (murmur2(key) & 0x7fff_ffff) % partitions
}

/// The Java client's murmur2 (`org.apache.kafka.common.utils.Utils.murmur2`), as a Java `int`.
pub fn murmur2(key: &[u8]) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let mut h = 0x9747_b28c ^ key.len() as u32;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (i, byte) in rest.iter().enumerate() {
            h ^= u32::from(*byte) << (8 * i);
        }
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    (h ^ (h >> 15)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e51_keys_go_where_the_java_client_sends_them() {
        for (key, partitions, expected) in [("wu", 10, 0), ("thingäöüÄÖÜ", 10, 2), ("100:48069", 12, 9)]
        {
            assert_eq!(partition_of(key.as_bytes(), partitions), expected, "{key:?} of {partitions}");
        }
    }

    /// The vectors of Apache Kafka's own UtilsTest.testMurmur2.
    #[test]
    fn e51_hashes_are_those_of_kafkas_own_test() {
        for (key, expected) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()), expected, "{key:?}");
        }
    }

    /// By hand from the definition: no bytes leave the seed, 0x9747b28c, to the three final steps.
    #[test]
    fn e51_the_empty_key_has_a_partition() {
        assert_eq!(murmur2(b""), 275_646_681);
        assert_eq!(partition_of(b"", 10), 1);
        assert_eq!(partition_of(b"", 1), 0);
    }

    /// The vectors of librdkafka's own test, with every length of tail.
    #[test]
    fn e51_hashes_are_those_of_librdkafkas_own_test() {
        for (key, expected) in [
            ("kafka", 0xd067_cf64_u32),
            ("giberish123456789", 0x8f55_2b0c),
            ("1234", 0x9fc9_7b14),
            ("234", 0xe7c0_09ca),
            ("34", 0x8739_30da),
            ("4", 0x5a4b_5ca1),
            ("PreAmbleWillBeRemoved,ThePrePartThatIs", 0x7842_4f1c),
            ("eAmbleWillBeRemoved,ThePrePartThatIs", 0xe0e4_e09e),
            ("", 0x106e_08d9),
        ] {
            assert_eq!(murmur2(key.as_bytes()), expected as i32, "{key:?}");
        }
    }

    /// Bytes above 127, which Java reads as negative numbers; computed with the Java method.
    #[test]
    fn e51_high_bytes_are_not_sign_extended() {
        let bytes = [0xff, 0x80, 0x7f, 0x01, 0xfe];
        let got: Vec<i32> = (1..=5).map(|n| murmur2(&bytes[..n])).collect();
        assert_eq!(got, [-311_467_685, -442_788_720, 968_261_134, -915_579_531, -1_077_304_306]);
    }
}
