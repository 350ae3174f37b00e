//! The reasons why mounting, unmounting or serving a mount fails.

use std::io;
use std::path::PathBuf;

/// The reason why a mount or an unmount failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mount point is not a directory.
    #[error("cannot mount on {0}: it is not a directory")]
    NotADirectory(PathBuf),
    /// All users are admitted, and permissions are not checked.
    #[error(
        "allow_other without default_permissions would let every user do everything: the kernel has to check permissions"
    )]
    Unguarded,
    /// Permissions are not checked, but modes bind this user.
    #[error(
        "without default_permissions the kernel does not look at modes, which is right only for a root whom they do not bind: \
         mount as root of the first user namespace, with CAP_DAC_OVERRIDE"
    )]
    BoundByModes,
    /// The device cannot be opened.
    #[error("there is no FUSE here: cannot open /dev/fuse: {0}")]
    NoFuse(io::Error),
    /// The mount call failed.
    #[error("cannot mount on {0}: {1}")]
    Mount(PathBuf, io::Error),
    /// The directory that should become the mount's root does not exist.
    #[error("there is no {0} in the file system")]
    NoRoot(PathBuf),
    /// Only a user who may mount can make a directory of the file system the mount's root.
    #[error("only a user who may mount can mount {0} alone, without the rest of the file system")]
    RootNeedsRight(PathBuf),
    /// The unmount call failed.
    #[error("cannot unmount {0}: {1}")]
    Unmount(PathBuf, io::Error),
    /// The kernel refuses io_uring.
    #[error("cannot mount on {0} with requests over io_uring: {1}")]
    NoRings(PathBuf, io::Error),
    /// io_uring and the write-back cache exclude each other.
    #[error(
        "requests over io_uring come in no order that the kernel's write-back cache could rely on"
    )]
    RingsGather,
    /// A mount cannot be continued.
    #[error("cannot go on with the mount on {0}: {1}")]
    TakeOver(PathBuf, io::Error),
    /// A thread of the session failed.
    #[error("the FUSE session of {0} ended with an error: {1}")]
    Session(PathBuf, io::Error),
}
