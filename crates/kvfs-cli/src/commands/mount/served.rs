//! `kvfs mount kvfs+unix:SOCKET DIR`, with `--snapshot NAME`, `--txn` or `--lease`: the files of a
//! snapshot or of a transaction, or the main files, are mounted on this machine, and their store is
//! on a server (`kvfs serve`). The daemon has no store to lock, so it does far less than that of
//! `daemon`: it answers the kernel until the mount ends. `guest` handles the requests about its
//! transaction.
//!
//! The mount waits for some time for a server that has disappeared. If that takes longer than a
//! minute, or than the time of `--timeout`, calls fail until the server answers again.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use env::Machine;
use kvdb::{Kvdb, ServedView};
use kvdb_wire::{
    Client, ClientOptions, FailureCode, LeaseOptions, ServedTransaction, SnapshotView,
    TransactionKey,
};
use kvfs::{Fs, FsOptions, Views};
use kvfs_fuse::view_names::view_name;
use kvfs_fuse::{FuseAdapter, MountOptions, Unmounter};
use places::{ServedDirectory, Server};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::secrets::clear_environment;
use super::shown_directory::must_exist;
use super::{
    Args, Credentials, Secrets, announce, arguments, mount_point, say_ready, start_with, tell,
};
use crate::support::mounting::mount_options::{self, Options};
use crate::support::mounts::daemons::Record;
use crate::support::serving::guest::{self, Asked, Guest};
use crate::support::serving::told_kernel::ToldKernel;
use crate::support::serving::{daemon, network};
use crate::support::stores::store::MEMORY;
use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;

/// The default time, in seconds, for which a server that does not answer is waited for.
const TIMEOUT: u32 = 60;

/// Parses the address of a directory on a server. Returns `None` if `store` is no such address.
pub fn address(store: &Path) -> Option<Outcome<ServedDirectory>> {
    ServedDirectory::parse(store).map_err(Failure::from).transpose()
}

/// Mounts the view, or serves the mount if this is the background process.
pub fn run(there: &ServedDirectory, dir: &Path, args: &Args, output: &Output) -> Outcome {
    refuse_of_local_stores(args)?;
    let mut options = mount_options::parse(&args.options)?;
    options.memory = args.memory.or(options.memory);
    options.log = args.log.clone().or(options.log);
    let address = there.address();
    let secrets = match args.secrets {
        true => Secrets::receive().map_err(tell)?,
        false => Secrets::default(),
    };
    let view = &view_of(&mut options, args, &address, &secrets)?;
    let timeout = Duration::from_secs(args.timeout.unwrap_or(TIMEOUT).into());
    let (attached, sealed, credentials) = (args.attached, args.sealed, &args.credentials);
    let asked = Mounting { there, view, timeout, attached, sealed, credentials, secrets: &secrets };
    if args.serving {
        return serve_in_background(&asked, dir, options);
    }
    let token = token_for(&there.server, &args.credentials);
    if args.foreground {
        // The next call may start a thread.
        clear_environment();
    }
    let dir = mount_point(dir, output)?;
    if let Some(log) = &mut options.log {
        *log = std::path::absolute(&*log)
            .map_err(|e| Failure::io(format!("cannot use {}", log.shown()), &e))?;
    }
    if args.foreground {
        let secrets = &Secrets { token, ..secrets.clone() };
        let mut ready = |record: &Record| announce(output, record);
        return serve(&Mounting { secrets, ..asked }, &dir, &options, &mut ready);
    }
    let words = &args.options;
    let mut all = arguments("--serving", Path::new(&address), &dir, words, &options);
    match view {
        View::Snapshot(name) => all.extend(["--snapshot".into(), name.into()]),
        View::Transaction(asked) => {
            all.push("--txn".into());
            all.extend(asked.durable.then(|| "--durable".into()));
        }
        View::Lease { takes } => {
            all.push("--lease".into());
            all.extend(takes.then(|| "--take".into()));
        }
    }
    if let Some(timeout) = args.timeout {
        all.extend(["--timeout".into(), timeout.to_string().into()]);
    }
    all.extend(args.credentials.words()?);
    let key = match view {
        View::Snapshot(_) | View::Lease { .. } => None,
        View::Transaction(asked) => asked.key,
    };
    announce(output, &start_with(&all, &Secrets { key, token })?)
}

/// Mounts transactions for this process, by background processes. Such a mount ends when this
/// process ends, and the transaction is aborted, unless it was requested to keep the mount.
pub struct MountsOfProcess {
    address: OsString,
    /// The arguments for the credentials.
    credentials: Vec<OsString>,
    token: Option<String>,
    /// Only this process may end the transactions.
    sealed: bool,
}

