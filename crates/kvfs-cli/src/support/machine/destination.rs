//! The outputs of commands. Every file that a command writes for its user is opened or checked here
//! before it is replaced: never the store that the command reads, nor one that is in use, by
//! whatever name, and any other store only if that was requested.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};

use crate::support::machine::beneath;
use crate::support::machine::identity::Identity;
use crate::support::mounts::daemons::Record;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// The default mode of new files: stores, streams and archives contain data that only its owner may
/// read.
pub const PRIVATE: u32 = 0o600;

/// Options for the file that a command creates.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Making {
    /// Permissions of the created file, octal. By default only the owner can read it.
    #[arg(long, value_name = "MODE", value_parser = parse_mode, default_value = "0600")]
    mode: u32,
    /// Overwrite the file even if it is a KVFS store, whose contents are then lost. A store that is
    /// in use, or is the source, is never overwritten.
    #[arg(long)]
    force: bool,
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let bad = || format!("'{text}' are no permissions: write them as in 0640");
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777).ok_or_else(bad)
}

impl Making {
    /// The settings for output that everybody may read.
    pub const PUBLIC: Making = Making { mode: 0o644, force: false };

    /// Sets the requested permissions on a file that was made private.
    pub fn apply(self, path: &Path) -> Outcome {
        if self.mode == PRIVATE {
            return Ok(());
        }
        let set = std::fs::set_permissions(path, std::fs::Permissions::from_mode(self.mode));
        set.map_err(|e| Failure::io(format!("cannot set the permissions of {}", path.shown()), &e))
    }
}

/// Decides whether a file may be overwritten.
#[derive(Clone, Copy, Debug)]
pub struct Judge {
    /// The identity of the store that the command reads, if any.
    reads: Option<Identity>,
    /// True if a store that is not in use may be overwritten.
    force: bool,
}

impl Judge {
    /// Returns the judge for a command that reads the store that `target` refers to: its file, or a
    /// directory anywhere in a mount of it.
    pub fn reading(target: &Path, making: Making) -> Judge {
        Judge { reads: Identity::of_store(target), force: making.force }
    }

    /// Returns the judge for a command that reads no store.
    pub fn of(making: Making) -> Judge {
        Judge { reads: None, force: making.force }
    }

    /// Returns the judge for replacing a store by another one, which allows all but a store in use.
    pub fn replacing() -> Judge {
        Judge { reads: None, force: true }
    }

    /// Returns the judge for output that must never replace a store.
    pub fn strict() -> Judge {
        Judge { reads: None, force: false }
    }

    /// Fails if the open file must not be overwritten.
    fn judge(self, file: &File, path: &Path) -> Outcome {
        let identity = Identity::of_open(file);
        if identity.is_some() && self.reads == identity {
            return Err(refused(path, "is the store itself", Exit::Usage));
        }
        if !holds_a_store(file) {
            return Ok(());
        }
        if is_in_use(file, identity) {
            return Err(refused(path, "is a KVFS store that is in use", Exit::Busy));
        }
        if self.force {
            return Ok(());
        }
        Err(Failure::new(
            Exit::Usage,
            format!("{} is a KVFS store: writing there would destroy it", path.shown()),
        )
        .hint("give another file; or --force, where the command has it; nothing was written"))
    }

    /// Fails if the file that `path` leads to must not be overwritten. Succeeds if it does not
    /// exist, or if this user cannot read it, and hence not write it.
    pub fn judge_path(self, path: &Path) -> Outcome {
        let kind = std::fs::metadata(path).map(|meta| meta.file_type());
        if !kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device()) {
            return Ok(());
        }
        match File::open(path) {
            Ok(file) => self.judge(&file, path),
            Err(_) => Ok(()),
        }
    }

    /// Fails if the entry `name` of an open directory must not be replaced. `path` is its name for
    /// the user.
    pub fn judge_entry(self, directory: impl AsFd, name: &[u8], path: &Path) -> Outcome {
        let found = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
        let is_file = |stat: &rustix::fs::Stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        };
        if !found.is_ok_and(|stat| is_file(&stat)) {
            return Ok(());
        }
        match beneath::open(&directory, name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Ok(file) => self.judge(&File::from(file), path),
            Err(_) => Ok(()),
        }
    }
}

