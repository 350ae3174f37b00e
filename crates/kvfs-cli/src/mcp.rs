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

use crate::mounted::Mounted;
use crate::output::{Exit, Failure, Outcome, Output};
use session::Session;

/// Serve a mounted store to an agent: the Model Context Protocol on standard input and output.
#[derive(clap::Args)]
#[command(after_help = "\
The agent's program starts it, and speaks with it over the pipes. In the configuration of such a \
program:

  {\"mcpServers\": {\"kvfs\": {\"command\": \"kvfs\", \"args\": [\"mcp\", \"/mnt\"]}}}

Its tools begin transactions, run commands in them, show what they would change, read and write \
files and keys, commit and abort, make snapshots and go back to them, make branches and merge \
them. Nothing is written outside \
of a transaction, and what was not committed when the agent's program goes away is aborted, but \
for transactions that it was told to keep. To decide about commits yourself:

  kvfs mcp /mnt --without commit --without rollback

Then the agent keeps its transaction, and you look at it and end it: kvfs txn diff /mnt 17; kvfs \
txn commit /mnt 17")]
pub struct Args {
    /// The directory a store is mounted on.
    mount: PathBuf,
    /// Do not offer this tool; may be given several times.
    #[arg(long, value_name = "TOOL")]
    without: Vec<String>,
    /// How long a command may run at most.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// How many bytes of text one answer has at most; what is beyond is left out, and that is said.
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
