//! Resolves paths of a mounted store: to the store itself, or to one of the views below `.kvfs`. A
//! command works on the view that the path leads to, or refuses it; it never takes a view for the
//! store itself.
//!
//! The kernel reports which directory of the file system is the root of a mount, so a view is
//! recognized even if it is mounted elsewhere, as by `kvfs run`.

use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

use kvfs_fuse::mounts::{self, MountEntry};
use kvfs_fuse::view_names::{directory_name, view_name};
use places::ServedDirectory;

use crate::support::layered_runs::inside_layer;
use crate::support::machine::{destination, paths};
use crate::support::mounts::waiting;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// The directory of the views.
const HIDDEN: &str = ".kvfs";

/// The view whose files a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// The store outside of any transaction.
    Mainline,
    Transaction(u64),
    Snapshot(String),
    Clone(String),
    /// A directory above the views.
    Listing,
}

impl View {
    /// Returns the view of a branch of the store; `""` is the store itself.
    pub fn of_branch(name: &str) -> View {
        if name.is_empty() { View::Mainline } else { View::Clone(name.into()) }
    }

    /// Returns the branch of the view, or `None` for a transaction or a snapshot.
    pub fn branch(&self) -> Option<&str> {
        match self {
            View::Mainline => Some(""),
            View::Clone(name) => Some(name),
            View::Transaction(_) | View::Snapshot(_) | View::Listing => None,
        }
    }

    /// Returns the name of the clone, or `None` for any other view.
    pub fn clone_name(&self) -> Option<&str> {
        self.branch().filter(|name| !name.is_empty())
    }

    /// Returns the directory of the view in a file system that is mounted at `mount_point`.
    pub fn path(&self, mount_point: &Path) -> PathBuf {
        let (kind, name) = match self {
            View::Mainline => return mount_point.to_owned(),
            View::Transaction(id) => ("txn", id.to_string()),
            View::Snapshot(name) => ("snapshot", directory_name(name)),
            View::Clone(name) => ("clone", directory_name(name)),
            View::Listing => return mount_point.join(HIDDEN),
        };
        mount_point.join(HIDDEN).join(kind).join(name)
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            View::Mainline => f.write_str("the store"),
            View::Transaction(id) => write!(f, "transaction {id}"),
            View::Snapshot(name) => write!(f, "snapshot {name}"),
            View::Clone(name) => write!(f, "clone {name}"),
            View::Listing => f.write_str("a list of views"),
        }
    }
}

/// A directory in a FUSE mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub mount: MountEntry,
    pub view: View,
    /// The path below the view's root.
    pub rest: PathBuf,
    /// True if the mount itself shows the view, as opposed to the path naming it.
    pub bound: bool,
}

/// Returns the view that a path from the file system's root leads to, and the path from the view's
/// root.
fn view_of(path: &Path) -> (View, PathBuf) {
    let Ok(inside) = path.strip_prefix(HIDDEN) else { return (View::Mainline, path.to_owned()) };
    let mut parts = inside.components();
    let name = |part: Component<'_>| part.as_os_str().to_str().map(String::from);
    let (mut kind, mut which) = (parts.next().and_then(name), parts.next().and_then(name));
    if kind.as_deref() == Some("user") {
        // The component after it is the name of a transaction.
        (kind, which) = (Some("txn".into()), parts.next().and_then(name));
    }
    let view = match (kind.as_deref(), which) {
        (Some("txn"), Some(id)) => id.parse().map_or(View::Listing, View::Transaction),
        (Some("snapshot"), Some(name)) => View::Snapshot(view_name(&name)),
        (Some("clone"), Some(name)) => View::Clone(view_name(&name)),
        _ => View::Listing,
    };
    let rest = parts.as_path();
    match view {
        // The view of a nested transaction lies within its parent's, and the transactions and
        // snapshots of a clone that is mounted by itself lie within the clone's view.
        View::Transaction(_) | View::Clone(_) if rest.starts_with(HIDDEN) => view_of(rest),
        view => (view, rest.to_owned()),
    }
}

/// Returns the view that contains a directory, by its path from the root of the file system.
pub fn view_at(path: &Path) -> View {
    view_of(path.strip_prefix("/").unwrap_or(path)).0
}