fn refused(path: &Path, is: &str, exit: Exit) -> Failure {
    let what = format!("{} {is}: writing there would destroy it", path.shown());
    Failure::new(exit, what).hint("give another file; nothing was written")
}

/// Returns whether the file or device at a path contains a store.
pub fn is_store(path: &Path) -> bool {
    let kind = std::fs::metadata(path).map(|meta| meta.file_type());
    kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device())
        && File::open(path).is_ok_and(|file| holds_a_store(&file))
}

/// Returns whether an open file contains a store. A file opened for writing only is reopened; if
/// that is not permitted, the process that passed the descriptor is responsible.
fn holds_a_store(file: &File) -> bool {
    let kind = file.metadata().map(|meta| meta.file_type());
    if !kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device()) {
        return false;
    }
    let read =
        |file: &File| zones::Superblock::is_one(|at, bytes| file.read_exact_at(bytes, at).is_ok());
    read(file) || opened_again(file).is_some_and(|file| read(&file))
}

fn opened_again(file: &File) -> Option<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// Returns whether a store is in use, by the lock that its user holds, which may have opened it
/// through a loop device. If the host has no such locks, the daemons' records decide.
fn is_in_use(file: &File, identity: Option<Identity>) -> bool {
    // A lock belongs to the file that is opened here, and is released with it.
    let is_locked = |file: File| {
        let tried = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        tried == Err(rustix::io::Errno::WOULDBLOCK)
    };
    let is_it = |record: &Record| Identity::of_path(&record.store) == identity;
    let others = || identity.map(Identity::through_loop_devices).unwrap_or_default();
    opened_again(file).is_some_and(is_locked)
        || others().iter().any(|name| File::open(name).is_ok_and(is_locked))
        || (identity.is_some() && Record::all().iter().any(is_it))
}

/// Opens a file for writing from its beginning, private if it is new. The open file is checked, not
/// its name, and is truncated only afterwards.
pub fn create(path: &Path, making: Making, judge: Judge) -> Outcome<File> {
    let cannot = |e: io::Error| Failure::io(format!("cannot write {}", path.shown()), &e);
    let open = |new: bool| {
        let mut options = File::options();
        options.write(true).mode(PRIVATE).custom_flags(libc::O_NOCTTY);
        if new { options.create_new(true).open(path) } else { options.create(true).open(path) }
    };
    let (file, made) = match open(true) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (open(false).map_err(cannot)?, false),
        file => (file.map_err(cannot)?, true),
    };
    judge.judge(&file, path)?;
    if made {
        if making.mode != PRIVATE {
            file.set_permissions(std::fs::Permissions::from_mode(making.mode)).map_err(cannot)?;
        }
    } else if file.metadata().map_err(cannot)?.is_file() {
        file.set_len(0).map_err(cannot)?;
    }
    Ok(file)
}

/// Removes an old store from the place of a new one, if that was requested. Other files are left
/// for the code that makes the store to report.
pub fn make_room(path: &Path, making: Making) -> Outcome {
    let there = std::fs::metadata(path);
    let Ok(meta) = there else { return Ok(()) };
    let judge = Judge::of(making);
    if meta.file_type().is_block_device() {
        return judge.judge_path(path);
    }
    if making.force && meta.is_file() && File::open(path).is_ok_and(|file| holds_a_store(&file)) {
        judge.judge_path(path)?;
        std::fs::remove_file(path)
            .map_err(|e| Failure::io(format!("cannot replace {}", path.shown()), &e))?;
    }
    Ok(())
}

