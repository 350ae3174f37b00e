//! The steps of a log. Each is one rename, or sets the attributes of one directory, and its result
//! shows whether it was done: for a swap the inode numbers on both sides. So a log that was
//! interrupted anywhere is carried out again from its beginning, in either direction.

use std::collections::BTreeMap;
use std::io;

use rustix::fs::{Gid, Mode, RenameFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::Errno;

use crate::support::layers::layer::{Attributes, Layer, Time, join, split};
use crate::support::over::conflicts::{is_later, later};
use crate::support::over::log::{self, Log, Name, Seen, State, Swap};
use crate::support::terminal::output::Failure;

/// The direction in which a log is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The folder gets the files of the run.
    Apply,
    /// The folder gets its earlier files back.
    TakeBack,
}

/// The reason for which not all steps were carried out.
#[derive(Debug)]
pub enum Stopped {
    /// All allowed steps are done.
    Limit,
    /// The folder has a file at this path that is neither the one of before nor that of the run, or
    /// that others have changed.
    Foreign(Vec<u8>),
    Failed(Failure),
}

/// The limit for carrying out all steps.
pub const ALL: usize = usize::MAX;

/// The way to tell that others have changed a file in place, before it is moved out of the folder.
#[derive(Clone, Copy)]
pub enum Check<'a> {
    /// An apply moves no file that was changed after this time.
    Since(Time),
    /// A log is taken back from files that are as they were noted.
    Noted(&'a BTreeMap<Name, Seen>),
}

/// A folder, and the upper layer that has the other side of each swap.
pub struct Sides<'a> {
    pub folder: &'a Layer,
    pub other: &'a Layer,
    pub check: Check<'a>,
}

