//! The hook: reports the paths of the current work tree that may have changed since a token.
//!
//! A superfluous path makes git examine one file; a missing one hides a change. So whenever
//! anything is uncertain, the answer is that everything may have changed.
//!
//! If a path is in git's index, git takes it for that file, otherwise for a directory with
//! everything below it in the index. Git also lists the parent directory of the path again, to find
//! untracked files. It would not forget its cached state of a directory that was made or moved
//! there, or of the directories below, so the answer names a path in each of them. Git ignores
//! paths that it would refuse in an index (`names`), so another path in the same directory is named
//! instead.

use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvdb_server::Reply;
use kvfs_fuse::mounts;
use serde_json::{Map, Value, json};

use super::names::{self, ANY};
use super::token::{self, NONE, Token};
use crate::support::mounts::mounted::Mounted;
use crate::support::mounts::place::{self, Place, View};
use crate::support::mounts::waiting;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output, taken};
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

/// The number of changes requested at once.
const COUNT: &str = "65536";
/// The limit of directories to name below new ones; beyond it, examining everything is cheaper.
const MOST_DIRECTORIES: usize = 100_000;

/// The answer to git.
struct Answer {
    token: String,
    /// Paths from the root of the work tree, or the reason why everything may have changed.
    paths: Result<BTreeSet<Vec<u8>>, String>,
}

/// The work tree whose root is the current directory.
struct WorkTree {
    root: PathBuf,
    place: Place,
}

fn unsure(why: impl Into<String>) -> Failure {
    Failure::new(Exit::Failed, why)
}

fn odd() -> Failure {
    unsure("the store's daemon gave an unexpected list of changes")
}

fn text_of(reply: &Reply) -> Outcome<String> {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8(bytes.to_vec()).map_err(|_| odd()),
        _ => Err(odd()),
    }
}

impl WorkTree {
    fn here() -> Outcome<WorkTree> {
        let cannot = |e: io::Error| Failure::io("cannot find the work tree", &e);
        let root = std::env::current_dir().map_err(cannot)?;
        let place = place::of(&root).map_err(cannot)?;
        let place = place
            .filter(|place| place.mount.fs_type == "fuse.kvfs")
            .ok_or_else(|| unsure(format!("{} does not lie in a mounted store", root.shown())))?;
        // Compare devices, since another file system may be mounted at the path now.
        let stat = rustix::fs::stat(".").map_err(|e| cannot(e.into()))?;
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        if place.mount.device != format!("{major}:{minor}") {
            return Err(unsure(format!("something is mounted over {}", root.shown())));
        }
        let all = mounts::mounts().map_err(cannot)?;
        let within = all.iter().find(|m| m.mount_point != root && m.mount_point.starts_with(&root));
        match within {
            // The store does not know of changes there.
            Some(other) => Err(unsure(format!(
                "{} is mounted within the work tree",
                other.mount_point.shown()
            ))),
            None => Ok(WorkTree { root, place }),
        }
    }

    fn token(&self, position: &str) -> Token {
        let path = self.place.rest.as_os_str().as_bytes();
        Token::new(position, &self.place.view.to_string(), path)
    }

    fn is_read_only(&self) -> bool {
        mounts::is_read_only(&self.place.mount.device).unwrap_or(false)
    }

    /// Returns the position that the answer extends to, after all earlier writes have been
    /// committed.
    fn position(&self, mounted: &mut Mounted) -> Outcome<String> {
        match &self.place.view {
            // Commit the writes of programs that are in no commit yet.
            View::Mainline => text_of(&mounted.call(&[b"CHANGES", b"SETTLED"])?),
            // If a snapshot is mounted by itself, the whole store is read-only: the snapshot cannot
            // be dropped and replaced by another one of the same name.
            View::Snapshot(_) if self.is_read_only() && mounted.shows_alone() => {
                text_of(&mounted.call(&[b"CHANGES", b"NOW"])?)
            }
            // Writes in other views are in no list, and a token for them would get into the store
            // with git's index when they are committed or merged.
            view => Err(unsure(format!("the work tree lies in {view}, which has no list"))),
        }
    }

