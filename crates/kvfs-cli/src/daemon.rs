//! The process that serves a mount: opens the store, answers FUSE and the socket, and closes the
//! store when the mount ends.
//!
//! The order matters. The store is opened first, for its lock says that no other process serves it:
//! what is left of an earlier daemon (a socket, a record) is then certainly dead. On the way out
//! the mount goes first, for unmounting hands over what the kernel still holds; then the record is
//! put aside and the socket closes, then everything is committed, and the record goes last: who
//! waits for this process to end finds either no record or one that says what failed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

use kvdb_server::{Server, ServerOptions};
use kvfs::{Atime, InUse, Pause, Views};
use kvfs_fuse::{
    AccessTimes, FuseAdapter, Handover, KernelNotifier, MountOptions, Mounted, Served, Unmounter,
};
use rustix::process::{Resource, Rlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::check;
use crate::daemons::{self, Record};
use crate::destination;
use crate::failures;
use crate::handover::{self, Next, Resumed, State};
use crate::http::Listening;
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
use crate::upgrade::Request;

/// How a daemon begins.
pub enum Begin<'a> {
    /// It mounts the store on the directory.
    Mount(&'a Path, &'a Path),
    /// It goes on with what another program has served from the store with this name.
    Resume(&'a Path, Resumed),
}

/// Serves a store on a directory until it is unmounted, from here or elsewhere. `ready` is called
/// once a new mount answers. `arguments`: what a program is started with that is to go on with it.
pub fn serve(
    begin: Begin<'_>,
    options: &Options,
    arguments: &[OsString],
    ready: &mut dyn FnMut(&Record) -> Outcome,
) -> Outcome {
    prepare_process();
    let log = start_log(options.log.as_deref())?;
    let outcome = serve_logged(begin, options, arguments, log.clone(), ready);
    // An empty log of ours tells nothing.
    if let Some(log) = log
        .filter(|l| l.starts_with(daemons::directory()) && l.metadata().is_ok_and(|m| m.len() == 0))
    {
        let _ = fs::remove_file(log);
    }
    outcome
}

fn serve_logged(
    begin: Begin<'_>,
    options: &Options,
    arguments: &[OsString],
    log: Option<PathBuf>,
    ready: &mut dyn FnMut(&Record) -> Outcome,
) -> Outcome {
    let (opened, mut service, mut asked) = match begin {
        Begin::Mount(store, dir) => {
            let opened = Opened::new(options, |access| {
                Ok((store::open_waiting(store, access, options.memory)?, InUse::default()))
            })?;
            let service = Service::begin(&opened, options, Mounting::On(dir))?;
            (opened, service, None)
        }
        Begin::Resume(store, resumed) => {
            let (opened, service) = go_on(store, &resumed, options).inspect_err(|failure| {
                tracing::error!("{}", failure.message);
                resumed.give_back(failure);
                Request::answer(resumed.asks(), Err(failure));
            })?;
            (opened, service, Some(resumed.into_asks()))
        }
    };
    let (say, events) = channel();
    let unmounter = service.mounted.unmounter();
    let device = service.mounted.device().to_string();
    let signals = listen_to_signals(unmounter, opened.views.clone(), device, say.clone())
        .map_err(|e| Failure::io("cannot listen to signals", &e))?;
    handover::heed_signals();
    let views = opened.views.clone();
    loop {
        let (mut record, notifier, scrubbing) = service.attend(&opened, options, log.clone())?;
        match asked.take() {
            None => ready(&record)?,
            Some((asks, failure)) => {
                Request::answer(asks, failure.as_ref().map_or(Ok(&record), Err));
            }
        }
        let arguments = with_addresses(arguments, &record);
        let waited = service.wait(&views, &arguments, &notifier, scrubbing, (&say, &events));
        let served = match waited {
            Waited::Stopped(request, handover, paused) => {
                // What it waits for is answered no more.
                notifier.stop();
                let failure = match hand_over(&views, &handover) {
                    Ok(in_use) => {
                        let state = State { mount: &handover, in_use: &in_use };
                        return Err(opened.become_program(request, &arguments, &state));
                    }
                    Err(failure) => failure,
                };
                tracing::warn!("not handed over: {}", failure.message);
                drop(paused);
                service = Service::begin(&opened, options, Mounting::Again(&handover))?;
                asked = Some((request.into(), Some(failure)));
                continue;
            }
            Waited::Ended(served) => served.map_err(failures::of_mount),
        };
        if let Err(e) = record.put_aside() {
            tracing::warn!(
                "the record of this process may be taken for one of the next mount: {e}"
            );
        }
        let outcome = close(served, service, &notifier, opened);
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
        return outcome;
    }
}

/// A store and its file system.
struct Opened {
    store: Store,
    fs: kvfs::Fs,
    views: Views,
}

impl Opened {
    fn new(
        options: &Options,
        open: impl FnOnce(Access) -> Outcome<(Store, InUse)>,
    ) -> Outcome<Opened> {
        let (store, in_use) = open(access(options))?;
        let atime = match options.mount.access_times {
            AccessTimes::Relative => Atime::Relative,
            AccessTimes::Never => Atime::Never,
        };
        let fs = store.file_system_with(atime, options.zone_size, &in_use)?;
        let views = Views::take_over(store.db.clone(), fs.clone(), &in_use);
        Ok(Opened { store, fs, views })
    }

    /// Closes the store and executes another program, which goes on; returns where that cannot be.
    fn become_program(
        self,
        request: Request,
        arguments: &[OsString],
        state: &State<'_>,
    ) -> Failure {
        let device = self.store.device.clone();
        // What fails now is for the next opening to repair.
        if let Err(e) = self.fs.shutdown() {
            tracing::error!("the last changes may not be on disk: {e}");
        }
        if let Err(failure) = self.store.close() {
            tracing::error!("{}", failure.message);
        }
        let program = request.program.clone();
        let next = Next { program: &program, arguments, store: &device, asks: request.into() };
        let failure = handover::become_program(next, state);
        tracing::error!("{}", failure.message);
        failure
    }
}

fn access(options: &Options) -> Access {
    if options.mount.read_only { Access::ReadOnly } else { Access::ReadWrite }
}

/// Opens what another program has left, and begins to answer. After an error nothing was answered.
fn go_on(store: &Path, resumed: &Resumed, options: &Options) -> Outcome<(Opened, Service)> {
    let opened = Opened::new(options, |access| {
        let (file, in_use) = resumed.store_and_use()?;
        Ok((store::open_file(file, store, access, options.memory)?, in_use))
    })?;
    let service = Service::begin(&opened, options, Mounting::Again(&resumed.mount))?;
    Ok((opened, service))
}

/// Commits everything; what the next program must know of the file system.
fn hand_over(views: &Views, handover: &Handover) -> Outcome<InUse> {
    tracing::info!("handing over {}", handover.mount_point().display());
    hinders(views)?;
    views.in_use().map_err(|e| {
        Failure::new(Exit::Failed, format!("what was written could not be committed: {e}"))
    })
}

/// Fails where something is open that ends with this process.
fn hinders(views: &Views) -> Outcome {
    if views.is_down() {
        return Err(Failure::new(Exit::Failed, "it was shut down by the GOINGDOWN ioctl"));
    }
    let open: Vec<_> = views.list().into_iter().filter(|t| !t.durable).collect();
    if open.is_empty() {
        return Ok(());
    }
    let numbers: Vec<_> = open.iter().map(|transaction| transaction.id.to_string()).collect();
    let what = format!(
        "transactions are open that end with the process that serves them: {}",
        numbers.join(", ")
    );
    Err(Failure::new(Exit::Busy, what).hint("commit or abort them first; durable ones go on"))
}

/// The arguments, with the addresses that were taken where any was asked for.
fn with_addresses(arguments: &[OsString], record: &Record) -> Vec<OsString> {
    let metrics = record.metrics.iter().flat_map(|at| ["--metrics".into(), at.into()]);
    let listen = record.listen.iter().map(|at| OsString::from(format!("listen={at}")));
    let listen =
        listen.filter(|word| !arguments.contains(word)).flat_map(|word| ["-o".into(), word]);
    // The last of one option counts; of --metrics there may be only one.
    let at = arguments.iter().position(|word| word == "--metrics").unwrap_or(arguments.len());
    arguments[..at].iter().cloned().chain(metrics).chain(listen).collect()
}

/// Where a service gets its mount.
enum Mounting<'a> {
    On(&'a Path),
    /// It is there, and another one has served it.
    Again(&'a Handover),
}

/// What serves an open store: the mount, and what clients of the socket reach.
struct Service {
    server: Option<Server>,
    metrics: Option<Listening>,
    figures: Arc<OnceLock<MountFigures>>,
    adapter: Arc<FuseAdapter>,
    mounted: Mounted,
    source: OsString,
}

/// How waiting for a mount ended.
enum Waited<'a> {
    Ended(Result<(), kvfs_fuse::Error>),
    /// Nothing answers any more, and somebody waits for another program to go on. Nor may the kernel
    /// be told of anything, which would wait for answers.
    Stopped(Request, Handover, Pause<'a>),
}

/// What there is to do while a mount is served.
enum Event {
    Served(Result<Served, kvfs_fuse::Error>),
    Upgrade(Request),
}

impl Service {
    fn begin(opened: &Opened, options: &Options, mounting: Mounting<'_>) -> Outcome<Service> {
        let Opened { store, fs, views } = opened;
        let figures: Arc<OnceLock<MountFigures>> = Arc::default();
        // Files come first where programs have them open.
        let needed = matches!(mounting, Mounting::On(_));
        let or_without = |what: &str, failure: Failure| match needed {
            true => Err(failure),
            false => {
                tracing::error!("{what}: {}", failure.message);
                Ok(None)
            }
        };
        let server = start_server(store, fs, views, figures.clone(), &options.network).or_else(
            |failure| or_without("keys are not served", failure).map(|_: Option<()>| None),
        )?;
        let sources = || metrics::Sources {
            db: store.db.clone(),
            fs: fs.clone(),
            views: views.clone(),
            mount: figures.clone(),
        };
        let metrics = options.metrics.map(|address| metrics::start(address, sources()));
        let metrics = metrics.transpose().or_else(|failure| {
            or_without("figures are not given", failure).map(|_: Option<()>| None)
        })?;
        let source = options.source.clone().unwrap_or_else(|| store.path.clone().into_os_string());
        let adapter = Arc::new(FuseAdapter::new(views.clone()).open_views(options.open_views));
        let mounted = match mounting {
            Mounting::On(dir) => {
                let mount_options =
                    MountOptions { source: source.clone(), ..options.mount.clone() };
                kvfs_fuse::mount(adapter.clone(), dir, &mount_options, &options.policy)
            }
            Mounting::Again(handover) => {
                kvfs_fuse::take_over(adapter.clone(), handover, &options.policy)
            }
        };
        let mounted = mounted.map_err(failures::of_mount)?;
        Ok(Service { server, metrics, figures, adapter, mounted, source })
    }

    /// Leaves a record of a mount that answers, and starts what goes with it.
    fn attend(
        &self,
        opened: &Opened,
        options: &Options,
        log: Option<PathBuf>,
    ) -> Outcome<(Record, Arc<KernelNotifier>, Option<Scrubbing>)> {
        let (store, mounted) = (&opened.store, &self.mounted);
        let server = self.server.as_ref();
        let mut record =
            Record::of_this_process(mounted.device(), &store.path, mounted.mount_point());
        record.source = self.source.clone().into();
        record.socket = server.map(|s| s.path().to_path_buf());
        record.metrics = self.metrics.as_ref().map(|endpoint| endpoint.address().to_string());
        record.listen = server.and_then(|s| s.tcp_address()).map(|address| address.to_string());
        record.handover = Some(handover::VERSION);
        record.log = log;
        record.recovery = store.recovery.clone();
        record.write().map_err(|e| {
            Failure::io(format!("cannot write a record to {}", daemons::directory().display()), &e)
        })?;
        // The first request: a program that was told "mounted" can rely on being answered.
        let at = mounted.mount_point();
        fs::metadata(at).map_err(|e| {
            Failure::io(format!("the mount on {} does not answer", at.display()), &e)
        })?;
        let notifier =
            KernelNotifier::start(&opened.views, &self.adapter, mounted).map_err(|e| {
                let what = format!("cannot tell the kernel what changes under {}", at.display());
                Failure::io(what, &e)
            })?;
        let (requests, uses_rings) = (mounted.counters(), mounted.uses_rings());
        let _ = self.figures.set(MountFigures { requests, notifier: notifier.clone(), uses_rings });
        tracing::info!(store = %store.path.display(), mount_point = %at.display(), io_uring = uses_rings, "mounted");
        let writable = store.access == Access::ReadWrite;
        let scrubbing = options
            .scrub
            .map(|interval| Scrubbing::start(&store.db, &opened.fs, interval, writable))
            .transpose();
        let scrubbing = scrubbing.map_err(|e| Failure::io("cannot start the scrub", &e))?;
        Ok((record, notifier, scrubbing))
    }

    /// Returns when the mount has ended, or has stopped for another program.
    fn wait<'a>(
        &mut self,
        views: &'a Views,
        arguments: &[OsString],
        notifier: &KernelNotifier,
        scrubbing: Option<Scrubbing>,
        (say, events): (&Sender<Event>, &Receiver<Event>),
    ) -> Waited<'a> {
        let Service { server, metrics, mounted, .. } = self;
        let (stopper, before) = (mounted.stopper(), mounted.handover());
        let mut scrubbing = Some(scrubbing);
        let mut stopped_for = None;
        std::thread::scope(|scope| {
            // It is received below.
            scope.spawn(|| drop(say.send(Event::Served(mounted.wait()))));
            loop {
                let request = match events.recv() {
                    Ok(Event::Upgrade(request)) => request,
                    Ok(Event::Served(served)) => {
                        return match (served, stopped_for) {
                            (Ok(Served::Stopped(handover)), Some((request, paused))) => {
                                Waited::Stopped(request, handover, paused)
                            }
                            (served, _) => Waited::Ended(served.map(drop)),
                        };
                    }
                    Err(_) => return Waited::Ended(Ok(())),
                };
                let may = match (&stopper, &before) {
                    (Some(stopper), Some(before)) => {
                        may_become(&request, before, arguments, views).map(|()| stopper)
                    }
                    _ => Err(Failure::new(
                        Exit::Failed,
                        "requests of this mount come over io_uring, and cannot be handed over",
                    )
                    .hint("mounts with transport=device can")),
                };
                let stopper = match may {
                    Ok(stopper) => stopper,
                    Err(failure) => {
                        Request::answer(&request, Err(&failure));
                        continue;
                    }
                };
                // In this order: none of them is begun anew by one that is still there, and all get
                // the answers that they wait for.
                drop((metrics.take(), scrubbing.take()));
                if let Some(server) = server.take() {
                    server.stop();
                }
                let paused = views.pause();
                notifier.finish();
                stopper.stop();
                stopped_for = Some((request, paused));
            }
        })
    }
}

