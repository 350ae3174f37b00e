//! The options of a mount, a row each: its name, whether it takes a value, its help, and how it
//! changes the settings.
//!
//! Whatever is said about an option comes from here: what `-o`, `kvfs mount --config` and
//! `/etc/fstab` accept, the errors for a value that is missing or too much, `kvfs mount --help` and
//! the manual page. A new option is a new row.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use kvfs_fuse::{AccessTimes, TransportChoice, view_names};
use places::Address;
use places::following::{self, Following};
use places::publishing::{self, Publication};

use crate::support::mounting::mount_settings::{Draft, Writing};
use crate::support::terminal::sizes;

/// One option.
pub struct Row {
    pub name: &'static str,
    /// Other names of it, which mount(8), FUSE or other file systems use.
    pub aliases: &'static [&'static str],
    pub kind: Kind,
    /// Only mounts of a store on this machine have the option. A mount of a server's store refuses
    /// it.
    pub local: bool,
    /// Its description, one or more sentences without the last period.
    pub help: &'static str,
}

/// The form in which an option is written.
pub enum Kind {
    /// The name alone.
    Flag(fn(&mut Draft)),
    /// `name=value`.
    Value {
        /// The value as the help shows it: a word in capitals, or the words that can be chosen.
        shown: &'static str,
        /// A value that is accepted.
        example: &'static str,
        set: fn(&mut Draft, &OsStr) -> Result<(), String>,
    },
    /// A flag of other file systems that cannot be kept here.
    Refused { why: &'static str, hint: &'static str },
}

const fn flag(name: &'static str, help: &'static str, set: fn(&mut Draft)) -> Row {
    Row { name, aliases: &[], kind: Kind::Flag(set), local: false, help }
}

const fn value(
    name: &'static str,
    (shown, example): (&'static str, &'static str),
    help: &'static str,
    set: fn(&mut Draft, &OsStr) -> Result<(), String>,
) -> Row {
    Row { name, aliases: &[], kind: Kind::Value { shown, example, set }, local: false, help }
}

impl Row {
    const fn also(self, aliases: &'static [&'static str]) -> Row {
        Row { aliases, ..self }
    }

    const fn local(self) -> Row {
        Row { local: true, ..self }
    }

    /// Returns the forms of the option as the help shows them.
    fn forms(&self) -> String {
        match &self.kind {
            Kind::Value { shown, .. } => format!("{}={shown}", self.name),
            Kind::Flag(_) | Kind::Refused { .. } => {
                [&[self.name][..], self.aliases].concat().join(", ")
            }
        }
    }
}

/// Returns the option of this name.
pub fn option(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name || row.aliases.contains(&name))
}