    fn answer(&self, before: &[u8]) -> Outcome<Answer> {
        let mut mounted = Mounted::find_view(&self.root)?;
        if let Some(id) = mounted.entered() {
            return Err(unsure(format!("this program runs in transaction {id}")));
        }
        let now = self.token(&self.position(&mut mounted)?);
        let everything = |why: String| Answer { token: now.text(), paths: Err(why) };
        let Some(before) = Token::parse(before) else {
            return Ok(everything("there is no earlier answer".into()));
        };
        if before.tree != now.tree {
            return Ok(everything("the earlier answer was for another work tree".into()));
        }
        if before.list() != now.list() {
            return Ok(everything("the list of changes does not reach back so far".into()));
        }
        if self.place.view != View::Mainline {
            return Ok(Answer { token: now.text(), paths: Ok(BTreeSet::new()) });
        }
        let found = changes(&mut mounted, &before.position, &now.position)
            .and_then(|(position, rows)| Ok((self.token(&position), self.paths(&rows)?)));
        Ok(match found {
            Ok((token, paths)) => Answer { token: token.text(), paths: Ok(paths) },
            Err(failure) => everything(failure.message),
        })
    }

    /// Returns the changes as paths of the work tree.
    fn paths(&self, rows: &[Row]) -> Outcome<BTreeSet<Vec<u8>>> {
        let here = self.place.rest.as_os_str().as_bytes();
        let (mut paths, mut directories) = (BTreeSet::new(), BTreeSet::new());
        for Row { path, what } in rows {
            match below(path, here) {
                Some(inside) => {
                    // Skip the repository itself, which is not part of the work tree.
                    if inside == b".git" || inside.starts_with(b".git/") {
                        continue;
                    }
                    paths.insert(told(inside)?);
                    if what == "made" && is_directory(&self.root.join(OsStr::from_bytes(inside)))? {
                        directories.insert(inside.to_vec());
                    }
                }
                // The path is the work tree itself, or a directory that contains it.
                None if what != "changed" && (path == here || below(here, path).is_some()) => {
                    return Err(unsure("the work tree was made or moved"));
                }
                None => {}
            }
        }
        self.add_directories(directories, &mut paths)?;
        Ok(paths)
    }

    /// Adds a path in each of these directories and in all directories below them, which marks
    /// their entries as changed.
    fn add_directories(
        &self,
        made: BTreeSet<Vec<u8>>,
        paths: &mut BTreeSet<Vec<u8>>,
    ) -> Outcome<()> {
        let (mut todo, mut seen): (Vec<_>, HashSet<Vec<u8>>) =
            (made.into_iter().collect(), HashSet::new());
        while let Some(directory) = todo.pop() {
            // Git does not list nested repositories.
            if names::last(&directory) == b".git" || !seen.insert(directory.clone()) {
                continue;
            }
            if seen.len() > MOST_DIRECTORIES {
                return Err(unsure("very many directories were made or moved"));
            }
            let cannot = |e: io::Error| Failure::io("cannot list a directory that was made", &e);
            let entries = match fs::read_dir(self.root.join(OsStr::from_bytes(&directory))) {
                // The directory was removed in the meantime, which the next answer reports.
                Err(e) if is_gone(&e) => continue,
                entries => entries.map_err(cannot)?,
            };
            for entry in entries {
                let entry = entry.map_err(cannot)?;
                let is_directory = match entry.file_type() {
                    Ok(kind) => kind.is_dir(),
                    Err(e) if is_gone(&e) => false,
                    Err(e) => return Err(cannot(e)),
                };
                if is_directory {
                    todo.push([&directory[..], b"/", entry.file_name().as_bytes()].concat());
                }
            }
            paths.insert(told(&[&directory[..], b"/", ANY].concat())?);
        }
        Ok(())
    }
}

/// Returns the path that stands for a path in the answer to git.
fn told(path: &[u8]) -> Outcome<Vec<u8>> {
    names::told(path).ok_or_else(|| {
        unsure("something has changed in a directory of a name that git does not take")
    })
}

/// A path from the root of the view, and the kind of its change.
struct Row {
    path: Vec<u8>,
    what: String,
}

