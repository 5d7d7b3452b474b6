//! From a URL to a storage that can be used, or a refusal that says what to do.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};

use super::StoreOptions;
use super::error::{CheckpointError, Result};
use super::files::sync_folder;
use super::storage::{Late, Objects, Storage};

/// How long a bucket may take to answer when it is opened.
const ANSWER: Duration = Duration::from_secs(20);

/// The memory storages of this process, by name.
static SHARED: LazyLock<Mutex<HashMap<String, (Objects, Late)>>> = LazyLock::new(Mutex::default);

/// Makes `memory://name` mean these objects within this process: for a storage that no URL names, and for tests that put faults
/// between a job and its storage. It must have conditional puts (`PutMode::Create`). `parts` is the same storage's interface for
/// uploads in parts, if it has one.
pub fn share(name: &str, objects: Arc<dyn ObjectStore>, parts: Option<Arc<dyn MultipartStore>>) {
    shared().insert(name.to_owned(), (Objects { objects, parts }, Late::Possible));
}

fn shared() -> MutexGuard<'static, HashMap<String, (Objects, Late)>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a folder that is not there is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// To write: it is made, and tried.
    Writable,
    /// To read only: it must be there.
    Readable,
}

/// Opens what a URL or plain path names.
pub(crate) async fn open(url: &str, want: Want, options: &StoreOptions) -> Result<Storage> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    match scheme {
        "" => folder(url, PathBuf::from(rest), want, options).await,
        "file" => match rest.strip_prefix("localhost").unwrap_or(rest) {
            path if path.starts_with('/') => folder(url, PathBuf::from(path), want, options).await,
            _ => Err(refuse(
                url,
                "a file URL has an absolute path",
                "write file:///path/to/folder, or just the path",
            )),
        },
        "memory" => memory(url, rest, options),
        "s3" | "s3a" => bucket(url, rest, options).await,
        other => Err(refuse(
            url,
            format!("there is no storage for '{other}://'"),
            "write a folder's path, file:///path, s3://bucket/prefix, or memory://name",
        )),
    }
}

fn refuse(url: &str, why: impl Into<String>, fix: impl Into<String>) -> CheckpointError {
    CheckpointError::Open { url: url.to_owned(), why: why.into(), fix: fix.into(), source: None }
}

async fn folder(url: &str, path: PathBuf, want: Want, options: &StoreOptions) -> Result<Storage> {
    if path.as_os_str().is_empty() {
        return Err(refuse(
            url,
            "it is empty",
            "write a folder's path, file:///path, s3://bucket/prefix, or memory://name",
        ));
    }
    let tried = path.clone();
    let made = tokio::task::spawn_blocking(move || match want {
        Want::Writable => make(&tried).and_then(|()| probe(&tried)),
        Want::Readable => fs::read_dir(&tried).map(drop),
    });
    made.await.unwrap_or_else(|e| Err(io::Error::other(e))).map_err(|e| CheckpointError::Open {
        url: url.to_owned(),
        why: match want {
            Want::Writable => format!("folder {} cannot be written", path.display()),
            Want::Readable => format!("folder {} cannot be read", path.display()),
        },
        fix: match e.kind() {
            io::ErrorKind::NotFound => "check the path".into(),
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                "a file is in the way: choose another path".into()
            }
            io::ErrorKind::PermissionDenied => {
                "give this user the right to it (chown, chmod), or choose another folder".into()
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                "the disk is mounted read-only: choose another folder".into()
            }
            io::ErrorKind::StorageFull => {
                "the disk is full: free some space, or choose another folder".into()
            }
            _ => "choose another folder".into(),
        },
        source: Some(Box::new(e)),
    })?;
    let local = LocalFileSystem::new_with_prefix(&path).map_err(|e| CheckpointError::Open {
        url: url.to_owned(),
        why: format!("folder {} cannot be opened", path.display()),
        fix: "choose another folder".into(),
        source: Some(Box::new(e)),
    })?;
    // With fsync, every file and the folders on its way are on the disk before the storage says that it is written.
    let objects = Objects { objects: Arc::new(local.with_fsync(true)), parts: None };
    let folder = fs::canonicalize(&path).unwrap_or(path);
    Ok(Storage::new(url, objects, Path::default(), Some(folder), Late::Never, options.retry))
}

/// Makes a folder and those above it, and sees to it that they outlive a power cut.
fn make(folder: &FilePath) -> io::Result<()> {
    let missing: Vec<&FilePath> =
        folder.ancestors().take_while(|f| !f.as_os_str().is_empty() && !f.exists()).collect();
    fs::create_dir_all(folder)?;
    for made in missing {
        let parent = match made.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => FilePath::new("."),
        };
        sync_folder(parent)?;
    }
    Ok(())
}

/// Writes a file and removes it again: rights alone do not tell whether that works.
fn probe(folder: &FilePath) -> io::Result<()> {
    let file = folder.join(format!(".weir-probe-{}-{:016x}", std::process::id(), super::nonce()));
    fs::write(&file, b"?").and_then(|()| fs::remove_file(&file)).inspect_err(|_| {
        let _ = fs::remove_file(&file);
    })
}

