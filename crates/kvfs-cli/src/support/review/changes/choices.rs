//! Accepts a part of a transaction's changes: determines which changes are separable, and takes the
//! rejected ones out of the transaction.
//!
//! A directory that was made, removed, renamed or replaced is one choice together with everything
//! in it, and a rename is one choice for both paths; every other path is a choice of its own. A
//! rejected path is restored to its state beneath the transaction: it is removed, and copied from
//! there by reference. The directory that it is in keeps its time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags};

use super::anchors::Anchors;
use super::file::{File, XATTR};
use super::keys::{Key, KeyChange};
use super::paint::{Paint, Style};
use super::renames::{self, Renames};
use super::{Changes, Detail, below};
use crate::support::machine::beneath;
use crate::support::mounts::mounted::Mounted;
use crate::support::stores::tree;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text;

/// The savepoint to which a transaction rolls back if a part of it cannot be taken out.
const SAVEPOINT: &str = "kvfs-revert";
/// The command of the socket that takes parts out of a transaction.
const TOGETHER: [&[u8]; 3] = [b"TXN", b"REVERT", b"TOGETHER"];
/// Limits of the words of one such command, and of their bytes.
const MOST_WORDS: usize = 64 << 10;
const MOST_BYTES: usize = 8 << 20;

/// The times of directories around what is taken out, each with a change in the directory.
pub struct Times<'a>(BTreeMap<Vec<u8>, (SystemTime, &'a File)>);

/// Changes that are accepted or rejected together.
pub struct Choice {
    /// Indices into the list of files; empty if the choice is a key.
    files: Vec<usize>,
    key: Option<usize>,
    /// The entries that the others depend on.
    tops: BTreeSet<usize>,
}

impl Choice {
    /// Removes duplicates.
    pub fn distinct(mut choices: Vec<Choice>) -> Vec<Choice> {
        let mut seen = BTreeSet::new();
        choices.retain(|choice| seen.insert((choice.files.first().copied(), choice.key)));
        choices
    }
}

