//! `kvfs doctor`: checks whether this machine has what the store needs and can use, and suggests
//! how to mend it. Everything is read from files below one root, so that a test can simulate a
//! machine. A place in object storage is queried directly (`object_storage`).

mod object_storage;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use kvdb::RemoteStore;
use places::Address;
use serde_json::{Value, json};

use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::show_message;

/// Check whether this machine, or an object store, meets the requirements of KVFS, and say how to
/// fix what does not.
#[derive(clap::Args)]
#[command(after_help = "\
With an ADDRESS, checks the place of that store: the credentials and their source, whether it can \
be reached, the latency of a request, its clock, the conditional writes that let a store have \
only one writer at a time (40 races of eight writers), ranges and listings, bucket rules that \
would delete or move objects, and the store of that name. Objects written for the check are \
deleted again.

  kvfs doctor
  kvfs doctor s3://bucket/work
  kvfs doctor dir:/srv/stores/work --json

Each line has a verdict: `ok`; `note`, an optional feature is not available; `warning`, a feature \
is degraded, or available only to root; `error`, a store cannot be mounted or used. The exit code \
is 1 if there is an error, with --strict also for a warning.")]
pub struct Args {
    /// Address of a store in object storage, existing or planned: dir:FOLDER/NAME or
    /// s3://BUCKET/NAME.
    #[arg(conflicts_with_all = ["unprivileged", "root"])]
    address: Option<PathBuf>,
    /// Check as for a user without root privileges.
    #[arg(long)]
    unprivileged: bool,
    /// Exit with 1 for warnings, too.
    #[arg(long)]
    strict: bool,
    /// Check the system below this directory instead of /, such as the root of a container.
    #[arg(long, value_name = "DIRECTORY", default_value = "/")]
    root: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Ok,
    Note,
    Warning,
    Error,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Warning => "warning",
            Verdict::Error => "error",
        }
    }
}

struct Finding {
    what: &'static str,
    verdict: Verdict,
    found: String,
    /// The suggested remedy.
    mend: Option<String>,
}

fn good(what: &'static str, found: impl Into<String>) -> Finding {
    Finding { what, verdict: Verdict::Ok, found: found.into(), mend: None }
}

fn bad(
    what: &'static str,
    verdict: Verdict,
    found: impl Into<String>,
    mend: impl Into<String>,
) -> Finding {
    Finding { what, verdict, found: found.into(), mend: Some(mend.into()) }
}

/// The machine to check.
struct Machine<'a> {
    root: &'a Path,
    /// Judge for a user other than root.
    user: bool,
}

/// Major and minor number of a kernel.
type Release = (u32, u32);

/// The oldest kernel on which everything works: `kvfs run` moves mounts by descriptors.
const OLDEST: Release = (5, 2);
/// The first kernel with FUSE requests over io_uring.
const RINGS: Release = (6, 14);
/// Pages that a request should have room for: 1 MiB.
const PAGES: u64 = 256;
/// The readahead that a mount should have, in KiB.
const READAHEAD: u64 = 1024;
const OPEN_FILES: u64 = 1024;