/// Whether this process may become another program, which is asked, too.
fn may_become(
    request: &Request,
    handover: &Handover,
    arguments: &[OsString],
    views: &Views,
) -> Outcome {
    hinders(views)?;
    let state = State { mount: handover, in_use: &InUse::default() };
    handover::ask(&request.program, arguments, &state)?;
    // So that little is left to do while nobody answers.
    views.sync_all().map_err(|e| {
        Failure::new(Exit::Failed, format!("what was written cannot be committed: {e}"))
    })
}

/// Closes everything behind a mount that has ended as `served` says. Of several failures the first
/// is told: the others follow from it.
fn close(served: Outcome, service: Service, notifier: &KernelNotifier, opened: Opened) -> Outcome {
    let counters = service.mounted.counters();
    tracing::info!("unmounted after {} requests: {counters}", counters.total());
    let Opened { store, views, .. } = opened;
    notifier.stop();
    drop(service.metrics);
    if let Some(server) = service.server {
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
/// SIGHUP says that somebody waits for this process to become another program (`upgrade`).
fn listen_to_signals(
    unmounter: Unmounter,
    views: Views,
    device: String,
    say: Sender<Event>,
) -> std::io::Result<signal_hook::iterator::Handle> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let handle = signals.handle();
    let listen = move || {
        for signal in signals.forever() {
            if signal == SIGHUP {
                match Request::take(&device) {
                    Ok(request) => {
                        request.into_iter().for_each(|r| drop(say.send(Event::Upgrade(r))))
                    }
                    Err(e) => tracing::warn!("whoever waits for an upgrade cannot be heard: {e}"),
                }
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
