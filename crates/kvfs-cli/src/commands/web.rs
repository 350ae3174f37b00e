//! `kvfs web`: serves a page on this machine that shows a mounted store, and on which an open
//! transaction can be reviewed, committed and aborted.
//!
//! The server is a process of its own and a client of the store's socket, so it can do what its
//! user may do there, and nothing depends on it. `guard` admits requests, and `answers` answers
//! them; the page itself is in `web/`, and contains no strings of the store: it requests them, and
//! inserts them as text.

mod answers;
mod guard;
mod review;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::support::mounting::mount_options;
use crate::support::mounts::mounted::Mounted;
use crate::support::serving::http::{Handler, Listening};
use crate::support::terminal::output::{Failure, Outcome, Output};
use crate::support::terminal::text::Shown;
use answers::Answers;
use guard::Guard;

/// Show a mounted store live in a browser on this machine: zones, levels, transactions, snapshots.
#[derive(clap::Args)]
#[command(after_help = "\
The command prints an address; open it in a browser on this machine. Ctrl-C ends the command.

  kvfs web /mnt                          # any free port
  kvfs web /mnt --address 127.0.0.1:8080
  kvfs web /mnt --read-only              # without controls
  ssh -L 8080:127.0.0.1:8080 server      # from another machine, with --address as above

The part of the address after the # is a token, new for each start. Requests without it are \
refused, so share the address only with people who may see the names in the store and end \
transactions; browsers do not send that part of an address anywhere. The page shows the zones by \
age and use, levels and spans, requests and commands with their times, and snapshots. An open \
transaction is shown with all its changes (like kvfs txn diff), and can be committed and aborted \
there: a commit includes only the changes that were shown, and fails if the transaction has \
changed since.")]
pub struct Args {
    /// Directory a store is mounted on.
    mount: PathBuf,
    /// Address to listen at, on this machine only. Port 0 selects any free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = mount_options::parse_address)]
    address: SocketAddr,
    /// Only show: transactions can be neither committed nor aborted.
    #[arg(long)]
    read_only: bool,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    // Report problems with the mount here instead of in the browser.
    let mounted = Mounted::find(&args.mount)?;
    let mount_point = mounted.mount_point.clone();
    drop(mounted);
    let cannot = |e| Failure::io("cannot listen to signals", &e);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(cannot)?;
    let token = guard::token().map_err(|e| Failure::io("cannot make a token", &e))?;
    let answers = Answers { mount: args.mount, read_only: args.read_only };
    let handler = |address: SocketAddr| -> Handler {
        let guard = Guard::new(&token, address);
        Arc::new(move |request| guard.answer(request, |request| answers.to(request)))
    };
    let listening = Listening::start(args.address, handler)
        .map_err(|e| Failure::io(format!("cannot listen on {}", args.address), &e))?;
    let address = listening.address();
    let url = format!("http://{address}/#{token}");
    let text = format!("{} is shown at {url}", mount_point.shown());
    output.print(text, json!({"url": url, "address": address.to_string(), "token": token}))?;
    output.note("Ctrl-C ends it");
    signals.forever().next();
    Ok(())
}
