//! The process that serves a mount: opens the store, answers FUSE requests and the socket, and
//! closes the store when the mount ends.
//!
//! The order matters. The store is opened first, since its lock proves that no other process serves
//! it: the remains of an earlier daemon (a socket, a record) are then certainly stale. On shutdown
//! the mount ends first, since unmounting flushes the data that the kernel still holds; then the
//! record is put aside and the socket closed, then everything is committed, and the record is
//! removed last. A process that waits for this one to end therefore finds either no record or one
//! that reports the failure.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use kvfs::{InUse, Views};
use kvfs_fuse::{Handover, KernelNotifier, Unmounter};
use places::publishing::Publishing;
use rustix::process::{Resource, Rlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::support::machine::destination;
use crate::support::mounting::mount_options::Options;
use crate::support::mounts::daemons::{self, Record};
use crate::support::serving::handover::{self, Next, Resumed, State};
use crate::support::serving::keeper::{Held, Keeper};
use crate::support::serving::service::{Event, Mounting, Opened, Service, Waited, hinders};
use crate::support::serving::upgrade::Request;
use crate::support::stores::store::{self, InHand};
use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome};

/// The ways in which a daemon starts.
pub enum Begin<'a> {
    /// Mounts the store on the directory.
    Mount(&'a Path, &'a Path),
    /// Continues to serve the store, with this name, after another program has handed it over.
    Resume(&'a Path, Box<Resumed>),
    /// Mounts the store on the directory, or continues for a process that was killed. The keeper
    /// holds the state.
    Kept(&'a Path, &'a Path, Box<Held>, Keeper),
}

/// Serves a store on a directory until it is unmounted, by this or another process. `ready` is
/// called once a new mount answers. `arguments` are passed to a program that takes over.
pub fn serve(
    begin: Begin<'_>,
    options: &Options,
    arguments: &[OsString],
    ready: &mut dyn FnMut(&Record) -> Outcome,
) -> Outcome {
    prepare_process();
    let log = start_log(options.log.as_deref())?;
    let outcome = serve_logged(begin, options, arguments, log.clone(), ready);
    // An empty log in our own directory is useless.
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
    let (opened, mut service, mut asked) = start(begin, options)?;
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
                // The notifier would wait for threads that no longer answer.
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
        signals.end();
        note_outcome(record, &outcome);
        return outcome;
    }
}

/// Removes the record of this process, or leaves the failure in it.
fn note_outcome(mut record: Record, outcome: &Outcome) {
    match outcome {
        Ok(()) => record.remove(),
        Err(failure) => {
            tracing::error!("{}", failure.message);
            record.failure = Some(failure.message.clone());
            if let Err(e) = record.put_aside() {
                tracing::error!("cannot leave word of it: {e}");
            }
        }
    }
}

/// The descriptor by which another program has asked for a handover and waits for the answer, and
/// the failure to answer with.
type Asked = (OwnedFd, Option<Failure>);

/// Opens the store, and starts to answer. After a handover, the program that has asked for it is
/// returned, too.
fn start(begin: Begin<'_>, options: &Options) -> Outcome<(Opened, Service, Option<Asked>)> {
    match begin {
        Begin::Mount(store, dir) => {
            let opened = Opened::new(options, |access| {
                let store = store::open_waiting(store, access, options.budget())?;
                Ok(InHand { store, in_use: InUse::default(), kept: None })
            })?;
            if let Some(publication) = &options.publish {
                Publishing::check(&opened.store.db, publication)?;
            }
            let service = Service::begin(&opened, options, Mounting::On(dir))?;
            Ok((opened, service, None))
        }
        Begin::Kept(store, dir, held, keeper) => {
            let opened = Opened::new(options, |access| held.open(store, access, options))?;
            let mut service = match held.mount()? {
                None => Service::begin(&opened, options, Mounting::Kept(dir, &held))?,
                Some(mount) => {
                    match keeper.begun_anew.as_ref().and_then(|anew| anew.last.as_ref()) {
                        Some(last) => tracing::warn!("the daemon {last}: another one goes on"),
                        None => tracing::warn!("another daemon goes on"),
                    }
                    Service::begin(&opened, options, Mounting::Again(&mount))?
                }
            };
            service.keeper = Some(keeper);
            Ok((opened, service, None))
        }
        Begin::Resume(store, resumed) => {
            let (opened, service) = go_on(store, &resumed, options).inspect_err(|failure| {
                tracing::error!("{}", failure.message);
                resumed.give_back(failure);
                Request::answer(resumed.asks(), Err(failure));
            })?;
            Ok((opened, service, Some(resumed.into_asks())))
        }
    }
}

/// Opens the store that another program has handed over, and starts to answer. On an error, no
/// request has been answered.
fn go_on(store: &Path, resumed: &Resumed, options: &Options) -> Outcome<(Opened, Service)> {
    let opened = Opened::new(options, |access| {
        let (file, in_use) = resumed.store_and_use()?;
        let store = store::open_file(file, store, access, options.budget())?;
        Ok(InHand { store, in_use, kept: None })
    })?;
    let service = Service::begin(&opened, options, Mounting::Again(&resumed.mount))?;
    Ok((opened, service))
}

