//! A process of a history: its descriptors, mappings and directory, and what it does on one side.

mod buffer;
mod holes;
mod mapping;
mod pattern;
mod programs;
mod scan;
mod splice;

use std::fmt::Write as _;

use crate::call::{Call, Mode, Name, Step, Time};
use crate::flags::{LockKind, Whence};
use crate::kernel::{Answer, Errno, path, stat_at, stat_of, sys};
use crate::marks::Marks;
use crate::tree::{self, Closing, entries, names_of, show_stat, show_time};
use mapping::Map;
pub use pattern::Pattern;
use scan::{Scan, end_scan, show_names};

pub const SLOTS: usize = 8;
pub const MAPS: usize = 4;
pub const SCANS: usize = 2;
const PAGE: usize = 4096;
/// The longest transfer of one call.
pub const LONGEST: usize = 4 << 20;

pub struct Worker {
    slots: [i32; SLOTS],
    maps: [Option<Map>; MAPS],
    scans: [Option<Scan>; SCANS],
    home: i32,
    /// A file in memory. Data from a mapping is copied through it, so that a fault is an errno and
    /// not a signal.
    scratch: i32,
    /// Page-aligned, for direct I/O.
    buffer: *mut u8,
    pattern: &'static Pattern,
    marks: &'static Marks,
}

/// The answer of a program that timeout(1) has ended, such as one that copies onto a FIFO.
pub const TIMED_OUT: &str = "timed out";

impl Worker {
    /// In the directory `home`, as the given user.
    pub fn new(
        home: &str,
        user: u32,
        pattern: &'static Pattern,
        marks: &'static Marks,
    ) -> Answer<Worker> {
        sys!(libc::chdir(path(home).as_ptr()))?;
        let home =
            sys!(libc::open(c".".as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC))?
                as i32;
        let scratch = sys!(libc::memfd_create(c"scratch".as_ptr(), libc::MFD_CLOEXEC))? as i32;
        let (both, anonymous) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let buffer = sys!(libc::mmap(std::ptr::null_mut(), LONGEST + PAGE, both, anonymous, -1, 0))?
            as *mut u8;
        sys!(libc::umask(0o022))?;
        if user != 0 {
            let groups = [user];
            sys!(libc::setgroups(1, groups.as_ptr()))?;
            sys!(libc::setresgid(user, user, user))?;
            sys!(libc::setresuid(user, user, user))?;
        }
        let maps = std::array::from_fn(|_| None);
        let scans = std::array::from_fn(|_| None);
        Ok(Worker { slots: [-1; SLOTS], maps, scans, home, scratch, buffer, pattern, marks })
    }

    /// Runs a step and returns its result in one line.
    pub fn step(&mut self, step: &Step) -> String {
        if let Call::Rename { .. } | Call::Unlink { .. } | Call::Rmdir { .. } = step.call {
            for name in step.call.names() {
                let (slot, text) = name.resolve();
                let _ = stat_at(self.dir(slot), &text, libc::AT_SYMLINK_NOFOLLOW)
                    .map(|stat| self.marks.moved.add(stat.st_ino));
            }
        }
        if !step.timed {
            return self.call(&step.call).unwrap_or_else(Errno::name);
        }
        wait_for_tick();
        let before = self.watched(&step.call);
        let mut line = self.call(&step.call).unwrap_or_else(Errno::name);
        let after = self.watched(&step.call);
        for ((what, before), (_, after)) in before.iter().zip(&after) {
            if let (Ok(before), Ok(after)) = (before, after)
                && before.st_ino == after.st_ino
                && after.st_mode & libc::S_IFMT != libc::S_IFIFO
            {
                let tells = !self.marks.mapped.has(before.st_ino);
                let modified = (before.st_mtime, before.st_mtime_nsec)
                    != (after.st_mtime, after.st_mtime_nsec);
                let changed = (before.st_ctime, before.st_ctime_nsec)
                    != (after.st_ctime, after.st_ctime_nsec);
                let say = |is: bool| {
                    if !tells {
                        "?"
                    } else if is {
                        "new"
                    } else {
                        "old"
                    }
                };
                let _ = write!(line, " [{what}: mtime {} ctime {} ]", say(modified), say(changed));
            }
        }
        line
    }