impl Sides<'_> {
    /// Carries out a log, at most `limit` steps of it.
    pub fn carry(&self, log: &Log, way: Way, limit: usize) -> Result<(), Stopped> {
        let mut left = limit;
        let mut step = || -> Result<(), Stopped> {
            left = left.checked_sub(1).ok_or(Stopped::Limit)?;
            Ok(())
        };
        self.open_up(log);
        for swap in in_order(log, way) {
            step()?;
            self.swap(swap, way)?;
        }
        self.attributes(log, way, &mut step)
    }

    /// Carries out a log as far as its files are still there. Returns the paths at which others
    /// have put something else, which stays.
    pub fn carry_rest(&self, log: &Log, way: Way) -> Result<Vec<Vec<u8>>, Stopped> {
        let mut foreign = Vec::new();
        self.open_up(log);
        for swap in in_order(log, way) {
            match self.swap(swap, way) {
                Err(Stopped::Foreign(path)) => foreign.push(path),
                done => done?,
            }
        }
        self.attributes(log, way, &mut || Ok(()))?;
        Ok(foreign)
    }

    /// Sets the attributes of directories: of those in others first, since a directory may close
    /// the way to what is in it.
    fn attributes(
        &self,
        log: &Log,
        way: Way,
        step: &mut dyn FnMut() -> Result<(), Stopped>,
    ) -> Result<(), Stopped> {
        for directory in log.directories.iter().rev() {
            step()?;
            let state = match way {
                Way::Apply => &directory.after,
                Way::TakeBack => &directory.before,
            };
            let path = &directory.path.0;
            self.set(path, directory.inode, state)
                .map_err(|e| self.failed("cannot set the attributes of", path, e))?;
        }
        Ok(())
    }

    /// Lets the owner of the directories change what is in them, until they get their attributes.
    fn open_up(&self, log: &Log) {
        const OWNER: u32 = 0o700;
        for directory in &log.directories {
            let path = &directory.path.0;
            for (layer, inode) in [(self.folder, Some(directory.inode)), (self.other, None)] {
                // If this user may not do so, a step says what it cannot do.
                if let Ok(Some(now)) = layer.attributes(path)
                    && inode.is_none_or(|inode| now.inode == inode)
                    && now.mode & OWNER != OWNER
                {
                    let _ = layer.set_mode(path, now.mode | OWNER);
                }
            }
        }
    }

    fn failed(&self, doing: &str, path: &[u8], error: io::Error) -> Stopped {
        Stopped::Failed(self.folder.failure(doing, path, &error))
    }

    fn swap(&self, swap: &Swap, way: Way) -> Result<(), Stopped> {
        let (from, to) = match way {
            Way::Apply => (swap.before, swap.after),
            Way::TakeBack => (swap.after, swap.before),
        };
        let path = &swap.path.0;
        let failed = |e: io::Error| self.failed("cannot replace", path, e);
        let now = || -> io::Result<(Option<u64>, Option<u64>)> {
            let inode =
                |layer: &Layer| Ok::<_, io::Error>(layer.attributes(path)?.map(|f| f.inode));
            Ok((inode(self.folder)?, inode(self.other)?))
        };
        match now().map_err(failed)? {
            // An interruption may have left a directory open.
            both if both == (to, from) => return self.set_closed(swap, 0).map_err(failed),
            both if both == (from, to) => {}
            _ => return Err(Stopped::Foreign(path.clone())),
        }
        if from.is_some() && self.is_changed(path, way).map_err(failed)? {
            return Err(Stopped::Foreign(path.clone()));
        }
        match self.exchange_closed(swap, from.is_some(), to.is_some()) {
            Ok(()) => {}
            Err(e) => {
                return Err(match e.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::EXIST | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                        Stopped::Foreign(path.clone())
                    }
                    _ => failed(e),
                });
            }
        }
        self.set_closed(swap, 0).map_err(failed)?;
        if now().map_err(failed)? == (to, from) {
            return Ok(());
        }
        // Others have replaced the file after the look at it. They get theirs back.
        self.exchange_closed(swap, to.is_some(), from.is_some()).map_err(failed)?;
        self.set_closed(swap, 0).map_err(failed)?;
        Err(Stopped::Foreign(path.clone()))
    }

    /// Exchanges the files of a swap. A directory that its owner may not change is opened for that,
    /// and stays so.
    fn exchange_closed(&self, swap: &Swap, folder_has: bool, other_has: bool) -> io::Result<()> {
        let path = &swap.path.0;
        match self.exchange(path, folder_has, other_has) {
            Err(e)
                if e.kind() == io::ErrorKind::PermissionDenied && swap.closed != (None, None) =>
            {
                self.set_closed(swap, 0o200)?;
                self.exchange(path, folder_has, other_has)
            }
            done => done,
        }
    }

    /// Gives directories that their owner may not change their permissions, with `more` added.
    fn set_closed(&self, swap: &Swap, more: u32) -> io::Result<()> {
        if swap.closed == (None, None) {
            return Ok(());
        }
        let path = &swap.path.0;
        let both = [(swap.before, swap.closed.0), (swap.after, swap.closed.1)];
        for layer in [self.folder, self.other] {
            let Some(file) = layer.attributes(path)? else { continue };
            for (inode, mode) in both.iter().filter_map(|(inode, mode)| inode.zip(*mode)) {
                if file.inode == inode && file.mode != mode | more {
                    layer.set_mode(path, mode | more)?;
                }
            }
        }
        Ok(())
    }

    /// Returns whether others have changed the file in place that is to be moved out of the folder.
    fn is_changed(&self, path: &[u8], way: Way) -> io::Result<bool> {
        match (self.check, way) {
            (Check::Since(started), Way::Apply) => {
                let is_theirs = |file: &Attributes| {
                    // An earlier swap of another name of the file has set its ctime.
                    let is_linked = file.is_linked && !file.is_directory();
                    is_later(file, started) && (!is_linked || file.mtime > started)
                };
                Ok(later(self.folder, path, &is_theirs)?.is_some())
            }
            (Check::Noted(noted), Way::TakeBack) => {
                let mut now = Vec::new();
                log::see(self.folder, path, &mut now)?;
                // The names in a directory lie between these two.
                let inside = Name(join(path, b""))..Name([path, b"0"].concat());
                let is_other =
                    |now: &Seen| noted.get(&now.path).is_none_or(|one| !one.is_still(now));
                Ok(now.len() != 1 + noted.range(inside).count() || now.iter().any(is_other))
            }
            _ => Ok(false),
        }
    }

    /// Exchanges a path of the folder with the same path of the other side. The arguments say which
    /// of them has a file there.
    fn exchange(&self, path: &[u8], folder_has: bool, other_has: bool) -> io::Result<()> {
        let (directory, name) = split(path);
        let (folder, other) = (self.folder.directory(directory)?, self.other.directory(directory)?);
        let rename = rustix::fs::renameat_with;
        Ok(match (folder_has, other_has) {
            (true, true) => rename(&folder, name, &other, name, RenameFlags::EXCHANGE),
            (true, false) => rename(&folder, name, &other, name, RenameFlags::NOREPLACE),
            (false, true) => rename(&other, name, &folder, name, RenameFlags::NOREPLACE),
            (false, false) => Ok(()),
        }?)
    }

    /// Gives a directory of the folder these attributes, as far as it has others. One that others
    /// have removed or replaced gets none.
    fn set(&self, path: &[u8], inode: u64, state: &State) -> io::Result<()> {
        let now = || self.folder.attributes(path);
        let is_same = |now: &Attributes| now.is_directory() && now.inode == inode;
        let Some(before) = now()?.filter(is_same) else { return Ok(()) };
        let directory = self.folder.listing(path)?;
        if (before.uid, before.gid) != (state.uid, state.gid) {
            let (user, group) = (Uid::from_raw(state.uid), Gid::from_raw(state.gid));
            rustix::fs::fchown(&directory, Some(user), Some(group))?;
        }
        if let Some(wanted) = &state.xattrs {
            let has = self.folder.xattrs(path)?;
            for (name, _) in &has {
                if !wanted.iter().any(|(one, _)| one.0 == *name) {
                    rustix::fs::fremovexattr(&directory, &name[..])?;
                }
            }
            for (Name(name), Name(value)) in wanted {
                if !has.iter().any(|(n, v)| n == name && v == value) {
                    rustix::fs::fsetxattr(&directory, &name[..], value, XattrFlags::empty())?;
                }
            }
        }
        // An owner or an access list that was set has changed the permissions.
        if now()?.is_some_and(|now| now.mode != state.mode) {
            rustix::fs::fchmod(&directory, Mode::from_raw_mode(state.mode))?;
        }
        if let Some((tv_sec, nanos)) = state.mtime.filter(|mtime| *mtime != before.mtime) {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec { tv_sec, tv_nsec: nanos.into() },
            };
            match rustix::fs::futimens(&directory, &times) {
                // Only its owner sets the times of a directory.
                Err(Errno::PERM) => {}
                done => done?,
            }
        }
        Ok(())
    }
}