/// Returns whether a change includes everything below its path: always, except for a directory that
/// stays one.
fn whole(file: &File) -> bool {
    file.kind_of(false) != Some('d') || file.kind_of(true) != Some('d')
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    directory.is_empty() || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Returns a path in the form used in lists: from the root, without slashes at its ends and without
/// `.` in it. That of the root is empty.
fn bare(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.collect::<Vec<&[u8]>>().join(&b'/')
}

fn nothing_at(path: &[u8]) -> Failure {
    let path = if path.is_empty() { "/".into() } else { text::show(path) };
    Failure::new(Exit::NotFound, format!("nothing was changed at {path}"))
}

fn goes_with(path: &[u8], above: &[u8]) -> Failure {
    let (path, above) = (text::show(path), text::show(above));
    let what = format!("{path} goes with {above}, which was made, removed or replaced as a whole");
    Failure::new(Exit::Usage, what).hint(format!("name that: {above}"))
}

fn not_given_back(file: &File, error: rustix::io::Errno) -> Failure {
    let doing = format!("cannot give {} its attributes back", text::show(&file.path));
    Failure::io(doing, &error.into())
}

impl Changes {
    /// Opens the directory at a path of the store in a view of it, on behalf of a file.
    fn opened(&self, view: &Path, path: &[u8], file: &File) -> Outcome<OwnedFd> {
        let cannot = |e| not_given_back(file, e);
        let way = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(view, way, Mode::empty()).map_err(cannot)?;
        let below = below(&self.top, path).ok_or(rustix::io::Errno::NOENT).map_err(cannot)?;
        let path = if below.is_empty() { b"." } else { below };
        beneath::open(&root, path, way, Mode::empty()).map_err(cannot)
    }

    /// Returns all separable changes: first files by path, then keys. Files that differ only in
    /// their times are not choices of their own.
    pub fn choices(&self) -> Vec<Choice> {
        self.choices_of(|file| !file.times_alone())
    }

    fn choices_of(&self, wanted: impl Fn(&File) -> bool) -> Vec<Choice> {
        let files: Vec<(usize, &File)> =
            self.files.iter().enumerate().filter(|(_, file)| wanted(file)).collect();
        let at: HashMap<&[u8], usize> =
            files.iter().map(|(n, file)| (file.path.as_slice(), *n)).collect();
        // Find the topmost entry that each entry belongs to. Shorter paths come first, so that each
        // is examined once, however deep it lies.
        let mut highest: HashMap<usize, usize> = HashMap::new();
        let mut by_length: Vec<(usize, &File)> = files.clone();
        by_length.sort_by_key(|(_, file)| Anchors::depth(&file.path));
        for (n, file) in by_length {
            let directory = self.anchors.parent(&file.path);
            let above = directory.and_then(|directory| at.get(directory)).copied();
            let top = above.filter(|above| whole(&self.files[*above]));
            let top = top.and_then(|above| highest.get(&above)).copied();
            highest.insert(n, top.unwrap_or(n));
        }
        let top = |path: &[u8]| at.get(path).and_then(|n| highest.get(n)).copied();
        let mut groups: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let mut group_of: HashMap<usize, usize> = HashMap::new();
        for (n, file) in &files {
            let Some(own) = top(&file.path) else { continue };
            let other = file.moved().and_then(top).unwrap_or(own);
            let (a, b) = (
                group_of.get(&own).copied().unwrap_or(own),
                group_of.get(&other).copied().unwrap_or(other),
            );
            let (keep, join) = (a.min(b), a.max(b));
            let joined = (join != keep).then(|| groups.remove(&join)).flatten().unwrap_or_default();
            let members = groups.entry(keep).or_default();
            for member in joined.into_iter().chain([own, other, *n]) {
                members.insert(member);
                group_of.insert(member, keep);
            }
        }
        let choice = |members: BTreeSet<usize>| {
            let tops = members.iter().copied().filter(|n| top(&self.files[*n].path) == Some(*n));
            Choice { tops: tops.collect(), files: members.into_iter().collect(), key: None }
        };
        let keys = (0..self.keys.len()).map(|key| Choice {
            files: Vec::new(),
            key: Some(key),
            tops: BTreeSet::new(),
        });
        groups.into_values().map(choice).chain(keys).collect()
    }

    /// Returns whether everything at and below these paths is listed one by one, not only counted.
    pub fn lists(&self, paths: &[&[u8]]) -> bool {
        let mut counted = self.files.iter().filter(|file| file.is_counted());
        let meets = |file: &File, path: &[u8]| {
            let at_or_around =
                |one: &[u8]| one == path || is_below(one, path) || is_below(path, one);
            at_or_around(&self.anchors.whole(&file.path))
                || file.moved().is_some_and(|path| at_or_around(&self.anchors.whole(path)))
        };
        let paths: Vec<Vec<u8>> = paths.iter().map(|path| bare(path)).collect();
        !counted.any(|file| paths.iter().any(|path| meets(file, path)))
    }

    /// Keeps the changes at and below these paths. A rename matches by either path.
    pub fn keep(&mut self, paths: &[&[u8]]) -> Outcome {
        let paths: Vec<Vec<u8>> = paths.iter().map(|path| bare(path)).collect();
        let anchors = &self.anchors;
        let at = |file: &File, path: &[u8]| {
            let within = |one: &[u8]| one == path || is_below(one, path);
            within(&anchors.whole(&file.path))
                || file.moved().is_some_and(|path| within(&anchors.whole(path)))
        };
        for path in &paths {
            if !self.files.iter().any(|file| at(file, path)) {
                return Err(nothing_at(path));
            }
        }
        self.files.retain(|file| paths.iter().any(|path| at(file, path)));
        self.keys.clear();
        Ok(())
    }

    /// Returns the choices at and below a path; at the root, those of all files. Fails if one of
    /// them extends beyond the path.
    pub fn choices_at(&self, path: &[u8]) -> Outcome<Vec<Choice>> {
        if path.is_empty() {
            // A script with a variable that is not set gives an empty path.
            return Err(Failure::new(Exit::Usage, "a path is empty").hint("\".\" is all files"));
        }
        let path = &*bare(path);
        if path.is_empty() {
            let all = self.choices_of(|_| true).into_iter();
            let all: Vec<Choice> = all.filter(|choice| choice.key.is_none()).collect();
            return if all.is_empty() { Err(nothing_at(path)) } else { Ok(all) };
        }
        let within = |n: &usize| {
            let at = self.anchors.whole(&self.files[*n].path);
            *at == *path || is_below(&at, path)
        };
        let all = self.choices_of(|_| true).into_iter();
        let touched = all.filter(|choice| choice.files.iter().any(within));
        let touched: Vec<Choice> = touched.collect();
        if touched.is_empty() {
            // The path is not listed if a directory above it was made, removed or replaced as a
            // whole.
            let around =
                |file: &&File| whole(file) && is_below(path, &self.anchors.whole(&file.path));
            if let Some(above) = self.files.iter().find(around) {
                return Err(goes_with(path, &self.anchors.whole(&above.path)));
            }
            return Err(nothing_at(path));
        }
        for choice in &touched {
            let mut tops = choice.tops.iter().map(|n| self.anchors.whole(&self.files[*n].path));
            if let Some(above) = tops.find(|top| is_below(path, top)) {
                return Err(goes_with(path, &above));
            }
        }
        Ok(touched)
    }

    /// Returns the choice of a key that has this name in lists: dictionary:key, with escapes or
    /// without.
    pub fn choice_of_key(&self, name: &[u8]) -> Outcome<Choice> {
        let is_it = |key: &Key| match &key.what {
            KeyChange::One(differs) => {
                let whole = [key.dictionary.as_bytes(), b":", &differs.key].concat();
                whole == name || text::show(&whole).as_bytes() == name
            }
            // This change is taken or left with the whole transaction.
            KeyChange::Range { .. } => false,
        };
        let found = self.keys.iter().position(is_it).ok_or_else(|| {
            let what = format!("no key {} was changed", text::show(name));
            Failure::new(Exit::NotFound, what).hint("a key is named dictionary:key")
        })?;
        Ok(Choice { files: Vec::new(), key: Some(found), tops: BTreeSet::new() })
    }

    /// Returns the contents that differ in a choice as a patch.
    pub fn patch_of(&self, choice: &Choice, style: Style) -> Vec<u8> {
        let files = choice.files.iter().map(|n| self.files[*n].clone()).collect();
        let keys = choice.key.iter().map(|n| self.keys[*n].clone()).collect();
        let (anchors, roots, before) =
            (self.anchors.clone(), self.roots.clone(), self.before.clone());
        let top = self.top.clone();
        let alone = Changes { files, anchors, keys, state: None, roots, top, before };
        alone.text(Detail::default().with_patch(), style)
    }

    /// Describes a choice, one line for each entry.
    pub fn describe(&self, choice: &Choice, style: Style) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |letter: char, line: String| {
            style.put(Paint::of(letter), line.as_bytes(), &mut out);
            out.push(b'\n');
        };
        let files = choice.files.iter().map(|n| self.files[*n].clone()).collect();
        let files = renames::joined(files);
        let renames = Renames::of(&files);
        let mut told = 0;
        for file in files.iter().filter(|file| !renames.is_implied(file)) {
            self.anchors.lines(file, &mut told).into_iter().for_each(|anchor| put('=', anchor));
            put(file.letter(), file.line(renames.below(file)));
        }
        if let Some(key) = choice.key.map(|key| &self.keys[key]) {
            key.lines(&mut put);
        }
        out
    }

    /// Fails if one of these choices cannot be taken out.
    fn check(&self, choices: &[Choice]) -> Outcome {
        for key in choices.iter().filter_map(|choice| choice.key) {
            if let KeyChange::Range { .. } = self.keys[key].what {
                let what = format!(
                    "{}: a removed range is taken or left with everything",
                    self.keys[key].line()
                );
                return Err(Failure::new(Exit::Usage, what));
            }
        }
        Ok(())
    }

    /// Takes choices out of the transaction, as if those changes had never been made. On an error,
    /// nothing is taken out.
    pub fn revert(&self, mounted: &mut Mounted, id: u64, choices: &[Choice]) -> Outcome {
        let number = id.to_string();
        // Check before anything is changed.
        self.check(choices)?;
        mounted.txn(&["JOIN", &number])?;
        let done = mounted.txn(&["SAVEPOINT", SAVEPOINT]).and_then(|_| {
            // On an error, roll back: some of the directories may have their attributes back by
            // then, and others not.
            let taken_out = self.take_out(mounted, id, choices);
            if taken_out.is_err() {
                mounted.txn(&["ROLLBACK", SAVEPOINT])?;
            }
            taken_out
        });
        let left = mounted.txn(&["LEAVE"]);
        done.and(left.map(drop))
    }

    /// Returns the words by which a server takes choices out of its transaction, but for the
    /// attributes of directories that stay ([`Changes::revert_directories`]).
    pub fn words_of(&self, choices: &[Choice]) -> Outcome<Vec<Vec<u8>>> {
        self.check(choices)?;
        let mut words = vec![b"take-out".to_vec()];
        words.extend(self.parts(choices).into_iter().flatten());
        Ok(words)
    }

    /// Returns the paths and keys that are taken out with choices, each as words: `remove` or
    /// `restore` and a path, or `key`, a dictionary and a key.
    fn parts(&self, choices: &[Choice]) -> Vec<Vec<Vec<u8>>> {
        let mut parts = Vec::new();
        for file in self.tops(choices).filter(|file| whole(file)) {
            let verb = if file.before.is_some() { &b"restore"[..] } else { b"remove" };
            parts.push(vec![verb.to_vec(), self.anchors.whole(&file.path).into_owned()]);
        }
        for key in choices.iter().filter_map(|choice| choice.key).map(|key| &self.keys[key]) {
            if let KeyChange::One(differs) = &key.what {
                let dictionary = key.dictionary.as_bytes().to_vec();
                parts.push(vec![b"key".to_vec(), dictionary, differs.key.to_vec()]);
            }
        }
        parts
    }

    /// Returns the changes that the others of these choices depend on.
    fn tops<'a>(&'a self, choices: &'a [Choice]) -> impl Iterator<Item = &'a File> {
        choices.iter().flat_map(|choice| &choice.tops).map(move |n| &self.files[*n])
    }

    /// Gives the directories that stay the attributes back that they had, as far as they are in
    /// these choices. The other ones around what was taken out get the times of before, as far as
    /// the user may set them: otherwise they would differ by what was taken out alone.
    pub fn revert_directories(
        &self,
        view: &Path,
        times: &Times<'_>,
        choices: &[Choice],
    ) -> Outcome {
        for (path, (time, file)) in &times.0 {
            if let Ok(directory) = self.opened(view, path, file) {
                let _ = fs::File::from(directory).set_modified(*time);
            }
        }
        for file in self.tops(choices).filter(|file| !whole(file)) {
            self.revert_attributes(view, file)?;
        }
        // Restore times last and bottom-up, since making or removing an entry changes the time of
        // its directory.
        let mut directories: Vec<&File> = self.tops(choices).filter(|file| !whole(file)).collect();
        directories.sort_by_key(|file| std::cmp::Reverse(Anchors::depth(&file.path)));
        directories.into_iter().try_for_each(|file| self.revert_time(view, file))
    }

    /// Returns the paths that these choices depend on. One of a directory on one side only stands
    /// for everything in it.
    pub fn paths_of(&self, choices: &[Choice]) -> Vec<Vec<u8>> {
        self.tops(choices).map(|file| self.anchors.whole(&file.path).into_owned()).collect()
    }

    /// Takes the choices out, in the joined transaction. One command takes out as many as it has
    /// room for, except the attributes of directories that stay. If this process is killed, or the
    /// connection ends, no path that was to be restored is left removed. A key is restored with its
    /// elements and its deadline. If others have changed it since the transaction began, the commit
    /// reports a conflict.
    fn take_out(&self, mounted: &mut Mounted, id: u64, choices: &[Choice]) -> Outcome {
        let view = &mounted.view(id);
        let times = self.times_around(view, choices);
        let parts = self.parts(choices);
        let (mut commands, mut bytes): (Vec<Vec<&[u8]>>, usize) = (Vec::new(), 0);
        for part in &parts {
            let of_part: usize = part.iter().map(Vec::len).sum();
            let has_room = |words: &Vec<&[u8]>| {
                words.len() + part.len() <= MOST_WORDS && bytes + of_part <= MOST_BYTES
            };
            if !commands.last().is_some_and(has_room) {
                commands.push(TOGETHER.to_vec());
                bytes = 0;
            }
            bytes += of_part;
            if let Some(words) = commands.last_mut() {
                words.extend(part.iter().map(Vec::as_slice));
            }
        }
        for words in &commands {
            mounted.call(words)?;
        }
        self.revert_directories(view, &times, choices)
    }

    /// Returns the directories that contain what is taken out with these choices, with the times of
    /// their last changes.
    pub fn times_around<'a>(&'a self, view: &Path, choices: &'a [Choice]) -> Times<'a> {
        let mut times = BTreeMap::new();
        for file in self.tops(choices).filter(|file| whole(file)) {
            let path = self.anchors.whole(&file.path);
            let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or_default();
            if times.contains_key(&path[..end]) {
                continue;
            }
            let time = self.opened(view, &path[..end], file).ok().and_then(|directory| {
                fs::File::from(directory).metadata().and_then(|of| of.modified()).ok()
            });
            if let Some(time) = time {
                times.insert(path[..end].to_vec(), (time, file));
            }
        }
        Times(times)
    }

    /// Restores mode, owner and extended attributes of a directory that stays.
    fn revert_attributes(&self, view: &Path, file: &File) -> Outcome {
        let path = self.anchors.whole(&file.path);
        let (directory, cannot) = (self.opened(view, &path, file)?, |e| not_given_back(file, e));
        let before = |what: &[u8]| {
            let detail = file.details.iter().find(|d| d.what == what);
            detail.and_then(|d| String::from_utf8(d.before.clone()?).ok())
        };
        if let Some((user, group)) =
            before(b"owner").as_deref().and_then(|both| both.split_once(':'))
            && let (Ok(user), Ok(group)) = (user.parse(), group.parse())
        {
            let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
            rustix::fs::fchown(&directory, Some(user), Some(group)).map_err(cannot)?;
        }
        if let Some(mode) = before(b"mode").and_then(|mode| u32::from_str_radix(&mode, 8).ok()) {
            rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode)).map_err(cannot)?;
        }
        for detail in &file.details {
            let Some(name) = detail.what.strip_prefix(XATTR) else { continue };
            match &detail.before {
                Some(value) => rustix::fs::fsetxattr(&directory, name, value, XattrFlags::empty()),
                None => rustix::fs::fremovexattr(&directory, name),
            }
            .map_err(cannot)?;
        }
        Ok(())
    }

    /// Restores the modification time of a directory that stays.
    fn revert_time(&self, view: &Path, file: &File) -> Outcome {
        let before = file.details.iter().find(|d| d.what == b"time").and_then(|d| {
            let text = std::str::from_utf8(d.before.as_deref()?).ok()?;
            let (moment, nanos) = text.rsplit_once('.')?;
            Some((tree::time_of_text(moment)?, nanos.parse().ok()?))
        });
        let Some((tv_sec, tv_nsec)) = before else { return Ok(()) };
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec, tv_nsec },
        };
        let directory = self.opened(view, &self.anchors.whole(&file.path), file)?;
        rustix::fs::futimens(&directory, &times).map_err(|e| not_given_back(file, e))
    }
}
