//! `kvfs mcp`: a server of the Model Context Protocol, through which a program that drives a
//! language model works in transactions of a mounted store. The protocol is described in
//! `docs/agents.md`.
//!
//! `wire` is JSON-RPC, `session` handles the requests of a client, `tools` defines the name and
//! parameters of each tool; the tools themselves are in `transactions`, `branches`, `command`,
//! `files` and `keys`.

mod arguments;
mod branches;
mod command;
mod files;
mod keys;
mod session;
mod tools;
mod transactions;
mod wire;

use std::path::PathBuf;

use crate::support::mounts::mounted::Mounted;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use session::Session;

/// Serve a mounted store to an agent, by the Model Context Protocol on standard input and output.
#[derive(clap::Args)]
#[command(after_help = "\
The agent's program starts this command and communicates with it over pipes. Its configuration:

  {\"mcpServers\": {\"kvfs\": {\"command\": \"kvfs\", \"args\": [\"mcp\", \"/mnt\"]}}}

The tools begin transactions, run commands in them, show their changes, read and write files and \
keys, commit and abort, make snapshots and roll back to them, and make branches and merge them. \
Nothing is written outside of a transaction. Uncommitted transactions are aborted when the \
agent's program ends, except those that it was told to keep. To decide about commits yourself:

  kvfs mcp /mnt --without commit --without rollback

The agent then keeps its transaction open, and you inspect it and end it: kvfs txn diff /mnt 17; \
kvfs txn commit /mnt 17")]
pub struct Args {
    /// Directory a store is mounted on.
    mount: PathBuf,
    /// Do not offer this tool; may be repeated.
    #[arg(long, value_name = "TOOL")]
    without: Vec<String>,
    /// Time limit of a command, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Maximum length of the text of an answer, in bytes; longer answers are cut off and marked as
    /// such.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10, value_parser = clap::value_parser!(u64).range(1024..=16 << 20))]
    output_limit: u64,
}

/// Limits of a server.
pub struct Limits {
    /// The longest run time of a command, in seconds.
    pub timeout: u64,
    /// The limit of text in one answer, in bytes.
    pub output: usize,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    if let Some(unknown) = args.without.iter().find(|name| !tools::exists(name)) {
        return Err(Failure::new(Exit::Usage, format!("there is no tool `{unknown}`"))
            .hint(format!("the tools are: {}", tools::names().join(", "))));
    }
    let mut mounted = Mounted::find(&args.mount)?;
    if let Some(id) = mounted.entered() {
        return Err(Failure::new(Exit::Usage, format!("this already runs in transaction {id}"))
            .hint("start it outside of kvfs run: it begins transactions itself"));
    }
    // Programs that `run` starts may only write in transactions, and may not end any.
    mounted.seal()?;
    mounted.use_branch()?;
    let limits = Limits {
        timeout: args.timeout.max(1),
        output: usize::try_from(args.output_limit).unwrap_or(usize::MAX),
    };
    let lines = wire::Lines::of_standard_input();
    let mut session = Session::new(mounted, limits, args.without, lines);
    // Print messages only: they are all that standard output may carry, in either form of output.
    session.serve(|message| output.print_bytes(message).map(drop))
}