impl Opened {
    /// Closes the store and executes another program, which takes over. Returns only on failure.
    fn become_program(
        self,
        request: Request,
        arguments: &[OsString],
        state: &State<'_>,
    ) -> Failure {
        let device = self.store.device.clone();
        // If anything fails from here on, the next opening recovers.
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

/// Commits everything, and returns the file system state that the next program needs.
fn hand_over(views: &Views, handover: &Handover) -> Outcome<InUse> {
    tracing::info!("handing over {}", handover.mount_point().display());
    hinders(views)?;
    views.in_use().map_err(|e| {
        Failure::new(Exit::Failed, format!("what was written could not be committed: {e}"))
    })
}

/// Returns the arguments with the addresses that were bound, in place of requests for any address.
fn with_addresses(arguments: &[OsString], record: &Record) -> Vec<OsString> {
    let metrics = record.metrics.iter().flat_map(|at| ["--metrics".into(), at.into()]);
    let listen = record.listen.iter().map(|at| OsString::from(format!("listen={at}")));
    let listen =
        listen.filter(|word| !arguments.contains(word)).flat_map(|word| ["-o".into(), word]);
    // The last of several `-o listen` counts, but `--metrics` may be passed only once.
    let at = arguments.iter().position(|word| word == "--metrics").unwrap_or(arguments.len());
    arguments[..at].iter().cloned().chain(metrics).chain(listen).collect()
}

/// Closes everything after the end of a mount, whose outcome is `served`. Of several failures the
/// first is reported, since the others follow from it.
fn close(served: Outcome, service: Service, notifier: &KernelNotifier, opened: Opened) -> Outcome {
    let counters = service.mounted.counters();
    tracing::info!("unmounted after {} requests: {counters}", counters.total());
    let Opened { store, views, .. } = opened;
    // The thread that follows the published store notifies the kernel through the notifier, so it
    // ends first.
    drop(service.following);
    notifier.stop();
    drop(service.metrics);
    drop(service.serving);
    if let Some(server) = service.server {
        server.stop();
    }
    if views.is_down() {
        // The data to keep was made durable by the ioctl; the rest is dropped, as if the process
        // had been killed.
        tracing::warn!(
            "it had been shut down by the GOINGDOWN ioctl: what was not synced by then is dropped"
        );
        drop(service.publishing);
        let _ = store.close();
        return served;
    }
    // From now on, no program waits for a sync; the last commits are published below.
    service.publishing.iter().for_each(Publishing::sync_here);
    let committed = views.shutdown().and(views.mainline().shutdown());
    let committed = committed.map_err(|e| {
        Failure::new(Exit::Failed, format!("the last changes could not be written: {e}"))
    });
    // Publish after the last commit. Names that could not be published are in the log.
    service.publishing.into_iter().for_each(|publishing| drop(publishing.finish()));
    let closed = store.close();
    served.and(committed).and(closed)
}

/// Sets up a process through which others' writes go: heaps, limits, memory reclaim and umask.
pub fn prepare_process() {
    // glibc makes a heap for each thread, and memory that one thread allocates and another frees
    // accumulates there: with a 64 MiB budget the process grew to twice that. Two heaps are enough
    // for as many threads as this machine has cores, and keep to the budget.
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
    // Memory reclaim in this process never writes to its own mount, and its writes are not
    // throttled by dirty pages that only it can clean. Needs CAP_SYS_RESOURCE; threads inherit it.
    if let Err(e) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!("not marked as a process that writes for others: {e}");
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

/// Returns the default log file of a background process, or `None` if its directory cannot be made.
pub fn default_log() -> Option<PathBuf> {
    let directory = daemons::make_directory().ok()?;
    daemons::sweep(&directory);
    Some(directory.join(format!("{}.log", std::process::id())))
}

/// Sends the log to `path`, or to standard error. `KVFS_LOG` sets the level, like "debug" or
/// "info,kvfs=trace".
pub fn start_log(path: Option<&Path>) -> Outcome<Option<PathBuf>> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("KVFS_LOG").unwrap_or_else(|_| {
        // A log that was not requested must not grow.
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
    // A panic is a bug, and its message would be lost if standard error is closed.
    let to_stderr = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!("{panic}");
        to_stderr(panic);
    }));
    Ok(path.map(Path::to_path_buf))
}

/// Detaches from the terminal, except for standard output, which a future daemon needs.
pub fn close_terminal() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// Detaches from the terminal: the program that started this process waits for the end of these
/// streams.
pub fn close_standard_streams() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// Handles signals. SIGTERM and SIGINT unmount: programs that use the mount are cut off, and data
/// written until then is kept. SIGHUP says that a caller asks this process to become another
/// program (`upgrade`).
fn listen_to_signals(
    unmounter: Unmounter,
    views: Views,
    device: String,
    say: Sender<Event>,
) -> std::io::Result<Listening> {
    handover::note_signals()?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let handle = signals.handle();
    let listen = move || {
        // Signals that arrive while the first thread blocks them are kept for the next program.
        handover::hold_signals();
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
                // Include all data that the kernel holds back.
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
    let thread = std::thread::Builder::new().name("kvfs-signals".into()).spawn(listen)?;
    Ok(Listening { handle, thread })
}

/// The thread that handles signals.
struct Listening {
    handle: signal_hook::iterator::Handle,
    thread: JoinHandle<()>,
}

impl Listening {
    /// Waits until the thread has released the store. The last owner to release it records which
    /// parts of a store in object storage were fetched, which must happen before this process ends.
    fn end(self) {
        self.handle.close();
        let _ = self.thread.join();
    }
}
