//! A memory cgroup for one child process, so that the page cache cannot serve all reads. Making one
//! needs the right to do so (root).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A cgroup that exists until this is dropped.
pub struct MemoryLimit {
    group: PathBuf,
}

impl MemoryLimit {
    /// A new cgroup that allows `bytes`, page cache included.
    pub fn new(bytes: u64) -> Result<MemoryLimit> {
        let name = format!("kvbench-{}", std::process::id());
        let second = Path::new("/sys/fs/cgroup");
        let first = second.join("memory");
        let (group, file) = if first.join("cgroup.procs").exists() {
            (first.join(name), "memory.limit_in_bytes")
        } else if fs::read_to_string(second.join("cgroup.subtree_control"))
            .unwrap_or_default()
            .contains("memory")
        {
            (second.join(name), "memory.max")
        } else {
            bail!("there is no memory controller under {}", second.display());
        };
        fs::create_dir_all(&group)
            .with_context(|| format!("cannot make the cgroup {}", group.display()))?;
        let limit = MemoryLimit { group };
        fs::write(limit.group.join(file), bytes.to_string())
            .context("cannot set the cgroup's limit")?;
        Ok(limit)
    }

    pub fn group(&self) -> &Path {
        &self.group
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.group);
    }
}

/// Puts this process into `group`; from now on its memory counts there.
pub fn enter(group: &Path) -> Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
        .with_context(|| format!("cannot enter the cgroup {}", group.display()))
}
