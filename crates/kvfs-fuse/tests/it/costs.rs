//! Counts the requests that each operation costs on a whole KVFS, in both modes. The expected
//! numbers are the table of `docs/fuse.md`.

use crate::real;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::real::Real;
use kvdb::Kvdb;
use kvfs::FsOptions;
use kvfs_fuse::{Counters, Policy};

/// Requests made by `work`, by kind.
fn requests(counters: &Counters, work: impl FnOnce()) -> Vec<(&'static str, u64)> {
    let before = counters.seen();
    work();
    let earlier = |name| before.iter().find(|(n, _)| *n == name).map_or(0, |(_, count)| *count);
    let all = counters.seen().into_iter().map(|(name, n)| (name, n - earlier(name)));
    all.filter(|&(name, n)| n > 0 && !name.ends_with("FORGET")).collect()
}

fn create(path: &Path, times: usize, data: &[u8]) {
    let mut file = File::create_new(path).expect("create");
    (0..times).for_each(|_| file.write_all(data).expect("write"));
}

/// An operation on a file (or on the name of one that is not there).
struct Operation {
    name: &'static str,
    /// The file exists before.
    exists: bool,
    work: fn(&Path),
    /// The requests when writes go through, and when they are gathered.
    through: &'static str,
    gathered: &'static str,
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("open")
}

const OPERATIONS: &[Operation] = &[
    Operation {
        name: "create, write 4 KiB, close",
        exists: false,
        work: |path| create(path, 1, &[7; 4096]),
        through: "LOOKUP 1, GETATTR 1, MKNOD 1, WRITE 1, GETXATTR 1",
        gathered: "LOOKUP 1, GETATTR 1, MKNOD 1, WRITE 1, GETXATTR 1",
    },
    Operation {
        name: "create, ten writes of 10 KiB, close",
        exists: false,
        work: |path| create(path, 10, &[7; 10 << 10]),
        through: "LOOKUP 1, GETATTR 1, MKNOD 1, WRITE 15, GETXATTR 1",
        gathered: "LOOKUP 1, GETATTR 1, MKNOD 1, WRITE 1, GETXATTR 1",
    },
    Operation {
        name: "open, read, close",
        exists: true,
        work: |path| {
            let mut all = Vec::new();
            File::open(path).and_then(|mut f| f.read_to_end(&mut all)).expect("read");
        },
        through: "",
        gathered: "",
    },
    Operation {
        name: "stat",
        exists: true,
        work: |path| assert!(fs::metadata(path).is_ok()),
        through: "",
        gathered: "",
    },
    Operation {
        name: "overwrite, close",
        exists: true,
        work: |path| open(path).write_all(&[8; 4096]).expect("write"),
        through: "WRITE 1, GETXATTR 1",
        gathered: "WRITE 1, GETXATTR 1",
    },
    Operation {
        name: "append 100 bytes, close",
        exists: true,
        work: |path| {
            File::options()
                .append(true)
                .open(path)
                .and_then(|mut f| f.write_all(&[8; 100]))
                .expect("append")
        },
        through: "WRITE 1, GETXATTR 1",
        gathered: "WRITE 1, GETXATTR 1",
    },
    Operation {
        name: "write, fsync",
        exists: true,
        work: |path| {
            let mut file = open(path);
            file.write_all(&[8; 4096]).expect("write");
            file.sync_all().expect("fsync");
        },
        through: "WRITE 1, FSYNC 1, GETXATTR 1",
        gathered: "WRITE 1, FSYNC 1, GETXATTR 1",
    },
    Operation {
        name: "mkdir",
        exists: false,
        work: |path| fs::create_dir(path).expect("mkdir"),
        through: "LOOKUP 1, MKDIR 1",
        gathered: "LOOKUP 1, MKDIR 1",
    },
    Operation {
        name: "chmod",
        exists: true,
        work: |path| fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("chmod"),
        through: "SETATTR 1",
        gathered: "SETATTR 1",
    },
    Operation {
        name: "link",
        exists: true,
        work: |path| fs::hard_link(path, path.with_extension("link")).expect("link"),
        through: "LOOKUP 1, LINK 1",
        gathered: "LOOKUP 1, SETATTR 1, LINK 1",
    },
    Operation {
        name: "rename to a new name",
        exists: true,
        work: |path| fs::rename(path, path.with_extension("new")).expect("rename"),
        through: "LOOKUP 1, RENAME 1",
        gathered: "LOOKUP 1, SETATTR 1, RENAME 1",
    },
    Operation {
        name: "rename over a file",
        exists: true,
        work: |path| fs::rename(path, path.with_extension("other")).expect("rename"),
        through: "LOOKUP 1, RENAME 1",
        gathered: "LOOKUP 1, SETATTR 2, RENAME 1",
    },
    Operation {
        name: "unlink",
        exists: true,
        work: |path| fs::remove_file(path).expect("unlink"),
        through: "UNLINK 1",
        gathered: "SETATTR 1, UNLINK 1",
    },
    Operation {
        name: "SEEK_DATA",
        exists: true,
        work: |path| {
            assert!(real::seek(&File::open(path).expect("open"), 0, libc::SEEK_DATA).is_some())
        },
        through: "LSEEK 1",
        gathered: "LSEEK 1",
    },
];

