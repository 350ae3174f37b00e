//! `kvfs mount kvfs+unix:SOCKET DIR --snapshot NAME`: the files of a snapshot are here, and its
//! store is with a server (`kvfs serve`). The daemon has no store to lock and nothing to commit, so
//! it is far less than that of `daemon`: it answers the kernel until the mount ends.
//!
//! A server that is gone for a while is waited for; a call fails when that takes longer than a
//! minute.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use env::Machine;
use kvdb::Kvdb;
use kvdb_wire::{Client, ClientOptions, FailureCode, SnapshotView, Socket};
use kvfs::{Fs, FsOptions, Views};
use kvfs_fuse::view_names::view_name;
use kvfs_fuse::{FuseAdapter, MountOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{Args, announce, arguments, mount_point, say_ready, start, tell};
use crate::daemon;
use crate::daemons::Record;
use crate::failures;
use crate::mount_options::{self, Options};
use crate::output::{Exit, Failure, Outcome, Output};

/// The beginning of an address of a server.
const SCHEME: &[u8] = b"kvfs+unix:";
/// A call waits so long for a server that does not answer, if no other time is given.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server that listens on a socket of this machine.
pub struct Server {
    socket: PathBuf,
}

impl Server {
    /// The address, which leads there from any directory.
    fn address(&self) -> OsString {
        let mut address = OsString::from("kvfs+unix:");
        address.push(&self.socket);
        address
    }
}

/// The server whose address this is; `None`: it is none of a server.
pub fn address(store: &Path) -> Option<Outcome<Server>> {
    let path = store.as_os_str().as_bytes().strip_prefix(SCHEME)?;
    let path = path.strip_prefix(b"//").unwrap_or(path);
    let path = Path::new(OsStr::from_bytes(path));
    let wrong = |e| Failure::io(format!("{} is no address of a server", store.display()), &e);
    Some(std::path::absolute(path).map_err(wrong).map(|socket| Server { socket }))
}

/// Mounts, or is the process in the background that serves the mount.
pub fn run(server: &Server, dir: &Path, args: &Args, output: &Output) -> Outcome {
    let mut options = mount_options::parse(&args.options)?;
    options.memory = args.memory.or(options.memory);
    options.log = args.log.clone().or(options.log);
    refuse_of_local_stores(&options, args)?;
    let address = server.address();
    let snapshot = &snapshot_of(&mut options, args, &address)?;
    if args.serving {
        return serve_in_background(server, snapshot, dir, options);
    }
    let dir = mount_point(dir, output)?;
    if let Some(log) = &mut options.log {
        *log = std::path::absolute(&*log)
            .map_err(|e| Failure::io(format!("cannot use {}", log.display()), &e))?;
    }
    if args.foreground {
        let mut ready = |record: &Record| announce(output, record);
        return serve(server, snapshot, &dir, &options, &mut ready);
    }
    let words = &args.options;
    let mut all = arguments("--serving", Path::new(&address), &dir, words, &options);
    all.extend(["--snapshot".into(), snapshot.into()]);
    announce(output, &start(&all)?)
}

/// The snapshot that is mounted, of `--snapshot` or `-o snapshot=`. It is all that there is in the
/// mount, so the options name no view any more.
fn snapshot_of(options: &mut Options, args: &Args, address: &OsStr) -> Outcome<String> {
    let view = std::mem::take(&mut options.mount.root);
    let parts: Vec<&str> = view.iter().filter_map(OsStr::to_str).collect();
    let named = match parts[..] {
        [] => None,
        [_, "snapshot", name] => Some(view_name(name)),
        _ => {
            let what = format!("{} has clones, and serves snapshots alone", address.display());
            let hint = "leave out clone=NAME, and write snapshot=NAME";
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
            let what = format!("which snapshot of {}?", address.display());
            let hint =
                "give it: --snapshot NAME; those of a store are listed by: kvfs snapshot list";
            Err(Failure::new(Exit::Usage, what).hint(hint))
        }
    }
}

/// Fails where something is asked for that only a mount of a store has which is here.
fn refuse_of_local_stores(options: &Options, args: &Args) -> Outcome {
    let is_local = args.write
        || args.take
        || args.offline
        || args.cache.is_some()
        || args.cache_size.is_some()
        || args.metrics.is_some()
        || options.writing.is_some()
        || options.publish.is_some()
        || options.scrub.is_some()
        || options.keeper
        || options.serve.is_some()
        || options.metrics.is_some()
        || options.network.listen.is_some();
    if !is_local {
        return Ok(());
    }
    let what = "the store is with a server, and this is asked of one that is here";
    Err(Failure::new(Exit::Usage, what)
        .hint("leave out all but --snapshot, --memory, --log and options of mount(8)"))
}

fn serve_in_background(
    server: &Server,
    snapshot: &str,
    dir: &Path,
    mut options: Options,
) -> Outcome {
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    options.log = options.log.or_else(daemon::default_log);
    let mut is_ready = false;
    let outcome = serve(server, snapshot, dir, &options, &mut |record| {
        is_ready = true;
        say_ready(record);
        Ok(())
    });
    if is_ready { outcome } else { outcome.map_err(tell) }
}

fn serve(
    server: &Server,
    snapshot: &str,
    dir: &Path,
    options: &Options,
    ready: &mut dyn FnMut(&Record) -> Outcome,
) -> Outcome {
    daemon::prepare_process();
    let log = daemon::start_log(options.log.as_deref())?;
    let fs = open(server, snapshot, options)?;
    let address = server.address();
    // There is no view but this one, so the store of views is an empty one in memory.
    let views = Views::new(Kvdb::in_memory(), fs);
    let source = options.source.clone().unwrap_or_else(|| address.clone());
    let mount_options =
        MountOptions { source: source.clone(), read_only: true, ..options.mount.clone() };
    let adapter = Arc::new(FuseAdapter::new(views).open_views(options.open_views));
    let mounted = kvfs_fuse::mount(adapter, dir, &mount_options, &options.policy);
    let mut mounted = mounted.map_err(failures::of_mount)?;
    let mut record =
        Record::of_this_process(mounted.device(), Path::new(&address), mounted.mount_point());
    record.source = source.into();
    record.log = log;
    record.write().map_err(|e| Failure::io("cannot write the record of the mount", &e))?;
    let unmounter = mounted.unmounter();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|e| Failure::io("cannot listen to signals", &e))?;
    let handle = signals.handle();
    let listening = std::thread::Builder::new().name("kvfs-signals".into()).spawn(move || {
        for signal in signals.forever().filter(|signal| *signal != SIGHUP) {
            tracing::info!("signal {signal}: unmounting");
            if let Err(e) = unmounter.end() {
                tracing::warn!("{e}; it is left where it is, dead");
                let _ = unmounter.abort();
            }
        }
    });
    listening.map_err(|e| Failure::io("cannot listen to signals", &e))?;
    // The first request: a program that was told "mounted" can rely on being answered.
    let at = mounted.mount_point();
    std::fs::metadata(at)
        .map_err(|e| Failure::io(format!("the mount on {} does not answer", at.display()), &e))?;
    ready(&record)?;
    let served = mounted.wait();
    handle.close();
    record.remove();
    served.map(drop).map_err(failures::of_mount)
}

