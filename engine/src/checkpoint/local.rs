//! `LocalFolders`: a job's local folders, one on each disk, claimed so that no other job of this machine touches them.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::env::{LIFE, is_past_life};

/// One of them.
#[derive(Debug)]
struct Claimed {
    folder: PathBuf,
    /// The lock beside it and its file; none where the file system knows no locks, and once it was given up.
    lock: Mutex<Option<(File, PathBuf)>>,
}

impl Claimed {
    fn lock(&self) -> MutexGuard<'_, Option<(File, PathBuf)>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Claimed until released, or dropped. The system gives up the claims of a process that dies.
#[derive(Debug, Default)]
pub(crate) struct LocalFolders(Vec<Claimed>);

impl LocalFolders {
    /// Claims these folders. Where somebody else has one, another process or another job of this one that has the same name, it is
    /// one beside it: local files need not survive anything, so that nothing is lost but time.
    ///
    /// *Blocking*: opens and locks files.
    pub(crate) fn claim(wanted: &[PathBuf]) -> Self {
        LocalFolders(wanted.iter().map(|folder| claim_one(folder)).collect())
    }

    /// Where they lie.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().map(|claimed| claimed.folder.clone()).collect()
    }

    /// The folders of lives other than this one that nobody needs any more: while the claim holds, none is anybody else's.
    pub(crate) fn other_lives(&self, life: &str) -> Vec<PathBuf> {
        let mut others = Vec::new();
        for claimed in &self.0 {
            let is_locked = claimed.lock().is_some();
            let is_other = |name: &str| match is_locked {
                true => name.starts_with(LIFE) && name != life,
                // Those of a life after it are somebody's who has overtaken this process without its knowing yet.
                false => is_past_life(name, life),
            };
            let entries = fs::read_dir(&claimed.folder).into_iter().flatten().flatten();
            let found = entries.filter(|e| e.file_name().to_str().is_some_and(is_other));
            others.extend(found.map(|entry| entry.path()));
        }
        others
    }

    /// Removes everything in them; the claims hold.
    pub(crate) fn clear(&self) {
        for Claimed { folder, .. } in &self.0 {
            // Whoever else removes a part of it at the same time is done soon.
            let _ = (0..3).any(|_| match fs::remove_dir_all(folder) {
                Ok(()) => true,
                Err(e) => e.kind() == io::ErrorKind::NotFound && !folder.exists(),
            });
        }
    }

    /// Gives the claims up, whoever may still know of them.
    pub(crate) fn release(&self) {
        for claimed in &self.0 {
            let Some((file, path)) = claimed.lock().take() else { continue };
            // Only if it is empty: what a later life may use stays.
            let _ = fs::remove_dir(&claimed.folder);
            if cfg!(unix) && !claimed.folder.exists() {
                // While it is locked: whoever waits for this very file sees that it is not there any more.
                let _ = fs::remove_file(path);
            }
            drop(file);
        }
    }
}

impl Drop for LocalFolders {
    fn drop(&mut self) {
        self.release();
    }
}

fn claim_one(wanted: &Path) -> Claimed {
    let mut folder = wanted.to_owned();
    for n in 2u32.. {
        match try_lock(&folder) {
            Ok(Some(lock)) => {
                if folder != wanted {
                    tracing::warn!(
                        "{} is being used by another process, or by another job of that name in this one: local state goes to {}. \
                         To choose where, give each a state folder of its own",
                        wanted.display(),
                        folder.display()
                    );
                }
                return Claimed { folder, lock: Mutex::new(Some(lock)) };
            }
            Ok(None) => folder = beside(wanted, &format!(".{n}")),
            Err(e) => {
                tracing::warn!(
                    "{} cannot be locked ({e}): no other process may run a job of that name there",
                    folder.display()
                );
                break;
            }
        }
    }
    Claimed { folder, lock: Mutex::new(None) }
}

fn beside(folder: &Path, suffix: &str) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Locks the file beside a folder; `None` when somebody else has it.
fn try_lock(folder: &Path) -> io::Result<Option<(File, PathBuf)>> {
    let path = beside(folder, ".lock");
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    loop {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        match file.try_lock() {
            // Whoever had it may have removed it between the two calls: then somebody else may lock a new one.
            Ok(()) if is_still(&file, &path)? => return Ok(Some((file, path))),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
}

/// Whether an open file is what its path names.
#[cfg(unix)]
fn is_still(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let opened = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (opened.dev(), opened.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(not(unix))]
fn is_still(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn two_jobs_of_one_name_do_not_share_a_folder() {
        let disk = tempfile::tempdir().unwrap();
        let wanted = [disk.path().join("job")];
        let first = LocalFolders::claim(&wanted);
        let second = LocalFolders::claim(&wanted);
        assert_eq!(first.paths(), wanted);
        assert_eq!(second.paths(), [disk.path().join("job.2")]);
        for folders in [&first, &second] {
            fs::create_dir_all(folders.paths()[0].join("life-1.1")).unwrap();
            fs::create_dir_all(folders.paths()[0].join("life-7.7")).unwrap();
        }
        assert_eq!(first.other_lives("life-1.1"), [disk.path().join("job/life-7.7")]);
        first.clear();
        drop(first);
        assert_eq!(names(disk.path()), ["job.2", "job.2.lock"], "of the other one nothing is gone");
        assert!(disk.path().join("job.2/life-1.1").exists());
        // The first place is free again; what lies in the second stays for its next life.
        drop(second);
        let third = LocalFolders::claim(&wanted);
        assert_eq!(third.paths(), wanted);
        drop(third);
        let fourth = LocalFolders::claim(&[disk.path().join("job.2")]);
        fourth.clear();
        drop(fourth);
        assert_eq!(names(disk.path()), Vec::<String>::new());
    }

    #[test]
    fn of_many_that_claim_at_once_each_has_its_own() {
        let disk = tempfile::tempdir().unwrap();
        let wanted = [disk.path().join("job")];
        for _ in 0..50 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let claimed = LocalFolders::claim(&wanted);
                        let own = claimed.paths()[0].join("life-1.1");
                        fs::create_dir_all(claimed.paths()[0].clone()).unwrap();
                        fs::create_dir(&own).expect("nobody else is in it");
                        claimed.clear();
                    });
                }
            });
        }
    }
}