    /// The files and directories that a call touches.
    fn watched(&self, call: &Call) -> Vec<(String, Answer<libc::stat>)> {
        let mut all = Vec::new();
        for name in call.names() {
            let (slot, text) = name.resolve();
            let dir = self.dir(slot);
            all.push((name.0.clone(), stat_at(dir, &text, libc::AT_SYMLINK_NOFOLLOW)));
            let parent = text.rsplit_once('/').map_or(".", |(parent, _)| parent);
            all.push((format!("parent of {}", name.0), stat_at(dir, parent, 0)));
        }
        for slot in call.slots() {
            all.push((format!("slot {slot}"), stat_of(self.slot(slot))));
        }
        all
    }

    fn slot(&self, slot: u8) -> i32 {
        self.slots.get(usize::from(slot)).copied().unwrap_or(-1)
    }

    fn dir(&self, slot: Option<u8>) -> i32 {
        slot.map_or(libc::AT_FDCWD, |slot| self.slot(slot))
    }

    fn put(&mut self, slot: u8, fd: i32) {
        let place = &mut self.slots[usize::from(slot) % SLOTS];
        let old = std::mem::replace(place, fd);
        if old >= 0 {
            let _ = sys!(libc::close(old));
        }
    }

    fn is_direct(&self, slot: u8) -> bool {
        sys!(libc::fcntl(self.slot(slot), libc::F_GETFL))
            .is_ok_and(|flags| flags as i32 & libc::O_DIRECT != 0)
    }

