//! What a topic may be called and into how many partitions it may be cut: Kafka's rules, held before the client is asked.
//!
//! The client library is C: what it does not expect aborts the process, or is taken and never heard of again.

use super::assign::PER_TOPIC;
use super::config::KafkaSetupError;

/// The longest name.
const LONGEST: usize = 249;

/// Checks the name of a topic.
pub(super) fn check_name(topic: &str) -> Result<(), KafkaSetupError> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if (1..=LONGEST).contains(&topic.len()) && !matches!(topic, "." | "..") && topic.bytes().all(legal) {
        return Ok(());
    }
    Err(KafkaSetupError::Name { topic: topic.to_owned() })
}

/// Checks a topic that is to be created.
pub(super) fn check_new(topic: &str, partitions: i32) -> Result<(), KafkaSetupError> {
    check_name(topic)?;
    if (1..=PER_TOPIC as i32).contains(&partitions) {
        return Ok(());
    }
    Err(KafkaSetupError::Count { topic: topic.to_owned(), wanted: partitions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kafkas() {
        let longest = "x".repeat(LONGEST);
        for good in ["a", "A-b_c.9", "...", ".a", &longest] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        let too_long = "x".repeat(LONGEST + 1);
        for bad in ["", ".", "..", "a b", "a/b", "ü", "a\0b", "a\n", &too_long] {
            let e = check_name(bad).unwrap_err().to_string();
            assert!(e.starts_with(&format!("{bad:?} cannot be a topic's name: ")), "{e}");
        }
    }

    #[test]
    fn partitions_are_counted_from_one() {
        assert!(check_new("t", 1).is_ok() && check_new("t", 65_536).is_ok());
        for bad in [0, -1, i32::MIN, 65_537, i32::MAX] {
            let e = check_new("t", bad).unwrap_err().to_string();
            assert_eq!(e, format!("topic t cannot have {bad} partitions: ask for 1 to 65536"));
        }
    }
}
