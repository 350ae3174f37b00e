//! `kvfs ls`: lists a directory of a store.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use kvfs::{Attr, FileKind};
use serde_json::Value;

use crate::support::archives::export_tree::raise_open_files;
use crate::support::stores::files::Files;
use crate::support::stores::tree;
use crate::support::terminal::list::List;
use crate::support::terminal::output::{Outcome, Output};
use crate::support::terminal::text;

/// List a directory of a store.
#[derive(clap::Args)]
#[command(after_help = "\
TARGET is the file of a store, mounted or not, or a directory of a mounted store or of one of its \
views, such as /mnt/.kvfs/snapshot/monday; PATH is relative to that directory. A mounted store is \
read through the mount, so the modes of its directories must allow you to list them.")]
pub struct Args {
    /// The store's file, or a directory where it is mounted.
    target: PathBuf,
    /// Directory or file to list.
    #[arg(default_value = "/")]
    path: OsString,
    /// Show mode, links, owner, group, size and time (UTC) of each entry.
    #[arg(short = 'l')]
    long: bool,
    /// List directories recursively.
    #[arg(short = 'R', long)]
    recursive: bool,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let files = Files::of(&args.target)?;
    let path = args.path.as_bytes();
    let attr = files.look(path, true)?;
    let mut list = List::begin(output)?;
    if attr.kind == FileKind::Dir {
        if args.recursive {
            raise_open_files();
        }
        // Open listings: (listing, length of its path). They share one path.
        let mut open = vec![(files.list(path, &attr)?, 0)];
        let mut walked = tree::Walked::from(attr.ino);
        let mut below = Vec::new();
        while let Some((listing, len)) = open.last_mut() {
            below.truncate(*len);
            let Some(entry) = files.next(listing, path)? else {
                open.pop();
                continue;
            };
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(&entry.name);
            if !show(&files, &mut list, &args, &below, &entry.attr, entry.target.as_deref())? {
                return files.close();
            }
            if args.recursive && entry.attr.kind == FileKind::Dir {
                let failed = |e| tree::failure(format!("cannot list {}", text::show(path)), e);
                walked.enter(entry.attr.ino).map_err(failed)?;
                let way = [path, b"/", &below].concat();
                open.push((files.list(&way, &entry.attr)?, below.len()));
            }
        }
    } else {
        show(&files, &mut list, &args, path, &attr, None)?;
    }
    list.end()?;
    files.close()
}

fn show(
    files: &Files,
    list: &mut List<'_>,
    args: &Args,
    name: &[u8],
    attr: &Attr,
    target: Option<&[u8]>,
) -> Outcome<bool> {
    let line = if args.long {
        let size = match attr.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                let (major, minor) = tree::device_numbers(attr.rdev);
                format!("{major}, {minor}")
            }
            _ => attr.size.to_string(),
        };
        let arrow = target.map(|t| format!(" -> {}", text::show(t))).unwrap_or_default();
        let mode = tree::mode_text(attr.kind, attr.perm);
        let time = tree::time_text(attr.mtime);
        format!(
            "{mode} {:>3} {:>5} {:>5} {size:>12} {time} {}{arrow}",
            attr.nlink,
            attr.uid,
            attr.gid,
            text::show(name)
        )
    } else {
        text::show(name)
    };
    list.item(&line, || {
        let mut object = serde_json::Map::new();
        text::put(&mut object, "name", name);
        if let Some(target) = target {
            text::put(&mut object, "target", target);
        }
        object.extend(files.json(attr));
        Value::Object(object)
    })
}
