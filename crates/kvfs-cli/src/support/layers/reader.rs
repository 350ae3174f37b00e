//! The reader of an upper layer: yields what it changes in the lower layer, path by path.
//!
//! The changes are what a program sees through the overlay, not how the overlay has written them: a
//! directory that was removed and made again is compared with the one below it, name by name,
//! although the upper layer marks it as opaque; a file that was copied up without a change is left
//! out. Paths come in order: a directory before its entries, and the entries sorted by name, so
//! that everything beneath a path follows it at once.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};

use rustix::fs::FileType;

use crate::support::layers::layer::{Attributes, Layer, Marks, Xattr, join};
use crate::support::terminal::output::Outcome;

/// The two layers of an overlay that has ended: nothing writes to the upper one any more. Others
/// may write to the lower one.
pub struct Layers {
    pub lower: Layer,
    pub upper: Layer,
    pub marks: Marks,
}

/// The kind of difference between the two layers at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The lower layer has nothing there. The entries of an added directory are added, too, each by
    /// a change of its own.
    Added,
    /// The upper layer removes the file. If it is a directory, this removes everything in it, for
    /// which there are no further changes.
    Removed,
    /// The file has another type: the old file is removed as by `Removed`, and the new one is added
    /// as by `Added`.
    Replaced,
    /// The file of the same kind has another content, or other attributes.
    Changed,
}

/// A path at which the view through both layers differs from the lower layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The path in both layers; empty for the directory of the layers itself.
    pub path: Vec<u8>,
    pub what: What,
    /// The file of the lower layer, if it has one there.
    pub before: Option<Attributes>,
    /// The file of the upper layer; `None` if it is removed.
    pub after: Option<Attributes>,
    /// The bytes of a file, the target of a link or the number of a device differ. True also for
    /// what was added or replaced.
    pub content: bool,
    /// The extended attributes differ, except for the overlay's notes. True also for what was added
    /// or replaced.
    pub xattrs: bool,
    /// The first path of the same file, if the file has several names in the upper layer and this
    /// is not the first. That path is among the changes, even if nothing but its number of names
    /// has changed: then `what` is `Changed`, and neither `content` nor anything else differs.
    pub first: Option<Vec<u8>>,
    /// The overlay has copied the file from the lower layer, from here or from where it was
    /// renamed.
    pub is_copy: bool,
}

impl Change {
    /// Returns whether permissions or owners differ.
    pub fn access(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(b), Some(a)) => (b.mode, b.uid, b.gid) != (a.mode, a.uid, a.gid),
            _ => true,
        }
    }

    /// Returns whether both sides are directories, so that only attributes differ: its entries have
    /// changes of their own.
    pub fn is_of_directory(&self) -> bool {
        let is = |file: &Option<Attributes>| file.is_some_and(|file| file.is_directory());
        is(&self.before) && is(&self.after)
    }

    /// Returns whether this is a new directory with everything in it.
    pub fn is_whole(&self) -> bool {
        self.after.is_some_and(|after| after.is_directory()) && !self.is_of_directory()
    }

    /// Returns whether the time of the last modification differs.
    pub fn times(&self) -> bool {
        self.before.map(|before| before.mtime) != self.after.map(|after| after.mtime)
    }
}

impl Layers {
    /// Returns the extended attributes of a file of the upper layer as a program in the overlay
    /// sees them.
    pub fn xattrs(&self, path: &[u8]) -> io::Result<Vec<Xattr>> {
        Ok(self.seen(self.upper.xattrs(path)?))
    }

    /// Returns the extended attributes of a file of the lower layer likewise.
    pub fn xattrs_before(&self, path: &[u8]) -> io::Result<Vec<Xattr>> {
        Ok(self.seen(self.lower.xattrs(path)?))
    }

    fn seen(&self, xattrs: Vec<Xattr>) -> Vec<Xattr> {
        let seen = |(name, value): Xattr| Some((self.marks.seen(&name)?, value));
        let mut seen: Vec<Xattr> = xattrs.into_iter().filter_map(seen).collect();
        seen.sort_unstable();
        seen
    }

