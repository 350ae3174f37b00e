//! The calls of a history and their text: one call a line, `WORKER WORD ARGUMENT...`, which a
//! replay reads again.
//!
//! A call is self-contained: it names descriptors and mappings by slot, and files relative to the
//! worker's directory. So any part of a history is also a history, and shrinking means leaving out
//! lines.

use std::fmt;
use std::str::FromStr;

use crate::flags::{AllocMode, LockKind, OpenFlags, RenameFlags, Whence, XattrFlags};

/// One argument of a call.
pub trait Word: Sized {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    fn read(word: &str) -> Option<Self>;
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Word for $type {
            fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, "{self}") }
            fn read(word: &str) -> Option<Self> { word.parse().ok() }
        }
    )*};
}
numbers!(u8, u32, i64, bool);

/// A path in the form of a history, without blanks. `%255` stands for a component of 255 letters,
/// and `@3/a` is `a` below the directory in slot 3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(pub String);

impl Name {
    /// The slot whose directory the path starts at, and the path with its long components written
    /// out.
    pub fn resolve(&self) -> (Option<u8>, String) {
        let (slot, rest) = match self.0.strip_prefix('@').and_then(|rest| rest.split_once('/')) {
            Some((slot, rest)) => (slot.parse().ok(), rest),
            None => (None, self.0.as_str()),
        };
        let long = |part: &str| match part.strip_prefix('%').and_then(|n| n.parse().ok()) {
            Some(length) => "n".repeat(length),
            None => part.to_owned(),
        };
        (slot, rest.split('/').map(long).collect::<Vec<_>>().join("/"))
    }
}

impl Word for Name {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
    fn read(word: &str) -> Option<Self> {
        Some(Name(word.to_owned()))
    }
}

/// Permission bits, in octal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

impl Word for Mode {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0{:o}", self.0)
    }
    fn read(word: &str) -> Option<Self> {
        u32::from_str_radix(word, 8).ok().map(Mode)
    }
}

/// A time to set: a point, the present one, or left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    Now,
    Omit,
    At(i64, i64),
}

impl Word for Time {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Time::Now => f.write_str("now"),
            Time::Omit => f.write_str("omit"),
            Time::At(seconds, nanoseconds) => write!(f, "{seconds}.{nanoseconds:09}"),
        }
    }
    fn read(word: &str) -> Option<Self> {
        match word {
            "now" => Some(Time::Now),
            "omit" => Some(Time::Omit),
            at => {
                let (seconds, nanoseconds) = at.split_once('.')?;
                Some(Time::At(seconds.parse().ok()?, nanoseconds.parse().ok()?))
            }
        }
    }
}

macro_rules! calls {
    ($($(#[$doc:meta])* $variant:ident $word:literal { $($field:ident: $type:ty),* })*) => {
        /// A system call, or a small program, with its arguments.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Call { $($(#[$doc])* $variant { $($field: $type),* },)* }

        impl Call {
            pub fn word(&self) -> &'static str {
                match self { $(Call::$variant { .. } => $word,)* }
            }
        }

        impl fmt::Display for Call {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Call::$variant { $($field),* } => {
                        f.write_str($word)?;
                        $( f.write_str(" ")?; $field.show(f)?; )*
                        Ok(())
                    })*
                }
            }
        }

        impl FromStr for Call {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                let mut words = text.split_ascii_whitespace();
                match words.next().unwrap_or_default() {
                    $($word => Ok(Call::$variant { $($field: {
                        let word = words.next().ok_or_else(|| format!("'{text}': {} is missing", stringify!($field)))?;
                        <$type as Word>::read(word).ok_or_else(|| format!("'{text}': '{word}' is no {}", stringify!($field)))?
                    }),* }),)*
                    other => Err(format!("'{other}' is no call")),
                }
            }
        }
    };
}

