//! A mount of a whole KVFS in this process, for tests of what programs see through the kernel.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use crate::way::policy;
use env::Machine;
use kvdb::{Durability, Kvdb};
use kvfs::{Fs, FsOptions, TransactionId, Views};
use kvfs_fuse::{FuseAdapter, KernelNotifier, MountOptions, Mounted, Policy, mount};

/// Both ways in which the kernel handles writes: write-through, and gathered.
pub const BOTH: [bool; 2] = [false, true];

pub struct Real {
    // Fields drop in order, so the mount is dropped before its directory.
    pub mounted: Mounted,
    notifier: Arc<KernelNotifier>,
    pub views: Views,
    pub dir: tempfile::TempDir,
}

impl Drop for Real {
    fn drop(&mut self) {
        self.notifier.stop();
        // A child that another test starts has the files of this one until it has begun with its
        // program.
        let until = Instant::now() + Duration::from_secs(10);
        while let Err(e) = self.mounted.unmount() {
            if Instant::now() > until {
                assert!(std::thread::panicking(), "{e}");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns whether this process may mount; if not, prints the reason.
pub fn may_mount() -> bool {
    if let Err(e) = File::open("/dev/fuse") {
        eprintln!("SKIPPED: no FUSE here: cannot open /dev/fuse: {e}");
        return false;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: these tests mount as root does");
        return false;
    }
    true
}

impl Real {
    pub fn new(write_back: bool) -> Option<Real> {
        Real::with(Kvdb::in_memory(), FsOptions::default(), &policy(write_back))
    }

    pub fn with(db: Kvdb, options: FsOptions, policy: &Policy) -> Option<Real> {
        Real::start(db, options, Real::shared(), policy, KernelNotifier::start)
    }

    /// A mount for root alone, on which the kernel need not send some requests.
    pub fn of_root_alone() -> Option<Real> {
        let options = MountOptions { default_permissions: false, ..MountOptions::default() };
        Real::start(
            Kvdb::in_memory(),
            FsOptions::default(),
            options,
            &policy(false),
            KernelNotifier::start,
        )
    }

    fn shared() -> MountOptions {
        MountOptions { allow_other: true, suid: true, ..MountOptions::default() }
    }

    /// Mounts with a limit for the time that a transaction which begins or commits waits for pages
    /// that are on their way.
    pub fn with_patience(patience: Duration) -> Option<Real> {
        let start = |views: &Views, adapter: &Arc<FuseAdapter>, mounted: &Mounted| {
            KernelNotifier::start_with_patience(views, adapter, mounted, patience)
        };
        Real::start(Kvdb::in_memory(), FsOptions::default(), Real::shared(), &policy(false), start)
    }

    fn start(
        db: Kvdb,
        options: FsOptions,
        mount_options: MountOptions,
        policy: &Policy,
        notifier: impl FnOnce(
            &Views,
            &Arc<FuseAdapter>,
            &Mounted,
        ) -> std::io::Result<Arc<KernelNotifier>>,
    ) -> Option<Real> {
        if !may_mount() {
            return None;
        }
        let fs =
            Fs::open(db.clone(), Arc::new(Machine::default()), options).expect("a file system");
        let views = Views::new(db, fs);
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("open to others");
        let adapter = Arc::new(FuseAdapter::new(views.clone()));
        let mounted =
            mount(adapter.clone(), dir.path(), &mount_options, policy).expect("root can mount");
        let notifier = notifier(&views, &adapter, &mounted).expect("a notifier");
        Some(Real { mounted, notifier, views, dir })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A transaction and its directory.
    pub fn begin(&self) -> (TransactionId, PathBuf) {
        let id = self.views.begin(Default::default()).expect("begun");
        (id, self.path(&format!(".kvfs/txn/{id}")))
    }

    pub fn commit(&self, id: TransactionId) {
        self.views.commit(id, Durability::Buffered).expect("committed");
    }
}

/// Runs a shell script in a directory. Returns its output.
#[track_caller]
pub fn sh(dir: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).current_dir(dir).output().expect("sh");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A shared mapping of the start of a file.
pub struct Mapping(*mut u8, usize);

// SAFETY: the memory is only copied to byte by byte, and no reference to it is made.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn of(file: &File, length: usize) -> Mapping {
        let (read_write, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping, which is known here alone.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), length, read_write, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Mapping(at.cast(), length)
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.1);
        // SAFETY: it lies in the mapping; others may see it half done, as with any mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.add(at), bytes.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Dirty pages are written back here, since munmap would write them with the address space
        // locked, in which the daemon runs, too. SAFETY: there is no reference into the mapping.
        unsafe {
            libc::msync(self.0.cast(), self.1, libc::MS_SYNC);
            libc::munmap(self.0.cast(), self.1);
        }
    }
}

/// Returns the place at which the kernel says that data or a hole begins, or `None` if there is
/// none.
pub fn seek(file: &File, offset: i64, whence: i32) -> Option<i64> {
    // SAFETY: it takes a descriptor and numbers.
    match unsafe { libc::lseek(file.as_raw_fd(), offset, whence) } {
        -1 => {
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENXIO));
            None
        }
        at => Some(at),
    }
}

/// Does `work` on a thread that has the rights of a user who has none.
pub fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    const NOBODY: libc::c_long = 65534;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: it changes the credentials of this thread alone, which ends afterwards.
            unsafe {
                assert_eq!(
                    libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()),
                    0
                );
                assert_eq!(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY), 0);
            }
            work()
        });
        thread.join().expect("no panic")
    })
}