/// Returns the changes of files from one position at least up to another, and the position that
/// they extend to.
fn changes(mounted: &mut Mounted, from: &str, to: &str) -> Outcome<(String, Vec<Row>)> {
    let goal = token::number(to).ok_or_else(odd)?;
    let (mut position, mut rows) = (from.to_string(), Vec::new());
    loop {
        let since = [&b"CHANGES"[..], b"SINCE", position.as_bytes()];
        let words = [&since[..], &[b"COUNT", COUNT.as_bytes(), b"FILES"]].concat();
        let Reply::Array(reply) = mounted.call(&words)? else { return Err(odd()) };
        let [next, Reply::Array(list)] = &reply[..] else { return Err(odd()) };
        for row in list {
            let Reply::Array(fields) = row else { return Err(odd()) };
            let [_, _, kind, path, what] = &fields[..] else { return Err(odd()) };
            match (text_of(kind)?.as_str(), path) {
                ("file", Reply::Bulk(path)) => {
                    rows.push(Row { path: path.to_vec(), what: text_of(what)? });
                }
                ("key" | "range", _) => {}
                _ => return Err(unsure("a commit has changed too many files for a list")),
            }
        }
        let next = text_of(next)?;
        let stands = next == position;
        position = next;
        if token::number(&position).ok_or_else(odd)? >= goal {
            return Ok((position, rows));
        }
        if stands {
            return Err(odd());
        }
    }
}

/// Returns a path relative to a directory, or `None` if it is not inside.
fn below<'a>(path: &'a [u8], directory: &[u8]) -> Option<&'a [u8]> {
    if directory.is_empty() {
        return (!path.is_empty()).then_some(path);
    }
    path.strip_prefix(directory)?.strip_prefix(b"/").filter(|rest| !rest.is_empty())
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn is_directory(path: &Path) -> Outcome<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(found.is_dir()),
        Err(e) if is_gone(&e) => Ok(false),
        Err(e) => Err(Failure::io("cannot look at what has changed", &e)),
    }
}

/// Answers git. There is always an answer, if only that everything may have changed.
pub fn run(before: &OsString, output: &Output) -> Outcome {
    // Every git command would show text on standard error.
    waiting::be_silent();
    let answer = WorkTree::here().and_then(|tree| tree.answer(before.as_bytes()));
    let answer =
        answer.unwrap_or_else(|failure| Answer { token: NONE.into(), paths: Err(failure.message) });
    if output.is_json() {
        return output.print("", described(&answer));
    }
    let mut bytes = [answer.token.as_bytes(), b"\0"].concat();
    match &answer.paths {
        Ok(paths) => paths.iter().for_each(|path| {
            bytes.extend_from_slice(path);
            bytes.push(0);
        }),
        Err(_) => bytes.extend_from_slice(b"/\0"),
    }
    let mut out = io::stdout().lock();
    taken(out.write_all(&bytes).and_then(|()| out.flush())).map(drop)
}

fn described(answer: &Answer) -> Value {
    let path = |path: &Vec<u8>| {
        let mut object = Map::new();
        text::put(&mut object, "path", path);
        Value::Object(object)
    };
    let paths: Option<Vec<Value>> =
        answer.paths.as_ref().ok().map(|paths| paths.iter().map(path).collect());
    json!({
        "token": answer.token,
        "everything": answer.paths.is_err(),
        "why": answer.paths.as_ref().err(),
        "paths": paths,
    })
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn what_lies_in_a_directory_is_told_by_whole_names() {
        let cases: [(&str, &str, Option<&str>); 8] = [
            ("a/b", "a", Some("b")),
            ("a/b/c", "a", Some("b/c")),
            ("a", "a", None),
            ("ab", "a", None),
            ("a-b/c", "a", None),
            ("b", "a", None),
            ("a/b", "", Some("a/b")),
            ("", "", None),
        ];
        for (path, directory, want) in cases {
            let found = below(path.as_bytes(), directory.as_bytes());
            assert_eq!(found, want.map(str::as_bytes), "{path} in {directory}");
        }
    }
}
