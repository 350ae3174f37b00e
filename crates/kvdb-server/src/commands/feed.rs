//! `CHANGES`: lists the keys that were changed since a commit, in the order of the commits. The
//! store keeps a list of the newest commits, from the first use of this command until the store
//! is closed. A connection that works in a clone reads the list of the clone.
//!
//! Only keys are listed. Their values are read from the current state, which is the state after the
//! listed commit or a newer one.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvdb::{CommitPosition, CommittedKey, CommittedKeys, DictionaryId, View};

use super::is;
use super::txn::size;
use crate::dictionaries::Place;
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Head, TYPES_PREFIX, count_key, owner_key, parse_element, types_name};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::review::TypedState;
use crate::session::{Session, Shared};

pub const USAGE: &str =
    "[NOW] | SETTLED | SINCE position [COUNT count] [BLOCK milliseconds] [FILES]";

/// Approximate limit on the changes in one reply; the next reply continues after them.
const MOST: usize = 65_536;
/// Interval at which a waiting command checks that its client is still connected.
const LOOK: Duration = Duration::from_millis(200);

pub fn changes(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let newest = newest(s)?;
    match args.at(1) {
        _ if args.len() == 1 => {}
        c if args.len() == 2 && is(c, "now") => {}
        c if args.len() == 2 && is(c, "settled") => return settled(s, out),
        c if args.len() > 2 && is(c, "since") => return since(s, newest, args, out),
        _ => return Err(Failure::SYNTAX),
    }
    out.bulk(shown(newest).as_bytes());
    Ok(())
}

/// Returns the branch whose changes are followed. A snapshot does not change, so the store is
/// followed in its place.
fn branch(s: &Session) -> &str {
    s.place.branch().unwrap_or_default()
}

/// Returns the position after all commits to the branch. The branch is followed from then on.
fn newest(s: &Session) -> Result<CommitPosition, Failure> {
    let files = s.shared.owner.transactions().followed(branch(s));
    Ok(s.db().follow_branch(branch(s), s.shared.limits.feed, &files)?)
}

/// `CHANGES SETTLED`: commits everything that programs have written to files before this command,
/// and returns the position after it.
fn settled(s: &mut Session, out: &mut Output) -> Outcome {
    // A thread that waits for pages of the kernel's cache must not hold a resource for which the
    // writer of the pages waits.
    if out.is_kept() {
        return Err(Failure::request(
            "CHANGES SETTLED waits, and cannot stand in MULTI or a script",
        ));
    }
    out.will_wait();
    s.shared.owner.transactions().settle(branch(s))?;
    out.bulk(shown(newest(s)?).as_bytes());
    Ok(())
}

/// Returns a position in the form that clients see: the number of a commit, and the id of the
/// list.
fn shown(position: CommitPosition) -> String {
    format!("{}-{:016x}", position.number, position.feed)
}

/// Parses the position in an argument. A number without an id refers to the current list.
fn position(arg: &[u8], feed: u64) -> Result<CommitPosition, Failure> {
    let wrong = || {
        Failure::request("a position is what CHANGES has given, or the number of a commit alone")
    };
    let text = std::str::from_utf8(arg).map_err(|_| wrong())?;
    let (number, feed) = match text.split_once('-') {
        None => (text, Some(feed)),
        Some((number, feed)) => (number, u64::from_str_radix(feed, 16).ok()),
    };
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse().ok().filter(|_| digits);
    number.zip(feed).map(|(number, feed)| CommitPosition { number, feed }).ok_or_else(wrong)
}

