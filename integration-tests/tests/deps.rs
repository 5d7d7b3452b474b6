//! The arrows of the house, held: who depends on whom, who may name which crate, and how long a file may be.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{Metadata, MetadataCommand};

/// Each member and the members it may name: `state <- engine <- {operators, connectors} <- {examples, integration-tests}`.
const ARROWS: &[(&str, &[&str])] = &[
    ("weir-state", &[]),
    ("weir-engine", &["weir-state"]),
    ("weir-operators", &["weir-engine", "weir-state"]),
    ("weir-connectors", &["weir-engine"]),
    ("weir-examples", &["weir-connectors", "weir-engine", "weir-operators", "weir-state"]),
    (
        "weir-integration-tests",
        &["weir-connectors", "weir-engine", "weir-examples", "weir-operators", "weir-state"],
    ),
];

/// Crates that carry a decision, and the members that may depend on them.
const OWNERS: &[(&str, &[&str])] = &[
    ("actix", &["weir-engine"]),
    ("actix-rt", &["weir-engine"]),
    ("actix-web", &["weir-engine"]),
    ("anyhow", &["weir-examples", "weir-integration-tests"]),
    ("bincode", &["weir-state"]),
    ("crossbeam-channel", &["weir-engine", "weir-integration-tests"]),
    ("postcard", &["weir-state"]),
    ("rdkafka", &["weir-connectors", "weir-integration-tests"]),
    ("roaring", &["weir-state", "weir-integration-tests"]),
    ("rocksdb", &["weir-state"]),
    ("shuttle", &["weir-engine"]),
    ("sqlparser", &["weir-state"]),
];

/// Crates by the name code uses, and the files or folders that may use it. Baselines in integration-tests are written by hand
/// with what the engine uses.
const PLACES: &[(&str, &[&str])] = &[
    ("actix", &["engine/src/runtime/", "engine/src/coordinator/"]),
    (
        "actix_rt",
        &["engine/src/runtime/", "engine/src/coordinator/", "engine/src/http/", "engine/src/http.rs"],
    ),
    ("actix_web", &["engine/src/http/", "engine/src/http.rs"]),
    ("bincode", &["state/src/codec/bincode2.rs"]),
    ("crossbeam_channel", &["engine/src/runtime/channel.rs", "integration-tests/"]),
    ("postcard", &["state/src/codec/postcard1.rs"]),
    ("rdkafka", &["connectors/src/kafka/", "integration-tests/"]),
    ("rocksdb", &["state/src/backend/rocks.rs"]),
    (
        "shuttle",
        &[
            "engine/src/runtime/sync.rs",
            "engine/src/runtime/channel_explore.rs",
            "engine/src/explore/schedules.rs",
        ],
    ),
];

/// A longer file is split.
const LONGEST: usize = 600;
/// A longer file says why, in its first comment: `//! … (over 400 lines: why)`.
const LONG: usize = 400;

