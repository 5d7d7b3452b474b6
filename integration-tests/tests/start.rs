//! A start that fails half way says which step failed and leaves nothing behind: no file, no topic, no job.

use std::net::TcpListener;
use std::time::Duration;

use weir_connectors::prelude::*;
use weir_engine::http::HttpPort;
use weir_engine::prelude::*;
use weir_engine::testkit::{Line, NullSink, ScriptSource};
use weir_engine::{Closing, Sink};
use weir_operators::prelude::*;

#[test]
fn a_taken_port_is_named_before_anything_starts() -> anyhow::Result<()> {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let error = HttpPort::bind(&address).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(&address) && error.contains("choose another port"), "{error}");
    let error = HttpPort::bind("not an address").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("\"not an address\"") && error.contains("host:port"), "{error}");
    Ok(())
}

#[test]
fn a_bad_plan_is_refused_by_name_before_anything_starts() {
    let job = Job::named("twice");
    job.source("numbers", ScriptSource::of([(1u64, 1)]))
        .source_time(Watermarks::monotonic())
        .key_by("numbers", |n| *n)
        .process("p", Nothing)
        .sink("null", NullSink);
    let error = job.start().unwrap_err().to_string();
    assert_eq!(error, "plan: uid \"numbers\" names both a source and a key_by: give one of them another uid");

    let job = Job::named("loose");
    let stream = job.source("numbers", ScriptSource::of([(1u64, 1)])).source_time(Watermarks::monotonic());
    drop(stream.map(|n| n + 1));
    let error = job.start().unwrap_err().to_string();
    assert!(error.starts_with("plan: the stream after \"map\" goes nowhere"), "{error}");

    let job = Job::named("rate");
    job.source("numbers", ScriptSource::of([(1u64, 1)]))
        .max_rate(-3.0)
        .source_time(Watermarks::monotonic())
        .sink("null", NullSink);
    assert!(job.start().unwrap_err().to_string().contains("rate of -3"));
}

#[derive(Clone)]
struct Nothing;

impl ProcessFunction<u64, u64> for Nothing {
    type Out = u64;
    type State = ();
    fn process(
        &mut self,
        _: Record<u64>,
        _: &mut KeyedContext<'_, u64, ()>,
        _: &mut impl Collector<u64>,
    ) -> Result<()> {
        Ok(())
    }
}

/// Cannot be opened.
#[derive(Clone)]
struct Broken;

impl Sink<u64> for Broken {
    fn open(&mut self, _: &OperatorContext) -> Result<()> {
        // Late enough for the other sink to have made its topic.
        std::thread::park_timeout(Duration::from_secs(2));
        Err(TaskError::external("the disk is full"))
    }
    fn write(&mut self, _: &mut Vec<Record<u64>>) -> Result<()> {
        unreachable!("no record flows before every operator is open")
    }
    fn close(&mut self, _: Closing) {
        unreachable!("what was not opened is not closed")
    }
}

#[test]
fn a_topic_made_by_a_start_that_fails_is_taken_away_again() -> anyhow::Result<()> {
    let kafka = KafkaConfig::embedded()?;
    let job = Job::named("half").parallelism(1);
    let numbers = job
        .source("numbers", ScriptSource::new(vec![vec![Line::Record(1u64, 1)]]))
        .source_time(Watermarks::monotonic())
        .shared();
    numbers.stream().sink("kafka", KafkaSink::json(&kafka, "made").create_topic(2));
    numbers.stream().sink("broken", Broken);
    let error = job.start()?.wait().unwrap_err().to_string();
    assert_eq!(error, "deploy: job \"half\": operator \"broken\" subtask 0 could not open: the disk is full");
    let broker = kafka.embedded_broker().expect("it is embedded");
    assert_eq!(broker.topic_names(), Vec::<String>::new());
    Ok(())
}
