//! The service of an open store: its mount, its server for clients of the socket, and its
//! statistics. It begins on a directory, or on a mount that another program has served. It stops
//! with the mount, or when another program takes over.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};

use kvdb_server::{Server, ServerOptions};
use kvfs::{Atime, InUse, Pause, Views};
use kvfs_fuse::{
    AccessTimes, FuseAdapter, Handover, Kept, KernelNotifier, MountOptions, Mounted, Served,
};

use places::following::FollowingThread;
use places::publishing::Publishing;

use crate::support::mounting::mount_options::Options;
use crate::support::mounts::daemons::{self, Record};
use crate::support::mounts::{place, sockets};
use crate::support::serving::handover::{self, State};
use crate::support::serving::http::Listening;
use crate::support::serving::keeper::{Held, Keeper};
use crate::support::serving::network::Network;
use crate::support::serving::scrubbing::Scrubbing;
use crate::support::serving::served_files::ServedFiles;
use crate::support::serving::statistics::{self, MountFigures};
use crate::support::serving::transactions::OverFiles;
use crate::support::serving::upgrade::Request;
use crate::support::serving::wire_server::{Limits, Serving};
use crate::support::serving::{metrics, publications, scripts};
use crate::support::stores::losses;
use crate::support::stores::store::{Access, FilesOfStore, InHand, Store};
use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// A store and its file system.
pub struct Opened {
    pub store: Store,
    pub fs: kvfs::Fs,
    pub views: Views,
    /// The state that outlives this process, if a keeper holds it.
    pub kept: Option<Arc<Kept>>,
}

impl Opened {
    pub fn new(options: &Options, open: impl FnOnce(Access) -> Outcome<InHand>) -> Outcome<Opened> {
        let InHand { store, in_use, kept } = open(access(options))?;
        let atime = match options.mount.access_times {
            AccessTimes::Relative => Atime::Relative,
            AccessTimes::Never => Atime::Never,
        };
        let files = FilesOfStore { zone_size: options.zone_size, compress: options.compress };
        let fs = store.file_system_with(atime, files, kept.is_some(), &in_use)?;
        let (kept, notes) = kept.unzip();
        let (db, mainline) = (store.db.clone(), fs.clone());
        let views = match notes {
            Some(notes) => Views::take_over_noted(db, mainline, &in_use, notes),
            None => Views::take_over(db, mainline, &in_use),
        };
        Ok(Opened { store, fs, views, kept })
    }
}

fn access(options: &Options) -> Access {
    if options.mount.read_only { Access::ReadOnly } else { Access::ReadWrite }
}

/// The origin of a service's mount.
pub enum Mounting<'a> {
    On(&'a Path),
    /// A new mount, whose connection a keeper holds.
    Kept(&'a Path, &'a Held),
    /// An existing mount that another process has served.
    Again(&'a Handover),
}

impl Mounting<'_> {
    /// Mounts the adapter, or continues the mount with it. `kept`: the state that outlives this
    /// process.
    fn mount(
        &self,
        adapter: Arc<FuseAdapter>,
        options: &MountOptions,
        policy: &kvfs_fuse::Policy,
        kept: Option<&Arc<Kept>>,
    ) -> Result<Mounted, kvfs_fuse::Error> {
        match (self, kept) {
            (Mounting::Kept(dir, held), Some(kept)) => {
                let keeping = (held.connection(), kept.clone());
                kvfs_fuse::mount_kept(adapter, dir, options, policy, keeping)
            }
            (Mounting::On(dir) | Mounting::Kept(dir, _), _) => {
                kvfs_fuse::mount(adapter, dir, options, policy)
            }
            (Mounting::Again(handover), Some(kept)) => {
                kvfs_fuse::take_over_killed(adapter, handover, policy, kept.clone())
            }
            (Mounting::Again(handover), None) => kvfs_fuse::take_over(adapter, handover, policy),
        }
    }
}

/// Serves an open store: on a mount, and to clients of the socket.
pub struct Service {
    pub server: Option<Server>,
    pub metrics: Option<Listening>,
    /// Serves snapshots to mounts elsewhere, if requested.
    pub serving: Option<Serving>,
    figures: Arc<OnceLock<MountFigures>>,
    adapter: Arc<FuseAdapter>,
    pub mounted: Mounted,
    source: OsString,
    /// Publishes the store automatically, if requested.
    pub publishing: Option<Publishing>,
    /// Follows the store in object storage that is mounted.
    pub following: Option<FollowingThread>,
    /// The keeper that restarts this process after it is killed.
    pub keeper: Option<Keeper>,
}

/// The outcome of waiting for a mount.
pub enum Waited<'a> {
    Ended(Result<(), kvfs_fuse::Error>),
    /// No thread answers any more, and a caller waits for another program to take over. The kernel
    /// must not be notified either, since it would wait for answers.
    Stopped(Request, Box<Handover>, Pause<'a>),
}

/// An event while a mount is served.
pub enum Event {
    Served(Result<Served, kvfs_fuse::Error>),
    Upgrade(Request),
}

