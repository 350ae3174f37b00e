//! The process that serves a mount: opens the store, answers FUSE and the socket, and closes the
//! store when the mount ends.
//!
//! The order matters. The store is opened first, for its lock says that no other process serves it:
//! what is left of an earlier daemon (a socket, a record) is then certainly dead. On the way out
//! the mount goes first, for unmounting hands over what the kernel still holds; then the record is
//! put aside and the socket closes, then everything is committed, and the record goes last: who
//! waits for this process to end finds either no record or one that says what failed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use kvdb_server::{Server, ServerOptions};
use kvfs::{Atime, Views};
use kvfs_fuse::{AccessTimes, FuseAdapter, KernelNotifier, MountOptions, Mounted, Unmounter};
use rustix::process::{Resource, Rlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::check;
use crate::daemons::{self, Record};
use crate::destination;
use crate::failures;
use crate::metrics;
use crate::mount_options::Options;
use crate::network::Network;
use crate::output::{Exit, Failure, Outcome};
use crate::scripts;
use crate::scrubbing::Scrubbing;
use crate::sockets;
use crate::statistics;
use crate::statistics::MountFigures;
use crate::store::{self, Access, Store};
use crate::transactions::OverFiles;

/// Serves `store` on the directory `dir` until it is unmounted, from here or elsewhere. `ready` is
/// called once the mount answers.
pub fn serve(
    store: &Path,
    dir: &Path,
    options: &Options,
    ready: &mut dyn FnMut(&Record) -> Outcome,
) -> Outcome {
    prepare_process();
    let log = start_log(options.log.as_deref())?;
    let outcome = serve_logged(store, dir, options, log.clone(), ready);
    // An empty log of ours tells nothing.
    if let Some(log) = log
        .filter(|l| l.starts_with(daemons::directory()) && l.metadata().is_ok_and(|m| m.len() == 0))
    {
        let _ = fs::remove_file(log);
    }
    outcome
}

fn serve_logged(
    store: &Path,
    dir: &Path,
    options: &Options,
    log: Option<PathBuf>,
    ready: &mut dyn FnMut(&Record) -> Outcome,
) -> Outcome {
    let access = if options.mount.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let store = store::open_waiting(store, access, options.memory)?;
    let atime = match options.mount.access_times {
        AccessTimes::Relative => Atime::Relative,
        AccessTimes::Never => Atime::Never,
    };
    let fs = store.file_system_with(atime, options.zone_size)?;
    let views = Views::new(store.db.clone(), fs.clone());
    let figures: Arc<OnceLock<MountFigures>> = Arc::default();
    let server = start_server(&store, &fs, &views, figures.clone(), &options.network)?;
    let sources = || metrics::Sources {
        db: store.db.clone(),
        fs: fs.clone(),
        views: views.clone(),
        mount: figures.clone(),
    };
    let metrics = options.metrics.map(|address| metrics::start(address, sources()));
    let metrics = metrics.transpose()?;

    let mount_options = MountOptions {
        source: options.source.clone().unwrap_or_else(|| store.path.clone().into_os_string()),
        ..options.mount.clone()
    };
    let adapter = Arc::new(FuseAdapter::new(views.clone()).open_views(options.open_views));
    let mut mounted = kvfs_fuse::mount(adapter.clone(), dir, &mount_options, &options.policy)
        .map_err(failures::of_mount)?;
    let mut record = Record::of_this_process(mounted.device(), &store.path, mounted.mount_point());
    record.source = mount_options.source.clone().into();
    record.socket = server.as_ref().map(|s| s.path().to_path_buf());
    record.metrics = metrics.as_ref().map(|endpoint| endpoint.address().to_string());
    record.listen =
        server.as_ref().and_then(|s| s.tcp_address()).map(|address| address.to_string());
    record.log = log;
    record.recovery = store.recovery.clone();
    record.write().map_err(|e| {
        Failure::io(format!("cannot write a record to {}", daemons::directory().display()), &e)
    })?;
    let signals = end_on_signals(mounted.unmounter(), views.clone())
        .map_err(|e| Failure::io("cannot listen to signals", &e))?;
    // The first request: a program that was told "mounted" can rely on being answered.
    fs::metadata(mounted.mount_point())
        .map_err(|e| Failure::io(format!("the mount on {} does not answer", dir.display()), &e))?;
    let notifier = KernelNotifier::start(&views, &adapter, &mounted).map_err(|e| {
        Failure::io(format!("cannot tell the kernel what changes under {}", dir.display()), &e)
    })?;
    let (requests, uses_rings) = (mounted.counters(), mounted.uses_rings());
    let _ = figures.set(MountFigures { requests, notifier: notifier.clone(), uses_rings });
    tracing::info!(store = %store.path.display(), mount_point = %mounted.mount_point().display(), io_uring = uses_rings, "mounted");
    let writable = access == Access::ReadWrite;
    let scrubbing = options
        .scrub
        .map(|interval| Scrubbing::start(&store.db, &fs, interval, writable))
        .transpose();
    let scrubbing = scrubbing.map_err(|e| Failure::io("cannot start the scrub", &e))?;
    ready(&record)?;

    let served = mounted.wait().map_err(failures::of_mount);
    if let Err(e) = record.put_aside() {
        tracing::warn!("the record of this process may be taken for one of the next mount: {e}");
    }
    drop(metrics);
    let outcome = close(served, &mounted, &notifier, server, &views, store, scrubbing);
    signals.close();
    match &outcome {
        Ok(()) => record.remove(),
        Err(failure) => {
            tracing::error!("{}", failure.message);
            record.failure = Some(failure.message.clone());
            if let Err(e) = record.put_aside() {
                tracing::error!("cannot leave word of it: {e}");
            }
        }
    }
    outcome
}

/// Closes everything behind a mount that has ended as `served` says. Of several failures the first
/// is told: the others follow from it.
fn close(
    served: Outcome,
    mounted: &Mounted,
    notifier: &KernelNotifier,
    server: Option<Server>,
    views: &Views,
    store: Store,
    scrubbing: Option<Scrubbing>,
) -> Outcome {
    let counters = mounted.counters();
    tracing::info!("unmounted after {} requests: {counters}", counters.total());
    notifier.stop();
    drop(scrubbing);
    if let Some(server) = server {
        server.stop();
    }
    if views.is_down() {
        // What there was to make durable has been then; the rest is to go, as after a kill.
        tracing::warn!(
            "it had been shut down by the GOINGDOWN ioctl: what was not synced by then is dropped"
        );
        let _ = store.close();
        return served;
    }
    let committed = views.shutdown().and(views.mainline().shutdown());
    let committed = committed.map_err(|e| {
        Failure::new(Exit::Failed, format!("the last changes could not be written: {e}"))
    });
    let closed = store.close();
    served.and(committed).and(closed)
}

/// The limits and habits of a process that others' writes go through.
fn prepare_process() {
    // Memory that one thread takes and another gives back collects in the heaps that glibc makes
    // for each thread; with a 64 MiB budget the process then grew to twice that. Two heaps are
    // enough for as many threads as there are cores here, and keep to it.
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two integers and is called before any other thread is started.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
    let files = rustix::process::getrlimit(Resource::Nofile);
    let wanted = files.maximum;
    if let Err(e) = rustix::process::setrlimit(
        Resource::Nofile,
        Rlimit { current: wanted, maximum: files.maximum },
    ) {
        tracing::debug!("cannot raise the limit of open files: {e}");
    }
    // Memory is never freed for us by writing to our own mount, and our writes are not held up by
    // dirty pages that only we can clean. Needs CAP_SYS_RESOURCE; threads inherit it.
    if let Err(e) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!("not marked as a process that writes for others: {e}");
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

/// Where the background process logs unless told otherwise; `None` where there is no place for it.
pub fn default_log() -> Option<PathBuf> {
    let directory = daemons::make_directory().ok()?;
    daemons::sweep(&directory);
    Some(directory.join(format!("{}.log", std::process::id())))
}

/// Sends the log to `path`, or to standard error. `KVFS_LOG` says how much (as "debug" or
/// "info,kvfs=trace").
fn start_log(path: Option<&Path>) -> Outcome<Option<PathBuf>> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("KVFS_LOG").unwrap_or_else(|_| {
        // A log that was not asked for must not grow.
        let quiet = path.is_some_and(|p| p.starts_with(daemons::directory()));
        tracing_subscriber::EnvFilter::new(if quiet { "warn" } else { "info" })
    });
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    let started = match path {
        Some(path) => {
            let file = destination::append(path)?;
            builder.with_ansi(false).with_writer(std::sync::Mutex::new(file)).try_init()
        }
        None => builder.with_writer(std::io::stderr).try_init(),
    };
    started.map_err(|e| Failure::new(Exit::Failed, format!("cannot start the log: {e}")))?;
    // A panic is a defect of ours; on a closed standard error it would be lost.
    let to_stderr = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!("{panic}");
        to_stderr(panic);
    }));
    Ok(path.map(Path::to_path_buf))
}

