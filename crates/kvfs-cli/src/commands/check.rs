//! `kvfs check`: reads every byte of a store that is in use, reports damage, and repairs it on
//! request. The daemon of a mounted store does the reading.

mod mounted;
mod published;
mod repair;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use places::Address;
use serde_json::{Value, json};
use zones::{Device, FileDevice};

use crate::commands::scrub;
use crate::support::stores::connection::Connection;
use crate::support::stores::losses::Loss;
use crate::support::stores::store::{self, Access};
use crate::support::stores::tree;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::with_paths;

/// Verify every byte of a store, and make a damaged one usable again.
#[derive(clap::Args)]
#[command(after_help = "\
Reads the whole store, and changes nothing without --repair. Damage is listed with its place, and \
the exit code is 5. A mounted store is read by its daemon while it is in use: all live data, and \
the file system as it is committed at the end of the reading. Data that only opening a store \
reads (older superblocks and manifests, the journal) is checked only if the store is not mounted, \
and only then can it be repaired. --repair removes what cannot be read, and lists it. The removed \
data is lost, so first use salvage to copy out what is readable, and look for a backup. Reading \
lost bytes of a file fails (EIO) until they are written again. The losses are kept as a list: \
check and kvfs stat show it, and the exit code of check is 5, until everything on it has been \
replaced, in clones too, and dropped with the snapshots that have it, or --accept-losses is used. \
Directory entries without an inode are removed, files that lost their names go to lost+found, and \
link counts and sizes are corrected. Sound data stays as it is. The repaired store replaces the \
old one atomically: if the repair is interrupted, the old store remains. A store whose \
superblock, manifest or journal cannot be read at all is not repaired: see kvfs salvage.