/// The fewest requests with which an operation was done. On a busy machine the kernel's clock may
/// tick during it, and then the kernel sends times as well.
fn least(m: &Real, operation: &Operation) -> String {
    let counters = m.mounted.counters();
    let rounds = (0..150).map(|i| {
        let path = m.path(&format!("{}{i}.f", operation.name.replace(' ', "-")));
        if operation.exists {
            create(&path, 1, &[7; 4096]);
            fs::read(&path).expect("read");
            create(&path.with_extension("other"), 1, b"other");
            fs::metadata(path.with_extension("other")).expect("stat");
            fs::metadata(&path).expect("stat");
        }
        requests(&counters, || (operation.work)(&path))
    });
    let least = rounds.min_by_key(|seen| seen.iter().map(|(_, n)| n).sum::<u64>()).expect("rounds");
    least.iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
}

#[test]
fn each_operation_costs_what_the_documentation_says() {
    let mut wrong = Vec::new();
    for write_back in real::BOTH {
        let Some(m) =
            Real::with(Kvdb::in_memory(), FsOptions::default(), &real::policy(write_back))
        else {
            return;
        };
        // After the first request of each kind the kernel knows that it need not send it (OPEN,
        // CREATE, FLUSH).
        create(&m.path("first"), 1, b"first");
        for operation in OPERATIONS {
            let seen = least(&m, operation);
            let expected = if write_back { operation.gathered } else { operation.through };
            if seen != expected {
                wrong.push(format!(
                    "{}, write-back {write_back}: {seen:?} and not {expected:?}",
                    operation.name
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn without_xattrs_a_new_file_costs_one_request_less() {
    for write_back in real::BOTH {
        let policy = Policy { xattrs: false, ..real::policy(write_back) };
        let Some(m) = Real::with(Kvdb::in_memory(), FsOptions::default(), &policy) else { return };
        create(&m.path("first"), 1, b"first");
        assert_eq!(least(&m, &OPERATIONS[0]), "LOOKUP 1, GETATTR 1, MKNOD 1, WRITE 1");
    }
}

#[test]
fn for_root_alone_the_kernel_does_not_ask_for_the_directory() {
    let Some(m) = Real::of_root_alone() else { return };
    create(&m.path("first"), 1, b"first");
    assert_eq!(least(&m, &OPERATIONS[0]), "LOOKUP 1, MKNOD 1, WRITE 1, GETXATTR 1");
    let counters = m.mounted.counters();
    fs::create_dir(m.path("directory")).expect("mkdir");
    // Each of these follows a change of the directory, after which a kernel that checks permissions
    // asks for its attributes.
    let seen = requests(&counters, || {
        for i in 0..100 {
            create(&m.path(&format!("directory/{i}")), 0, b"");
            fs::rename(m.path(&format!("directory/{i}")), m.path("directory/new")).expect("rename");
            fs::remove_file(m.path("directory/new")).expect("unlink");
        }
    });
    // A new name is looked up before it is made, and before a file is renamed to it.
    assert_eq!(seen, [("LOOKUP", 200), ("MKNOD", 100), ("UNLINK", 100), ("RENAME", 100)]);
}

#[test]
fn a_long_listing_does_not_ask_for_the_label_of_each_file() {
    let Some(m) = Real::with(Kvdb::in_memory(), FsOptions::default(), &real::policy(false)) else {
        return;
    };
    (0..200).for_each(|i| create(&m.path(&format!("{i:03}")), 0, b""));
    let label = |name: &str| {
        let mut value = [0; 100];
        rustix::fs::getxattr(m.path(name), "security.selinux", &mut value[..])
            .map(|length| value[..length].to_vec())
    };
    if label("000") == Err(rustix::io::Errno::NODATA) {
        eprintln!("SKIPPED: this kernel has labels");
        return;
    }
    assert_eq!(label("000"), Err(rustix::io::Errno::OPNOTSUPP));
    let seen = requests(&m.mounted.counters(), || {
        let listed = Command::new("ls").arg("-l").arg(m.path("")).output().expect("ls");
        assert_eq!(listed.stdout.iter().filter(|&&byte| byte == b'\n').count(), 201);
    });
    let asked = seen.iter().find(|(name, _)| *name == "GETXATTR").map_or(0, |(_, n)| *n);
    assert!(asked <= 4, "{seen:?}");
    // An attribute that was set exists, whether the kernel uses it or not.
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(m.path("001"), "security.selinux", b"a label", flags).expect("set");
    assert_eq!(label("001"), Ok(b"a label".to_vec()));
}