impl Machine<'_> {
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.at(path)).ok().map(|text| text.trim().to_string())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// The verdict on a feature that only users other than root lack.
    fn for_users(&self) -> Verdict {
        if self.user { Verdict::Warning } else { Verdict::Note }
    }

    fn release(&self) -> Option<Release> {
        let text = self.read("proc/sys/kernel/osrelease")?;
        let mut numbers = text.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }

    fn kernel(&self) -> Finding {
        let what = "kernel";
        match (self.release(), self.read("proc/sys/kernel/osrelease")) {
            (Some(release), Some(text)) if release >= OLDEST => good(what, format!("Linux {text}")),
            (Some(_), Some(text)) => bad(
                what,
                Verdict::Error,
                format!("Linux {text} is too old"),
                format!("Linux {}.{} or later is wanted", OLDEST.0, OLDEST.1),
            ),
            _ => bad(
                what,
                Verdict::Error,
                "the kernel does not say which it is",
                "mount /proc: mount -t proc proc /proc",
            ),
        }
    }

    fn fuse(&self) -> Finding {
        let what = "FUSE";
        let known = self.read("proc/filesystems").is_some_and(|text| {
            text.lines().any(|line| line.split_whitespace().last() == Some("fuse"))
        });
        let device = fs::metadata(self.at("dev/fuse"));
        match device {
            Ok(meta) if !meta.file_type().is_char_device() && self.root == Path::new("/") => bad(
                what,
                Verdict::Error,
                "/dev/fuse is no device",
                "remove it, and: mknod -m 666 /dev/fuse c 10 229",
            ),
            Ok(meta) if self.user && meta.mode() & 0o006 != 0o006 => bad(
                what,
                Verdict::Warning,
                format!("/dev/fuse is not for all users (mode {:04o})", meta.mode() & 0o7777),
                "chmod 666 /dev/fuse",
            ),
            Ok(_) => good(what, "/dev/fuse is there"),
            Err(_) if known => bad(
                what,
                Verdict::Error,
                "the kernel has FUSE, and /dev/fuse is not there",
                "mknod -m 666 /dev/fuse c 10 229; for a container: --device /dev/fuse --cap-add SYS_ADMIN",
            ),
            Err(_) => bad(
                what,
                Verdict::Error,
                "the kernel has no FUSE, or has not loaded it",
                "modprobe fuse",
            ),
        }
    }

    fn fusermount(&self) -> Finding {
        let what = "fusermount3";
        let places = ["usr/bin/fusermount3", "bin/fusermount3", "usr/local/bin/fusermount3"];
        let found =
            places.iter().find_map(|place| Some((place, fs::metadata(self.at(place)).ok()?)));
        match found {
            Some((place, meta)) if meta.mode() & 0o4000 != 0 => good(what, format!("/{place}")),
            Some((place, _)) => bad(
                what,
                self.for_users(),
                format!("/{place} is not set-user-ID: only root can mount"),
                format!("chmod u+s /{place}, as root"),
            ),
            None => bad(
                what,
                self.for_users(),
                "it is not there: only root can mount",
                "install the package fuse3",
            ),
        }
    }

    fn others(&self) -> Finding {
        let what = "allow_other";
        let allowed = self
            .read("etc/fuse.conf")
            .is_some_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"));
        match allowed || !self.user {
            true => good(what, "mounts can be opened to other users"),
            false => bad(
                what,
                Verdict::Note,
                "only root can open a mount to other users",
                "the line user_allow_other in /etc/fuse.conf",
            ),
        }
    }

    fn name_spaces(&self) -> Finding {
        let what = "name spaces";
        let is = |path: &str, value: u64| self.number(path) == Some(value);
        let reason = if is("proc/sys/user/max_user_namespaces", 0) {
            Some("sysctl user.max_user_namespaces=10000")
        } else if is("proc/sys/kernel/unprivileged_userns_clone", 0) {
            Some("sysctl kernel.unprivileged_userns_clone=1")
        } else if is("proc/sys/kernel/apparmor_restrict_unprivileged_userns", 1) {
            Some("sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a profile for kvfs")
        } else {
            None
        };
        match reason {
            None => good(what, "users can make them, for kvfs run"),
            Some(mend) => bad(
                what,
                self.for_users(),
                "users cannot make them: kvfs run is for root, or with --chroot",
                mend,
            ),
        }
    }

    fn rings(&self) -> Finding {
        let what = "io_uring";
        let Some(release) = self.release().filter(|release| *release >= RINGS) else {
            return bad(
                what,
                Verdict::Note,
                "requests come by /dev/fuse",
                format!("with Linux {}.{} or later they can come over io_uring", RINGS.0, RINGS.1),
            );
        };
        let disabled = self.number("proc/sys/kernel/io_uring_disabled").unwrap_or(0);
        if disabled == 2 || disabled == 1 && self.user {
            return bad(
                what,
                Verdict::Warning,
                format!("the kernel forbids it (io_uring_disabled is {disabled})"),
                "sysctl kernel.io_uring_disabled=0",
            );
        }
        match self.read("sys/module/fuse/parameters/enable_uring").as_deref() {
            Some("Y" | "1") => {
                good(what, format!("Linux {}.{}, and FUSE may use it", release.0, release.1))
            }
            // Root enables it automatically when it mounts.
            Some(_) => bad(
                what,
                self.for_users(),
                "FUSE may not use it",
                "as root: echo Y >/sys/module/fuse/parameters/enable_uring",
            ),
            None => bad(
                what,
                Verdict::Note,
                "the kernel's FUSE was built without it",
                "a kernel with CONFIG_FUSE_IO_URING",
            ),
        }
    }

    fn pages(&self) -> Finding {
        let what = "max_pages_limit";
        match self.number("proc/sys/fs/fuse/max_pages_limit") {
            // Before Linux 6.13 the limit is fixed, and large enough.
            None => good(what, "256 pages, built in"),
            Some(pages) if pages >= PAGES => good(what, format!("{pages} pages")),
            Some(pages) => bad(
                what,
                Verdict::Warning,
                format!("{pages} pages: a write of 1 MiB comes in pieces, each atomic for itself"),
                format!("sysctl fs.fuse.max_pages_limit={PAGES}, and mount again"),
            ),
        }
    }

    fn limits(&self) -> Finding {
        let what = "open files";
        let limit = self.read("proc/self/limits").and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("Max open files"))?;
            // The daemon raises its soft limit to the hard limit, which is the second one.
            let hard = line.split_whitespace().nth(4)?;
            Some(if hard == "unlimited" { u64::MAX } else { hard.parse().ok()? })
        });
        match limit {
            Some(u64::MAX) => good(what, "no limit"),
            Some(limit) if limit >= OPEN_FILES => good(what, format!("{limit}")),
            Some(limit) => bad(
                what,
                Verdict::Warning,
                format!("{limit} are few for the clients of a socket"),
                format!("as root: ulimit -n {OPEN_FILES}, or LimitNOFILE= in the unit"),
            ),
            None => bad(what, Verdict::Note, "the limit is not known", "mount /proc"),
        }
    }

    /// Checks the readahead of each mount.
    fn readahead(&self) -> Vec<Finding> {
        let what = "readahead";
        let table = self.read("proc/self/mountinfo").unwrap_or_default();
        let mounts = table.lines().filter_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let mut place = place.split(' ').skip(2);
            let (device, _, mount_point) = (place.next()?, place.next()?, place.next()?);
            kind.starts_with("fuse.kvfs ").then_some((device, mount_point))
        });
        mounts
            .filter_map(|(device, mount_point)| {
                let path = format!("sys/class/bdi/{device}/read_ahead_kb");
                let kib = self.number(&path)?;
                Some(match kib >= READAHEAD {
                    true => good(what, format!("{kib} KiB on {mount_point}")),
                    false => bad(
                        what,
                        Verdict::Warning,
                        format!("{kib} KiB on {mount_point}: reading in order is slower than it could be"),
                        format!("as root: echo {READAHEAD} >/{path}"),
                    ),
                })
            })
            .collect()
    }

    fn all(&self) -> Vec<Finding> {
        let mut all = vec![
            self.kernel(),
            self.fuse(),
            self.fusermount(),
            self.others(),
            self.name_spaces(),
            self.rings(),
            self.pages(),
            self.limits(),
        ];
        all.extend(self.readahead());
        all
    }
}

