//! `kvfs unpublish`: withdraws a store from object storage.

use std::path::PathBuf;

use env::Machine;
use places::Address;
use serde_json::json;

use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::prompt::Terminal;
use crate::support::terminal::text::show;

/// Unpublish a store in object storage: it can no longer be mounted or forked.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  kvfs unpublish dir:/srv/stores/work

The original of the published store is not changed. Its objects are deleted by kvfs gc after the \
grace period, except those that forks started from and those shared with stores of other names. \
Without a copy elsewhere, the data is then lost. Current mounts can read it until then. A running \
publication of the store fails with an error.")]
pub struct Args {
    /// Address of the store: dir:FOLDER/NAME or s3://BUCKET/NAME.
    store: PathBuf,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let address = Address::required(&args.store)?;
    if address.snapshot.is_some() {
        let what = format!("{address} is a snapshot, and a store is taken back whole");
        return Err(Failure::new(Exit::Usage, what).hint("leave out what begins with @"));
    }
    let store = address.store(false)?;
    let cannot = |e| failures::of_database(format!("cannot take back {address}"), e);
    let head = store.head().map_err(cannot)?;
    let head = head.ok_or_else(|| cannot(kvdb::Error::NoStore(address.to_string())))?;
    let forks = store.forks().map_err(cannot)?.len();
    if !args.yes {
        let mut terminal = Terminal::open("decide beforehand: --yes")
            .map_err(|failure| Failure { exit: Exit::Usage, ..failure })?;
        let shown = show(address.to_string().as_bytes());
        terminal.say(&format!(
            "{shown} is at generation {}, and has {forks} forks.",
            head.generation
        ))?;
        let question = "Take it back, so that kvfs gc deletes it? [y/N] ";
        if terminal.ask(question)?.as_deref() != Some("y") {
            return Err(Failure::new(Exit::Failed, format!("{address} was not changed")));
        }
    }
    let before = store.unpublish(&Machine::default()).map_err(cannot)?;
    let text = format!(
        "took back {}, which was at generation {}; kvfs gc deletes what nothing refers to",
        show(address.to_string().as_bytes()),
        before.generation
    );
    let value = json!({
        "store": address.to_string(), "generation": before.generation, "forks": forks,
    });
    output.print(text, value)
}
