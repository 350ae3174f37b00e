//! Records which daemon serves which mount: one small file each, in a directory that does not
//! survive a reboot.
//!
//! A record is named after the mount's device number ("0:45.json"), which the kernel reports and
//! which is the same whatever path leads into the mount (bind mounts, private name spaces,
//! directories inside it). It names the process, the store, and the socket. A daemon that died
//! leaves its record; a record whose process has ended is never trusted. If there is a keeper, it
//! starts another daemon: a command that runs between the two waits for it, as programs that use
//! the mount do.
//!
//! The kernel may reuse the number of an unmounted file system while its daemon is still closing
//! the store. So from the end of the mount until the end of the process, the record is kept under
//! the number and the process ("0:45.1234.json"): the daemon moves it there, or the next daemon
//! that gets the number does.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvfs_fuse::mounts::{self, MountEntry};
use rustix::process::{Pid, PidfdFlags};
use serde_json::{Value, json};

use crate::support::serving::deaths::BegunAnew;
use crate::support::terminal::text::Shown;

/// The time limit of waiting for a daemon that follows another one.
const PATIENCE: Duration = Duration::from_secs(20);
/// The polling interval of that wait.
const LOOK: Duration = Duration::from_millis(5);

/// One mount and its daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// "major:minor" of the mount.
    pub device: String,
    pub pid: i32,
    /// When the process started, in ticks since boot: together with the pid, this identifies one
    /// process permanently.
    pub started: u64,
    pub store: PathBuf,
    /// Device and inode of the store's file, independent of its current name.
    pub file: Option<(u64, u64)>,
    pub mount_point: PathBuf,
    /// The source of the mount in the table of mounts.
    pub source: PathBuf,
    /// True if the mount has ended, and the process is closing the store.
    pub closing: bool,
    pub socket: Option<PathBuf>,
    /// The address of the Prometheus metrics, like "127.0.0.1:9100".
    pub metrics: Option<String>,
    /// The address at which keys are served over TCP.
    pub listen: Option<String>,
    /// The version of the handover format for a program that takes over the mount.
    pub handover: Option<u32>,
    pub log: Option<PathBuf>,
    /// The repairs done when the store was opened, in one line, or `None` after a clean shutdown.
    pub recovery: Option<String>,
    /// The number of times that a keeper has restarted the daemon, or `None` without a keeper.
    pub begun_anew: Option<BegunAnew>,
    /// The keeper's pid, and when it started.
    pub keeper: Option<(i32, u64)>,
    /// The key of the durable transaction that is mounted, by which another daemon can continue it.
    pub key: Option<String>,
    /// A failure while the daemon closed the store, kept for `kvfs umount` to report.
    pub failure: Option<String>,
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// Returns the directory of the records: the machine's for root, otherwise the user's.
pub fn directory() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/run/kvfs");
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|d| !d.is_empty()) {
        Some(dir) => PathBuf::from(dir).join("kvfs"),
        None => std::env::temp_dir().join(format!("kvfs-{}", rustix::process::geteuid().as_raw())),
    }
}

/// Creates the directory of the records of daemons, which other users cannot read.
pub fn make_directory() -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let directory = directory();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    // In a shared directory another user could have made it first, to read its content.
    let owner = fs::symlink_metadata(&directory)?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} belongs to user {owner}", directory.shown()),
        ));
    }
    Ok(directory)
}

/// Removes the remains of killed daemons: sockets, drafts of records, empty logs, and logs and
/// records that are a week old.
pub fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        // The name is like "1234.log" or "0:45.1234.json".
        let stem = path.file_stem().and_then(|s| s.to_str());
        let pid = stem.and_then(|s| s.rsplit('.').next()).and_then(|s| s.parse::<i32>().ok());
        let ended = pid.is_some_and(|pid| start_of(pid).is_none());
        let Some(metadata) = entry.metadata().ok().filter(|_| ended) else { continue };
        let old = metadata
            .modified()
            .is_ok_and(|m| m.elapsed().is_ok_and(|age| age > Duration::from_secs(7 * 24 * 3600)));
        let useless = match path.extension().and_then(|e| e.to_str()) {
            // A draft is a record whose writer was killed before it had its name.
            Some("sock" | "new") => true,
            Some("log") => metadata.len() == 0 || old,
            Some("json") => old,
            _ => false,
        };
        if useless {
            let _ = fs::remove_file(path);
        }
    }
}