fn memory(url: &str, name: &str, options: &StoreOptions) -> Result<Storage> {
    if name.is_empty() {
        return Err(refuse(url, "it has no name", "write memory://name"));
    }
    let mut known = shared();
    let (objects, late) = known.entry(name.to_owned()).or_insert_with(|| {
        let memory = Arc::new(InMemory::new());
        (Objects { objects: memory.clone(), parts: Some(memory) }, Late::Never)
    });
    Ok(Storage::new(url, objects.clone(), Path::default(), None, *late, options.retry))
}

async fn bucket(url: &str, rest: &str, options: &StoreOptions) -> Result<Storage> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(refuse(url, "it names no bucket", "write s3://bucket/prefix"));
    }
    let prefix = Path::parse(prefix.trim_matches('/')).map_err(|e| CheckpointError::Open {
        url: url.to_owned(),
        why: "its prefix cannot be used".into(),
        fix: "use letters, digits and dashes".into(),
        source: Some(Box::new(e)),
    })?;
    let cannot = |e: object_store::Error| CheckpointError::Open {
        url: url.to_owned(),
        why: "its settings cannot be used".into(),
        fix: "check the AWS_* environment variables".into(),
        source: Some(Box::new(e)),
    };

    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(RetryConfig {
        // Short tries here, longer waits in `Storage`, which hears when a checkpoint is given up.
        backoff: BackoffConfig::default(),
        max_retries: 2,
        retry_timeout: Duration::from_secs(60),
    });
    for (key, value) in &options.s3 {
        builder = builder.with_config(AmazonS3ConfigKey::from_str(key).map_err(cannot)?, value);
    }
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
    if endpoint.as_deref().is_some_and(is_this_machine) {
        builder = builder.with_allow_http(true);
    }
    let s3 = Arc::new(builder.build().map_err(cannot)?);
    let objects = Objects { objects: s3.clone(), parts: Some(s3) };

    let mut listing = objects.objects.list(Some(&prefix));
    let answered = tokio::time::timeout(ANSWER, listing.next()).await;
    let place = endpoint.unwrap_or_else(|| "Amazon S3".into());
    let failed = |why: String, fix: &str, source: Option<object_store::Error>| CheckpointError::Open {
        url: url.to_owned(),
        why,
        fix: fix.into(),
        source: source.map(Into::into),
    };
    match answered {
        Ok(None | Some(Ok(_))) => {}
        Ok(Some(Err(e))) if is_status(&e, 404) => {
            return Err(failed(
                format!("{place} has no bucket '{bucket}'"),
                "create it, or correct the URL (and AWS_REGION, AWS_ENDPOINT_URL)",
                Some(e),
            ));
        }
        Ok(Some(Err(e))) if is_status(&e, 403) || is_status(&e, 401) => {
            return Err(failed(
                format!("{place} does not let this user list bucket '{bucket}'"),
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's policy (list, get, put, delete)",
                Some(e),
            ));
        }
        Ok(Some(Err(e))) => {
            return Err(failed(
                format!("{place} cannot be asked for bucket '{bucket}'"),
                "check that it can be reached, AWS_ENDPOINT_URL (http only for this machine, or with AWS_ALLOW_HTTP=true), AWS_REGION and the credentials",
                Some(e),
            ));
        }
        Err(_) => {
            return Err(failed(
                format!("{place} did not answer for bucket '{bucket}' within {} s", ANSWER.as_secs()),
                "check that it can be reached, AWS_ENDPOINT_URL, AWS_REGION and the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)",
                None,
            ));
        }
    }
    // A request that timed out here may still be carried out there.
    Ok(Storage::new(url, objects, prefix, None, Late::Possible, options.retry))
}

/// Whether a listing failed with an HTTP status. The library keeps that to itself for listings, but for the words.
fn is_status(error: &object_store::Error, status: u16) -> bool {
    use object_store::Error as E;
    match error {
        E::NotFound { .. } => status == 404,
        E::PermissionDenied { .. } => status == 403,
        E::Unauthenticated { .. } => status == 401,
        _ => error.to_string().contains(&format!("status code: {status} ")),
    }
}

/// Whether an endpoint is on this machine, where plain http is no risk.
fn is_this_machine(endpoint: &str) -> bool {
    endpoint.strip_prefix("http://").is_some_and(|rest| {
        let host = rest.split(['/', '?']).next().unwrap_or(rest);
        let host = match host.strip_prefix('[') {
            Some(v6) => v6.split(']').next().unwrap_or(v6),
            None => host.split(':').next().unwrap_or(host),
        };
        matches!(host, "localhost" | "::1") || host.starts_with("127.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_machine() {
        for (endpoint, here) in [
            ("http://localhost:9000", true),
            ("http://127.0.0.1:9000/x", true),
            ("http://[::1]:9000", true),
            ("https://localhost", false),
            ("http://localhost.example.com", false),
            ("http://example.com", false),
        ] {
            assert_eq!(is_this_machine(endpoint), here, "{endpoint}");
        }
    }
}