impl Service {
    pub fn begin(opened: &Opened, options: &Options, mounting: Mounting<'_>) -> Outcome<Service> {
        let Opened { store, fs, views, kept } = opened;
        let figures: Arc<OnceLock<MountFigures>> = Arc::default();
        // On takeover, files have priority, since programs have them open.
        let needed = !matches!(mounting, Mounting::Again(_));
        let server = start_server(store, fs, views, figures.clone(), &options.network);
        let server = or_without(server, needed)?;
        let sources = || metrics::Sources {
            db: store.db.clone(),
            files: Some((fs.clone(), views.clone())),
            mount: figures.clone(),
            served: Arc::default(),
        };
        let metrics = options.metrics.map(|address| metrics::start(address, sources()));
        let metrics = or_without(metrics.transpose(), needed)?;
        let files = || ServedFiles {
            db: store.db.clone(),
            views: views.clone(),
            is_mounted: true,
            compress: options.compress,
        };
        let writable = options.serve_write.then(files);
        let serving = options
            .serve
            .as_deref()
            .map(|path| Serving::begin(&store.db, writable, Limits::default(), path));
        let serving = or_without(serving.transpose(), needed)?;
        let source = options.source.clone().unwrap_or_else(|| store.path.clone().into_os_string());
        let mounted_alone = place::view_at(&options.mount.root);
        let adapter = FuseAdapter::new(views.clone())
            .open_views(options.open_views)
            .of_clone_alone(mounted_alone.clone_name().map(String::from));
        let adapter = Arc::new(match mounting {
            Mounting::On(_) | Mounting::Kept(..) => adapter,
            Mounting::Again(_) => adapter.of_mount_in_use(options.policy.write_back),
        });
        let mount_options = MountOptions { source: source.clone(), ..options.mount.clone() };
        let mounted =
            mounting.mount(adapter.clone(), &mount_options, &options.policy, kept.as_ref());
        let mounted = mounted.map_err(failures::of_mount)?;
        if let Mounting::Kept(_, held) = mounting {
            mounted.handover().map_or(Ok(()), |mount| held.note_mount(&mount))?;
        }
        Ok(Service {
            server,
            metrics,
            serving,
            figures,
            adapter,
            mounted,
            source,
            publishing: None,
            following: None,
            keeper: None,
        })
    }

    /// Returns the record of the mount.
    fn record(&self, opened: &Opened, log: Option<PathBuf>) -> Record {
        let (store, mounted, server) = (&opened.store, &self.mounted, self.server.as_ref());
        let mut record =
            Record::of_this_process(mounted.device(), &store.path, mounted.mount_point());
        record.source = self.source.clone().into();
        record.socket = server.map(|s| s.path().to_path_buf());
        record.metrics = self.metrics.as_ref().map(|endpoint| endpoint.address().to_string());
        record.listen = server.and_then(|s| s.tcp_address()).map(|address| address.to_string());
        record.handover = Some(handover::VERSION);
        record.log = log;
        record.recovery = store.recovery.clone();
        record.begun_anew = self.keeper.as_ref().and_then(|keeper| keeper.begun_anew.clone());
        record.keeper = self.keeper.as_ref().and_then(|_| Record::keeper_of_this_process());
        record
    }

    /// Writes the record of a mount that answers, and starts its notifier and its scrubs.
    pub fn attend(
        &mut self,
        opened: &Opened,
        options: &Options,
        log: Option<PathBuf>,
    ) -> Outcome<(Record, Arc<KernelNotifier>, Option<Scrubbing>)> {
        let (store, mounted) = (&opened.store, &self.mounted);
        let record = self.record(opened, log);
        // Requests are answered now. A reader of the record may rely on the keeper's restart after
        // a kill from here on.
        self.keeper.iter().for_each(Keeper::say_serves);
        record.write().map_err(|e| {
            Failure::io(format!("cannot write a record to {}", daemons::directory().shown()), &e)
        })?;
        // Send the first request, so that a program that read "mounted" can rely on an answer.
        let at = mounted.mount_point();
        fs::metadata(at)
            .map_err(|e| Failure::io(format!("the mount on {} does not answer", at.shown()), &e))?;
        let notifier =
            KernelNotifier::start(&opened.views, &self.adapter, mounted).map_err(|e| {
                let what = format!("cannot tell the kernel what changes under {}", at.shown());
                Failure::io(what, &e)
            })?;
        if opened.kept.is_some()
            && let Err(e) = notifier.follow_killed(&opened.views)
        {
            tracing::warn!("views that have ended may be seen for a while: {e}");
        }
        let (requests, uses_rings) = (mounted.counters(), mounted.uses_rings());
        let publish = options.publish.clone();
        let publishing =
            publish.map(|what| Publishing::start(&store.db, &opened.views, what)).transpose()?;
        let follow = options.follow.clone();
        let following = follow
            .map(|what| FollowingThread::start(&opened.views, &store.db, what))
            .transpose()?;
        let _ = self.figures.set(MountFigures {
            requests,
            notifier: notifier.clone(),
            uses_rings,
            begun_anew: record.begun_anew.as_ref().map(|anew| anew.count),
            publishing: publishing.as_ref().map(Publishing::shared),
            served: self.serving.as_ref().map(Serving::server),
            following: following.as_ref().map(FollowingThread::shared),
        });
        (self.publishing, self.following) = (publishing, following);
        tracing::info!(store = %store.path.display(), mount_point = %at.display(), io_uring = uses_rings, "mounted");
        let writable = store.access == Access::ReadWrite;
        let scrubbing = options
            .scrub
            .map(|interval| Scrubbing::start(&store.db, &opened.fs, interval, writable))
            .transpose();
        let scrubbing = scrubbing.map_err(|e| Failure::io("cannot start the scrub", &e))?;
        Ok((record, notifier, scrubbing))
    }

