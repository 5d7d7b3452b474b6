//! Writes snapshots out: into the backend, then into frozen files, for a checkpoint or as a portable file for a savepoint.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use fail::fail_point;

use super::{Inner, LocalPart, PartFormat, Snapshot, Store};
use crate::backend::{BackendKind, FrozenRocks, LocalFile, PORTABLE_FILE, PortableWriter, Staged};
use crate::error::StateError;

impl Store {
    /// Writes a snapshot to the backend and freezes that into `folder`, which is made. Off the task's thread, one at a time.
    ///
    /// Every piece hears how it ended, whatever happens. What lies in `folder` after an error may be deleted.
    ///
    /// *Blocking*: writes and flushes files.
    ///
    /// # Errors
    /// A piece cannot be encoded, or files cannot be written: nothing is lost, the pieces go with the next snapshot.
    pub fn write_out(&self, mut snapshot: Snapshot, folder: &Path) -> Result<LocalPart, StateError> {
        let files = self.write_and_freeze(&mut snapshot, folder);
        snapshot.settle(files.is_ok());
        let format = match self.0.config.backend {
            BackendKind::Memory => PartFormat::Portable,
            BackendKind::Rocks => PartFormat::Rocks,
        };
        Ok(self.part(snapshot, format, files?))
    }

    /// As [`write_out`](Self::write_out), for a savepoint: one portable file at `file`, whatever the backend. A folder beside
    /// it is used meanwhile.
    ///
    /// # Errors
    /// As [`write_out`](Self::write_out).
    pub fn write_portable(&self, mut snapshot: Snapshot, file: &Path) -> Result<LocalPart, StateError> {
        let folder = file.with_extension("frozen");
        let files = self.write_and_freeze(&mut snapshot, &folder);
        snapshot.settle(files.is_ok());
        let made = files.and_then(|files| self.to_portable(&files, file));
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(StateError::io("delete", &folder))?;
        }
        Ok(self.part(snapshot, PartFormat::Portable, made?))
    }

    fn write_and_freeze(&self, snapshot: &mut Snapshot, folder: &Path) -> Result<Vec<LocalFile>, StateError> {
        let Some(backend) = self.0.backend.get() else { return Ok(Vec::new()) };
        let mut staged = Staged::new(&**backend);
        snapshot.write(&mut |batch| staged.push(batch))?;
        staged.finish()?;
        fail_point!("store::before_freeze", |_| Err(StateError::Backend {
            doing: "freeze",
            folder: folder.to_owned(),
            source: "fail point store::before_freeze".into(),
        }));
        if self.tables().is_empty() { Ok(Vec::new()) } else { backend.freeze(folder) }
    }

    /// Makes frozen files into one portable file.
    fn to_portable(&self, frozen: &[LocalFile], file: &Path) -> Result<Vec<LocalFile>, StateError> {
        let Some(first) = frozen.first() else { return Ok(Vec::new()) };
        let bytes = match self.0.config.backend {
            BackendKind::Memory => {
                fs::rename(&first.path, file).map_err(StateError::io("rename", &first.path))?;
                first.bytes
            }
            BackendKind::Rocks => self.rocks_to_portable(&first.path, file)?,
        };
        Ok(vec![LocalFile { name: PORTABLE_FILE.to_owned(), path: file.to_owned(), bytes }])
    }

    fn rocks_to_portable(&self, one: &Path, file: &Path) -> Result<u64, StateError> {
        let Inner { config, clocks, .. } = &*self.0;
        let frozen = FrozenRocks::open(one.parent().unwrap_or(one), &config.resources)?;
        let expired = clocks.droppable()();
        let mut writer = PortableWriter::create(file)?;
        let mut pushed = Ok(());
        frozen.scan(&[], &[], &mut |key, value| {
            if !expired(key, value) {
                pushed = writer.push(key, value);
            }
            if pushed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        pushed?;
        writer.finish()
    }

    fn part(&self, mut snapshot: Snapshot, format: PartFormat, files: Vec<LocalFile>) -> LocalPart {
        LocalPart {
            subtask: self.0.config.subtask,
            key_groups: self.key_groups(),
            format,
            tables: self.tables().metas().cloned().collect(),
            items: snapshot.take_items(),
            files,
        }
    }
}
