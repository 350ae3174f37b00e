//! Lists of the files below a folder, in the order of keys.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, Mode, openat, statat};
use rustix::io::Errno;

use super::root::FOLDER;
use crate::key::{Key, part_objection};
use crate::object::{Listed, Page};

struct Walk<'a> {
    prefix: &'a str,
    after: &'a str,
    /// One more than the number of entries of the page, to find out whether there is another page.
    most: usize,
    entries: Vec<Listed>,
}

/// Returns the first `most` objects after `after` with this prefix.
pub(super) fn page(
    root: &OwnedFd,
    prefix: &str,
    after: &str,
    most: usize,
) -> rustix::io::Result<Page> {
    let mut walk = Walk { prefix, after, most: most.saturating_add(1), entries: Vec::new() };
    walk.folder(root, "")?;
    let more = walk.entries.len() > most;
    walk.entries.truncate(most);
    Ok(Page { entries: walk.entries, more })
}

impl Walk<'_> {
    /// Adds the objects of a folder. `at` is the path of the folder with a slash at the end, or
    /// empty for the root.
    fn folder(&mut self, folder: &OwnedFd, at: &str) -> rustix::io::Result<()> {
        for path in self.children(folder, at)? {
            if self.entries.len() == self.most {
                return Ok(());
            }
            let name = &path[at.len()..];
            match name.strip_suffix('/') {
                Some(name) => match openat(folder, name, FOLDER, Mode::empty()) {
                    Ok(inner) => self.folder(&inner, &path)?,
                    // Another process has removed or replaced the folder.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(e) => return Err(e),
                },
                None => self.file(folder, name, &path)?,
            }
        }
        Ok(())
    }

    /// Returns the paths in a folder that may lead to entries, in the order of keys. The path of a
    /// folder ends with a slash, which takes part in the order.
    fn children(&self, folder: &OwnedFd, at: &str) -> rustix::io::Result<Vec<String>> {
        let mut paths = Vec::new();
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if part_objection(name).is_some() {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(Errno::NOENT) => continue,
                    Err(e) => return Err(e),
                },
                kind => kind,
            };
            let (path, wanted) = match kind {
                FileType::RegularFile => {
                    let path = format!("{at}{name}");
                    let wanted = path.starts_with(self.prefix) && path.as_str() > self.after;
                    (path, wanted)
                }
                FileType::Directory => {
                    let path = format!("{at}{name}/");
                    let has_prefix =
                        path.starts_with(self.prefix) || self.prefix.starts_with(&path);
                    let has_later = path.as_str() > self.after || self.after.starts_with(&path);
                    // No key can lie below a path that is not a key.
                    let wanted =
                        has_prefix && has_later && Key::new(&path[..path.len() - 1]).is_ok();
                    (path, wanted)
                }
                _ => continue,
            };
            if wanted {
                paths.push(path);
            }
        }
        paths.sort_unstable();
        Ok(paths)
    }

    fn file(&mut self, folder: &OwnedFd, name: &str, path: &str) -> rustix::io::Result<()> {
        let stat = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(e),
        };
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if let (true, Ok(key)) = (is_file, Key::new(path)) {
            let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
            let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
            self.entries.push(Listed {
                key,
                len: u64::try_from(stat.st_size).unwrap_or(0),
                modified: Duration::from_secs(seconds) + Duration::from_nanos(nanos.into()),
            });
        }
        Ok(())
    }
}