impl MountsOfProcess {
    /// Takes the credentials of the server from the environment of this process. The secrets in it
    /// are removed, since this process waits for a program.
    pub fn new(there: &ServedDirectory, sealed: bool) -> Outcome<MountsOfProcess> {
        let credentials = Credentials::default();
        let words = credentials.words()?;
        let token = token_for(&there.server, &credentials);
        clear_environment();
        Ok(MountsOfProcess { address: there.address(), credentials: words, token, sealed })
    }

    /// Mounts a new transaction.
    pub fn begin(&self, dir: &Path, durable: bool) -> Outcome<Record> {
        self.mount(dir, durable.then_some("--durable"), None)
    }

    /// Mounts an open transaction, which no other mount has from then on.
    pub fn take_up(&self, dir: &Path, key: TransactionKey) -> Outcome<Record> {
        self.mount(dir, None, Some(key))
    }

    fn mount(&self, dir: &Path, how: Option<&str>, key: Option<TransactionKey>) -> Outcome<Record> {
        let options = Options::default();
        let mut all = arguments("--serving", Path::new(&self.address), dir, &[], &options);
        all.extend(["--txn".into(), "--attached".into(), std::process::id().to_string().into()]);
        all.extend(self.sealed.then(|| "--sealed".into()));
        all.extend(how.map(OsString::from));
        all.extend(self.credentials.iter().cloned());
        start_with(&all, &Secrets { key, token: self.token.clone() })
    }
}

/// Returns the token that the background process needs and cannot read from a file.
fn token_for(server: &Server, credentials: &Credentials) -> Option<String> {
    match server {
        Server::Unix(_) => None,
        Server::Network { .. } | Server::Vsock(_) => credentials.token_of_environment(),
    }
}

/// A request to mount.
struct Mounting<'a> {
    there: &'a ServedDirectory,
    view: &'a View,
    timeout: Duration,
    /// If set, the mount ends with this process.
    attached: Option<i32>,
    /// Only that process may end the transaction.
    sealed: bool,
    /// Credentials for a server on another machine.
    credentials: &'a Credentials,
    /// The secrets from the foreground process, if this is the background process.
    secrets: &'a Secrets,
}

/// The view that is mounted.
enum View {
    Snapshot(String),
    Transaction(Asked),
    /// The main files, from another client if that has them.
    Lease {
        takes: bool,
    },
}

/// Returns the view that the arguments name. It becomes the whole mount, so it is removed from the
/// options.
fn view_of(
    options: &mut Options,
    args: &Args,
    address: &OsStr,
    secrets: &Secrets,
) -> Outcome<View> {
    if args.lease {
        return lease_of(options, args);
    }
    if !args.txn {
        return snapshot_of(options, args, address).map(View::Snapshot);
    }
    let wrong = |what: &str, hint: &str| Err(Failure::new(Exit::Usage, what).hint(hint));
    let view = std::mem::take(&mut options.mount.root);
    let parts: Vec<&str> = view.iter().filter_map(OsStr::to_str).collect();
    let branch = match parts[..] {
        [] => String::new(),
        [_, "clone", name] => view_name(name),
        _ => return wrong("a snapshot does not change", "leave out --txn, or the snapshot"),
    };
    if args.snapshot.is_some() || options.mount.read_only {
        return wrong("a snapshot does not change", "leave out --txn, or the snapshot and ro");
    }
    Ok(View::Transaction(Asked { branch, durable: args.durable, key: key_of(args, secrets)? }))
}

/// Returns the view of the main files.
fn lease_of(options: &mut Options, args: &Args) -> Outcome<View> {
    let view = std::mem::take(&mut options.mount.root);
    if view.iter().next().is_none() && !options.mount.read_only {
        return Ok(View::Lease { takes: args.take });
    }
    let what = "the lease is of the main files, which are written";
    let hint = "leave out ro, and snapshot= or clone=: a clone is written in a transaction, --txn";
    Err(Failure::new(Exit::Usage, what).hint(hint))
}

/// Returns the key of the transaction to take over.
fn key_of(args: &Args, secrets: &Secrets) -> Outcome<Option<TransactionKey>> {
    let Some(file) = &args.key_file else { return Ok(secrets.key.or(args.key)) };
    let word = network::read_secret(file, "key")?;
    // The message must not contain the key.
    guest::parse_key(word.trim()).map(Some).map_err(|hint| {
        Failure::new(Exit::Usage, "the key of a transaction is expected").hint(hint)
    })
}

