//! The settings of a mount that the options of `-o` make, and which of them exclude one another.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use kvfs::Compress;
use kvfs_fuse::{MountOptions, Policy, TransportChoice};
use places::following::Following;
use places::publishing::Publication;

use crate::support::serving::network::Network;
use crate::support::serving::scrubbing::Interval;
use crate::support::stores::store::Budget;
use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome};

/// Everything `-o` can say.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub mount: MountOptions,
    /// `fsname=`, where given; otherwise the store's path is the source.
    pub source: Option<OsString>,
    pub policy: Policy,
    pub memory: Option<u64>,
    /// Parts fetched from object storage may take so much of the disk, bytes.
    pub cache_size: Option<u64>,
    pub log: Option<PathBuf>,
    /// Users other than the owner may read views.
    pub open_views: bool,
    /// Bytes of small files that a new directory reserves numbers for. Without it, the value that
    /// the store was made with holds.
    pub zone_size: Option<u64>,
    /// The compression of files without a way of their own.
    pub compress: Option<Compress>,
    /// Where figures are given to Prometheus.
    pub metrics: Option<SocketAddr>,
    /// Where clients of the socket's commands are served, too.
    pub network: Network,
    /// Socket at which snapshots are served to mounts that have not the store.
    pub serve: Option<PathBuf>,
    /// Other users may begin transactions, too.
    pub serve_write: bool,
    /// Files are laid in the order of their names while the store is quiet.
    pub lays: bool,
    /// Data waits in the memory of the database until the next sync.
    pub holds: bool,
    /// The flush interval. Without it, the library's default applies.
    pub flush_interval: Option<Duration>,
    /// The interval at which everything is read again. Without it, nothing is read by itself.
    pub scrub: Option<Interval>,
    /// Where the store is published by itself.
    pub publish: Option<Publication>,
    /// The options state an interval of publication, but no address.
    publishes_nothing: bool,
    /// The store in object storage that is followed.
    pub follow: Option<Following>,
    /// The interval at which it is asked for. Zero if it is not followed.
    pub follow_every: Option<Duration>,
    /// Object storage is not asked.
    pub offline: bool,
    /// A store in object storage is mounted to be written, and perhaps taken from another machine.
    pub writing: Option<Writing>,
    /// A keeper starts the daemon again when it is killed.
    pub keeper: bool,
}

/// The way in which a store in object storage is written at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writing {
    /// The store is taken even if another machine has it open.
    pub take: bool,
}

impl Options {
    /// Fails if options that belong together are not.
    pub fn check(&self) -> Outcome {
        if self.publishes_nothing && self.writing.is_none() {
            let refused = "publish_every and durability are for mounts with publish=ADDRESS";
            return Err(Failure::new(Exit::Usage, refused).hint("leave it out, or say where to"));
        }
        self.network.check()
    }

    /// Returns the share of the machine that the store may take.
    pub fn budget(&self) -> Budget {
        // Data that is moved in the store would be published again.
        let lay_when_quiet = self.lays && !self.mount.read_only && self.publish.is_none();
        let (memory, cache) = (self.memory, self.cache_size);
        Budget {
            memory,
            cache,
            offline: self.offline,
            lay_when_quiet,
            hold_values: self.holds,
            flush_interval: self.flush_interval,
        }
    }
}

/// The settings while the words are read. An option may stand before the one that it qualifies, so
/// the two are put together by `finish`.
pub struct Draft {
    pub options: Options,
    /// The kernel checks no permissions.
    pub without_permissions: bool,
    /// The value of `publish_every`.
    pub publish_every: Option<Duration>,
    /// The value of `durability`: a sync waits for object storage, too.
    pub syncs_there: Option<bool>,
}

impl Default for Draft {
    /// Returns the settings of a mount without options.
    fn default() -> Draft {
        let policy = Policy { transport: TransportChoice::Auto, ..Policy::default() };
        let options = Options { policy, ..Options::default() };
        Draft { options, without_permissions: false, publish_every: None, syncs_there: None }
    }
}

impl Draft {
    /// Returns the settings, or an error if some of them exclude one another.
    pub fn finish(self) -> Outcome<Options> {
        let Draft { mut options, without_permissions, publish_every, syncs_there } = self;
        if options.writing.is_some() && options.mount.read_only {
            let refused = "what is mounted read-only is not written";
            return Err(Failure::new(Exit::Usage, refused).hint("leave out ro, or write and take"));
        }
        match (&mut options.publish, publish_every) {
            (Some(_), _) if options.mount.read_only => {
                let refused = "what is mounted read-only has nothing to publish";
                return Err(Failure::new(Exit::Usage, refused).hint("leave out publish"));
            }
            (Some(publish), every) => {
                publish.every = every.unwrap_or(publish.every);
                publish.syncs_there = syncs_there.unwrap_or(false);
            }
            (None, every) => {
                options.publishes_nothing = every.is_some() || syncs_there == Some(true)
            }
        }
        match (&mut options.follow, options.follow_every) {
            (follow, Some(Duration::ZERO)) => *follow = None,
            (Some(follow), Some(every)) => follow.every = every,
            _ => {}
        }
        if options.policy.transport == TransportChoice::Uring && options.policy.write_back {
            return Err(failures::of_mount(kvfs_fuse::Error::RingsGather));
        }
        if options.policy.transport == TransportChoice::Uring && options.keeper {
            let refused = "requests over io_uring go with the daemon that is killed, so a keeper could not begin it anew";
            return Err(Failure::new(Exit::Usage, refused).hint("leave out transport=uring"));
        }
        if options.keeper && !options.mount.root.as_os_str().is_empty() {
            let refused =
                "a keeper goes on with the files of the store, and not with a snapshot or a clone";
            return Err(Failure::new(Exit::Usage, refused).hint("leave out keeper"));
        }
        options.mount.default_permissions = !without_permissions;
        if options.mount.allow_other && !options.mount.default_permissions {
            let refused = "allow_other without default_permissions is refused: permissions would not be checked, and every user could do everything";
            return Err(Failure::new(Exit::Usage, refused).hint("leave out nodefault_permissions"));
        }
        Ok(options)
    }
}
