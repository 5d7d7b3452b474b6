//! Measures what survival costs a profile: freezing, writing, memory held, restoring: `cargo run --release --example profile_checkpoint -- [users] [never]`; `never` to compare memory without checkpoints.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use weir_state::backend::{BackendKind, Resources};
use weir_state::key::key_groups_of;
use weir_state::profile::{ProfileUpdate, Profiles, UserId, Writer};
use weir_state::store::{LocalPart, RestoredPart, Snapshot, Store, StoreConfig};
use weir_state::{KEY_GROUPS, KeyHash};

const BEHAVIOURS: [&str; 4] = ["pv", "cart", "fav", "buy"];
/// Updates between publications, as at 500,000 updates a second and 20 ms.
const PUBLISH_EVERY: u64 = 10_000;
/// Updates between two clock reads of the task, as in a batch of an exchange.
const BATCH: u64 = 1_000;
/// Updates between barriers.
const CHECKPOINT_EVERY: u64 = 250_000;
const CHECKPOINTS: u64 = 8;

type Done<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Done<()> {
    let users: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |n| n.parse())?;
    let never = std::env::args().nth(2).is_some_and(|word| word == "never");
    let folder = tempfile::TempDir::new()?;
    let store = open(folder.path(), 0, 1, &[])?;
    let profiles = space();
    let mut writer = profiles.restore_writer(&store, 1)?;

    for user in 0..users {
        writer.apply(everything(user, user, 1_511_544_000_000))?;
    }
    writer.publish(0);
    println!("{users} users of five tags: {} MiB resident", resident_mib());
    let mut life = Life { store: &store, writer: &mut writer, folder: folder.path(), taken: 0 };
    if !never {
        let (took, _) = life.checkpoint()?;
        println!("first checkpoint: {}, written in {took:.1?}, {} MiB resident", life.told(), resident_mib());
        let metered = life.writer.memory_meter().map_or(0, |meter| meter());
        println!("the index by its own account: {} MiB", metered >> 20);
        life.one_percent(users)?;
    }

    // With and without checkpoints, in turns, a reader's snapshot always pinned.
    let mut random = Random(1);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let mut freezes = Vec::new();
    let mut slowest = [0.0f64; 2];
    for round in 0..2 * CHECKPOINTS {
        let checkpoint = round % 2 == 1 && !never;
        let before = cpu_seconds();
        let mut worst = 0.0f64;
        thread::scope(|scope| -> Done<()> {
            let mut snapshot = Snapshot::default();
            let mut writing = None;
            if checkpoint {
                let start = Instant::now();
                life.writer.freeze(&mut snapshot)?;
                freezes.push(start.elapsed());
                let (store, to) = (life.store, life.next());
                writing = Some(scope.spawn(move || store.write_out(snapshot, &to)));
            }
            let mut pinned = profiles.reader().snapshot();
            for batch in 0..CHECKPOINT_EVERY / BATCH {
                let start = cpu_seconds();
                for _ in 0..BATCH {
                    let user = random.next() % users;
                    let (salt, at) = (random.next(), 1_511_544_000_000 + round as i64);
                    life.writer.apply(everything(user, salt, at))?;
                }
                worst = worst.max(cpu_seconds() - start);
                if batch % (PUBLISH_EVERY / BATCH) == 0 {
                    life.writer.publish(batch as i64);
                    pinned = profiles.reader().snapshot();
                }
            }
            drop(pinned);
            if let Some(writing) = writing {
                writing.join().map_err(|_| "the snapshot thread panicked")??;
            }
            Ok(())
        })?;
        let rate = CHECKPOINT_EVERY as f64 / (cpu_seconds() - before);
        if checkpoint { &mut with } else { &mut without }.push(rate);
        slowest[usize::from(checkpoint)] = slowest[usize::from(checkpoint)].max(worst);
    }
    if never {
        println!("{} updates at random: {} MiB resident", 2 * CHECKPOINTS * CHECKPOINT_EVERY, resident_mib());
        return Ok(());
    }
    freezes.sort();
    let (p50, most) = (freezes[freezes.len() / 2], freezes[freezes.len() - 1]);
    println!("freeze: p50 {p50:.1?}, max {most:.1?} of {}", freezes.len());
    println!(
        "updates/s of five deltas: best {:.0} between checkpoints, {:.0} while one is written; slowest batch of {BATCH}: {:.1?}, {:.1?}",
        best(&without),
        best(&with),
        slowest[0],
        slowest[1]
    );
    println!("{CHECKPOINT_EVERY} updates at random: {}, {} MiB resident", life.told(), resident_mib());

    let (_, part) = life.checkpoint()?;
    writer.publish(0);
    let expected = profiles.reader().digest().value;
    drop(writer);
    for parallelism in [1, 3] {
        let again = space();
        let (start, cpu, mut writers) = (Instant::now(), cpu_seconds(), Vec::new());
        for subtask in 0..parallelism {
            let store = open(&folder.path().join(format!("at-{parallelism}")), subtask, parallelism, &part)?;
            let opened = start.elapsed();
            writers.push(again.restore_writer(&store, 2)?);
            if parallelism == 1 {
                println!("store opened in {opened:.1?}");
            }
        }
        println!(
            "restored at parallelism {parallelism}, one after the other, in {:.1?}, {:.2} s of processor",
            start.elapsed(),
            cpu_seconds() - cpu
        );
        writers.iter_mut().for_each(|writer| writer.publish(0));
        assert_eq!(again.reader().digest().value, expected, "the restored profile differs");
    }
    println!("digests agree: {expected}");
    Ok(())
}

