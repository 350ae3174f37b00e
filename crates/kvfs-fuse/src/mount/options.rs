//! The options of a mount, as flags for mount(2) and as words for `fusermount3`.

use std::ffi::OsString;
use std::path::PathBuf;

use rustix::mount::MountFlags;

/// The mount's options, as mount(8) knows them.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source that the table of mounts shows.
    pub source: OsString,
    /// The file system type becomes `fuse.<subtype>`, or plain `fuse` if this is empty.
    pub subtype: String,
    /// Others than the mounting user may use the mount. Needs `default_permissions`.
    pub allow_other: bool,
    /// The kernel checks permissions. Without this it asks for the attributes of directories less
    /// often (to check them, it has to ask after each change in a directory), and permissions do
    /// not restrict users of the mount: so only root may do without, and not with `allow_other`.
    pub default_permissions: bool,
    /// mount(8)'s `ro`.
    pub read_only: bool,
    /// mount(8)'s `suid`.
    pub suid: bool,
    /// mount(8)'s `dev`.
    pub dev: bool,
    /// mount(8)'s `exec`.
    pub exec: bool,
    /// mount(8)'s `sync`.
    pub synchronous: bool,
    /// mount(8)'s `dirsync`.
    pub dir_synchronous: bool,
    /// The option for access times that the table of mounts shows. The handler keeps the times,
    /// since the kernel leaves them to it.
    pub access_times: AccessTimes,
    /// The directory of the file system that becomes the mount's root, relative to its own root;
    /// empty for the root itself. This takes the right to mount.
    pub root: PathBuf,
}

/// The option for access times that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// mount(8)'s `relatime`.
    #[default]
    Relative,
    /// mount(8)'s `noatime`.
    Never,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            source: "kvfs".into(),
            subtype: "kvfs".into(),
            allow_other: false,
            default_permissions: true,
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            synchronous: false,
            dir_synchronous: false,
            access_times: AccessTimes::Relative,
            root: PathBuf::new(),
        }
    }
}

impl MountOptions {
    pub(super) fn fs_type(&self) -> String {
        if self.subtype.is_empty() { "fuse".into() } else { format!("fuse.{}", self.subtype) }
    }

    pub(super) fn flags(&self) -> MountFlags {
        let mut flags = match self.access_times {
            AccessTimes::Relative => MountFlags::RELATIME,
            AccessTimes::Never => MountFlags::NOATIME,
        };
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, !self.suid);
        flags.set(MountFlags::NODEV, !self.dev);
        flags.set(MountFlags::NOEXEC, !self.exec);
        flags.set(MountFlags::SYNCHRONOUS, self.synchronous);
        flags.set(MountFlags::DIRSYNC, self.dir_synchronous);
        flags
    }

    /// Returns the mount options for `fusermount3`, which takes them by name.
    pub(super) fn for_fusermount(&self) -> String {
        let source = self.source.to_string_lossy().replace('\\', r"\\").replace(',', r"\,");
        let mut words = vec![format!("fsname={source}")];
        if !self.subtype.is_empty() {
            words.push(format!("subtype={}", self.subtype));
        }
        let named = [
            (self.default_permissions, "default_permissions"),
            (self.allow_other, "allow_other"),
            (self.read_only, "ro"),
            (self.suid, "suid"),
            (self.dev, "dev"),
            (!self.exec, "noexec"),
            (self.synchronous, "sync"),
            (self.dir_synchronous, "dirsync"),
            (self.access_times == AccessTimes::Never, "noatime"),
        ];
        words.extend(named.into_iter().filter(|(on, _)| *on).map(|(_, word)| word.to_string()));
        words.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_set_user_id_are_off_unless_asked_for() {
        let flags = MountOptions::default().flags();
        assert!(flags.contains(MountFlags::NODEV | MountFlags::NOSUID | MountFlags::RELATIME));
        assert!(!flags.contains(MountFlags::NOEXEC | MountFlags::RDONLY));
        let open = MountOptions { suid: true, dev: true, ..Default::default() };
        assert!(!open.flags().intersects(MountFlags::NODEV | MountFlags::NOSUID));
    }

    #[test]
    fn an_empty_subtype_leaves_the_type_plain() {
        assert_eq!(MountOptions::default().fs_type(), "fuse.kvfs");
        assert_eq!(MountOptions { subtype: String::new(), ..Default::default() }.fs_type(), "fuse");
    }
}
