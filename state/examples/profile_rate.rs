//! Measures how fast one writer applies and publishes, and what segment questions cost: `cargo run --release --example profile_rate -- [users]`.

use std::time::{Instant, UNIX_EPOCH};
use weir_state::KEY_GROUPS;
use weir_state::profile::{Predicate, ProfileUpdate, Profiles, tag};

const UPDATES: u64 = 1_000_000;
const PUBLISH_EVERY: u64 = 10_000;
const BEHAVIOURS: [&str; 4] = ["pv", "cart", "fav", "buy"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let users: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |n| n.parse())?;
    let profiles = Profiles::named("rate")
        .enum_tag("last_behaviour")
        .enum_tag("city")
        .set_tag("categories")
        .int_tag("buys_total")
        .int_tag("last_seen");
    let mut writer = profiles.writer(0..KEY_GROUPS, 1)?;

    let start = cpu_seconds();
    for user in 0..users {
        let update = ProfileUpdate::of(user)
            .at(0)
            .set("last_behaviour", BEHAVIOURS[(user % 4) as usize])
            .set("city", format!("city-{}", user % 300))
            .set("buys_total", user % 10)
            .set("last_seen", 0);
        writer.apply(update)?;
    }
    writer.publish(0);
    println!(
        "load      {:>9.0} users/s, {} MiB resident",
        users as f64 / (cpu_seconds() - start),
        resident_mib()
    );

    // Every pattern of use keeps a snapshot alive, as a reader would, so that nothing is written in place.
    let reader = profiles.reader();
    let mut seed = 1u64;
    let mut scattered = |name: &str, deltas: u64, build: &dyn Fn(u64, i64) -> ProfileUpdate| {
        let mut pinned = reader.snapshot();
        let (start, mut publishing) = (cpu_seconds(), 0.0);
        for i in 1..=UPDATES {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            writer.apply(build((seed >> 32) % users * 1_000 + (seed >> 54), i as i64))?;
            if i % PUBLISH_EVERY == 0 {
                let before = cpu_seconds();
                writer.publish(i as i64);
                pinned = reader.snapshot();
                publishing += cpu_seconds() - before;
            }
        }
        let took = cpu_seconds() - start;
        let publish = publishing * 1e3 / (UPDATES / PUBLISH_EVERY) as f64;
        println!("{name:<9} {:>9.0} deltas/s, publish {publish:.2} ms", (UPDATES * deltas) as f64 / took);
        drop(pinned);
        Ok::<(), Box<dyn std::error::Error>>(())
    };
    let behaviour = |salt: u64| BEHAVIOURS[(salt % 4) as usize];
    scattered("enum", 1, &|r, t| {
        ProfileUpdate::of(r / 1_000).at(t).set("last_behaviour", behaviour(r % 1_000))
    })?;
    scattered("city", 1, &|r, t| {
        ProfileUpdate::of(r / 1_000).at(t).set("city", format!("city-{}", r % 300))
    })?;
    scattered("int", 1, &|r, t| ProfileUpdate::of(r / 1_000).at(t).increment("buys_total", 1))?;
    scattered("set", 1, &|r, t| ProfileUpdate::of(r / 1_000).at(t).add("categories", (r % 997).to_string()))?;
    scattered("all", 4, &|r, t| {
        ProfileUpdate::of(r / 1_000)
            .at(t + UPDATES as i64)
            .set("last_behaviour", behaviour(r % 1_000))
            .increment("buys_total", 1)
            .max("last_seen", t)
            .add("categories", (r % 997).to_string())
    })?;

    for text in [
        "last_behaviour = 'buy'",
        "last_behaviour = 'buy' and city = 'city-7'",
        "buys_total >= 5",
        "last_behaviour in ('buy', 'fav') and buys_total between 3 and 6 and not city = 'city-1'",
        "hasAny(categories, ['1', '2', '3']) and last_behaviour = 'buy'",
    ] {
        let predicate = Predicate::parse(text)?;
        let start = Instant::now();
        let mut found = 0;
        for _ in 0..20 {
            found = reader.count(&predicate)?.value;
        }
        println!("{:>8.2} ms {found:>9} {text}", start.elapsed().as_secs_f64() * 1e3 / 20.0);
    }
    let start = Instant::now();
    let found = (0..100_000).filter(|u| reader.profile(&(u * 7 % users).into()).value.is_some()).count();
    println!("{:>8.2} µs per profile ({found} found)", start.elapsed().as_secs_f64() * 1e6 / 1e5);
    let start = Instant::now();
    let digest = reader.digest().value;
    println!("{:>8.0} ms for digest {digest}", start.elapsed().as_secs_f64() * 1e3);
    let all = reader.count(&!tag("city").eq("nowhere"))?;
    println!("{} users, sequence {}, {} MiB resident", all.value, all.version.sequence, resident_mib());
    Ok(())
}

/// Seconds this thread was on a processor, where the system says it; so other load disturbs less.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
    ns.map_or_else(|| UNIX_EPOCH.elapsed().map_or(0.0, |d| d.as_secs_f64()), |ns| ns / 1e9)
}

/// Resident memory in MiB where the system says it, else 0.
fn resident_mib() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages / 256)
}
