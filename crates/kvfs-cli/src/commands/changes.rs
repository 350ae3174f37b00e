//! `kvfs changes`: prints the keys and paths that commits to a mounted store or a clone change, as
//! they happen.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use kvdb_server::Reply;
use serde_json::{Map, Value, json};

use crate::support::mounts::mounted::Mounted;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output, taken};
use crate::support::terminal::text;

/// Show the files and keys changed by commits to a mounted store or to a clone, one a line.
#[derive(clap::Args)]
#[command(after_help = "\
Each line has the number of the commit, and either a path and its kind of change (made, changed, \
removed), or a dictionary, a key and the current type of the key; for a deleted range its bounds. \
The contents of files and keys are not printed. --json prints an object a line; the last line has \
the position after the changes, from which --since continues.

A clone has its own list, of the commits to that clone. The daemon keeps the newest commits from \
the first use of this command on, and forgets them when it ends. If the commits since POSITION \
are no longer kept, the command fails; it never leaves changes out. Start again without --since \
then, and compare with a snapshot (kvfs diff).

  kvfs changes /mnt --follow                        # new commits as they are made
  kvfs changes /mnt/.kvfs/clone/trial --follow      # commits to a clone
  at=$(kvfs changes /mnt); make; kvfs changes /mnt --since $at")]
pub struct Args {
    /// Directory a store is mounted on, or a clone in it.
    mount: PathBuf,
    /// Keep printing new commits until interrupted.
    #[arg(long, short = 'f')]
    follow: bool,
    /// Show the changes since POSITION, which this command printed before, or since the commit with
    /// this number. Without it, and without --follow, print only the current position.
    #[arg(long, value_name = "POSITION")]
    since: Option<String>,
}

/// The time that the daemon waits for new changes before it replies.
const WAIT: Duration = Duration::from_secs(5);
/// The number of changes requested at once.
const COUNT: &str = "1000";

fn odd() -> Failure {
    Failure::new(Exit::Failed, "the store's daemon gave an unexpected list of changes")
}

fn text_of(reply: &Reply) -> Outcome<String> {
    match reply {
        Reply::Bulk(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        _ => Err(odd()),
    }
}

/// Formats one change as a line and as an object.
fn described(row: &Reply) -> Outcome<(String, Value)> {
    let Reply::Array(fields) = row else { return Err(odd()) };
    let [Reply::Integer(number), dictionary, what, first, second] = &fields[..] else {
        return Err(odd());
    };
    let (dictionary, what) = (text_of(dictionary)?, text_of(what)?);
    let shown = |reply: &Reply| match reply {
        Reply::Bulk(bytes) => text::show(bytes),
        _ => String::new(),
    };
    let mut object = Map::new();
    object.insert("commit".into(), json!(number));
    let mut put = |name: &str, reply: &Reply| match reply {
        Reply::Bulk(bytes) => text::put(&mut object, name, bytes),
        _ => drop(object.insert(name.into(), Value::Null)),
    };
    let line = match what.as_str() {
        "file" => {
            put("path", first);
            put("change", second);
            format!("{:8}/{}", shown(second), shown(first))
        }
        "more-files" => {
            put("path", &Reply::Null);
            put("change", &Reply::Bulk(b"unlisted".to_vec()));
            "many files: the commit is too large for a list".to_owned()
        }
        "key" => {
            put("dictionary", &Reply::Bulk(dictionary.clone().into_bytes()));
            put("key", first);
            put("type", second);
            let kind = if *second == Reply::Null { "removed".into() } else { shown(second) };
            format!("{kind:8}{}: {}", text::show(dictionary.as_bytes()), shown(first))
        }
        "range" => {
            put("dictionary", &Reply::Bulk(dictionary.clone().into_bytes()));
            put("start", first);
            put("end", second);
            let dictionary = text::show(dictionary.as_bytes());
            format!("{:8}{dictionary}: from {} to {}", "removed", shown(first), shown(second))
        }
        _ => return Err(odd()),
    };
    Ok((format!("{number:>8}  {line}\n"), Value::Object(object)))
}

/// Prints to standard output. Returns false if it is a pipe whose other end is closed, which is not
/// a failure.
fn print(text: &str) -> Outcome<bool> {
    let mut out = io::stdout().lock();
    taken(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let mut mounted = Mounted::find_branch(&args.mount)?;
    mounted.use_branch()?;
    let now = text_of(&mounted.call(&[b"CHANGES", b"NOW"])?)?;
    let mut position = match (args.since, args.follow) {
        (Some(since), _) => since,
        (None, true) => now,
        (None, false) => return output.print(&now, json!({"position": now})),
    };
    let wait = WAIT.as_millis().to_string();
    loop {
        let mut words: Vec<&[u8]> = vec![b"CHANGES", b"SINCE", position.as_bytes(), b"FILES"];
        words.extend([&b"COUNT"[..], COUNT.as_bytes()]);
        if args.follow {
            words.extend([&b"BLOCK"[..], wait.as_bytes()]);
        }
        let Reply::Array(reply) = mounted.call(&words)? else { return Err(odd()) };
        let [next, Reply::Array(rows)] = &reply[..] else { return Err(odd()) };
        let next = text_of(next)?;
        let mut said = String::new();
        for row in rows {
            let (line, object) = described(row)?;
            said.push_str(&match output.is_json() {
                true => format!("{}\n", text::show_json(&object).unwrap_or_default()),
                false => line,
            });
        }
        let is_end = next == position;
        position = next;
        if output.is_json() && (if args.follow { !rows.is_empty() } else { is_end }) {
            said.push_str(&format!("{}\n", json!({"position": position})));
        }
        if !print(&said)? || is_end && !args.follow {
            return Ok(());
        }
    }
}
