//! Processes of their own, to be killed.

use std::process::{Child, Command, Stdio};

use crate::{mirror, profile, wide};

/// What a child is to do: its presence makes a child of this program.
const DO: &str = "WEIR_KAFKA_TEST";

/// This program, begun to do `what` as it is told.
pub(crate) fn begin(what: &str, told: &[&str]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "children::as_a_child", "--nocapture", "--test-threads", "1"])
        .env(DO, [&[what], told].concat().join("|"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test of its own: what the others run.
#[test]
fn as_a_child() {
    let Ok(told) = std::env::var(DO) else { return };
    let told: Vec<&str> = told.split('|').collect();
    match told.split_first() {
        Some((&"mirror", told)) => mirror::child(told),
        Some((&"profile", told)) => profile::child(told),
        Some((&"wide", told)) => wide::child(told),
        other => panic!("no such child: {other:?}"),
    }
}