/// Returns the directory of the view that a mount shows, or `None` if it shows another view.
pub fn directory_of(view: &View, mount: &MountEntry) -> Option<PathBuf> {
    let (mounted, directory) = view_of(mount.root.strip_prefix("/").unwrap_or(&mount.root));
    (mounted == *view).then_some(directory)
}

/// Resolves a path (absolute, without symbolic links). Returns `None` if it is in no FUSE mount.
pub fn of(path: &Path) -> io::Result<Option<Place>> {
    let Some(mount) = mounts::mount_of(path)?.filter(MountEntry::is_fuse) else { return Ok(None) };
    let below = |path: &Path| path.strip_prefix("/").unwrap_or(path).to_owned();
    let begins = below(&mount.root);
    let shown = view_of(&begins).0;
    let inside =
        path.strip_prefix(&mount.mount_point).map_or_else(|_| PathBuf::new(), Path::to_owned);
    let (view, rest) = view_of(&begins.join(inside));
    let bound = shown != View::Mainline && shown == view;
    Ok(Some(Place { mount, view, rest, bound }))
}

/// Resolves a path passed by a user, if it is a directory. Returns `None` for a store's file, which
/// has no views.
pub fn of_target(target: &Path) -> Outcome<Option<Place>> {
    let cannot = |e: io::Error| Failure::io(format!("cannot find {}", target.shown()), &e);
    must_let_us_in(target)?;
    let path = paths::full_path(target).map_err(|e| not_found(target, &e))?;
    let _waiting = waiting::on(&path);
    if path.is_dir() || mounts::is_dead(&path) { of(&path).map_err(cannot) } else { Ok(None) }
}

/// Returns the failure for a path that leads to nothing. The address of a server is not a path.
pub fn not_found(target: &Path, error: &io::Error) -> Failure {
    match ServedDirectory::parse(target) {
        Ok(Some(server)) => {
            Failure::new(Exit::Usage, format!("{server}: this is done where the store is"))
                .hint("give the store, or the directory that it is mounted on, on the server")
        }
        _ => Failure::io(format!("cannot find {}", target.shown()), error),
    }
}

/// Fails if a path lies in a mount that another user has not opened to others, or in the layer of a
/// layered run: any result about such a mount would be wrong.
pub fn must_let_us_in(path: &Path) -> Outcome {
    let full = paths::full_path(path).or_else(|_| std::path::absolute(path)).unwrap_or_default();
    inside_layer::must_be_outside(&full)?;
    let Ok(Some(mount)) = mounts::mount_of(&full) else { return Ok(()) };
    let Some(user) = mount.user.filter(|_| mount.is_fuse()) else { return Ok(()) };
    if user == rustix::process::geteuid().as_raw()
        || rustix::fs::stat(&mount.mount_point).err() != Some(rustix::io::Errno::ACCESS)
    {
        return Ok(());
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then(|| format!("{name} (uid {user})"))
    });
    let who = named.unwrap_or_else(|| format!("with uid {user}"));
    let even_us = if rustix::process::geteuid().is_root() { ", not even root" } else { "" };
    let what = format!(
        "{} belongs to user {who}: FUSE lets in no one else{even_us}",
        mount.mount_point.shown()
    );
    Err(Failure::new(Exit::NotPermitted, what)
        .hint("do it as that user, or have it mounted with -o allow_other"))
}

/// Returns whether a path refers to a store: a file that contains one, or a directory in a mount.
pub fn means_a_store(target: &Path) -> bool {
    match target.is_dir() {
        true => of_target(target).is_ok_and(|place| place.is_some()),
        false => destination::is_store(target),
    }
}

/// Returns the store first and the other argument second, even if they were passed in reverse, as
/// cp and tar do. They are swapped only if exactly the second one is a store.
pub fn store_first(store: PathBuf, other: PathBuf) -> (PathBuf, PathBuf) {
    // A missing path may be a directory to be made in a store.
    let there = store.as_os_str() == "-" || store.symlink_metadata().is_ok();
    match there && !means_a_store(&store) && means_a_store(&other) {
        true => (other, store),
        false => (store, other),
    }
}

