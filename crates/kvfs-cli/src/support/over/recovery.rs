//! Ends what was interrupted: an apply of a run, or an undo.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::FlockOperation;

use crate::support::layers::layer::Layer;
use crate::support::over::folder::{Folder, Locked, remove_all};
use crate::support::over::run_folders::{
    APPLIED, DROPPED, LOG, RUN, UNDOING, UPPER, cannot, drop_folder, failure, finish, keep,
    keep_applied, read_log, read_noted, some_paths,
};
use crate::support::over::steps::{ALL, Check, Sides, Way};
use crate::support::terminal::output::{Outcome, Output};
use crate::support::terminal::text::Shown;

/// Ends what was interrupted: an apply is completed, or else taken back; an undo is completed; the
/// upper layer of a run that was killed is removed.
pub fn recover(folder: &Folder, locked: &Locked, output: &Output) -> Outcome {
    let entries = fs::read_dir(&locked.state).map_err(cannot("list", &locked.state))?;
    for entry in entries {
        let entry = entry.map_err(cannot("list", &locked.state))?;
        let (name, place) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
        if name.starts_with(DROPPED) {
            let _ = remove_all(&place);
        } else if name.starts_with(RUN) {
            recover_run(folder, locked, &place, output)?;
        }
    }
    complete(folder, locked, output)
}

fn recover_run(folder: &Folder, locked: &Locked, place: &Path, output: &Output) -> Outcome {
    let lock = File::open(place).map_err(cannot("open", place))?;
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        // The run lives.
        return Ok(());
    }
    let Some(log) = read_log(place, LOG)? else {
        // It was killed before it was applied. What it has left running may still write there.
        let _ = remove_all(place);
        return Ok(());
    };
    if log.born != folder.born {
        let kept = keep(place)?;
        output.note(format!(
            "a run over a folder that is gone was interrupted: {}; what it did is in {}",
            log.label,
            kept.shown()
        ));
        return Ok(());
    }
    let (dir, other) = (Layer::open(&folder.path)?, Layer::open(&place.join(UPPER))?);
    let sides = Sides { folder: &dir, other: &other, check: Check::Since(log.started) };
    let Err(stopped) = sides.carry(&log, Way::Apply, ALL) else {
        output.note(format!(
            "a run over {} was interrupted, and is completed: {}",
            folder.path.shown(),
            log.label
        ));
        return finish(locked, place, &sides, &log);
    };
    let foreign = sides.carry_rest(&log, Way::TakeBack).map_err(failure)?;
    rustix::fs::syncfs(locked).map_err(|e| cannot("sync", place)(e.into()))?;
    // The log goes with it: a folder that is kept is not carried out.
    let kept = keep(place)?;
    output.note(format!(
        "a run over {} was interrupted, and is taken back, since {}: {}; what it did is in {}",
        folder.path.shown(),
        failure(stopped).message,
        log.label,
        kept.shown()
    ));
    if !foreign.is_empty() {
        let paths = some_paths(&foreign);
        output.note(format!("{paths} stays as others have made it"));
    }
    Ok(())
}

/// Completes an undo that was interrupted. What others have changed since stays.
fn complete(folder: &Folder, locked: &Locked, output: &Output) -> Outcome {
    let place = locked.state.join(APPLIED);
    let log = read_log(&place, UNDOING)?.filter(|log| log.born == folder.born);
    let Some(log) = log else { return Ok(()) };
    let (now, before) = (Layer::open(&folder.path)?, Layer::open(&place.join(UPPER))?);
    let noted = read_noted(&place)?;
    let sides = Sides { folder: &now, other: &before, check: Check::Noted(&noted) };
    let foreign = sides.carry_rest(&log, Way::TakeBack).map_err(failure)?;
    rustix::fs::syncfs(locked).map_err(|e| cannot("sync", &place)(e.into()))?;
    let note = format!("an undo in {} was interrupted, and is completed", folder.path.shown());
    if foreign.is_empty() {
        drop_folder(locked, &place)?;
        output.note(note);
        return Ok(());
    }
    // The old versions of what stays are kept.
    let kept = keep_applied(locked)?;
    output.note(format!(
        "{note}; {} stays as others have made it, and was before as in {}",
        some_paths(&foreign),
        kept.shown()
    ));
    Ok(())
}