With an address (dir:FOLDER/NAME, s3://BUCKET/NAME), compares the objects that all stores and \
forks in that place refer to with the objects stored there, without reading data. Missing objects \
are damage; unreferenced objects are left to kvfs gc.")]
pub struct Args {
    /// The store's file, a directory where it is mounted, or an address in object storage.
    store: PathBuf,
    /// Remove what cannot be read, and make the rest usable again. Asks before it changes anything.
    #[arg(long)]
    repair: bool,
    /// Do not ask before repairing.
    #[arg(long, requires = "repair")]
    yes: bool,
    /// Accept the losses of this repair and of earlier ones: lost bytes of files read as zeros, in
    /// clones too, and the list of losses is cleared. Snapshots stay as they are.
    #[arg(long, requires = "repair")]
    accept_losses: bool,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    if let Some(address) = Address::parse(&args.store)? {
        if args.repair {
            let what = format!("{address} lies in object storage, and is not repaired there");
            return Err(Failure::new(Exit::Usage, what)
                .hint("make a fork of it, and repair that: kvfs fork ADDRESS FILE"));
        }
        return published::run(&args.store, output);
    }
    if let Some(found) = mounted::examine(&args.store, args.repair, output)? {
        return found.tell(&args.store, output);
    }
    let found = examine(&args.store, output)?;
    if args.repair {
        let losses = match args.accept_losses {
            true => kvfs::Losses::Accept,
            false => kvfs::Losses::Keep,
        };
        return repair::run(&args.store, args.yes, losses, found, output);
    }
    found.tell(&args.store, output)
}

/// Names the inode with the damage, or the file system.
fn place_of(ino: u64) -> String {
    if ino == 0 { "file system".to_string() } else { format!("inode {ino}") }
}

/// The results of a check.
struct Found {
    /// Damaged places, each with a description.
    faults: Vec<(String, String)>,
    /// The bytes of files, and the keys, that depend on damaged data.
    concerns: Vec<String>,
    /// Data that earlier repairs could not restore.
    losses: Vec<Loss>,
    /// True if the store can be opened.
    opened: bool,
    report: kvdb::CheckReport,
    /// True if the journal was read, too.
    journal: bool,
    files: Option<kvfs::Report>,
}

fn examine(store_path: &Path, output: &Output) -> Outcome<Found> {
    // Open the store first, since the error shows the state of the path: missing, in use, or not a
    // store. A store that is too damaged to be opened is examined nevertheless.
    let opened = match store::open_waiting(store_path, Access::ReadOnly, None) {
        Ok(store) => {
            store.close()?;
            true
        }
        Err(failure) if failure.exit == Exit::Damaged => false,
        Err(failure) => return Err(failure),
    };
    let bar = output.progress("checking", Some(0), true);
    let mut progress = |done: u64, total: u64| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let device = FileDevice::open(store_path, !store::keeps_parts(store_path)).map_err(|e| {
        Failure::new(Exit::Failed, format!("cannot open {}: {e}", store_path.shown()))
    })?;
    let device: Arc<dyn Device> = Arc::new(device);
    let remote = places::zones_of(&*device)?;
    let report = kvdb::check_with(device.clone(), remote.as_ref(), &mut progress);
    // Release the lock, which would keep this process from opening the store again.
    drop(device);
    bar.finish_and_clear();

    let mut faults: Vec<(String, String)> =
        report.faults.iter().map(|f| (f.place.clone(), f.what.clone())).collect();
    let (mut files, mut losses) = (None, Vec::new());
    if opened {
        let store = store::open_waiting(store_path, Access::ReadOnly, None)?;
        // An unreadable file system has no list of losses; that it is unreadable is reported below.
        losses = kvfs::losses(&store.db).unwrap_or_default().into_iter().map(Loss::from).collect();
        match kvfs::verify(&store.db) {
            Ok(found) => {
                faults.extend(found.findings.iter().map(|f| (place_of(f.ino), f.what.clone())));
                files = Some(found);
            }
            // The damage is listed already; it may make the file system unreadable.
            Err(error) => {
                faults.push(("file system".into(), tree::failure("cannot be read", error).message))
            }
        }
        store.close()?;
    } else if faults.is_empty() {
        faults.push((
            "store".into(),
            "it cannot be opened, though every part of it that was found is whole".into(),
        ));
    }
    let concerns =
        if opened && !faults.is_empty() { concerns(store_path, output)? } else { Vec::new() };
    Ok(Found { faults, concerns, losses, opened, report, journal: true, files })
}

/// Returns the files and keys that depend on damaged data, found by a scrub, which knows the keys
/// of the data that it reads.
fn concerns(path: &Path, output: &Output) -> Outcome<Vec<String>> {
    let mut connection = Connection::open(path, false)?;
    scrub::whole(&mut connection, 0, output)?;
    let faults = scrub::faults(&mut connection)?;
    connection.close()?;
    Ok(concerned(&faults))
}

fn concerned(faults: &[Value]) -> Vec<String> {
    let name = |fault: &Value| {
        ["concerns", "keys"].iter().find_map(|of| Some(fault[*of].as_str()?.to_string()))
    };
    let mut all: Vec<String> =
        faults.iter().filter_map(name).filter(|name| !name.is_empty()).collect();
    all.sort();
    all.dedup();
    all
}

impl Found {
    /// Returns whether there are unreadable pages, listed or not.
    fn has_losses(&self) -> bool {
        !self.losses.is_empty() || self.files.as_ref().is_some_and(|files| files.lost_pages > 0)
    }

    fn tell(self, path: &Path, output: &Output) -> Outcome {
        let lost = self.has_losses();
        let Found { faults, concerns, losses, report, journal, files, .. } = self;
        let clean = faults.is_empty() && !lost;
        let mut text: String =
            faults.iter().map(|(place, what)| format!("{place}: {what}\n")).collect();
        concerns.iter().for_each(|what| text += &format!("damaged: {what}\n"));
        losses.iter().for_each(|loss| text += &loss.line());
        let pages = files.as_ref().map_or(0, |files| files.lost_pages);
        let state = match (clean, pages) {
            (true, _) => "clean".to_string(),
            (false, 0) => format!("{} faults, {} losses", faults.len(), losses.len()),
            (false, pages) => {
                let losses = losses.len();
                format!("{} faults, {losses} losses, {pages} lost pages of files", faults.len())
            }
        };
        text += &format!("{}: {state}", path.shown());
        text += &format!(
            "; {} in {} runs of {} dictionaries",
            human_size(report.bytes),
            report.runs,
            report.dictionaries
        );
        if journal {
            text += &format!(", {} commits in the journal", report.journal_records);
        }
        if let Some(f) = &files {
            text += &format!(
                "; {} directories, {} files, {} others, {} of data{}",
                f.directories,
                f.files,
                f.others,
                human_size(f.bytes),
                if f.orphans > 0 {
                    format!(", {} unlinked ones that the next mount removes", f.orphans)
                } else {
                    String::new()
                }
            );
        }
        let value = json!({
            "clean": clean,
            "faults": faults.iter().map(|(place, what)| json!({"place": place, "what": what})).collect::<Vec<_>>(),
            "concerns": concerns, "lost": losses.iter().map(Loss::to_json).collect::<Vec<_>>(),
            "dictionaries": report.dictionaries, "runs": report.runs, "items": report.items, "bytes": report.bytes,
            "journal_records": journal.then_some(report.journal_records), "torn_bytes": report.torn_bytes,
            "files": files.map(|f| json!({
                "directories": f.directories, "files": f.files, "others": f.others, "names": f.names, "pages": f.pages, "bytes": f.bytes,
                "orphans": f.orphans, "lost_pages": f.lost_pages,
            })),
        });
        output.print(text, with_paths(value, &[("store", Some(path))]))?;
        if clean {
            return Ok(());
        }
        if faults.is_empty() {
            let what = format!("something is lost in {}, as an earlier repair noted", path.shown());
            return Err(Failure::new(Exit::Damaged, what).hint(
                "bring it back from a backup; what stays lost is given up by: \
                 kvfs check --repair --accept-losses",
            ));
        }
        let failure =
            Failure::new(Exit::Damaged, format!("{} faults in {}", faults.len(), path.shown()));
        Err(failure.hint("bring out what is readable (kvfs salvage STORE DIRECTORY), look at the disk, then: kvfs check --repair"))
    }
}
