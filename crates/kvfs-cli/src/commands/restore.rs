//! `kvfs restore`: restores files of a snapshot by reference.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvdb::{CommitOptions, Durability, TransactionId, TransactionOptions};
use kvdb_server::{ErrorCode, FileError, Files, Reply, Transactions, Whose};
use kvfs::{ViewId, Views};
use kvfs_fuse::view_names;
use serde_json::json;

use crate::support::mounts::mounted::Mounted;
use crate::support::mounts::sockets;
use crate::support::review::proposed;
use crate::support::serving::transactions::OverFiles;
use crate::support::stores::store::{self, Access, Store};
use crate::support::stores::{snapshots, tree};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;
use crate::support::terminal::{failures, text};

/// Restore paths from a snapshot, without copying.
#[derive(clap::Args)]
#[command(after_help = "\
The current file or directory at each path is replaced, a directory with everything in it; paths \
that did not exist in the snapshot are removed. All paths are restored in one transaction, and \
contents are shared by reference, so the cost is that of the names. Owners, modes, times and \
extended attributes are restored, too.

  kvfs restore /mnt monday etc/config src
  kvfs restore --dry-run my.kvfs monday src

In `kvfs run`, the restore is part of the transaction.")]
pub struct Args {
    /// Directory a store is mounted on, or the file of a store that is not mounted.
    target: PathBuf,
    /// Snapshot to restore from.
    snapshot: String,
    /// Paths to restore, from the root of the store, or below the directory it is mounted on.
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Print the changes that would be made, and make none.
    #[arg(long)]
    dry_run: bool,
}

/// A store with a transaction for the restoration.
trait Restoring {
    fn was(&mut self, path: &[u8]) -> Outcome<bool>;
    fn is(&mut self, path: &[u8]) -> Outcome<bool>;
    fn remove(&mut self, path: &[u8]) -> Outcome;
    /// Copies all paths in one call, so that hard links among them stay links.
    fn copy(&mut self, paths: &[&[u8]]) -> Outcome;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Done {
    Replaced,
    MadeAgain,
    Removed,
}

impl Done {
    fn word(self) -> &'static str {
        match self {
            Done::Replaced => "replaced",
            Done::MadeAgain => "made again",
            Done::Removed => "removed",
        }
    }
}

fn restore(
    store: &mut impl Restoring,
    snapshot: &str,
    paths: &[Vec<u8>],
    dry_run: bool,
) -> Outcome<Vec<Done>> {
    // Paths below another restored path are restored with it.
    let comes_along = |path: &[u8]| {
        paths.iter().any(|other| path.strip_prefix(&other[..]).is_some_and(|r| r.starts_with(b"/")))
    };
    let mut all = Vec::new();
    for path in paths {
        let done = match (store.was(path)?, store.is(path)?) {
            (true, true) => Done::Replaced,
            (true, false) => Done::MadeAgain,
            (false, true) => Done::Removed,
            (false, false) => {
                let what =
                    format!("{} is neither in snapshot {snapshot} nor now", text::show(path));
                return Err(Failure::new(Exit::NotFound, what));
            }
        };
        let directory =
            path.iter().rposition(|&byte| byte == b'/').map_or(&b""[..], |at| &path[..at]);
        let waits = directory.is_empty() || comes_along(path);
        if done == Done::MadeAgain && !waits && !store.is(directory)? {
            let what = format!(
                "cannot restore {}: its directory {} is not there",
                text::show(path),
                text::show(directory)
            );
            return Err(Failure::new(Exit::NotFound, what)
                .hint("make the directory, or restore it, with all that is in it"));
        }
        all.push(done);
    }
    if dry_run {
        return Ok(all);
    }
    let mut copied = Vec::new();
    for (path, done) in paths.iter().zip(&all).filter(|(path, _)| !comes_along(path)) {
        if *done != Done::MadeAgain {
            store.remove(path)?;
        }
        if *done != Done::Removed {
            copied.push(&path[..]);
        }
    }
    if !copied.is_empty() {
        store.copy(&copied)?;
    }
    Ok(all)
}

/// Restores over the socket.
struct Live {
    mounted: Mounted,
    id: u64,
    snapshot: String,
}

impl Live {
    /// Returns whether a path exists in a view. Asks the daemon, since `kvfs run` hides the views.
    fn find(&mut self, path: &[u8], view: &[&[u8]]) -> Outcome<bool> {
        let from = [b"/", path].concat();
        let words = [&[b"WALK".as_slice(), b"BEGIN", &from], view].concat();
        let missing = [ErrorCode::NoEntry, ErrorCode::NotDirectory];
        match self.mounted.call_unless(&words, &missing)? {
            Some(_) => self.mounted.call(&[b"WALK", b"DROP"]).map(|_| true),
            None => Ok(false),
        }
    }
}

