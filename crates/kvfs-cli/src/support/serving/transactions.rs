//! Transactions and snapshots of the socket, over keys and files. They begin and end at the views,
//! so that the data that programs have written reaches the transaction before it commits, and its
//! changes reach the programs.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use kvdb::{
    CommitOptions, CommittedKey, DictionaryId, Durability, ReceiveOptions, ReceiveStats, Result,
    Revision, Savepoint, Transaction, TransactionId, TransactionOptions,
};
use kvdb_server::{
    Cloned, Conflicting, FileChange, FileDetail, FileError, FileResult, Files, FinishRebase,
    Imported, Importing, Merge, Merging, Paths, Preferred, Rebased, Removed, SettleKey, Snapshots,
    Transactions, Walking, Whose,
};
use kvfs::{
    Attr, Below, Caller, Choice, Earlier, FileKind, Listing, MergeConflict, MergeForkOptions,
    MergeOptions, Merged, Untold, ViewId, Views,
};
use kvfs_fuse::view_names;

use crate::support::archives::export_tree::stream::Stream;
use crate::support::archives::import_items::Item;
use crate::support::archives::importer::Importer;
use crate::support::archives::made_by::caller;
use crate::support::stores::{forked, tree, walks};
use crate::support::terminal::output::{Exit, Failure};

pub struct OverFiles(pub Views);

pub fn of_store(error: kvfs::Error) -> kvdb::Error {
    match error {
        kvfs::Error::Store(error) => error,
        kvfs::Error::Exists => kvdb::Error::Exists("the name".into()),
        kvfs::Error::NoSpace => kvdb::Error::NoSpace,
        kvfs::Error::NotSynced(why) => kvdb::Error::NotSynced(why),
        kvfs::Error::ReadOnly => kvdb::Error::ReadOnly("the file system is read-only".into()),
        kvfs::Error::Corrupt { .. } => kvdb::Error::Corrupt(error.to_string()),
        other => kvdb::Error::Invalid(other.to_string()),
    }
}

/// Converts a failure of an operation on files.
fn of_files(error: kvfs::Error) -> FileError {
    match error {
        kvfs::Error::NotFound => FileError::NotFound,
        kvfs::Error::NotDirectory => FileError::NotDirectory,
        kvfs::Error::Exists => FileError::Exists,
        other => of_store(other).into(),
    }
}

fn choices(preferred: &[(Vec<u8>, Preferred)]) -> Vec<(Vec<u8>, Choice)> {
    let one = |(path, preferred): &(Vec<u8>, Preferred)| {
        let choice = match preferred {
            Preferred::Ours => Choice::Ours,
            Preferred::Theirs => Choice::Theirs,
            Preferred::Both => Choice::Both,
        };
        (path.clone(), choice)
    };
    preferred.iter().map(one).collect()
}

fn conflicting(one: MergeConflict) -> Conflicting {
    let (ours, theirs) = (one.ours.word(), one.theirs.word());
    Conflicting { path: one.path, key: one.key, ours, theirs }
}

impl OverFiles {
    /// Merges the fork at a place. The fork is open only during the merge.
    fn merge_fork(&self, place: &[u8], merge: &Merge, settle: &SettleKey<'_>) -> Result<Merged> {
        let failed = |Failure { message, hint, .. }: Failure| {
            let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
            kvdb::Error::Invalid(format!("{message}{hint}"))
        };
        let fork = forked::open(place).map_err(failed)?;
        let options = MergeForkOptions {
            name: merge.clone.clone(),
            choices: choices(&merge.choices),
            dry_run: merge.dry_run,
            transaction: merge.options.clone(),
        };
        let merged = self.0.merge_fork(&fork.db, &options, settle).map_err(of_store);
        // The file of the fork keeps the parts that were fetched.
        let closed = fork.close().map_err(failed);
        match (merged, closed) {
            (Ok(merged), Err(e)) => {
                self.0.abort(merged.transaction).map_err(of_store)?;
                Err(e)
            }
            (merged, _) => merged,
        }
    }
}

