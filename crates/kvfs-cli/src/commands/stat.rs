//! `kvfs stat`: shows the contents and the statistics of a store, or the attributes of a file in
//! it.
//!
//! The statistics of a mounted store come from the running daemon, through its socket. For a store
//! that is not mounted, they are those after opening it for reading.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvdb_server::{Client, Reply};
use serde_json::{Map, Value, json};

use self::shown::show;
use crate::support::machine::paths;
use crate::support::mounts::daemons::Record;
use crate::support::mounts::mounted::Mounted;
use crate::support::mounts::place::{self, Place};
use crate::support::mounts::{sockets, waiting};
use crate::support::serving::{figures, guest, statistics};
use crate::support::stores::files::Files;
use crate::support::stores::store::{self, Access};
use crate::support::stores::walks::Walk;
use crate::support::stores::{clones, tree};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

mod shown;

/// Show space, dictionaries, runs and amplification of a store, or the attributes of a file in it.
#[derive(clap::Args)]
pub struct Args {
    /// Directory a store is mounted on, or the file of a store; or a clone, to show its limits.
    target: PathBuf,
    /// File in the store, to show its attributes.
    path: Option<OsString>,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    if let Some(path) = &args.path {
        return file(&args.target, path.as_bytes(), output);
    }
    if let Some(name) = clone_at(&args.target)? {
        return clone(&args.target, &name, output);
    }
    let full = paths::full_path(&args.target)
        .map_err(|e| Failure::io(format!("cannot find {}", args.target.shown()), &e))?;
    let record = Record::all().into_iter().find(|r| r.store == full || r.mount_point == full);
    place::must_be_the_store(&args.target)?;
    let all = match (sockets::socket_of(&args.target)?, record) {
        (Some(socket), record) => of_daemon(&socket, record.as_ref())?,
        (None, Some(record)) => of_client(&record)?,
        (None, None) if args.target.is_dir() => {
            let what = format!(
                "{} is neither a store nor the directory of a mounted one",
                args.target.shown()
            );
            return Err(Failure::new(Exit::NotFound, what)
                .hint("mount the store there, or give the store's file"));
        }
        (None, None) => of_file(&args.target)?,
    };
    let all = Value::Object(all);
    output.print(show(&all), &all)
}

/// Returns the statistics of a mounted store, from its daemon.
fn of_daemon(socket: &Path, record: Option<&Record>) -> Outcome<Map<String, Value>> {
    let cannot =
        |e| Failure::io(format!("cannot ask the store's daemon at {}", socket.shown()), &e);
    let _waiting = waiting::on(socket);
    let mut client = Client::connect(socket).map_err(cannot)?;
    let reply = client.call(&[b"KVFS.STAT"]).map_err(cannot)?;
    let listed = client.call(&clones::LIST.map(str::as_bytes)).map_err(cannot)?;
    let stat: Option<Value> = match &reply {
        Reply::Bulk(json) => serde_json::from_slice(json).ok(),
        _ => None,
    };
    let Some(mut stat) = stat else {
        let what = format!("the daemon at {} gave no statistics", socket.shown());
        return Err(Failure::new(Exit::Failed, what));
    };
    let mut all = Map::new();
    if let Value::Object(store) = stat["store"].take() {
        all.extend(store);
    }
    all.insert("clients".into(), stat["server"].take());
    all.insert("clones".into(), json!(clones::of_reply(listed)?));
    let unknown = || text::with_paths(json!({}), &[("socket", Some(socket))]);
    all.insert("daemon".into(), record.map_or_else(unknown, daemon));
    Ok(all)
}

/// Returns the statistics of a mount whose store a server has.
fn of_client(record: &Record) -> Outcome<Map<String, Value>> {
    let mut all = Map::new();
    all.insert("daemon".into(), daemon(record));
    if let Some(mut status) = guest::ask(record, "status")? {
        // A client that knows the key may use the transaction, so it is not shown.
        status.as_object_mut().and_then(|status| status.remove("key"));
        all.insert("server".into(), status["server"].take());
        let what = match status["result"].as_str() {
            Some("lease" | "lost") => "lease",
            _ if status["id"].is_null() => "snapshot",
            _ => "transaction",
        };
        all.insert(what.into(), status);
    }
    Ok(all)
}

/// Returns the statistics of a store that is not mounted, after opening it.
fn of_file(target: &Path) -> Outcome<Map<String, Value>> {
    let mut all = Map::new();
    let store = store::open_waiting(target, Access::ReadOnly, None)?;
    all.extend(figures::engine(&store.db.stats()));
    if let Some(remote) = store.db.remote_stats() {
        all.insert("remote".into(), figures::remote(&remote));
    }
    let losses = kvfs::losses(&store.db).unwrap_or_default();
    all.insert("lost".into(), statistics::lost(losses));
    all.insert("clones".into(), json!(clones::of_store(&store.db)));
    store.close()?;
    Ok(all)
}

