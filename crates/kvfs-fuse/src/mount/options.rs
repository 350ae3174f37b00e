//! The options of a mount, as flags for mount(2) and as words for `fusermount3`.

use std::ffi::OsString;
use std::path::PathBuf;

use rustix::mount::MountFlags;

/// The options of a mount, as mount(8) knows them.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source that the table of mounts shows.
    pub source: OsString,
    /// The subtype. The file system type becomes `fuse.<subtype>`, or plain `fuse` if the subtype
    /// is empty.
    pub subtype: String,
    /// Users other than the mounting user may use the mount. This option requires
    /// `default_permissions`.
    pub allow_other: bool,
    /// The kernel checks permissions. Without this option, permissions do not restrict users of the
    /// mount, so only root may omit it, and not together with `allow_other`. The kernel then
    /// requests the attributes of directories less often: to check permissions, it requests them
    /// after each change in a directory.
    pub default_permissions: bool,
    /// The option `ro` of mount(8).
    pub read_only: bool,
    /// The option `suid` of mount(8).
    pub suid: bool,
    /// The option `dev` of mount(8).
    pub dev: bool,
    /// The option `exec` of mount(8).
    pub exec: bool,
    /// The option `sync` of mount(8).
    pub synchronous: bool,
    /// The option `dirsync` of mount(8).
    pub dir_synchronous: bool,
    /// The option for access times that the table of mounts shows. The handler keeps the times,
    /// because the kernel leaves them to the handler.
    pub access_times: AccessTimes,
    /// The directory that becomes the root of the mount, relative to the root of the file system,
    /// or an empty path for that root itself. This option requires the right to mount.
    pub root: PathBuf,
}

/// The option for access times that the table of mounts shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// The option `relatime` of mount(8).
    #[default]
    Relative,
    /// The option `noatime` of mount(8).
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