/// Returns the findings about the machine.
fn of_machine(args: &Args) -> Outcome<Vec<Finding>> {
    if !args.root.is_dir() {
        return Err(Failure::new(Exit::NotFound, format!("{} is no directory", args.root.shown())));
    }
    let user = args.unprivileged || !rustix::process::geteuid().is_root();
    Ok(Machine { root: &args.root, user }.all())
}

/// Returns the findings about a place in object storage.
fn of_address(word: &Path) -> Outcome<Vec<Finding>> {
    let address = Address::required(word)?;
    if let Some(snapshot) = &address.snapshot {
        let what =
            format!("{address} names the snapshot {snapshot}, and a place has no more of it");
        return Err(Failure::new(Exit::Usage, what).hint("leave out what begins with @"));
    }
    RemoteStore::check_name(&address.name).map_err(|e| Failure::new(Exit::Usage, e.to_string()))?;
    Ok(object_storage::findings(&address))
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let all = match &args.address {
        Some(address) => of_address(address)?,
        None => of_machine(&args)?,
    };
    let mut text = String::new();
    for finding in &all {
        text.push_str(&format!(
            "{:8} {:16} {}\n",
            finding.verdict.name(),
            finding.what,
            // Escape line ends, so that a name cannot begin a new line.
            show_message(&finding.found)
        ));
        if let Some(mend) = &finding.mend {
            text.push_str(&format!("{:25} → {}\n", "", show_message(mend)));
        }
    }
    let json: Vec<Value> = all
        .iter()
        .map(|f| json!({"check": f.what, "verdict": f.verdict.name(), "found": f.found, "mend": f.mend}))
        .collect();
    let worst = all.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok);
    let limit = if args.strict { Verdict::Warning } else { Verdict::Error };
    output.print(text, json!({"healthy": worst < limit, "findings": json}))?;
    if worst < limit {
        return Ok(());
    }
    let count = all.iter().filter(|finding| finding.verdict >= limit).count();
    let (things, are) = if count == 1 { ("thing", "is") } else { ("things", "are") };
    Err(Failure::new(Exit::Failed, format!("{count} {things} {are} to be mended")))
}
