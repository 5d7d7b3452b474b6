//! What is to be seen in a file sink's folder: the files that were committed, and their lines.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

/// The files in `folder` that are seen (those whose names do not begin with a dot), in the order of their names.
///
/// # Errors
/// When the folder cannot be read.
pub fn visible_files(folder: impl AsRef<Path>) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && !entry.file_name().as_encoded_bytes().starts_with(b".") {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// All lines of [`visible_files`], sorted: what a file sink has given, in an order that does not depend on who wrote what
/// when. For tests and checks: it is all in memory.
///
/// # Errors
/// When a file cannot be read, or is not text.
///
/// ```
/// use weir_connectors::file::visible_lines;
/// # let folder = std::env::temp_dir().join(format!("weir-doc-lines-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// std::fs::write(folder.join("part-1.jsonl"), "3\n1\n")?;
/// std::fs::write(folder.join("part-0.jsonl"), "2\n")?;
/// std::fs::write(folder.join(".part-2.jsonl.tmp"), "9\n")?;
/// assert_eq!(visible_lines(&folder)?, ["1", "2", "3"]);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn visible_lines(folder: impl AsRef<Path>) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    for path in visible_files(folder)? {
        for line in BufReader::new(fs::File::open(path)?).lines() {
            lines.push(line?);
        }
    }
    lines.sort();
    Ok(lines)
}
