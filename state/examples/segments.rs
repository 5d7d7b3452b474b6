//! The side of `make bench-segments` that is Weir: loads rows from its input, then answers one line of SQL after another, with times.
//!
//! `load TABLE`, then rows as tabulated text until an empty line; `sql STATEMENT`. Each is answered with one JSON object in one line.

use serde_json::json;
use std::io::{BufRead, Write};
use std::time::Instant;
use weir_state::KEY_GROUPS;
use weir_state::profile::{ProfileUpdate, Profiles, TagType, Timestamp, Writer};

/// That of the `user_profile` example: an allocator is part of what is measured.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const TABLES: [&str; 2] = ["user_profile_b", "user_profile_a"];
const COLUMNS: [(&str, TagType); 9] = [
    ("channel_type", TagType::Enum),
    ("user_type", TagType::Int),
    ("lang", TagType::Enum),
    ("region", TagType::Enum),
    ("country", TagType::Enum),
    ("gender", TagType::Int),
    ("score", TagType::Float),
    ("user_watch_list", TagType::Set),
    ("reg_time", TagType::Timestamp),
];
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Updates between two publications, as a stream would have them.
const PUBLISH_EVERY: u64 = 100_000;

fn main() -> Result<()> {
    let all = TABLES.iter().flat_map(|table| COLUMNS.map(|(name, kind)| (format!("{table}.{name}"), kind)));
    let space = Profiles::named("crowd").key_column("uuid");
    let profiles = all.fold(space, |space, (name, kind)| space.tag(&name, kind));
    let mut writer = profiles.writer(0..KEY_GROUPS, 1)?;
    let reader = profiles.reader();
    let mut input = std::io::stdin().lock();
    let mut output = std::io::stdout().lock();
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = match line.trim_end().split_once(' ') {
            Some(("load", table)) => load(table, &mut writer, &mut input)?,
            Some(("sql", text)) => {
                let (began, cpu) = (Instant::now(), cpu_seconds());
                let answer = reader.sql(text);
                let (seconds, cpu_seconds) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
                match answer {
                    Ok(answer) => json!({
                        "count": answer.value.count(), "seconds": seconds, "cpu_seconds": cpu_seconds
                    }),
                    Err(error) => json!({ "error": error.to_string() }),
                }
            }
            _ => return Err(format!("neither load nor sql: {line:?}").into()),
        };
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
}

/// Loads the rows of a table and says how fast, and what they take.
fn load(table: &str, writer: &mut Writer, input: &mut impl BufRead) -> Result<serde_json::Value> {
    // For the life of the process, as the literals of a job are: a name costs a row nothing.
    let names = COLUMNS.map(|(name, _)| -> &'static str { format!("{table}.{name}").leak() });
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let (mut line, mut rows) = (String::new(), 0u64);
    loop {
        line.clear();
        input.read_line(&mut line)?;
        let row = line.trim_end_matches('\n');
        if row.is_empty() {
            break;
        }
        let update = update(&names, row).map_err(|e| format!("row {rows} of {table}: {row:?}: {e}"))?;
        writer.apply(update)?;
        rows += 1;
        if rows % PUBLISH_EVERY == 0 {
            writer.publish(rows as i64);
        }
    }
    writer.publish(rows as i64);
    let (seconds, cpu_seconds) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let resident = resident_bytes();
    Ok(json!({
        "table": table, "rows": rows, "seconds": seconds, "cpu_seconds": cpu_seconds,
        "rows_per_cpu_second": (rows as f64 / cpu_seconds.max(1e-9)).round(),
        "users": writer.users(), "resident_mib": resident >> 20,
        "bytes_per_user": resident / writer.users().max(1),
    }))
}

fn update(names: &[&'static str; 9], row: &str) -> Result<ProfileUpdate> {
    let mut cells = row.split('\t');
    let mut cell = || cells.next().ok_or("a cell is missing");
    let mut update = ProfileUpdate::of(cell()?.parse::<u64>()?).at(0);
    for (&name, (_, kind)) in names.iter().zip(COLUMNS) {
        let cell = cell()?;
        update = match kind {
            TagType::Int => update.set(name, cell.parse::<i64>()?),
            TagType::Float => update.set(name, cell.parse::<f64>()?),
            TagType::Timestamp => update.set(name, Timestamp(cell.parse::<i64>()? * 1_000)),
            TagType::Set => update.set(name, cell.split(',').filter(|s| !s.is_empty()).collect::<Vec<_>>()),
            _ => update.set(name, cell),
        };
    }
    Ok(update)
}

/// Seconds this thread was on a processor; those since some moment where the system does not say.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
    ns.map_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(0.0, |d| d.as_secs_f64()), |ns| ns / 1e9)
}

/// Resident memory where the system says it, else 0.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages * 4096)
}