/// The file system of the snapshot.
fn open(server: &Server, snapshot: &str, options: &Options) -> Outcome<Fs> {
    let address = server.address();
    let address = address.display();
    let cannot = |e: kvdb_wire::Error| match e {
        kvdb_wire::Error::Failed(failure) if failure.code == FailureCode::NoSnapshot => {
            Failure::new(Exit::NotFound, format!("{address} has no snapshot {snapshot}"))
                .hint("kvfs snapshot list STORE shows those of a store")
        }
        e => Failure::new(Exit::Failed, format!("cannot read {address}: {e}"))
            .hint("kvfs serve STORE --listen unix:SOCKET serves a store"),
    };
    let memory = options.memory.and_then(|memory| usize::try_from(memory).ok());
    let mut client_options = ClientOptions { timeout: TIMEOUT, ..ClientOptions::default() };
    let mut fs_options = FsOptions { read_only: true, ..FsOptions::default() };
    if let Some(memory) = memory {
        client_options.memory = memory / 2;
        fs_options.inode_memory = memory / 4;
    }
    let socket = server.socket.clone();
    let client = Client::connect(move |time| Socket::connect_unix(&socket, time), client_options);
    let view = SnapshotView::open(&client.map_err(cannot)?, snapshot).map_err(cannot)?;
    Fs::served(Arc::new(view), Arc::new(Machine::default()), fs_options).map_err(|e| {
        let what = format!("the files of snapshot {snapshot} of {address} cannot be read: {e}");
        Failure::new(Exit::Failed, what)
    })
}
