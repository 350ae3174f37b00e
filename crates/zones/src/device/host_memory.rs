//! The memory that the host can use to cache reads: free memory and clean pages, limited by the
//! machine and by the control groups (version 1 or 2) of this process.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the available memory in bytes, or `None` if it is not known.
pub(super) fn available() -> Option<u64> {
    let machine = field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")? << 10;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let within = groups
        .lines()
        .filter_map(directory)
        .flat_map(|(root, directory)| up(&root, &directory))
        .filter_map(|f| in_group(&f));
    Some(within.fold(machine, u64::min))
}

/// Returns the number after `name` in a text whose lines each have a name and a number.
fn field(lines: &str, name: &str) -> Option<u64> {
    let line = lines.lines().find(|l| l.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Parses a line of `/proc/self/cgroup`. If the line is about memory, returns the root of the
/// hierarchy and the group of this process.
fn directory(line: &str) -> Option<(PathBuf, PathBuf)> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let root = match controllers {
        "" if number == "0" => "/sys/fs/cgroup",
        c if c.split(',').any(|c| c == "memory") => "/sys/fs/cgroup/memory",
        _ => return None,
    };
    Some((root.into(), Path::new(root).join(path.trim_start_matches('/'))))
}

/// Returns a group and all its ancestors.
fn up(root: &Path, directory: &Path) -> Vec<PathBuf> {
    directory.ancestors().take_while(|f| f.starts_with(root)).map(Path::to_path_buf).collect()
}

/// Returns the memory that a control group has left: its limit minus its usage without the page
/// cache. Returns `None` if the group has no limit.
fn in_group(directory: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let stat = read("memory.stat").unwrap_or_default();
    let (limit, used, files) = match number("memory.max") {
        Some(limit) => (limit, number("memory.current")?, field(&stat, "file")),
        None => (
            number("memory.limit_in_bytes")?,
            number("memory.usage_in_bytes")?,
            field(&stat, "total_cache"),
        ),
    };
    Some(limit.saturating_sub(used.saturating_sub(files.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_both_versions_are_found() {
        let of = |line: &str| directory(line).map(|(_, f)| f.display().to_string());
        assert_eq!(of("0::/user.slice/a:b").as_deref(), Some("/sys/fs/cgroup/user.slice/a:b"));
        assert_eq!(of("4:memory:/jobs/1").as_deref(), Some("/sys/fs/cgroup/memory/jobs/1"));
        assert_eq!(of("3:cpu,memory:/").as_deref(), Some("/sys/fs/cgroup/memory/"));
        assert_eq!((of("2:cpu:/jobs"), of("nonsense")), (None, None));
        let all = up(Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/a/b"));
        assert_eq!(
            all,
            ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"].map(PathBuf::from)
        );
    }

    #[test]
    fn a_group_leaves_its_limit_less_what_no_file_can_give_back() {
        let group = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(group.path().join(name), text).unwrap();
        assert_eq!(in_group(group.path()), None);
        put("memory.limit_in_bytes", "1000\n");
        put("memory.usage_in_bytes", "700\n");
        put("memory.stat", "cache 1\ntotal_cache 500\n");
        assert_eq!(in_group(group.path()), Some(800));
        put("memory.max", "max\n");
        put("memory.current", "900\n");
        assert_eq!(in_group(group.path()), Some(800), "no limit of version 2");
        put("memory.max", "2000\n");
        put("memory.stat", "anon 5\nfile 300\n");
        assert_eq!(in_group(group.path()), Some(1400));
        assert!(available().is_some_and(|bytes| bytes > 0));
    }
}