impl Transactions for OverFiles {
    fn begin(&self, options: TransactionOptions) -> Result<TransactionId> {
        self.0.begin(options).map_err(of_store)
    }

    fn commit(&self, id: TransactionId, options: CommitOptions) -> Result<()> {
        self.0.commit_with(id, options).map_err(of_store)
    }

    fn commit_written(&self) -> Result<()> {
        self.0.commit_written().map_err(of_store)
    }

    fn revision(&self, id: TransactionId) -> Result<Revision> {
        self.0.revision(id).map_err(of_store)
    }

    fn abort(&self, id: TransactionId) -> Result<()> {
        self.0.abort(id).map_err(of_store)
    }

    fn undo(
        &self,
        commit: u64,
        options: TransactionOptions,
    ) -> Result<(TransactionId, Vec<(DictionaryId, Bytes)>)> {
        self.0.undo(commit, options).map_err(of_store)
    }

    fn merge(&self, merge: &Merge, settle: &SettleKey<'_>) -> Result<Merging> {
        let merged = match &merge.fork {
            Some(place) => self.merge_fork(place, merge, settle)?,
            None => {
                let options = MergeOptions {
                    clone: merge.clone.clone(),
                    into: merge.into.clone(),
                    rebase: merge.rebase,
                    choices: choices(&merge.choices),
                    dry_run: merge.dry_run,
                    transaction: merge.options.clone(),
                };
                self.0.merge(&options, settle).map_err(of_store)?
            }
        };
        let conflicts = merged.conflicts.into_iter().map(conflicting).collect();
        let (id, into, from) = (merged.transaction, merged.into, merged.from);
        Ok(Merging { id, into, from, conflicts, more: merged.more_conflicts, since: merged.since })
    }

    fn rebase(
        &self,
        id: TransactionId,
        preferred: &[(Vec<u8>, Preferred)],
        settle: &SettleKey<'_>,
        finish: &FinishRebase<'_>,
    ) -> Result<Rebased> {
        let finish = |transaction: &Transaction| Ok(finish(transaction)?);
        let rebased = self.0.rebase(id, &choices(preferred), settle, &finish).map_err(of_store)?;
        let conflicts = rebased.conflicts.into_iter().map(conflicting).collect();
        Ok(Rebased { id: rebased.transaction, conflicts, more: rebased.more_conflicts })
    }

    fn followed(&self, branch: &str) -> Vec<DictionaryId> {
        self.0.followed(&ViewId::of_branch(branch)).unwrap_or_default()
    }

    fn paths(&self, branch: &str, changes: &[(DictionaryId, CommittedKey)]) -> Result<Paths> {
        let changed =
            self.0.changed_paths(&ViewId::of_branch(branch), changes).map_err(of_store)?;
        let paths = changed.paths.into_iter().map(|(path, change)| (path, change.word())).collect();
        Ok(Paths { paths, more: changed.more })
    }

    fn describe(
        &self,
        id: TransactionId,
        dictionary: &str,
        start: &[u8],
        end: &[u8],
    ) -> Option<String> {
        self.0.describe_keys(id, dictionary, start, end)
    }

    fn keep(&self, id: TransactionId) -> Result<()> {
        self.0.keep(id).map_err(of_store)
    }

    fn savepoint(&self, transaction: &Transaction) -> Result<Savepoint> {
        self.0.savepoint(transaction.id()).map_err(of_store)
    }

    fn rollback(&self, transaction: &Transaction, to: &Savepoint) -> Result<()> {
        self.0.rollback_to(transaction.id(), to).map_err(of_store)
    }

    fn files(&self, id: TransactionId, collapsed: bool) -> Result<Vec<FileChange>> {
        Ok(listed(self.0.difference(id, listing(collapsed)).map_err(of_store)?))
    }