/// Returns the snapshot to mount, from `--snapshot` or `-o snapshot=`.
fn snapshot_of(options: &mut Options, args: &Args, address: &OsStr) -> Outcome<String> {
    let view = std::mem::take(&mut options.mount.root);
    let parts: Vec<&str> = view.iter().filter_map(OsStr::to_str).collect();
    let named = match parts[..] {
        [] => None,
        [_, "snapshot", name] => Some(view_name(name)),
        _ => {
            let what = format!("a clone of {} changes, and is written", address.shown());
            let hint = "add --txn, for a transaction of it, or write snapshot=NAME";
            return Err(Failure::new(Exit::Usage, what).hint(hint));
        }
    };
    match (&args.snapshot, named) {
        (Some(one), Some(other)) if *one != other => {
            let what = format!("one snapshot is mounted, and these are two: {one}, {other}");
            Err(Failure::new(Exit::Usage, what).hint("leave out one of them"))
        }
        (Some(name), _) => Ok(name.clone()),
        (None, Some(name)) => Ok(name),
        (None, None) => {
            let what = format!("which snapshot of {}?", address.shown());
            let hint = "give it: --snapshot NAME; those of a store are listed by: kvfs snapshot \
                        list; or write in a transaction: --txn";
            Err(Failure::new(Exit::Usage, what).hint(hint))
        }
    }
}

/// Fails if an option is given that requires a store on this machine.
fn refuse_of_local_stores(args: &Args) -> Outcome {
    let flags = [
        ("--write", args.write),
        ("--take", args.take && !args.lease),
        ("--offline", args.offline),
        ("--cache", args.cache.is_some()),
        ("--cache-size", args.cache_size.is_some()),
        ("--metrics", args.metrics.is_some()),
    ];
    let flag = flags.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag.into());
    let word = mount_options::first_local(&args.options);
    let Some(refused) = flag.or(word.map(|word| format!("-o {}", Path::new(&word).shown()))) else {
        return Ok(());
    };
    let what = format!("{refused} is for a store on this machine, and this one is with a server");
    Err(Failure::new(Exit::Usage, what).hint(
        "leave it out; a mount of a server has --snapshot, --clone, --txn, --lease, --timeout, \
         --memory, --log, and the options of mount(8)",
    ))
}

fn serve_in_background(asked: &Mounting<'_>, dir: &Path, mut options: Options) -> Outcome {
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    options.log = options.log.or_else(daemon::default_log);
    let mut is_ready = false;
    let outcome = serve(asked, dir, &options, &mut |record| {
        is_ready = true;
        say_ready(record);
        Ok(())
    });
    if is_ready { outcome } else { outcome.map_err(tell) }
}

