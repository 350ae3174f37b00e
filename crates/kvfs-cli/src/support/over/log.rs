//! The log of a run: what is swapped between a folder and an upper layer, and the attributes of
//! directories before and after. It is JSON, written to another name, synced, and renamed.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::support::layers::layer::{Attributes, Layer, Time, Xattr, join};

/// The version of the log that this program writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// A path, or the name or the value of an attribute: text where the bytes are text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Name(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Written> for Name {
    fn from(written: Written) -> Name {
        match written {
            Written::Text(text) => Name(text.into_bytes()),
            Written::Bytes(bytes) => Name(bytes),
        }
    }
}

impl From<Name> for Written {
    fn from(name: Name) -> Written {
        match String::from_utf8(name.0) {
            Ok(text) => Written::Text(text),
            Err(e) => Written::Bytes(e.into_bytes()),
        }
    }
}

/// All changes of a run in its folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    pub version: u32,
    /// The program and its arguments, for people.
    pub label: String,
    /// The beginning of the run, by the clock of the file system. What others have changed later is
    /// not replaced.
    pub started: Time,
    /// The birth of the folder, if the file system knows it.
    pub born: Option<Time>,
    /// Sorted by path. No path of one lies beneath that of another.
    pub swaps: Vec<Swap>,
    /// Sorted by path, so that a directory comes before those in it.
    pub directories: Vec<Directory>,
}

/// A path whose files in the folder and in the upper layer are exchanged. It has at least one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swap {
    pub path: Name,
    /// The inode number of the file in the folder before the run, if there was one.
    pub before: Option<u64>,
    /// The inode number of the file that the run has made, unless it has removed the path.
    pub after: Option<u64>,
    /// The permissions of either, if it is a directory that its owner may not change. Only root
    /// moves such a directory to another one without changing that.
    pub closed: (Option<u32>, Option<u32>),
}

/// A directory of the folder that stays, and gets other attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    pub path: Name,
    /// The inode number of the directory. Another one in its place is of others.
    pub inode: u64,
    pub before: State,
    pub after: State,
}

/// Attributes to be set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// `None` leaves the time alone.
    pub mtime: Option<Time>,
    /// `None` leaves the extended attributes alone.
    pub xattrs: Option<Vec<(Name, Name)>>,
}

impl State {
    pub fn of(file: &Attributes, xattrs: Option<Vec<Xattr>>) -> State {
        let named = |all: Vec<Xattr>| all.into_iter().map(|(n, v)| (Name(n), Name(v))).collect();
        State {
            mode: file.mode,
            uid: file.uid,
            gid: file.gid,
            mtime: Some(file.mtime),
            xattrs: xattrs.map(named),
        }
    }
}

/// A file of the folder as it was when a run had been applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub path: Name,
    pub inode: u64,
    pub size: u64,
    pub mtime: Time,
    pub ctime: Time,
    /// True for a file with several names.
    pub is_linked: bool,
}

impl Seen {
    pub fn of(path: &[u8], file: &Attributes) -> Seen {
        Seen {
            path: Name(path.to_vec()),
            inode: file.inode,
            // The size of a directory says nothing of its entries.
            size: if file.is_directory() { 0 } else { file.size },
            mtime: file.mtime,
            ctime: file.ctime,
            is_linked: file.is_linked && !file.is_directory(),
        }
    }

    /// Returns whether a file is as it was noted. A move of one name of a file with several sets
    /// the ctime of all of them, so that does not count for those.
    pub fn is_still(&self, now: &Seen) -> bool {
        (self.inode, self.size, self.mtime) == (now.inode, now.size, now.mtime)
            && (self.is_linked || self.ctime == now.ctime)
    }
}

/// Adds the files at and beneath a path of a folder.
pub fn see(folder: &Layer, path: &[u8], all: &mut Vec<Seen>) -> io::Result<()> {
    let mut todo = vec![path.to_vec()];
    while let Some(path) = todo.pop() {
        let Some(file) = folder.attributes(&path)? else { continue };
        if file.is_directory() {
            todo.extend(folder.names(&path)?.iter().map(|name| join(&path, name)));
        }
        all.push(Seen::of(&path, &file));
    }
    Ok(())
}

/// Writes a file of the state as a whole, and syncs it and its directory.
pub fn write(directory: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    let new = directory.join(format!("{name}.new"));
    let mut file = BufWriter::new(File::create(&new)?);
    serde_json::to_writer(&mut file, value)?;
    file.flush()?;
    file.get_ref().sync_all()?;
    fs::rename(&new, directory.join(name))?;
    File::open(directory)?.sync_all()
}

/// Reads a file of the state, or returns `None` if there is none.
pub fn read<T: DeserializeOwned>(directory: &Path, name: &str) -> io::Result<Option<T>> {
    match File::open(directory.join(name)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        file => Ok(Some(serde_json::from_reader(BufReader::new(file?))?)),
    }
}

/// Removes a file of the state, and syncs its directory.
pub fn remove(directory: &Path, name: &str) -> io::Result<()> {
    fs::remove_file(directory.join(name))?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_every_byte_of_a_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let names = [&b"a\n\x1b[2J"[..], b"\xff\xfe", b"", "gr\u{fc}n".as_bytes()];
        let swap = |path: &&[u8]| Swap {
            path: Name(path.to_vec()),
            before: Some(7),
            after: None,
            closed: (Some(0o500), None),
        };
        let log = Log {
            version: VERSION,
            label: "sh".into(),
            started: (7, 8),
            born: Some((5, 6)),
            swaps: names.iter().map(swap).collect(),
            directories: Vec::new(),
        };
        write(directory.path(), "log", &log).expect("it is written");
        assert_eq!(read::<Log>(directory.path(), "log").expect("it is read"), Some(log));
        remove(directory.path(), "log").expect("it is removed");
        assert_eq!(read::<Log>(directory.path(), "log").expect("none is there"), None);
    }
}