/// Opens a log for appending.
pub fn append(path: &Path) -> Outcome<File> {
    let opened = File::options().append(true).create(true).open(path);
    let file =
        opened.map_err(|e| Failure::io(format!("cannot write the log {}", path.shown()), &e))?;
    Judge::strict().judge(&file, path)?;
    Ok(file)
}

/// Fails if standard output or error is a store: a shell's `>>` and `1<>` can redirect to a file,
/// and `>` to a device.
pub fn judge_standard_output() -> Outcome {
    let shown = |fd: rustix::fd::BorrowedFd<'_>, name: &str| {
        let file = fd.try_clone_to_owned().map(File::from);
        file.map_or(Ok(()), |file| Judge::strict().judge(&file, Path::new(name)))
    };
    shown(io::stdout().as_fd(), "standard output")?;
    shown(io::stderr().as_fd(), "standard error")
}

/// Removes an incomplete output file, since half of it must not pass for the whole. Anything but a
/// regular file stays. So does a symbolic link, but its target is truncated.
pub fn discard(file: &File, path: &Path) {
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return;
    }
    let _ = file.set_len(0);
    if Identity::of_entry(rustix::fs::CWD, path.as_os_str().as_encoded_bytes())
        .is_some_and(|named| Identity::of_open(file) == Some(named))
    {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
#[path = "../../../tests/it/path_uses/mod.rs"]
mod path_uses;

#[cfg(test)]
mod tests {
    use super::*;

    const MAKING: Making = Making { mode: PRIVATE, force: false };

    #[test]
    fn permissions_are_octal() {
        assert_eq!((parse_mode("0644"), parse_mode("600")), (Ok(0o644), Ok(0o600)));
        for bad in ["", "8", "0o644", "rw", "4755", "-1"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_read_is_not_written_by_any_name_of_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let [file, hard, soft, other] =
            ["file", "hard", "soft", "other"].map(|name| directory.path().join(name));
        std::fs::write(&file, "content").expect("a file");
        std::fs::write(&other, "content").expect("a file");
        std::fs::hard_link(&file, &hard).expect("a link");
        std::os::unix::fs::symlink(&file, &soft).expect("a link");
        let forced = Making { force: true, ..MAKING };
        for path in [&file, &hard, &soft] {
            for making in [MAKING, forced] {
                let judge = Judge::reading(&file, making);
                assert!(create(path, making, judge).is_err());
                assert_eq!(std::fs::read(&file).expect("there"), b"content");
            }
        }
        create(&other, MAKING, Judge::reading(&file, MAKING)).expect("another file");
        assert_eq!(std::fs::read(&other).expect("there"), b"");
    }

    /// Collects the arguments of a command, and of its subcommands, that are paths.
    fn paths(command: &clap::Command, above: &str, found: &mut Vec<(String, String)>) {
        let path = std::any::TypeId::of::<std::path::PathBuf>();
        for argument in command.get_arguments() {
            if argument.get_value_parser().type_id() == path {
                found.push((above.trim().to_string(), argument.get_id().to_string()));
            }
        }
        for below in command.get_subcommands() {
            paths(below, &format!("{above} {}", below.get_name()), found);
        }
    }

    #[test]
    fn every_path_that_a_command_takes_is_listed_with_what_is_done_there() {
        let mut found = Vec::new();
        paths(&<crate::Cli as clap::CommandFactory>::command(), "", &mut found);
        let listed = |(command, argument): &(String, String)| {
            path_uses::PATHS.iter().any(|(c, a, _)| c == command && a == argument)
        };
        let new: Vec<_> = found.iter().filter(|path| !listed(path)).collect();
        assert!(new.is_empty(), "list these in tests/it/path_uses/mod.rs: {new:?}");
        let is = |(c, a): (&str, &str)| found.iter().any(|(f, g)| f == c && g == a);
        let gone: Vec<_> = path_uses::PATHS.iter().filter(|(c, a, _)| !is((*c, *a))).collect();
        assert!(gone.is_empty(), "these are no arguments any more: {gone:?}");
    }
}