/// Locks the records while they are examined and changed, so that the record that is removed is the
/// one that was examined.
fn lock(directory: &Path) -> io::Result<fs::File> {
    let lock = fs::File::open(directory)?;
    rustix::io::retry_on_intr(|| {
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
    })?;
    Ok(lock)
}

impl Record {
    pub fn of_this_process(device: &str, store: &Path, mount_point: &Path) -> Record {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Record {
            device: device.into(),
            pid,
            started: start_of(pid).unwrap_or(0),
            store: store.into(),
            file: file_at(store),
            mount_point: mount_point.into(),
            source: store.into(),
            closing: false,
            socket: None,
            metrics: None,
            listen: None,
            handover: None,
            log: None,
            recovery: None,
            begun_anew: None,
            keeper: None,
            key: None,
            failure: None,
        }
    }

    fn path_of(device: &str) -> PathBuf {
        directory().join(format!("{device}.json"))
    }

    fn path(&self) -> PathBuf {
        match self.closing {
            true => directory().join(format!("{}.{}.json", self.device, self.pid)),
            false => Record::path_of(&self.device),
        }
    }

    fn is_of(&self, other: &Record) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }

    /// Writes the record atomically. The record of an earlier daemon under the same number is put
    /// aside. If the mount of this process has ended and a mount of another daemon has the number
    /// by now, this record is the one that is put aside: a program that takes over a mount may
    /// write it late.
    pub fn write(&self) -> io::Result<()> {
        let directory = make_directory()?;
        let _lock = lock(&directory)?;
        let other = Record::read_as_it_is(&self.device).filter(|r| !r.is_of(self) && r.is_alive());
        if let Some(mut other) = other {
            if other.follows(self, &mounts::mounts().unwrap_or_default()) {
                return Record { closing: true, ..self.clone() }.write_in(&directory);
            }
            other.closing = true;
            other.write_in(&directory)?;
        }
        self.write_in(&directory)
    }

    /// Returns whether the number is that of this record's mount, and not of `other` any more. If
    /// neither mount is in `mounts`, because it is in another mount name space, the answer is no.
    fn follows(&self, other: &Record, mounts: &[MountEntry]) -> bool {
        mounts.iter().any(|m| self.is_at(m)) && !mounts.iter().any(|m| other.is_at(m))
    }

    fn is_at(&self, m: &MountEntry) -> bool {
        m.device == self.device && m.is_fuse() && m.source == self.source.as_os_str()
    }

    fn write_in(&self, directory: &Path) -> io::Result<()> {
        let draft = directory.join(format!("{}.{}.new", self.device, self.pid));
        fs::write(&draft, self.to_json().to_string())?;
        fs::rename(&draft, self.path())
    }

    /// Puts the record aside after the end of the mount, since another file system may get its
    /// number from now on.
    pub fn put_aside(&mut self) -> io::Result<()> {
        let directory = make_directory()?;
        let _lock = lock(&directory)?;
        self.closing = true;
        // Write the new file before the old one is removed, so that there is always at least one.
        self.write_in(&directory)?;
        match Record::read_as_it_is(&self.device).is_some_and(|r| r.is_of(self)) {
            true => fs::remove_file(Record::path_of(&self.device)),
            false => Ok(()),
        }
    }

    /// Removes the record, at either place, if it still belongs to this process.
    pub fn remove(&self) {
        let Ok(_lock) = lock(&directory()) else { return };
        for closing in [false, true] {
            let path = Record { closing, ..self.clone() }.path();
            if Record::read_file(&path).is_some_and(|r| r.is_of(self)) {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Returns the record that the same process has left, at the mount's number or aside.
    pub fn left(&self) -> Option<Record> {
        let places = [true, false].map(|closing| Record { closing, ..self.clone() }.path());
        places.iter().find_map(|path| Record::read_file(path).filter(|r| r.is_of(self)))
    }

    /// Returns the record of a mount. If its daemon has died and another one follows, waits for
    /// that.
    pub fn read(device: &str) -> Option<Record> {
        Record::read_as_it_is(device).map(Record::followed)
    }

    /// Returns whether the last daemon of a mount has died and no keeper is there to start another
    /// one. Does not wait.
    pub fn has_ended(device: &str) -> bool {
        let Some(record) = Record::read_as_it_is(device) else { return false };
        let is_kept = record.keeper.is_some_and(|(pid, started)| start_of(pid) == Some(started));
        !record.is_alive() && !is_kept
    }

    fn read_as_it_is(device: &str) -> Option<Record> {
        Record::read_file(&Record::path_of(device))
    }

    /// Returns the record of the daemon that follows this one, if this one has died and has a
    /// keeper. Waits for it, unless the keeper has ended or is stopped.
    fn followed(self) -> Record {
        let begun = Instant::now();
        let mut now = self;
        while let Some((keeper, started)) = now.keeper.filter(|_| !now.closing && !now.is_alive()) {
            // The daemon that follows must not wait for itself.
            let is_ours = [Some(rustix::process::getpid()), rustix::process::getppid()]
                .contains(&Pid::from_raw(keeper));
            let keeps = start_of(keeper) == Some(started) && !is_stopped(keeper) && !is_ours;
            if !keeps || begun.elapsed() > PATIENCE {
                break;
            }
            std::thread::sleep(LOOK);
            let Some(next) = Record::read_as_it_is(&now.device) else { break };
            now = next;
        }
        now
    }

    fn read_file(path: &Path) -> Option<Record> {
        Record::read_file_of(path, rustix::process::geteuid().as_raw())
    }

    /// Returns the process that keeps this one, which is its parent.
    pub fn keeper_of_this_process() -> Option<(i32, u64)> {
        let keeper = rustix::process::getppid()?.as_raw_nonzero().get();
        Some((keeper, start_of(keeper)?))
    }

    /// Reads a record on behalf of a user. Records of another user are ignored, since in a shared
    /// directory anyone could have been first. Only root can write to root's directory.
    fn read_file_of(path: &Path, user: u32) -> Option<Record> {
        let mut file = fs::File::open(path).ok()?;
        let owner = file.metadata().ok()?.uid();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok().filter(|_| user == 0 || user == owner)?;
        Record::from_json(&serde_json::from_slice(&bytes).ok()?)
    }

    /// Returns the records of all daemons that serve a mount.
    pub fn all() -> Vec<Record> {
        Record::of_living().into_iter().filter(|r| !r.closing).collect()
    }

    /// Returns the records of all running daemons, including those that are closing their store.
    pub fn of_living() -> Vec<Record> {
        let entries = fs::read_dir(directory()).into_iter().flatten().flatten();
        let records =
            entries.map(|e| e.path()).filter(|path| path.extension().is_some_and(|e| e == "json"));
        let records = records.filter_map(|path| Record::read_file(&path)).map(Record::followed);
        records.filter(Record::is_alive).collect()
    }

    /// Returns the living daemon that serves or closes the store at `path`, whatever name it was
    /// mounted by.
    pub fn of_store(path: &Path) -> Option<Record> {
        let file = file_at(path);
        Record::of_living().into_iter().find(|r| match (r.file, file) {
            (Some(theirs), Some(ours)) => theirs == ours,
            _ => r.store == path,
        })
    }

    /// Returns whether the store's file has been unlinked, so that its content is lost when the
    /// daemon ends.
    pub fn store_is_removed(&self) -> bool {
        let open = fs::read_dir(format!("/proc/{}/fd", self.pid)).into_iter().flatten().flatten();
        let files = open.filter_map(|fd| fs::metadata(fd.path()).ok());
        files
            .filter(|m| self.file == Some((m.dev(), m.ino())))
            .any(|m| m.is_file() && m.nlink() == 0)
    }

    pub fn is_alive(&self) -> bool {
        start_of(self.pid) == Some(self.started)
    }

    /// Returns where the store is mounted now. The device number alone is not enough, since another
    /// file system may have it by now.
    pub fn mounts(&self) -> Vec<MountEntry> {
        match self.closing {
            true => Vec::new(),
            false => {
                let mounts = mounts::mounts().unwrap_or_default();
                mounts.into_iter().filter(|m| self.is_at(m)).collect()
            }
        }
    }

    /// Returns whether the daemon was stopped by a signal, and does nothing until it is continued.
    pub fn is_stopped(&self) -> bool {
        is_stopped(self.pid) && self.is_alive()
    }

    /// Returns a handle that becomes readable when the process ends, or `None` if it has ended.
    pub fn process(&self) -> Option<std::os::fd::OwnedFd> {
        let handle =
            rustix::process::pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        self.is_alive().then_some(handle)
    }

    /// Formats the record as one line for a pipe between two kvfs processes; `from_line` parses it.
    pub fn to_line(&self) -> String {
        self.to_json().to_string()
    }

    pub fn from_line(line: &str) -> Option<Record> {
        Record::from_json(&serde_json::from_str(line).ok()?)
    }

    fn to_json(&self) -> Value {
        // Paths may not be UTF-8, but JSON strings must be.
        let path = |p: &Path| json!(escape(p));
        json!({
            "device": self.device, "pid": self.pid, "started": self.started, "store": path(&self.store),
            "file": self.file.map(|(device, inode)| [device, inode]),
            "mount_point": path(&self.mount_point), "source": path(&self.source), "closing": self.closing, "socket": self.socket.as_deref().map(path), "metrics": self.metrics,
            "listen": self.listen, "handover": self.handover,
            "log": self.log.as_deref().map(path), "recovery": self.recovery,
            "begun_anew": self.begun_anew.as_ref().map(|anew| json!([anew.count, anew.last])),
            "keeper": self.keeper.map(|(pid, started)| json!([pid, started])),
            "key": self.key, "failure": self.failure,
        })
    }

    fn from_json(v: &Value) -> Option<Record> {
        let path = |v: &Value| v.as_str().map(unescape);
        Some(Record {
            device: v["device"].as_str()?.into(),
            pid: v["pid"].as_i64()?.try_into().ok()?,
            started: v["started"].as_u64()?,
            store: path(&v["store"])?,
            file: v["file"][0].as_u64().zip(v["file"][1].as_u64()),
            mount_point: path(&v["mount_point"])?,
            source: path(&v["source"])?,
            closing: v["closing"].as_bool().unwrap_or(false),
            socket: path(&v["socket"]),
            metrics: v["metrics"].as_str().map(Into::into),
            listen: v["listen"].as_str().map(Into::into),
            handover: v["handover"].as_u64().and_then(|n| n.try_into().ok()),
            log: path(&v["log"]),
            recovery: v["recovery"].as_str().map(Into::into),
            begun_anew: v["begun_anew"][0].as_u64().map(|count| BegunAnew {
                count,
                last: v["begun_anew"][1].as_str().map(Into::into),
            }),
            keeper: v["keeper"][0]
                .as_i64()
                .and_then(|pid| pid.try_into().ok())
                .zip(v["keeper"][1].as_u64()),
            key: v["key"].as_str().map(Into::into),
            failure: v["failure"].as_str().map(Into::into),
        })
    }
}

/// Returns whether a process was stopped by a signal or a tracer.
pub fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may contain any character.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// Replaces `%`, control characters and every byte that is not UTF-8 by `%XX`: other readers of
/// records (the C library) support few escapes of JSON.
pub fn escape(path: &Path) -> String {
    let mut out = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c == '%' || c.is_control() {
                true => out.extend(c.to_string().bytes().map(|b| format!("%{b:02X}"))),
                false => out.push(c),
            }
        }
        out.extend(chunk.invalid().iter().map(|b| format!("%{b:02X}")));
    }
    out
}

