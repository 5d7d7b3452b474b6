//! Which properties' values are shown nowhere: secrets, and what may be one under a mistyped name. Pure.

/// Stands for a value that must not be shown.
pub(super) const NOT_SHOWN: &str = "(not shown)";
/// What the names of properties have in them whose values may be secrets, those of Java's clients and mistyped ones too.
const SECRETS: &[&str] = &[
    "assertion.private",
    "credential",
    "jaas",
    "kinit",
    "oauthbearer.config",
    "passphrase",
    "passw",
    "secret",
    "ssl.key",
    "ssl_key",
    "token",
    "username",
];

/// How the names of properties about security end that are no secrets; what is about security and none of these may be one, mistyped.
const OPEN: &[&str] = &[
    ".algorithm",
    ".curves.list",
    ".location",
    ".mechanisms",
    ".method",
    ".principal",
    ".providers",
    ".scope",
    ".service.name",
    ".sigalgs.list",
    ".suites",
];

/// True for properties whose values must not be shown.
pub(super) fn is_secret(property: &str) -> bool {
    let property = property.to_ascii_lowercase();
    // Where a token is to be had is no secret, and has to be seen when it is wrong.
    if property.ends_with("endpoint.url") {
        return false;
    }
    let of_security = property.starts_with("sasl.") || property.starts_with("ssl.");
    SECRETS.iter().any(|part| property.contains(part))
        || of_security && !OPEN.iter().any(|end| property.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::super::KafkaConfig;
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let secrets = [
            "sasl.password",
            "ssl.key.password",
            "ssl.keystore.password",
            "ssl.key.pem",
            "ssl.key.location",
            "sasl.jaas.config",
            "SASL.PASSWORD",
            "sasl.pasword.txt.passwd",
            "sasl.pasword",
            "ssl.keystore.pw",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.assertion.private.key.pem",
            "sasl.oauthbearer.config",
        ];
        let config = secrets.iter().fold(KafkaConfig::brokers("k:1"), |c, s| c.set(*s, "hidden"));
        let shown = format!("{:?}", config.set("client.id", "seen"));
        assert!(!shown.contains("hidden") && shown.contains("seen"), "{shown}");
        let open = ["sasl.mechanisms", "ssl.ca.location", "sasl.oauthbearer.token.endpoint.url", "acks"];
        assert!(open.iter().all(|property| !is_secret(property)));
    }
}
