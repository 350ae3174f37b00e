//! The `-o` options of a mount: those of mount(8), those of FUSE, and a few of our own.
//!
//! Words that are for others (mount(8), systemd, `/etc/fstab`) are skipped; any other unknown word
//! is an error that names it, for an option that silently does nothing is worse than none.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use kvfs_fuse::{AccessTimes, MountOptions, Policy, TransportChoice, view_names};
use places::Address;
use places::following::{self, Following};
use places::publishing::{self, Publication};

use crate::failures;
use crate::mount_words::{is_for_others, split, takes_a_value, takes_no_value};
use crate::network::Network;
use crate::output::{Exit, Failure, Outcome};
use crate::scrubbing::Interval;
use crate::sizes;
use crate::store::Budget;

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
    /// Others than their users may look into views.
    pub open_views: bool,
    /// Bytes of small files that a new directory reserves numbers for. Without it, the value that
    /// the store was made with holds.
    pub zone_size: Option<u64>,
    /// Where figures are given to Prometheus.
    pub metrics: Option<SocketAddr>,
    /// Where clients of the socket's commands are served, too.
    pub network: Network,
    /// Socket at which snapshots are served to mounts that have not the store.
    pub serve: Option<PathBuf>,
    /// They may begin transactions, too.
    pub serve_write: bool,
    /// The interval at which everything is read again. Without it, nothing is read by itself.
    pub scrub: Option<Interval>,
    /// Where the store is published by itself.
    pub publish: Option<Publication>,
    /// It is said how often, but not where to.
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
        Budget { memory: self.memory, cache: self.cache_size, offline: self.offline }
    }
}