/// All options, in the order of the help.
pub const ROWS: &[Row] = &[
    flag("ro", "read-only", |d| d.options.mount.read_only = true),
    flag("rw", "writable (default)", |d| d.options.mount.read_only = false),
    flag("allow_other", "give other users access (the kernel checks permissions)", |d| {
        d.options.mount.allow_other = true
    }),
    flag(
        "open_views",
        "with allow_other: let all users read snapshots, clones and open transactions of others, \
         if the modes of the files there allow it (default: only root, the user who mounted, and \
         the user who began the transaction)",
        |d| d.options.open_views = true,
    ),
    flag("default_permissions", "the kernel checks permissions (default)", |d| {
        d.without_permissions = false
    }),
    flag(
        "nodefault_permissions",
        "only for root, which is not bound by modes: save a request for each change of a name, \
         since the kernel checks no permissions. Modes then do not bind a uid 0 without \
         CAP_DAC_OVERRIDE, either. Refused with allow_other, to other users, and to a root that is \
         bound by modes",
        |d| d.without_permissions = true,
    )
    .also(&["no_default_permissions"]),
    flag("suid", "honour set-user-ID bits", |d| d.options.mount.suid = true),
    flag("nosuid", "ignore set-user-ID bits (default)", |d| d.options.mount.suid = false),
    flag("dev", "honour device nodes", |d| d.options.mount.dev = true),
    flag("nodev", "ignore device nodes (default)", |d| d.options.mount.dev = false),
    flag("exec", "allow programs to be run (default)", |d| d.options.mount.exec = true),
    flag("noexec", "do not allow programs to be run", |d| d.options.mount.exec = false),
    flag("sync", "write through immediately", |d| d.options.mount.synchronous = true),
    flag("async", "do not write through immediately (default)", |d| {
        d.options.mount.synchronous = false
    }),
    flag("dirsync", "write changes of directories through immediately", |d| {
        d.options.mount.dir_synchronous = true
    }),
    flag("relatime", "update access times on reads that reach the daemon (default)", |d| {
        d.options.mount.access_times = AccessTimes::Relative
    })
    .also(&["atime", "nostrictatime"]),
    flag("noatime", "do not update access times on reads", |d| {
        d.options.mount.access_times = AccessTimes::Never
    }),
    Row {
        name: "strictatime",
        aliases: &["norelatime"],
        kind: Kind::Refused {
            why: "refused: the kernel answers most reads out of its cache, and those would not \
                  count",
            hint: "use relatime, or noatime",
        },
        local: false,
        help: "refused, since a read that the kernel answers from its cache updates no access time",
    },
    flag(
        "diratime",
        "accepted, without effect: listing a directory never updates its access time",
        |_| {},
    )
    .also(&["nodiratime"]),
    value(
        "cache",
        ("through|back|auto", "through"),
        "where written data is when a write returns. through: in the daemon. back: in the kernel, \
         which batches writes: many small writes get cheaper, changes of names more expensive, and \
         more is lost if the machine or the daemon crashes. auto (default): the faster one over \
         all measured programs, which is through",
        |d, value| {
            d.options.policy.write_back = match value.to_str() {
                Some("through" | "auto") => false,
                Some("back") => true,
                _ => return Err("write through, back or auto".into()),
            };
            Ok(())
        },
    ),
    flag("writeback", "the same as cache=back", |d| d.options.policy.write_back = true),
    flag("nowriteback", "the same as cache=through", |d| d.options.policy.write_back = false),
    value(
        "fsname",
        ("NAME", "work"),
        "source in the table of mounts (default: the store)",
        |d, value| {
            d.options.source = Some(value.into());
            Ok(())
        },
    ),
    value(
        "subtype",
        ("NAME", "kvfs"),
        "type in the table of mounts, after `fuse.` (default: kvfs); if it is empty, the type is \
         plain `fuse`",
        |d, value| {
            let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let fits = value.to_str().filter(|name| name.bytes().all(is_fit));
            d.options.mount.subtype = fits.ok_or("a subtype is letters, digits, - _ .")?.into();
            Ok(())
        },
    ),
    value("memory", ("SIZE", "1G"), "as --memory", |d, value| {
        d.options.memory = Some(size(value)?);
        Ok(())
    }),
    value("log", ("FILE", "/var/log/kvfs.log"), "as --log", |d, value| {
        d.options.log = Some(value.into());
        Ok(())
    }),
    value("metrics", ("ADDRESS", "127.0.0.1:9100"), "as --metrics", |d, value| {
        d.options.metrics = Some(parse_address(&value.to_string_lossy())?);
        Ok(())
    })
    .local(),
    value(
        "cache_size",
        ("SIZE", "10G"),
        "for a store in object storage: limit the disk space of fetched data (default: all \
         available space)",
        |d, value| {
            d.options.cache_size = Some(size(value)?);
            Ok(())
        },
    )
    .local(),
    value(
        "snapshot",
        ("NAME", "monday"),
        "mount only this snapshot, read-only; requires the right to mount. For a store that is \
         already mounted, use .kvfs in its root",
        |d, value| {
            set_view(d, "snapshot", value)?;
            d.options.mount.read_only = true;
            Ok(())
        },
    ),
    value(
        "clone",
        ("NAME", "trial"),
        "mount only this clone, with its transactions and snapshots; requires the right to mount",
        |d, value| set_view(d, "clone", value),
    ),
    value(
        "listen",
        ("ADDRESS", "127.0.0.1:6379"),
        "also serve keys at this address (127.0.0.1:6379), as on the store's socket, to clients \
         that know the password in password_file",
        |d, value| {
            let address = value.to_str().and_then(|text| text.parse().ok());
            let wrong = "write an address and a port, as 127.0.0.1:6379";
            d.options.network.listen = Some(address.ok_or(wrong)?);
            Ok(())
        },
    )
    .local(),
    value(
        "password_file",
        ("FILE", "/etc/kvfs/password"),
        "with listen: the file with the password in its first line, which must be private to its \
         user",
        |d, value| {
            d.options.network.password_file = Some(full_path(value)?);
            Ok(())
        },
    )
    .local(),
    value(
        "tls_cert",
        ("FILE", "/etc/kvfs/cert.pem"),
        "with listen: encrypt connections to that address with this certificate, followed by those \
         that lead to a known authority, in PEM",
        |d, value| {
            d.options.network.tls_cert = Some(full_path(value)?);
            Ok(())
        },
    )
    .local(),
    value("tls_key", ("FILE", "/etc/kvfs/key.pem"), "the key of tls_cert, in PEM", |d, value| {
        d.options.network.tls_key = Some(full_path(value)?);
        Ok(())
    })
    .local(),
    value(
        "max_clients",
        ("N", "100"),
        "limit open connections to the socket and the address (default: 10000, or fewer if the \
         limit of descriptors is lower)",
        |d, value| {
            let most = number(value).filter(|most| (1..=1_000_000).contains(most));
            let most = most.ok_or("write a number of connections, from 1 to 1000000")?;
            d.options.network.max_clients = Some(most as usize);
            Ok(())
        },
    )
    .local(),
    value(
        "serve",
        ("unix:SOCKET", "unix:/run/kvfs/work.sock"),
        "serve snapshots to mounts elsewhere, as kvfs serve does; SOCKET is an absolute path",
        |d, value| {
            let path = value.as_bytes().strip_prefix(b"unix:").map(OsStr::from_bytes);
            let path = path.map(PathBuf::from).filter(|path| path.is_absolute());
            d.options.serve = Some(path.ok_or("write unix: and the path of a socket in full")?);
            Ok(())
        },
    )
    .local(),
    flag(
        "serve_write",
        "with serve: also let those mounts begin transactions, which change the store when they \
         commit",
        |d| d.options.serve_write = true,
    )
    .local(),
    value(
        "transport",
        ("auto|uring|device", "auto"),
        "how requests come from the kernel. uring: over io_uring, which requires Linux 6.14, and \
         root or /sys/module/fuse/parameters/enable_uring set to Y by root; not with writeback. \
         device: over /dev/fuse. auto (default): over io_uring if that parameter is set",
        |d, value| {
            d.options.policy.transport = match value.to_str() {
                Some("auto") => TransportChoice::Auto,
                Some("uring") => TransportChoice::Uring,
                Some("device") => TransportChoice::Device,
                _ => return Err("write auto, uring or device".into()),
            };
            Ok(())
        },
    ),
    value(
        "zone_size",
        ("SIZE", "1M"),
        "bytes that a directory created from now on reserves for its small files, so that they are \
         stored together (default: as recorded in the store, see kvfs create); 0: none",
        |d, value| {
            d.options.zone_size = Some(size(value)?);
            Ok(())
        },
    ),
    value(
        "compress",
        ("none|lz4|zstd|auto", "auto"),
        "how files are compressed that have no way of their own, from kvfs set or from the \
         directory in which they were created; auto: by LZ4, where that saves something (default: \
         none)",
        |d, value| {
            let way = kvfs::Compress::named(value.as_bytes());
            d.options.compress = Some(way.ok_or("write none, lz4, zstd or auto")?);
            Ok(())
        },
    )
    .local(),
    value(
        "threads",
        ("N", "4"),
        "threads that answer requests from /dev/fuse (default: one per core, 2 to 8)",
        |d, value| {
            let threads = number(value).filter(|threads| (1..=64).contains(threads));
            d.options.policy.threads = threads.ok_or("write a number from 1 to 64")? as usize;
            Ok(())
        },
    ),
    value(
        "scrub",
        ("DAYS", "30"),
        "read everything again every DAYS days (default: 30 if scrub_rate is given, otherwise no \
         scrubs): see kvfs scrub",
        |d, value| {
            let days = value.to_str().and_then(|text| text.parse::<f64>().ok());
            let days = days.filter(|days| *days > 0.0 && *days <= 36500.0);
            let days = days.ok_or("write a number of days")?;
            d.options.scrub.get_or_insert_default().every = Duration::from_secs_f64(days * 86400.0);
            Ok(())
        },
    )
    .local(),
    value(
        "scrub_rate",
        ("MIB", "16"),
        "in these scrubs, read at most MIB per second (default: 16)",
        |d, value| {
            let rate = number(value).filter(|rate| (1..=1 << 20).contains(rate));
            let rate = rate.ok_or("write a number of MiB a second")?;
            d.options.scrub.get_or_insert_default().bytes_per_second = rate << 20;
            Ok(())
        },
    )
    .local(),
    flag("noscrub", "no scrubs (default)", |d| d.options.scrub = None),
    flag(
        "lay",
        "while no program uses the store, lay files that were written out of the order of their \
         names in that order, as kvfs defrag does. It begins when an eighth of the data \
         was written since the last time, and writes at most about twice as much. Without effect \
         with publish, and for a store in object storage",
        |d| d.options.lays = true,
    )
    .local(),
    value(
        "commit",
        ("SECONDS", "5"),
        "the flush interval: the longest time after which a change without a sync is on disk, and \
         which a crash can lose, 0.1 to 300 (default: 1)",
        |d, value| {
            let interval = period(value).filter(|interval| *interval <= Duration::from_secs(300));
            let interval = interval.ok_or("write a number of seconds, 0.1 to 300")?;
            d.options.flush_interval = Some(interval);
            Ok(())
        },
    ),
    flag(
        "hold",
        "data waits in memory until the next sync, up to a quarter of the database's memory, so \
         that files which are removed or overwritten before are not written. A longer flush \
         interval (commit) spares more of them",
        |d| d.options.holds = true,
    )
    .local(),
    flag("nohold", "data is written soon (default)", |d| d.options.holds = false),
    flag("nolay", "files are only laid by kvfs defrag (default)", |d| d.options.lays = false),
    value(
        "publish",
        ("ADDRESS", "dir:/srv/stores/work"),
        "publish the store to dir:FOLDER/NAME or s3://BUCKET/NAME, some seconds after a commit and \
         at unmount: if the machine is lost, only later commits are lost. See kvfs push",
        |d, value| {
            let to = address(value, "a store is published, and not a snapshot")?;
            let (every, syncs_there) = (publishing::EVERY, false);
            d.options.publish = Some(Publication { to, every, syncs_there });
            Ok(())
        },
    )
    .local(),
    value(
        "publish_every",
        ("SECONDS", "10"),
        "publish SECONDS after a commit (default: 10)",
        |d, value| {
            d.publish_every = Some(period(value).ok_or("write a number of seconds, 0.1 to 86400")?);
            Ok(())
        },
    )
    .local(),
    value(
        "durability",
        ("local|remote", "local"),
        "for a store that is published, or written in object storage: what a sync waits for. local \
         (default): the disk of this machine. remote: also until the commits are in object \
         storage, so that the loss of this machine loses nothing that was synced",
        |d, value| {
            d.syncs_there = Some(match value.to_str() {
                Some("local") => false,
                Some("remote") => true,
                _ => return Err("write local or remote".into()),
            });
            Ok(())
        },
    )
    .local(),
    value(
        "follow",
        ("ADDRESS", "dir:/srv/stores/work"),
        "show what is published at this address, of which the store is a copy. A store in object \
         storage that is mounted read-only by its address has this option",
        |d, value| {
            let of = address(value, "a store is followed, and not a snapshot")?;
            d.options.follow = Some(Following { of, every: following::EVERY });
            Ok(())
        },
    )
    .local(),
    value(
        "follow_every",
        ("SECONDS", "10"),
        "for a store in object storage that is mounted read-only by its address: check for new \
         publications every SECONDS (default: 10), and show them; 0: show the store as of the \
         mount",
        |d, value| {
            let never = (value == "0").then_some(Duration::ZERO);
            let wrong = "write a number of seconds, 0.1 to 86400, or 0: never";
            d.options.follow_every = Some(never.or_else(|| period(value)).ok_or(wrong)?);
            Ok(())
        },
    )
    .local(),
    flag(
        "write",
        "for a store in object storage: mount it writable, and publish changes as with \
         publish=ADDRESS. Only one machine can write it at a time",
        |d| _ = d.options.writing.get_or_insert(Writing { take: false }),
    )
    .local(),
    flag(
        "take",
        "like write, even if another machine has the store open; unpublished changes of that \
         machine stay in its local file",
        |d| d.options.writing = Some(Writing { take: true }),
    )
    .local(),
    flag(
        "offline",
        "for a store in object storage: send no requests. Data that was not fetched cannot be read \
         (EIO); changes are published after the next mount without this option",
        |d| d.options.offline = true,
    )
    .local(),
    flag(
        "keeper",
        "restart the daemon when it is killed or crashes: programs wait for a moment and notice \
         nothing else, and completed calls lose nothing. Each change takes longer, since it is \
         committed before its call returns. Requires Linux 6.9; not with transport=uring",
        |d| d.options.keeper = true,
    )
    .local(),
    flag("nokeeper", "no keeper (default)", |d| d.options.keeper = false),
    flag("xattr", "extended attributes (default)", |d| d.options.policy.xattrs = true)
        .also(&["user_xattr"]),
    flag("noxattr", "no extended attributes: one request less for every new file", |d| {
        d.options.policy.xattrs = false
    })
    .also(&["nouser_xattr"]),
    flag(
        "btime",
        "show creation times in statx(2), which costs a program that asks for them one request \
         more for each file",
        |d| d.options.policy.birth_times = true,
    ),
    flag("nobtime", "show no creation times (default)", |d| d.options.policy.birth_times = false),
];

