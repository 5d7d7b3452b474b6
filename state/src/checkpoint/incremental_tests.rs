//! Properties of what is uploaded and what is deleted.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const NAMES: [&str; 4] = ["000001.sst", "000002.sst", "CURRENT", "MANIFEST-000001"];

/// A local file, by a small number for each thing that may be the same or not.
fn present() -> impl Strategy<Value = Present> {
    (0..NAMES.len(), 0..3_u64, proptest::option::of(0..4_u64)).prop_map(|(name, bytes, inode)| Present {
        name: NAMES[name].into(),
        bytes,
        id: inode.map(|inode| FileId { device: 1, inode, bytes, written_ns: 0 }),
    })
}

fn stored() -> impl Strategy<Value = StoredFile> {
    let folder = prop::sample::select(vec!["shared", "files", "sharedness"]);
    (0..NAMES.len(), 0..3_u64, folder, 0..100_u32).prop_map(|(name, bytes, folder, number)| StoredFile {
        name: NAMES[name].into(),
        path: format!("{folder}/{number}-{}", NAMES[name]),
        bytes,
        checksum: String::new(),
    })
}

fn file(number: u32) -> String {
    format!("shared/{number}")
}

proptest! {
    /// A file is named again without a look only if it is the very file the stored one came from; and only a shared one.
    #[test]
    fn nothing_is_reused_by_name_alone(
        previous in prop::collection::vec(stored(), 0..6),
        now in prop::collection::vec(present(), 0..6),
        inodes in prop::collection::hash_map(0..100_u32, 0..4_u64, 0..50),
    ) {
        let known = |path: &str| {
            let number: u32 = path.split(['/', '-']).nth(1)?.parse().ok()?;
            let before = previous.iter().find(|file| file.path == path)?;
            let inode = *inodes.get(&number)?;
            Some(FileId { device: 1, inode, bytes: before.bytes, written_ns: 0 })
        };
        let decisions = plan(&previous, &now, known);
        prop_assert_eq!(decisions.len(), now.len());
        for (file, decision) in now.iter().zip(decisions) {
            let same_name = |before: &&StoredFile| before.name == file.name && before.bytes == file.bytes;
            match decision {
                Decision::Reuse(before) => {
                    prop_assert!(same_name(&&before) && before.path.starts_with("shared/"));
                    prop_assert!(file.id.is_some() && known(&before.path) == file.id);
                }
                Decision::Verify(before) => {
                    prop_assert!(same_name(&&before) && before.path.starts_with("shared/"));
                }
                Decision::Upload => {
                    let missed = previous.iter().filter(same_name).any(|b| b.path.starts_with("shared/"));
                    prop_assert!(!missed, "what may be there is at least compared");
                }
            }
        }
    }

    /// Whatever is kept has all its files; whatever nobody needs goes; nothing in use goes.
    #[test]
    fn expiry_keeps_what_is_named_and_nothing_else(
        sets in prop::collection::btree_map((0..20_u64, 0..3_u64), prop::collection::btree_set(0..30_u32, 0..8), 0..8),
        keep in 0..5_usize,
        in_use in prop::collection::hash_set(0..30_u32, 0..5),
    ) {
        let published: Vec<_> = sets
            .iter()
            .map(|((id, epoch), files)| {
                let files: BTreeSet<String> = files.iter().map(|number| file(*number)).collect();
                (CheckpointKey { id: *id, epoch: *epoch }, Arc::new(files))
            })
            .collect();
        let in_use: HashSet<String> = in_use.into_iter().map(file).collect();
        let expired = expire(&published, keep, &in_use);

        let kept: Vec<_> = published.iter().filter(|(key, _)| !expired.manifests.contains(key)).collect();
        prop_assert_eq!(kept.len(), published.len().min(keep.max(1)));
        for gone in &expired.manifests {
            prop_assert!(kept.iter().all(|(key, _)| key > gone), "the newest are kept");
        }
        let named: HashSet<&String> = kept.iter().flat_map(|(_, files)| files.iter()).collect();
        for path in published.iter().flat_map(|(_, files)| files.iter()) {
            let needed = named.contains(path) || in_use.contains(path);
            prop_assert_eq!(expired.files.contains(path), !needed);
        }
    }

    /// A listing's orphans are exactly those that neither a checkpoint names nor one in the making uses.
    #[test]
    fn orphans_are_what_nobody_names(
        listed in prop::collection::btree_set(0..30_u32, 0..20),
        named in prop::collection::hash_set(0..30_u32, 0..10),
        in_use in prop::collection::hash_set(0..30_u32, 0..5),
    ) {
        let listed: Vec<String> = listed.into_iter().map(file).collect();
        let named: HashSet<String> = named.into_iter().map(file).collect();
        let in_use: HashSet<String> = in_use.into_iter().map(file).collect();
        let orphans = orphans(listed.iter().map(String::as_str), &named, &in_use);
        for path in &listed {
            prop_assert_eq!(orphans.contains(&path.as_str()), !named.contains(path) && !in_use.contains(path));
        }
    }

    /// A history of owners, each of whom may crash, be overtaken, and write late: what an owner was told is published stays
    /// published, and what did not count when an owner began never counts later.
    #[test]
    fn fences_keep_what_was_acknowledged(
        steps in prop::collection::vec((0..4_u8, 0..3_usize), 1..40),
    ) {
        // Each owner: epoch, next id, and the write that is under way.
        struct Owner { epoch: u64, next: u64, writing: Option<CheckpointKey> }
        let (mut owners, mut written, mut fences) = (Vec::<Owner>::new(), Vec::new(), Vec::new());
        let (mut acknowledged, mut rejected) = (Vec::new(), HashMap::new());
        let mut epoch = 0;
        for (step, which) in steps {
            let current = epoch;
            let count = owners.len();
            // The newest owner most often, older ones now and then.
            let owner = owners.get_mut((count.max(1) - 1).saturating_sub(which));
            match (step, owner) {
                (0, _) | (_, None) => {
                    epoch += 1;
                    let seen: Vec<CheckpointKey> =
                        written.iter().copied().filter(|key| counts(*key, &fences)).collect();
                    let base = seen.iter().map(|key| key.id).max();
                    fences.push(Fence { epoch, base });
                    let highest = written.iter().map(|key: &CheckpointKey| key.id).max().unwrap_or(0);
                    owners.push(Owner { epoch, next: highest + 1, writing: None });
                }
                // Looks at the lease, then begins to write.
                (1, Some(owner)) if owner.epoch == current && owner.writing.is_none() => {
                    owner.writing = Some(CheckpointKey { id: owner.next, epoch: owner.epoch });
                    owner.next += 1;
                }
                // The write lands; the owner looks again, and knows.
                (_, Some(owner)) => {
                    if let Some(key) = owner.writing.take() {
                        written.push(key);
                        if owner.epoch == current {
                            acknowledged.push(key);
                        } else if !counts(key, &fences) {
                            rejected.insert(key, ());
                        }
                    }
                }
            }
            for key in &acknowledged {
                prop_assert!(counts(*key, &fences), "{key} was acknowledged: {fences:?}");
            }
            for key in rejected.keys() {
                prop_assert!(!counts(*key, &fences), "{key} comes back: {fences:?}");
            }
            let newest = written.iter().filter(|key| counts(**key, &fences)).max();
            prop_assert!(newest >= acknowledged.last(), "the newest is never older than what was acknowledged");
        }
    }
}
