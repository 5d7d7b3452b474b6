//! Where reading begins: an offset that is known to be there, or an error that says what is. Pure.

use weir_engine::{Result, TaskError};

use super::source::Start;

/// Says that the wanted offset is not there, what is, and what to do.
pub(super) fn gone(topic: &str, partition: i32, wanted: i64, low: i64, high: i64) -> String {
    let why = if wanted < low {
        "records were deleted before they were read: keep them longer, let their writer follow this reader, or skip them \
         with Start::Earliest"
    } else {
        "the log is shorter than that: it was cut, or the topic made anew; begin with Start::Earliest or Start::Latest"
    };
    format!(
        "topic {topic}, partition {partition}: offset {wanted} is gone, the broker has {low} up to {high} (which is the \
         next to be written); {why}"
    )
}

/// The offset to begin at in a partition that has `low` up to `high`.
pub(super) fn first_offset(start: &Start, topic: &str, partition: i32, low: i64, high: i64) -> Result<i64> {
    match start {
        Start::Earliest => Ok(low),
        Start::Latest => Ok(high),
        Start::Offsets(offsets) => match offsets.get(&(topic.to_owned(), partition)) {
            None => Ok(low),
            Some(&wanted) if (low..=high).contains(&wanted) => Ok(wanted),
            Some(&wanted) => Err(TaskError::external(gone(topic, partition, wanted, low, high))),
        },
    }
}

/// Refuses start offsets of partitions that are not there: a mistyped topic would be read from its beginning.
pub(super) fn check_offsets(start: &Start, topics: &[String], counts: &[u32]) -> Result<()> {
    let Start::Offsets(offsets) = start else { return Ok(()) };
    for (topic, partition) in offsets.keys() {
        let count = topics.iter().position(|t| t == topic).map(|i| counts[i]);
        let message = match count {
            None => format!("Start::Offsets names topic {topic}, which the source does not read"),
            Some(n) if !(0..n as i32).contains(partition) => {
                format!("Start::Offsets names partition {partition} of topic {topic}, which has {n}")
            }
            Some(_) => continue,
        };
        return Err(TaskError::user(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_begin() {
        let at = |offset| Start::Offsets([(("t".to_owned(), 0), offset)].into());
        assert_eq!(first_offset(&Start::Earliest, "t", 0, 5, 9).unwrap(), 5);
        assert_eq!(first_offset(&Start::Latest, "t", 0, 5, 9).unwrap(), 9);
        assert_eq!(first_offset(&at(7), "t", 0, 5, 9).unwrap(), 7);
        assert_eq!(
            first_offset(&at(9), "t", 0, 5, 9).unwrap(),
            9,
            "the next to be written is there to wait for"
        );
        assert_eq!(first_offset(&at(7), "t", 1, 5, 9).unwrap(), 5, "not named");
        let e = first_offset(&at(4), "t", 0, 5, 9).unwrap_err().to_string();
        assert!(e.starts_with("topic t, partition 0: offset 4 is gone, the broker has 5 up to 9"), "{e}");
        assert!(e.contains("deleted before they were read"), "{e}");
        assert!(first_offset(&at(10), "t", 0, 5, 9).unwrap_err().to_string().contains("the log is shorter"));
        assert!(first_offset(&at(-1), "t", 0, 5, 9).is_err());
    }

    #[test]
    fn offsets_of_what_is_not_read_are_refused() {
        let topics = ["t".to_owned()];
        let of = |t: &str, p| Start::Offsets([((t.to_owned(), p), 0)].into());
        assert!(check_offsets(&of("t", 1), &topics, &[2]).is_ok());
        let e = check_offsets(&of("t", 2), &topics, &[2]).unwrap_err().to_string();
        assert_eq!(e, "Start::Offsets names partition 2 of topic t, which has 2");
        assert!(check_offsets(&of("u", 0), &topics, &[2]).is_err());
    }
}