/// Returns the swaps in the order of a direction.
fn in_order(log: &Log, way: Way) -> Box<dyn Iterator<Item = &Swap> + '_> {
    match way {
        Way::Apply => Box::new(log.swaps.iter()),
        Way::TakeBack => Box::new(log.swaps.iter().rev()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    use super::*;
    use crate::support::over::log::{Directory, VERSION};

    /// A folder, the other side, and the log of what is swapped between them.
    struct Lab {
        directory: tempfile::TempDir,
        log: Log,
    }

    /// Everything that can be seen of a tree: by path the mode, the time and the content.
    type Tree = BTreeMap<String, (u32, (i64, i64), String)>;

    fn tree_in(at: &Path, path: &str, tree: &mut Tree) {
        let meta = at.symlink_metadata().expect("a file");
        let content = match meta.is_dir() {
            true => String::new(),
            false => fs::read_to_string(at).expect("text"),
        };
        let time = (meta.mtime(), meta.mtime_nsec());
        tree.insert(path.to_owned(), (meta.mode(), time, content));
        if meta.is_dir() {
            for entry in fs::read_dir(at).expect("a directory") {
                let name = entry.expect("an entry").file_name().into_string().expect("text");
                tree_in(&at.join(&name), &format!("{path}/{name}"), tree);
            }
        }
    }

    fn write(at: &Path, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = at.join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, content).expect("a file");
        }
    }

    impl Lab {
        fn new() -> Lab {
            let directory = tempfile::tempdir().expect("a directory");
            let [folder, other] = ["folder", "other"].map(|name| directory.path().join(name));
            write(
                &folder,
                &[("d/changed", "old"), ("d/gone/x", "old"), ("file", "old"), ("to", "")],
            );
            write(&other, &[("d/changed", "new"), ("file/in", "new"), ("made/a/b", "new")]);
            fs::set_permissions(folder.join("d"), fs::Permissions::from_mode(0o750)).expect("mode");
            let (now, then) = (Layer::open(&folder).expect("it"), Layer::open(&other).expect("it"));
            let inode = |layer: &Layer, path: &str| {
                layer.attributes(path.as_bytes()).expect("a look").map(|file| file.inode)
            };
            let swap = |path: &str| Swap {
                path: Name(path.into()),
                before: inode(&now, path),
                after: inode(&then, path),
                closed: (None, None),
            };
            let paths = ["d/changed", "d/gone", "file", "made", "to"];
            let state = |path: &[u8], mode: Option<u32>, time: Option<i64>| {
                let file = now.attributes(path).expect("a look").expect("a directory");
                let mut state = State::of(&file, None);
                state.mode = mode.unwrap_or(state.mode);
                state.mtime = time.map(|time| (time, 7)).or(state.mtime);
                state
            };
            let around = |path: &[u8], mode: Option<u32>| Directory {
                path: Name(path.to_vec()),
                inode: now.attributes(path).expect("a look").expect("a directory").inode,
                before: state(path, None, None),
                after: state(path, mode, Some(1_000)),
            };
            let log = Log {
                version: VERSION,
                label: "sh".into(),
                started: (i64::MAX, 0),
                born: None,
                swaps: paths.map(swap).into(),
                directories: vec![around(b"", None), around(b"d", Some(0o700))],
            };
            Lab { directory, log }
        }

        fn tree(&self) -> Tree {
            let mut tree = Tree::new();
            tree_in(&self.directory.path().join("folder"), "", &mut tree);
            tree
        }

        fn carry(&self, way: Way, limit: usize) -> Result<(), Stopped> {
            let [folder, other] = ["folder", "other"]
                .map(|name| Layer::open(&self.directory.path().join(name)).expect("it opens"));
            let check = Check::Since(self.log.started);
            Sides { folder: &folder, other: &other, check }.carry(&self.log, way, limit)
        }
    }

    #[test]
    fn a_log_is_applied_and_taken_back_exactly() {
        let lab = Lab::new();
        let before = lab.tree();
        lab.carry(Way::Apply, ALL).expect("applied");
        let after = lab.tree();
        let has = |path: &str| after.get(path).map(|(_, _, content)| content.as_str());
        assert_eq!((has("/d/changed"), has("/file/in")), (Some("new"), Some("new")));
        assert_eq!((has("/made/a/b"), has("/d/gone"), has("/to")), (Some("new"), None, None));
        assert_eq!(after["/d"].0 & 0o7777, 0o700);
        assert_eq!(after["/d"].1, (1_000, 7));
        lab.carry(Way::TakeBack, ALL).expect("taken back");
        assert_eq!(lab.tree(), before);
    }

    #[test]
    fn an_interruption_after_any_step_is_completed_or_taken_back() {
        let whole = Lab::new();
        let steps = whole.log.swaps.len() + whole.log.directories.len();
        let names = |tree: Tree| -> Vec<(String, String)> {
            tree.into_iter().map(|(path, (_, _, content))| (path, content)).collect()
        };
        whole.carry(Way::Apply, ALL).expect("applied");
        let after = names(whole.tree());
        for limit in 0..steps {
            for (first, then) in [
                (Way::Apply, Way::Apply),
                (Way::Apply, Way::TakeBack),
                (Way::TakeBack, Way::TakeBack),
                (Way::TakeBack, Way::Apply),
            ] {
                let lab = Lab::new();
                let before = lab.tree();
                if first == Way::TakeBack {
                    lab.carry(Way::Apply, ALL).expect("applied");
                }
                let stopped = lab.carry(first, limit);
                assert!(matches!(stopped, Err(Stopped::Limit)), "{limit} {first:?}: {stopped:?}");
                lab.carry(then, ALL).expect("carried out");
                match then {
                    Way::TakeBack => assert_eq!(lab.tree(), before, "{limit} {first:?}"),
                    Way::Apply => assert_eq!(names(lab.tree()), after, "{limit} {first:?}"),
                }
            }
        }
    }

    /// Returns the present time of the file system, after which the next change is later.
    fn time_after(lab: &Lab) -> Time {
        let path = lab.directory.path().join("clock");
        fs::write(&path, "").expect("a file");
        let meta = path.metadata().expect("a file");
        std::thread::sleep(std::time::Duration::from_millis(30));
        (meta.ctime(), meta.ctime_nsec() as u32)
    }

    #[test]
    fn a_directory_of_others_in_the_place_of_one_keeps_its_attributes() {
        let lab = Lab::new();
        lab.carry(Way::Apply, ALL).expect("applied");
        let folder = lab.directory.path().join("folder");
        fs::rename(folder.join("d"), folder.join("old")).expect("renamed");
        fs::create_dir(folder.join("d")).expect("a directory");
        fs::set_permissions(folder.join("d"), fs::Permissions::from_mode(0o711)).expect("mode");
        let layers = ["folder", "other"]
            .map(|name| Layer::open(&lab.directory.path().join(name)).expect("it opens"));
        let check = Check::Since(lab.log.started);
        let sides = Sides { folder: &layers[0], other: &layers[1], check };
        let foreign = sides.carry_rest(&lab.log, Way::TakeBack).expect("taken back");
        assert_eq!(foreign, [b"d/changed".to_vec()]);
        let mode = folder.join("d").metadata().expect("theirs").mode();
        assert_eq!(mode & 0o7777, 0o711);
    }

    #[test]
    fn a_file_that_others_have_written_to_is_not_moved() {
        let mut lab = Lab::new();
        lab.log.started = time_after(&lab);
        let folder = lab.directory.path().join("folder");
        assert!(matches!(lab.carry(Way::Apply, 1), Err(Stopped::Limit)));
        fs::write(folder.join("d/gone/x"), "theirs").expect("a file");
        let stopped = lab.carry(Way::Apply, ALL);
        assert!(
            matches!(&stopped, Err(Stopped::Foreign(path)) if path == b"d/gone"),
            "{stopped:?}"
        );
        assert_eq!(fs::read_to_string(folder.join("d/gone/x")).expect("text"), "theirs");
        assert_eq!(fs::read_to_string(folder.join("file")).expect("text"), "old");
    }

    #[test]
    fn what_others_have_written_to_is_not_taken_back() {
        let lab = Lab::new();
        lab.carry(Way::Apply, ALL).expect("applied");
        let [folder, other] = ["folder", "other"].map(|name| lab.directory.path().join(name));
        let (now, before) = (Layer::open(&folder).expect("it"), Layer::open(&other).expect("it"));
        let mut seen = Vec::new();
        for swap in lab.log.swaps.iter().filter(|swap| swap.after.is_some()) {
            log::see(&now, &swap.path.0, &mut seen).expect("a look");
        }
        let noted = seen.into_iter().map(|one| (one.path.clone(), one)).collect();
        fs::write(folder.join("made/a/more"), "theirs").expect("a file");
        fs::write(folder.join("d/changed"), "of theirs").expect("a file");
        let sides = Sides { folder: &now, other: &before, check: Check::Noted(&noted) };
        let foreign = sides.carry_rest(&lab.log, Way::TakeBack).expect("taken back");
        assert_eq!(foreign, [b"made".to_vec(), b"d/changed".to_vec()]);
        let read = |name: &str| fs::read_to_string(folder.join(name)).expect("text");
        assert_eq!((read("made/a/more"), read("made/a/b")), ("theirs".into(), "new".into()));
        assert_eq!((read("d/changed"), read("d/gone/x")), ("of theirs".into(), "old".into()));
        assert_eq!(read("file"), "old");
    }

    #[test]
    fn a_file_that_others_have_put_there_is_not_moved() {
        let lab = Lab::new();
        let folder = lab.directory.path().join("folder");
        fs::write(folder.join("file.new"), "theirs").expect("a file");
        fs::rename(folder.join("file.new"), folder.join("file")).expect("renamed");
        let stopped = lab.carry(Way::Apply, ALL);
        assert!(matches!(&stopped, Err(Stopped::Foreign(path)) if path == b"file"), "{stopped:?}");
        let layers = ["folder", "other"]
            .map(|name| Layer::open(&lab.directory.path().join(name)).expect("it opens"));
        let check = Check::Since(lab.log.started);
        let sides = Sides { folder: &layers[0], other: &layers[1], check };
        let foreign = sides.carry_rest(&lab.log, Way::TakeBack);
        assert_eq!(foreign.expect("taken back"), [b"file".to_vec()]);
        assert_eq!(fs::read_to_string(folder.join("file")).expect("text"), "theirs");
        assert_eq!(fs::read_to_string(folder.join("d/changed")).expect("text"), "old");
        assert!(!folder.join("made").exists());
    }
}
