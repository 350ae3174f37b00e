//! The answers to requests for labels of SELinux, which long listings cause.
//!
//! `ls -l` requests the label of each file, until an answer says that the file system has no
//! labels. A kernel without SELinux makes no labels and ignores them; so on such a kernel
//! EOPNOTSUPP, and not ENODATA, is the answer for a file without a label. A label that was set is
//! kept and returned nevertheless: it is an extended attribute like any other, and may come from a
//! machine that uses SELinux.

use std::fs;

use crate::handler::Errno;

const LABEL: &[u8] = b"security.selinux";

/// Returns whether the kernel uses labels, or `true` if that is unknown.
pub(crate) fn kernel_has_labels() -> bool {
    fs::read_to_string("/proc/filesystems").map_or(true, |all| lists_selinux(&all))
}

/// Returns whether SELinux is on. If it is, the kernel has a file system for it.
fn lists_selinux(filesystems: &str) -> bool {
    filesystems.split_whitespace().any(|word| word == "selinuxfs")
}

/// Returns the error for an attribute that a file does not have.
pub(crate) fn absent(name: &[u8], kernel_has_labels: bool) -> Errno {
    Errno(if name == LABEL && !kernel_has_labels { libc::EOPNOTSUPP } else { libc::ENODATA })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_with_labels_is_known_by_their_file_system() {
        assert!(lists_selinux("nodev\tsysfs\nnodev\tselinuxfs\n\text4\n"));
        assert!(!lists_selinux("nodev\tsysfs\n\text4\n"));
    }

    #[test]
    fn only_labels_are_unsupported_and_only_where_the_kernel_has_none() {
        assert_eq!(absent(LABEL, false).0, libc::EOPNOTSUPP);
        assert_eq!(absent(LABEL, true).0, libc::ENODATA);
        assert_eq!(absent(b"security.capability", false).0, libc::ENODATA);
        assert_eq!(absent(b"user.selinux", false).0, libc::ENODATA);
    }
}