    fn settle(&self, branch: &str) -> Result<()> {
        self.0.settle(&ViewId::of_branch(branch)).map_err(of_store)
    }

    fn sync(&self) -> Result<()> {
        self.0.sync_all().map_err(of_store)
    }
}

impl Files for OverFiles {
    fn clone_tree(&self, whose: Whose, from: &[u8], to: &[u8]) -> FileResult<Cloned> {
        let view = view(whose);
        let stats = match earlier(from)? {
            Some((state, from)) => self.0.clone_earlier(&view, &state, from, to),
            None => self.0.clone_tree(&view, from, to),
        };
        let stats = stats.map_err(of_files)?;
        Ok(Cloned { directories: stats.directories, files: stats.files, bytes: stats.bytes })
    }

    fn clone_trees(&self, id: TransactionId, places: &[(&[u8], &[u8])]) -> FileResult<Cloned> {
        let invalid = || kvdb::Error::Invalid("several trees come from one earlier state".into());
        let (mut state, mut found) = (None, Vec::with_capacity(places.len()));
        for (from, to) in places {
            let (of, from) = earlier(from)?.ok_or_else(invalid)?;
            if *state.get_or_insert_with(|| of.clone()) != of {
                return Err(invalid().into());
            }
            found.push((from, *to));
        }
        let state = state.ok_or_else(invalid)?;
        let stats = self
            .0
            .clone_several_earlier(&ViewId::Transaction(id), &state, &found)
            .map_err(of_files)?;
        Ok(Cloned { directories: stats.directories, files: stats.files, bytes: stats.bytes })
    }

    fn import(&self, whose: Whose, to: &[u8], user: Option<u32>) -> FileResult<Box<dyn Importing>> {
        let begin = |branch| {
            let options = TransactionOptions {
                branch,
                label: "import".into(),
                idle_limit: Some(IDLE_IMPORT),
                undoable: true,
                user,
                ..Default::default()
            };
            self.0.begin(options).map_err(of_files)
        };
        let (id, own) = match whose {
            Whose::Transaction(id) => (id, false),
            Whose::Store => (begin(String::new())?, true),
            Whose::Clone(name) => (begin(name)?, true),
            Whose::Snapshot(_) => return Err(of_files(kvfs::Error::ReadOnly)),
        };
        // From here on, dropping `import` after any failure ends a transaction of its own.
        let mut import = Import { views: self.0.clone(), id, own, importer: None, kept: 0 };
        let inside = self.0.fs(&ViewId::Transaction(id)).map_err(of_files)?;
        let owner = Caller { uid: user.unwrap_or_else(|| caller().uid), ..caller() };
        let untold = match own {
            // The commit of this transaction notes the changes.
            true => Untold::default(),
            false => self.0.untold(&ViewId::Transaction(id)).map_err(of_files)?,
        };
        import.importer = Some(Importer::noted(inside, to, owner, untold).map_err(said)?);
        Ok(Box::new(import))
    }

    fn walk(&self, whose: Whose, path: &[u8]) -> FileResult<Box<dyn Walking>> {
        Ok(Box::new(Walk(self.0.walk(&view(whose), path).map_err(of_files)?)))
    }

    fn export(&self, whose: Whose, path: &[u8], user: Option<u32>) -> FileResult<Box<dyn Walking>> {
        // The store changes while it is read, so read a transaction, which sees its current state.
        let own = match whose {
            Whose::Store => {
                let options =
                    TransactionOptions { label: "export".into(), user, ..Default::default() };
                Some(self.0.begin(options).map_err(of_files)?)
            }
            _ => None,
        };
        let views = self.0.clone();
        let end = move || {
            if let Some(id) = own
                && let Err(e) = views.abort(id)
            {
                tracing::warn!("the transaction of an export stays open: {e}");
            }
        };
        match self.0.fs(&own.map_or_else(|| view(whose), ViewId::Transaction)) {
            Ok(fs) => Ok(Box::new(Export(Stream::begin(fs, path, end).map_err(kvdb::Error::Io)?))),
            Err(e) => {
                end();
                Err(of_files(e))
            }
        }
    }

