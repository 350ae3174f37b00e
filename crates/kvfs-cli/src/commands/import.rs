//! `kvfs import`: copies a tar stream or a directory into a store, mounted or not.
//!
//! One thread reads the source item by item (`sources`), and another makes the items (`importer`):
//! in this process, or in the daemon of a mounted store, which receives them over its socket and
//! makes them in a transaction.

#[cfg(test)]
mod hostile_tests;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use kvdb::{Durability, TransactionOptions};
use kvfs::{Fs, ViewId, Views};

use crate::support::archives::import_items::{BATCH, Item};
use crate::support::archives::import_mounted::{self, Target};
use crate::support::archives::importer::{self, Counts, Importer};
use crate::support::archives::made_by::caller;
use crate::support::archives::sources::Source;
use crate::support::machine::identity::{self, Identity};
use crate::support::mounts::place;
use crate::support::stores::store::{self, Access};
use crate::support::stores::tree;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text::Shown;

/// Copy a tar stream or a directory into a store.
#[derive(clap::Args)]
#[command(after_help = "\
Preserves owners (as numbers), modes, times, hard links, symbolic links, devices, extended \
attributes and holes. Existing files are treated as by tar: a directory is kept and gets the new \
attributes, everything else is replaced.

An import into a store, mounted or not, or into a clone (.kvfs/clone/NAME), is one transaction: \
either everything appears at once and is on disk, or nothing is changed, even after a crash. It can \
have any size, and needs little memory. An import into a view of an open transaction (.kvfs/txn/ID, \
or in `kvfs run`) is part of that transaction, and files that were imported before a failure stay \
in it. They also stay in a store that is not mounted and has no room for both the new data and the \
data that it replaces: entries are then imported one by one, after a note, unless they come from \
standard input. If the second argument is a store and the first is not, the two are swapped, in \
the order of cp.

  kvfs import my.kvfs tree.tar --to /backup      a store that is not mounted
  zcat tree.tar.gz | kvfs import /mnt/backup -   a directory of a mounted store")]
pub struct Args {
    /// The store's file, or a directory in a mounted store.
    store: PathBuf,
    /// Tar file, `-` for a tar stream on standard input, or a directory.
    from: PathBuf,
    /// Directory to copy into, relative to STORE; created if it does not exist.
    #[arg(long, value_name = "PATH", default_value = "/")]
    to: OsString,
}

pub fn run(mut args: Args, output: &Output) -> Outcome {
    (args.store, args.from) = place::store_first(args.store, args.from);
    let directory = args.from.is_dir();
    let stdin = args.from.as_os_str() == "-";
    let mut tar = match () {
        () if directory => None,
        () if stdin => Some((File::from(rustix_stdin()?), None)),
        () => {
            let cannot = |e| Failure::io(format!("cannot read {}", args.from.shown()), &e);
            let file = File::open(&args.from).map_err(cannot)?;
            let meta = file.metadata().map_err(cannot)?;
            Some((file, Some(meta.len()).filter(|_| meta.is_file())))
        }
    };
    let begun = Instant::now();
    let target = import_mounted::target(&args.store)?;
    check(&args, tar.as_ref().map(|(file, _)| file), target.as_ref())?;
    // Exclude the store's own file, in whatever directory it lies.
    let itself =
        target.as_ref().map_or_else(|| Some(args.store.clone()), Target::store).unwrap_or_default();
    let is_repeatable = tar.as_ref().is_none_or(|(_, len)| len.is_some());
    let mut skipped = 0;
    let read = |give: &mut dyn FnMut(Item) -> Outcome| {
        let mut source = Source::new(output, give);
        let done = match &mut tar {
            Some((file, len)) => {
                if is_repeatable {
                    let cannot = |e| Failure::io(format!("cannot read {}", args.from.shown()), &e);
                    file.rewind().map_err(cannot)?;
                }
                let bar = output.progress("importing", *len, true);
                let file = io::BufReader::with_capacity(256 << 10, bar.wrap_read(&*file));
                source.tar(file).inspect(|()| bar.finish_and_clear())
            }
            None => {
                let bar = output.progress("importing", None, true);
                source.directory(&args.from, &itself, &bar).inspect(|()| bar.finish_and_clear())
            }
        };
        skipped = source.skipped;
        done
    };
    let (mut counts, left_out) = match target {
        Some(target) => (target.import(args.to.as_bytes(), read)?, Vec::new()),
        None => into_store(&args.store, args.to.as_bytes(), read, is_repeatable, output)?,
    };
    left_out.iter().for_each(|what| output.note(what));
    counts.skipped += skipped;
    print(&counts, begun.elapsed().as_secs_f64(), output)
}

/// Fails, before anything is made, if this source cannot be meant for this store. Without `tar`,
/// the source is a directory.
fn check(args: &Args, tar: Option<&File>, target: Option<&Target>) -> Outcome {
    if let (Some(file), None) = (tar, target) {
        identity::must_be_another(&args.store, Identity::of_open(file), &args.from)?;
    }
    // The arguments are swapped only where both exist, and a missing archive was meant to be read.
    if target.is_none()
        && let Err(error) = args.store.symlink_metadata()
        && place::means_a_store(&args.from)
    {
        return Err(Failure::io(format!("cannot find {}", args.store.shown()), &error)
            .hint("give an archive that exists, or make a store there with kvfs create"));
    }
    if tar.is_some() {
        return Ok(());
    }
    let in_root =
        target.is_none_or(Target::is_root) && tree::names(args.to.as_bytes()).next().is_none();
    if in_root && args.from.join(".kvfs").symlink_metadata().is_ok() {
        return Err(importer::hidden(args.from.join(".kvfs").as_os_str().as_bytes()));
    }
    target.map_or(Ok(()), |target| target.is_apart_from(&args.from))
}

