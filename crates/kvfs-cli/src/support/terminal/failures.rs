//! Translates the libraries' errors for the person at the terminal: an exit code, a sentence, and a
//! hint.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use objects::ObjectsError;
use places::credentials::LONGEST_SECRET;
use places::{Error, FORMS, FORMS_OF_PLACES, FORMS_OF_SERVERS};

use crate::support::machine::{identity, paths};
use crate::support::terminal::output::{Exit, Failure};
use crate::support::terminal::text::Shown;

/// Converts an error of the database. `doing` describes the failed operation.
pub fn of_database(doing: impl std::fmt::Display, error: kvdb::Error) -> Failure {
    let exit = match &error {
        kvdb::Error::Objects(e) => of_objects(e),
        kvdb::Error::NoSpace
        | kvdb::Error::OverLimit { .. }
        | kvdb::Error::CloneOverLimit { .. }
        | kvdb::Error::TooManyFiles { .. }
        | kvdb::Error::CloneTooManyFiles { .. } => Exit::NoSpace,
        kvdb::Error::Corrupt(_) => Exit::Damaged,
        kvdb::Error::NoDictionary(_) | kvdb::Error::NoSnapshot(_) | kvdb::Error::NoStore(_) => {
            Exit::NotFound
        }
        kvdb::Error::Io(e) => Exit::of(e),
        kvdb::Error::OpenElsewhere { .. } => Exit::Busy,
        _ => Exit::Failed,
    };
    let hint = match &error {
        kvdb::Error::OpenElsewhere { .. } => "if it is gone for good: kvfs mount --write --take",
        kvdb::Error::WrittenElsewhere(_) => {
            "kvfs mount --write mounts it by its address; kvfs push --take replaces what is there"
        }
        _ => return Failure::new(exit, format!("{doing}: {error}")),
    };
    Failure::new(exit, format!("{doing}: {error}")).hint(hint)
}

fn of_objects(error: &ObjectsError) -> Exit {
    match error {
        ObjectsError::NotFound { .. } | ObjectsError::NoBucket { .. } => Exit::NotFound,
        ObjectsError::Io { source, .. } => Exit::of(source),
        ObjectsError::Damaged { .. } => Exit::Damaged,
        ObjectsError::Secret { .. } => Exit::Usage,
        _ => Exit::Failed,
    }
}

/// Converts an error of a store in object storage, its address, or its local file.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let text = error.to_string();
        match error {
            Error::NoName(_) | Error::NoAddress(_) => Failure::new(Exit::Usage, text).hint(FORMS),
            Error::NoPlace(_) => Failure::new(Exit::Usage, text).hint(FORMS_OF_PLACES),
            Error::Empty(_) => Failure::new(Exit::NotFound, text).hint(FORMS_OF_PLACES),
            Error::Name(_) | Error::NoSecret(_) | Error::Secret { .. } => {
                Failure::new(Exit::Usage, text)
            }
            Error::NoSnapshot(_) => Failure::new(Exit::NotFound, text),
            Error::Place { source, .. } => Failure::new(of_objects(&source), text),
            Error::Unsafe(_) | Error::NotPublished { .. } => Failure::new(Exit::Failed, text),
            Error::Path { source, .. } | Error::Thread { source, .. } => {
                Failure::new(Exit::of(&source), text)
            }
            Error::Device { path, source } => of_device(&path, "open", source),
            Error::Stores { place, source } => of_database(format!("cannot use {place}"), source),
            Error::Store { doing, address, source } => {
                of_database(format!("cannot {doing} {address}"), source)
            }
            Error::Claim { address, file, source } => {
                let unpublished = matches!(source, kvdb::Error::Unpublished(_));
                let failure = of_database(format!("cannot write {address}"), source);
                let place = address.rsplit_once('/').map_or(&*address, |(place, _)| place);
                let file = file.shown();
                let hint = || format!("kvfs push {file} {place}/ANOTHER-NAME, and rm {file}");
                if unpublished { failure.hint(hint()) } else { failure }
            }
            Error::NoHome(source) => of_database("cannot tell where the store lies", source),
            Error::NothingHere(_) => {
                Failure::new(Exit::NotFound, text).hint("mount it once without --offline")
            }
            Error::InUse { .. } => {
                Failure::new(Exit::Busy, text).hint("name another directory: --cache DIRECTORY")
            }
            Error::NoServer { .. } => Failure::new(Exit::Usage, text).hint(FORMS_OF_SERVERS),
            Error::NoCredentials => Failure::new(Exit::Usage, text).hint(
                "give the file that has it: --token-file FILE, or --cert FILE --cert-key FILE",
            ),
            Error::HalfCertificate => {
                Failure::new(Exit::Usage, text).hint("give both: --cert FILE --cert-key FILE")
            }
            Error::NotPrivate { path, .. } => {
                Failure::new(Exit::Usage, text).hint(format!("chmod o= {}", path.shown()))
            }
            Error::NoLine { .. } => {
                let hint = format!("write one of up to {LONGEST_SECRET} bytes");
                Failure::new(Exit::Usage, text).hint(hint)
            }
            Error::Unreadable { path, source } => {
                Failure::io(format!("cannot read {}", path.shown()), &source)
            }
            Error::Tls(_) => Failure::new(Exit::Usage, text),
            Error::Server { .. } => Failure::new(Exit::Failed, text),
        }
    }
}

