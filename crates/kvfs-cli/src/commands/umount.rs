//! `kvfs umount`: unmounts, and waits until everything is on disk and the store is free for others.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvfs_fuse::mounts::MountEntry;
use kvfs_fuse::{Unmount, mounts, unmount};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::support::machine::paths;
use crate::support::mounting::mount_config::Config;
use crate::support::mounts::daemons::Record;
use crate::support::mounts::waiting;
use crate::support::serving::guest;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;
use crate::support::terminal::{failures, text};

/// Unmount a store, and wait until all data is on disk and the store is free.
#[derive(clap::Args)]
pub struct Args {
    /// Directory a store is mounted on, or the store.
    #[arg(required_unless_present = "config", conflicts_with = "config")]
    target: Option<PathBuf>,
    /// Unmount the store that `kvfs mount --config FILE` has mounted.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Detach the mount now, even while it is in use; it ends when its last user leaves. Does not
    /// wait.
    #[arg(long, short = 'l', conflicts_with = "force")]
    lazy: bool,
    /// End the mount now, even if it is in use or hangs. Written data that the kernel has not yet
    /// passed to the daemon is lost.
    #[arg(long, short = 'f')]
    force: bool,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let how = match (args.lazy, args.force) {
        (true, _) => Unmount::Lazy,
        (_, true) => Unmount::Forced,
        _ => Unmount::Clean,
    };
    let config = args.config.as_deref().map(Config::read).transpose()?;
    let target = args.target.or_else(|| config.and_then(|c| c.directory.or(c.store)));
    let target = target.ok_or_else(|| {
        Failure::new(Exit::Usage, "the file names neither a directory nor a store")
    })?;
    let said = take_down(&target, how)?;
    let value = serde_json::json!({"result": said});
    output.print(&said, text::with_paths(value, &[("target", Some(&target))]))
}

/// Parses `DIR [-flnrv] [-N NAMESPACE] [-t TYPE]`, as umount(8) calls its helpers, and unmounts.
pub fn run_as_umount_helper(words: &[OsString]) -> Outcome {
    let mut target = None;
    let mut how = Unmount::Clean;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-N" | "-t" | "-o") => drop(words.next()),
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                how = match (flags.contains('f'), flags.contains('l')) {
                    (true, _) => Unmount::Forced,
                    (_, true) => Unmount::Lazy,
                    _ => how,
                };
            }
            _ => target = Some(PathBuf::from(word)),
        }
    }
    let target = target
        .ok_or_else(|| Failure::new(Exit::Usage, "a umount helper is called with a directory"))?;
    take_down(&target, how).map(drop)
}

/// Unmounts a directory, and waits for its daemon.
pub fn unmount_clean(dir: &Path) -> Outcome {
    take_down(dir, Unmount::Clean).map(drop)
}

/// Unmounts `target` and waits for its daemon. Returns a description of the result.
fn take_down(target: &Path, how: Unmount) -> Outcome<String> {
    let entry = find(target, how)?;
    let dir = &entry.mount_point;
    let record = Record::read(&entry.device);
    let _waiting = waiting::on(dir);
    may_take_down(target, &entry, record.is_some())?;
    // Without a daemon, or with one that is being killed, nothing can be written any more. (Asking
    // a daemon that hangs would hang, too.)
    let dead = how != Unmount::Forced && mounts::is_dead(dir);
    let daemon = record.as_ref().filter(|_| !dead).and_then(Record::process);
    let Some((record, daemon)) = record.clone().zip(daemon) else {
        unmount(dir, if dead { Unmount::Lazy } else { how }).map_err(failures::of_mount)?;
        if let Some(record) = record {
            record.remove();
        }
        let was = if dead { "removed the dead mount from" } else { "unmounted" };
        return Ok(format!("{was} {}", dir.shown()));
    };
    if how != Unmount::Forced && record.store_is_removed() {
        return Err(would_lose_all(&record, dir));
    }
    // If a server has the transaction of this mount, report its state after the unmount. (Asking a
    // daemon that hangs would hang, too.)
    let status = match how {
        Unmount::Clean => guest::ask(&record, "status").ok().flatten(),
        _ => None,
    };
    let transaction = status.and_then(|status| guest::left_by(&record, &status));
    unmount(dir, how).map_err(failures::of_mount)?;
    if how == Unmount::Lazy {
        return Ok(format!(
            "{} is out of sight; {} stays in use until its last user leaves",
            dir.shown(),
            record.store.shown()
        ));
    }
    if let Some(other) = record.mounts().into_iter().next() {
        // The other mount is a bind mount, for example, for which the daemon continues.
        return Ok(format!(
            "unmounted {}; {} is still mounted on {}",
            dir.shown(),
            record.store.shown(),
            other.mount_point.shown()
        ));
    }
    wait_for(&daemon, &record, dir, how)?;
    // A daemon that has ended cleanly has removed its record.
    match record.left() {
        None => {
            let more = transaction.map_or(String::new(), |what| format!("; {what}"));
            Ok(format!("unmounted {}{more}", dir.shown()))
        }
        Some(left) => Err(not_closed_well(&record, left, dir)),
    }
}