    /// Reads what the upper layer changes.
    pub fn changes(&self) -> Changes<'_> {
        let root = Entry { path: Vec::new(), below: true, is_opaque: false };
        Changes { layers: self, todo: vec![root].into(), linked: HashMap::new(), failed: false }
    }

    /// Returns whether the upper layer's file removes the name that it has. An overlay that cannot
    /// make device nodes marks an empty file instead.
    pub fn is_whiteout(&self, path: &[u8], file: &Attributes) -> io::Result<bool> {
        if file.is_whiteout() {
            return Ok(true);
        }
        if file.kind != FileType::RegularFile || file.size != 0 {
            return Ok(false);
        }
        let mark = self.marks.name(b"whiteout");
        Ok(self.upper.xattrs(path)?.iter().any(|(name, _)| *name == mark))
    }

    /// Returns what the lower layer has at a path. A node that an overlay takes for the removal of
    /// a name is not seen through it.
    fn below(&self, path: &[u8]) -> io::Result<Option<Attributes>> {
        Ok(self.lower.attributes(path)?.filter(|below| !below.is_whiteout()))
    }

    /// Returns whether contents differ, for two files of one kind.
    fn differ(&self, path: &[u8], before: &Attributes, after: &Attributes) -> io::Result<bool> {
        Ok(match after.kind {
            FileType::RegularFile => {
                before.size != after.size
                    || match (self.lower.file(path), self.upper.file(path)) {
                        (Ok(before), Ok(after)) => !same(before, after)?,
                        // Files that cannot be compared count as different.
                        _ => true,
                    }
            }
            FileType::Symlink => self.lower.target(path)? != self.upper.target(path)?,
            FileType::CharacterDevice | FileType::BlockDevice => before.rdev != after.rdev,
            _ => false,
        })
    }
}

/// Returns whether two files have the same bytes.
fn same(mut one: File, mut other: File) -> io::Result<bool> {
    const PIECE: u64 = 128 << 10;
    let (mut a, mut b) = (Vec::new(), Vec::new());
    loop {
        a.clear();
        b.clear();
        one.by_ref().take(PIECE).read_to_end(&mut a)?;
        other.by_ref().take(PIECE).read_to_end(&mut b)?;
        if a != b {
            return Ok(false);
        }
        if a.is_empty() {
            return Ok(true);
        }
    }
}

/// A path to be examined.
struct Entry {
    path: Vec<u8>,
    /// True if the lower layer's names are seen at this path: no directory above it replaces one of
    /// another kind, or is new.
    below: bool,
    /// True in a directory that was made again: the view has only what the upper layer has there.
    /// The overlay marks the topmost such directory alone.
    is_opaque: bool,
}

/// The changes of an upper layer, read as they are asked for. After a failure there are no more.
pub struct Changes<'a> {
    layers: &'a Layers,
    /// Paths to be examined, the next one first.
    todo: VecDeque<Entry>,
    /// The first path of each file of the upper layer that has several.
    linked: HashMap<(u64, u64), Vec<u8>>,
    failed: bool,
}

impl Iterator for Changes<'_> {
    type Item = Outcome<Change>;

    fn next(&mut self) -> Option<Outcome<Change>> {
        while !self.failed {
            let entry = self.todo.pop_front()?;
            match self.examine(&entry) {
                Ok(None) => {}
                Ok(Some(change)) => return Some(Ok(change)),
                Err(e) => {
                    self.failed = true;
                    return Some(Err(self.layers.upper.failure("cannot read", &entry.path, &e)));
                }
            }
        }
        None
    }
}

