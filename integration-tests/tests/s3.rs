//! Checkpoints in S3: the whole life of a job's checkpoints against a server that speaks the S3 protocol.
//!
//! The server is `s3s-fs`, in this process, over a folder. It checks signatures and the conditions of conditional writes, though
//! not in one step with the write: two writers in the same instant are not kept apart as S3 keeps them. Leases and
//! manifests use `If-None-Match: *` alone, which Amazon S3, MinIO, Ceph and R2 have.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use weir_state::backend::LocalFile;
use weir_state::checkpoint::{
    CheckpointError, CheckpointStore, Kind, Lease, Manifest, OperatorState, Part, Pending, Retry,
    StoreOptions,
};
use weir_state::store::{LocalPart, PartFormat};

const JOB: &str = "user profile/1";
const TTL: Duration = Duration::from_secs(30);
const BUCKET: &str = "checkpoints";

struct Server {
    address: SocketAddr,
    root: TempDir,
}

impl Server {
    async fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join(BUCKET)).unwrap();
        let service = {
            let mut builder = S3ServiceBuilder::new(FileSystem::new(root.path()).unwrap());
            builder.set_auth(SimpleAuth::from_single("weir", "a secret"));
            builder.build()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let http = Builder::new(TokioExecutor::new());
            while let Ok((socket, _)) = listener.accept().await {
                let connection = http.serve_connection(TokioIo::new(socket), service.clone()).into_owned();
                tokio::spawn(connection);
            }
        });
        Self { address, root }
    }

    fn options(&self, secret: &str) -> StoreOptions {
        let settings = [
            ("aws_endpoint", format!("http://{}", self.address)),
            ("aws_access_key_id", "weir".to_owned()),
            ("aws_secret_access_key", secret.to_owned()),
            ("aws_region", "us-east-1".to_owned()),
        ];
        StoreOptions {
            s3: settings.map(|(key, value)| (key.to_owned(), value)).to_vec(),
            part_bytes: 5 << 20,
            retry: Retry { tries: 3, first: Duration::from_millis(10), longest: Duration::from_millis(50) },
            ..StoreOptions::default()
        }
    }

    async fn open(&self) -> CheckpointStore {
        let url = format!("s3://{BUCKET}/prod/weir");
        CheckpointStore::open(&url, JOB, self.options("a secret")).await.unwrap()
    }

    /// The objects of the job, below a folder.
    fn objects(&self, folder: &str) -> usize {
        fn count(folder: &Path) -> usize {
            let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
            entries.flatten().map(|e| if e.path().is_dir() { count(&e.path()) } else { 1 }).sum()
        }
        count(&self.root.path().join(BUCKET).join("prod/weir/user=20profile=2F1").join(folder))
    }
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut step = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| step()).collect()
}

fn frozen(folder: &Path, names: &[&str]) -> LocalPart {
    let file = |name: &&str| {
        let path = folder.join(name);
        LocalFile { name: (*name).to_owned(), bytes: std::fs::metadata(&path).unwrap().len(), path }
    };
    LocalPart {
        subtask: 0,
        key_groups: 0..128,
        format: PartFormat::Rocks,
        tables: Vec::new(),
        items: BTreeMap::new(),
        files: names.iter().map(file).collect(),
    }
}