/// Columns of the help: of a line, and of the forms of an option in it.
const COLUMNS: usize = 100;
const FORMS: usize = 30;

/// Returns the text after the arguments of `kvfs mount --help`.
pub fn help() -> String {
    let mut text = String::from("Options for -o, separated by commas:\n");
    for row in ROWS {
        let mut line = format!("  {}", row.forms());
        if line.len() + 1 > FORMS {
            text.extend([line.as_str(), "\n"]);
            line.clear();
        }
        for word in row.help.split_whitespace() {
            if line.len() + 1 + word.len() > COLUMNS {
                text.extend([line.as_str(), "\n"]);
                line.clear();
            }
            match line.len() < FORMS {
                true => line = format!("{line:FORMS$}{word}"),
                false => line.extend([" ", word]),
            }
        }
        text.extend([line.as_str(), "\n"]);
    }
    text += "Words for mount(8), systemd and fstab (x-*, _netdev, nofail, noauto, user, defaults, \
             ...) are\nskipped.";
    text
}

/// An address on this machine alone, as "127.0.0.1:9100".
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| format!("'{text}' is no address: write it as 127.0.0.1:9100"))?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err(format!(
            "{address} can be reached by other machines, and there is no password: use 127.0.0.1"
        ))
    }
}

fn size(value: &OsStr) -> Result<u64, String> {
    sizes::parse_size(&value.to_string_lossy())
}

