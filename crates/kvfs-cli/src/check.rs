//! `kvfs check`: reads every byte of a store that is in use, says where something is wrong, and
//! repairs it if asked to. A mounted store is read by its daemon.

mod mounted;
mod repair;

pub use mounted::of_files;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use zones::{Device, FileDevice};

use crate::output::{Exit, Failure, Outcome, Output};
use crate::sizes::human_size;
use crate::store::{self, Access};
use crate::text::with_paths;
use crate::tree;

/// Verify every byte of a store, and make a damaged one usable again.
#[derive(clap::Args)]
#[command(after_help = "\
Reads the whole store and changes nothing, unless it is to repair. Damage is listed with its \
place, and the exit code is 5. A mounted store is read by its daemon while it is in use: \
everything that is alive, and the file system as it is committed when that is done. What only \
openings read (older superblocks and manifests, the journal) is looked at when it is not \
mounted, and only then can it be repaired. --repair takes out what cannot be read, and names it; \
that is lost then, so bring out first what salvage can read, and look for a backup. Entries that \
lead nowhere go, what has lost its name goes to lost+found, link counts and sizes are set right. \
What is sound stays as it is. The repaired store takes the place of the old one at once: when \
anything stops it before, the old one is there. A store of which superblock, manifest or journal \
cannot be read at all is not repaired: see kvfs salvage.")]
pub struct Args {
    /// The store's file, or a directory where it is mounted.
    store: PathBuf,
    /// Take out what cannot be read, and make the rest usable again. Asks before it changes
    /// anything.
    #[arg(long)]
    repair: bool,
    /// With --repair: do not ask.
    #[arg(long, requires = "repair")]
    yes: bool,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    if let Some(found) = mounted::examine(&args.store, args.repair, output)? {
        return found.tell(&args.store, output);
    }
    let found = examine(&args.store, output)?;
    if args.repair {
        return repair::run(&args.store, args.yes, found, output);
    }
    found.tell(&args.store, output)
}

/// Where something is wrong with files.
fn place_of(ino: u64) -> String {
    if ino == 0 { "file system".to_string() } else { format!("inode {ino}") }
}

/// What a check has found.
struct Found {
    /// Places, and what is wrong there.
    faults: Vec<(String, String)>,
    /// The store can be opened.
    opened: bool,
    report: kvdb::CheckReport,
    /// The journal was read, too.
    journal: bool,
    files: Option<kvfs::Report>,
}

fn examine(store_path: &Path, output: &Output) -> Outcome<Found> {
    // Opened first, for its errors tell what the path is: not there, in use, no store at all. A
    // store that is too damaged to be opened is examined all the same.
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
    let device = FileDevice::open(store_path, true).map_err(|e| {
        Failure::new(Exit::Failed, format!("cannot open {}: {e}", store_path.display()))
    })?;
    let device: Arc<dyn Device> = Arc::new(device);
    let report = kvdb::check(device.clone(), &mut progress);
    // Its lock would keep us from opening the store again.
    drop(device);
    bar.finish_and_clear();

    let mut faults: Vec<(String, String)> =
        report.faults.iter().map(|f| (f.place.clone(), f.what.clone())).collect();
    let mut files = None;
    if opened {
        let store = store::open_waiting(store_path, Access::ReadOnly, None)?;
        match kvfs::verify(&store.db) {
            Ok(found) => {
                faults.extend(found.findings.iter().map(|f| (place_of(f.ino), f.what.clone())));
                files = Some(found);
            }
            // Damage below has been listed already; a file system on it need not be readable.
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
    Ok(Found { faults, opened, report, journal: true, files })
}

impl Found {
    fn tell(self, path: &Path, output: &Output) -> Outcome {
        let Found { faults, report, journal, files, .. } = self;
        let clean = faults.is_empty();
        let mut text: String =
            faults.iter().map(|(place, what)| format!("{place}: {what}\n")).collect();
        text += &format!(
            "{}: {}",
            path.display(),
            if clean { "clean".to_string() } else { format!("{} faults", faults.len()) }
        );
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
            "dictionaries": report.dictionaries, "runs": report.runs, "items": report.items, "bytes": report.bytes,
            "journal_records": journal.then_some(report.journal_records), "torn_bytes": report.torn_bytes,
            "files": files.map(|f| json!({
                "directories": f.directories, "files": f.files, "others": f.others, "names": f.names, "pages": f.pages, "bytes": f.bytes,
                "orphans": f.orphans,
            })),
        });
        output.print(text, with_paths(value, &[("store", Some(path))]))?;
        if clean {
            return Ok(());
        }
        let failure =
            Failure::new(Exit::Damaged, format!("{} faults in {}", faults.len(), path.display()));
        Err(failure.hint("bring out what is readable (kvfs salvage STORE DIRECTORY), look at the disk, then: kvfs check --repair"))
    }
}