impl Restoring for Live {
    fn was(&mut self, path: &[u8]) -> Outcome<bool> {
        let snapshot = self.snapshot.clone();
        self.find(path, &[b"SNAPSHOT", snapshot.as_bytes()])
    }

    fn is(&mut self, path: &[u8]) -> Outcome<bool> {
        let id = self.id.to_string();
        self.find(path, &[b"TXN", id.as_bytes()])
    }

    fn remove(&mut self, path: &[u8]) -> Outcome {
        let id = self.id.to_string();
        self.mounted.call(&[b"RMTREE", path, b"TXN", id.as_bytes()]).map(drop)
    }

    fn copy(&mut self, paths: &[&[u8]]) -> Outcome {
        let id = self.id.to_string();
        let from = sources(&self.snapshot, paths);
        let mut words = vec![&b"CLONETREE"[..]];
        words.extend(from.iter().zip(paths).flat_map(|(from, to)| [&from[..], to]));
        words.extend([&b"TXN"[..], id.as_bytes()]);
        self.mounted.call(&words).map(drop)
    }
}

/// Restores in a store that this process has opened.
struct Here {
    over: OverFiles,
    id: TransactionId,
    snapshot: String,
}

impl Here {
    fn find(&self, view: &ViewId, path: &[u8]) -> Outcome<bool> {
        let doing = || format!("cannot look at {}", text::show(path));
        let fs = self.over.0.fs(view).map_err(|e| tree::failure(doing(), e))?;
        match fs.resolve(path) {
            Ok(_) => Ok(true),
            Err(kvfs::Error::NotFound | kvfs::Error::NotDirectory) => Ok(false),
            Err(e) => Err(tree::failure(doing(), e)),
        }
    }
}

impl Restoring for Here {
    fn was(&mut self, path: &[u8]) -> Outcome<bool> {
        self.find(&ViewId::Snapshot(self.snapshot.clone()), path)
    }

    fn is(&mut self, path: &[u8]) -> Outcome<bool> {
        self.find(&ViewId::Transaction(self.id), path)
    }

    fn remove(&mut self, path: &[u8]) -> Outcome {
        let gone = self.over.remove_tree(Whose::Transaction(self.id), path);
        gone.map(drop).map_err(|e| failed(format!("cannot replace {}", text::show(path)), e))
    }

    fn copy(&mut self, paths: &[&[u8]]) -> Outcome {
        let from = sources(&self.snapshot, paths);
        let places: Vec<(&[u8], &[u8])> =
            from.iter().map(Vec::as_slice).zip(paths.iter().copied()).collect();
        let made = self.over.clone_trees(self.id, &places);
        let what = || match paths {
            [path] => text::show(path),
            [path, rest @ ..] => format!("{} and {} more", text::show(path), rest.len()),
            [] => String::new(),
        };
        made.map(drop).map_err(|e| failed(format!("cannot restore {}", what()), e))
    }
}

/// Converts a failure of an operation on files of a store that this process has opened.
fn failed(doing: String, error: FileError) -> Failure {
    match error {
        FileError::Store(error) => failures::of_database(doing, error),
        FileError::NoSpace(what) => Failure::new(Exit::NoSpace, format!("{doing}: {what}")),
        other => Failure::new(Exit::Failed, format!("{doing}: {other}")),
    }
}

/// Returns the paths in a snapshot, for `CLONETREE`.
fn sources(snapshot: &str, paths: &[&[u8]]) -> Vec<Vec<u8>> {
    let snapshot = view_names::directory_name(snapshot);
    let from = |path: &&[u8]| [b"/.kvfs/snapshot/", snapshot.as_bytes(), b"/", path].concat();
    paths.iter().map(from).collect()
}

/// Returns the distinct paths from the root, without trailing slashes.
fn from_root(paths: &[OsString], mount_point: Option<&Path>) -> Outcome<Vec<Vec<u8>>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for path in paths {
        let given = Path::new(path);
        let inside = mount_point.and_then(|root| given.strip_prefix(root).ok()).unwrap_or(given);
        let parts: Vec<&[u8]> = inside
            .as_os_str()
            .as_bytes()
            .split(|&byte| byte == b'/')
            .filter(|part| !part.is_empty() && *part != b".")
            .collect();
        let refused =
            |what: &str| Err(Failure::new(Exit::Usage, format!("{} {what}", given.shown())));
        match parts.first() {
            None => {
                return refused("is the root")
                    .map_err(|f: Failure| f.hint("everything: kvfs snapshot rollback"));
            }
            Some(&b".kvfs") => return refused("leads to views, which are not restored"),
            Some(_) if parts.contains(&&b".."[..]) => return refused("has `..` in it"),
            Some(_) => {}
        }
        let path = parts.join(&b'/');
        if !all.contains(&path) {
            all.push(path);
        }
    }
    Ok(all)
}