fn number(value: &OsStr) -> Option<u64> {
    value.to_str()?.parse().ok()
}

/// A period in seconds.
fn period(value: &OsStr) -> Option<Duration> {
    let seconds = value.to_str()?.parse::<f64>().ok()?;
    (0.1..=86400.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

/// A path that is valid in any directory.
fn full_path(value: &OsStr) -> Result<PathBuf, String> {
    std::path::absolute(value).map_err(|e| e.to_string())
}

/// The address of a store. `refused` says why it cannot be one of a snapshot.
fn address(value: &OsStr, refused: &str) -> Result<Address, String> {
    let address = Address::required(value.as_ref()).map_err(|e| e.to_string())?;
    if address.snapshot.is_some() { Err(refused.into()) } else { Ok(address) }
}

/// Mounts only one view of the files.
fn set_view(draft: &mut Draft, kind: &str, value: &OsStr) -> Result<(), String> {
    let is_name = |part: &str| !part.is_empty() && !part.starts_with('.');
    let name = value.to_str().filter(|name| name.split('/').all(is_name));
    let directory = view_names::directory_name(name.ok_or("write the name of one")?);
    let root = &mut draft.options.mount.root;
    if !root.as_os_str().is_empty() {
        return Err("one view is mounted, and another one was named before".into());
    }
    *root = [".kvfs", kind, &*directory].iter().collect();
    Ok(())
}
