//! Portable files: what goes in comes out, and whatever is changed in one is noticed before it is used.

use std::fs;
use std::ops::ControlFlow;

use super::*;

type Pair = (Vec<u8>, Vec<u8>);

fn pairs(path: &Path) -> Result<Vec<Pair>, StateError> {
    let mut all = Vec::new();
    PortableReader::open(path)?.scan(&mut |key, value| {
        all.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    Ok(all)
}

fn write(path: &Path, pairs: &[Pair]) -> u64 {
    let mut writer = PortableWriter::create(path).unwrap();
    pairs.iter().for_each(|(key, value)| writer.push(key, value).unwrap());
    writer.finish().unwrap()
}

fn numbered(n: u32, length: usize) -> Vec<Pair> {
    (0..n).map(|i| (i.to_be_bytes().to_vec(), vec![i as u8; length])).collect()
}

#[test]
fn the_file_is_frozen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.kv");
    assert_eq!(write(&path, &[(b"a".to_vec(), b"12".to_vec())]), 37);
    let golden = [
        b'W', b'E', b'I', b'R', b'K', b'V', 1, 0, // magic and format
        5, 0, 0, 0, 115, 162, 82, 80, 109, 84, 210, 111, // length and checksum
        1, 2, b'a', b'1', b'2', // an entry
        0, 0, 0, 0, 255, 222, 152, 250, 219, 196, 1, 13, // the end
    ];
    assert_eq!(fs::read(&path).unwrap(), golden);
}

#[test]
fn many_blocks_and_large_values_come_back() {
    let folder = tempfile::tempdir().unwrap();
    for (name, all) in [("none", vec![]), ("many", numbered(10_000, 30)), ("large", numbered(3, 200_000))] {
        let path = folder.path().join(name);
        assert_eq!(write(&path, &all), fs::metadata(&path).unwrap().len());
        assert_eq!(pairs(&path).unwrap(), all);
    }
}

#[test]
fn whatever_is_changed_is_noticed_and_the_file_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("good");
    write(&path, &numbered(3_000, 50));
    let good = fs::read(&path).unwrap();
    let bad = folder.path().join("bad");
    let refused = |bytes: &[u8]| {
        fs::write(&bad, bytes).unwrap();
        let error = pairs(&bad).unwrap_err();
        assert!(matches!(error, StateError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains(bad.to_str().unwrap()), "{error}");
    };
    for at in [0, 6, 8, 12, 20, 100, good.len() / 2, good.len() - 20, good.len() - 12, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        refused(&bytes);
    }
    for length in [0, 7, 8, 19, 100, good.len() - 12, good.len() - 1] {
        refused(&good[..length]);
    }
    // A whole block is lost: every checksum left is right.
    let block = 12 + u32::from_le_bytes(good[8..12].try_into().unwrap()) as usize;
    refused(&[&good[..8], &good[8 + block..]].concat());
}

#[test]
fn a_reader_may_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.kv");
    write(&path, &numbered(100, 10));
    let mut seen = 0;
    PortableReader::open(&path)
        .unwrap()
        .scan(&mut |_, _| {
            seen += 1;
            if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(seen, 3);
}
