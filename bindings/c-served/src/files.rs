//! Files of the view that is open, by paths from the root.

use kvfs::{Attr, Caller, Error, FileKind, Fs, Ino, RenameFlags, Result, SetAttr, WriteHints};

/// Symbolic links that are followed at the end of a path.
const MOST_LINKS: usize = 40;

/// The permissions of new files.
const MODE: u16 = 0o644;

/// Bytes that are read or written at a time.
pub const PIECE: usize = 1 << 20;

/// Returns the user and the group of new files and directories.
fn caller() -> Caller {
    Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        pid: std::process::id(),
    }
}

/// Returns the directory of a path and the name in it. The root has none.
fn split(path: &[u8]) -> Result<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let path = &path[..end];
    let start = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    match &path[start..] {
        b"" => Err(Error::Invalid("the root directory has no name")),
        name => Ok((&path[..start], name)),
    }
}

/// Returns the directory that the last name of a path is in, and that name.
fn parent<'p>(fs: &Fs, path: &'p [u8]) -> Result<(Ino, &'p [u8])> {
    let (dir, name) = split(path)?;
    // With a name after it, a symbolic link at the end of the directory's path is followed.
    let dir = fs.resolve(&[dir, b"/."].concat())?;
    Ok((dir.ino, name))
}

/// Follows the symbolic links at the end of a path. Returns the path to which they lead, and the
/// attributes of what is there, if anything is. A slash at the end stays there.
fn followed(fs: &Fs, path: &[u8]) -> Result<(Vec<u8>, Option<Attr>)> {
    let mut path = path.to_vec();
    for _ in 0..=MOST_LINKS {
        let found = match fs.resolve(&path) {
            Err(Error::NotFound) => return Ok((path, None)),
            found => found?,
        };
        if found.kind != FileKind::Symlink {
            return Ok((path, Some(found)));
        }
        let mut target = fs.readlink(found.ino)?;
        if path.ends_with(b"/") {
            target.push(b'/');
        }
        path = if target.first() == Some(&b'/') {
            target
        } else {
            let (dir, _) = split(&path)?;
            [dir, &target].concat()
        };
    }
    Err(Error::TooManySymlinks)
}

/// Returns the attributes at a path. `follow`: of the target of a symbolic link.
pub fn stat(fs: &Fs, path: &[u8], follow: bool) -> Result<Attr> {
    // A slash at the end says that it is a directory, or a link that leads to one.
    if !follow && !path.ends_with(b"/") {
        return fs.resolve(path);
    }
    let (path, found) = followed(fs, path)?;
    match found.ok_or(Error::NotFound)? {
        found if path.ends_with(b"/") && found.kind != FileKind::Dir => Err(Error::NotDirectory),
        found => Ok(found),
    }
}

/// Returns the regular file at a path.
fn file(fs: &Fs, path: &[u8]) -> Result<Attr> {
    let found = stat(fs, path, true)?;
    match found.kind {
        FileKind::File => Ok(found),
        FileKind::Dir => Err(Error::IsDirectory),
        _ => Err(Error::Unsupported("opening what is no regular file")),
    }
}

/// Returns the regular file at a path, which is made if there is none, also where a symbolic link
/// leads to nothing yet.
fn file_to_write(fs: &Fs, path: &[u8]) -> Result<Ino> {
    let (path, found) = followed(fs, path)?;
    if found.is_some() {
        return Ok(file(fs, &path)?.ino);
    }
    if path.ends_with(b"/") {
        return Err(Error::IsDirectory);
    }
    let (dir, name) = parent(fs, &path)?;
    let made = fs.mknod(dir, name, FileKind::File, MODE, 0, caller())?;
    fs.forget(made.ino, 1);
    Ok(made.ino)
}

/// Passes the bytes of a file from an offset on to `take`, in pieces: `size` bytes, or those up to
/// its end. Returns how many there were.
pub fn read(
    fs: &Fs,
    path: &[u8],
    offset: u64,
    size: usize,
    mut take: impl FnMut(&[u8]),
) -> Result<usize> {
    let ino = file(fs, path)?.ino;
    let mut got = 0;
    while got < size {
        let most = (size - got).min(PIECE) as u32;
        let piece = fs.read(ino, offset.saturating_add(got as u64), most)?;
        if piece.is_empty() {
            break;
        }
        take(&piece);
        got += piece.len();
    }
    Ok(got)
}

/// Returns the size of a file.
pub fn size(fs: &Fs, path: &[u8]) -> Result<u64> {
    Ok(file(fs, path)?.size)
}

/// Writes bytes into a file, which is made if there is none.
pub fn write(fs: &Fs, path: &[u8], offset: u64, bytes: &[u8]) -> Result<()> {
    let ino = file_to_write(fs, path)?;
    write_at(fs, ino, offset, bytes)
}

fn write_at(fs: &Fs, ino: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
    let mut at = offset;
    for piece in bytes.chunks(PIECE) {
        fs.write(ino, at, piece, WriteHints::default())?;
        at = at.saturating_add(piece.len() as u64);
    }
    Ok(())
}

/// Makes these bytes the content of a file, which is made if there is none.
pub fn write_whole(fs: &Fs, path: &[u8], bytes: &[u8]) -> Result<()> {
    let ino = file_to_write(fs, path)?;
    cut(fs, ino, 0)?;
    write_at(fs, ino, 0, bytes)
}

/// Sets the size of a file.
pub fn truncate(fs: &Fs, path: &[u8], size: u64) -> Result<()> {
    let ino = file(fs, path)?.ino;
    cut(fs, ino, size)
}

fn cut(fs: &Fs, ino: Ino, size: u64) -> Result<()> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(ino, &set, caller()).map(drop)
}

/// Returns the names of a directory with their attributes, in order, without `.` and `..`.
pub fn list(fs: &Fs, path: &[u8]) -> Result<Vec<(Vec<u8>, Attr)>> {
    let dir = stat(fs, path, true)?;
    let (mut found, mut referenced) = (Vec::new(), Vec::new());
    let listed = fs.readdir(dir.ino, 0, true, &mut |entry| {
        if matches!(entry.name, b"." | b"..") {
            return true;
        }
        if let Some(attr) = entry.attr {
            referenced.push(entry.ino);
            found.push((entry.name.to_vec(), attr));
        }
        true
    });
    referenced.into_iter().for_each(|ino| fs.forget(ino, 1));
    listed?;
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// Makes a directory.
pub fn mkdir(fs: &Fs, path: &[u8], mode: u16) -> Result<()> {
    let (dir, name) = parent(fs, path)?;
    let made = fs.mkdir(dir, name, mode & 0o7777, caller())?;
    fs.forget(made.ino, 1);
    Ok(())
}

/// Removes a file, or an empty directory.
pub fn remove(fs: &Fs, path: &[u8]) -> Result<()> {
    let (dir, name) = parent(fs, path)?;
    if matches!(name, b"." | b"..") {
        return Err(Error::Invalid("removing `.` or `..`"));
    }
    match fs.unlink(dir, name) {
        Err(Error::IsDirectory) => fs.rmdir(dir, name),
        removed => removed,
    }
}

/// Renames a file or directory, and replaces a file or an empty directory of the new name.
pub fn rename(fs: &Fs, from: &[u8], to: &[u8]) -> Result<()> {
    let (dir, name) = parent(fs, from)?;
    let (new_dir, new_name) = parent(fs, to)?;
    fs.rename(dir, name, new_dir, new_name, RenameFlags::default())
}