fn serve(
    asked: &Mounting<'_>,
    dir: &Path,
    options: &Options,
    ready: &mut dyn FnMut(&Record) -> Outcome,
) -> Outcome {
    daemon::prepare_process();
    let log = daemon::start_log(options.log.as_deref())?;
    let (fs, client, transaction) = open(asked, options)?;
    let is_new =
        matches!(asked.view, View::Transaction(Asked { key: None, .. }) | View::Lease { .. });
    let mut unmounted = Unmounted(transaction.clone().filter(|_| is_new));
    must_exist(&fs, asked.there)?;
    let address = asked.there.address();
    // The mount has only this view, so the store of `Views` is an empty one in memory.
    let views = Views::new(Kvdb::in_memory(), fs.clone());
    let attached = Arc::new(AtomicBool::new(asked.attached.is_some()));
    let sealed_for = asked.attached.filter(|_| asked.sealed);
    let source = options.source.clone().unwrap_or_else(|| address.clone());
    let mount_options = MountOptions {
        source: source.clone(),
        read_only: transaction.is_none(),
        root: asked.there.path().to_owned(),
        ..options.mount.clone()
    };
    let adapter = Arc::new(FuseAdapter::new(views.clone()).open_views(options.open_views));
    let mounted = kvfs_fuse::mount(adapter, dir, &mount_options, &options.policy);
    let mut mounted = mounted.map_err(|e| match e {
        // It existed before the mount.
        kvfs_fuse::Error::NoRoot(_) => Failure::new(Exit::Failed, e.to_string()),
        e => failures::of_mount(e),
    })?;
    let mut record =
        Record::of_this_process(mounted.device(), Path::new(&address), mounted.mount_point());
    record.source = source.into();
    record.log = log;
    let durable = transaction.as_ref().filter(|open| open.is_durable() && !open.is_lease());
    let key = durable.map(|open| guest::key_text(&open.key()));
    // The program in a sealed mount can read the record, and could commit the transaction by the
    // key, in a mount of its own.
    record.key = key.clone().filter(|_| sealed_for.is_none());
    record.write().map_err(|e| Failure::io("cannot write the record of the mount", &e))?;
    let invalidator = mounted.invalidator();
    let told = invalidator.map(|invalidator| ToldKernel::start(&views, invalidator));
    let (attached_too, outdated) = (attached.clone(), Arc::default());
    let guest = Guest {
        client,
        transaction,
        fs,
        views,
        attached: attached_too,
        sealed_for,
        outdated,
        told,
    };
    let listening = guest.clone().listen()?;
    let signals = end_on_signals(mounted.unmounter())?;
    if let Some(process) = asked.attached {
        end_with(process, mounted.unmounter(), attached.clone())?;
    }
    // Make the first request, so that a program that read "mounted" can rely on an answer.
    let at = mounted.mount_point();
    std::fs::metadata(at)
        .map_err(|e| Failure::io(format!("the mount on {} does not answer", at.shown()), &e))?;
    ready(&Record { key, ..record.clone() })?;
    unmounted.0 = None;
    let served = mounted.wait();
    // To end the transaction may take long, and the next mount may get the number of this one.
    if let Err(e) = record.put_aside() {
        tracing::warn!("the record of this process may be taken for one of the next mount: {e}");
    }
    signals.close();
    drop(listening);
    if attached.load(Ordering::Relaxed) {
        // The directory was created for this mount.
        let _ = std::fs::remove_dir(dir);
    }
    if let Err(failure) = guest.leave() {
        record.failure = Some(failure.message.clone());
        if let Err(e) = record.put_aside() {
            tracing::error!("cannot leave word of it: {e}");
        }
        return Err(failure);
    }
    record.remove();
    served.map(drop).map_err(failures::of_mount)
}

/// Ends the mount when this process gets a signal to end. Returns the handle by which that stops.
fn end_on_signals(unmounter: Unmounter) -> Outcome<signal_hook::iterator::Handle> {
    let cannot = |e: std::io::Error| Failure::io("cannot listen to signals", &e);
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(cannot)?;
    let handle = signals.handle();
    let listens = move || {
        for signal in signals.forever().filter(|signal| *signal != SIGHUP) {
            tracing::info!("signal {signal}: unmounting");
            end(&unmounter);
        }
    };
    std::thread::Builder::new().name("kvfs-signals".into()).spawn(listens).map_err(cannot)?;
    Ok(handle)
}

/// Ends the mount when the process that has begun it ends, if it is attached to that then.
fn end_with(process: i32, unmounter: Unmounter, attached: Arc<AtomicBool>) -> Outcome {
    let ended = move || {
        if attached.load(Ordering::Relaxed) {
            tracing::info!("process {process} has ended: unmounting");
            end(&unmounter);
        }
    };
    follow(process, ended)
        .map_err(|e| Failure::io("cannot follow the process that has begun this", &e))
}

fn end(unmounter: &Unmounter) {
    if let Err(e) = unmounter.end() {
        tracing::warn!("{e}; it is left where it is, dead");
        let _ = unmounter.abort();
    }
}

/// Starts a thread that calls `ended` when the process that has started this one has ended.
fn follow(process: i32, ended: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let parent = Pid::from_raw(process).ok_or(ErrorKind::InvalidInput)?;
    let open = rustix::process::pidfd_open(parent, PidfdFlags::empty());
    // Another process may have its number in the meantime.
    let open = open.ok().filter(|_| rustix::process::getppid() == Some(parent));
    let follows = move || {
        if let Some(open) = &open {
            let mut ends = [PollFd::new(open, PollFlags::IN)];
            while rustix::event::poll(&mut ends, None) == Err(rustix::io::Errno::INTR) {}
        }
        ended();
    };
    std::thread::Builder::new().name("kvfs-follow".into()).spawn(follows).map(drop)
}

/// A transaction that was begun for a mount that is not ready yet. It is useless without the mount,
/// and a durable one would stay, so it is aborted when this is dropped.
struct Unmounted(Option<Arc<ServedTransaction>>);

impl Drop for Unmounted {
    fn drop(&mut self) {
        if let Some(transaction) = &self.0
            && let Err(e) = transaction.abort()
        {
            tracing::warn!("transaction {} stays with the server: {e}", transaction.id());
        }
    }
}

