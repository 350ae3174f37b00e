//! A git work tree in a mounted store, and the reports of git and of the hook of `kvfs fsmonitor`
//! about it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::place::{Place, kvfs, succeeds, text};

/// The answer of the hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub token: String,
    /// The paths, or `None` for all of them.
    pub paths: Option<BTreeSet<Vec<u8>>>,
}

impl Answer {
    #[track_caller]
    fn of(bytes: &[u8]) -> Answer {
        let bytes = bytes.strip_suffix(b"\0").expect("it ends with a zero byte");
        let mut words = bytes.split(|&byte| byte == 0);
        let token = String::from_utf8(words.next().expect("a token").to_vec()).expect("text");
        let paths: BTreeSet<Vec<u8>> = words.map(<[u8]>::to_vec).collect();
        assert!(paths.iter().all(|path| !path.is_empty()), "{paths:?}");
        match paths.contains(&b"/"[..]) {
            true => Answer { token, paths: None },
            false => Answer { token, paths: Some(paths) },
        }
    }

    /// The paths, as text.
    #[track_caller]
    pub fn listed(&self) -> Vec<String> {
        let paths = self.paths.as_ref().unwrap_or_else(|| panic!("a list, not everything"));
        paths.iter().map(|path| text(path)).collect()
    }
}

pub struct WorkTree<'a> {
    pub place: &'a Place,
    pub root: PathBuf,
}

fn without_us(command: &mut Command) -> &mut Command {
    command.env_remove("KVFS_TXN").env_remove("KVFS_SOCKET").stdin(Stdio::null())
}

impl<'a> WorkTree<'a> {
    /// A repository in a directory of the mount (`""`: its root), with the hook.
    pub fn new(place: &'a Place, directory: &str) -> WorkTree<'a> {
        let tree = WorkTree::at(place, &place.mnt().join(directory));
        fs::create_dir_all(&tree.root).expect("a directory");
        tree.git(&["init", "--quiet"]);
        tree.install();
        tree
    }

    pub fn at(place: &'a Place, root: &Path) -> WorkTree<'a> {
        // Without a slash at its end.
        WorkTree { place, root: root.components().collect() }
    }

    pub fn install(&self) {
        succeeds(kvfs(&["fsmonitor", "install"]).arg(&self.root));
    }

    pub fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.root.join(name.as_ref())
    }

    pub fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap_or_else(|e| panic!("{name}: {e}"));
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut git = Command::new("git");
        without_us(&mut git).current_dir(&self.root).args(words);
        for name in ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"] {
            git.env(name, "someone");
        }
        for name in ["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"] {
            git.env(name, "someone@example.org");
        }
        git.env("HOME", self.place.dir.path()).env("GIT_CONFIG_NOSYSTEM", "1");
        git
    }

    #[track_caller]
    pub fn git(&self, words: &[&str]) -> String {
        succeeds(&mut self.command(words))
    }

    #[track_caller]
    pub fn add_all(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "-m", "all"]);
    }

    /// Returns the status of git with the hook.
    #[track_caller]
    pub fn status(&self) -> String {
        self.git(&["status", "--porcelain", "-z"]).replace('\0', "\n")
    }

    /// Returns the status of git when it examines everything and does not update its index.
    #[track_caller]
    pub fn looked(&self) -> String {
        let without = ["-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false"];
        let words = [&without[..], &["status", "--porcelain", "-z"]].concat();
        succeeds(self.command(&words).env("GIT_OPTIONAL_LOCKS", "0")).replace('\0', "\n")
    }

    #[track_caller]
    pub fn agrees(&self, what: &str) {
        let (with, without) = (self.status(), self.looked());
        assert_eq!(with, without, "with the hook, and without it: {what}");
    }

    /// Returns the answer of the hook to a token.
    #[track_caller]
    pub fn hook(&self, token: &str) -> Answer {
        let mut hook = kvfs(&["fsmonitor", "2", token]);
        let ended = without_us(&mut hook).current_dir(&self.root).output().expect("it runs");
        assert!(ended.status.success() && ended.stderr.is_empty(), "{}", text(&ended.stderr));
        Answer::of(&ended.stdout)
    }

    /// The current token.
    #[track_caller]
    pub fn token(&self) -> String {
        self.hook("").token
    }

    /// Returns the paths that the hook has named since a token.
    #[track_caller]
    pub fn since(&self, token: &str) -> Vec<String> {
        self.hook(token).listed()
    }

    /// Returns the reason why the hook answers a token with everything.
    #[track_caller]
    pub fn why(&self, token: &str) -> String {
        let mut hook = kvfs(&["--json", "fsmonitor", "2", token]);
        let said = succeeds(without_us(&mut hook).current_dir(&self.root));
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(said["everything"], true, "{said}");
        said["why"].as_str().expect("a reason").to_owned()
    }
}

/// A name that is any bytes.
pub fn name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Returns whether git is installed; prints it if not.
pub fn has_git() -> bool {
    let found = Command::new("git").arg("version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: there is no git here");
    }
    found
}
