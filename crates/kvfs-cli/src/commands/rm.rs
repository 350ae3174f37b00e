//! `kvfs rm`: removes a file, or a directory with everything in it, in one commit.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvdb_server::Removed;
use kvfs::Views;
use kvfs_fuse::mounts;
use serde::Serialize;

use crate::support::machine::paths;
use crate::support::mounts::mounted::{Mounted, Naming};
use crate::support::mounts::place::{self, View};
use crate::support::stores::store::{self, Access};
use crate::support::stores::tree;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text;

/// Remove files and whole directories, each path in one commit.
#[derive(clap::Args)]
#[command(after_help = "\
In a mounted store, a path lies in the mount or in the view of a transaction (.kvfs/txn/ID); in \
`kvfs run` the removal is part of the transaction. A directory is removed atomically with \
everything in it: other programs see all of it or nothing, and so does the store after a power \
loss. The cost is a walk over its names instead of a call for each file; other calls wait during \
the walk. Open files keep their contents until they are closed, and files with names elsewhere \
keep those names. Snapshots are unchanged.

A directory with more than four million names below it is refused: remove the directories in it \
one by one.

  kvfs rm /mnt/build /mnt/build.old
  kvfs rm --store my.kvfs /build            a store that is not mounted")]
pub struct Args {
    /// Files to remove, or directories with everything in them.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// File of a store that is not mounted; the paths start at its root.
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Ignore files that do not exist.
    #[arg(short, long)]
    force: bool,
    /// Accepted for compatibility with rm(1); directories are always removed with everything in
    /// them.
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
}

#[derive(Clone, Copy, Default, Serialize)]
struct Counts {
    files: u64,
    directories: u64,
    /// The content of files that have lost their last name.
    bytes: u64,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let bar = output.progress("removing", Some(args.paths.len() as u64).filter(|n| *n > 1), false);
    bar.enable_steady_tick(std::time::Duration::from_millis(100));
    let mut counts = Counts::default();
    let mut store = Unmounted::open(args.store.as_deref())?;
    let mut failed: Option<Failure> = None;
    for path in &args.paths {
        let gone = match &mut store {
            Some(store) => store.remove(path),
            None => remove_mounted(path),
        };
        match gone {
            Ok(gone) => {
                counts.files += gone.files;
                counts.directories += gone.directories;
                counts.bytes += gone.bytes;
            }
            Err(failure) if args.force && failure.exit == Exit::NotFound => {}
            // Continue with the other paths, like rm(1).
            Err(failure) => match &failed {
                Some(_) => output.note(&failure.message),
                None => failed = Some(failure),
            },
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let closed = store.map_or(Ok(()), Unmounted::close);
    let Counts { files, directories, bytes } = counts;
    let count = |n: u64, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
    let text = format!(
        "removed {} and {}, {}",
        count(files, "file", "files"),
        count(directories, "directory", "directories"),
        human_size(bytes)
    );
    match failed {
        Some(failure) => Err(failure),
        None => closed.and_then(|()| output.print(text, counts)),
    }
}

/// Removes a path of a mounted store. The last name is not followed.
fn remove_mounted(path: &Path) -> Outcome<Counts> {
    let shown = text::show(path.as_os_str().as_bytes());
    if ends_in_dots(path) {
        return Err(Failure::new(
            Exit::Usage,
            format!("{shown} names no entry of a directory: give the name that it has"),
        ));
    }
    let cannot = |e: std::io::Error| Failure::io(format!("cannot find {shown}"), &e);
    place::must_let_us_in(path)?;
    let full = paths::path_beside(path).map_err(cannot)?;
    full.symlink_metadata().map_err(cannot)?;
    let table = mounts::mounts().map_err(|e| Failure::io("cannot read the table of mounts", &e))?;
    if let Some(mount) = table.iter().find(|mount| mount.mount_point.starts_with(&full)) {
        let what = format!(
            "{} is a mount point: it is not removed",
            text::show(mount.mount_point.as_os_str().as_bytes())
        );
        return Err(
            Failure::new(Exit::Busy, what).hint("unmount it, or give the directories in it")
        );
    }
    let directory = full.parent().unwrap_or(Path::new("/"));
    let mut mounted = Mounted::find_view(directory)?;
    let place = place::of(&full)
        .map_err(cannot)?
        .ok_or_else(|| Failure::new(Exit::NotFound, format!("{shown} is in no store")))?;
    match &place.view {
        View::Clone(_) if place.rest.as_os_str().is_empty() => {
            return Err(Failure::new(
                Exit::Usage,
                format!("{shown} is a clone: it is dropped by kvfs clone drop"),
            ));
        }
        View::Mainline | View::Transaction(_) | View::Clone(_) => {}
        View::Listing => {
            return Err(Failure::new(
                Exit::Usage,
                format!("{shown} is a view: a transaction is ended by kvfs txn"),
            ));
        }
        view @ View::Snapshot(_) => {
            return Err(Failure::new(
                Exit::Usage,
                format!(
                    "{shown} lies in {view}: only the store, its clones and transactions are changed"
                ),
            ));
        }
    }
    let naming = mounted.naming(&place.view);
    let mut words = vec![&b"RMTREE"[..], place.rest.as_os_str().as_bytes()];
    words.extend(naming.iter().flat_map(Naming::words));
    let reply = mounted.call(&words).map_err(|failure| Failure {
        message: format!("cannot remove {shown}: {}", failure.message),
        ..failure
    })?;
    let Some(Removed { directories, files, bytes }) = Removed::of_reply(&reply) else {
        return Err(Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply"));
    };
    Ok(Counts { files, directories, bytes })
}

fn ends_in_dots(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let last = bytes.rsplit(|&b| b == b'/').find(|name| !name.is_empty());
    matches!(last, None | Some(b"." | b".."))
}

/// A store that is not mounted.
struct Unmounted {
    store: store::Store,
    views: Views,
}

impl Unmounted {
    fn open(path: Option<&Path>) -> Outcome<Option<Unmounted>> {
        let Some(path) = path else { return Ok(None) };
        let store = store::open_waiting(path, Access::ReadWrite, None)?;
        let fs = store.file_system()?;
        let views = Views::new(store.db.clone(), fs);
        Ok(Some(Unmounted { store, views }))
    }

    fn remove(&mut self, path: &Path) -> Outcome<Counts> {
        let shown = path.as_os_str().as_bytes();
        let gone = self.views.remove_tree(&kvfs::ViewId::Mainline, shown);
        let gone =
            gone.map_err(|e| tree::failure(format!("cannot remove {}", text::show(shown)), e))?;
        Ok(Counts { directories: gone.directories, files: gone.files, bytes: gone.bytes })
    }

    fn close(self) -> Outcome {
        let Unmounted { store, views } = self;
        let saved = views.shutdown().and(views.mainline().shutdown());
        drop(views);
        saved
            .map_err(|e| tree::failure("the last changes could not be written", e))
            .and(store.close())
    }
}