calls! {
    Open "open" { slot: u8, path: Name, flags: OpenFlags, mode: Mode }
    Close "close" { slot: u8 }
    Dup "dup" { slot: u8, to: u8 }
    Read "read" { slot: u8, len: u32 }
    Pread "pread" { slot: u8, at: i64, len: u32 }
    /// Into three pieces.
    Readv "readv" { slot: u8, at: i64, len: u32 }
    Write "write" { slot: u8, len: u32, tag: u32 }
    Pwrite "pwrite" { slot: u8, at: i64, len: u32, tag: u32 }
    /// From three pieces.
    Writev "writev" { slot: u8, at: i64, len: u32, tag: u32 }
    /// `pwritev2` with RWF_APPEND.
    Append "append" { slot: u8, len: u32, tag: u32 }
    Seek "seek" { slot: u8, at: i64, whence: Whence }
    /// SEEK_DATA, or SEEK_HOLE if `hole`. The guaranteed properties of the answer are checked, not
    /// the answer itself.
    SeekData "seekdata" { slot: u8, at: i64, hole: bool }
    /// Walks all data of the file by SEEK_DATA and SEEK_HOLE; outside of it everything must be
    /// zeros.
    Holes "holes" { slot: u8 }
    Truncate "truncate" { path: Name, len: i64 }
    Ftruncate "ftruncate" { slot: u8, len: i64 }
    Fallocate "fallocate" { slot: u8, mode: AllocMode, at: i64, len: i64 }
    CopyRange "copyrange" { from: u8, from_at: i64, to: u8, to_at: i64, len: u32 }
    Sendfile "sendfile" { from: u8, at: i64, to: u8, len: u32 }
    /// Through a pipe, at most 64 KiB.
    Splice "splice" { from: u8, from_at: i64, to: u8, to_at: i64, len: u32 }
    Mmap "mmap" { map: u8, slot: u8, shared: bool, writable: bool, at: i64, len: u32 }
    Munmap "munmap" { map: u8 }
    Load "load" { map: u8, at: u32, len: u32 }
    Store "store" { map: u8, at: u32, len: u32, tag: u32 }
    Msync "msync" { map: u8 }
    /// A write whose buffer is a mapping.
    WriteMap "writemap" { slot: u8, at: i64, map: u8, map_at: u32, len: u32 }
    /// A read into a mapping.
    ReadMap "readmap" { slot: u8, at: i64, map: u8, map_at: u32, len: u32 }
    Fsync "fsync" { slot: u8 }
    Fdatasync "fdatasync" { slot: u8 }
    SyncRange "syncrange" { slot: u8, at: i64, len: u32 }
    /// POSIX_FADV_DONTNEED on the whole file.
    Forget "forget" { slot: u8 }
    Mkdir "mkdir" { path: Name, mode: Mode }
    Rmdir "rmdir" { path: Name }
    Unlink "unlink" { path: Name }
    Rename "rename" { from: Name, to: Name, flags: RenameFlags }
    Link "link" { from: Name, to: Name, follow: bool }
    /// Gives an open file a name, as after O_TMPFILE.
    LinkOpen "linkopen" { slot: u8, to: Name }
    Symlink "symlink" { target: Name, path: Name }
    Readlink "readlink" { path: Name }
    Mkfifo "mkfifo" { path: Name, mode: Mode }
    Chmod "chmod" { path: Name, mode: Mode }
    Fchmod "fchmod" { slot: u8, mode: Mode }
    Chown "chown" { path: Name, user: i64, group: i64, follow: bool }
    Fchown "fchown" { slot: u8, user: i64, group: i64 }
    Utimens "utimens" { path: Name, atime: Time, mtime: Time, follow: bool }
    Futimens "futimens" { slot: u8, atime: Time, mtime: Time }
    SetXattr "setxattr" { path: Name, name: Name, len: u32, tag: u32, flags: XattrFlags }
    GetXattr "getxattr" { path: Name, name: Name }
    ListXattr "listxattr" { path: Name }
    RemoveXattr "removexattr" { path: Name, name: Name }
    FsetXattr "fsetxattr" { slot: u8, name: Name, len: u32, tag: u32, flags: XattrFlags }
    FgetXattr "fgetxattr" { slot: u8, name: Name }
    FremoveXattr "fremovexattr" { slot: u8, name: Name }
    Stat "stat" { path: Name, follow: bool }
    Fstat "fstat" { slot: u8 }
    Access "access" { path: Name, mode: u32 }
    List "list" { path: Name }
    /// Starts to list a directory that others may change until it is done.
    ScanStart "scanstart" { scan: u8, path: Name }
    ScanSome "scansome" { scan: u8 }
    ScanEnd "scanend" { scan: u8 }
    Flock "flock" { slot: u8, kind: LockKind }
    /// A record lock of the process; never waits.
    Lock "lock" { slot: u8, kind: LockKind, at: i64, len: i64 }
    GetLock "getlock" { slot: u8, kind: LockKind, at: i64, len: i64 }
    Chdir "chdir" { path: Name }
    /// Returns to the root of the history.
    Home "home" {}
    Umask "umask" { mode: Mode }
    Cp "cp" { from: Name, to: Name, sparse: bool }
    CpTree "cptree" { from: Name, to: Name }
    Tar "tar" { from: Name, to: Name }
    Rsync "rsync" { from: Name, to: Name }
    /// Everything below a path.
    Tree "tree" { path: Name }
    /// All processes and the daemon are killed after a save, and the store is mounted again.
    Kill "kill" {}
}