fn manifest(pending: &Pending, part: Part) -> Manifest {
    let window =
        OperatorState { uid: "window".into(), kind: "window".into(), parallelism: 1, parts: vec![part] };
    pending.manifest(vec![window])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_life_in_s3() {
    let server = Server::start().await;
    let store = server.open().await;
    assert!(store.latest().await.unwrap().is_none());
    let lease = Lease::acquire(&store, "first", TTL).await.unwrap();

    // One file goes in parts, one whole.
    let local = tempfile::tempdir().unwrap();
    let large = noise(12_000_000, 1);
    std::fs::write(local.path().join("000001.sst"), &large).unwrap();
    let mut previous: Option<Part> = None;
    for id in 1..=3_u64 {
        let name = format!("{:06}.sst", id + 1);
        std::fs::write(local.path().join(&name), noise(1_000, id + 1)).unwrap();
        let pending = store.begin(id);
        let part = frozen(local.path(), &["000001.sst", &name]);
        let report = pending.upload_part("window", part, previous.as_ref()).await.unwrap();
        assert_eq!(report.uploaded_bytes, if id == 1 { 12_001_000 } else { 1_000 });
        let saved = store.publish(&pending, manifest(&pending, report.part), &lease).await.unwrap();
        previous = Some(saved.manifest().operators[0].parts[0].clone());
    }
    assert_eq!((server.objects("checkpoints"), server.objects("shared")), (3, 4));

    // The next process: the first one is dead.
    drop(lease);
    drop(store);
    let store = server.open().await;
    let lease = Lease::acquire(&store, "second", TTL).await.unwrap();
    assert_eq!(store.count_restart(&lease).await.unwrap().len(), 1);
    assert_eq!(store.next_id().await.unwrap(), 4);
    let saved = store.latest().await.unwrap().unwrap();
    assert_eq!(saved.manifest().id, 3);
    let into = local.path().join("restored");
    let part = &saved.manifest().operators[0].parts[0];
    let report = saved.download_part(part, &into, &[]).await.unwrap();
    assert_eq!(report.downloaded_bytes, 12_001_000);
    assert!(std::fs::read(into.join("000001.sst")).unwrap() == large);

    let deleted = store.retain(1, &lease).await.unwrap();
    assert_eq!((deleted.checkpoints.len(), deleted.files), (2, 2));
    assert_eq!((server.objects("checkpoints"), server.objects("shared")), (1, 2));

    // One that is given up leaves nothing; what was restored is not uploaded again.
    let pending = store.begin(4);
    let report = pending.upload_part("window", frozen(&into, &["000001.sst"]), Some(part)).await.unwrap();
    assert_eq!(report.uploaded_bytes, 0);
    std::fs::write(local.path().join("000009.sst"), noise(6_000_000, 9)).unwrap();
    pending.upload_part("window", frozen(local.path(), &["000009.sst"]), None).await.unwrap();
    assert_eq!(server.objects("shared"), 3);
    pending.discard();
    store.idle().await;
    assert_eq!(server.objects("shared"), 2);

    // A savepoint, found by name.
    let pending = store.begin_savepoint(4, "before the change").await.unwrap();
    let part = frozen(&into, &["000001.sst"]);
    let report =
        pending.upload_part("window", part, Some(&saved.manifest().operators[0].parts[0])).await.unwrap();
    assert_eq!(report.uploaded_bytes, 12_000_000);
    store.publish(&pending, manifest(&pending, report.part), &lease).await.unwrap();
    assert_eq!(store.savepoints().await.unwrap(), ["before the change"]);
    let savepoint = store.load_savepoint(&store.savepoint_url("before the change")).await.unwrap();
    assert_eq!(savepoint.manifest().kind, Kind::Savepoint);
    let part = &savepoint.manifest().operators[0].parts[0];
    savepoint.download_part(part, &local.path().join("again"), &[]).await.unwrap();

    store.sweep(&lease).await.unwrap();
    store.latest().await.unwrap().unwrap();
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_and_the_manifests_are_guarded_by_conditional_writes() {
    let server = Server::start().await;
    let (one, two) = (server.open().await, server.open().await);
    let first = Lease::acquire(&one, "first", TTL).await.unwrap();
    let refused = Lease::acquire(&two, "second", TTL).await.unwrap_err();
    assert!(matches!(refused, CheckpointError::Held { .. }), "{refused}");
    first.renew().await.unwrap();

    let pending = one.begin(1);
    let local = tempfile::tempdir().unwrap();
    std::fs::write(local.path().join("000001.sst"), b"one").unwrap();
    let report = pending.upload_part("window", frozen(local.path(), &["000001.sst"]), None).await.unwrap();
    let checkpoint = manifest(&pending, report.part);

    Lease::break_held(&two, "an operator").await.unwrap();
    let second = Lease::acquire(&two, "second", TTL).await.unwrap();
    assert_eq!(second.epoch(), first.epoch() + 2);
    let fenced = one.publish(&pending, checkpoint, &first).await.unwrap_err();
    assert!(fenced.is_fenced(), "{fenced}");
    assert!(first.renew().await.unwrap_err().is_fenced());

    // Published once, and not again with other content.
    for (try_, completed_ms) in [(1, 10), (2, 20)] {
        let pending = two.begin(1);
        let nothing =
            Manifest { completed_ms, operators: Vec::new(), ..manifest(&pending, part_of_nothing()) };
        let published = two.publish(&pending, nothing, &second).await;
        match (try_, published) {
            (1, Ok(_)) | (2, Err(CheckpointError::Exists { .. })) => {}
            (_, other) => panic!("try {try_}: {other:?}"),
        }
    }
    assert_eq!(two.latest().await.unwrap().unwrap().manifest().completed_ms, 10);
}

fn part_of_nothing() -> Part {
    Part {
        subtask: 0,
        key_groups: 0..128,
        format: PartFormat::Rocks,
        tables: Vec::new(),
        items: BTreeMap::new(),
        files: Vec::new(),
        finished: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_bucket_is_said() {
    let server = Server::start().await;
    let open = async |url: &str, options: StoreOptions| {
        CheckpointStore::open(url, JOB, options).await.unwrap_err().to_string()
    };
    let text = open("s3://no-such-bucket/x", server.options("a secret")).await;
    let endpoint = format!("http://{}", server.address);
    assert_eq!(
        text,
        format!(
            "checkpoint storage 's3://no-such-bucket/x' cannot be used: {endpoint} has no bucket 'no-such-bucket'; create it, or correct the URL (and AWS_REGION, AWS_ENDPOINT_URL)"
        )
    );
    let text = open("s3://checkpoints/x", server.options("another secret")).await;
    assert!(text.contains("does not let this user list bucket 'checkpoints'"), "{text}");
    assert!(text.contains("check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"), "{text}");

    let mut nobody = server.options("a secret");
    // A port that nobody listens on.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    nobody.s3[0].1 = format!("http://{free}");
    let text = open("s3://checkpoints/x", nobody).await;
    assert!(
        text.contains(&format!(
            "http://{free} cannot be asked for bucket 'checkpoints'; check that it can be reached"
        )),
        "{text}"
    );

    let mut far = server.options("a secret");
    far.s3[0].1 = "http://example.com".into();
    let text = open("s3://checkpoints/x", far).await;
    assert!(text.contains("http only for this machine, or with AWS_ALLOW_HTTP=true"), "{text}");

    let mut unknown = server.options("a secret");
    unknown.s3.push(("aws_colour".into(), "red".into()));
    let text = open("s3://checkpoints/x", unknown).await;
    assert!(text.ends_with("check the AWS_* environment variables"), "{text}");
}
