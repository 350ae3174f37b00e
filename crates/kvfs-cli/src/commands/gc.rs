//! `kvfs gc`: deletes the objects of a place that no store and no fork refers to.

use std::path::PathBuf;
use std::time::Duration;

use env::Machine;
use kvdb::{Amount, CollectOptions};
use serde_json::{Value, json};

use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::span::{human_span, parse_span};
use crate::support::terminal::text::show;

/// The shortest grace allowed without `--force`.
const LEAST_GRACE: Duration = Duration::from_secs(3600);

/// Delete objects in a shared folder or a bucket that no store and no fork refers to.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  kvfs gc dir:/srv/stores              all stores in the folder; they share common objects
  kvfs gc s3://bucket/work --dry-run   what would be deleted in the place of that store

Run it regularly, for example by a timer, from any machine; stores can be published, read and \
forked during a run. One run finds the unreferenced objects, and a run that begins after the \
grace period deletes them; until then, earlier readers can continue to read. Only the clock of \
the server counts. The objects that a fork started from are kept until it expires or is dropped \
(kvfs forks), and those of a store until it is unpublished (kvfs unpublish). If any of the \
records of the objects in use cannot be read, nothing is deleted. A run costs a request for each \
1,000 objects, and one for each deleted object.")]
pub struct Args {
    /// Place to clean: dir:FOLDER, s3://BUCKET, s3://BUCKET/PREFIX, or the address of a store
    /// there.
    place: PathBuf,
    /// Delete objects that have been unreferenced for at least TIME.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_span)]
    grace: Duration,
    /// Allow a grace period of less than an hour. Readers that mounted a store before its latest
    /// publication may lose data that they have not read yet.
    #[arg(long)]
    force: bool,
    /// Show what would be deleted, and delete nothing.
    #[arg(long)]
    dry_run: bool,
}

fn amount(of: Amount) -> Value {
    json!({"objects": of.objects, "bytes": of.bytes})
}

fn told(of: Amount) -> String {
    format!("{} in {} objects", human_size(of.bytes), of.objects)
}

pub fn run(args: Args, output: &Output) -> Outcome {
    if args.grace < LEAST_GRACE && !args.force {
        let what = format!(
            "a grace of {} is too short: whoever mounted a store before it was published anew \
             would lose what is not read yet",
            human_span(args.grace)
        );
        return Err(Failure::new(Exit::Usage, what).hint("if nobody has: --force"));
    }
    let (name, place) = places::place(&args.place)?;
    let options = CollectOptions { grace: args.grace, dry_run: args.dry_run };
    let bar = output.progress("collecting", None, false);
    let done = place.collect(&Machine::default(), options, &mut |now| {
        match now.due {
            0 => bar.set_position(now.objects),
            due => {
                bar.set_length(due);
                bar.set_position(now.deleted);
            }
        }
        Ok(())
    });
    bar.finish_and_clear();
    let done = done.map_err(|e| failures::of_database(format!("cannot collect in {name}"), e))?;
    let mut text = format!(
        "{}: {} stores and {} forks refer to {}\n",
        show(name.as_bytes()),
        done.stores,
        done.forks,
        told(done.kept)
    );
    if done.current.objects > 0 {
        text += &format!("of publications that may be under way: {}\n", told(done.current));
    }
    let verb = if args.dry_run { "would be deleted" } else { "deleted" };
    text += &format!("{verb}: {}\n", told(done.deleted));
    let (found, grace) = (done.found, human_span(args.grace));
    text += &format!("found now, to be deleted after {grace}: {}\n", told(found));
    if done.waiting.objects > 0 {
        text += &format!("found before, not {grace} ago yet: {}\n", told(done.waiting));
    }
    if done.expired_forks > 0 {
        text += &format!("forks that have expired: {}\n", done.expired_forks);
    }
    if done.unknown.objects > 0 {
        text += &format!("left alone, not of this program: {}\n", told(done.unknown));
    }
    let value = json!({
        "place": name, "dry_run": args.dry_run, "grace_seconds": args.grace.as_secs(),
        "stores": done.stores, "forks": done.forks, "expired_forks": done.expired_forks,
        "kept": amount(done.kept), "current": amount(done.current), "found": amount(done.found),
        "waiting": amount(done.waiting), "deleted": amount(done.deleted),
        "unknown": amount(done.unknown),
    });
    output.print(text, value)
}
