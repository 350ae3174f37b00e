//! Lists the mounts of this process from `/proc/self/mountinfo`. The kernel alone answers these
//! calls, so a dead or hanging mount cannot block them. Only [`is_dead`] sends a request to a mount
//! itself.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The device number "major:minor", as in `/sys/class/bdi` and `st_dev`.
    pub device: String,
    /// The directory of the file system that is mounted: `/`, unless it is a bind mount.
    pub root: PathBuf,
    /// The mount point.
    pub mount_point: PathBuf,
    /// The file system type, such as "fuse.kvfs".
    pub fs_type: String,
    /// The source, as given to mount(2).
    pub source: OsString,
    /// The user that FUSE has recorded for the mount. Without `allow_other`, FUSE admits no other
    /// user.
    pub user: Option<u32>,
}

impl MountEntry {
    /// Returns whether the mount is a FUSE mount.
    pub fn is_fuse(&self) -> bool {
        self.fs_type == "fuse" || self.fs_type.starts_with("fuse.")
    }
}

/// Returns all mounts in the mount namespace of this process, the oldest first.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|&b| b == b'\n').filter_map(parse_line).collect())
}

/// Returns the topmost mount on exactly this path (absolute, without symlinks), if there is one.
pub fn mount_at(path: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rfind(|m| m.mount_point == path))
}

/// Returns the mount that `path` (absolute, without symlinks) lies in.
pub fn mount_of(path: &Path) -> io::Result<Option<MountEntry>> {
    let mut best: Option<MountEntry> = None;
    for m in mounts()? {
        let longer = best
            .as_ref()
            .is_none_or(|b| m.mount_point.as_os_str().len() >= b.mount_point.as_os_str().len());
        if path.starts_with(&m.mount_point) && longer {
            best = Some(m);
        }
    }
    Ok(best)
}

/// Returns whether the file system with this device number is itself read-only. A read-only mount
/// of a writable file system does not count.
pub fn is_read_only(device: &str) -> io::Result<bool> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let mut lines = table.split(|&b| b == b'\n');
    Ok(lines.any(|line| {
        parse_line(line).is_some_and(|mount| mount.device == device)
            && options_of(line).split(|&b| b == b',').any(|option| option == b"ro")
    }))
}

/// Returns whether the daemon of a FUSE mount has ended ("Transport endpoint is not connected").
/// Attributes may still be cached for hours, so this function requests data that the kernel never
/// caches. If the daemon is stopped or hangs, the call hangs, too.
pub fn is_dead(path: &Path) -> bool {
    matches!(
        rustix::fs::statfs(path),
        Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED)
    )
}

/// Returns the options of the file system from the last field of a line. The result is empty if the
/// line has no options.
fn options_of(line: &[u8]) -> &[u8] {
    line.split(|&b| b == b' ').skip_while(|f| *f != b"-").nth(3).unwrap_or_default()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let device = fields.nth(2)?;
    let root = fields.next()?;
    let mount_point = fields.next()?;
    let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
    let fs_type = fields.next()?;
    let source = fields.next()?;
    let user =
        options_of(line).split(|&b| b == b',').find_map(|option| option.strip_prefix(b"user_id="));
    Some(MountEntry {
        device: String::from_utf8_lossy(device).into_owned(),
        root: PathBuf::from(unescape(root)),
        mount_point: PathBuf::from(unescape(mount_point)),
        fs_type: String::from_utf8_lossy(&unescape(fs_type).into_vec()).into_owned(),
        source: unescape(source),
        user: user.and_then(|id| std::str::from_utf8(id).ok()?.parse().ok()),
    })
}

/// Decodes blank, tab, newline and backslash, which are written as `\040` and so on.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail
            .get(..3)
            .filter(|d| *first == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        match octal {
            Some(d) => {
                out.push(d.iter().fold(0u8, |n, c| n.wrapping_mul(8).wrapping_add(c - b'0')));
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    OsStr::from_bytes(&out).to_os_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart_and_unescaped() {
        let line = br"36 35 98:0 /in\040it /mnt/a\040b rw,noatime master:1 shared:2 - fuse.kvfs /x\134y rw,user_id=17,group_id=0";
        let m = parse_line(line).expect("a valid line");
        assert_eq!(m.device, "98:0");
        assert_eq!(m.root, Path::new("/in it"));
        assert_eq!(m.mount_point, Path::new("/mnt/a b"));
        assert_eq!(m.fs_type, "fuse.kvfs");
        assert_eq!(m.source, OsStr::new("/x\\y"));
        assert_eq!(m.user, Some(17));
        assert!(m.is_fuse());
    }

    #[test]
    fn the_options_are_those_of_the_file_system() {
        let line = b"36 35 98:0 / /mnt ro,noatime - fuse.kvfs /x rw,user_id=17";
        assert_eq!(options_of(line), b"rw,user_id=17");
        assert_eq!(options_of(b"36 35 98:0 / /mnt ro"), b"");
        assert!(!is_read_only("none:0").expect("mountinfo"));
    }

    #[test]
    fn a_broken_line_is_skipped() {
        assert_eq!(parse_line(b""), None);
        assert_eq!(parse_line(b"36 35 98:0 / /mnt rw"), None);
        assert_eq!(unescape(br"a\04"), OsStr::new(r"a\04"));
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mount_of(Path::new("/")).expect("mountinfo").is_some());
    }
}