/// Lets go of the terminal: the program that started us waits for the end of these streams.
pub fn close_standard_streams() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// SIGTERM and SIGINT unmount; what uses the mount is cut off, what was written until then is kept.
fn end_on_signals(
    unmounter: Unmounter,
    views: Views,
) -> std::io::Result<signal_hook::iterator::Handle> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let handle = signals.handle();
    let listen = move || {
        for signal in signals.forever() {
            if signal == SIGHUP {
                continue;
            }
            tracing::info!("signal {signal}: unmounting");
            if let Err(e) = unmounter.end() {
                tracing::warn!("{e}; it is left behind, dead");
                // With all that the kernel holds back.
                let ended = views
                    .sync_all()
                    .map_err(|e| e.to_string())
                    .and(unmounter.abort().map_err(|e| e.to_string()));
                if let Err(e) = ended {
                    tracing::error!("{e}");
                }
            }
        }
    };
    std::thread::Builder::new().name("kvfs-signals".into()).spawn(listen)?;
    Ok(handle)
}
/// The socket for keys. A store can be mounted without it, if no socket can be made anywhere.
fn start_server(
    store: &Store,
    fs: &kvfs::Fs,
    views: &Views,
    figures: Arc<OnceLock<MountFigures>>,
    network: &Network,
) -> Outcome<Option<Server>> {
    let mut places = vec![];
    let next_to_it = sockets::socket_beside(&store.path);
    places.extend(next_to_it);
    if let Ok(directory) = daemons::make_directory() {
        places.push(directory.join(format!("{}.sock", std::process::id())));
    }
    let checked = fs.clone();
    let (db, fs) = (store.db.clone(), fs.clone());
    let info: kvdb_server::InfoSource =
        Arc::new(move || statistics::of_store(&db, Some(&fs), figures.get()));
    let check: kvdb_server::Check = Arc::new(move || check::of_files(&checked));
    let own = store.db.clone();
    let describe: kvdb_server::Describe =
        Arc::new(move |dictionary, start, end| kvfs::describe_keys(&own, dictionary, start, end));
    for place in places {
        let over_files = Arc::new(OverFiles(views.clone()));
        let mut options = ServerOptions {
            info: Some(info.clone()),
            describe: Some(describe.clone()),
            check: Some(check.clone()),
            transactions: Some(over_files.clone()),
            snapshots: Some(over_files),
            scripts: Some(scripts::command()),
            ..Default::default()
        };
        network.add_to(&mut options)?;
        match Server::start(store.db.clone(), &place, options) {
            Ok(server) => return Ok(Some(server)),
            // What was asked for is not left out silently.
            Err(e @ kvdb_server::Error::Tcp { .. }) => {
                return Err(Failure::new(Exit::Failed, e.to_string()));
            }
            Err(e) => tracing::warn!("no socket at {}: {e}", place.display()),
        }
    }
    match network.listen {
        None => Ok(None),
        Some(address) => {
            let what = format!("no socket could be made, and so nothing listens at {address}");
            Err(Failure::new(Exit::Failed, what).hint("see the log"))
        }
    }
}