/// Returns the clone that a path names. Returns `None` for a path within a clone, and for a mount
/// of a clone.
fn clone_at(target: &Path) -> Outcome<Option<String>> {
    let place = place::of_target(target)?;
    let named = |place: Place| place.view.clone_name().map(String::from);
    Ok(place.filter(|place| !place.bound && place.rest.as_os_str().is_empty()).and_then(named))
}

/// Shows one clone.
fn clone(target: &Path, name: &str, output: &Output) -> Outcome {
    let mut mounted = Mounted::find_view(target)?;
    let all = clones::of_reply(mounted.call(&clones::LIST.map(str::as_bytes))?)?;
    let found = all.into_iter().find(|info| info["name"] == *name).ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("there is no clone {}", text::show(name.as_bytes())))
    })?;
    output.print(clones::line(&found), found)
}

fn daemon(record: &Record) -> Value {
    let paths = [
        ("store", Some(&*record.store)),
        ("mount_point", Some(&*record.mount_point)),
        ("socket", record.socket.as_deref()),
        ("log", record.log.as_deref()),
    ];
    let value = json!({
        "pid": record.pid, "listen": record.listen, "metrics": record.metrics,
        "begun_anew": record.begun_anew.as_ref().map(|anew| anew.count),
        "last_end": record.begun_anew.as_ref().and_then(|anew| anew.last.as_ref()),
    });
    text::with_paths(value, &paths)
}

/// Returns the units of 512 bytes that the content of a file takes as it is stored, of which the
/// kernel knows only the pages. The pages are the result if the store cannot be asked.
fn stored_blocks(files: &Files, target: &Path, path: &[u8], attr: &kvfs::Attr) -> u64 {
    let asked = match files {
        _ if attr.kind != kvfs::FileKind::File => None,
        Files::Store { fs, .. } => {
            let first = fs
                .walk(attr.ino)
                .and_then(|mut walk| Ok(walk.next()?.map(|file| file.attr.blocks)));
            first.ok().flatten()
        }
        Files::Mount(_) => {
            // A leading slash is relative to the target, too.
            let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
            let full = target.join(OsStr::from_bytes(&path[start..]));
            let first = Walk::mounted(&full).and_then(|mut walk| walk.next());
            // On a link, the host's resolution may lead to another file than the store's.
            let same = |of: &kvfs::Attr| (of.size, of.mtime) == (attr.size, attr.mtime);
            first.ok().flatten().filter(|file| same(&file.attr)).map(|file| file.attr.blocks)
        }
    };
    asked.unwrap_or(attr.blocks)
}

fn file(target: &Path, path: &[u8], output: &Output) -> Outcome {
    let files = Files::of(target)?;
    let attr = files.look(path, false)?;
    let stored = stored_blocks(&files, target, path, &attr).saturating_mul(512);
    let mut object = Map::new();
    text::put(&mut object, "path", path);
    object.extend(files.json(&attr));
    object.insert("stored".into(), stored.into());
    let names = files.xattrs(path, &attr)?;
    object.insert("xattrs".into(), names.iter().map(|n| Value::from(text::show(n))).collect());
    let mut lines = format!("{}\n", text::show(path));
    let mut line = |name: &str, value: String| {
        let _ = writeln!(lines, "  {name:<9} {value}");
    };
    line("kind", tree::kind_name(attr.kind).into());
    if attr.kind == kvfs::FileKind::Symlink {
        let to = files.target(path, &attr)?;
        line("target", text::show(&to));
        text::put(&mut object, "target", &to);
    }
    line("inode", attr.ino.to_string());
    line("mode", format!("{} ({:04o})", tree::mode_text(attr.kind, attr.perm), attr.perm));
    line("owner", format!("{}:{}", attr.uid, attr.gid));
    line("links", attr.nlink.to_string());
    line("size", format!("{} ({} stored)", attr.size, human_size(stored)));
    for (name, time) in [
        ("accessed", attr.atime),
        ("modified", attr.mtime),
        ("changed", attr.ctime),
        ("made", attr.btime),
    ] {
        if name == "made" && !files.know_births() {
            continue;
        }
        line(name, format!("{}.{:09} UTC", tree::time_text(time), time.nanos));
    }
    for name in names {
        line("xattr", text::show(&name));
    }
    files.close()?;
    output.print(lines, &object)
}
