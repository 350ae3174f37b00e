//! The `kvfs` command: `commands` has a module for each of its commands, `support` what they share.
//!
//! This file dispatches the commands without knowing what they do.

mod commands;
mod support;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use commands::{
    abort, bench, cat, changes, check, clone, clone_tree, commit, compact, completions, create,
    defrag, dict, diff, doctor, du, explore, export, find, fork, forks, fsmonitor, gc, history,
    import, kv, list, ls, man, mcp, merge, mount, pull, push, rebase, receive, restore, rm, run,
    salvage, scrub, secret, send, serve, set, show, snapshot, stat, top, txn, umount, undo,
    unpublish, web,
};
use support::machine::destination;
use support::mounts::waiting;
use support::serving::scripts;
use support::terminal::output::Output;
use support::terminal::{output, usage};

/// One store that is an ordered, transactional key-value database and a POSIX file system.
#[derive(Parser)]
#[command(name = "kvfs", version, max_term_width = 120, after_help = output::EXIT_CODES)]
struct Cli {
    /// Print machine-readable JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Create(create::Args),
    Mount(Box<mount::Args>),
    Umount(umount::Args),
    Commit(commit::Args),
    Abort(abort::Args),
    List(list::Args),
    Kv(kv::Args),
    Dict(dict::Args),
    Run(run::Args),
    Explore(explore::Args),
    Txn(txn::Args),
    Mcp(mcp::Args),
    Serve(serve::Args),
    Web(web::Args),
    Top(top::Args),
    Snapshot(snapshot::Args),
    Clone(clone::Args),
    Merge(merge::Args),
    Rebase(rebase::RebaseArgs),
    Diff(diff::Args),
    Restore(restore::Args),
    Undo(undo::Args),
    Changes(changes::Args),
    History(history::Args),
    Show(show::Args),
    Send(send::SendArgs),
    Receive(receive::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Stat(stat::Args),
    Check(check::Args),
    Scrub(scrub::Args),
    Salvage(salvage::Args),
    CloneTree(clone_tree::Args),
    Rm(rm::Args),
    Du(du::Args),
    Set(set::Args),
    Find(find::Args),
    Defrag(defrag::Args),
    Compact(compact::Args),
    Import(import::Args),
    Export(export::Args),
    Push(push::Args),
    Pull(pull::Args),
    Fork(fork::Args),
    Fsmonitor(fsmonitor::Args),
    Forks(forks::Args),
    Gc(gc::Args),
    Unpublish(unpublish::Args),
    Secret(secret::Args),
    Bench(bench::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// Resets SIGCHLD. If the parent process ignores it, so does this one: the kernel then discards the
/// exit status of children, and waiting for a child would block forever or fail to return its
/// status. Programs started by this process inherit the default, too.
fn hear_of_children() {
    // SAFETY: the default has no handler, and no other thread exists yet.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

fn main() -> ExitCode {
    hear_of_children();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = mount::run_as_mount_helper(&arguments, Cli::command) {
        return code;
    }
    if let [_, word] = &arguments[..]
        && word == scripts::WORD
    {
        return kvdb_lua::run_worker();
    }
    let cli = match Cli::try_parse_from(kv::with_dashes(find::as_options(arguments.clone()))) {
        Ok(cli) => cli,
        Err(error) => return usage::wrong(error, &arguments),
    };
    let output = Output::new(cli.json);
    if cli.json {
        waiting::speak_json();
    }
    // A command that runs for long waits by itself, for as long as a request takes.
    let goes_on = matches!(
        cli.command,
        Command::Run(_)
            | Command::Explore(_)
            | Command::Mount(_)
            | Command::Umount(_)
            | Command::Mcp(_)
            | Command::Serve(_)
            | Command::Web(_)
            | Command::Top(_)
    );
    let _waiting = if goes_on { Vec::new() } else { waiting::on_arguments(&arguments) };
    if let Err(failure) = destination::judge_standard_output() {
        return output.finish(Err(failure));
    }
    let outcome = match cli.command {
        // These commands exit with codes of their own.
        Command::Run(args) => return run::run(args, &output),
        Command::Explore(args) => return explore::run(args, &output),
        Command::Commit(args) => return commit::run(args, &output),
        Command::Abort(args) => return abort::run(args, &output),
        Command::Txn(args) => return txn::run(args, &output),
        Command::Merge(args) => return merge::run(args, &output),
        Command::Rebase(args) => return rebase::run(args, &output),
        Command::Create(args) => create::run(args, &output),
        Command::Mount(args) => mount::run(*args, &output),
        Command::Umount(args) => umount::run(args, &output),
        Command::List(args) => list::run(args, &output),
        Command::Mcp(args) => mcp::run(args, &output),
        Command::Serve(args) => serve::run(args, &output),
        Command::Web(args) => web::run(args, &output),
        Command::Top(args) => top::run(args, &output),
        Command::Kv(args) => kv::run(args, &output),
        Command::Dict(args) => dict::run(args, &output),
        Command::Compact(args) => compact::run(args, &output),
        Command::Snapshot(args) => snapshot::run(args, &output),
        Command::Clone(args) => clone::run(args, &output),
        Command::Diff(args) => diff::run(args, &output),
        Command::Restore(args) => restore::run(args, &output),
        Command::Changes(args) => changes::run(args, &output),
        Command::Undo(args) => undo::run(args, &output),
        Command::History(args) => history::run(args, &output),
        Command::Show(args) => show::run(args, &output),
        Command::Send(args) => send::send(args, &output),
        Command::Receive(args) => receive::run(args, &output),
        Command::Ls(args) => ls::run(args, &output),
        Command::Cat(args) => cat::run(args, &output),
        Command::Stat(args) => stat::run(args, &output),
        Command::Check(args) => check::run(args, &output),
        Command::Salvage(args) => salvage::run(args, &output),
        Command::Scrub(args) => scrub::run(args, &output),
        Command::CloneTree(args) => clone_tree::run(args, &output),
        Command::Du(args) => du::run(args, &output),
        Command::Set(args) => set::run(args, &output),
        Command::Find(args) => find::run(args, &output),
        Command::Rm(args) => rm::run(args, &output),
        Command::Defrag(args) => defrag::run(args, &output),
        Command::Import(args) => import::run(args, &output),
        Command::Export(args) => export::run(args, &output),
        Command::Pull(args) => pull::run(args, &output),
        Command::Push(args) => push::run(args, &output),
        Command::Fork(args) => fork::run(args, &output),
        Command::Fsmonitor(args) => fsmonitor::run(args, &output),
        Command::Forks(args) => forks::run(args, &output),
        Command::Gc(args) => gc::run(args, &output),
        Command::Unpublish(args) => unpublish::run(args, &output),
        Command::Secret(args) => secret::run(args, &output),
        Command::Bench(args) => bench::run(args, &output),
        Command::Doctor(args) => doctor::run(args, &output),
        Command::Completions(args) => completions::run(args, Cli::command(), &output),
        Command::Man(args) => man::run(args, Cli::command(), &output),
    };
    output.finish(outcome)
}