impl Changes<'_> {
    fn examine(&mut self, entry: &Entry) -> io::Result<Option<Change>> {
        let (layers, path) = (self.layers, &entry.path);
        let before = if entry.below { layers.below(path)? } else { None };
        let removed = |before: Attributes| Change {
            path: path.clone(),
            what: What::Removed,
            before: Some(before),
            after: None,
            content: true,
            xattrs: true,
            first: None,
            is_copy: false,
        };
        // A name that only the lower layer has was found in a directory that was made again.
        let Some(after) = layers.upper.attributes(path)? else { return Ok(before.map(removed)) };
        if layers.is_whiteout(path, &after)? {
            return Ok(before.map(removed));
        }
        let notes = layers.upper.xattrs(path)?;
        let note = |note: &[u8]| {
            let name = layers.marks.name(note);
            notes.iter().find(|(one, _)| *one == name).map(|(_, value)| value)
        };
        let is_copy = note(b"origin").is_some();
        let is_opaque = entry.is_opaque || note(b"opaque").is_some_and(|value| value == b"y");
        let first = match after.is_linked && !after.is_directory() {
            true => self.first(path, &after),
            false => None,
        };
        let same_kind = before.filter(|before| before.kind == after.kind);
        if after.is_directory() {
            self.enter(path, same_kind.is_some(), is_opaque)?;
        }
        let what = match (before, same_kind) {
            (None, _) => What::Added,
            (Some(_), None) => What::Replaced,
            (Some(_), Some(_)) => What::Changed,
        };
        let (content, xattrs) = match same_kind {
            Some(before) => (
                layers.differ(path, &before, &after)?,
                layers.xattrs_before(path)? != layers.seen(notes),
            ),
            None => (true, true),
        };
        let change = Change {
            path: path.clone(),
            what,
            before,
            after: Some(after),
            content,
            xattrs,
            first,
            is_copy,
        };
        let is_linked = after.is_linked && !after.is_directory();
        let differs = content || xattrs || is_linked || change.access() || change.times();
        Ok(differs.then_some(change))
    }

    /// Returns the path that a file was seen at already. Otherwise notes this one.
    fn first(&mut self, path: &[u8], file: &Attributes) -> Option<Vec<u8>> {
        let identity = (file.device, file.inode);
        if let Some(first) = self.linked.get(&identity) {
            return Some(first.clone());
        }
        self.linked.insert(identity, path.to_vec());
        None
    }

    /// Lets the entries of a directory of the upper layer be examined next. `below` is set if the
    /// lower layer has a directory there.
    fn enter(&mut self, path: &[u8], below: bool, is_opaque: bool) -> io::Result<()> {
        let mut names: BTreeSet<Vec<u8>> = self.layers.upper.names(path)?.into_iter().collect();
        if below && is_opaque {
            names.extend(self.layers.lower.names(path)?);
        }
        for name in names.iter().rev() {
            self.todo.push_front(Entry { path: join(path, name), below, is_opaque });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rustix::fs::{Mode, XattrFlags};

    use super::*;

    /// Marks a file of the upper layer.
    fn note(path: &Path, name: &str, value: &str) {
        let name = format!("user.overlay.{name}");
        rustix::fs::setxattr(path, name, value.as_bytes(), XattrFlags::empty()).expect("a note");
    }

    fn write(at: &Path, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = at.join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, content).expect("a file");
        }
    }

    /// Makes all times of a layer equal, so that only what a test means differs.
    fn still(path: &Path) {
        let time = rustix::fs::Timespec { tv_sec: 1_000, tv_nsec: 5 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        if path.symlink_metadata().expect("a file").is_dir() {
            for entry in fs::read_dir(path).expect("a directory") {
                still(&entry.expect("an entry").path());
            }
        }
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).expect("times");
    }

    /// Returns the changes of an upper layer as lines: the kind, the path, and the first path.
    fn lines(directory: &Path) -> Vec<String> {
        let [lower, upper] = ["lower", "upper"].map(|name| {
            let path = directory.join(name);
            still(&path);
            Layer::open(&path).expect("a layer")
        });
        let layers = Layers { lower, upper, marks: Marks::User };
        let line = |change: Outcome<Change>| {
            let change = change.expect("a change");
            let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
            let first = change.first.as_ref().map(|first| format!(" = {}", text(first)));
            format!("{:?} {}{}", change.what, text(&change.path), first.unwrap_or_default())
        };
        layers.changes().map(line).collect()
    }

    fn layers() -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["lower", "upper"] {
            fs::create_dir(directory.path().join(name)).expect("a layer");
        }
        directory
    }

    #[test]
    fn only_differences_are_yielded_and_in_the_order_of_paths() {
        let directory = layers();
        let [lower, upper] = ["lower", "upper"].map(|name| directory.path().join(name));
        write(&lower, &[("a/same", "1"), ("a/other", "1"), ("b", "1"), ("c/d/e", "1")]);
        write(&upper, &[("a/same", "1"), ("a/other", "2"), ("a.txt", "1"), ("c/d/new/f", "1")]);
        assert_eq!(
            lines(directory.path()),
            ["Changed a/other", "Added a.txt", "Added c/d/new", "Added c/d/new/f"]
        );
    }

    #[test]
    fn a_mark_of_removal_and_an_opaque_directory_remove_names_of_the_lower_layer() {
        let directory = layers();
        let [lower, upper] = ["lower", "upper"].map(|name| directory.path().join(name));
        write(&lower, &[("again/kept", "1"), ("again/old/x", "1"), ("gone", "1"), ("node", "1")]);
        write(&lower, &[("again/both/old", "1"), ("again/both/same", "1")]);
        write(&upper, &[("again/kept", "1"), ("again/sub/y", "1"), ("gone", ""), ("never", "")]);
        write(&upper, &[("again/both/same", "1")]);
        note(&upper.join("again"), "opaque", "y");
        note(&upper.join("gone"), "whiteout", "y");
        note(&upper.join("never"), "whiteout", "y");
        let kind = FileType::CharacterDevice;
        let made = rustix::fs::mknodat(rustix::fs::CWD, upper.join("node"), kind, Mode::empty(), 0);
        let mut want = vec!["Removed again/both/old", "Removed again/old"];
        want.extend(["Added again/sub", "Added again/sub/y"]);
        want.push("Removed gone");
        want.extend(made.is_ok().then_some("Removed node"));
        assert_eq!(lines(directory.path()), want);
    }

    #[test]
    fn another_kind_of_file_replaces_all_that_was_there() {
        let directory = layers();
        let [lower, upper] = ["lower", "upper"].map(|name| directory.path().join(name));
        write(&lower, &[("a/x", "1"), ("a/y", "1"), ("b", "1"), ("link", "1")]);
        write(&upper, &[("a", "1"), ("b/y", "1")]);
        std::os::unix::fs::symlink("a", upper.join("link")).expect("a link");
        let want = ["Replaced a", "Replaced b", "Added b/y", "Replaced link"];
        assert_eq!(lines(directory.path()), want);
    }

    #[test]
    fn the_names_of_one_file_lead_to_the_first() {
        let directory = layers();
        let [lower, upper] = ["lower", "upper"].map(|name| directory.path().join(name));
        write(&lower, &[("b", "1")]);
        write(&upper, &[("b", "1"), ("d", "2")]);
        fs::hard_link(upper.join("b"), upper.join("a")).expect("a link");
        fs::hard_link(upper.join("d"), upper.join("c")).expect("a link");
        assert_eq!(lines(directory.path()), ["Added a", "Changed b = a", "Added c", "Added d = c"]);
    }

    #[test]
    fn attributes_alone_are_a_change_and_notes_of_the_overlay_are_none() {
        let directory = layers();
        let [lower, upper] = ["lower", "upper"].map(|name| directory.path().join(name));
        write(&lower, &[("a", "1"), ("b", "1"), ("c/x", "1")]);
        write(&upper, &[("a", "1"), ("b", "1"), ("c/x", "1")]);
        note(&upper.join("a"), "origin", "of it");
        note(&upper.join("c/x"), "overlay.opaque", "y");
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(upper.join("c"), fs::Permissions::from_mode(0o700)).expect("a mode");
        assert_eq!(lines(directory.path()), ["Changed c", "Changed c/x"]);
    }
}
