//! The manifest's JSON is frozen: a change of it is a change of [`MANIFEST_FORMAT`].

use std::collections::BTreeMap;

use super::*;
use crate::checkpoint::document;
use crate::codec::CodecId;
use crate::ttl::Ttl;

fn manifest() -> Manifest {
    let table = TableMeta {
        name: "counts".into(),
        id: 1,
        key_codec: CodecId::BINCODE,
        value_codec: CodecId::POSTCARD,
        version: 2,
        oldest: 1,
        ttl: Some(Ttl::event_time(std::time::Duration::from_secs(60))),
        adopted_at: Some(-5),
    };
    let offsets = BTreeMap::from([
        ("behaviour-0".to_owned(), serde_json::json!({"next": 9_007_199_254_740_993_u64})),
        ("behaviour-1".to_owned(), serde_json::json!({"next": 0})),
    ]);
    let file = StoredFile {
        name: "000012.sst".into(),
        path: "shared/by-user/1/00000000000000ff-000012.sst".into(),
        bytes: 4_096,
        checksum: "99aa06d3014798d86001c324468d497f".into(),
    };
    let part = |subtask: usize, key_groups: Range<u16>| Part {
        subtask,
        key_groups,
        format: PartFormat::Rocks,
        tables: vec![table.clone()],
        items: Items::new(),
        files: vec![file.clone()],
        finished: false,
    };
    let source = Part {
        format: PartFormat::Portable,
        tables: Vec::new(),
        files: Vec::new(),
        items: BTreeMap::from([("offsets".to_owned(), offsets)]),
        finished: true,
        ..part(0, 0..128)
    };
    Manifest {
        format: MANIFEST_FORMAT,
        job: "user-profile".into(),
        lineage: "5f1d0a".into(),
        id: 42,
        epoch: 7,
        kind: Kind::Checkpoint,
        attempt: 3,
        key_groups: 128,
        triggered_ms: 1_764_443_852_000,
        completed_ms: 1_764_443_852_480,
        mode: Mode::ExactlyOnce,
        operators: vec![
            OperatorState {
                uid: "behaviour".into(),
                kind: "source".into(),
                parallelism: 1,
                parts: vec![source],
            },
            OperatorState {
                uid: "by-user".into(),
                kind: "window".into(),
                parallelism: 2,
                parts: vec![part(0, 0..64), part(1, 64..128)],
            },
        ],
    }
}

#[test]
fn golden() {
    let written = String::from_utf8(document::write(&manifest())).unwrap();
    let golden = include_str!("manifest_golden.json");
    assert_eq!(written, golden, "the format changed: give it another number");
    assert_eq!(document::read::<Manifest>(golden.as_bytes(), MANIFEST_FORMAT).unwrap(), manifest());
}

#[test]
fn it_adds_up() {
    let manifest = manifest();
    assert_eq!(manifest.key().to_string(), "42 (lease epoch 7)");
    assert_eq!(manifest.bytes(), 8_192);
    assert_eq!(manifest.files().count(), 2);
    assert_eq!(manifest.operator("by-user").unwrap().parts[1].bytes(), 4_096);
    assert!(manifest.operator("gone").is_none());
}