    fn lock_directory(&self, id: TransactionId, path: &[u8], exclusive: bool) -> FileResult<()> {
        let fs = self.0.fs(&ViewId::Transaction(id)).map_err(of_files)?;
        fs.lock_directory(path, exclusive).map_err(of_files)
    }

    fn remove_tree(&self, whose: Whose, path: &[u8]) -> FileResult<Removed> {
        let stats = self.0.remove_tree(&view(whose), path).map_err(of_files)?;
        Ok(Removed { directories: stats.directories, files: stats.files, bytes: stats.bytes })
    }
}

/// Returns the earlier state that the source path of a copy names, and the path in that state.
/// Returns `None` if it is a path of the view itself.
fn earlier(path: &[u8]) -> Result<Option<(Earlier, &[u8])>> {
    let (first, rest) = split_first(path);
    if first != b".kvfs" {
        return Ok(None);
    }
    match split_first(rest) {
        (b"beneath", rest) => Ok(Some((Earlier::Beneath, rest))),
        (b"snapshot", rest) if !rest.is_empty() => {
            let (name, rest) = split_first(rest);
            let named = std::str::from_utf8(name);
            let named = named.map_err(|_| kvdb::Error::Invalid("a name is UTF-8 text".into()))?;
            Ok(Some((Earlier::Snapshot(view_names::view_name(named)), rest)))
        }
        _ => Err(kvdb::Error::Invalid(
            "of what lies under .kvfs, snapshots and `beneath` can be copied from".into(),
        )),
    }
}

/// Returns the first component of a path, and the rest.
fn split_first(path: &[u8]) -> (&[u8], &[u8]) {
    let begin = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    let path = &path[begin..];
    match path.iter().position(|&byte| byte == b'/') {
        Some(end) => (&path[..end], &path[end + 1..]),
        None => (path, b""),
    }
}

fn view(whose: Whose) -> ViewId {
    match whose {
        Whose::Store => ViewId::Mainline,
        Whose::Transaction(id) => ViewId::Transaction(id),
        Whose::Snapshot(name) => ViewId::Snapshot(name),
        Whose::Clone(name) => ViewId::Clone(name),
    }
}

struct Export(Stream);

impl Walking for Export {
    fn next(&mut self) -> FileResult<Vec<u8>> {
        self.0.next().map_err(said)
    }
}

/// Approximate bytes of the entries of a walk that are sent together.
const WALK_PIECE: usize = 256 << 10;

struct Walk(kvfs::Walk);

impl Walking for Walk {
    fn next(&mut self) -> FileResult<Vec<u8>> {
        let mut out = Vec::new();
        while out.len() < WALK_PIECE
            && let Some(walked) = self.0.next().map_err(of_files)?
        {
            walks::entry(walked.path, &walked.attr).encode(&mut out);
        }
        Ok(out)
    }
}

/// The time without data after which an import into a transaction of its own is aborted.
const IDLE_IMPORT: Duration = Duration::from_secs(3600);

/// Bytes of requests for files that are not made yet, above which they are made.
const MOST_KEPT: usize = 8 << 20;

/// An import of files that arrive over the socket.
struct Import {
    views: Views,
    id: TransactionId,
    /// Set if the transaction was begun for the import.
    own: bool,
    importer: Option<Importer>,
    /// Bytes of requests that files which are not made yet may keep in memory.
    kept: usize,
}