fn print(counts: &Counts, seconds: f64, output: &Output) -> Outcome {
    let entries =
        counts.files + counts.directories + counts.symlinks + counts.hard_links + counts.special;
    let skipped =
        if counts.skipped > 0 { format!(", {} skipped", counts.skipped) } else { String::new() };
    let text = format!(
        "imported {entries} entries, {} in {seconds:.1} s{skipped}",
        human_size(counts.bytes)
    );
    output.print(text, counts)
}

fn rustix_stdin() -> Outcome<std::os::fd::OwnedFd> {
    use std::os::fd::AsFd;
    io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|e| Failure::io("cannot read standard input", &e))
}

/// Imports into a store that is not mounted, in one transaction. If the store has no room for both
/// the new data and the data that it replaces, and the source can be read again, the entries are
/// made one by one: those made before a failure stay then, and are on disk.
fn into_store(
    store: &Path,
    to: &[u8],
    mut read: impl FnMut(&mut dyn FnMut(Item) -> Outcome) -> Outcome,
    is_repeatable: bool,
    output: &Output,
) -> Outcome<(Counts, Vec<String>)> {
    let store = store::open_waiting(store, Access::ReadWrite, None)?;
    let fs = store.file_system()?;
    let views = Views::new(store.db.clone(), fs);
    let done = match in_transaction(&views, to, &mut read) {
        Err(failure) if failure.exit == Exit::NoSpace && is_repeatable => {
            output.note(
                "the store has no room for both the new data and the data that it replaces, so the \
                 entries are imported one by one: if one fails, those before it stay",
            );
            make_all(views.mainline(), to, &mut read)
        }
        done => done,
    };
    let saved = views.shutdown().and(views.mainline().shutdown());
    let saved = saved.map_err(|e| tree::failure("the last changes could not be written", e));
    drop(views);
    let closed = store.close();
    let done = done?;
    saved.and(closed).map(|()| done)
}

/// Imports in a transaction, of which nothing stays after a failure.
fn in_transaction(
    views: &Views,
    to: &[u8],
    read: &mut impl FnMut(&mut dyn FnMut(Item) -> Outcome) -> Outcome,
) -> Outcome<(Counts, Vec<String>)> {
    let cannot = |e: kvfs::Error| tree::failure("cannot import", e);
    let options = TransactionOptions { label: "import".into(), ..TransactionOptions::default() };
    let id = views.begin(options).map_err(cannot)?;
    let inside = views.fs(&ViewId::Transaction(id)).map_err(cannot);
    let made = inside.and_then(|inside| make_all(&inside, to, read));
    let done = made.and_then(|made| {
        views.commit(id, Durability::Synced).map_err(cannot)?;
        Ok(made)
    });
    if done.is_err() {
        // A transaction whose commit has failed may be over, and is not found then.
        let _ = views.abort(id);
    }
    done
}

/// Makes all items of a source in a file system.
fn make_all(
    fs: &Fs,
    to: &[u8],
    read: &mut impl FnMut(&mut dyn FnMut(Item) -> Outcome) -> Outcome,
) -> Outcome<(Counts, Vec<String>)> {
    let mut importer = Importer::new(fs.clone(), to, caller())?;
    if let Err(failure) = in_two_threads(read, |item| importer.take(item)) {
        // Make the files that came before the failure.
        let _ = importer.make_waiting();
        return Err(failure);
    }
    importer.finish()?;
    Ok((importer.counts, importer.left_out))
}

/// Reads on one thread and takes the items on another. Of several failures the taker's is returned,
/// since the reader only notices that the receiver has ended.
pub fn in_two_threads(
    read: impl FnOnce(&mut dyn FnMut(Item) -> Outcome) -> Outcome,
    mut take: impl FnMut(Item) -> Outcome + Send,
) -> Outcome {
    let (send, receive) = sync_channel::<Vec<Item>>(4);
    std::thread::scope(|scope| {
        let taker = scope.spawn(move || receive.into_iter().flatten().try_for_each(&mut take));
        let (mut batch, mut size) = (Vec::new(), 0);
        let ended = || Failure::new(Exit::Failed, "the import has ended");
        let done = read(&mut |item| {
            size += item.size();
            batch.push(item);
            if size < BATCH {
                return Ok(());
            }
            size = 0;
            send.send(std::mem::take(&mut batch)).map_err(|_| ended())
        });
        // Send the items before a failure nevertheless, since they may contain its cause.
        let sent = send.send(batch).map_err(|_| ended());
        drop(send);
        let taken = taker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        taken.and(done).and(sent)
    })
}

/// Imports any tar stream into a file system, for the fuzz targets under `fuzz/`.
#[cfg(fuzzing)]
pub fn any_tar(fs: &kvfs::Fs, bytes: &[u8]) {
    let output = Output::new(true);
    if let Ok(mut importer) = Importer::new(fs.clone(), b"/", kvfs::Caller::default()) {
        let _ = Source::new(&output, &mut |item| importer.take(item))
            .tar(bytes)
            .and_then(|()| importer.finish());
    }
}
