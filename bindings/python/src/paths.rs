//! Paths of a file system. A path is bytes with slashes, begins at the root, and may begin with a
//! slash.

use kvfs::{Attr, Error, FileKind, Fs, Ino};

use crate::failure::{Failure, Outcome};

/// Limit on the number of symbolic links that are followed at the end of a path.
const MOST_LINKS: usize = 40;

/// Refuses a path that cannot exist in any file system.
pub fn check(path: &[u8]) -> Outcome<()> {
    if path.contains(&0) {
        return Err(Failure::Invalid(format!(
            "a path has no NUL: {:?}",
            path.escape_ascii().to_string()
        )));
    }
    Ok(())
}

/// Returns the directory of a path and the name in it, or an error for the root.
fn split(path: &[u8]) -> Outcome<(&[u8], &[u8])> {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    let path = &path[..end];
    let start = path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    match &path[start..] {
        b"" => Err(Error::Invalid("the root directory has no name").into()),
        name => Ok((&path[..start], name)),
    }
}

/// Returns the directory that contains the last name of a path, and that name.
pub fn parent<'p>(fs: &Fs, path: &'p [u8]) -> Outcome<(Ino, &'p [u8])> {
    check(path)?;
    let (dir, name) = split(path)?;
    // The appended name `.` has a link at the end of the directory's path followed.
    let dir = fs.resolve(&[dir, b"/."].concat())?;
    Ok((dir.ino, name))
}

/// Returns the attributes of the file at a path. With `follow`, a symbolic link at its end is
/// followed.
pub fn resolve(fs: &Fs, path: &[u8], follow: bool) -> Outcome<Attr> {
    check(path)?;
    let mut path = path.to_vec();
    for _ in 0..=MOST_LINKS {
        let found = fs.resolve(&path)?;
        if found.kind != FileKind::Symlink || !follow {
            return must_be_dir(found, &path);
        }
        path = behind(fs, &path, found.ino)?;
    }
    Err(Error::TooManySymlinks.into())
}

/// Checks that the file is a directory if the path ends with a slash.
fn must_be_dir(found: Attr, path: &[u8]) -> Outcome<Attr> {
    if path.ends_with(b"/") && found.kind != FileKind::Dir {
        return Err(Error::NotDirectory.into());
    }
    Ok(found)
}

/// Returns the path to which the symbolic link at a path refers.
pub fn behind(fs: &Fs, path: &[u8], link: Ino) -> Outcome<Vec<u8>> {
    let target = fs.readlink(link)?;
    if target.first() == Some(&b'/') {
        return Ok(target);
    }
    let (dir, _) = split(path)?;
    Ok([dir, &target].concat())
}
