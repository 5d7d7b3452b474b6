//! `make bench`: each benchmark checks its result, compares with a baseline in the same run, and prints a table and JSON.

mod broker;
mod checkpointed;
mod cli;
mod exchange;
mod json;
mod kafka;
mod measure;
mod rows;
mod sessions;
mod sliding;
mod tumbling;
mod windows;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run(&[
        ("exchange", exchange::run),
        ("kafka", kafka::run),
        ("broker-source", broker::source),
        ("broker-exactly-once", broker::exactly_once),
        ("broker-latency", broker::latency),
        ("count", checkpointed::count),
        ("checkpoints", checkpointed::every_second),
        ("tumbling-memory-100k", tumbling::memory),
        ("tumbling-memory-1m", tumbling::memory_1m),
        ("tumbling-rocksdb-100k", tumbling::rocksdb),
        ("tumbling-rocksdb-1m", tumbling::rocksdb_1m),
        ("sliding", sliding::dense),
        ("sliding-sparse", sliding::sparse),
        ("sessions", sessions::run),
        ("json-buys", json::buys),
        ("json-uv", json::visitors),
        ("json-uv-rocksdb", json::visitors_on_rocksdb),
    ])
}
