//! The folders of runs in the state folder: their names, the files in them, and how they end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::support::layers::layer::Layer;
use crate::support::over::folder::{Locked, remove_all};
use crate::support::over::log::{self, Log, Name, Seen, VERSION};
use crate::support::over::steps::{Sides, Stopped};
use crate::support::review::proposed;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::{Shown, show};

/// The file of a log that is being applied.
pub const LOG: &str = "log";
/// The file with the state of the folder's files after the apply.
pub const SEEN: &str = "seen";
/// The file with the state of the files of the run before the apply.
pub const MADE: &str = "made";
/// The folder of the last run that was applied.
pub const APPLIED: &str = "applied";
/// The upper layer in the folder of a run.
pub const UPPER: &str = "upper";
/// Names of folders of runs, and of what is to be removed, begin so.
pub const RUN: &str = "run-";
pub const DROPPED: &str = "dropped-";
/// Names of folders that are kept for the user begin so.
pub const KEPT: &str = "kept-";
/// The log by which an undo is carried out: that of the run, without times that are not given back.
pub const UNDOING: &str = "undoing";

pub fn cannot(doing: &str, path: &Path) -> impl Fn(io::Error) -> Failure + use<> {
    let doing = format!("cannot {doing} {}", path.shown());
    move |e| Failure::io(&doing, &e)
}

/// Renames the folder of a run, so that it stays. Returns where its upper layer is then.
pub fn keep(place: &Path) -> Outcome<PathBuf> {
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    let kept = place.with_file_name(format!("{KEPT}{}", name.trim_start_matches(RUN)));
    fs::rename(place, &kept).map_err(cannot("keep", place))?;
    // Under its old name the next command would remove it.
    let state = place.parent().unwrap_or(place);
    File::open(state).and_then(|state| state.sync_all()).map_err(cannot("keep", place))?;
    Ok(kept.join(UPPER))
}

/// Renames the folder of the last run, so that it stays. Returns where its upper layer is then.
pub fn keep_applied(locked: &Locked) -> Outcome<PathBuf> {
    let kept = tempfile::Builder::new().prefix(KEPT).tempdir_in(&locked.state);
    let kept = kept.map_err(cannot("make a folder in", &locked.state))?.keep();
    let place = locked.state.join(APPLIED);
    fs::rename(&place, &kept).map_err(cannot("keep", &place))?;
    rustix::fs::fsync(locked).map_err(|e| cannot("sync", &locked.state)(e.into()))?;
    Ok(kept.join(UPPER))
}

/// Converts the reason for which a step was not carried out.
pub fn failure(stopped: Stopped) -> Failure {
    match stopped {
        Stopped::Failed(failure) => failure,
        Stopped::Foreign(path) => {
            Failure::new(Exit::Conflict, format!("others have changed {}", show(&path)))
        }
        Stopped::Limit => Failure::new(Exit::Failed, "it was not carried out as a whole"),
    }
}

/// Ends an apply whose steps are all done: notes what the folder has now, and makes the run the
/// last one, in place of the one before.
pub fn finish(locked: &Locked, place: &Path, sides: &Sides<'_>, log: &Log) -> Outcome {
    let failed = cannot("end the run in", place);
    let made: Vec<Seen> = log::read(place, MADE).map_err(&failed)?.unwrap_or_default();
    let seen = as_noted(made, seen(sides.folder, log).map_err(&failed)?, log);
    rustix::fs::syncfs(locked).map_err(|e| failed(e.into()))?;
    log::write(place, SEEN, &seen).map_err(&failed)?;
    let applied = locked.state.join(APPLIED);
    drop_folder(locked, &applied)?;
    fs::rename(place, &applied).map_err(&failed)?;
    rustix::fs::fsync(locked).map_err(|e| failed(e.into()))
}

/// Removes a folder of the state at once as far as names tell, and then in fact.
pub fn drop_folder(locked: &Locked, place: &Path) -> Outcome {
    let dropped = tempfile::Builder::new().prefix(DROPPED).tempdir_in(&locked.state);
    let dropped = dropped.map_err(cannot("make a folder in", &locked.state))?.keep();
    match fs::rename(place, dropped.join("run")) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(cannot("remove", place)(e)),
        _ => {}
    }
    rustix::fs::fsync(locked).map_err(|e| cannot("sync", &locked.state)(e.into()))?;
    // The next command removes what is left of it.
    let _ = remove_all(&dropped);
    Ok(())
}

/// Returns the files of the folder that a log has put there.
pub fn seen(folder: &Layer, log: &Log) -> io::Result<Vec<Seen>> {
    let mut all = Vec::new();
    for swap in log.swaps.iter().filter(|swap| swap.after.is_some()) {
        log::see(folder, &swap.path.0, &mut all)?;
    }
    all.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(all)
}

/// Returns files that were noted before swaps as they are now, after these have set their ctime.
/// What others have changed is returned as it was noted, so that an undo sees that it differs.
pub fn as_noted(noted: Vec<Seen>, now: Vec<Seen>, log: &Log) -> Vec<Seen> {
    let swapped: BTreeSet<&Name> = log.swaps.iter().map(|swap| &swap.path).collect();
    let mut now: BTreeMap<Name, Seen> =
        now.into_iter().map(|one| (one.path.clone(), one)).collect();
    let is_same = |noted: &Seen, now: &Seen| {
        // Some file systems set the time of a directory that a swap moves.
        let is_moved = noted.size == 0 && swapped.contains(&noted.path);
        (noted.inode, noted.size) == (now.inode, now.size) && (is_moved || noted.mtime == now.mtime)
    };
    let as_now = |noted: Seen| match now.remove(&noted.path) {
        Some(now) if is_same(&noted, &now) => now,
        _ => noted,
    };
    noted.into_iter().map(as_now).collect()
}

/// Reads a log of a run.
pub fn read_log(place: &Path, name: &str) -> Outcome<Option<Log>> {
    let log: Option<Log> = log::read(place, name).map_err(cannot("read the log in", place))?;
    match log {
        Some(log) if log.version != VERSION => {
            let what = format!("the log in {} is of another version of kvfs", place.shown());
            Err(Failure::new(Exit::Failed, what).hint("use that version"))
        }
        log => Ok(log),
    }
}

pub fn by_path(all: Vec<Seen>) -> BTreeMap<Name, Seen> {
    all.into_iter().map(|one| (one.path.clone(), one)).collect()
}

/// Reads the state of the files that a run has put into the folder.
pub fn read_noted(place: &Path) -> Outcome<BTreeMap<Name, Seen>> {
    let noted: Option<Vec<Seen>> = log::read(place, SEEN).map_err(cannot("read", place))?;
    Ok(by_path(noted.unwrap_or_default()))
}

/// Returns the first of these paths for a sentence.
pub fn some_paths(paths: &[Vec<u8>]) -> String {
    let name = |path: &Vec<u8>| if path.is_empty() { ".".into() } else { show(path) };
    proposed::some_of(&paths.iter().map(name).collect::<Vec<_>>())
}
