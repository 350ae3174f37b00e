//! `kvfs check`: reads every byte of a store that is in use, and says where something is wrong.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use zones::{Device, FileDevice};

use crate::output::{Exit, Failure, Outcome, Output};
use crate::store::{self, Access, human_size};
use crate::tree;

/// Verify every byte of an unmounted store.
#[derive(clap::Args)]
#[command(after_help = "Reads the whole store and changes nothing. Damage is listed with its place, and the exit code is 5.")]
pub struct Args {
    /// The store's file.
    store: PathBuf,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    // Opened first, for its errors tell what the path is: not there, in use, no store at all. A store that is too damaged to be opened
    // is examined all the same.
    let opened = match store::open_waiting(&args.store, Access::ReadOnly, None) {
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
    let device = FileDevice::open(&args.store, true)
        .map_err(|e| Failure::new(Exit::Failed, format!("cannot open {}: {e}", args.store.display())))?;
    let device: Arc<dyn Device> = Arc::new(device);
    let report = kvdb::check(device.clone(), &mut progress);
    // Its lock would keep us from opening the store again.
    drop(device);
    bar.finish_and_clear();

    let mut faults: Vec<(String, String)> = report.faults.iter().map(|f| (f.place.clone(), f.what.clone())).collect();
    let mut files = None;
    if opened {
        let store = store::open_waiting(&args.store, Access::ReadOnly, None)?;
        match kvfs::verify(&store.db) {
            Ok(found) => {
                let place = |ino: u64| if ino == 0 { "file system".to_string() } else { format!("inode {ino}") };
                faults.extend(found.findings.iter().map(|f| (place(f.ino), f.what.clone())));
                files = Some(found);
            }
            // Damage below has been listed already; a file system on it need not be readable.
            Err(error) => faults.push(("file system".into(), tree::failure("cannot be read", error).message)),
        }
        store.close()?;
    } else if faults.is_empty() {
        faults.push(("store".into(), "it cannot be opened, though every part of it that was found is whole".into()));
    }
    let clean = faults.is_empty();
    let mut text: String = faults.iter().map(|(place, what)| format!("{place}: {what}\n")).collect();
    text += &format!("{}: {}", args.store.display(), if clean { "clean".to_string() } else { format!("{} faults", faults.len()) });
    text += &format!(
        "; {} in {} runs of {} dictionaries, {} commits in the journal",
        human_size(report.bytes),
        report.runs,
        report.dictionaries,
        report.journal_records
    );
    if let Some(f) = &files {
        text += &format!(
            "; {} folders, {} files, {} others, {} of data{}",
            f.directories,
            f.files,
            f.others,
            human_size(f.bytes),
            if f.orphans > 0 { format!(", {} unlinked ones that the next mount removes", f.orphans) } else { String::new() }
        );
    }
    let value = json!({
        "store": args.store, "clean": clean,
        "faults": faults.iter().map(|(place, what)| json!({"place": place, "what": what})).collect::<Vec<_>>(),
        "dictionaries": report.dictionaries, "runs": report.runs, "items": report.items, "bytes": report.bytes,
        "journal_records": report.journal_records, "torn_bytes": report.torn_bytes,
        "files": files.map(|f| json!({
            "folders": f.directories, "files": f.files, "others": f.others, "names": f.names, "pages": f.pages, "bytes": f.bytes,
            "orphans": f.orphans,
        })),
    });
    output.print(text, value)?;
    if clean {
        return Ok(());
    }
    let failure = Failure::new(Exit::Damaged, format!("{} faults in {}", faults.len(), args.store.display()));
    Err(failure.hint("bring out what is readable (kvfs salvage STORE FOLDER), make a new store, and look at the disk"))
}
