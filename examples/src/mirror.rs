//! The job of the `mirror` example: one topic into another, record for record, exactly once.

use weir_connectors::kafka::{ExactlyOnce, KafkaConfig, KafkaRecord, KafkaSink, KafkaSource};
use weir_engine::prelude::*;

/// Where from and where to.
#[derive(Clone, Debug)]
pub struct Mirror {
    /// The cluster that is read.
    pub from: KafkaConfig,
    /// Its topic.
    pub topic: String,
    /// The cluster that is written.
    pub to: KafkaConfig,
    /// Its topic, with at least as many partitions: a record stays in the partition that it was in.
    pub copy: String,
    /// The name of the sink in the cluster that is written, which no other may have.
    pub name: String,
    /// Begins from a checkpoint although records may come twice then.
    pub accept_duplicates: bool,
}

impl Mirror {
    /// Adds the streams to a job that takes checkpoints. Keys, payloads, tombstones, headers and times stay as they are.
    pub fn build(&self, job: &Job) {
        let mut how = ExactlyOnce::named(&self.name);
        if self.accept_duplicates {
            how = how.accept_duplicates();
        }
        let sink = KafkaSink::records(&self.to, &self.copy)
            .partition(|record: &KafkaRecord| record.partition)
            .exactly_once(how);
        job.source("original", KafkaSource::records(&self.from).topic(&self.topic))
            .without_event_time()
            .sink("copy", sink);
    }
}
