//! The options of examples that reach Kafka, and what they make of a configuration.

use std::{fmt, fs};

use clap::Args;
use weir_connectors::kafka::KafkaConfig;

/// Brokers, and properties of the client. Not printed: a property may be a secret.
#[derive(Args, Clone)]
pub struct Kafka {
    /// Kafka brokers, host:port[,…].
    #[arg(long, env = "KAFKA_BROKERS", value_name = "LIST")]
    pub brokers: Option<String>,
    /// Sets a property of librdkafka, such as security.protocol=SASL_PLAINTEXT; once per property. PROPERTY=@FILE takes the
    /// value from a file, as secrets are mounted.
    #[arg(long, value_name = "PROPERTY=VALUE", value_parser = property)]
    pub set: Vec<(String, String)>,
}

impl Kafka {
    /// How to reach the brokers; none when none were named.
    pub fn config(&self) -> Option<KafkaConfig> {
        let brokers = self.brokers.as_ref().filter(|list| !list.trim().is_empty())?;
        Some(self.with(KafkaConfig::brokers(brokers)))
    }

    /// The same properties for other brokers.
    pub fn with(&self, config: KafkaConfig) -> KafkaConfig {
        self.set.iter().fold(config, |kafka, (property, value)| kafka.set(property, value))
    }
}

impl fmt::Debug for Kafka {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set: Vec<_> = self.set.iter().map(|(property, _)| property).collect();
        f.debug_struct("Kafka").field("brokers", &self.brokers).field("set", &set).finish()
    }
}

fn property(text: &str) -> Result<(String, String), String> {
    // Without the value: it may be a secret.
    let (property, value) = text.split_once('=').ok_or("write PROPERTY=VALUE")?;
    let value = match value.strip_prefix('@') {
        Some(file) => {
            let text =
                fs::read_to_string(file).map_err(|e| format!("{property}: cannot read {file}: {e}"))?;
            text.trim_end_matches(['\n', '\r']).to_owned()
        }
        None => value.to_owned(),
    };
    Ok((property.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_is_a_value_or_what_a_file_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("password");
        fs::write(&file, "hunter=2\n").expect("a file");
        let said = property(&format!("sasl.password=@{}", file.display()));
        assert_eq!(said, Ok(("sasl.password".into(), "hunter=2".into())));
        assert_eq!(property("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(property("secret").is_err_and(|e| !e.contains("secret")));
        assert!(property("a=@/nowhere").is_err_and(|e| e.contains("a: cannot read /nowhere")));
    }
}
