//! `kvfs rebase FORK`: brings the changes of the store that a fork was made of beneath the fork's
//! own changes. A new fork of the newest state is made, the old fork's changes are merged into it,
//! and it replaces the old file.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kvdb::{ForkId, LocalCopy, RemoteStore};
use places::Address;
use serde_json::json;
use zones::FileDevice;

use super::{Args, Done, Merged, Source, merge};
use crate::support::machine::destination::Judge;
use crate::support::review::changes::Detail;
use crate::support::review::merge_requests::{Begun, Choices, Conflict, listed};
use crate::support::review::proposed;
use crate::support::stores::store::{self, Access};
use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::{show, with_paths};

/// The file of a fork, and its origin.
struct Fork {
    file: PathBuf,
    address: Address,
    store: RemoteStore,
    id: ForkId,
    generation: u64,
}

/// Rebases the fork whose file is the target. Returns whether it was rebased or is up to date, or
/// `None` if the target is not such a file.
pub(super) fn rebase(args: &Args, output: &Output) -> Outcome<Option<bool>> {
    let Some(fork) = Fork::at(&args.target)? else { return Ok(None) };
    if args.keep || args.ask {
        let what = "the file of a fork is rebased whole: --ask and --keep are for clones";
        return Err(Failure::new(Exit::Usage, what)
            .hint("see it with --dry-run, and choose with --ours, --theirs and --both"));
    }
    fork.rebase(args, output).map(Some)
}

impl Fork {
    fn at(target: &Path) -> Outcome<Option<Fork>> {
        if !target.is_file() {
            return Ok(None);
        }
        let cannot = |e| failures::of_device(target, "read", e);
        let device = FileDevice::open(target, false).map_err(cannot)?;
        let copy = LocalCopy::of(&device).map_err(|e| unread(target, e))?;
        let Some((copy, id)) = copy.and_then(|copy| copy.fork.map(|id| (copy, id))) else {
            return Ok(None);
        };
        let lies_at = PathBuf::from(format!("{}/{}", copy.place, copy.name));
        let address = Address::required(&lies_at)?;
        let store = address.store(false)?;
        let file = target.to_owned();
        Ok(Some(Fork { file, address, store, id, generation: copy.generation }))
    }

    fn cannot(&self, e: kvdb::Error) -> Failure {
        failures::of_database(format!("cannot rebase {}", self.file.shown()), e)
    }

