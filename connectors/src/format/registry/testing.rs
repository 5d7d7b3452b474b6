//! A schema registry inside a test: it answers as Confluent's REST documentation says, no more than the formats ask for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::SchemaRegistry;
use crate::web::testing::{Asked, Said, Server};

#[derive(Default)]
struct Held {
    /// By id: what is answered.
    schemas: BTreeMap<u32, Value>,
    /// By subject: ids by version, from 1.
    subjects: BTreeMap<String, Vec<u32>>,
    /// What is answered instead, this many times.
    failing: Option<(u32, u16)>,
}

/// Gone when dropped.
pub(crate) struct TestRegistry {
    server: Server,
    held: Arc<Mutex<Held>>,
}

impl TestRegistry {
    pub(crate) fn new() -> Self {
        let held = Arc::<Mutex<Held>>::default();
        let answers = held.clone();
        TestRegistry { server: Server::new(move |asked| answer(&mut answers.lock().unwrap(), asked)), held }
    }

    /// Puts a schema under a subject.
    pub(crate) fn put(&self, id: u32, subject: &str, schema: Value) {
        let mut held = self.held.lock().unwrap();
        held.schemas.insert(id, schema);
        held.subjects.entry(subject.to_owned()).or_default().push(id);
    }

    /// The next requests are answered with this status.
    pub(crate) fn fail(&self, times: u32, status: u16) {
        self.held.lock().unwrap().failing = Some((times, status));
    }

    pub(crate) fn client(&self) -> SchemaRegistry {
        SchemaRegistry::at(self.server.url())
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.server.asked().into_iter().map(|asked| format!("{} {}", asked.method, asked.path)).collect()
    }

    pub(crate) fn requests(&self) -> Vec<Asked> {
        self.server.asked()
    }
}

fn answer(held: &mut Held, asked: &Asked) -> Said {
    let said = |status, body: Value| (status, Vec::new(), body.to_string());
    if let Some((times, status)) = held.failing.filter(|(times, _)| *times > 0) {
        held.failing = Some((times - 1, status));
        return said(status, json!({"error_code": u32::from(status) * 100 + 1, "message": "not now"}));
    }
    let path = asked.path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match (asked.method.as_str(), &parts[..]) {
        ("GET", ["schemas", "ids", id]) => match id.parse().ok().and_then(|id: u32| held.schemas.get(&id)) {
            Some(schema) => said(200, schema.clone()),
            None => said(404, json!({"error_code": 40403, "message": "Schema not found"})),
        },
        ("GET", ["subjects", subject, "versions", version]) => {
            let ids = held.subjects.get(*subject);
            let id = ids.and_then(|ids| ids.get(version.parse::<usize>().ok()?.checked_sub(1)?));
            match id.and_then(|id| held.schemas.get(id)) {
                Some(schema) => said(200, schema.clone()),
                None => said(404, json!({"error_code": 40401, "message": "Subject not found"})),
            }
        }
        ("POST", ["subjects", subject, "versions"]) => {
            let mut schema: Value = serde_json::from_str(&asked.body).unwrap();
            if schema["schemaType"] == "AVRO" {
                schema.as_object_mut().unwrap().remove("schemaType");
            }
            let there = held.schemas.iter().find(|(_, held)| held["schema"] == schema["schema"]);
            let id = there.map_or_else(|| held.schemas.keys().next_back().unwrap_or(&0) + 1, |(id, _)| *id);
            held.schemas.insert(id, schema);
            held.subjects.entry((*subject).to_owned()).or_default().push(id);
            said(200, json!({"id": id}))
        }
        _ => said(404, json!({"error_code": 404, "message": "HTTP 404 Not Found"})),
    }
}