#[test]
fn members_depend_only_along_the_arrows() {
    let metadata = metadata();
    let members: BTreeSet<&str> = metadata.packages.iter().map(|p| p.name.as_str()).collect();
    let housed: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        members, housed,
        "the members of the workspace are the houses of docs/ARCHITECTURE.md, no more, no fewer"
    );

    let mut wrong = Vec::new();
    for (name, allowed) in ARROWS {
        for dependency in dependencies(&metadata, name) {
            // A crate's own tests may turn on its own features.
            if housed.contains(dependency) && dependency != *name && !allowed.contains(&dependency) {
                wrong.push(format!("{name} must not depend on {dependency}"));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn crates_that_carry_a_decision_have_owners() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        for dependency in dependencies(&metadata, &package.name) {
            if let Some((_, owners)) = OWNERS.iter().find(|(name, _)| *name == dependency)
                && !owners.contains(&package.name.as_str())
            {
                wrong.push(format!(
                    "{} must not depend on {dependency}: that is for {owners:?}",
                    package.name
                ));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn the_root_is_virtual() {
    assert!(metadata().root_package().is_none(), "the workspace root has no package of its own");
}

#[test]
fn every_dependency_has_its_line_in_the_docs() {
    let metadata = metadata();
    let page = read(&root().join("docs/dependencies.md"));
    // A line of a table: | `name` | why |
    let told: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();

    let mut used: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in &metadata.packages {
        for dependency in package.dependencies.iter().filter(|d| d.path.is_none()) {
            used.entry(&dependency.name).or_default().insert(&package.name);
        }
    }
    let mut wrong = Vec::new();
    for (name, by) in &used {
        if !told.contains(name) {
            wrong.push(format!("{name} (used by {by:?}) has no line in docs/dependencies.md"));
        }
    }
    for name in told.iter().filter(|name| !used.contains_key(*name)) {
        wrong.push(format!("docs/dependencies.md tells of {name}, which no member uses"));
    }
    assert_none(&wrong);
}

#[test]
fn crates_are_named_only_where_they_belong() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let code = code_of(&text);
        for (name, places) in PLACES {
            // A package that cannot name a crate may call a method like it.
            let package = path.split('/').next().unwrap_or_default();
            let owned = OWNERS.iter().find(|(owned, _)| owned.replace('-', "_") == *name);
            if owned.is_some_and(|(_, owners)| !owners.contains(&&*format!("weir-{package}"))) {
                continue;
            }
            if let Some(line) = line_naming(&code, name)
                && !places.iter().any(|place| path.starts_with(place))
            {
                wrong.push(format!("{path}:{line} names {name}: that is for {places:?}"));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn every_file_says_what_it_promises_and_stays_short() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let first: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
        if first.first().is_none_or(|line| line.trim_start_matches("//!").trim().is_empty()) {
            wrong.push(format!("{path} does not begin with a `//!` line that says what it promises"));
        }
        let lines = text.lines().count();
        if lines > LONGEST {
            wrong.push(format!("{path} has {lines} lines: over {LONGEST} it is split"));
        } else if lines > LONG && !first.iter().any(|line| line.contains("over 400 lines: ")) {
            wrong.push(format!("{path} has {lines} lines and its first comment no `(over 400 lines: why)`"));
        }
    }
    assert_none(&wrong);
}

#[test]
fn comments_and_strings_are_not_code() {
    let text = r##"
        // actix in a comment
        /* actix /* nested */ actix */
        let a = "actix \" actix"; let b = r#"actix " actix"#; let c = ('"', '\'', 'x'); fn f<'actix>() {}
        use actix_rt::System;
    "##;
    let code = code_of(text);
    assert_eq!(
        line_naming(&code, "actix"),
        Some(4),
        "a lifetime of that name is the one that is left: {code}"
    );
    assert_eq!(line_naming(&code, "actix_rt"), Some(5));
    assert_eq!(line_naming("use reactix::x;", "actix"), None);
    assert_eq!(line_naming("use ::actix::Actor;", "actix"), Some(1));
}

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(vec!["--offline".into()])
        .exec()
        .expect("`cargo metadata` reads the workspace")
}

/// The names of what a member depends on: in its code, its tests and its build.
fn dependencies<'a>(metadata: &'a Metadata, member: &str) -> impl Iterator<Item = &'a str> {
    let package = metadata.packages.iter().find(|p| p.name.as_str() == member).expect("a member");
    package.dependencies.iter().map(|d| d.name.as_str())
}

/// The workspace's folder, wherever it was cloned and built.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("integration-tests lies in the workspace")
        .to_path_buf()
}

/// Every Rust file of the members, by its path from the root (with `/`), in order.
fn sources() -> Vec<(String, String)> {
    let root = root();
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> =
        ARROWS.iter().map(|(name, _)| root.join(name.trim_start_matches("weir-"))).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("a folder entry").path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "target") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name =
                    path.strip_prefix(&root).expect("under the root").to_string_lossy().replace('\\', "/");
                files.push((name, read(&path)));
            }
        }
    }
    files.sort();
    assert!(files.len() >= ARROWS.len(), "the sources were found: {files:?}");
    files
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The first line (from 1) where `code` has `name` as a whole identifier.
fn line_naming(code: &str, name: &str) -> Option<usize> {
    let identifier = |c: char| c.is_alphanumeric() || c == '_';
    code.lines().position(|line| line.split(|c| !identifier(c)).any(|word| word == name)).map(|i| i + 1)
}

/// The text without comments, strings and characters; lines stay where they are.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if next == '"' {
            string(rest)
        } else if let Some(length) = raw_string(rest, &code) {
            length
        } else if let Some(length) = character(rest) {
            length
        } else {
            code.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        };
        code.push(' ');
        code.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
        rest = &rest[skipped..];
    }
    code
}

/// The length of the comment at the start of `text`, with those nested in it.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text.as_bytes()[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if text.as_bytes()[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of the string at the start of `text`.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of the raw string at the start of `text` (`r"…"`, `r#"…"#`, also behind a `b` or `c` already read).
fn raw_string(text: &str, before: &str) -> Option<usize> {
    let inside_a_word = before.ends_with(|c: char| (c.is_alphanumeric() && c != 'b' && c != 'c') || c == '_');
    let hashes = text.strip_prefix('r')?.chars().take_while(|c| *c == '#').count();
    let body = text[1 + hashes..].strip_prefix('"')?;
    if inside_a_word {
        return None;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    Some(body.find(&end).map_or(text.len(), |at| 2 + hashes + at + end.len()))
}

/// The length of the character literal at the start of `text`; a lifetime is none.
fn character(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('\'')?;
    let mut chars = inner.char_indices();
    let (_, first) = chars.next()?;
    if first == '\\' {
        return inner.char_indices().skip(2).find(|(_, c)| *c == '\'').map(|(at, _)| at + 2);
    }
    let (at, second) = chars.next()?;
    (second == '\'').then_some(at + 2)
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n  {}\n", wrong.join("\n  "));
}
