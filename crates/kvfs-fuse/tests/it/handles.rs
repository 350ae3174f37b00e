//! Tests of files that are opened by handle after the kernel has forgotten them, as an NFS server
//! and some backup programs do, and tests of access times.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::real::{BOTH, Real, policy, sh};
use kvdb::Kvdb;
use kvfs::{Atime, FsOptions};
use kvfs_fuse::NodeId;

/// `struct file_handle`.
#[repr(C)]
#[derive(Clone)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

fn handle_of(path: &Path) -> Handle {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("a path");
    let mut handle = Handle { bytes: 128, kind: 0, handle: [0; 128] };
    let mut mount = 0;
    // SAFETY: the handle has as much room as it says.
    let done = unsafe {
        libc::name_to_handle_at(
            libc::AT_FDCWD,
            path.as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount,
            0,
        )
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    handle
}

fn open(mount: &Path, handle: &Handle) -> io::Result<File> {
    let root = File::open(mount)?;
    let mut handle = handle.clone();
    // SAFETY: the kernel returned the handle, and only this code owns the descriptor.
    unsafe {
        match libc::open_by_handle_at(root.as_raw_fd(), (&raw mut handle).cast(), libc::O_RDONLY) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

#[test]
fn a_handle_is_good_after_the_kernel_has_forgotten_the_file() {
    for write_back in BOTH {
        let db = Kvdb::in_memory();
        let Some(m) = Real::with(db.clone(), FsOptions::default(), &policy(write_back)) else {
            return;
        };
        sh(m.dir.path(), "mkdir -p a/b; echo hello > a/b/f; echo gone > a/gone; ln -s f a/link");
        let handles = ["a/b/f", "a/b", "a", "."].map(|name| handle_of(&m.path(name)));
        let gone = handle_of(&m.path("a/gone"));
        fs::remove_file(m.path("a/gone")).expect("unlink");
        m.views.mainline().sync_all().expect("synced");
        drop(m);
        // On a new mount the kernel has cached nothing.
        let m = Real::with(db, FsOptions::default(), &policy(write_back)).expect("mounted before");
        let [file, directory, above, root] =
            handles.map(|handle| open(m.dir.path(), &handle).expect("a handle that is good"));
        let mut seen = [0; 6];
        file.read_exact_at(&mut seen, 0).expect("read");
        assert_eq!(&seen, b"hello\n");
        let ino = |path: &str| fs::metadata(m.path(path)).expect("stat").ino();
        assert_eq!(directory.metadata().expect("stat").ino(), ino("a/b"));
        assert_eq!(above.metadata().expect("stat").ino(), ino("a"));
        assert_eq!(root.metadata().expect("stat").ino(), ino("."));
        // The kernel has found the way up from it.
        let way =
            fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).expect("a path");
        assert_eq!(way, m.path("a/b"));
        assert_eq!(
            open(m.dir.path(), &gone).expect_err("it is gone").raw_os_error(),
            Some(libc::ESTALE)
        );
    }
}

#[test]
fn reading_moves_the_access_time_unless_asked_otherwise() {
    for write_back in BOTH {
        for atime in [Atime::Relative, Atime::Never] {
            let options = FsOptions { atime, ..FsOptions::default() };
            let Some(m) = Real::with(Kvdb::in_memory(), options, &policy(write_back)) else {
                return;
            };
            let path = m.path("f");
            fs::write(&path, vec![7; 100]).expect("write");
            let old =
                std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
            let times = fs::FileTimes::new().set_accessed(old).set_modified(old);
            File::options()
                .write(true)
                .open(&path)
                .and_then(|f| f.set_times(times))
                .expect("set the times");
            // The kernel reads cached data without a request.
            m.mounted
                .invalidator()
                .expect("mounted")
                .invalidate_inode(NodeId(fs::metadata(&path).expect("stat").ino()))
                .expect("dropped");
            fs::read(&path).expect("read");
            let moved = fs::metadata(&path).expect("stat").accessed().expect("a time") != old;
            assert_eq!(moved, atime == Atime::Relative, "write-back: {write_back}");
        }
    }
}