/// Returns whether the server has ended the connection. A client with a wrong certificate has
/// finished the handshake by then, and gets no other error.
fn is_cut(error: &kvdb_wire::Error) -> bool {
    match error {
        kvdb_wire::Error::Closed => true,
        kvdb_wire::Error::Io(e) => {
            matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        }
        _ => false,
    }
}

/// Returns the failure for a view that cannot be opened.
fn unopened(e: kvdb_wire::Error, server: &Server, view: &View) -> Failure {
    let address = server.address();
    let address = address.shown();
    match (e, view) {
        (kvdb_wire::Error::Failed(failure), View::Snapshot(name))
            if failure.code == FailureCode::NoSnapshot =>
        {
            Failure::new(Exit::NotFound, format!("{address} has no snapshot {name}"))
                .hint("kvfs snapshot list STORE shows those of a store")
        }
        (kvdb_wire::Error::Failed(failure), _) if failure.code == FailureCode::NotAllowed => {
            Failure::new(Exit::NotPermitted, format!("{address}: {failure}"))
                .hint("kvfs serve STORE --write --listen unix:SOCKET lets clients write")
        }
        (kvdb_wire::Error::NoPlace(what), _) => {
            Failure::new(Exit::Busy, format!("{address}: {what}"))
        }
        (kvdb_wire::Error::Failed(failure), View::Lease { .. })
            if failure.code == FailureCode::Locked =>
        {
            Failure::new(Exit::Busy, format!("{address}: {failure}"))
                .hint("--take takes the files from the mount that has them, which then fails")
        }
        (kvdb_wire::Error::Failed(failure), View::Transaction(_) | View::Lease { .. }) => {
            Failure::new(Exit::Failed, format!("{address}: {failure}"))
        }
        (e, _) if matches!(server, Server::Network { .. }) && is_cut(&e) => {
            Failure::new(Exit::Failed, format!("cannot read {address}: {e}"))
                .hint("it may want another certificate of this client: --cert FILE --cert-key FILE")
        }
        (e, _) => Failure::new(Exit::Failed, format!("cannot read {address}: {e}"))
            .hint("kvfs serve STORE --listen unix:SOCKET serves a store"),
    }
}

/// Opens the view. Returns its file system, the client and the transaction.
fn open(
    asked: &Mounting<'_>,
    options: &Options,
) -> Outcome<(Fs, Arc<Client>, Option<Arc<ServedTransaction>>)> {
    let Mounting { there: ServedDirectory { server, .. }, view, timeout, .. } = *asked;
    let cannot = |e: kvdb_wire::Error| unopened(e, server, view);
    let memory = usize::try_from(options.memory.unwrap_or(MEMORY)).unwrap_or(usize::MAX);
    let client_options = ClientOptions { timeout, memory: memory / 2, ..ClientOptions::default() };
    let zone_size = options.zone_size;
    let usual = FsOptions::default();
    let flush_interval = options.flush_interval.unwrap_or(usual.flush_interval);
    let fs_options = FsOptions { zone_size, inode_memory: memory / 4, flush_interval, ..usual };
    let mut credentials = asked.credentials.all();
    if let Some(token) = &asked.secrets.token {
        credentials.token = Some(token.clone());
    }
    let client = match server.connect(&credentials, client_options) {
        Err(places::Error::Server { source, .. }) => return Err(cannot(source)),
        client => client?,
    };
    let env = Arc::new(Machine::default());
    let (opened, transaction) = match view {
        View::Snapshot(name) => {
            let view = SnapshotView::open(&client, name).map_err(cannot)?;
            (Fs::served(Arc::new(view), env, fs_options), None)
        }
        View::Transaction(asked) => {
            let label = format!("over the wire, process {}", std::process::id());
            let transaction = guest::begin(&client, asked, &label).map_err(cannot)?;
            (Fs::served_transaction(transaction.clone(), env, fs_options), Some(transaction))
        }
        View::Lease { takes } => {
            let label = format!("process {} on {}", std::process::id(), places::host_name());
            let options = LeaseOptions { takes: *takes, label, ..LeaseOptions::default() };
            let lease = Arc::new(ServedTransaction::lease(&client, options).map_err(cannot)?);
            (Fs::served_transaction(lease.clone(), env, fs_options), Some(lease))
        }
    };
    let fs = opened.map_err(|e| {
        let address = server.address();
        Failure::new(Exit::Failed, format!("the files of {} cannot be read: {e}", address.shown()))
    })?;
    Ok((fs, client, transaction))
}
