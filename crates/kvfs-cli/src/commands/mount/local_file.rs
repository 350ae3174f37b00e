//! The local file that is mounted.

use std::path::{Path, PathBuf};

use places::{Address, local_copies};

use crate::support::mounting::mount_options::Options;
use crate::support::stores::store;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

/// Returns the local file to mount: that of the store itself, or the one by which a store in object
/// storage is read or written.
pub fn file_to_mount(
    store: &Path,
    address: Option<&Address>,
    cache: Option<&Path>,
    options: &Options,
    output: &Output,
) -> Outcome<PathBuf> {
    let Some(address) = address else {
        let file = existing(store)?;
        if !options.mount.read_only && store::is_copy(&file) {
            let copy = file.shown();
            let what =
                format!("{copy} is a copy, in which changes would be lost with the next pull");
            let hint = "mount it with -o ro, or see kvfs fork";
            return Err(Failure::new(Exit::Usage, what).hint(hint));
        }
        return Ok(file);
    };
    match options.writing {
        writing if options.offline => {
            Ok(local_copies::as_it_is(address, cache, writing.is_some())?)
        }
        Some(_) => Ok(local_copies::path_of_writer(address, cache)?),
        None => {
            let local = local_copies::of(address, cache)?;
            let (name, generation) = (address.to_string(), local.copy.generation);
            let name = text::show(name.as_bytes());
            output.note(format!("{name} as of generation {generation}, read-only"));
            Ok(local.path)
        }
    }
}

/// Fails if a mount on this directory would hide the file of the store.
pub fn may_lie_on(store: &Path, dir: &Path) -> Outcome {
    if !store.starts_with(dir) {
        return Ok(());
    }
    let hides = format!(
        "cannot mount {} on {}: the mount would hide the store itself",
        store.shown(),
        dir.shown()
    );
    Err(Failure::new(Exit::Usage, hides).hint("mount on another directory"))
}

/// Returns the full path of the store, since the daemon works in another directory.
fn existing(path: &Path) -> Outcome<PathBuf> {
    path.canonicalize().map_err(|e| {
        let failure = Failure::io(format!("cannot open the store {}", path.shown()), &e);
        if e.kind() == std::io::ErrorKind::NotFound {
            failure.hint(format!("make it: kvfs create {}", path.shown()))
        } else {
            failure
        }
    })
}
