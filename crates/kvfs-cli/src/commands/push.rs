//! `kvfs push`: publishes a store to object storage.

use std::path::{Path, PathBuf};

use kvdb::RemoteStore;
use kvdb_server::Reply;
use places::Address;
use serde_json::{Value, json};

use crate::support::mounts::live::{count, object};
use crate::support::mounts::sockets;
use crate::support::serving::publications::{publish, value};
use crate::support::stores::connection::Connection;
use crate::support::stores::store::{self, Access};
use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::{show, with_paths};

/// Publish a store in a shared folder or a bucket, for readers and forks on any machine.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  kvfs push my.kvfs dir:/srv/stores/work       everything: files, keys, snapshots, clones
  kvfs push /mnt/work dir:/srv/stores/work     a mounted store goes on while it is published
  kvfs mount dir:/srv/stores/work /mnt/there   on any machine: data is fetched when read
  kvfs fork dir:/srv/stores/work mine.kvfs     on any machine: a writable fork, immediately

Only new data is written. The previous publication stays in place until the new one is complete, \
and remains readable for its current readers. Keys, region and endpoint of a bucket are found \
where other tools find them: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, \
AWS_ENDPOINT_URL, AWS_PROFILE, ~/.aws, the role of the machine; for a mounted store, in the \
environment of its daemon. If a publication is interrupted, the next one continues it. A name \
belongs to one store.")]
pub struct Args {
    /// File of a store, or the directory that it is mounted on.
    store: PathBuf,
    /// Address to publish to: dir:FOLDER/NAME (the folder is created), or s3://BUCKET/NAME.
    to: PathBuf,
    /// Publish even if the store was written at its address since, and replace that publication.
    /// Only for a store that is not mounted.
    #[arg(long)]
    take: bool,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let to = Address::required(&args.to)?;
    // Report a wrong name or an unsuitable server before anything else is done.
    let store = to.store(true)?;
    check(&to, &store, output)?;
    let is_mounted = args.store.is_dir() || sockets::served(&args.store)?.is_some();
    let published = match is_mounted {
        true if args.take => {
            let refused = format!("{} is mounted", args.store.shown());
            return Err(Failure::new(Exit::Busy, refused).hint("unmount it first: kvfs umount"));
        }
        true => of_mounted(&args.store, &to, output)?,
        false => of_file(&args.store, &store, args.take, output)?,
    };
    let of = |name: &str| count(&published[name]);
    let text = format!(
        "published {} as generation {}: {} in {} objects, of {} in the store",
        show(to.to_string().as_bytes()),
        of("generation"),
        human_size(of("bytes")),
        of("objects"),
        human_size(of("live_bytes")),
    );
    let value = json!({"to": to.to_string(), "published": published});
    output.print(text, with_paths(value, &[("store", Some(&args.store))]))
}

/// Before the first store is published there, refuses a server that does not support the
/// conditional writes that heads depend on.
pub fn check(to: &Address, store: &RemoteStore, output: &Output) -> Outcome {
    if !places::needs_trial(to, store)? {
        return Ok(());
    }
    let bar = output.progress("trying the server", None, false);
    let tried = places::trial(to);
    bar.finish_and_clear();
    Ok(tried?)
}

fn of_file(file: &Path, to: &RemoteStore, take: bool, output: &Output) -> Outcome<Value> {
    let store = store::open_waiting(file, Access::ReadWrite, None)?;
    let bar = output.progress("publishing", Some(0), false);
    let published = publish(&store.db, to, take, &bar).and_then(|(mut publisher, stats)| {
        // If the store is written at its address, the publisher was opened for this publication
        // only.
        publisher.close().map(|()| stats)
    });
    bar.finish_and_clear();
    store.close()?;
    published
        .map(value)
        .map_err(|e| failures::of_database(format!("cannot publish {}", file.shown()), e))
}

fn of_mounted(target: &Path, to: &Address, output: &Output) -> Outcome<Value> {
    let mut connection = Connection::open(target, false)?;
    let bar = output.progress("publishing", None, false);
    let reply: Outcome<Reply> = connection.call(&[b"KVFS.PUSH", to.to_string().as_bytes()]);
    bar.finish_and_clear();
    let value = object(reply?)?;
    connection.close()?;
    Ok(value)
}