fn space() -> Profiles {
    Profiles::named("rate")
        .enum_tag("last_behaviour")
        .enum_tag("city")
        .set_tag("categories")
        .int_tag("buys_total")
        .int_tag("last_seen")
}

fn everything(user: u64, salt: u64, at: i64) -> ProfileUpdate {
    ProfileUpdate::of(user)
        .at(at)
        .set("last_behaviour", BEHAVIOURS[(salt % 4) as usize])
        .set("city", format!("city-{}", salt % 300))
        .increment("buys_total", 1)
        .max("last_seen", at)
        .add("categories", (salt % 997).to_string())
}

struct Life<'a> {
    store: &'a Store,
    writer: &'a mut Writer,
    folder: &'a Path,
    taken: usize,
}

impl Life<'_> {
    fn next(&mut self) -> PathBuf {
        self.taken += 1;
        self.folder.join(format!("chk-{}", self.taken))
    }

    /// Freezes and writes while nothing else happens.
    fn checkpoint(&mut self) -> Done<(Duration, Vec<RestoredPart>)> {
        let mut snapshot = Snapshot::default();
        self.writer.freeze(&mut snapshot)?;
        let (start, folder) = (Instant::now(), self.next());
        let LocalPart { subtask, key_groups, format, tables, items, .. } =
            self.store.write_out(snapshot, &folder)?;
        let part = RestoredPart { subtask, key_groups, format, folder, tables, items };
        Ok((start.elapsed(), vec![part]))
    }

    fn told(&self) -> String {
        let written = self.writer.last_written();
        format!("{} pieces, {} KiB", written.pieces, written.bytes >> 10)
    }

    /// Changes one percent of the users of one key group, which are in one chunk, and checks what that writes.
    fn one_percent(&mut self, users: u64) -> Done<()> {
        let group = |user: u64| UserId::from(user).key_hash().group(KEY_GROUPS).0;
        let chunk: Vec<u64> = (0..users).filter(|user| group(*user) == 7).take(1 << 16).collect();
        for (name, step) in [("neighbours", 1), ("all over it", 100)] {
            let changed: Vec<u64> = chunk.iter().copied().step_by(step).take(chunk.len() / 100).collect();
            for user in &changed {
                self.writer.apply(everything(*user, user + step as u64, 1_511_544_001_000))?;
            }
            let (took, _) = self.checkpoint()?;
            println!(
                "{} of {} users of a chunk, {name}: {}, {took:.1?}",
                changed.len(),
                chunk.len(),
                self.told()
            );
            // Nine kinds of pages; a page of elements has 32 users, the others 256.
            let pages = if step == 1 { changed.len() / 32 + 2 } else { changed.len() };
            let most = (9 * pages) as u64 + 8;
            let written = self.writer.last_written();
            assert!(written.pieces <= most, "{written:?}, expected at most {most}");
        }
        Ok(())
    }
}

fn open(folder: &Path, subtask: usize, of: usize, parts: &[RestoredPart]) -> Done<Store> {
    let config = StoreConfig {
        uid: "profile".to_owned(),
        subtask,
        key_groups: key_groups_of(subtask, of, KEY_GROUPS),
        groups: KEY_GROUPS,
        backend: BackendKind::Memory,
        folder: folder.join(format!("live-{subtask}")),
        resources: Resources::default(),
        cache_bytes: 1 << 20,
        wall_ms: Arc::new(|| 0),
    };
    Ok(Store::open(config, parts.to_vec())?)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        let KeyHash(hash) = weir_state::key_hash(&self.0);
        hash >> 20
    }
}

fn best(rates: &[f64]) -> f64 {
    rates.iter().copied().fold(0.0, f64::max)
}

/// Seconds this thread was on a processor, where the system says it; so other load disturbs less.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
    ns.map_or(0.0, |ns| ns / 1e9)
}

/// Resident memory in MiB where the system says it, else 0.
fn resident_mib() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages / 256)
}
