//! `kvfs clone-tree`: copies a directory by reference.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvdb_server::Cloned;
use serde_json::{Value, json};

use crate::support::machine::paths;
use crate::support::mounts::daemons::Record;
use crate::support::mounts::mounted::{Mounted, Naming};
use crate::support::mounts::place::{self, Place, View};
use crate::support::serving::guest;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text::Shown;

/// Copy a file, or a directory with everything in it, by reference: no data is copied, and the cost
/// is that of the names.
#[derive(clap::Args)]
#[command(after_help = "\
SRC and DST lie in the same mounted store, and in the same view of it (the main branch, or one \
transaction). The copy appears atomically; it has the owners, modes, times and extended \
attributes of the original. The two change independently afterwards, and shared data is kept for \
as long as one of them uses it. A file with several names in SRC is one file with these names in \
DST; names outside of SRC still refer to the original.

In a mount from a server (kvfs mount kvfs://HOST:PORT) the server shares the data, and the names \
go over the wire. Other programs wait for the mount until the copy is made.

  kvfs clone-tree /mnt/project /mnt/project.try")]
pub struct Args {
    /// File or directory to copy.
    src: PathBuf,
    /// Name of the copy; if it is an existing directory, the copy is made in it under the name of
    /// SRC.
    dst: PathBuf,
}

/// Returns the place of a path in the mount with this device.
fn place_in(path: &Path, device: &str, mount_point: &Path) -> Outcome<Place> {
    let outside = || {
        let (path, mount_point) = (path.shown(), mount_point.shown());
        let what = format!("{path} is not in the store mounted at {mount_point}");
        Failure::new(Exit::Usage, what)
    };
    let place = place::of(path).map_err(|e| Failure::io("cannot read the table of mounts", &e))?;
    place.filter(|place| place.mount.device == device).ok_or_else(outside)
}

fn nothing_is_made_in(view: &View, path: &Path) -> Failure {
    let what = format!("{} lies in {view}, where nothing is made", path.shown());
    Failure::new(Exit::Usage, what)
}

/// Returns the location of a path: the path from the root of its view, and the transaction if it is
/// a transaction's view.
fn position(mounted: &Mounted, path: &Path, device: &str) -> Outcome<(PathBuf, Option<Naming>)> {
    let place = place_in(path, device, &mounted.mount_point)?;
    match &place.view {
        View::Mainline | View::Transaction(_) | View::Clone(_) => {
            Ok((place.rest, mounted.naming(&place.view)))
        }
        view => Err(nothing_is_made_in(view, path)),
    }
}

/// Makes the copy in a mount whose store is with a server. Returns `None` if it is another kind of
/// mount.
fn copied_over_a_wire(src: &Path, directory: &Path, copy: &Path) -> Outcome<Option<Value>> {
    let Some(place) = place::of_target(directory)? else { return Ok(None) };
    let device = &place.mount.device;
    let Some(record) = Record::read(device).filter(guest::is_served) else { return Ok(None) };
    let inside = |path: &Path| {
        let place = place_in(path, device, &record.mount_point)?;
        match &place.view {
            View::Mainline => Ok(place.rest),
            view => Err(nothing_is_made_in(view, path)),
        }
    };
    let answer = guest::clone_tree(&record, &inside(src)?, &inside(copy)?)?;
    let Some(answer) = answer else { return Ok(None) };
    match answer["result"].as_str() {
        Some("copied") => Ok(Some(answer)),
        Some("snapshot") => {
            let what = format!("{} shows a snapshot, where nothing is made", directory.shown());
            Err(Failure::new(Exit::Usage, what))
        }
        _ => {
            let why = answer["why"].as_str().unwrap_or("its daemon gave an unexpected reply");
            Err(Failure::new(Exit::Failed, why))
        }
    }
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let full = |path: &Path| {
        paths::full_path(path).map_err(|e| Failure::io(format!("cannot find {}", path.shown()), &e))
    };
    let src = full(&args.src)?;
    let (directory, name) = match (args.dst.is_dir(), src.file_name(), args.dst.file_name()) {
        (true, Some(name), _) => (full(&args.dst)?, name.to_owned()),
        (false, _, Some(name)) => {
            let directory =
                args.dst.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            (full(directory)?, name.to_owned())
        }
        _ => return Err(Failure::new(Exit::Usage, "the copy must have a name")),
    };
    if let Some(answer) = copied_over_a_wire(&src, &directory, &directory.join(&name))? {
        let number = |name: &str| answer[name].as_u64().unwrap_or(0);
        return say((number("directories"), number("files"), number("bytes")), output);
    }
    let mut mounted = Mounted::find_view(&directory)?;
    let device = place::of_target(&directory)?.map(|place| place.mount.device).unwrap_or_default();
    let (from, of) = position(&mounted, &src, &device)?;
    let (to, into) = position(&mounted, &directory.join(&name), &device)?;
    if of != into {
        return Err(Failure::new(
            Exit::Usage,
            "both must lie in one view: nothing is shared between two of them by this",
        ));
    }
    let mut words = vec![&b"CLONETREE"[..], from.as_os_str().as_bytes(), to.as_os_str().as_bytes()];
    words.extend(of.iter().flat_map(Naming::words));
    let reply = mounted.call(&words)?;
    let Some(Cloned { directories, files, bytes }) = Cloned::of_reply(&reply) else {
        return Err(Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply"));
    };
    say((directories, files, bytes), output)
}

fn say((directories, files, bytes): (u64, u64, u64), output: &Output) -> Outcome {
    let text = format!("{files} files and {directories} directories, {} shared", human_size(bytes));
    output.print(text, json!({"files": files, "directories": directories, "bytes": bytes}))
}
