//! The properties of a sink that writes at once: its defaults, what it lives by, and what it refuses. Pure.

use weir_engine::{Result, TaskError};

use super::config::{Fixed, KafkaConfig};
use super::footprint::BUFFERED_KBYTES;

/// Defaults that differ from the library's.
const DEFAULTS: &[(&str, &str)] = &[
    ("queue.buffering.max.kbytes", BUFFERED_KBYTES),
    ("message.timeout.ms", "120000"),
    ("log.connection.close", "false"),
];
/// Properties that a sink lives by.
pub(super) const FIXED: &[Fixed] = &[
    Fixed {
        property: "delivery.report.only.error",
        value: "false",
        instead: "a sink has to hear of every record that was acknowledged; leave it out",
    },
    Fixed {
        property: "partitioner",
        value: "murmur2_random",
        instead: "a sink sends keys where the Java client does; for other partitions use KafkaSink::partition",
    },
];
/// Properties, or values of them, with which no sink keeps its word, and what to do instead.
const REFUSED: &[(&str, Option<&str>, &str)] = &[
    (
        "acks",
        Some("0"),
        "brokers would acknowledge nothing, and what is lost would not be written again; use all, or 1",
    ),
    (
        "transactional.id",
        None,
        "transactions come with KafkaSink::exactly_once(ExactlyOnce::named(…)); leave it out",
    ),
];
const IDEMPOTENCE: &str = "enable.idempotence";
const IN_FLIGHT: &str = "max.in.flight.requests.per.connection";
/// The most that an idempotent client may have on its way.
const MOST_IN_FLIGHT: u64 = 5;

/// Refuses what no sink that writes at once can have.
pub(super) fn check(config: &KafkaConfig) -> Result<()> {
    for (property, value, instead) in REFUSED {
        let set = config.get(property).filter(|set| value.is_none_or(|value| value == *set));
        if let Some(set) = set {
            return Err(TaskError::user(format!(
                "Kafka property {property}={set} cannot be used: {instead}"
            )));
        }
    }
    Ok(())
}

/// What is set unless the user sets it. The client is idempotent unless a property forbids that; without, one request is on its way at a
/// time, since what is sent again would come behind what was sent after it.
pub(super) fn defaults(config: &KafkaConfig) -> Vec<(&str, &str)> {
    let mut defaults = DEFAULTS.to_vec();
    defaults.push(if is_idempotent(config) { (IDEMPOTENCE, "true") } else { (IN_FLIGHT, "1") });
    defaults
}

fn is_idempotent(config: &KafkaConfig) -> bool {
    let all = config.get("acks").is_none_or(|acks| matches!(acks, "all" | "-1"));
    let retries = config.number("message.send.max.retries", 1) > 0;
    let in_flight = config.number(IN_FLIGHT, MOST_IN_FLIGHT) <= MOST_IN_FLIGHT;
    let wanted = config.get(IDEMPOTENCE).is_none_or(|set| !matches!(set, "false" | "f" | "0"));
    wanted && all && retries && in_flight
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kafka() -> KafkaConfig {
        KafkaConfig::brokers("k:1")
    }

    #[test]
    fn what_would_lose_records_is_refused() {
        for (property, value, said) in [
            ("acks", "0", "Kafka property acks=0 cannot be used: brokers would acknowledge nothing"),
            ("request.required.acks", "0", "Kafka property acks=0 cannot be used"),
            (
                "transactional.id",
                "x",
                "Kafka property transactional.id=x cannot be used: transactions come with",
            ),
        ] {
            let e = check(&kafka().set(property, value)).unwrap_err().to_string();
            assert!(e.starts_with(said), "{e}");
        }
        for (property, value) in [("delivery.report.only.error", "true"), ("partitioner", "random")] {
            let e = kafka().set(property, value).client(&[], FIXED).unwrap_err().to_string();
            assert!(e.starts_with(&format!("Kafka property {property}={value} cannot be used: ")), "{e}");
        }
        for (property, value) in [("acks", "all"), ("acks", "1"), ("linger.ms", "0")] {
            assert!(check(&kafka().set(property, value)).is_ok());
        }
    }

    #[test]
    fn records_stay_in_order_with_and_without_idempotence() {
        let last = |config: KafkaConfig| {
            let (property, value) = *defaults(&config).last().unwrap();
            // The library takes it.
            let client = config.client(&defaults(&config), FIXED).unwrap();
            assert!(client.create_native_config().is_ok());
            format!("{property}={value}")
        };
        for (property, value) in [("acks", "-1"), (IN_FLIGHT, "5"), (IN_FLIGHT, "1"), ("retries", "3")] {
            assert_eq!(last(kafka().set(property, value)), "enable.idempotence=true", "{property}={value}");
        }
        for (property, value) in [("acks", "1"), (IN_FLIGHT, "6"), ("retries", "0"), (IDEMPOTENCE, "false")] {
            let said = last(kafka().set(property, value));
            assert_eq!(said, format!("{IN_FLIGHT}=1"), "{property}={value}");
        }
    }
}
