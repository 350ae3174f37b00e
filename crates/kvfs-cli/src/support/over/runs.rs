//! One run over a folder, from its empty upper layer to its end: applied, kept or thrown away.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, XattrFlags};

use crate::support::layers::OPTIONS;
use crate::support::layers::layer::{Layer, Marks, Time};
use crate::support::layers::reader::Layers;
use crate::support::machine::sandbox::{Blocked, Namespace, Overlay, flags_above};
use crate::support::over::conflicts::conflicts;
use crate::support::over::folder::{Folder, remove_all};
use crate::support::over::log::{self, Log};
use crate::support::over::plan::{self, Left};
use crate::support::over::recovery::recover;
use crate::support::over::run_folders::{
    LOG, MADE, RUN, UPPER, cannot, failure, finish, keep, seen,
};
use crate::support::over::steps::{ALL, Check, Sides, Stopped, Way};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;

const WORK: &str = "work";

/// A run that has begun.
pub struct Run<'a> {
    folder: &'a Folder,
    place: PathBuf,
    pub layers: Layers,
    started: Time,
    /// Locked, so that others see that the run lives.
    _lock: File,
}

/// The end of an attempt to apply a run.
#[derive(Debug)]
pub enum Applied {
    Done,
    /// The run has changed nothing, or nothing that was selected.
    Nothing,
    /// Others have changed these paths.
    Conflict(Vec<Vec<u8>>),
}

/// Returns the time of the last change of a file that is open.
fn changed(file: &File) -> io::Result<Time> {
    let meta = file.metadata()?;
    Ok((meta.ctime(), meta.ctime_nsec() as u32))
}

/// Returns the present time of the file system of a directory, which is the time of a change in it.
fn time_in(directory: &Path) -> io::Result<Time> {
    let path = directory.join("clock");
    let time = changed(&File::create(&path)?)?;
    fs::remove_file(&path)?;
    Ok(time)
}