/// A call in its place in a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub worker: u8,
    /// Compare which times of the named files the call changes. This costs a tick of the clock.
    pub timed: bool,
    pub call: Call,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.worker, if self.timed { "~" } else { "" }, self.call)
    }
}

impl FromStr for Step {
    type Err = String;
    fn from_str(line: &str) -> Result<Self, String> {
        let (worker, rest) =
            line.trim().split_once(' ').ok_or_else(|| format!("'{line}': no call"))?;
        let worker = worker.parse().map_err(|_| format!("'{line}': '{worker}' is no worker"))?;
        let rest = rest.trim();
        let (timed, call) = match rest.strip_prefix('~') {
            Some(call) => (true, call),
            None => (false, rest),
        };
        Ok(Step { worker, timed, call: call.parse()? })
    }
}

/// Reads a history. Empty lines and text after a `#` are ignored.
pub fn read_history(text: &str) -> Result<Vec<Step>, String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(str::parse).collect()
}

impl Call {
    /// The paths that the call names.
    pub fn names(&self) -> Vec<&Name> {
        match self {
            Call::Open { path, .. }
            | Call::Truncate { path, .. }
            | Call::Mkdir { path, .. }
            | Call::Rmdir { path }
            | Call::Unlink { path }
            | Call::Symlink { path, .. }
            | Call::Readlink { path }
            | Call::Mkfifo { path, .. }
            | Call::Chmod { path, .. }
            | Call::Chown { path, .. }
            | Call::Utimens { path, .. }
            | Call::SetXattr { path, .. }
            | Call::GetXattr { path, .. }
            | Call::ListXattr { path }
            | Call::RemoveXattr { path, .. }
            | Call::Stat { path, .. }
            | Call::Access { path, .. }
            | Call::List { path } => vec![path],
            Call::Rename { from, to, .. } | Call::Link { from, to, .. } => vec![from, to],
            Call::LinkOpen { to, .. } => vec![to],
            _ => Vec::new(),
        }
    }

    /// The slots that the call uses.
    pub fn slots(&self) -> Vec<u8> {
        match *self {
            Call::Read { slot, .. }
            | Call::Pread { slot, .. }
            | Call::Readv { slot, .. }
            | Call::Write { slot, .. }
            | Call::Pwrite { slot, .. }
            | Call::Writev { slot, .. }
            | Call::Append { slot, .. }
            | Call::Ftruncate { slot, .. }
            | Call::Fallocate { slot, .. }
            | Call::Fchmod { slot, .. }
            | Call::Fchown { slot, .. }
            | Call::Futimens { slot, .. }
            | Call::FsetXattr { slot, .. }
            | Call::FgetXattr { slot, .. }
            | Call::FremoveXattr { slot, .. }
            | Call::Fstat { slot }
            | Call::LinkOpen { slot, .. } => vec![slot],
            Call::CopyRange { from, to, .. }
            | Call::Sendfile { from, to, .. }
            | Call::Splice { from, to, .. } => vec![from, to],
            _ => Vec::new(),
        }
    }
}