pub fn unescape(text: &str) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let byte =
            tail.get(..2).filter(|_| *first == b'%').and_then(|d| std::str::from_utf8(d).ok());
        match byte.and_then(|d| u8::from_str_radix(d, 16).ok()) {
            Some(b) => {
                out.push(b);
                rest = &tail[2..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// Returns the start time: field 22 of `/proc/<pid>/stat`. The second field, the name, may contain
/// blanks and brackets.
fn start_of(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    // A zombie has ended, and only waits for its parent to collect its status.
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_json_whatever_its_paths() {
        let odd = b"/a b/100%41/\xff\xfe/line\nnext\x1b".to_vec();
        let odd = PathBuf::from(OsString::from_vec(odd));
        assert_eq!(escape(&odd), "/a b/100%2541/%FF%FE/line%0Anext%1B");
        let mut record = Record::of_this_process("0:45", &odd, Path::new("/mnt"));
        record.socket = Some(odd.clone());
        record.begun_anew = Some(BegunAnew { count: 3, last: Some("was ended".into()) });
        record.keeper = Some((17, 18));
        let read =
            Record::from_json(&serde_json::from_str(&record.to_json().to_string()).expect("JSON"));
        assert_eq!(read, Some(record));
    }

    #[test]
    fn a_number_belongs_to_the_daemon_whose_mount_is_still_there() {
        let of = |source: &str| Record::of_this_process("0:45", Path::new(source), Path::new("/m"));
        let at = |record: &Record| MountEntry {
            device: record.device.clone(),
            root: "/".into(),
            mount_point: record.mount_point.clone(),
            fs_type: "fuse.kvfs".into(),
            source: record.source.clone().into(),
            user: Some(0),
        };
        let (ended, next) = (of("/ended"), of("/next"));
        assert!(next.follows(&ended, &[at(&next)]));
        assert!(!ended.follows(&next, &[at(&next)]));
        // Mounts of another mount name space are not seen.
        assert!(!next.follows(&ended, &[]));
        assert!(!next.follows(&ended, &[at(&ended), at(&next)]));
    }

    #[test]
    fn a_record_of_another_user_is_none() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("0:45.json");
        let record = Record::of_this_process("0:45", Path::new("/s"), Path::new("/mnt"));
        fs::write(&path, record.to_json().to_string()).expect("write");
        assert_eq!(Record::read_file(&path), Some(record));
        let another = fs::metadata(&path).expect("there").uid() + 1;
        assert_eq!(Record::read_file_of(&path, another), None);
    }

    #[test]
    fn only_useless_leftovers_of_ended_processes_are_swept() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (ended, alive) = (i32::MAX, std::process::id());
        let names = [
            format!("{ended}.log"),
            format!("{ended}.sock"),
            format!("0:45.{ended}.new"),
            format!("{alive}.log"),
            format!("0:45.{alive}.new"),
            "0:45.json".into(),
        ];
        for name in &names {
            fs::write(directory.path().join(name), "").expect("write");
        }
        fs::write(directory.path().join(format!("{}.log", ended - 1)), "why it ended")
            .expect("write");
        sweep(directory.path());
        let left = names.map(|name| directory.path().join(name).exists());
        assert_eq!(left, [false, false, false, true, true, true]);
        assert!(directory.path().join(format!("{}.log", ended - 1)).exists());
    }

    #[test]
    fn a_process_is_known_by_its_start_not_its_number_alone() {
        let mut record = Record::of_this_process("0:45", Path::new("/s"), Path::new("/mnt"));
        assert!(record.is_alive());
        assert!(record.process().is_some());
        record.started += 1;
        assert!(!record.is_alive());
        assert!(record.process().is_none());
    }
}