    /// A splice into a FIFO passes the file's pages themselves, which may change until they are
    /// read.
    fn is_fifo(&self, slot: u8) -> bool {
        stat_of(self.slot(slot)).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFIFO)
    }

    fn call(&mut self, call: &Call) -> Answer<String> {
        let done = |answer: Answer<i64>| answer.map(|n| n.to_string());
        match *call {
            Call::Open { slot, ref path, flags, mode } => {
                let (dir, name) = self.at(path);
                let flags = flags.0 | libc::O_CLOEXEC | libc::O_NONBLOCK;
                let fd = sys!(libc::openat(dir, name.as_ptr(), flags, mode.0))? as i32;
                self.put(slot, fd);
                Ok("0".to_owned())
            }
            Call::Close { slot } => {
                let fd = std::mem::replace(&mut self.slots[usize::from(slot) % SLOTS], -1);
                done(sys!(libc::close(fd)))
            }
            Call::Dup { slot, to } => {
                let fd = sys!(libc::fcntl(self.slot(slot), libc::F_DUPFD_CLOEXEC, 3))? as i32;
                self.put(to, fd);
                Ok("0".to_owned())
            }
            Call::Read { slot, len } => {
                if self.is_direct(slot) {
                    return Err(Errno(libc::EINVAL));
                }
                let got = sys!(libc::read(self.slot(slot), self.buffer.cast(), (len as usize).min(LONGEST)))?;
                Ok(self.shown(got))
            }
            Call::Pread { slot, at, len } => {
                let (at, len) = self.aligned(slot, at, len);
                let got = sys!(libc::pread(self.slot(slot), self.buffer.cast(), len, at))?;
                Ok(self.shown(got))
            }
            Call::Readv { slot, at, len } => {
                if self.is_direct(slot) {
                    return Err(Errno(libc::EINVAL));
                }
                let pieces = self.pieces((len as usize).min(LONGEST));
                let got = sys!(libc::preadv(self.slot(slot), pieces.as_ptr(), 3, at))?;
                Ok(self.shown(got))
            }
            Call::Write { slot, len, tag } => {
                if self.is_direct(slot) {
                    return Err(Errno(libc::EINVAL));
                }
                self.fill(tag, len as usize);
                done(sys!(libc::write(self.slot(slot), self.buffer.cast(), (len as usize).min(LONGEST))))
            }
            Call::Pwrite { slot, at, len, tag } => {
                let (at, len) = self.aligned(slot, at, len);
                self.fill(tag, len);
                done(sys!(libc::pwrite(self.slot(slot), self.buffer.cast(), len, at)))
            }
            Call::Writev { slot, at, len, tag } => {
                if self.is_direct(slot) {
                    return Err(Errno(libc::EINVAL));
                }
                self.fill(tag, len as usize);
                let pieces = self.pieces((len as usize).min(LONGEST));
                done(sys!(libc::pwritev(self.slot(slot), pieces.as_ptr(), 3, at)))
            }
            Call::Append { slot, len, tag } => {
                if self.is_direct(slot) {
                    return Err(Errno(libc::EINVAL));
                }
                self.fill(tag, len as usize);
                let piece = libc::iovec { iov_base: self.buffer.cast(), iov_len: (len as usize).min(LONGEST) };
                done(sys!(libc::pwritev2(self.slot(slot), &piece, 1, 0, libc::RWF_APPEND)))
            }
            Call::Seek { slot, at, whence } => {
                let whence = match whence {
                    Whence::Set => libc::SEEK_SET,
                    Whence::Current => libc::SEEK_CUR,
                    Whence::End => libc::SEEK_END,
                };
                if stat_of(self.slot(slot))?.st_mode & libc::S_IFMT != libc::S_IFREG {
                    return Err(Errno(libc::ESPIPE));
                }
                done(sys!(libc::lseek(self.slot(slot), at, whence)))
            }
            Call::SeekData { slot, at, hole } => self.seek_data(slot, at, hole),
            Call::Holes { slot } => self.holes(slot),
            Call::Truncate { ref path, len } => {
                let name = self.whole_path(path)?;
                // File systems differ in whether times change if the size does not: on ext4 they
                // do, on XFS and tmpfs not.
                let (slot, text) = path.resolve();
                if stat_at(self.dir(slot), &text, 0)
                    .is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_size == len)
                {
                    return Ok("as long already".to_owned());
                }
                done(sys!(libc::truncate(name.as_ptr(), len)))
            }
            Call::Ftruncate { slot, len } => done(sys!(libc::ftruncate(self.slot(slot), len))),
            Call::Fallocate { slot, mode, at, len } => done(sys!(libc::fallocate(self.slot(slot), mode.0, at, len))),
            Call::CopyRange { from, from_at, to, to_at, len } => {
                if self.is_direct(from) || self.is_direct(to) {
                    return Err(Errno(libc::EINVAL));
                }
                let (mut from_at, mut to_at) = (from_at, to_at);
                done(sys!(libc::copy_file_range(self.slot(from), &mut from_at, self.slot(to), &mut to_at, len as usize, 0)))
            }
            Call::Sendfile { from, at, to, len } => {
                if self.is_direct(from) || self.is_direct(to) || self.is_fifo(to) {
                    return Err(Errno(libc::EINVAL));
                }
                let mut at = at;
                done(sys!(libc::sendfile(self.slot(to), self.slot(from), &mut at, len as usize)))
            }
            Call::Splice { from, from_at, to, to_at, len } => self.splice(from, from_at, to, to_at, len),
            Call::Mmap { map, slot, shared, writable, at, len } => {
                let _ = self.unmap(map);
                let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
                let flags = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
                let (at, len) = (at & !(PAGE as i64 - 1), (len as usize).clamp(1, 1 << 20));
                if shared && writable {
                    stat_of(self.slot(slot)).inspect(|stat| self.marks.mapped.add(stat.st_ino))?;
                }
                let start = sys!(libc::mmap(std::ptr::null_mut(), len, protection, flags, self.slot(slot), at))?;
                let file = Closing(sys!(libc::fcntl(self.slot(slot), libc::F_DUPFD_CLOEXEC, 3))? as i32);
                self.maps[usize::from(map) % MAPS] = Some(Map { start: start as *mut libc::c_void, len, file, at });
                Ok("0".to_owned())
            }
            Call::Munmap { map } => self.unmap(map).map(|()| "0".to_owned()),
            Call::Load { map, at, len } => {
                let (start, len) = self.map(map, at, len)?;
                let got = sys!(libc::pwrite(self.scratch, start, len, 0))?;
                sys!(libc::pread(self.scratch, self.buffer.cast(), got as usize, 0))?;
                Ok(self.shown(got))
            }
            Call::Store { map, at, len, tag } => {
                let (start, len) = self.changeable(map, at, len)?;
                self.fill(tag, len);
                sys!(libc::pwrite(self.scratch, self.buffer.cast(), len, 0))?;
                done(sys!(libc::pread(self.scratch, start, len, 0)))
            }
            Call::Msync { map } => {
                let map = self.maps.get(usize::from(map)).and_then(Option::as_ref).ok_or(Errno(libc::EBADF))?;
                done(sys!(libc::msync(map.start, map.len, libc::MS_SYNC)))
            }
            Call::WriteMap { slot, at, map, map_at, len } => {
                if self.is_direct(slot) {
                    return Err(Errno(libc::EINVAL));
                }
                let (start, len) = self.map(map, map_at, len)?;
                // A source faults after the end of the file, and ext4 extends a target before it
                // detects that.
                let map = self.maps.get(usize::from(map)).and_then(Option::as_ref).ok_or(Errno(libc::EBADF))?;
                let size = stat_of(map.file.0)?.st_size;
                let end = start as i64 - map.start as i64 + map.at + len as i64;
                if end > size {
                    return Err(Errno(libc::EFAULT));
                }
                done(sys!(libc::pwrite(self.slot(slot), start, len, at)))
            }
            Call::ReadMap { slot, at, map, map_at, len } => {
                if self.is_direct(slot) {
                    return Err(Errno(libc::EINVAL));
                }
                let (start, len) = self.changeable(map, map_at, len)?;
                done(sys!(libc::pread(self.slot(slot), start, len, at)))
            }
            Call::Fsync { slot } => done(sys!(libc::fsync(self.slot(slot)))),
            Call::Fdatasync { slot } => done(sys!(libc::fdatasync(self.slot(slot)))),
            Call::SyncRange { slot, at, len } => {
                let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
                done(sys!(libc::sync_file_range(self.slot(slot), at, i64::from(len), flags)))
            }
            Call::Forget { slot } => match sys!(libc::fcntl(self.slot(slot), libc::F_GETFD)) {
                // posix_fadvise gives its error as an answer, not in errno.
                Ok(_) => done(sys!(libc::posix_fadvise(self.slot(slot), 0, 0, libc::POSIX_FADV_DONTNEED))),
                Err(e) => Err(e),
            },
            Call::Mkdir { ref path, mode } => {
                let (dir, name) = self.at(path);
                done(sys!(libc::mkdirat(dir, name.as_ptr(), mode.0)))
            }
            Call::Rmdir { ref path } => {
                let (dir, name) = self.at(path);
                done(sys!(libc::unlinkat(dir, name.as_ptr(), libc::AT_REMOVEDIR)))
            }
            Call::Unlink { ref path } => {
                let (dir, name) = self.at(path);
                done(sys!(libc::unlinkat(dir, name.as_ptr(), 0)))
            }
            Call::Rename { ref from, ref to, flags } => {
                let (from_dir, from) = self.at(from);
                let (to_dir, to) = self.at(to);
                done(sys!(libc::renameat2(from_dir, from.as_ptr(), to_dir, to.as_ptr(), flags.0 as u32)))
            }
            Call::Link { ref from, ref to, follow } => {
                let (from_dir, from) = self.at(from);
                let (to_dir, to) = self.at(to);
                let flags = if follow { libc::AT_SYMLINK_FOLLOW } else { 0 };
                done(sys!(libc::linkat(from_dir, from.as_ptr(), to_dir, to.as_ptr(), flags)))
            }
            Call::LinkOpen { slot, ref to } => {
                let from = path(&format!("/proc/self/fd/{}", self.slot(slot)));
                let (dir, to) = self.at(to);
                done(sys!(libc::linkat(libc::AT_FDCWD, from.as_ptr(), dir, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)))
            }
            Call::Symlink { ref target, ref path } => {
                let target = crate::kernel::path(&target.resolve().1);
                let (dir, name) = self.at(path);
                done(sys!(libc::symlinkat(target.as_ptr(), dir, name.as_ptr())))
            }
            Call::Readlink { ref path } => {
                let (slot, name) = path.resolve();
                tree::readlink(self.dir(slot), &name)
            }
            Call::Mkfifo { ref path, mode } => {
                let (dir, name) = self.at(path);
                done(sys!(libc::mknodat(dir, name.as_ptr(), libc::S_IFIFO | mode.0, 0)))
            }
            Call::Chmod { ref path, mode } => {
                let (dir, name) = self.at(path);
                done(sys!(libc::fchmodat(dir, name.as_ptr(), mode.0, 0)))
            }
            Call::Fchmod { slot, mode } => done(sys!(libc::fchmod(self.slot(slot), mode.0))),
            Call::Chown { ref path, user, group, follow } => {
                let (dir, name) = self.at(path);
                let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
                done(sys!(libc::fchownat(dir, name.as_ptr(), user as u32, group as u32, flags)))
            }
            Call::Fchown { slot, user, group } => done(sys!(libc::fchown(self.slot(slot), user as u32, group as u32))),
            Call::Utimens { ref path, atime, mtime, follow } => {
                let (dir, name) = self.at(path);
                let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
                sys!(libc::utimensat(dir, name.as_ptr(), times(atime, mtime).as_ptr(), flags))?;
                let (slot, name) = path.resolve();
                Ok(self.show_times(&stat_at(self.dir(slot), &name, flags)?, atime))
            }
            Call::Futimens { slot, atime, mtime } => {
                sys!(libc::futimens(self.slot(slot), times(atime, mtime).as_ptr()))?;
                Ok(self.show_times(&stat_of(self.slot(slot))?, atime))
            }
            Call::SetXattr { ref path, ref name, len, tag, flags } => {
                let file = self.whole_path(path)?;
                let value = self.pattern.of(tag, len);
                let name = crate::kernel::path(&name.resolve().1);
                done(sys!(libc::lsetxattr(file.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags.0)))
            }
            Call::GetXattr { ref path, ref name } => {
                let file = self.whole_path(path)?;
                let name = crate::kernel::path(&name.resolve().1);
                let got = sys!(libc::lgetxattr(file.as_ptr(), name.as_ptr(), self.buffer.cast(), 64 << 10))?;
                Ok(self.shown(got))
            }
            Call::ListXattr { ref path } => {
                let file = self.whole_path(path)?;
                Ok(tree::list_xattrs(&file.to_string_lossy())?.join(" ").replace(&"n".repeat(250), "%250"))
            }
            Call::RemoveXattr { ref path, ref name } => {
                let file = self.whole_path(path)?;
                let name = crate::kernel::path(&name.resolve().1);
                done(sys!(libc::lremovexattr(file.as_ptr(), name.as_ptr())))
            }
            Call::FsetXattr { slot, ref name, len, tag, flags } => {
                let value = self.pattern.of(tag, len);
                let name = path(&name.resolve().1);
                done(sys!(libc::fsetxattr(self.slot(slot), name.as_ptr(), value.as_ptr().cast(), value.len(), flags.0)))
            }
            Call::FgetXattr { slot, ref name } => {
                let name = path(&name.resolve().1);
                let got = sys!(libc::fgetxattr(self.slot(slot), name.as_ptr(), self.buffer.cast(), 64 << 10))?;
                Ok(self.shown(got))
            }
            Call::FremoveXattr { slot, ref name } => {
                let name = path(&name.resolve().1);
                done(sys!(libc::fremovexattr(self.slot(slot), name.as_ptr())))
            }
            Call::Stat { ref path, follow } => {
                let (slot, name) = path.resolve();
                let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
                Ok(show_stat(&stat_at(self.dir(slot), &name, flags)?, self.marks))
            }
            Call::Fstat { slot } => Ok(show_stat(&stat_of(self.slot(slot))?, self.marks)),
            Call::Access { ref path, mode } => {
                let (dir, name) = self.at(path);
                done(sys!(libc::faccessat(dir, name.as_ptr(), mode as i32, 0)))
            }
            Call::List { ref path } => {
                let dir = self.open_dir(path)?;
                let mut names = names_of(dir.0)?;
                names.sort();
                Ok(show_names(&names))
            }
            Call::ScanStart { scan, ref path } => {
                let before = names_of(self.open_dir(path)?.0)?;
                let dir = self.open_dir(path)?;
                self.scans[usize::from(scan) % SCANS] = Some(Scan { dir, before, seen: Vec::new() });
                Ok("0".to_owned())
            }
            Call::ScanSome { scan } => {
                let scan = self.scans[usize::from(scan) % SCANS].as_mut().ok_or(Errno(libc::EBADF))?;
                let mut buffer = [0u8; 320];
                // The number of names that fit depends on the file system.
                entries(scan.dir.0, &mut buffer, &mut scan.seen).map(|_| "0".to_owned())
            }
            Call::ScanEnd { scan } => {
                let scan = self.scans[usize::from(scan) % SCANS].take().ok_or(Errno(libc::EBADF))?;
                end_scan(scan, self.marks)
            }
            Call::Flock { slot, kind } => {
                let kind = match kind {
                    LockKind::Shared => libc::LOCK_SH,
                    LockKind::Exclusive => libc::LOCK_EX,
                    LockKind::Free => libc::LOCK_UN,
                };
                done(sys!(libc::flock(self.slot(slot), kind | libc::LOCK_NB)))
            }
            Call::Lock { slot, kind, at, len } => {
                done(sys!(libc::fcntl(self.slot(slot), libc::F_SETLK, &record_lock(kind, at, len))))
            }
            Call::GetLock { slot, kind, at, len } => {
                let mut lock = record_lock(kind, at, len);
                sys!(libc::fcntl(self.slot(slot), libc::F_GETLK, &mut lock))?;
                let free = i32::from(lock.l_type) == libc::F_UNLCK;
                Ok(if free { "free".to_owned() } else { format!("{} {} {}", lock.l_type, lock.l_start, lock.l_len) })
            }
            Call::Chdir { ref path } => {
                let name = self.whole_path(path)?;
                done(sys!(libc::chdir(name.as_ptr())))
            }
            Call::Home {} => done(sys!(libc::fchdir(self.home))),
            Call::Umask { mode: Mode(mode) } => done(sys!(libc::umask(mode & 0o777))),
            Call::Cp { ref from, ref to, sparse } => {
                let sparse = format!("--sparse={}", if sparse { "always" } else { "auto" });
                self.program("[ -p \"$1\" ] || [ -p \"$2\" ] || exec timeout 60 cp \"$3\" -- \"$1\" \"$2\"", from, to, &sparse)
            }
            Call::CpTree { ref from, ref to } => self.tree_program(
                "[ -e \"$2/${1##*/}\" ] && exit 9; exec timeout 60 cp -dR --preserve=links,timestamps,xattr -- \"$1\" \"$2\"",
                from,
                to,
                "",
            ),
            Call::Tar { ref from, ref to } => {
                self.tree_program("timeout 60 tar -C \"$1\" --sort=name -cf - . | timeout 60 tar -C \"$2\" -xf -", from, to, "")
            }
            Call::Rsync { ref from, ref to } => self.tree_program("exec timeout 60 rsync -aHI \"$1\" \"$2\"", from, to, ""),
            Call::Tree { ref path } => {
                let (slot, name) = path.resolve();
                Ok(tree::walk(self.dir(slot), &name, self.marks).join(" | "))
            }
            Call::Kill {} => Ok("0".to_owned()),
        }
    }

    fn at(&self, name: &Name) -> (i32, std::ffi::CString) {
        let (slot, text) = name.resolve();
        (self.dir(slot), path(&text))
    }

    /// For calls that take no directory.
    fn whole_path(&self, name: &Name) -> Answer<std::ffi::CString> {
        match name.resolve() {
            (None, text) => Ok(path(&text)),
            (Some(slot), text) => {
                sys!(libc::fcntl(self.slot(slot), libc::F_GETFD))?;
                Ok(path(&format!("/proc/self/fd/{}/{text}", self.slot(slot))))
            }
        }
    }

    fn open_dir(&self, name: &Name) -> Answer<Closing> {
        let (dir, name) = self.at(name);
        Ok(Closing(sys!(libc::openat(
            dir,
            name.as_ptr(),
            libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC
        ))? as i32))
    }

    fn show_times(&self, stat: &libc::stat, atime: Time) -> String {
        let access = match atime {
            Time::At(..) => show_time(stat.st_atime, stat.st_atime_nsec),
            Time::Now | Time::Omit => "-".to_owned(),
        };
        let left_to_the_kernel =
            self.marks.mapped.has(stat.st_ino) || stat.st_mode & libc::S_IFMT == libc::S_IFIFO;
        let modified = if left_to_the_kernel {
            "?".to_owned()
        } else {
            show_time(stat.st_mtime, stat.st_mtime_nsec)
        };
        format!("atime {access} mtime {modified}")
    }
}

fn times(atime: Time, mtime: Time) -> [libc::timespec; 2] {
    [atime, mtime].map(|time| match time {
        Time::Now => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        Time::Omit => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        Time::At(seconds, nanoseconds) => libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds },
    })
}

fn record_lock(kind: LockKind, at: i64, len: i64) -> libc::flock {
    let kind = match kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
        LockKind::Free => libc::F_UNLCK,
    };
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: at,
        l_len: len,
        l_pid: 0,
    }
}

/// Waits until the clock that file times are taken from has passed the present: it goes by ticks,
/// and some file systems take finer times, behind which the kernel then does not go back in any
/// other.
fn wait_for_tick() {
    let now = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = sys!(libc::clock_gettime(clock, &mut time));
        (time.tv_sec, time.tv_nsec)
    };
    let start = now(libc::CLOCK_REALTIME);
    while now(libc::CLOCK_REALTIME_COARSE) <= start {
        let pause = libc::timespec { tv_sec: 0, tv_nsec: 500_000 };
        let _ = sys!(libc::nanosleep(&pause, std::ptr::null_mut()));
    }
}
