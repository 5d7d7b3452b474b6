//! What a file sink calls its files: never twice the same, and each hidden name tells whose it is. Pure.
//!
//! Visible: `part-<uid>-<subtask>-<attempt>-<number>.<extension>`. Hidden, until it is committed: a dot before that, and
//! `~<uid>.tmp` behind it. The part before the subtask can be chosen; the hidden one says the uid all the same.

use weir_engine::{OperatorContext, Result, TaskError};

/// The names of one subtask's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// `part-<uid>-<subtask>-<attempt>-`.
    stem: String,
    extension: String,
    /// `~<uid>.tmp`.
    hidden: String,
}

/// The longest that a prefix, or what a uid becomes in a name, may be, in bytes: a name has 255.
const LONGEST: usize = 64;

impl Names {
    /// The names for the subtask that `cx` is about.
    ///
    /// # Errors
    /// When the prefix cannot be part of a file's name.
    pub(super) fn new(cx: &OperatorContext, prefix: Option<&str>, extension: &str) -> Result<Names> {
        let uid = plain(cx.uid().as_str());
        let prefix = match prefix {
            None => format!("part-{uid}"),
            Some(p)
                if p.is_empty() || p.len() > LONGEST || p.starts_with('.') || !p.bytes().all(is_plain) =>
            {
                return Err(TaskError::user(format!(
                    "{p:?} cannot begin the names of files: take 1 to {LONGEST} letters, digits, '.', '_' and '-', the first no '.'"
                )));
            }
            Some(p) => p.to_owned(),
        };
        let stem = format!("{prefix}-{}-{}-", cx.subtask(), cx.attempt());
        Ok(Names { stem, extension: extension.to_owned(), hidden: format!("~{uid}.tmp") })
    }

    /// The name under which file `number` is seen.
    pub(super) fn visible(&self, number: u64) -> String {
        format!("{}{number:05}.{}", self.stem, self.extension)
    }

    /// The name that file `number` has until then.
    pub(super) fn hidden(&self, number: u64) -> String {
        format!(".{}{}", self.visible(number), self.hidden)
    }

    /// The name of a file that only shows that one can be made.
    pub(super) fn trial(&self) -> String {
        format!(".{}trial{}", self.stem, self.hidden)
    }

    /// The number of a file, visible or hidden, that this attempt of this subtask could have named so.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        let name = name.strip_prefix('.').unwrap_or(name).strip_prefix(&self.stem)?;
        name.split('.').next()?.parse().ok()
    }

    /// Whether `name` is that of a hidden file of this sink, of any life of it: then the subtask that wrote it.
    pub(super) fn hidden_of(&self, name: &str) -> Option<usize> {
        let visible = name.strip_prefix('.')?.strip_suffix(&self.hidden)?;
        let mut parts = visible.rsplitn(4, '-');
        let number = parts.next()?.split('.').next()?;
        let (attempt, subtask) = (parts.next()?, parts.next()?);
        parts.next()?;
        (number.parse::<u64>().is_ok() && attempt.parse::<u64>().is_ok()).then(|| subtask.parse().ok())?
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// A uid as part of a name: as it is if it can be, else what is left of it and a number of its own.
fn plain(uid: &str) -> String {
    if uid.len() <= LONGEST && !uid.is_empty() && uid.bytes().all(is_plain) {
        return uid.to_owned();
    }
    let hash = uid
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
    let kept: String =
        uid.chars().take(40).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    // No uid that is plain has a plus sign, so none becomes the same.
    format!("{kept}+{hash:016x}")
}

#[cfg(test)]
mod tests {
    use weir_engine::testkit::context;

    use super::*;

    fn names(uid: &str, subtask: usize, prefix: Option<&str>) -> Names {
        Names::new(&context(uid, subtask, 4), prefix, "jsonl").unwrap()
    }

    #[test]
    fn visible_and_hidden() {
        let own = names("out", 2, None);
        assert_eq!(own.visible(7), "part-out-2-1-00007.jsonl");
        assert_eq!(own.hidden(7), ".part-out-2-1-00007.jsonl~out.tmp");
        assert_eq!(names("out", 2, Some("orders")).hidden(100_000), ".orders-2-1-100000.jsonl~out.tmp");
        for number in [0, 7, 100_000] {
            assert_eq!(own.number(&own.visible(number)), Some(number));
            assert_eq!(own.number(&own.hidden(number)), Some(number));
        }
        assert_eq!(own.number("part-out-2-2-00007.jsonl"), None, "another attempt");
        assert_eq!(own.number("part-out-12-1-00007.jsonl"), None, "another subtask");
        assert_eq!(own.number(&own.trial()), None);
    }

    #[test]
    fn hidden_files_tell_whose_they_are() {
        let own = names("out", 2, None);
        assert_eq!(own.hidden_of(&names("out", 13, Some("older-prefix")).hidden(3)), Some(13));
        assert_eq!(own.hidden_of(".part-out-2-1-00007.csv~out.tmp"), Some(2), "an earlier format");
        for other in ["x-out", "ut", "out.b", "b.out", "out~", "out-2"] {
            assert_eq!(own.hidden_of(&names(other, 2, None).hidden(3)), None, "{other}");
            assert_eq!(own.hidden_of(&names(other, 2, Some("part-out")).hidden(3)), None, "{other}");
        }
        for no in
            [&own.visible(3)[..], ".part-out-2-1-x.jsonl~out.tmp", ".2-1-3.jsonl~out.tmp", &own.trial()[..]]
        {
            assert_eq!(own.hidden_of(no), None, "{no}");
        }
    }

    #[test]
    fn any_uid_becomes_a_name() {
        for uid in ["a/b", "a b", "", "圈选", &"x".repeat(300)] {
            let own = names(uid, 0, None);
            assert!(own.hidden(1).len() < 255 && own.hidden(1).bytes().all(|b| b != b'/'), "{uid}");
            assert_eq!(own.hidden_of(&own.hidden(1)), Some(0), "{uid}");
        }
        assert_ne!(names("a/b", 0, None), names("a b", 0, None));
        for bad in ["", ".x", "a/b", "a~b", &"x".repeat(65)] {
            let e = Names::new(&context("out", 0, 1), Some(bad), "csv").unwrap_err().to_string();
            assert!(e.starts_with(&format!("{bad:?} cannot begin the names of files")), "{e}");
        }
    }
}
