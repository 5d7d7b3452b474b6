//! What was changed, cut short or lost in the storage is refused by name, never restored and never passed over.

use super::support::*;
use crate::checkpoint::faults::{Call, Fault, FaultyStore};
use crate::checkpoint::*;

async fn two_checkpoints(faulty: &FaultyStore, local: &mut Local) -> (CheckpointStore, Lease) {
    let store = over(faulty, options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut previous = None;
    for id in 1..=2 {
        local.write(&format!("00000{id}.sst"), &noise(1_000, id));
        let names = ["000001.sst", "000002.sst"];
        let frozen = local.freeze(0, &names[..usize::try_from(id).unwrap()]);
        let (saved, _) = checkpoint(&store, &lease, id, frozen, previous.as_ref()).await.unwrap();
        previous = Some(only_part(&saved).clone());
    }
    (store, lease)
}

#[tokio::test(start_paused = true)]
async fn a_data_file_that_was_cut_changed_or_lost_is_named() {
    for (fault, expected) in [
        (Fault::Truncate, "is damaged: expected 1000 bytes, found 500 bytes; restore from another"),
        (Fault::FlipBit, "is damaged: expected checksum "),
    ] {
        let faulty = FaultyStore::memory();
        faulty.inject(Call::Put, "000002.sst", fault);
        let mut local = Local::new();
        let (store, _lease) = two_checkpoints(&faulty, &mut local).await;
        let saved = store.latest().await.unwrap().unwrap();
        let into = local.path().join("restored");
        let error = saved.download_part(only_part(&saved), &into, &[]).await.unwrap_err();
        assert!(matches!(error, CheckpointError::Damaged { .. }) && !error.is_transient());
        let text = error.to_string();
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("000002.sst' in checkpoint storage 'faulty InMemory'"), "{text}");
        assert!(!into.join("000002.sst").exists(), "no damaged file stays behind");
        // The one before is whole.
        let first = store.load(1).await.unwrap();
        first.download_part(only_part(&first), &local.path().join("first"), &[]).await.unwrap();

        store.0.storage.delete(vec![only_part(&saved).files[1].path.clone()]).await.unwrap();
        let error = saved.download_part(only_part(&saved), &into, &[]).await.unwrap_err().to_string();
        assert!(
            error.contains("is missing from checkpoint storage") && error.contains("000002.sst"),
            "{error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_newest_manifest_that_cannot_be_read_is_an_error_not_an_older_checkpoint() {
    let faulty = FaultyStore::memory();
    let mut local = Local::new();
    let (store, lease) = two_checkpoints(&faulty, &mut local).await;
    let path = store.list().await.unwrap()[1].path();
    let whole = store.0.storage.read(&path).await.unwrap().unwrap();
    let flipped = {
        let mut bytes = whole.to_vec();
        let at = bytes.windows(4).position(|w| w == b"1000").unwrap();
        bytes[at] = b'3';
        bytes
    };
    let newer = String::from_utf8(whole.to_vec()).unwrap().replacen("\"format\": 1", "\"format\": 2", 1);
    for (bytes, expected) in [
        (whole[..whole.len() / 2].to_vec(), "cannot be read: it is not the JSON expected: EOF"),
        (b"garbage".to_vec(), "cannot be read: it is not the JSON expected: expected value at line 1"),
        (Vec::new(), "cannot be read: it is empty"),
        (flipped, "cannot be read: it was changed after it was written"),
        (newer.into_bytes(), "has format 2, this build reads 1; use the version of weir that wrote it"),
    ] {
        store.0.storage.put(&path, bytes).await.unwrap();
        // A process that has not read it before.
        let store = over(&faulty, options());
        let error = store.latest().await.unwrap_err();
        assert!(!error.is_transient());
        let text = error.to_string();
        assert!(text.contains(expected), "{text}");
        assert!(text.starts_with("'job/checkpoints/0000000002-000001.json' in checkpoint storage"), "{text}");
        assert_eq!(
            store.load(1).await.unwrap().manifest().id,
            1,
            "asked for by number, the older one is given"
        );

        // And as long as nobody knows what it names, nothing is deleted.
        for deleted in [store.retain(1, &lease).await.unwrap(), store.sweep(&lease).await.unwrap()] {
            assert_eq!(deleted.unreadable.len(), 1);
            assert_eq!((deleted.checkpoints.len(), deleted.files), (0, 0));
        }
    }
    store.0.storage.put(&path, whole).await.unwrap();
    assert_eq!(store.latest().await.unwrap().unwrap().manifest().id, 2);
}

#[tokio::test(start_paused = true)]
async fn a_file_name_that_leads_out_of_its_folder_is_refused() {
    let faulty = FaultyStore::memory();
    let mut local = Local::new();
    let (store, _lease) = two_checkpoints(&faulty, &mut local).await;
    let saved = store.latest().await.unwrap().unwrap();
    for name in ["../escaped", "/escaped", "a/b", "..", "", "."] {
        let mut part = only_part(&saved).clone();
        part.files[0].name = name.into();
        let error = saved.download_part(&part, &local.path().join("r"), &[]).await.unwrap_err().to_string();
        assert!(error.contains("expected a plain file name"), "{name}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_manifest_that_does_not_fit_its_checkpoint_is_refused() {
    let faulty = FaultyStore::memory();
    let mut local = Local::new();
    let (store, lease) = two_checkpoints(&faulty, &mut local).await;
    let latest = store.latest().await.unwrap().unwrap();
    let pending = store.begin(3);
    let foreign = manifest(&pending, vec![only_part(&latest).clone()]);
    let refused = |error: CheckpointError| {
        assert!(matches!(error, CheckpointError::Inconsistent { .. }), "{error}");
        error.to_string()
    };
    let text = refused(store.publish(&pending, foreign.clone(), &lease).await.unwrap_err());
    assert!(text.ends_with("which it neither uploaded nor kept"), "{text}");
    pending.keep_part(only_part(&latest)).unwrap();
    let other = Manifest { id: 4, ..foreign.clone() };
    refused(store.publish(&pending, other, &lease).await.unwrap_err());
    let other = Manifest { job: "other".into(), ..foreign.clone() };
    refused(store.publish(&pending, other, &lease).await.unwrap_err());
    let other = Manifest { format: 2, ..foreign.clone() };
    refused(store.publish(&pending, other, &lease).await.unwrap_err());
    // A finished subtask's part goes on from checkpoint to checkpoint.
    let saved = store.publish(&pending, foreign.clone(), &lease).await.unwrap();
    assert_eq!(only_part(&saved), only_part(&latest));
    refused(store.publish(&pending, foreign, &lease).await.unwrap_err());

    // Nothing is overwritten.
    let again = store.begin(3);
    let error = store.publish(&again, manifest(&again, Vec::new()), &lease).await.unwrap_err().to_string();
    assert!(error.starts_with("checkpoint 3 (lease epoch 1) already exists"), "{error}");
    assert_eq!(store.load(3).await.unwrap().manifest(), saved.manifest());

    // A part of somewhere else is not kept.
    let mut unknown = only_part(&latest).clone();
    unknown.files[0].path = "shared/window/0/ffff-000001.sst".into();
    refused(store.begin(5).keep_part(&unknown).unwrap_err());
}
