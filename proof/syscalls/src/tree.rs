//! Everything below a directory, as text, on which two sides must agree.

use std::collections::HashMap;

use crate::kernel::{Answer, Errno, digest, path, stat_at, sys};
use crate::marks::Marks;

/// Times before this are ones that a history has set: they are compared as they are. Later ones are
/// the present.
const PRESENT: i64 = 1_400_000_000;

pub fn show_time(seconds: i64, nanoseconds: i64) -> String {
    if seconds < PRESENT { format!("{seconds}.{nanoseconds:09}") } else { "now".to_owned() }
}

/// The result of `stat` without the fields that may differ between two file systems: numbers of
/// inodes and devices, sizes of directories, used space, and access times.
pub fn show_stat(stat: &libc::stat, marks: &Marks) -> String {
    let kind = match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => 'f',
        libc::S_IFDIR => 'd',
        libc::S_IFLNK => 'l',
        libc::S_IFIFO => 'p',
        libc::S_IFCHR => 'c',
        libc::S_IFBLK => 'b',
        _ => 's',
    };
    let size = if kind == 'd' { String::new() } else { format!(" size {}", stat.st_size) };
    // The kernel keeps the times of an open FIFO to itself, without asking a FUSE file system.
    let tells = kind != 'p' && !marks.mapped.has(stat.st_ino);
    let time = if tells { show_time(stat.st_mtime, stat.st_mtime_nsec) } else { "?".to_owned() };
    format!(
        "{kind}{:04o} links {} owner {}:{}{size} mtime {time}",
        stat.st_mode & 0o7777,
        stat.st_nlink,
        stat.st_uid,
        stat.st_gid
    )
}

/// The names in an open directory, in the order in which the file system gives them.
pub fn names_of(dir: i32) -> Answer<Vec<(String, u8, u64)>> {
    let mut names = Vec::new();
    let mut buffer = vec![0u8; 32 << 10];
    while entries(dir, &mut buffer, &mut names)? {}
    Ok(names)
}

/// One `getdents64`: false at the end.
pub fn entries(dir: i32, buffer: &mut [u8], names: &mut Vec<(String, u8, u64)>) -> Answer<bool> {
    let got =
        sys!(libc::syscall(libc::SYS_getdents64, dir, buffer.as_mut_ptr(), buffer.len()))? as usize;
    let mut at = 0;
    while at < got {
        let entry = &buffer[at..got];
        let inode = u64::from_ne_bytes(entry[..8].try_into().map_err(|_| Errno(libc::EIO))?);
        let length = usize::from(u16::from_ne_bytes([entry[16], entry[17]]));
        let name = entry[19..length].split(|&b| b == 0).next().unwrap_or_default();
        names.push((String::from_utf8_lossy(name).into_owned(), entry[18], inode));
        at += length;
    }
    Ok(got > 0)
}

pub fn kind_of(entry: u8) -> char {
    match entry {
        libc::DT_REG => 'f',
        libc::DT_DIR => 'd',
        libc::DT_LNK => 'l',
        libc::DT_FIFO => 'p',
        _ => '?',
    }
}

/// Closes a descriptor at the end of its scope.
pub struct Closing(pub i32);

impl Drop for Closing {
    fn drop(&mut self) {
        let _ = sys!(libc::close(self.0));
    }
}