/// Converts a failure into the error that the other end is told.
fn said(failure: Failure) -> FileError {
    let error = match failure.exit {
        // The message says which limit was reached, if the store itself has room.
        Exit::NoSpace => return FileError::NoSpace(failure.message),
        Exit::Damaged => kvdb::Error::Corrupt(failure.message),
        Exit::Conflict => kvdb::Error::Locked(failure.message),
        _ => kvdb::Error::Invalid(failure.message),
    };
    FileError::Store(error)
}

impl Importing for Import {
    fn add(&mut self, entries: &[u8]) -> FileResult<()> {
        let over = || kvdb::Error::Invalid("the import has ended".into());
        let importer = self.importer.as_mut().ok_or_else(over)?;
        self.kept += entries.len();
        let mut entries = Bytes::copy_from_slice(entries);
        while let Some(item) = Item::decode(&mut entries).map_err(said)? {
            importer.take(item).map_err(said)?;
        }
        if self.kept > MOST_KEPT {
            self.kept = 0;
            importer.make_waiting().map_err(of_files)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> FileResult<Imported> {
        let over = || kvdb::Error::Invalid("the import has ended".into());
        let importer = self.importer.as_mut().ok_or_else(over)?;
        importer.finish().map_err(said)?;
        let c = importer.counts;
        if self.own {
            self.views.commit(self.id, Durability::Synced).map_err(of_files)?;
        }
        Ok(Imported {
            files: c.files,
            directories: c.directories,
            symlinks: c.symlinks,
            hard_links: c.hard_links,
            special: c.special,
            bytes: c.bytes,
            skipped: c.skipped,
        })
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        if self.own {
            // If the transaction has committed, it is over, and this abort finds none.
            let _ = self.views.abort(self.id);
        } else if let Some(importer) = &mut self.importer {
            let (names, inodes) =
                (std::mem::take(&mut importer.names), std::mem::take(&mut importer.inodes));
            if let Err(e) = self.views.tell_changed(&ViewId::Transaction(self.id), names, inodes) {
                tracing::debug!(
                    "the kernel was not told what was imported into transaction {}: {e}",
                    self.id
                );
            }
        }
    }
}

fn of_snapshot(name: &str) -> impl Fn(kvfs::Error) -> kvdb::Error {
    move |error| match error {
        kvfs::Error::NotFound => kvdb::Error::NoSnapshot(name.into()),
        other => of_store(other),
    }
}

impl Snapshots for OverFiles {
    fn create(&self, branch: &str, name: &str, durability: Durability) -> Result<()> {
        self.0.snapshot(&ViewId::of_branch(branch), name, durability).map_err(of_snapshot(branch))
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.0.drop_snapshot(name).map_err(of_snapshot(name))
    }
    fn roll_back(&self, name: &str) -> Result<()> {
        self.0.rollback(name).map_err(of_snapshot(name))
    }
    fn branch_off(&self, snapshot: &str, name: &str) -> Result<()> {
        self.0.clone_snapshot(snapshot, name).map_err(of_snapshot(snapshot))
    }
    fn remove_clone(&self, name: &str) -> Result<()> {
        self.0.drop_clone(name).map_err(of_snapshot(name))
    }
    fn files_of(&self, clone: &str) -> Result<Option<u64>> {
        let files = self.0.fs(&ViewId::Clone(clone.into())).and_then(|fs| fs.files_of_its_own());
        files.map(Some).map_err(of_snapshot(clone))
    }
    fn receive(&self, input: &mut dyn Read, options: &ReceiveOptions) -> Result<ReceiveStats> {
        self.0.receive(input, options).map_err(of_store)
    }
    fn files(&self, before: &str, after: Option<&str>, collapsed: bool) -> Result<Vec<FileChange>> {
        let changes = self.0.difference_of_snapshots(before, after, listing(collapsed));
        changes.map(listed).map_err(of_snapshot(before))
    }
    fn files_between(
        &self,
        before: &kvdb::View,
        after: &kvdb::View,
        collapsed: bool,
    ) -> Result<Vec<FileChange>> {
        let changes = kvfs::difference_of_states(before, after, listing(collapsed));
        changes.map(listed).map_err(of_store)
    }
}

pub fn listing(collapsed: bool) -> Listing {
    if collapsed { Listing::Collapsed } else { Listing::All }
}

/// Returns the changes in the form for clients of the socket: the anchors first.
pub fn listed(all: kvfs::Difference) -> Vec<FileChange> {
    let kind = |kind| match kind {
        Some(FileKind::Dir) => 'd',
        Some(FileKind::File) => 'f',
        Some(FileKind::Symlink) => 'l',
        _ => 'o',
    };
    let one = |change: kvfs::FileChange| FileChange {
        kind: kind(change.after.or(change.before).map(|attr| attr.kind)),
        before: change.before.map(|attr| attr.size),
        after: change.after.map(|attr| attr.size),
        details: details(&change),
        path: change.path,
    };
    let anchor = |(at, path): (usize, &Vec<u8>)| FileChange::anchor(at + 1, path.clone());
    let anchors: Vec<FileChange> = all.anchors.iter().enumerate().map(anchor).collect();
    anchors.into_iter().chain(all.into_iter().map(one)).collect()
}

fn owned(value: &Option<impl AsRef<[u8]>>) -> Option<Vec<u8>> {
    value.as_ref().map(|value| value.as_ref().to_vec())
}

/// Returns everything in which the two sides differ.
fn details(change: &kvfs::FileChange) -> Vec<FileDetail> {
    let mut details = Vec::new();
    let mut put = |what: &[u8], before: Option<Vec<u8>>, after: Option<Vec<u8>>| {
        details.push(FileDetail { what: what.into(), before, after });
    };
    let (before, after) = (change.before.as_ref(), change.after.as_ref());
    let mut compare = |what: &str, of: &dyn Fn(&Attr) -> Option<String>| {
        let value = |attr: Option<&Attr>| attr.and_then(of).map(String::into_bytes);
        let (before, after) = (value(before), value(after));
        if before != after {
            put(what.as_bytes(), before, after);
        }
    };
    compare("kind", &|a| Some(tree::kind_name(a.kind).into()));
    compare("mode", &|a| Some(format!("{:04o}", a.perm)));
    compare("owner", &|a| Some(format!("{}:{}", a.uid, a.gid)));
    compare("device", &|a| {
        let (major, minor) = tree::device_numbers(a.rdev);
        matches!(a.kind, FileKind::CharDevice | FileKind::BlockDevice)
            .then(|| format!("{major}:{minor}"))
    });
    if before.is_some() && after.is_some() {
        compare("time", &|a| Some(format!("{}.{:09}", tree::time_text(a.mtime), a.mtime.nanos)));
    }
    if change.content {
        put(b"content", None, None);
    }
    if change.targets.0 != change.targets.1 {
        put(b"target", owned(&change.targets.0), owned(&change.targets.1));
    }
    let links = |attr: Option<&Attr>| attr.map(|attr| attr.nlink.to_string().into_bytes());
    if change.links {
        put(b"links", links(before), links(after));
    }
    if let Some(other) = &change.linked_to {
        let is = after.is_some();
        put(b"linked-to", (!is).then(|| other.clone()), is.then(|| other.clone()));
    }
    if let Some(other) = &change.moved {
        let is = after.is_some();
        put(b"moved", is.then(|| other.clone()), (!is).then(|| other.clone()));
    }
    if change.below != Below::default() {
        let Below { files, directories, bytes, moved } = change.below;
        let told = Some(format!("{files} {directories} {bytes} {moved}").into_bytes());
        let is = after.is_some();
        put(b"below", (!is).then(|| told.clone()).flatten(), is.then_some(told).flatten());
    }
    for xattr in &change.xattrs {
        put(&[b"xattr:", &xattr.name[..]].concat(), owned(&xattr.before), owned(&xattr.after));
    }
    details
}
