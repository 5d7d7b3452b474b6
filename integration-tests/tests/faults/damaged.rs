//! Files of the newest checkpoint that are cut short or have a bit turned: the restore refuses, and names the file.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use weir_engine::prelude::*;
use weir_engine::testkit::run_within;

use crate::rig::*;

/// The job's first life, and nothing of it left but its checkpoints. Gives the newest two.
fn one_life(rig: &Rig) -> (u64, u64) {
    let job = rig.job(2, None, 10_000.0, rig.checkpoints()).start().unwrap();
    until_completed(&job, 3);
    cancelled(&job);
    fs::remove_dir_all(rig.at("state")).unwrap();
    let mut ids: Vec<u64> = manifests(rig).into_iter().map(|(id, _)| id).collect();
    ids.sort_unstable();
    assert_eq!(ids.len(), 2, "two are kept");
    (ids[0], ids[1])
}

fn manifests(rig: &Rig) -> Vec<(u64, PathBuf)> {
    let folder = rig.at("checkpoints").join("damage").join("checkpoints");
    let entries = fs::read_dir(folder).unwrap().flatten().map(|e| e.path());
    entries
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap();
            (name.split('-').next().unwrap().parse().unwrap(), path)
        })
        .collect()
}

fn manifest(rig: &Rig, id: u64) -> (PathBuf, Value) {
    let (_, path) = manifests(rig).into_iter().find(|(of, _)| *of == id).unwrap();
    let manifest = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    (path, manifest)
}

/// The data files of a checkpoint, as its manifest names them.
fn files(manifest: &Value, into: &mut Vec<String>) {
    match manifest {
        Value::Object(fields) => {
            if let (Some(Value::String(path)), true) = (fields.get("path"), fields.contains_key("checksum")) {
                into.push(path.clone());
            }
            fields.values().for_each(|value| files(value, into));
        }
        Value::Array(values) => values.iter().for_each(|value| files(value, into)),
        _ => {}
    }
}

fn refused(rig: &Rig) -> String {
    let refused = run_within(rig.job(2, None, 1_000.0, rig.checkpoints()), SOON).unwrap_err();
    refused.to_string()
}

#[test]
fn a_damaged_file_of_the_newest_checkpoint_is_refused_by_name() {
    let rig = Rig::in_folder("damage");
    let (older, newest) = one_life(&rig);
    let (_, newest_manifest) = manifest(&rig, newest);
    let (mut of_newest, mut of_older) = (Vec::new(), Vec::new());
    files(&newest_manifest, &mut of_newest);
    files(&manifest(&rig, older).1, &mut of_older);
    let only = of_newest.iter().find(|f| f.ends_with(".sst") && !of_older.contains(f)).unwrap();
    let path = rig.at("checkpoints").join("damage").join(only);
    let whole = fs::read(&path).unwrap();

    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let text = refused(&rig);
    let told = format!("expected {} bytes, found {} bytes", whole.len(), whole.len() / 2);
    assert!(text.contains(only.as_str()) && text.contains(&told), "{text}");
    assert!(text.contains("is damaged") && text.contains("restore from another checkpoint"), "{text}");

    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0x10;
    fs::write(&path, flipped).unwrap();
    let text = refused(&rig);
    assert!(text.contains(only.as_str()) && text.contains("expected checksum "), "{text}");

    fs::remove_file(&path).unwrap();
    let text = refused(&rig);
    assert!(text.contains(only.as_str()) && text.contains("is missing"), "{text}");

    // Nothing but refusals: with the file as it was the job goes on as if it had not happened.
    fs::write(&path, whole).unwrap();
    rig.finish(2);
}

#[test]
fn a_damaged_manifest_is_refused_by_name_and_an_older_checkpoint_is_taken_only_when_named() {
    let rig = Rig::in_folder("damage");
    let (older, newest) = one_life(&rig);
    let (path, _) = manifest(&rig, newest);
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for damaged in [&whole[..whole.len() - 20], &flipped] {
        fs::write(&path, damaged).unwrap();
        let text = refused(&rig);
        assert!(text.contains(&name) && text.contains("cannot be read"), "{text}");
        assert!(text.contains("restore from another checkpoint or savepoint by name"), "{text}");
    }
    // The older one is whole. Its sinks have shown what came after it already, so that is seen twice.
    let from_older = rig.checkpoints().start_from(StartFrom::Checkpoint(older));
    let n = rig.enough();
    finished(rig.job(2, Some(n), 1_000_000.0, from_older));
    let mut lines = rig.lines();
    lines.dedup();
    assert!(lines == expected(n), "{} lines, expected {n}", lines.len());
}
