//! Accesses the files of a store that is not mounted, by path.

use std::collections::HashSet;

use kvfs::{Attr, Caller, FileKind, Fs, Ino, ROOT, Timestamp, Whence};

use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::{failures, text};

/// The largest file, in bytes, whose page count is trusted to tell that it has no holes.
const TRUSTED: u64 = 4 << 20;
/// The bytes read or written at once.
pub const PIECE: u32 = 1 << 20;

/// Converts an error of the file system. `doing` describes the failed operation.
pub fn failure(doing: impl std::fmt::Display, error: kvfs::Error) -> Failure {
    let exit = match error {
        kvfs::Error::Store(error) => return failures::of_database(doing, error),
        kvfs::Error::NotFound => Exit::NotFound,
        kvfs::Error::NoSpace => Exit::NoSpace,
        kvfs::Error::NotPermitted(_) => Exit::NotPermitted,
        kvfs::Error::Corrupt { .. } => Exit::Damaged,
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("{doing}: {error}"))
}

/// Returns the attributes of `path`, following symbolic links at its end.
pub fn find(fs: &Fs, path: &[u8]) -> Outcome<Attr> {
    let failed = |e| failure(format!("cannot find {}", text::show(path)), e);
    let mut path_now = path.to_vec();
    for _ in 0..40 {
        let attr = fs.resolve(&path_now).map_err(failed)?;
        if attr.kind != FileKind::Symlink {
            return Ok(attr);
        }
        let target = fs.readlink(attr.ino).map_err(failed)?;
        path_now = if target.starts_with(b"/") {
            target
        } else {
            [parent(&path_now), b"/", &target].concat()
        };
    }
    Err(failed(kvfs::Error::TooManySymlinks))
}

fn parent(path: &[u8]) -> &[u8] {
    let path = &path[..path.iter().rposition(|c| *c != b'/').map_or(0, |i| i + 1)];
    path.iter().rposition(|c| *c == b'/').map_or(b"", |i| &path[..i])
}

/// Returns the names in a path.
pub fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|c| *c == b'/').filter(|name| !name.is_empty() && *name != b".")
}

/// Returns the directory at `path`, made with its parents if it does not exist.
pub fn make_directories(fs: &Fs, path: &[u8], caller: Caller) -> Outcome<Ino> {
    let mut at = ROOT;
    for name in names(path) {
        let failed = |e| failure(format!("cannot make the directory {}", text::show(path)), e);
        let made = match fs.lookup(at, name) {
            Err(kvfs::Error::NotFound) => fs.mkdir(at, name, 0o755, caller),
            found => found,
        };
        let attr = made.map_err(failed)?;
        fs.forget(attr.ino, 1);
        at = match attr.kind {
            FileKind::Symlink => find(fs, path)?.ino,
            _ => attr.ino,
        };
        if attr.kind == FileKind::Symlink {
            return Ok(at);
        }
    }
    Ok(at)
}

/// Returns the stored extents of a file: (offset, length), in order. The gaps between them are
/// zeros.
pub fn extents(fs: &Fs, attr: &Attr) -> kvfs::Result<Vec<(u64, u64)>> {
    // A small file without holes is not searched for them. The page count of a large file is not
    // trusted: a damaged store could make the export write zeros without end.
    if attr.size <= TRUSTED && attr.blocks.saturating_mul(512) >= attr.size {
        return Ok(if attr.size > 0 { vec![(0, attr.size)] } else { Vec::new() });
    }
    let mut found = Vec::new();
    let mut at = 0;
    while at < attr.size {
        let data = match fs.seek(attr.ino, at, Whence::Data) {
            Err(kvfs::Error::NoSuchOffset) => break,
            data => data?,
        };
        let hole = fs.seek(attr.ino, data, Whence::Hole)?.min(attr.size);
        if hole <= data {
            break;
        }
        found.push((data, hole - data));
        at = hole;
    }
    Ok(found)
}

/// An entry of a directory.
pub struct Entry {
    pub name: Vec<u8>,
    pub ino: Ino,
}

/// A listing that is read in pieces, so that a directory of any size takes little memory. Omits `.`
/// and `..`.
pub struct Listing {
    pub ino: Ino,
    cookie: u64,
    waiting: std::vec::IntoIter<Entry>,
    over: bool,
    /// An error, which is returned after the entries that precede it.
    failed: Option<kvfs::Error>,
}

/// The directories that a walk has entered. In a damaged store a directory may have several names
/// or contain itself; a walk that entered it again could take long, or never end.
pub struct Walked(HashSet<Ino>);

impl Walked {
    pub fn from(top: Ino) -> Walked {
        Walked(HashSet::from([top]))
    }

    pub fn enter(&mut self, ino: Ino) -> kvfs::Result<()> {
        match self.0.insert(ino) {
            true => Ok(()),
            false => Err(kvfs::Error::Corrupt {
                ino,
                what: "a directory with more than one name".into(),
            }),
        }
    }
}

impl Listing {
    pub fn new(ino: Ino) -> Self {
        Listing { ino, cookie: 0, waiting: Vec::new().into_iter(), over: false, failed: None }
    }