fn live(args: &Args) -> Outcome<(Vec<Vec<u8>>, Vec<Done>)> {
    let mut mounted = Mounted::find_branch(&args.target)?;
    let paths = from_root(&args.paths, Some(&mounted.path_of(&mounted.view)))?;
    if !snapshots::all(&mounted.mount_point)?
        .iter()
        .any(|info| info["name"] == args.snapshot.as_str())
    {
        return Err(no_snapshot(&args.snapshot));
    }
    let entered = mounted.entered();
    let id = match entered {
        Some(id) => id,
        None => {
            let clone = mounted.view.clone_name().map(String::from);
            let mut words = vec!["BEGIN", "SI", "LABEL", "restore", "UNDOABLE", "ATTACHED"];
            words.extend(clone.iter().flat_map(|clone| ["OF", clone]));
            let Reply::Integer(id) = mounted.txn(&words)? else { return Err(proposed::odd()) };
            u64::try_from(id).unwrap_or(0)
        }
    };
    let mut live = Live { mounted, id, snapshot: args.snapshot.clone() };
    // The caller's own transaction continues if this fails, so nothing may be left half done:
    // rehearse first to find errors. A savepoint would also roll back the work of other programs in
    // the transaction.
    let rehearsed = match entered {
        Some(_) if !args.dry_run => restore(&mut live, &args.snapshot, &paths, true).map(drop),
        _ => Ok(()),
    };
    let done = rehearsed.and_then(|()| restore(&mut live, &args.snapshot, &paths, args.dry_run));
    let number = id.to_string();
    match (&done, entered) {
        (_, Some(_)) => {}
        (Ok(_), None) if !args.dry_run => drop(live.mounted.txn(&["COMMIT", &number, "SYNC"])?),
        _ => drop(live.mounted.txn(&["ABORT", &number])?),
    }
    Ok((paths, done?))
}

fn no_snapshot(name: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no snapshot {name}"))
        .hint("kvfs snapshot list shows them")
}

fn here(store: &Store, args: &Args) -> Outcome<(Vec<Vec<u8>>, Vec<Done>)> {
    let paths = from_root(&args.paths, None)?;
    let cannot = |e: kvfs::Error| tree::failure("cannot restore", e);
    let failed = |e: kvdb::Error| failures::of_database("cannot restore", e);
    let fs = store.file_system()?;
    let over = OverFiles(Views::new(store.db.clone(), fs));
    let views = over.0.clone();
    if store.db.snapshot_label(&args.snapshot).is_none() {
        views.shutdown().map_err(cannot)?;
        return Err(no_snapshot(&args.snapshot));
    }
    let options = TransactionOptions {
        label: "restore".into(),
        undoable: true,
        ..TransactionOptions::default()
    };
    let id = views.begin(options).map_err(cannot)?;
    let mut here = Here { over, id, snapshot: args.snapshot.clone() };
    let done = restore(&mut here, &args.snapshot, &paths, args.dry_run);
    let ended = match &done {
        Ok(_) if !args.dry_run => {
            let durability = Durability::Synced;
            here.over.commit(id, CommitOptions { durability, ..CommitOptions::default() })
        }
        _ => here.over.abort(id),
    };
    drop(here);
    let down = views.shutdown().map_err(cannot);
    let done = done?;
    ended.map_err(failed)?;
    down?;
    Ok((paths, done))
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let (paths, done) = if args.target.is_dir() || sockets::socket_of(&args.target)?.is_some() {
        live(&args)?
    } else {
        let access = Access::ReadWrite;
        let store = store::open_waiting(&args.target, access, None)?;
        let done = here(&store, &args);
        let closed = store.close();
        let done = done?;
        closed?;
        done
    };
    let mut lines = String::new();
    let mut all = Vec::new();
    for (path, done) in paths.iter().zip(&done) {
        lines.push_str(&format!("{}: {}\n", text::show(path), done.word()));
        let mut object = serde_json::Map::new();
        text::put(&mut object, "path", path);
        object.insert("done".into(), done.word().into());
        all.push(object);
    }
    if args.dry_run {
        lines.push_str("nothing was changed\n");
    }
    output.print(lines, json!({"restored": all, "dry_run": args.dry_run}))
}
