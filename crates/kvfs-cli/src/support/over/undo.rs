//! Takes the last run back that was applied to a folder, unless others have changed its files
//! since.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::support::layers::layer::{Attributes, Layer};
use crate::support::machine::sandbox::Blocked;
use crate::support::over::folder::{Folder, Locked};
use crate::support::over::log::{self, Log, Name, Seen, State};
use crate::support::over::recovery::recover;
use crate::support::over::run_folders::{
    APPLIED, LOG, SEEN, UNDOING, UPPER, as_noted, by_path, cannot, drop_folder, failure, read_log,
    read_noted, seen, some_paths,
};
use crate::support::over::steps::{ALL, Check, Sides, Way};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;

/// The last run that was applied to a folder.
pub struct Last<'a> {
    folder: &'a Folder,
    locked: Locked,
    place: PathBuf,
    pub log: Log,
    /// The files that the run has put into the folder, as they were then.
    noted: BTreeMap<Name, Seen>,
    pub now: Layer,
    pub before: Layer,
}

impl Last<'_> {
    /// Finds the last run, after what was interrupted is ended. Fails if there is none, or if
    /// others have changed its files since.
    pub fn find<'a>(folder: &'a Folder, output: &Output) -> Outcome<Last<'a>> {
        let locked = folder.lock()?;
        recover(folder, &locked, output)?;
        let place = locked.state.join(APPLIED);
        let nothing = || {
            let what = format!("no run over {} can be undone", folder.path.shown());
            Failure::new(Exit::NotFound, what).hint("only the last one that was applied can be")
        };
        let log = read_log(&place, LOG)?.filter(|log| log.born == folder.born);
        let log = log.ok_or_else(nothing)?;
        let (now, before) = (Layer::open(&folder.path)?, Layer::open(&place.join(UPPER))?);
        let noted = read_noted(&place)?;
        let last = Last { folder, locked, place, log, noted, now, before };
        let changed = last.changed()?;
        match changed.is_empty() {
            true => Ok(last),
            false => {
                let what = format!(
                    "the run over {} cannot be undone: others have changed since then: {}",
                    folder.path.shown(),
                    some_paths(&changed)
                );
                Err(Failure::new(Exit::Conflict, what).hint(format!(
                    "nothing was changed; the files of before are in {}",
                    last.place.join(UPPER).shown()
                )))
            }
        }
    }

    /// Returns the paths that are not as the run has left them.
    fn changed(&self) -> Outcome<Vec<Vec<u8>>> {
        let failed = cannot("read", &self.folder.path);
        let mut noted = self.noted.clone();
        let now = by_path(seen(&self.now, &self.log).map_err(&failed)?);
        let mut changed: Vec<Vec<u8>> = Vec::new();
        for (path, one) in now {
            if noted.remove(&path).is_none_or(|noted| noted != one) {
                changed.push(path.0);
            }
        }
        // Files that are not there any more.
        changed.extend(noted.into_keys().map(|path| path.0));
        for swap in self.log.swaps.iter().filter(|swap| swap.after.is_none()) {
            if self.now.attributes(&swap.path.0).map_err(&failed)?.is_some() {
                changed.push(swap.path.0.clone());
            }
        }
        for directory in &self.log.directories {
            let (path, after) = (&directory.path.0, &directory.after);
            let is_as_left = |now: Attributes| {
                let as_left = (directory.inode, after.mode, after.uid, after.gid);
                now.is_directory() && (now.inode, now.mode, now.uid, now.gid) == as_left
            };
            let now = self.now.attributes(path).map_err(&failed)?.filter(|now| is_as_left(*now));
            let is_left = match (now, &after.xattrs) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(now), xattrs) => {
                    let has = self.now.xattrs(path).map_err(&failed)?;
                    State::of(&now, Some(has)).xattrs == *xattrs
                }
            };
            if !is_left {
                changed.push(path.clone());
            }
        }
        changed.sort_unstable();
        changed.dedup();
        Ok(changed)
    }

    /// Takes the run back.
    pub fn undo(self) -> Outcome {
        let failed = cannot("undo the run over", &self.folder.path);
        let mut log = self.log.clone();
        for directory in &mut log.directories {
            let now = self.now.attributes(&directory.path.0).map_err(&failed)?;
            if now.map(|now| now.mtime) != directory.after.mtime {
                // Others have changed other entries of it since.
                directory.before.mtime = None;
            }
        }
        // Ctrl-C does not leave a half of it: it ends this process after the last step.
        let _held = Blocked::signals().map_err(&failed)?;
        if let Err(e) = log::write(&self.place, UNDOING, &log) {
            // The next command must not carry out what was said to have failed.
            let _ = log::remove(&self.place, UNDOING);
            return Err(failed(e));
        }
        let check = Check::Noted(&self.noted);
        let sides = Sides { folder: &self.now, other: &self.before, check };
        if let Err(stopped) = sides.carry(&log, Way::TakeBack, ALL) {
            // The folder is made as it was before the undo. What others have put there stays.
            sides.carry_rest(&self.log, Way::Apply).map_err(failure)?;
            let now = seen(&self.now, &self.log).map_err(&failed)?;
            let noted = as_noted(self.noted.values().cloned().collect(), now, &self.log);
            rustix::fs::syncfs(&self.locked).map_err(|e| failed(e.into()))?;
            log::write(&self.place, SEEN, &noted).map_err(&failed)?;
            log::remove(&self.place, UNDOING).map_err(&failed)?;
            return Err(failure(stopped));
        }
        rustix::fs::syncfs(&self.locked).map_err(|e| failed(e.into()))?;
        drop_folder(&self.locked, &self.place)
    }
}