/// Fails if another mount covers this one, or if it is not a mount of KVFS.
fn may_take_down(target: &Path, entry: &MountEntry, has_record: bool) -> Outcome {
    let dir = &entry.mount_point;
    // Unmounting affects the topmost mount.
    if let Ok(Some(top)) = mounts::mount_at(dir)
        && top.device != entry.device
    {
        let text =
            format!("another mount ({}) covers {} on {}", top.fs_type, target.shown(), dir.shown());
        return Err(Failure::new(Exit::Busy, text)
            .hint(format!("take that away first: umount {}", dir.shown())));
    }
    // The record may be that of a killed daemon, and another file system may have the device number
    // by now.
    if !(entry.fs_type.ends_with("kvfs") || entry.is_fuse() && has_record) {
        let text = format!("what is mounted on {} is {}, not KVFS", dir.shown(), entry.fs_type);
        return Err(Failure::new(Exit::Usage, text));
    }
    Ok(())
}

/// Returns the failure of an unmount of a store whose file has no name any more.
fn would_lose_all(record: &Record, dir: &Path) -> Failure {
    let (store, dir, pid) = (record.store.shown(), dir.shown(), record.pid);
    let text = format!(
        "{store} was removed while it was mounted on {dir}: with the unmount all that is in it \
         would be gone"
    );
    Failure::new(Exit::Busy, text).hint(format!(
        "copy out of {dir} what is to be kept, or the file as a whole: `sync -f {dir}`, and then \
         that one of /proc/{pid}/fd which is \"{store} (deleted)\"; --force unmounts all the same"
    ))
}

/// Returns the failure of a daemon that has left a record, and removes that.
fn not_closed_well(record: &Record, left: Record, dir: &Path) -> Failure {
    left.remove();
    let why = left.failure.unwrap_or_else(|| "its daemon was killed".into());
    let message = format!(
        "unmounted {}, but {} was not closed well: {why}",
        dir.shown(),
        record.store.shown()
    );
    let hint = match guest::is_served(record) {
        true => "what was synced is safe with the server",
        false => "what was synced is safe; `kvfs check` verifies the store",
    };
    Failure::new(Exit::Failed, message).hint(hint)
}

/// The time that a forced unmount waits for the daemon to close the store.
const FORCED: Duration = Duration::from_secs(60);
/// The polling interval for a daemon that is stopped or hangs.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until the daemon has ended. A stopped or hanging daemon cannot end: a forced unmount then
/// fails.
fn wait_for(daemon: &OwnedFd, record: &Record, dir: &Path, how: Unmount) -> Outcome {
    let begun = Instant::now();
    let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    loop {
        let mut wait = [PollFd::new(daemon, PollFlags::IN)];
        match rustix::event::poll(&mut wait, (how == Unmount::Forced).then_some(&look)) {
            Ok(0) => {}
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                return Err(Failure::io(
                    format!("cannot wait for process {}", record.pid),
                    &e.into(),
                ));
            }
        }
        let (store, pid) = (record.store.shown(), record.pid);
        let left = |why: &str, what: String| {
            let text = format!(
                "unmounted {}, but its daemon (process {pid}) {why}: {store} stays in use until it ends",
                dir.shown()
            );
            Err(Failure::new(Exit::Busy, text).hint(what))
        };
        if how == Unmount::Forced && record.is_stopped() {
            return left(
                "is stopped",
                format!(
                    "kill -CONT {pid} has it write what it holds, and end; kill -KILL {pid} ends it at once"
                ),
            );
        }
        if how == Unmount::Forced && begun.elapsed() > FORCED {
            return left(
                "does not end",
                format!("kill -KILL {pid} ends it; what was synced is safe"),
            );
        }
    }
}

/// Returns the mount that `target` refers to by its directory or its store. A forced unmount does
/// not access the mount itself, which may not answer.
fn find(target: &Path, how: Unmount) -> Outcome<MountEntry> {
    let cannot = |e: std::io::Error| Failure::io(format!("cannot unmount {}", target.shown()), &e);
    if how != Unmount::Clean
        && let Ok(path) = paths::path_beside(target)
        && let Some(entry) = mounts::mount_at(&path).map_err(cannot)?
    {
        return Ok(entry);
    }
    // The store may have been removed.
    let path = paths::full_path(target).or_else(|_| paths::path_beside(target)).map_err(cannot)?;
    if let Some(entry) = mounts::mount_at(&path).map_err(cannot)? {
        return Ok(entry);
    }
    let entry = Record::of_store(&path).and_then(|r| r.mounts().into_iter().next());
    entry.ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("nothing is mounted on {}", path.shown()))
    })
}