    /// Returns the path of the file with a suffix.
    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(suffix);
        name.into()
    }

    fn rebase(&self, args: &Args, output: &Output) -> Outcome<bool> {
        let (now, before) = (self.beside(".rebase"), self.beside(".before"));
        let (file, address) = (self.file.shown(), &self.address);
        let head = self.store.head().map_err(|e| self.cannot(e))?;
        let newest = head.map_or(0, |head| head.generation);
        self.remove_half_kept(&before, args.dry_run)?;
        if before.exists() && !args.drop && !args.dry_run {
            let what = format!("{} is there: it is what {file} was before", before.shown());
            return Err(Failure::new(Exit::Usage, what)
                .hint("move it or remove it, and drop its registration (kvfs forks --drop)"));
        }
        let options = self.store.fork_options(self.id).map_err(|e| self.cannot(e))?;
        let Some(options) = options else {
            let what = format!("{file} is not registered in {address} any more");
            return Err(Failure::new(Exit::NotFound, what).hint(
                "what it has not fetched may be gone: make another fork, and merge into that what \
                 can be read of this one (kvfs merge --into)",
            ));
        };
        // An interrupted rebase has left its file.
        self.check_left(&now)?;
        self.remove(&now, output)?;
        let made = || Ok::<(), Failure>(());
        let copy = places::fork(address, &now, &options, made, |text| output.note(text))?;
        // A fork of a snapshot began at an older state than its generation.
        let is_newest = newest == self.generation
            && began_at(&self.file, &copy.store)? == began_at(&now, &copy.store)?;
        if is_newest {
            self.remove(&now, output)?;
            let text =
                format!("{file} began as the newest state of {address}, generation {newest}");
            let value = json!({"generation": newest, "rebased": false});
            return output.print(text, value).map(|()| true);
        }
        let source = Source {
            name: self.file.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            fork: Some(std::fs::canonicalize(&self.file).map_err(|e| self.io(&e))?.into()),
            into: None,
            rebase: false,
        };
        let merging = self.merging(args, &now);
        let merged =
            proposed::with_store(&now, "rebase", |client, _| merge(client, &source, &merging));
        let done = match merged {
            Ok(Merged::Done(done)) if !args.dry_run => done,
            other => {
                self.remove(&now, output)?;
                return self.not_rebased(other?, args, output);
            }
        };
        self.replace((&now, copy.fork), (!args.drop).then_some(&before))?;
        if args.drop
            && let Err(e) = self.store.drop_fork(self.id)
        {
            output.note(format!("fork {} stays registered in {address}: {e}", self.id));
        }
        let before = (!args.drop).then_some(&*before);
        self.rebased(&done, (copy.generation, before), args, output).map(|()| true)
    }

    /// Returns the arguments of the merge of the old fork into the new one, whose file is `now`.
    fn merging(&self, args: &Args, now: &Path) -> Args {
        // Here, the fork is "ours" and the newest state is "theirs".
        let Choices { ours, theirs, both } = args.choices.clone();
        Args {
            target: self.file.clone(),
            clone: None,
            into: Some(now.to_owned()),
            choices: Choices { ours: theirs, theirs: ours, both },
            drop: false,
            ..*args
        }
    }

    /// Prints what the rebase has done. `before` is the file before the rebase, if it is kept.
    fn rebased(
        &self,
        Done { changes, .. }: &Done,
        (generation, before): (u64, Option<&Path>),
        args: &Args,
        output: &Output,
    ) -> Outcome {
        let detail = Detail::of_undo(args.stat, args.no_pager);
        let kept = before.map(|before| show(before.as_os_str().as_bytes()));
        let kept = kept.map_or_else(String::new, |kept| format!("; as it was it is {kept}"));
        let text = format!(
            "{} goes on from generation {generation}, and not {}{kept}\n",
            show(self.file.as_os_str().as_bytes()),
            self.generation,
        );
        if !output.is_json() {
            changes.print(detail, output)?;
        }
        let value = json!({
            "generation": generation, "rebased": true, "changes": changes.json(detail),
        });
        let value = with_paths(value, &[("file", Some(&*self.file)), ("before", before)]);
        output.print(text, value)
    }

    fn not_rebased(&self, merged: Merged, args: &Args, output: &Output) -> Outcome<bool> {
        match merged {
            Merged::Done(Done { changes, .. }) => {
                let detail = Detail::of_undo(args.stat, args.no_pager);
                if !output.is_json() {
                    changes.print(detail, output)?;
                }
                let value = json!({"rebased": false, "changes": changes.json(detail)});
                output.print("nothing was changed\n", value).map(|()| true)
            }
            Merged::Against(Begun { conflicts, more, .. }) => {
                let swapped =
                    |one: Conflict| Conflict { ours: one.theirs, theirs: one.ours, ..one };
                let conflicts: Vec<Conflict> = conflicts.into_iter().map(swapped).collect();
                let all: Vec<_> = conflicts.iter().map(Conflict::json).collect();
                let theirs = self.address.to_string();
                let text = listed(&conflicts, more, "the fork", &show(theirs.as_bytes()));
                output.print(text, json!({"rebased": false, "conflicts": all, "more": more}))?;
                output.note(
                    "both sides have changed these, and nothing was changed: choose with --ours, \
                     --theirs or --both PATH",
                );
                Ok(false)
            }
            Merged::Not(_) => Ok(true),
        }
    }

    fn io(&self, e: &std::io::Error) -> Failure {
        Failure::io(format!("cannot rebase {}", self.file.shown()), e)
    }

    /// Fails if something exists at `file`, unless an interrupted rebase has left it and it is not
    /// in use.
    fn check_left(&self, file: &Path) -> Outcome {
        if std::fs::symlink_metadata(file).is_err() {
            return Ok(());
        }
        let (place, name) = (self.store.objects().place(), self.store.name());
        let is_left = local_copy(file).is_some_and(|copy| {
            let is_of = copy.place == place && copy.name == name;
            is_of && copy.fork.is_some_and(|id| id != self.id)
        });
        if !is_left {
            let what = format!("{} is there, and no rebase has left it", file.shown());
            return Err(Failure::new(Exit::Usage, what).hint("move it or remove it"));
        }
        Judge::replacing().judge_path(file)
    }

    /// Removes the second name that an interrupted rebase has linked to the unchanged file.
    fn remove_half_kept(&self, before: &Path, dry_run: bool) -> Outcome {
        let of = |path: &Path| {
            let found = std::fs::symlink_metadata(path).ok();
            found.map(|found| (found.dev(), found.ino()))
        };
        match of(before) {
            Some(it) if Some(it) == of(&self.file) && !dry_run => {
                std::fs::remove_file(before).map_err(|e| self.io(&e))
            }
            _ => Ok(()),
        }
    }

    /// Removes the file of a discarded fork, and its registration.
    fn remove(&self, file: &Path, output: &Output) -> Outcome {
        if !file.exists() {
            return Ok(());
        }
        if let Some(copy) = local_copy(file)
            && let Some(id) = copy.fork.filter(|id| *id != self.id)
            && let Err(e) = self.store.drop_fork(id)
        {
            output.note(format!("fork {id} stays registered in {}: {e}", self.address));
        }
        std::fs::remove_file(file).map_err(|e| self.io(&e))
    }

    /// Replaces the file atomically by `now`, and keeps the old file as `before`.
    fn replace(&self, (now, fork): (&Path, Option<ForkId>), before: Option<&PathBuf>) -> Outcome {
        // Another command may have mounted or rebased the file in the meantime.
        Judge::replacing().judge_path(&self.file)?;
        let fork_in = |path: &Path| local_copy(path).and_then(|copy| copy.fork);
        if fork_in(now) != fork || fork_in(&self.file) != Some(self.id) {
            let what = format!("{} is being rebased by another command", self.file.shown());
            return Err(Failure::new(Exit::Busy, what));
        }
        let replaced = || {
            if let Some(before) = before {
                std::fs::hard_link(&self.file, before)?;
            }
            std::fs::rename(now, &self.file)?;
            let parent = self.file.parent().filter(|parent| !parent.as_os_str().is_empty());
            std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
        };
        replaced().map_err(|e: std::io::Error| self.io(&e))
    }
}

/// Reads the record of a local file about its origin.
fn local_copy(file: &Path) -> Option<LocalCopy> {
    let device = FileDevice::open(file, false).ok()?;
    LocalCopy::of(&device).ok().flatten()
}

/// Returns the number of the commit of a store that a fork of it began at.
fn began_at(file: &Path, of: &[u8; 16]) -> Outcome<Option<u64>> {
    let fork = store::open_waiting(file, Access::ReadOnly, None)?;
    let commit = fork.db.fork_base(of).map(|base| base.commit);
    fork.close()?;
    Ok(commit)
}

fn unread(target: &Path, e: kvdb::Error) -> Failure {
    failures::of_database(format!("cannot read {}", target.shown()), e)
}
