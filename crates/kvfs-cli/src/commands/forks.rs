//! `kvfs forks`: lists the registered forks of a store in object storage, or drops one.

use std::path::PathBuf;
use std::time::Duration;

use kvdb::{ForkInfo, RemoteStore};
use places::Address;
use serde_json::{Value, json};

use crate::support::stores::tree;
use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::show;

/// List the forks of a store in object storage, or drop one.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  kvfs forks dir:/srv/stores/work                their labels and starting points
  kvfs forks dir:/srv/stores/work --drop 1f0c    the file of that fork no longer exists

The objects that a fork started from are kept until the fork is dropped or expires (kvfs fork \
--expires). Deleting its file does not drop it: do that as well. The file of a dropped fork loses \
the data that it has not fetched, once kvfs gc has found the fork dropped and the grace period is \
over. Times are those of the server.")]
pub struct Args {
    /// Address of the store: dir:FOLDER/NAME or s3://BUCKET/NAME.
    store: PathBuf,
    /// Drop the fork with this number, or the only one whose number begins with it.
    #[arg(long, value_name = "ID")]
    drop: Option<String>,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let source = Address::required(&args.store)?;
    let store = source.store(false)?;
    let cannot = |e| failures::of_database(format!("cannot read the forks of {source}"), e);
    if store.head().map_err(cannot)?.is_none() {
        return Err(cannot(kvdb::Error::NoStore(source.to_string())));
    }
    let mut forks = store.forks().map_err(cannot)?;
    forks.sort_by_key(|fork| (fork.made, fork.id));
    match &args.drop {
        Some(id) => drop_one(&store, &source, &forks, id, output),
        None => list(&forks, output),
    }
}

fn time(time: Duration) -> String {
    let time = kvfs::Timestamp { secs: time.as_secs() as i64, nanos: 0 };
    format!("{} UTC", tree::time_text(time))
}

fn value(fork: &ForkInfo) -> Value {
    json!({
        "id": fork.id.to_string(), "label": fork.label, "generation": fork.generation,
        "made": fork.made.as_nanos() as u64, "expires": fork.expires.map(|at| at.as_nanos() as u64),
    })
}

fn list(forks: &[ForkInfo], output: &Output) -> Outcome {
    let line = |fork: &ForkInfo| {
        let ForkInfo { id, label, generation, made, expires } = fork;
        let expires = expires.map_or("never expires".into(), |at| format!("until {}", time(at)));
        let (made, label) = (time(*made), show(label.as_bytes()));
        format!("{id}  generation {generation}, made {made}, {expires}  {label}\n")
    };
    let mut text: String = forks.iter().map(line).collect();
    if forks.is_empty() {
        text = "no fork is registered\n".into();
    }
    output.print(text, forks.iter().map(value).collect::<Vec<_>>())
}

fn drop_one(
    store: &RemoteStore,
    source: &Address,
    forks: &[ForkInfo],
    id: &str,
    output: &Output,
) -> Outcome {
    let mut named =
        forks.iter().filter(|fork| !id.is_empty() && fork.id.to_string().starts_with(id));
    let fork = match (named.next(), named.next()) {
        (Some(fork), None) => fork,
        (None, _) => {
            let what = format!("{source} has no fork {id}");
            return Err(
                Failure::new(Exit::NotFound, what).hint(format!("list: kvfs forks {source}"))
            );
        }
        (Some(_), Some(_)) => {
            let what = format!("{id} begins the numbers of several forks of {source}");
            return Err(Failure::new(Exit::Usage, what).hint("write more of the number"));
        }
    };
    store
        .drop_fork(fork.id)
        .map_err(|e| failures::of_database(format!("cannot drop fork {}", fork.id), e))?;
    let text = format!(
        "dropped fork {} ({}): its file loses what it has not fetched, when kvfs gc has deleted that",
        fork.id,
        show(fork.label.as_bytes())
    );
    output.print(text, value(fork))
}
