//! A storage that fails on command, for tests: slow, unreliable, full, forgetful of answers, or corrupting what it keeps.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// A call to a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Writes an object, or a part of one.
    Put,
    /// Reads an object, or looks it up.
    Get,
    /// Deletes an object.
    Delete,
    /// Lists objects.
    List,
}

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It takes this much longer, by tokio's clock.
    Delay(Duration),
    /// It fails for a reason that may pass.
    Fail,
    /// So many of a hundred calls fail for a reason that may pass.
    FailPercent(u8),
    /// It fails: there is no space left.
    NoSpace,
    /// It fails: not allowed.
    Denied,
    /// It is carried out, but the answer is lost.
    LoseAnswer,
    /// It fails, and is carried out this much later all the same.
    Late(Duration),
    /// Only the first half is written.
    Truncate,
    /// One bit in the middle is written wrong.
    FlipBit,
}

#[derive(Debug)]
struct Rule {
    call: Call,
    part_of_path: String,
    fault: Fault,
    times: usize,
}

#[derive(Debug, Default)]
struct Plan {
    rules: Vec<Rule>,
    random: u64,
    calls: Vec<(Call, String)>,
}

/// A storage with faults in front of another one; clones share both.
#[derive(Clone)]
pub struct FaultyStore {
    objects: Arc<dyn ObjectStore>,
    parts: Option<Arc<dyn MultipartStore>>,
    plan: Arc<Mutex<Plan>>,
}

impl FaultyStore {
    /// Over a new memory storage.
    pub fn memory() -> Self {
        let memory = Arc::new(InMemory::new());
        Self::over(memory.clone(), Some(memory))
    }

    /// Over another storage.
    pub fn over(objects: Arc<dyn ObjectStore>, parts: Option<Arc<dyn MultipartStore>>) -> Self {
        Self { objects, parts, plan: Arc::default() }
    }

    /// From now on every such call whose path has `part_of_path` in it goes wrong. The first rule that fits a call is taken.
    pub fn inject(&self, call: Call, part_of_path: &str, fault: Fault) {
        self.inject_times(call, part_of_path, fault, usize::MAX);
    }

    /// The next `times` such calls go wrong.
    pub fn inject_times(&self, call: Call, part_of_path: &str, fault: Fault, times: usize) {
        self.plan().rules.push(Rule { call, part_of_path: part_of_path.to_owned(), fault, times });
    }

    /// From now on nothing goes wrong.
    pub fn heal(&self) {
        self.plan().rules.clear();
    }

    /// What [`Fault::FailPercent`] draws from.
    pub fn seed(&self, seed: u64) {
        self.plan().random = seed;
    }

    /// The calls so far, with their paths.
    pub fn calls(&self) -> Vec<(Call, String)> {
        self.plan().calls.clone()
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, call: Call, path: &Path) -> Option<Fault> {
        let mut plan = self.plan();
        plan.calls.push((call, path.to_string()));
        let fits = |rule: &&mut Rule| {
            rule.call == call && rule.times > 0 && path.as_ref().contains(&rule.part_of_path)
        };
        let rule = plan.rules.iter_mut().find(fits)?;
        rule.times = rule.times.saturating_sub(1);
        match rule.fault {
            Fault::FailPercent(percent) => {
                plan.random = plan
                    .random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                ((plan.random >> 33) % 100 < u64::from(percent)).then_some(Fault::Fail)
            }
            fault => Some(fault),
        }
    }

    /// What goes wrong before a call that carries no data; true if its answer is lost afterwards.
    async fn before(&self, call: Call, path: &Path) -> Result<bool> {
        match self.fault(call, path) {
            None | Some(Fault::Truncate | Fault::FlipBit) => Ok(false),
            Some(Fault::LoseAnswer) => Ok(true),
            Some(Fault::Delay(time)) => {
                tokio::time::sleep(time).await;
                Ok(false)
            }
            Some(fault) => Err(failure(fault)),
        }
    }
}

fn failure(fault: Fault) -> Error {
    let source: Box<dyn std::error::Error + Send + Sync> = match fault {
        Fault::NoSpace => Box::new(std::io::Error::from(std::io::ErrorKind::StorageFull)),
        Fault::Denied => {
            return Error::PermissionDenied { path: String::new(), source: "injected".into() };
        }
        _ => "injected failure".into(),
    };
    Error::Generic { store: "faulty", source }
}

fn spoil(fault: Option<Fault>, payload: PutPayload) -> PutPayload {
    let mut bytes = match fault {
        Some(Fault::Truncate | Fault::FlipBit) => Vec::from(Bytes::from(payload)),
        _ => return payload,
    };
    let middle = bytes.len() / 2;
    match fault {
        Some(Fault::Truncate) => bytes.truncate(middle),
        _ => bytes[middle] ^= 1,
    }
    PutPayload::from(bytes)
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyStore({})", self.objects)
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.objects)
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let fault = self.fault(Call::Put, location);
        match fault {
            None | Some(Fault::Truncate | Fault::FlipBit) => {}
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(Fault::LoseAnswer) => {
                self.objects.put_opts(location, payload, options).await?;
                return Err(failure(Fault::LoseAnswer));
            }
            Some(Fault::Late(time)) => {
                let (objects, location) = (self.objects.clone(), location.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    let _ = objects.put_opts(&location, payload, options).await;
                });
                return Err(failure(Fault::Fail));
            }
            Some(fault) => return Err(failure(fault)),
        }
        self.objects.put_opts(location, spoil(fault, payload), options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.before(Call::Put, location).await?;
        self.objects.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        match self.before(Call::Get, location).await? {
            true => Err(failure(Fault::LoseAnswer)),
            false => self.objects.get_opts(location, options).await,
        }
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let delete = move |location: Result<Path>| {
            let store = store.clone();
            async move {
                let location = location?;
                let lost = store.before(Call::Delete, &location).await?;
                let one = stream::iter([Ok(location.clone())]).boxed();
                store.objects.delete_stream(one).try_collect::<Vec<_>>().await?;
                if lost { Err(failure(Fault::LoseAnswer)) } else { Ok(location) }
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        stream::once(async move {
            match store.before(Call::List, &prefix).await {
                Ok(_) => store.objects.list(Some(&prefix)),
                Err(error) => stream::iter([Err(error)]).boxed(),
            }
        })
        .flatten()
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.before(Call::List, &prefix.cloned().unwrap_or_default()).await?;
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.before(Call::Put, to).await?;
        self.objects.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for FaultyStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.before(Call::Put, path).await?;
        self.inner()?.create_multipart(path).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let lost = self.before(Call::Put, path).await?;
        let part = self.inner()?.put_part(path, id, part_idx, data).await?;
        if lost { Err(failure(Fault::LoseAnswer)) } else { Ok(part) }
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        let lost = self.before(Call::Put, path).await?;
        let result = self.inner()?.complete_multipart(path, id, parts).await?;
        if lost { Err(failure(Fault::LoseAnswer)) } else { Ok(result) }
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.inner()?.abort_multipart(path, id).await
    }
}

impl FaultyStore {
    fn inner(&self) -> Result<&dyn MultipartStore> {
        self.parts.as_deref().ok_or_else(|| Error::NotSupported { source: "no uploads in parts".into() })
    }
}
