//! `kvfs clone`: makes, lists and drops clones of a store. `there` does so on a server.

mod there;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Map, Value, json};

use crate::support::mounts::place;
use crate::support::stores::clones;
use crate::support::stores::served_names::There;
use crate::support::stores::snapshots::{must_be_of_named, with};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::{self, Limit};
use crate::support::terminal::text::Shown;

/// Make, list and drop clones: writable branches of a snapshot.
#[derive(clap::Args)]
#[command(after_help = "\
A clone shares all data with the snapshot that it is made from, and changes independently \
afterwards. While the store is mounted, it is at /mnt/.kvfs/clone/NAME. A name may contain \
slashes, such as agents/7/try-2. By the path of a clone, these commands make, list and drop the \
clones of that clone, to any depth.

create, list and drop also take the address of a server (kvfs serve), as kvfs snapshot does. A \
token may make clones that it may write, of snapshots that it may read, and drop them; \
kvfs mount ADDRESS DIR --txn -o clone=NAME writes one.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a clone of a snapshot.
    Create {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), the file of a
        /// store that is not mounted, or the address of a server.
        target: PathBuf,
        /// Snapshot that the clone starts from.
        snapshot: String,
        /// Name of the new clone.
        name: String,
        /// Limit the space of the clone beyond its snapshot, files and keys together (10G, 512M),
        /// the number of files that its snapshot does not have (100000f), or both (10G,100000f).
        /// Beyond the limit, writes to the clone fail as on a full disk; others are not affected.
        /// Without this, only the size of the store limits it.
        #[arg(long, value_name = "LIMIT", value_parser = sizes::parse_limit)]
        limit: Option<Limit>,
    },
    /// Change the limit of a clone.
    Limit {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file of a
        /// store that is not mounted.
        target: PathBuf,
        /// Name of the clone.
        name: String,
        /// New limit: a size (10G, 512M), a number of files (100000f), both (10G,100000f), or
        /// "none". It replaces the whole previous limit.
        #[arg(value_parser = limit)]
        limit: Limit,
    },
    /// List the clones, by name.
    #[command(visible_alias = "ls")]
    List {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), the file of a
        /// store that is not mounted, or the address of a server.
        target: PathBuf,
    },
    /// Drop a clone and everything in it. Its snapshots stay.
    #[command(visible_alias = "rm")]
    Drop {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), the file of a
        /// store that is not mounted, or the address of a server.
        target: PathBuf,
        /// Name of the clone.
        name: String,
    },
}

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit::default()),
        limit => sizes::parse_limit(limit),
    }
}

impl Action {
    fn target(&self) -> &Path {
        match self {
            Action::Create { target, .. }
            | Action::Limit { target, .. }
            | Action::List { target }
            | Action::Drop { target, .. } => target,
        }
    }
}

fn all(target: &Path) -> Outcome<Vec<Map<String, Value>>> {
    clones::of_reply(with(target, false, &clones::LIST)?)
}

/// Fails if a path names a clone, and another clone is not one of it, to any depth. The command
/// itself reports a clone that does not exist.
fn must_be_below(target: &Path, name: &str) -> Outcome {
    let Some(clone) = place::named_clone(target)? else { return Ok(()) };
    let all = all(target)?;
    let is_there = all.iter().any(|info| info["name"] == name);
    if !is_there || clones::names_below(&all, &clone).contains(name) {
        return Ok(());
    }
    let what =
        format!("clone {name} was not made of clone {clone}, into which {} leads", target.shown());
    Err(Failure::new(Exit::Usage, what).hint("give the directory where the store is mounted"))
}

pub fn run(args: Args, output: &Output) -> Outcome {
    if let Some(there) = There::of(args.action.target())? {
        return there::run(&there, &args.action, output);
    }
    match &args.action {
        Action::Create { target, snapshot, name, limit } => {
            must_be_of_named(target, snapshot)?;
            let Limit { bytes, files } = limit.unwrap_or_default();
            let [limit, of_files] = [bytes, files].map(|most| most.map(|most| most.to_string()));
            let mut words = vec!["CLONE", "CREATE", snapshot, name];
            words.extend(limit.iter().flat_map(|bytes| ["LIMIT", bytes]));
            words.extend(of_files.iter().flat_map(|files| ["FILES", files]));
            with(target, true, &words)?;
            output.print("", json!({"created": name, "limit": bytes, "limit_of_files": files}))
        }
        Action::Limit { target, name, limit: Limit { bytes, files } } => {
            must_be_below(target, name)?;
            let [limit, of_files] =
                [bytes, files].map(|most| most.map_or("NONE".into(), |most| most.to_string()));
            with(target, true, &["CLONE", "LIMIT", name, &limit, "FILES", &of_files])?;
            output.print("", json!({"clone": name, "limit": bytes, "limit_of_files": files}))
        }
        Action::Drop { target, name } => {
            must_be_below(target, name)?;
            with(target, true, &["CLONE", "DROP", name])?;
            output.print("", json!({"dropped": name}))
        }
        Action::List { target } => {
            let mut all = all(target)?;
            if let Some(clone) = place::named_clone(target)? {
                let below = clones::names_below(&all, &clone);
                all.retain(|info| info["name"].as_str().is_some_and(|name| below.contains(name)));
            }
            output.print(all.iter().map(clones::line).collect::<String>(), all)
        }
    }
}