/// Fails if a path names a view, for operations on the whole store.
pub fn must_be_the_store(target: &Path) -> Outcome {
    match of_target(target)? {
        Some(place) if place.view != View::Mainline && !place.bound => {
            Err(place.refused(target, "the whole store"))
        }
        _ => Ok(()),
    }
}

/// Fails if a path names a view that is neither the store nor a clone, for operations on those.
pub fn must_be_a_branch(target: &Path) -> Outcome {
    match of_target(target)? {
        Some(place) if place.view.branch().is_none() && !place.bound => {
            Err(place.refused(target, "the store or to a clone"))
        }
        _ => Ok(()),
    }
}

/// Returns the branch that a path leads to; `""` is the store itself, mounted or not.
pub fn branch_of(target: &Path) -> Outcome<String> {
    must_be_a_branch(target)?;
    let place = of_target(target)?;
    Ok(place.and_then(|place| place.view.branch().map(String::from)).unwrap_or_default())
}

/// Returns the clone that a path names, as opposed to the one that a mount itself shows. Commands
/// that are given such a path work on what belongs to that clone.
pub fn named_clone(target: &Path) -> Outcome<Option<String>> {
    let place = of_target(target)?.filter(|place| !place.bound);
    Ok(place.and_then(|place| place.view.clone_name().map(String::from)))
}

/// Returns the store that a path of it or of a clone leads to, and the branch in it.
pub fn store_and_branch(target: &Path) -> Outcome<(PathBuf, String)> {
    let branch = branch_of(target)?;
    let place = of_target(target)?.filter(|_| !branch.is_empty());
    Ok((place.map_or_else(|| target.to_owned(), |place| place.root()), branch))
}

impl Place {
    /// Returns the mount point of the whole file system, or of this mount if there is none.
    pub fn root(&self) -> PathBuf {
        let MountEntry { mount_point, .. } = self.root_mount();
        mount_point
    }

    /// Returns the mount of the whole file system, or this one if there is none.
    pub fn root_mount(&self) -> MountEntry {
        let whole = |m: &MountEntry| m.device == self.mount.device && m.root == Path::new("/");
        let all = mounts::mounts().unwrap_or_default();
        all.into_iter().rfind(whole).unwrap_or_else(|| self.mount.clone())
    }

    /// Returns the failure of a command that does not apply to a view. `done_to` describes what it
    /// applies to.
    pub fn refused(&self, target: &Path, done_to: &str) -> Failure {
        let what =
            format!("{} leads into {}, and this is done to {done_to}", target.shown(), self.view);
        Failure::new(Exit::Usage, what).hint(format!(
            "give the directory where it is mounted: {}",
            self.mount.mount_point.shown()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_one_view() {
        for (path, view, rest) in [
            ("", View::Mainline, ""),
            ("a/b", View::Mainline, "a/b"),
            ("a/.kvfs/txn/1", View::Mainline, "a/.kvfs/txn/1"),
            (".kvfs-not", View::Mainline, ".kvfs-not"),
            (".kvfs", View::Listing, ""),
            (".kvfs/txn", View::Listing, ""),
            (".kvfs/txn/17", View::Transaction(17), ""),
            (".kvfs/txn/17/a/b", View::Transaction(17), "a/b"),
            (".kvfs/user/1000/17/a/b", View::Transaction(17), "a/b"),
            (".kvfs/user/1000", View::Listing, ""),
            (".kvfs/snapshot/monday/a", View::Snapshot("monday".into()), "a"),
            (".kvfs/clone/c", View::Clone("c".into()), ""),
            (".kvfs/clone/a%2F7/b", View::Clone("a/7".into()), "b"),
            (".kvfs/clone/c/.kvfs/user/0/17/a", View::Transaction(17), "a"),
            (".kvfs/clone/c/.kvfs/snapshot/s/a", View::Snapshot("s".into()), "a"),
            (".kvfs/clone/c/.kvfs/txn", View::Listing, ""),
            (".kvfs/txn/x", View::Listing, ""),
        ] {
            assert_eq!(view_of(Path::new(path)), (view, PathBuf::from(rest)), "{path}");
        }
    }
}
