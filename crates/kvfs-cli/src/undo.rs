//! `kvfs undo`: the commit of a transaction undone by a commit of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvdb_server::{Client, Reply};
use kvfs::Views;
use serde_json::json;

use crate::changes::{Changes, Detail};
use crate::mounted::{self, refused};
use crate::output::{Exit, Failure, Outcome, Output};
use crate::sockets;
use crate::store::{self, Access, Store};
use crate::text::show;
use crate::transactions::OverFiles;
use crate::{place, tree, waiting};

/// Undo the last commit of a transaction, files and keys, by a new commit.
#[derive(clap::Args)]
#[command(after_help = "\
What the transaction has changed becomes what it was, and all that others have done since stays. \
Where they have changed the same file or key, nothing is undone, and it is said which. Undoing \
is a commit itself: done twice, it brings back what was undone.

  kvfs run /mnt -- make install
  kvfs undo /mnt --dry-run            # what would be undone?
  kvfs undo /mnt
  kvfs history /mnt                   # the commits that can be undone
  kvfs undo /mnt --commit 1843

The commits of `kvfs run`, `txn commit`, `restore`, `import`, `undo`, of agents and of clients \
that ask for it can be undone (TXN BEGIN UNDOABLE): the newest 16, for a day, and none in a \
store that was full since. Until then the space of what they have removed is kept.")]
pub struct Args {
    /// The directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file of a
    /// store that is not mounted.
    target: PathBuf,
    /// Not the last commit but this one, by its number in `kvfs history`.
    #[arg(long, short = 'c', value_name = "NUMBER")]
    commit: Option<u64>,
    /// One line for all: how much was added, changed, removed.
    #[arg(long)]
    stat: bool,
    /// Also what lies below directories that are added or removed by it.
    #[arg(long, short = 'a')]
    all: bool,
    /// Not through a pager: on a terminal it is KVFS_PAGER, PAGER or less.
    #[arg(long)]
    no_pager: bool,
    /// Say what would be undone, and do nothing.
    #[arg(long)]
    dry_run: bool,
}

/// Attempts while others change the same at that moment.
const ATTEMPTS: usize = 3;

/// What was undone, or would be.
struct Undone {
    number: u64,
    label: String,
    changes: Changes,
}

fn odd() -> Failure {
    Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply")
}

fn call(client: &mut Client, words: &[&str]) -> Outcome<Reply> {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let reply = client.call(&words);
    match reply.map_err(|e| Failure::io("cannot talk to the store's daemon", &e))? {
        Reply::Error(text) => Err(refused(&text)),
        reply => Ok(reply),
    }
}

fn undo(client: &mut Client, args: &Args) -> Outcome<Undone> {
    let number = args.commit.map(|number| number.to_string());
    let mut words = vec!["TXN", "UNDO"];
    words.extend(number.as_deref());
    words.push("ATTACHED");
    let Reply::Array(reply) = call(client, &words)? else { return Err(odd()) };
    let [Reply::Integer(id), Reply::Integer(number), Reply::Bulk(label), Reply::Array(changed)] =
        &reply[..]
    else {
        return Err(odd());
    };
    let (id, number) = (id.to_string(), u64::try_from(*number).unwrap_or(0));
    let label = String::from_utf8_lossy(label).into_owned();
    let mut files = vec!["TXN", "FILES", &id];
    files.extend((!args.all).then_some("COLLAPSED"));
    let looked = match changed.is_empty() {
        true => call(client, &files).and_then(|files| {
            Changes::of_replies(files, call(client, &["TXN", "CHANGES", &id, "BEFORE"])?)
        }),
        false => Err(stands_against(number, &label, changed)),
    };
    let done = looked.and_then(|changes| match args.dry_run {
        true => Ok(changes),
        false => call(client, &["TXN", "COMMIT", &id, "SYNC"]).map(|_| changes),
    });
    if done.is_err() || args.dry_run {
        // One that found a conflict has ended.
        let _ = call(client, &["TXN", "ABORT", &id]);
    }
    Ok(Undone { number, label, changes: done? })
}

/// Others have changed the same since.
pub fn stands_against(number: u64, label: &str, changed: &[Reply]) -> Failure {
    const SHOWN: usize = 8;
    let names = changed.iter().filter_map(|name| match name {
        Reply::Bulk(name) => Some(show(name)),
        _ => None,
    });
    let names: Vec<String> = names.collect();
    let more = names.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let which = names[..names.len().min(SHOWN)].join(", ");
    let what = format!(
        "commit {number} ({}) cannot be undone: it was changed since then: {which}{more}",
        show(label.as_bytes())
    );
    Failure::new(Exit::Conflict, what)
        .hint("nothing was changed; bring single files back from a snapshot with kvfs restore")
}

fn again(client: &mut Client, args: &Args) -> Outcome<Undone> {
    for _ in 1..ATTEMPTS {
        match undo(client, args) {
            Err(failure) if failure.exit == Exit::Conflict => {}
            done => return done,
        }
    }
    undo(client, args)
}

fn here(store: &Store, args: &Args) -> Outcome<Undone> {
    let cannot = |e: kvfs::Error| tree::failure("cannot undo", e);
    let fs = store.file_system()?;
    let views = Views::new(store.db.clone(), fs);
    let db = store.db.clone();
    let describe: kvdb_server::Describe =
        Arc::new(move |dictionary, start, end| kvfs::describe_keys(&db, dictionary, start, end));
    let over = Arc::new(OverFiles(views.clone()));
    let mut client = Client::local_over(store.db.clone(), over, describe);
    let done = again(&mut client, args);
    drop(client);
    let down = views.mainline().shutdown().and_then(|()| views.shutdown()).map_err(cannot);
    let done = done?;
    down?;
    Ok(done)
}

fn live(socket: &Path, args: &Args) -> Outcome<Undone> {
    if let Some(id) = mounted::entered(socket) {
        let what = format!("this is inside of transaction {id}, which sees no other commits");
        return Err(Failure::new(Exit::Usage, what).hint("do it from outside"));
    }
    let _waiting = waiting::on(socket);
    let mut client = Client::connect(socket).map_err(|e| {
        Failure::io(format!("cannot reach the store's daemon at {}", socket.display()), &e)
    })?;
    let clone = place::branch_of(&args.target)?;
    if !clone.is_empty() {
        call(&mut client, &["CLONE", "USE", &clone])?;
    }
    again(&mut client, args)
}

pub fn run(args: Args, output: &Output) -> Outcome {
    place::must_be_a_branch(&args.target)?;
    let undone = match sockets::socket_of(&args.target)? {
        Some(socket) => live(&socket, &args)?,
        None if args.target.is_dir() => {
            let what = format!("no store with a socket is mounted at {}", args.target.display());
            return Err(Failure::new(Exit::NotFound, what)
                .hint("mount a store there, or give the store's file"));
        }
        None => {
            let store = store::open_waiting(&args.target, Access::ReadWrite, None)?;
            let done = here(&store, &args);
            let closed = store.close();
            let done = done?;
            closed?;
            done
        }
    };
    let Undone { number, label, changes } = undone;
    let detail = Detail::of_undo(args.stat, args.no_pager);
    let end = if args.dry_run { "nothing was changed" } else { "undone" };
    if !output.is_json() {
        changes.print(detail, output)?;
    }
    let text = format!("commit {number} ({}): {end}\n", show(label.as_bytes()));
    let changes = changes.json(detail);
    output.print(
        text,
        json!({"commit": number, "label": label, "changes": changes, "dry_run": args.dry_run}),
    )
}
