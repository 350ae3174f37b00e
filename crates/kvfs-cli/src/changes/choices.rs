//! Taking a part of what a transaction has changed: what can be told apart, and how the rest is
//! taken out of the transaction again.
//!
//! A directory that was made, removed, renamed or replaced goes with all that is in it, and what
//! was renamed goes at both paths; everything else is decided path by path. What is left is made
//! again what it is beneath the transaction: removed, and copied from there by reference.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use rustix::fs::{Mode, OFlags, XattrFlags};

use super::Changes;
use super::file::{File, XATTR};
use super::keys::KeyChange;
use super::paint::{Paint, Style};
use super::renames::{self, Renames};
use crate::mounted::Mounted;
use crate::output::{Exit, Failure, Outcome};
use crate::{beneath, text};

/// The state to which a transaction goes back where a part of it cannot be taken out.
const SAVEPOINT: &str = "kvfs-revert";

/// What is taken or left as one.
pub struct Choice {
    /// Entries of the list of files, or none: it is a key.
    files: Vec<usize>,
    key: Option<usize>,
    /// Of the entries those that bring the others with them.
    tops: BTreeSet<usize>,
}

impl Choice {
    /// Each once.
    pub fn distinct(mut choices: Vec<Choice>) -> Vec<Choice> {
        let mut seen = BTreeSet::new();
        choices.retain(|choice| seen.insert((choice.files.first().copied(), choice.key)));
        choices
    }
}

/// Whether something there takes what lies below it along: not a directory that stays one.
fn whole(file: &File) -> bool {
    file.kind_of(false) != Some('d') || file.kind_of(true) != Some('d')
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    directory.is_empty() || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

impl Changes {
    /// All that can be taken or left by itself, in the order of the paths; then the keys.
    pub fn choices(&self) -> Vec<Choice> {
        let files: Vec<(usize, &File)> =
            self.files.iter().enumerate().filter(|(_, file)| !file.times_alone()).collect();
        let at: HashMap<&[u8], usize> =
            files.iter().map(|(n, file)| (file.path.as_slice(), *n)).collect();
        // The one above that takes it along, if there is one; the highest.
        let top = |path: &[u8]| {
            let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
            let above = ends.filter_map(|end| at.get(&path[..end])).copied();
            above.into_iter().find(|n| whole(&self.files[*n])).or_else(|| at.get(path).copied())
        };
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

    /// Those at a path and below it. Fails where one of them goes beyond it.
    pub fn choices_at(&self, path: &[u8]) -> Outcome<Vec<Choice>> {
        let within = |n: &usize| {
            let at = &self.files[*n].path;
            at == path || is_below(at, path)
        };
        let touched = self.choices().into_iter().filter(|choice| choice.files.iter().any(within));
        let touched: Vec<Choice> = touched.collect();
        if touched.is_empty() {
            let what = format!("nothing was changed at {}", text::show(path));
            return Err(Failure::new(Exit::NotFound, what));
        }
        for choice in &touched {
            let top = choice.tops.iter().map(|n| &self.files[*n].path);
            if let Some(above) = top.into_iter().find(|top| is_below(path, top)) {
                let what = format!(
                    "{} goes with {}, which was made, removed or replaced as a whole",
                    text::show(path),
                    text::show(above)
                );
                return Err(Failure::new(Exit::Usage, what)
                    .hint(format!("name that: {}", text::show(above))));
            }
        }
        Ok(touched)
    }

    /// What a choice is about.
    pub fn describe(&self, choice: &Choice, style: Style) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |letter: char, line: String| {
            style.put(Paint::of(letter), line.as_bytes(), &mut out);
            out.push(b'\n');
        };
        let files = choice.files.iter().map(|n| self.files[*n].clone()).collect();
        let files = renames::joined(files);
        let renames = Renames::of(&files);
        for file in files.iter().filter(|file| !renames.is_implied(file)) {
            put(file.letter(), file.line(renames.below(file)));
        }
        if let Some(key) = choice.key.map(|key| &self.keys[key]) {
            key.lines(&mut put);
        }
        out
    }

    /// Takes choices out of the transaction: there it is as if they had never been made. After an
    /// error nothing is taken out.
    pub fn revert(&self, mounted: &mut Mounted, id: u64, choices: &[Choice]) -> Outcome {
        let number = id.to_string();
        // Before anything is changed.
        for key in choices.iter().filter_map(|choice| choice.key) {
            if let KeyChange::Range { .. } = self.keys[key].what {
                let what = format!(
                    "{}: a removed range is taken or left with everything",
                    self.keys[key].line()
                );
                return Err(Failure::new(Exit::Usage, what));
            }
        }
        mounted.txn(&["JOIN", &number])?;
        let done = mounted.txn(&["SAVEPOINT", SAVEPOINT]).and_then(|_| {
            // What is removed and not yet made again would be committed as removed.
            let taken_out = self.take_out(mounted, id, choices);
            if taken_out.is_err() {
                mounted.txn(&["ROLLBACK", SAVEPOINT])?;
            }
            taken_out
        });
        let left = mounted.txn(&["LEAVE"]);
        done.and(left.map(drop))
    }

    /// In the joined transaction.
    fn take_out(&self, mounted: &mut Mounted, id: u64, choices: &[Choice]) -> Outcome {
        let (number, view) = (id.to_string(), &mounted.view(id));
        let tops = || choices.iter().flat_map(|choice| &choice.tops).map(|n| &self.files[*n]);
        for file in tops().filter(|file| whole(file) && file.after.is_some()) {
            mounted.call(&[b"RMTREE", &file.path, b"TXN", number.as_bytes()])?;
        }
        // Together, so that hard links among them stay links.
        let again = tops().filter(|file| whole(file) && file.before.is_some());
        let places: Vec<Vec<u8>> = again
            .flat_map(|file| [[b"/.kvfs/beneath/", &file.path[..]].concat(), file.path.clone()])
            .collect();
        if !places.is_empty() {
            let mut words = vec![&b"CLONETREE"[..]];
            words.extend(places.iter().map(Vec::as_slice));
            words.extend([&b"TXN"[..], number.as_bytes()]);
            mounted.call(&words)?;
        }
        for file in tops().filter(|file| !whole(file)) {
            self.revert_attributes(view, file)?;
        }
        choices.iter().filter_map(|choice| choice.key).try_for_each(|key| {
            // A key goes with its elements and its deadline. Where others have changed it since the
            // transaction began, that is a conflict at its commit.
            let key = &self.keys[key];
            let KeyChange::One(differs) = &key.what else { return Ok(()) };
            mounted.call(&[b"USE", key.dictionary.as_bytes()])?;
            mounted.call(&[b"TXN", b"REVERT", b"KEY", &differs.key]).map(drop)
        })
    }

    /// Mode, owner and extended attributes of a directory that stays.
    fn revert_attributes(&self, view: &Path, file: &File) -> Outcome {
        let doing = format!("cannot give {} its attributes back", text::show(&file.path));
        let cannot = |e: rustix::io::Errno| Failure::io(&doing, &e.into());
        let way = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(view, way, Mode::empty()).map_err(cannot)?;
        let path = if file.path.is_empty() { b"." } else { &file.path[..] };
        let directory = beneath::open(&root, path, way, Mode::empty()).map_err(cannot)?;
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
}