/// Converts an error while opening or making a store's file. A store that is in use is usually
/// mounted: the failure then names the mount point.
pub fn of_device(path: &Path, verb: &str, error: zones::Error) -> Failure {
    if !matches!(error, zones::Error::Busy(_)) {
        return of_database(format!("cannot {verb} {}", path.shown()), error.into());
    }
    let full = paths::full_path(path).unwrap_or_else(|_| path.to_path_buf());
    match identity::daemon_of(&full) {
        Some(r) if r.closing => {
            let text = format!(
                "{} is being closed by process {}, which has served it",
                path.shown(),
                r.pid
            );
            Failure::new(Exit::Busy, text).hint("try again when that has ended")
        }
        Some(r) => {
            let (what, mount) = (path.shown(), r.mount_point.shown());
            // A loop device and the file that it is bound to are one store.
            let text = match (is_block_device(&full), is_block_device(&r.store)) {
                (true, false) | (false, true) => {
                    format!("{what} is mounted on {mount}, by its other name {}", r.store.shown())
                }
                _ => format!("{what} is mounted on {mount}"),
            };
            Failure::new(Exit::Busy, text).hint(format!("unmount it: kvfs umount {mount}"))
        }
        None if is_block_device(&full) => {
            let what = "is in use: another process has it open, or a file system on it is mounted";
            Failure::new(Exit::Busy, format!("{} {what}", path.shown()))
        }
        None => Failure::new(Exit::Busy, format!("{} is in use by another process", path.shown())),
    }
}

fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
}

/// Converts an error while mounting or unmounting.
pub fn of_mount(error: kvfs_fuse::Error) -> Failure {
    use kvfs_fuse::Error;
    let text = error.to_string();
    match &error {
        Error::NotADirectory(_) => Failure::new(Exit::Usage, text).hint("make one, and mount on it"),
        Error::Unguarded => Failure::new(Exit::Usage, text).hint("leave out one of allow_other and nodefault_permissions"),
        Error::BoundByModes => Failure::new(Exit::Usage, text).hint("leave out nodefault_permissions"),
        Error::RingsGather => Failure::new(Exit::Usage, text).hint("leave out writeback, or use transport=auto or device"),
        Error::NoRings(_, e) => Failure::new(Exit::of(e), text).hint(
            "it takes Linux 6.14, and root or `echo Y > /sys/module/fuse/parameters/enable_uring` by root; or use transport=auto",
        ),
        Error::NoRoot(root) => {
            let name = root.file_name().unwrap_or_default().to_string_lossy();
            let name = kvfs_fuse::view_names::view_name(&name);
            let kind = root.iter().nth(1).unwrap_or_default().shown();
            Failure::new(Exit::NotFound, format!("the store has no {kind} {name}"))
                .hint(format!("list them: kvfs {kind} list STORE"))
        }
        Error::RootNeedsRight(_) => {
            Failure::new(Exit::NotPermitted, text).hint("mount the whole file system, or do it as root")
        }
        Error::NoFuse(e) => {
            Failure::new(Exit::of(e), text).hint("load the kernel's FUSE (modprobe fuse), or run where /dev/fuse exists")
        }
        Error::Unmount(dir, e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
            let dir = dir.shown();
            Failure::new(Exit::Busy, format!("{dir} is in use"))
                .hint(format!("see who uses it: fuser -vm {dir}; --lazy unmounts when the last one leaves"))
        }
        Error::Mount(_, e) | Error::Unmount(_, e) | Error::Session(_, e) | Error::TakeOver(_, e) => {
            Failure::new(Exit::of(e), text)
        }
    }
}