/// One line for each file below `start` (relative to `dir`), sorted by path: attributes, content,
/// links, extended attributes. If this process may not see something, its line has the error.
pub fn walk(dir: i32, start: &str, marks: &Marks) -> Vec<String> {
    let mut lines = Vec::new();
    let mut first_names = HashMap::new();
    let mut waiting = vec![(start.to_owned(), 0)];
    while let Some((name, depth)) = waiting.pop() {
        let shown = name.strip_prefix(start).unwrap_or(&name).replace(&"n".repeat(255), "%255");
        let stat = match stat_at(dir, &name, libc::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(e) => {
                lines.push(format!("{shown}: {}", e.name()));
                continue;
            }
        };
        let mut line = format!("{shown}: {}", show_stat(&stat, marks));
        if stat.st_mode & libc::S_IFMT != libc::S_IFDIR && stat.st_nlink > 1 {
            let first = first_names.entry(stat.st_ino).or_insert_with(|| shown.clone());
            if *first != shown {
                line.push_str(&format!(" same as {first}"));
                lines.push(line);
                continue;
            }
        }
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => {
                line.push_str(&content(dir, &name).unwrap_or_else(|e| format!(" {}", e.name())))
            }
            libc::S_IFLNK => {
                line.push_str(&format!(" -> {}", readlink(dir, &name).unwrap_or_else(Errno::name)))
            }
            libc::S_IFDIR => match open(dir, &name, libc::O_RDONLY | libc::O_DIRECTORY)
                .and_then(|fd| names_of(fd.0))
            {
                Ok(mut below) => {
                    below.retain(|(name, ..)| name != "." && name != "..");
                    below.sort();
                    let join = |below: &str| {
                        if name == "." { below.to_owned() } else { format!("{name}/{below}") }
                    };
                    if depth < 24 {
                        waiting
                            .extend(below.iter().rev().map(|(below, ..)| (join(below), depth + 1)));
                    }
                }
                Err(e) => line.push_str(&format!(" {}", e.name())),
            },
            _ => {}
        }
        line.push_str(&xattrs(dir, &name).unwrap_or_else(|e| format!(" xattrs {}", e.name())));
        lines.push(line);
    }
    lines
}

fn open(dir: i32, name: &str, flags: i32) -> Answer<Closing> {
    let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    Ok(Closing(sys!(libc::openat(dir, path(name).as_ptr(), flags, 0))? as i32))
}

fn content(dir: i32, name: &str) -> Answer<String> {
    let file = open(dir, name, libc::O_RDONLY)?;
    let mut buffer = vec![0u8; 1 << 20];
    let mut hash = 0u64;
    let mut at = 0;
    loop {
        let got = sys!(libc::pread(file.0, buffer.as_mut_ptr().cast(), buffer.len(), at))? as usize;
        if got == 0 {
            return Ok(format!(" content {at}:{hash:016x}"));
        }
        at += got as i64;
        hash = hash.rotate_left(5) ^ digest(&buffer[..got]);
    }
}

pub fn readlink(dir: i32, name: &str) -> Answer<String> {
    let mut buffer = [0u8; 4096];
    let got =
        sys!(libc::readlinkat(dir, path(name).as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()))?;
    Ok(String::from_utf8_lossy(&buffer[..got as usize]).into_owned())
}

/// A path that leads to the name itself, not through a symbolic link at its end.
fn xattrs(dir: i32, name: &str) -> Answer<String> {
    let here =
        if dir == libc::AT_FDCWD { name.to_owned() } else { format!("/proc/self/fd/{dir}/{name}") };
    let mut line = String::new();
    for attribute in list_xattrs(&here)? {
        let mut value = vec![0u8; 64 << 10];
        let got = sys!(libc::lgetxattr(
            path(&here).as_ptr(),
            path(&attribute).as_ptr(),
            value.as_mut_ptr().cast(),
            value.len()
        ));
        let shown = got
            .map_or_else(Errno::name, |got| format!("{got}:{:x}", digest(&value[..got as usize])));
        line.push_str(&format!(" {}={shown}", attribute.replace(&"n".repeat(250), "%250")));
    }
    Ok(line)
}

pub fn list_xattrs(path_: &str) -> Answer<Vec<String>> {
    let mut buffer = vec![0u8; 64 << 10];
    let got =
        sys!(libc::llistxattr(path(path_).as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()))?
            as usize;
    let names = buffer[..got].split(|&b| b == 0).filter(|n| !n.is_empty());
    let mut names: Vec<String> = names.map(|n| String::from_utf8_lossy(n).into_owned()).collect();
    names.sort();
    Ok(names)
}
