//! Mounts that publish, and mounts by address, in a directory of their own, and the output of
//! `kvfs stat` about them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::{kvfs, succeeds};
use crate::mounted::Mount;

pub fn umount(root: &Path) {
    succeeds(kvfs(&["umount"]).arg(root));
}

fn said(root: &Path, of: &str) -> Value {
    let stat = succeeds(kvfs(&["stat", "--json"]).arg(root));
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    stat[of].clone()
}

pub fn publishing(root: &Path) -> Value {
    said(root, "publishing")
}

/// Waits until a mount reports this about its publications.
#[track_caller]
pub fn awaited(root: &Path, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    awaited_of(root, "publishing", what, holds)
}

/// Waits until a mount reports this about the store that it follows.
#[track_caller]
pub fn awaited_following(root: &Path, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    awaited_of(root, "following", what, holds)
}

#[track_caller]
fn awaited_of(root: &Path, of: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let now = said(root, of);
        if holds(&now) {
            return now;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {now}");
        std::thread::yield_now();
    }
}

/// A directory with a folder that machines share, stores and mounts.
pub struct World {
    directory: tempfile::TempDir,
    pub mounts: Vec<PathBuf>,
}

impl World {
    /// Returns `None` if nothing can be mounted here.
    pub fn new() -> Option<World> {
        Mount::new()?;
        let directory = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(directory.path().join("share")).expect("mkdir");
        Some(World { directory, mounts: vec![] })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn address(&self) -> String {
        format!("dir:{}/work", self.path("share").display())
    }

    pub fn mount(&mut self, store: &Path, name: &str, options: &str) -> PathBuf {
        let root = self.path(name);
        fs::create_dir_all(&root).expect("mkdir");
        let mut mount = kvfs(&["mount"]);
        mount.arg(store).arg(&root).arg("--cache").arg(self.path("cache"));
        if !options.is_empty() {
            mount.args(["-o", options]);
        }
        succeeds(&mut mount);
        self.mounts.push(root.clone());
        root
    }

    /// Returns the published content of a file.
    pub fn published(&mut self, file: &str) -> Option<String> {
        let address = PathBuf::from(self.address());
        let root = self.mount(&address, "there", "");
        let text = fs::read_to_string(root.join(file)).ok();
        umount(&root);
        text
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for root in &self.mounts {
            let _ = kvfs(&["umount", "--force"]).arg(root).output();
        }
    }
}