/// Parses the options of `CHANGES SINCE`: the number of commits, the time to wait for a commit in
/// milliseconds (zero means no limit), and whether files are listed.
fn since_options(args: Arguments<'_>) -> Result<(usize, Option<u64>, bool), Failure> {
    let (mut count, mut block, mut files) = (1000, None, false);
    let mut options = args.from(3);
    while let Some(option) = options.next() {
        if is(option, "files") {
            files = true;
            continue;
        }
        let number = options.next().ok_or(Failure::SYNTAX).map(integer)?;
        match (option, number) {
            (o, Some(n)) if is(o, "count") && n > 0 => {
                count = usize::try_from(n).unwrap_or(MOST).min(MOST);
            }
            (o, Some(n)) if is(o, "block") && n >= 0 => block = Some(n as u64),
            (o, _) if is(o, "count") || is(o, "block") => return Err(Failure::NOT_AN_INTEGER),
            _ => return Err(Failure::SYNTAX),
        }
    }
    Ok((count, block, files))
}

fn since(
    s: &mut Session,
    newest: CommitPosition,
    args: Arguments<'_>,
    out: &mut Output,
) -> Outcome {
    let from = position(args.at(2), newest.feed)?;
    let (count, block, files) = since_options(args)?;
    // A command between MULTI and EXEC or in a script does not wait.
    let block = block.filter(|_| !out.is_kept());
    let begun = Instant::now();
    let mut at = from;
    loop {
        // A position in the list of another branch has no meaning in this list.
        let here = Some(at).filter(|at| at.feed == newest.feed);
        let Some(recent) = here.and_then(|at| s.db().commits_since(at, count)) else {
            return Err(Failure::coded(
                ErrorCode::NoFeed,
                format!(
                    "what was committed since {} is not kept, or not any more: begin anew with CHANGES NOW, \
                     and compare with a snapshot (SNAPSHOT CHANGES)",
                    String::from_utf8_lossy(args.at(2))
                ),
            ));
        };
        let rows = Rows::of(s, &recent.commits, files)?;
        at = recent.up_to;
        // A wait of zero milliseconds has no limit.
        let left = match block {
            None => Duration::ZERO,
            Some(0) => LOOK,
            Some(ms) => Duration::from_millis(ms).saturating_sub(begun.elapsed()),
        };
        if !rows.0.is_empty() || left.is_zero() {
            return out.whole(|out| reply(s, at, &rows, out));
        }
        s.check_stopping()?;
        if s.listens() {
            out.aside(|out| s.deliver(out));
        }
        if !out.flush() || out.is_gone() {
            s.closing = true;
            return Err(Failure::request("the client is gone"));
        }
        out.will_wait();
        let slept = Instant::now();
        s.db().wait_for_commits(at, left.min(LOOK));
        s.waited += slept.elapsed();
    }
}