    pub fn next(&mut self, fs: &Fs) -> kvfs::Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.waiting.next() {
                return Ok(Some(entry));
            }
            if let Some(error) = self.failed.take() {
                self.over = true;
                return Err(error);
            }
            if self.over {
                return Ok(None);
            }
            let (mut entries, mut cookie, mut full) = (Vec::new(), self.cookie, false);
            let listed = fs.readdir(self.ino, self.cookie, false, &mut |entry| {
                full = entries.len() >= 1000;
                if full {
                    return false;
                }
                cookie = entry.cookie;
                if entry.name != b"." && entry.name != b".." {
                    entries.push(Entry { name: entry.name.to_vec(), ino: entry.ino });
                }
                true
            });
            self.failed = listed.err();
            self.cookie = cookie;
            self.over = !full;
            self.waiting = entries.into_iter();
        }
    }
}

/// Formats a mode, like `drwxr-xr-x`.
pub fn mode_text(kind: FileKind, perm: u16) -> String {
    let mut out = String::from(match kind {
        FileKind::File => "-",
        FileKind::Dir => "d",
        FileKind::Symlink => "l",
        FileKind::Fifo => "p",
        FileKind::Socket => "s",
        FileKind::CharDevice => "c",
        FileKind::BlockDevice => "b",
    });
    for (shift, special, both, alone) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = perm >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (bits & 1 != 0, perm & special != 0) {
            (true, true) => both,
            (false, true) => alone,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    out
}

pub fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Dir => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

/// Decodes the kernel's encoding of a device into its major and minor number.
pub fn device_numbers(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

/// Encodes the major and minor number of a device as the kernel does.
pub fn device_number(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xfff00) << 12)
}

/// Formats a time in UTC, like "2026-11-21 21:40:03".
pub fn time_text(time: Timestamp) -> String {
    let (days, seconds) = (time.secs.div_euclid(86_400), time.secs.rem_euclid(86_400));
    // Count days since 0000-03-01 in eras of 400 years (H. Hinnant, "chrono-compatible low-level
    // date algorithms").
    let z = days.saturating_add(719_468);
    let (era, day) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Parses the output of [`time_text`] into seconds since 1970.
pub fn time_of_text(text: &str) -> Option<i64> {
    let (date, clock) = text.split_once(' ')?;
    let (date, day) = date.rsplit_once('-')?;
    let (year, month) = date.rsplit_once('-')?;
    let (year, month, day): (i64, i64, i64) =
        (year.parse().ok()?, month.parse().ok()?, day.parse().ok()?);
    let mut parts = clock.split(':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    // Count days in years that begin in March, as in `time_text`.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (y.div_euclid(400), y.rem_euclid(400));
    let day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + (153 * m + 2) / 5 + day - 1;
    let days = era * 146_097 + day_of_era - 719_468;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    // Reject text that would be formatted differently, such as the 30th of February.
    let same = time_text(Timestamp { secs: seconds, nanos: 0 }) == text;
    same.then_some(seconds)
}

/// Returns all attributes as JSON.
pub fn attr_json(attr: &Attr) -> serde_json::Map<String, serde_json::Value> {
    let time = |t: Timestamp| serde_json::json!({"secs": t.secs, "nanos": t.nanos});
    let mut object = serde_json::Map::new();
    object.insert("ino".into(), attr.ino.into());
    object.insert("kind".into(), kind_name(attr.kind).into());
    object.insert("mode".into(), format!("{:04o}", attr.perm).into());
    object.insert("nlink".into(), attr.nlink.into());
    object.insert("uid".into(), attr.uid.into());
    object.insert("gid".into(), attr.gid.into());
    if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        let (major, minor) = device_numbers(attr.rdev);
        object.insert("device".into(), serde_json::json!([major, minor]));
    }
    object.insert("size".into(), attr.size.into());
    object.insert("blocks".into(), attr.blocks.into());
    for (name, t) in
        [("atime", attr.atime), ("mtime", attr.mtime), ("ctime", attr.ctime), ("btime", attr.btime)]
    {
        object.insert(name.into(), time(t));
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_the_calendar() {
        for (secs, want) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_795_297_203, "2026-11-21 21:40:03"),
            (-1, "1969-12-31 23:59:59"),
            (4_102_444_799, "2099-12-31 23:59:59"),
        ] {
            assert_eq!(time_text(Timestamp { secs, nanos: 0 }), want);
        }
    }

    #[test]
    fn modes_are_shown_as_ls_does() {
        assert_eq!(mode_text(FileKind::Dir, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(FileKind::File, 0o4655), "-rwSr-xr-x");
        assert_eq!(mode_text(FileKind::File, 0o2755), "-rwxr-sr-x");
    }

    #[test]
    fn device_numbers_survive() {
        for (major, minor) in [(0, 0), (1, 3), (8, 300), (4095, 0xf_ffff)] {
            assert_eq!(device_numbers(device_number(major, minor)), (major, minor));
        }
    }

    #[test]
    fn parents() {
        assert_eq!(parent(b"/a/b"), b"/a");
        assert_eq!(parent(b"/a/b//"), b"/a");
        assert_eq!(parent(b"a"), b"");
        assert_eq!(parent(b"/"), b"");
    }
}
