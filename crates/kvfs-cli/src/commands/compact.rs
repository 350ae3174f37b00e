//! `kvfs compact`: merges a store, a dictionary or a range of its keys now.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde_json::json;

use crate::support::stores::connection::Connection;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text;

/// Merge the runs of a store, of one dictionary, or of a range of its keys, now.
#[derive(clap::Args)]
#[command(after_help = "\
TARGET is the directory a store is mounted on, or the file of a store that is not mounted. \
Programs can use the store while it runs. Merging frees the space of deleted data, leaves one run \
to read, and applies changed options of a dictionary (`kvfs dict set`) to existing data. A store \
merges in the background as it is written; this command merges now, and returns when the merge is \
complete. Without DICT all dictionaries are merged, including those of the file system, but not \
those of clones. The range includes FROM and excludes TO; `-` as FROM and `+` as TO mean no \
bound.")]
pub struct Args {
    /// Directory a store is mounted on, or the file of a store that is not mounted; with DICT also
    /// a clone (/mnt/.kvfs/clone/NAME).
    target: PathBuf,
    /// Dictionary of keys to merge.
    dict: Option<String>,
    /// First key of the range.
    #[arg(requires = "to")]
    from: Option<OsString>,
    /// End of the range: the first key after it.
    to: Option<OsString>,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    if let (Some(from), Some(to)) = (&args.from, &args.to)
        && (from != "-" && !from.is_empty() && to != "+" && !to.is_empty())
        && from.as_bytes() >= to.as_bytes()
    {
        let what = "the range has no keys: FROM is not before TO";
        return Err(Failure::new(Exit::Usage, what));
    }
    // All dictionaries are merged only as a whole store's.
    let mut connection = match &args.dict {
        Some(_) => Connection::of_branch(&args.target, true)?,
        None => Connection::open(&args.target, true)?,
    };
    let mut words: Vec<&[u8]> = vec![b"COMPACT"];
    let chosen = match &args.dict {
        Some(dict) => {
            words.extend(args.from.iter().chain(&args.to).map(|bound| bound.as_bytes()));
            connection.call(&[b"USE", dict.as_bytes()]).map(drop)
        }
        None => {
            words.push(b"STORE");
            Ok(())
        }
    };
    let bar = output.progress("compacting", None, false);
    bar.enable_steady_tick(std::time::Duration::from_millis(100));
    let done = chosen.and_then(|()| connection.call(&words));
    bar.finish_and_clear();
    let closed = connection.close();
    done.and(closed)?;
    let value = json!({"dictionary": args.dict, "compacted": true});
    output.print("", text::with_paths(value, &[("target", Some(&args.target))]))
}