/// Reads the words of all `-o` in order; a later one wins.
pub fn parse(lists: &[OsString]) -> Outcome<Options> {
    let mut options = Options {
        policy: Policy { transport: TransportChoice::Auto, ..Policy::default() },
        ..Options::default()
    };
    let mut allowed_permissions_off = false;
    let (mut publish_every, mut syncs_there) = (None, None);
    for word in lists.iter().flat_map(|list| split(list.clone())) {
        let bad = |why: String| {
            Failure::new(Exit::Usage, format!("mount option '{}': {why}", word.to_string_lossy()))
        };
        let bytes = word.clone().into_vec();
        let (name, value) = match bytes.iter().position(|&b| b == b'=') {
            Some(at) => (&bytes[..at], Some(OsString::from_vec(bytes[at + 1..].to_vec()))),
            None => (&bytes[..], None),
        };
        let name = String::from_utf8_lossy(name).into_owned();
        let mount = &mut options.mount;
        match (name.as_str(), value) {
            ("ro", None) => mount.read_only = true,
            ("write", None) => {
                options.writing.get_or_insert(Writing { take: false });
            }
            ("take", None) => options.writing = Some(Writing { take: true }),
            ("rw", None) => mount.read_only = false,
            ("allow_other", None) => mount.allow_other = true,
            ("open_views", None) => options.open_views = true,
            ("default_permissions", None) => allowed_permissions_off = false,
            ("nodefault_permissions" | "no_default_permissions", None) => {
                allowed_permissions_off = true
            }
            ("suid", None) => mount.suid = true,
            ("nosuid", None) => mount.suid = false,
            ("dev", None) => mount.dev = true,
            ("nodev", None) => mount.dev = false,
            ("exec", None) => mount.exec = true,
            ("noexec", None) => mount.exec = false,
            ("sync", None) => mount.synchronous = true,
            ("async", None) => mount.synchronous = false,
            ("dirsync", None) => mount.dir_synchronous = true,
            ("relatime" | "atime" | "nostrictatime", None) => {
                mount.access_times = AccessTimes::Relative
            }
            ("noatime", None) => mount.access_times = AccessTimes::Never,
            ("strictatime" | "norelatime", None) => {
                return Err(bad("refused: the kernel answers most reads out of its cache, and those would not count".into())
                    .hint("use relatime, or noatime"));
            }
            // Listing a directory never changes its access time.
            ("diratime" | "nodiratime", None) => {}
            ("writeback", None) => options.policy.write_back = true,
            ("nowriteback", None) => options.policy.write_back = false,
            ("cache", Some(value)) => {
                options.policy.write_back = match value.to_str() {
                    Some("through" | "auto") => false,
                    Some("back") => true,
                    _ => return Err(bad("write through, back or auto".into())),
                };
            }
            ("xattr" | "user_xattr", None) => options.policy.xattrs = true,
            ("noxattr" | "nouser_xattr", None) => options.policy.xattrs = false,
            ("btime", None) => options.policy.birth_times = true,
            ("nobtime", None) => options.policy.birth_times = false,
            ("fsname", Some(value)) => options.source = Some(value),
            ("subtype", Some(value)) => {
                let fits = |s: &String| {
                    s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
                };
                mount.subtype = value
                    .into_string()
                    .ok()
                    .filter(fits)
                    .ok_or_else(|| bad("a subtype is letters, digits, - _ .".into()))?;
            }
            ("cache_size", Some(value)) => {
                options.cache_size = Some(sizes::parse_size(&value.to_string_lossy()).map_err(bad)?)
            }
            ("memory", Some(value)) => {
                options.memory = Some(sizes::parse_size(&value.to_string_lossy()).map_err(bad)?)
            }
            ("zone_size", Some(value)) => {
                options.zone_size = Some(sizes::parse_size(&value.to_string_lossy()).map_err(bad)?)
            }
            ("log", Some(value)) => options.log = Some(PathBuf::from(value)),
            ("metrics", Some(value)) => {
                let address = parse_address(&value.to_string_lossy());
                options.metrics = Some(address.map_err(bad)?);
            }
            ("snapshot" | "clone", Some(value)) => {
                let is_name = |part: &str| !part.is_empty() && !part.starts_with('.');
                let view = value.to_str().filter(|v| v.split('/').all(is_name));
                let view = view.ok_or_else(|| bad("write the name of one".into()))?;
                let view = &*view_names::directory_name(view);
                if !mount.root.as_os_str().is_empty() {
                    return Err(
                        bad("one view is mounted, and another one was named before".into()),
                    );
                }
                mount.root = [".kvfs", &name, view].iter().collect();
                mount.read_only |= name == "snapshot";
            }
            ("listen", Some(value)) => {
                let address = value.to_str().and_then(|text| text.parse().ok());
                let wrong = || bad("write an address and a port, as 127.0.0.1:6379".into());
                options.network.listen = Some(address.ok_or_else(wrong)?);
            }
            ("serve", Some(value)) => {
                let path = value.as_bytes().strip_prefix(b"unix:").map(OsStr::from_bytes);
                let path = path.map(PathBuf::from).filter(|path| path.is_absolute());
                let wrong = || bad("write unix: and the path of a socket in full".into());
                options.serve = Some(path.ok_or_else(wrong)?);
            }
            ("serve_write", None) => options.serve_write = true,
            ("max_clients", Some(value)) => {
                let most = value.to_str().and_then(|text| text.parse::<usize>().ok());
                let most = most.filter(|most| (1..=1_000_000).contains(most));
                let wrong = || bad("write a number of connections, from 1 to 1000000".into());
                options.network.max_clients = Some(most.ok_or_else(wrong)?);
            }
            ("password_file" | "tls_cert" | "tls_key", Some(value)) => {
                let path = std::path::absolute(value).map_err(|e| bad(e.to_string()))?;
                let network = &mut options.network;
                let place = match name.as_str() {
                    "password_file" => &mut network.password_file,
                    "tls_cert" => &mut network.tls_cert,
                    _ => &mut network.tls_key,
                };
                *place = Some(path);
            }
            ("scrub", Some(value)) => {
                let days = value
                    .to_str()
                    .and_then(|v| v.parse::<f64>().ok())
                    .filter(|d| *d > 0.0 && *d <= 36500.0);
                let days = days.ok_or_else(|| bad("write a number of days".into()))?;
                options.scrub.get_or_insert_default().every =
                    std::time::Duration::from_secs_f64(days * 86400.0);
            }
            ("scrub_rate", Some(value)) => {
                let rate = value
                    .to_str()
                    .and_then(|v| v.parse::<u64>().ok())
                    .filter(|n| (1..=1 << 20).contains(n));
                let rate = rate.ok_or_else(|| bad("write a number of MiB a second".into()))?;
                options.scrub.get_or_insert_default().bytes_per_second = rate << 20;
            }
            ("noscrub", None) => options.scrub = None,
            ("publish", Some(value)) => {
                let to = Address::required(value.as_ref()).map_err(|e| bad(e.to_string()))?;
                if to.snapshot.is_some() {
                    return Err(bad("a store is published, and not a snapshot".into()));
                }
                let (every, syncs_there) = (publishing::EVERY, false);
                options.publish = Some(Publication { to, every, syncs_there });
            }
            ("follow", Some(value)) => {
                let of = Address::required(value.as_ref()).map_err(|e| bad(e.to_string()))?;
                if of.snapshot.is_some() {
                    return Err(bad("a store is followed, and not a snapshot".into()));
                }
                options.follow = Some(Following { of, every: following::EVERY });
            }
            ("publish_every", Some(value)) => {
                let wrong = || bad("write a number of seconds, 0.1 to 86400".into());
                publish_every = Some(period(&value).ok_or_else(wrong)?);
            }
            ("durability", Some(value)) => {
                syncs_there = Some(match value.to_str() {
                    Some("local") => false,
                    Some("remote") => true,
                    _ => return Err(bad("write local or remote".into())),
                });
            }
            ("follow_every", Some(value)) => {
                let never = (value == "0").then_some(Duration::ZERO);
                let wrong = || bad("write a number of seconds, 0.1 to 86400, or 0: never".into());
                options.follow_every = Some(never.or_else(|| period(&value)).ok_or_else(wrong)?);
            }
            ("offline", None) => options.offline = true,
            ("keeper", None) => options.keeper = true,
            ("nokeeper", None) => options.keeper = false,
            ("transport", Some(value)) => {
                options.policy.transport = match value.to_str() {
                    Some("auto") => TransportChoice::Auto,
                    Some("uring") => TransportChoice::Uring,
                    Some("device") => TransportChoice::Device,
                    _ => return Err(bad("write auto, uring or device".into())),
                };
            }
            ("threads", Some(value)) => {
                let number =
                    value.to_str().and_then(|v| v.parse().ok()).filter(|n| (1..=64).contains(n));
                options.policy.threads =
                    number.ok_or_else(|| bad("write a number from 1 to 64".into()))?;
            }
            ("", None) => {}
            (name, _) if is_for_others(name) => {}
            (_, Some(_)) if takes_no_value(&name) => return Err(bad("takes no value".into())),
            (_, None) if takes_a_value(&name) => return Err(bad("needs a value".into())),
            _ => return Err(bad("unknown".into()).hint("`kvfs mount --help` lists the options")),
        }
    }
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
        (None, every) => options.publishes_nothing = every.is_some() || syncs_there == Some(true),
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
    options.mount.default_permissions = !allowed_permissions_off;
    if options.mount.allow_other && !options.mount.default_permissions {
        let refused = "allow_other without default_permissions is refused: permissions would not be checked, and every user could do everything";
        return Err(Failure::new(Exit::Usage, refused).hint("leave out nodefault_permissions"));
    }
    Ok(options)
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

/// A period in seconds.
fn period(value: &OsStr) -> Option<Duration> {
    let seconds = value.to_str()?.parse::<f64>().ok()?;
    (0.1..=86400.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Outcome<Options> {
        parse(&[text.into()])
    }

    #[test]
    fn safe_unless_asked_otherwise() {
        let m = read("rw").expect("valid").mount;
        assert!(
            !m.suid && !m.dev && m.exec && m.default_permissions && !m.allow_other && !m.read_only
        );
        let m = read("suid,dev,noexec,ro").expect("valid").mount;
        assert!(m.suid && m.dev && !m.exec && m.read_only);
        assert!(!read("suid,nosuid").expect("valid").mount.suid, "the later one wins");
    }

    #[test]
    fn sharing_without_permission_checks_is_refused() {
        assert!(read("allow_other").is_ok());
        assert!(read("nodefault_permissions").is_ok());
        let refused = read("nodefault_permissions,allow_other").expect_err("refused");
        assert_eq!(refused.exit, Exit::Usage);
    }

    #[test]
    fn names_may_contain_commas_and_an_empty_subtype_is_one() {
        let o = read(r"fsname=a\,b\\c,subtype=").expect("valid");
        assert_eq!(o.source, Some(r"a,b\c".into()));
        assert_eq!(o.mount.subtype, "");
        assert!(read("subtype=a b").is_err());
    }

    #[test]
    fn words_for_others_are_skipped_and_unknown_ones_named() {
        assert!(
            read("defaults,_netdev,nofail,noauto,user,x-systemd.automount,x-gvfs-show,comment=a,")
                .is_ok()
        );
        assert!(read("frobnicate").expect_err("unknown").message.contains("frobnicate"));
        assert!(read("ro=1").expect_err("no value").message.contains("takes no value"));
        assert!(read("memory").expect_err("value").message.contains("needs a value"));
        assert_eq!(read("memory=1G").expect("valid").memory, Some(1 << 30));
        assert!(read("threads=0").is_err());
        assert_eq!(read("zone_size=0").expect("valid").zone_size, Some(0));
        assert!(read("zone_size=large").is_err() && read("zone_size=-1").is_err());
        assert!(read("metrics=127.0.0.1:9100").expect("valid").metrics.is_some());
        assert!(read("metrics=0.0.0.0:9100").is_err() && read("metrics").is_err());
        assert_eq!(read("threads=4").expect("valid").policy.threads, 4);
    }

    #[test]
    fn a_scrub_by_itself_is_asked_for() {
        assert_eq!(read("rw").expect("valid").scrub, None);
        let day = std::time::Duration::from_secs(86400);
        let scrub = read("scrub=7").expect("valid").scrub.expect("asked for");
        assert_eq!((scrub.every, scrub.bytes_per_second), (7 * day, 16 << 20));
        let scrub = read("scrub_rate=3,scrub=0.5").expect("valid").scrub.expect("asked for");
        assert_eq!((scrub.every, scrub.bytes_per_second), (day / 2, 3 << 20));
        assert_eq!(read("scrub=7,noscrub").expect("valid").scrub, None);
        for wrong in
            ["scrub", "scrub=0", "scrub=-1", "scrub=x", "scrub_rate=0", "scrub_rate=", "scrub=nan"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn where_a_store_is_published_is_a_place_and_not_a_snapshot_of_it() {
        let publish =
            read("publish_every=2.5,publish=dir:/srv/stores/work").expect("valid").publish;
        let publish = publish.expect("asked for");
        assert_eq!(publish.to.to_string(), "dir:/srv/stores/work");
        assert_eq!(publish.every, Duration::from_millis(2500));
        assert_eq!(read("rw").expect("valid").publish, None);
        for wrong in [
            "publish",
            "publish=/srv/stores/work",
            "publish=dir:/srv/stores/work@monday",
            "publish=dir:/srv/stores/work,ro",
            "publish=dir:/srv/stores/work,publish_every=0",
            "publish=dir:/srv/stores/work,publish_every=inf",
        ] {
            assert_eq!(read(wrong).expect_err(wrong).exit, Exit::Usage, "{wrong}");
        }
        // Options that belong together may come from a file, a line for each.
        let alone = read("publish_every=10").expect("valid by itself");
        assert_eq!(alone.check().expect_err("it says nowhere").exit, Exit::Usage);
        assert!(read("publish_every=10,write").expect("valid").check().is_ok());
    }

    #[test]
    fn a_store_is_written_at_its_address_when_asked_to() {
        assert_eq!(read("rw").expect("valid").writing, None);
        assert_eq!(read("write").expect("valid").writing, Some(Writing { take: false }));
        assert_eq!(read("take,write").expect("valid").writing, Some(Writing { take: true }));
        for wrong in ["write,ro", "write=1", "take=no"] {
            assert_eq!(read(wrong).expect_err(wrong).exit, Exit::Usage, "{wrong}");
        }
    }

    #[test]
    fn writes_go_through_unless_asked_otherwise() {
        assert!(!read("rw").expect("valid").policy.write_back);
        assert!(read("writeback").expect("valid").policy.write_back);
        assert!(!read("writeback,nowriteback").expect("valid").policy.write_back);
        for (cache, gathers) in [("through", false), ("back", true), ("auto", false)] {
            assert_eq!(read(&format!("cache={cache}")).expect("valid").policy.write_back, gathers);
        }
        assert!(!read("cache=back,cache=auto").expect("valid").policy.write_back);
        for wrong in ["cache", "cache=", "cache=both", "transport=uring,cache=back"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn requests_come_over_io_uring_when_asked_for_and_writes_are_not_gathered() {
        assert_eq!(read("rw").expect("valid").policy.transport, TransportChoice::Auto);
        assert_eq!(
            read("transport=device,writeback").expect("valid").policy.transport,
            TransportChoice::Device
        );
        assert_eq!(
            read("transport=uring").expect("valid").policy.transport,
            TransportChoice::Uring
        );
        assert!(read("transport=auto,writeback").is_ok());
        let refused = read("transport=uring,writeback").expect_err("refused");
        assert_eq!(refused.exit, Exit::Usage);
        assert!(refused.message.contains("io_uring"), "{}", refused.message);
        assert!(read("transport").is_err() && read("transport=tcp").is_err());
    }

    #[test]
    fn access_times_are_kept_as_asked_or_refused() {
        assert_eq!(read("rw").expect("valid").mount.access_times, AccessTimes::Relative);
        assert_eq!(read("noatime").expect("valid").mount.access_times, AccessTimes::Never);
        let refused = read("strictatime").expect_err("refused");
        assert_eq!(refused.exit, Exit::Usage);
        assert!(refused.message.contains("cache"), "{}", refused.message);
    }

    #[test]
    fn only_addresses_of_this_machine_are_taken() {
        assert!(parse_address("127.0.0.1:9100").is_ok());
        assert!(parse_address("[::1]:0").is_ok());
        for wrong in
            ["0.0.0.0:9100", "10.0.0.1:9100", "[::]:9100", "9100", "localhost", "127.0.0.1", ""]
        {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