    /// Waits until the mount has ended, or has stopped for another program.
    pub fn wait<'a>(
        &mut self,
        views: &'a Views,
        arguments: &[OsString],
        notifier: &KernelNotifier,
        scrubbing: Option<Scrubbing>,
        (say, events): (&Sender<Event>, &Receiver<Event>),
    ) -> Waited<'a> {
        let Service { server, metrics, serving, mounted, keeper, publishing, following, .. } = self;
        let (stopper, before) = (mounted.stopper(), mounted.handover());
        let mut scrubbing = Some(scrubbing);
        let mut stopped_for = None;
        std::thread::scope(|scope| {
            // The event is received below.
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
                // No thread answers any more, and the check of this request would wait for answers.
                if stopped_for.is_some() {
                    let failure = Failure::new(Exit::Busy, "another upgrade of it is under way");
                    Request::answer(&request, Err(&failure));
                    continue;
                }
                let may = match (&stopper, &before, &*keeper) {
                    (Some(_), Some(before), Some(keeper)) => {
                        may_become(&request, before, arguments, views, true).and_then(|()| {
                            request.answer_followed();
                            Err(keeper.become_program(&request.program))
                        })
                    }
                    (Some(stopper), Some(before), None) => {
                        may_become(&request, before, arguments, views, false).map(|()| stopper)
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
                // Stop them in this order, so that none of them is restarted by another one that
                // still runs, and all get the answers that they wait for.
                drop((metrics.take(), scrubbing.take(), publishing.take(), following.take()));
                drop(serving.take());
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

/// Returns the result, or `None` if it failed and is not needed.
fn or_without<T>(started: Outcome<Option<T>>, needed: bool) -> Outcome<Option<T>> {
    started.or_else(|failure| match needed {
        true => Err(failure),
        false => {
            tracing::error!("the mount goes on without it: {}", failure.message);
            Ok(None)
        }
    })
}

/// Checks that this process may become another program, by asking that program, too.
fn may_become(
    request: &Request,
    handover: &Handover,
    arguments: &[OsString],
    views: &Views,
    kept: bool,
) -> Outcome {
    hinders(views)?;
    let state = State { mount: handover, in_use: &InUse::default() };
    handover::ask(&request.program, arguments, &state, kept)?;
    // Commit now, so that little work is left while requests wait.
    views.sync_all().map_err(|e| {
        Failure::new(Exit::Failed, format!("what was written cannot be committed: {e}"))
    })
}

/// Fails if a transaction is open that ends with this process.
pub fn hinders(views: &Views) -> Outcome {
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

/// Starts the server for keys. A store can be mounted without it if no socket can be made anywhere.
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
    let (checked, fs_of_push) = (fs.clone(), fs.clone());
    let (db, fs) = (store.db.clone(), fs.clone());
    let asked = figures.clone();
    let info: kvdb_server::InfoSource =
        Arc::new(move || statistics::of_store(&db, Some(&fs), asked.get()));
    let check: kvdb_server::Check = Arc::new(move || losses::of_files(&checked));
    let (pushed, from, mount) = (store.db.clone(), fs_of_push.clone(), figures.clone());
    let publish: kvdb_server::Publish = Arc::new(move |address| {
        from.sync_all().map_err(|e| e.to_string())?;
        let by_itself = mount.get().and_then(MountFigures::publishing);
        publications::of_served(&pushed, address, by_itself).map_err(|failure| failure.message)
    });
    let own = store.db.clone();
    let describe: kvdb_server::Describe =
        Arc::new(move |dictionary, start, end| kvfs::describe_keys(&own, dictionary, start, end));
    for place in places {
        let over_files = Arc::new(OverFiles(views.clone()));
        let mut options = ServerOptions {
            info: Some(info.clone()),
            describe: Some(describe.clone()),
            check: Some(check.clone()),
            publish: Some(publish.clone()),
            transactions: Some(over_files.clone()),
            snapshots: Some(over_files.clone()),
            files: Some(over_files),
            scripts: Some(scripts::command()),
            ..Default::default()
        };
        network.add_to(&mut options)?;
        match Server::start(store.db.clone(), &place, options) {
            Ok(server) => return Ok(Some(server)),
            // An address that was requested is not left out silently.
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