fn reply(s: &Session, at: CommitPosition, rows: &Rows, out: &mut Output) -> Outcome {
    let most = s.shared.limits.whole_replies;
    out.array(2);
    out.bulk(shown(at).as_bytes());
    out.array(rows.0.len());
    for (number, dictionary, what) in &rows.0 {
        out.array(5);
        size(Some(*number), out);
        out.bulk(dictionary.as_bytes());
        match what {
            What::Key(key, kind) => {
                out.bulk(b"key");
                out.bulk(key);
                out.value(kind.map(str::as_bytes));
            }
            What::Range(start, end) => {
                out.bulk(b"range");
                out.bulk(start);
                out.bulk(end);
            }
            What::File(path, change) => {
                out.bulk(b"file");
                out.bulk(path);
                out.bulk(change.as_bytes());
            }
            What::MoreFiles => {
                out.bulk(b"more-files");
                out.null();
                out.null();
            }
        }
        out.send_if_large();
        if out.is_overfull() {
            return Err(Failure::Limit(format!(
                "more than {most} bytes of changes: ask for fewer"
            )));
        }
    }
    Ok(())
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A key with its current type.
    Key(Bytes, Option<&'static str>),
    /// All keys from the first one up to the second. If the second key is empty, the range has no
    /// end.
    Range(Bytes, Bytes),
    /// A path, and the way in which it was changed.
    File(Vec<u8>, &'static str),
    /// More files have changed than are listed.
    MoreFiles,
}

/// Rows of commit number, dictionary (empty for files) and change. Each change appears once per
/// commit.
struct Rows(Vec<(u64, String, What)>);

impl Rows {
    fn of(s: &Session, commits: &[CommittedKeys], with_files: bool) -> Result<Rows, Failure> {
        let branch = branch(s);
        let followed = Place::of_branch(branch);
        let ids: HashMap<DictionaryId, String> =
            followed.all(s.db()).into_iter().map(|info| (info.id, info.name)).collect();
        let of_names: HashMap<&str, DictionaryId> =
            ids.iter().map(|(id, name)| (name.as_str(), *id)).collect();
        let mut names = Names { view: s.db().view(), now: s.clock(), heads: HashMap::new() };
        let files = s.shared.owner.transactions().followed(branch);
        let mut rows = Vec::new();
        for commit in commits {
            s.check_stopping()?;
            let mut found = BTreeSet::new();
            let is_of_file = |(id, _): &&(DictionaryId, CommittedKey)| files.contains(id);
            if with_files && commit.changes.iter().any(|change| is_of_file(&change)) {
                let of_files: Vec<_> = commit.changes.iter().filter(is_of_file).cloned().collect();
                let changed = s.shared.owner.transactions().paths(branch, &of_files)?;
                let row = |what| (commit.number, String::new(), what);
                rows.extend(changed.paths.into_iter().map(|(path, to)| row(What::File(path, to))));
                rows.extend(changed.more.then(|| row(What::MoreFiles)));
            }
            for (id, touched) in commit.changes.iter().filter(|change| !is_of_file(change)) {
                // The dictionary no longer exists, so its keys cannot be read.
                let Some(name) = ids.get(id) else { continue };
                let (dictionary, types) = match name.strip_prefix(TYPES_PREFIX) {
                    Some(dictionary) => (dictionary, Some(*id)),
                    None => (name.as_str(), None),
                };
                for what in names.changed(touched, types)? {
                    found.insert((dictionary, what));
                }
            }
            for (dictionary, what) in found {
                let what = match what {
                    What::Key(key, _) => {
                        let strings = of_names.get(dictionary).copied();
                        let types = of_names.get(types_name(dictionary).as_str()).copied();
                        let kind = names.kind(strings, types, &key)?;
                        What::Key(key, kind)
                    }
                    other => other,
                };
                rows.push((commit.number, dictionary.to_string(), what));
            }
        }
        Ok(Rows(rows))
    }
}

/// A committed change in a list of changes.
pub enum Changed {
    Key(Bytes),
    /// All keys from the first one up to the second. If the second key is empty, the range has no
    /// end.
    Range(Bytes, Bytes),
    /// A change that is not listed.
    Unlisted,
}

/// Passes all changes of keys that these commits to the store have made to `tell`, each with the
/// name of its dictionary and the author of the commit. Each change is passed once per commit.
pub fn each_changed(
    shared: &Shared,
    commits: &[CommittedKeys],
    mut tell: impl FnMut(&str, Changed, Option<u64>),
) -> Outcome {
    let all = Place::Store.all(&shared.db).into_iter();
    let ids: HashMap<DictionaryId, String> = all.map(|info| (info.id, info.name)).collect();
    let mut names = Names { view: shared.db.view(), now: 0, heads: HashMap::new() };
    let files = shared.owner.transactions().followed("");
    for commit in commits {
        let mut found = BTreeSet::new();
        for (id, touched) in commit.changes.iter().filter(|(id, _)| !files.contains(id)) {
            let Some(name) = ids.get(id) else { continue };
            let (dictionary, types) = match name.strip_prefix(TYPES_PREFIX) {
                Some(dictionary) => (dictionary, Some(*id)),
                None => (name.as_str(), None),
            };
            if matches!(touched, CommittedKey::Unlisted) {
                tell(dictionary, Changed::Unlisted, commit.author);
            }
            found.extend(names.changed(touched, types)?.into_iter().map(|what| (dictionary, what)));
        }
        for (dictionary, what) in found {
            match what {
                What::Key(key, _) => tell(dictionary, Changed::Key(key), commit.author),
                What::Range(start, end) => {
                    tell(dictionary, Changed::Range(start, end), commit.author)
                }
                What::File(..) | What::MoreFiles => {}
            }
        }
    }
    Ok(())
}

/// Looks up the types of keys, and the keys of collections.
struct Names {
    view: View,
    now: u64,
    /// All collections of a types dictionary. They are read only if a collection has no owner
    /// tuple that names its key.
    heads: HashMap<DictionaryId, HashMap<u64, Bytes>>,
}

impl Names {
    fn kind(
        &self,
        strings: Option<DictionaryId>,
        types: Option<DictionaryId>,
        key: &[u8],
    ) -> Result<Option<&'static str>, Failure> {
        let state = TypedState { view: &self.view, strings, types };
        Ok(state.kind_at(key, self.now)?.map(|kind| kind.name()))
    }

    /// Returns the keys that the change of a tuple affects. `types` is set if the tuple is in the
    /// types dictionary, and not a string.
    fn changed(
        &mut self,
        touched: &CommittedKey,
        types: Option<DictionaryId>,
    ) -> Result<Vec<What>, Failure> {
        let key = |key: Bytes| vec![What::Key(key, None)];
        let Some(types) = types else {
            return Ok(match touched {
                CommittedKey::Put(at) | CommittedKey::Delete(at) => key(at.clone()),
                CommittedKey::DeleteRange(start, end) => {
                    vec![What::Range(start.clone(), end.clone())]
                }
                CommittedKey::Unlisted => Vec::new(),
            });
        };
        Ok(match touched {
            CommittedKey::Put(at) | CommittedKey::Delete(at) => match parse_element(at) {
                Some((id, ..)) => self.owner(types, id)?.into_iter().flat_map(key).collect(),
                None if at.starts_with(b"k") => key(at.slice(1..)),
                // Deadlines and pages of long strings are not listed, because their heads change
                // with them.
                None => Vec::new(),
            },
            CommittedKey::DeleteRange(start, end) => {
                let mut all = Vec::new();
                if let Some((id, ..)) = parse_element(start) {
                    all.extend(self.owner(types, id)?.into_iter().flat_map(key));
                }
                // The heads in the range represent keys, in key order.
                let first: &[u8] = (&start[..]).max(b"k");
                let last: &[u8] = (&end[..]).min(b"l");
                if first < last {
                    let last = if last == b"l" { Bytes::new() } else { end.slice(1..) };
                    all.push(What::Range(Bytes::copy_from_slice(&first[1..]), last));
                }
                all
            }
            CommittedKey::Unlisted => Vec::new(),
        })
    }

    /// Returns the key of a collection, or `None` if the collection no longer exists because a
    /// later commit has changed its head.
    fn owner(&mut self, types: DictionaryId, id: u64) -> Result<Option<Bytes>, Failure> {
        let state = TypedState { view: &self.view, strings: None, types: Some(types) };
        if let Some(key) = self.view.get(types, &owner_key(id))?
            && state.head(&key)?.is_some_and(|head| head.id == id)
        {
            return Ok(Some(key));
        }
        if self.view.get(types, &count_key(id))?.is_none() {
            return Ok(None);
        }
        if !self.heads.contains_key(&types) {
            let mut heads = HashMap::new();
            let mut cursor = self.view.cursor(types, b"k", b"l")?;
            while let Some(tuple) = cursor.next()? {
                if let Some(head) = Head::decode(&tuple.value()?) {
                    heads.insert(head.id, tuple.key.slice(1..));
                }
            }
            self.heads.insert(types, heads);
        }
        Ok(self.heads[&types].get(&id).cloned())
    }
}