impl Run<'_> {
    /// Makes an empty upper layer. What was interrupted before is ended first.
    pub fn begin<'a>(folder: &'a Folder, output: &Output) -> Outcome<Run<'a>> {
        let locked = folder.lock()?;
        recover(folder, &locked, output)?;
        let made = tempfile::Builder::new().prefix(RUN).tempdir_in(&locked.state);
        let place = made.map_err(cannot("make a folder in", &locked.state))?.keep();
        let failed = cannot("prepare", &place);
        let lock = File::open(&place).map_err(&failed)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| failed(e.into()))?;
        for name in [UPPER, WORK] {
            fs::create_dir(place.join(name)).map_err(&failed)?;
        }
        let (lower, upper) = (Layer::open(&folder.path)?, Layer::open(&place.join(UPPER))?);
        let marks = marks(&lock);
        let layers = Layers { lower, upper, marks };
        // Changes of the folder from now on are later than this time.
        let started = time_in(&place).map_err(&failed)?;
        for _ in 0..1_000 {
            if time_in(&place).map_err(&failed)? > started {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Only now, so that what others then do to the folder itself counts as theirs.
        make_alike(&layers, &place.join(UPPER)).map_err(&failed)?;
        Ok(Run { folder, place, layers, started, _lock: lock })
    }

    /// Returns the name space of the program.
    pub fn namespace(&self) -> Outcome<Namespace> {
        let run =
            Path::new(self.folder.state_name()).join(self.place.file_name().unwrap_or_default());
        let escaped: Vec<u8> = (self.folder.name.as_bytes().iter())
            .flat_map(|byte| match byte {
                b'\\' | b':' | b',' => vec![b'\\', *byte],
                byte => vec![*byte],
            })
            .collect();
        let in_run = |name: &str| run.join(name).into_os_string().into_encoded_bytes();
        let (upper, work) = (in_run(UPPER), in_run(WORK));
        let notes = if self.layers.marks == Marks::User { ",userxattr" } else { "" };
        let options: [&[u8]; 8] = [
            b"lowerdir=",
            &escaped,
            b",upperdir=",
            &upper,
            b",workdir=",
            &work,
            b",",
            OPTIONS.as_bytes(),
        ];
        let mount = rustix::fs::fstatvfs(&self.layers.lower);
        let mount = mount.map_err(|e| cannot("look at", &self.folder.path)(e.into()))?;
        let options = [options.concat().as_slice(), notes.as_bytes()].concat();
        let overlay = Overlay {
            parent: Some(self.folder.parent.clone()),
            on: self.folder.name.clone().into(),
            source: c"kvfs-over",
            options: OsString::from_vec(options),
            flags: flags_above(mount.f_flag),
        };
        Ok(Namespace::Covered { overlay })
    }

    /// Applies the run without the excluded changes. Unless this returns `Done`, the folder is
    /// unchanged.
    pub fn apply(&self, left: &Left, label: &str, output: &Output) -> Outcome<Applied> {
        let locked = self.folder.lock()?;
        recover(self.folder, &locked, output)?;
        let failed = cannot("apply", &self.place);
        if time_in(&self.place).map_err(&failed)? <= self.started {
            let what = "the clock was set back during the run: it cannot be told what others have \
                        changed in the folder";
            return Err(Failure::new(Exit::Failed, what).hint("run it again"));
        }
        let theirs = conflicts(&self.layers, left, self.started)?;
        if !theirs.is_empty() {
            return Ok(Applied::Conflict(theirs));
        }
        let log = plan::plan(&self.layers, left, self.started, label)?;
        let log = Log { born: self.folder.born, ..log };
        if log.swaps.is_empty() && log.directories.is_empty() {
            return Ok(Applied::Nothing);
        }
        plan::prepare(&self.layers, &log)?;
        // The files of the run are on disk before the log says that the folder gets them.
        rustix::fs::syncfs(&self.layers.upper).map_err(|e| failed(e.into()))?;
        // Ctrl-C does not leave a half of it: it ends this process after the last step.
        let _held = Blocked::signals().map_err(&failed)?;
        let made = seen(&self.layers.upper, &log).map_err(&failed)?;
        log::write(&self.place, MADE, &made).map_err(&failed)?;
        if let Err(e) = log::write(&self.place, LOG, &log) {
            // The next command must not carry out what was said to have failed.
            let _ = log::remove(&self.place, LOG);
            return Err(failed(e));
        }
        let check = Check::Since(log.started);
        let sides = Sides { folder: &self.layers.lower, other: &self.layers.upper, check };
        match sides.carry(&log, Way::Apply, ALL) {
            Ok(()) => {
                finish(&locked, &self.place, &sides, &log).map_err(|why| {
                    why.with("the folder has the changes, and the next command ends the run")
                })?;
                Ok(Applied::Done)
            }
            Err(stopped) => {
                let foreign = sides.carry_rest(&log, Way::TakeBack).map_err(failure)?;
                rustix::fs::syncfs(&locked).map_err(|e| failed(e.into()))?;
                log::remove(&self.place, LOG).map_err(&failed)?;
                match stopped {
                    Stopped::Failed(why) if foreign.is_empty() => Err(why),
                    Stopped::Failed(why) => Err(why.with("others have changed its files since")),
                    Stopped::Foreign(path) => Ok(Applied::Conflict(vec![path])),
                    Stopped::Limit => Ok(Applied::Conflict(Vec::new())),
                }
            }
        }
    }

    /// Throws the run away.
    pub fn discard(self) -> Outcome {
        let locked = self.folder.lock()?;
        remove_all(&self.place).map_err(cannot("remove", &self.place))?;
        drop(locked);
        Ok(())
    }

    /// Returns where the upper layer is.
    pub fn upper(&self) -> PathBuf {
        self.place.join(UPPER)
    }

    /// Keeps the run after a failure, unless it is still to be applied, and says where it is.
    pub fn keep_after(self, failure: Failure) -> Failure {
        if self.place.join(LOG).exists() || !self.place.exists() {
            return failure;
        }
        match self.keep() {
            Ok(kept) => failure.hint(format!("what it did is in {}", kept.shown())),
            Err(_) => failure,
        }
    }

    /// Keeps the upper layer for the user. Returns where it is.
    pub fn keep(self) -> Outcome<PathBuf> {
        let _locked = self.folder.lock()?;
        keep(&self.place)
    }
}

/// Returns the attributes in which an overlay on this file system keeps its notes: those that only
/// root can set, if this process can.
fn marks(place: &File) -> Marks {
    let name = "trusted.kvfs.probe";
    match rustix::fs::fsetxattr(place, name, b"1", XattrFlags::empty()) {
        Ok(()) => {
            let _ = rustix::fs::fremovexattr(place, name);
            Marks::Trusted
        }
        Err(_) => Marks::User,
    }
}

/// Gives the upper layer's directory the attributes of the folder, since the overlay shows those.
fn make_alike(layers: &Layers, upper: &Path) -> io::Result<()> {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let folder = layers.lower.attributes(b"")?.ok_or_else(missing)?;
    let own = layers.upper.attributes(b"")?.ok_or_else(missing)?;
    if (own.uid, own.gid) != (folder.uid, folder.gid) {
        std::os::unix::fs::chown(upper, Some(folder.uid), Some(folder.gid))?;
    }
    for (name, value) in layers.lower.xattrs(b"")? {
        // Notes that another overlay has left in the folder say nothing of this one: `opaque` would
        // remove everything.
        if layers.marks.seen(&name).as_ref() != Some(&name) {
            continue;
        }
        // Some are given by the system, and cannot be set.
        let _ = layers.upper.set_xattr(b"", &name, Some(&value));
    }
    fs::set_permissions(upper, fs::Permissions::from_mode(folder.mode))?;
    let (seconds, nanos) = folder.mtime;
    let time = match u64::try_from(seconds) {
        Ok(seconds) => std::time::UNIX_EPOCH + Duration::new(seconds, nanos),
        Err(_) => {
            std::time::UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs())
                + Duration::from_nanos(nanos.into())
        }
    };
    File::open(upper)?.set_modified(time)
}
