//! The settings of a repository that make git call the hook.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output as Ended, Stdio};

use serde_json::json;

use crate::support::mounts::place::{self, View};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;

const HOOK: &str = "core.fsmonitor";
const VERSION: &str = "core.fsmonitorHookVersion";
/// The end of the command that is set; git appends its own arguments.
const WORDS: &[u8] = b"' fsmonitor";
/// The oldest git that takes a directory in an answer for everything below it.
const OLDEST: (u32, u32) = (2, 37);

fn git(directory: &Path, words: &[&OsStr]) -> Outcome<Ended> {
    let mut git = Command::new("git");
    git.arg("-C").arg(directory).args(words).stdin(Stdio::null());
    git.output().map_err(|e| Failure::io("cannot run git", &e))
}

/// Returns the line that git has printed.
fn line(ended: &Ended) -> OsString {
    let text = ended.stdout.strip_suffix(b"\n").unwrap_or(&ended.stdout);
    OsString::from_vec(text.to_vec())
}

fn failed(doing: &str, ended: &Ended) -> Failure {
    let said = String::from_utf8_lossy(&ended.stderr);
    Failure::new(Exit::Failed, format!("{doing}: {}", said.trim()))
}

/// Returns the root of the work tree that contains a path.
fn work_tree(path: &Path) -> Outcome<PathBuf> {
    let ended = git(path, &["rev-parse".as_ref(), "--show-toplevel".as_ref()])?;
    if !ended.status.success() || ended.stdout.is_empty() {
        let what = format!("{} is in no work tree of git", path.shown());
        let mut failure = failed(&what, &ended);
        failure.exit = Exit::NotFound;
        return Err(failure);
    }
    Ok(line(&ended).into())
}

/// Parses the output of `git version`.
fn version_in(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_whitespace().nth(2)?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn must_be_new_enough(tree: &Path) -> Outcome {
    let ended = git(tree, &["version".as_ref()])?;
    let text = String::from_utf8_lossy(&ended.stdout).trim().to_string();
    if version_in(&text).is_some_and(|version| version >= OLDEST) {
        return Ok(());
    }
    let (major, minor) = OLDEST;
    let what = format!("this is {text}, which misses changes of directories that the hook names");
    Err(Failure::new(Exit::Failed, what)
        .hint(format!("git {major}.{minor} or later is wanted, for all who use the repository")))
}

/// Quotes a word for the shell that git starts the hook with.
fn quoted(path: &[u8]) -> Vec<u8> {
    let mut word = vec![b'\''];
    for &byte in path {
        match byte {
            b'\'' => word.extend_from_slice(b"'\\''"),
            byte => word.push(byte),
        }
    }
    word.push(b'\'');
    word
}

/// Returns the hook that is set in the repository's own configuration.
fn current(tree: &Path) -> Outcome<Option<OsString>> {
    let words = ["config", "--local", "--get", HOOK].map(OsStr::new);
    let ended = git(tree, &words)?;
    match ended.status.code() {
        Some(0) => Ok(Some(line(&ended))),
        // The setting does not exist.
        Some(1) => Ok(None),
        _ => Err(failed("cannot read the repository's configuration", &ended)),
    }
}

fn is_ours(hook: &OsStr) -> bool {
    hook.as_bytes().ends_with(WORDS)
}

fn configure(tree: &Path, words: &[&OsStr]) -> Outcome {
    let all: Vec<&OsStr> =
        ["config", "--local"].map(OsStr::new).into_iter().chain(words.iter().copied()).collect();
    let ended = git(tree, &all)?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(failed("cannot change the repository's configuration", &ended)),
    }
}

pub fn install(path: &Path, output: &Output) -> Outcome {
    let tree = work_tree(path)?;
    let shown = tree.shown();
    let is_store = |place: &place::Place| place.mount.fs_type == "fuse.kvfs";
    let Some(place) = place::of_target(&tree)?.filter(is_store) else {
        let what = format!("{shown} does not lie in a mounted store, which knows what has changed");
        return Err(Failure::new(Exit::Usage, what)
            .hint("mount the store first, or move the work tree into it: kvfs mount STORE DIR"));
    };
    if place.view != View::Mainline {
        let what = format!("{shown} lies in {}, of which there is no list of changes", place.view);
        return Err(Failure::new(Exit::Usage, what)
            .hint("install it in the store itself; elsewhere git looks at every file"));
    }
    must_be_new_enough(&tree)?;
    if let Some(other) = current(&tree)?.filter(|hook| !is_ours(hook)) {
        let what = format!("{shown} has another file system monitor: {}", other.shown());
        return Err(Failure::new(Exit::Failed, what)
            .hint(format!("to replace it: git -C {shown} config --unset {HOOK}")));
    }
    let program = std::env::current_exe()
        .and_then(|program| program.canonicalize())
        .map_err(|e| Failure::io("cannot find this program", &e))?;
    let mut hook = quoted(program.as_os_str().as_bytes());
    hook.extend_from_slice(&WORDS[1..]);
    let hook = OsString::from_vec(hook);
    configure(&tree, &[VERSION.as_ref(), "2".as_ref()])?;
    configure(&tree, &[HOOK.as_ref(), &hook])?;
    let text = format!("git asks the store what has changed in {shown}");
    output.print(text, json!({"work_tree": tree.to_string_lossy(), "hook": hook.to_string_lossy()}))
}

pub fn uninstall(path: &Path, output: &Output) -> Outcome {
    let tree = work_tree(path)?;
    let shown = tree.shown();
    match current(&tree)? {
        Some(hook) if is_ours(&hook) => {
            configure(&tree, &["--unset".as_ref(), HOOK.as_ref()])?;
            // The user may have removed it.
            let _ = configure(&tree, &["--unset".as_ref(), VERSION.as_ref()]);
            let text = format!("git looks at every file of {shown}");
            output.print(text, json!({"work_tree": tree.to_string_lossy(), "removed": true}))
        }
        Some(other) => {
            let what = format!("{shown} has another file system monitor: {}", other.shown());
            Err(Failure::new(Exit::Failed, what).hint("it was not set by kvfs, and stays"))
        }
        None => {
            let text = format!("{shown} has no file system monitor");
            output.print(text, json!({"work_tree": tree.to_string_lossy(), "removed": false}))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_any_name_is_one_word_of_the_shell() {
        let names: [&[u8]; 5] = [b"/a/kvfs", b"/a b/kvfs", b"/it's/$(x)`y`", b"/\xff\n", b"/\"\\"];
        for name in names {
            let mut script = b"printf %s ".to_vec();
            script.extend(quoted(name));
            let ended = Command::new("sh").arg("-c").arg(OsStr::from_bytes(&script)).output();
            assert_eq!(ended.expect("a shell").stdout, name);
        }
    }

    #[test]
    fn versions_of_git_are_read() {
        assert_eq!(version_in("git version 2.39.5"), Some((2, 39)));
        assert_eq!(version_in("git version 2.50.0.rc1 (Vendor-1)"), Some((2, 50)));
        assert_eq!(version_in("git version"), None);
        assert!((2, 36) < OLDEST && (2, 37) >= OLDEST && (3, 0) >= OLDEST);
    }
}
