//! `kvfs ls`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use kvfs::{Attr, FileKind, Fs};
use serde_json::Value;

use crate::kv::List;
use crate::output::{Outcome, Output};
use crate::store::{self, Access};
use crate::{text, tree};

/// List a folder of an unmounted store.
#[derive(clap::Args)]
pub struct Args {
    /// The store's file.
    store: PathBuf,
    /// A folder or file in it.
    #[arg(default_value = "/")]
    path: OsString,
    /// Mode, links, owner, group, size and time (UTC) of each.
    #[arg(short = 'l')]
    long: bool,
    /// Everything below, too.
    #[arg(short = 'R', long)]
    recursive: bool,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let store = store::open_waiting(&args.store, Access::ReadOnly, None)?;
    let fs = store.file_system()?;
    let path = args.path.as_bytes();
    let failed = |e| tree::failure(format!("cannot list {}", text::show(path)), e);
    let attr = tree::find(&fs, path)?;
    let mut list = List::begin(output)?;
    if attr.kind == FileKind::Dir {
        // (listing, length of its path): the path is shared by all.
        let mut open = vec![(tree::Listing::new(attr.ino), 0)];
        let mut walked = tree::Walked::from(attr.ino);
        let mut below = Vec::new();
        while let Some((listing, len)) = open.last_mut() {
            below.truncate(*len);
            let Some(entry) = listing.next(&fs).map_err(failed)? else {
                open.pop();
                continue;
            };
            let attr = fs.getattr(entry.ino).map_err(failed)?;
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(&entry.name);
            if !show(&fs, &mut list, &args, &below, &attr)? {
                return store.close();
            }
            if args.recursive && attr.kind == FileKind::Dir {
                walked.enter(attr.ino).map_err(failed)?;
                open.push((tree::Listing::new(attr.ino), below.len()));
            }
        }
    } else {
        show(&fs, &mut list, &args, path, &attr)?;
    }
    list.end()?;
    drop(fs);
    store.close()
}

fn show(fs: &Fs, list: &mut List<'_>, args: &Args, name: &[u8], attr: &Attr) -> Outcome<bool> {
    let target = match attr.kind {
        FileKind::Symlink => Some(
            fs.readlink(attr.ino)
                .map_err(|e| tree::failure(format!("cannot read {}", text::show(name)), e))?,
        ),
        _ => None,
    };
    let line = if args.long {
        let size = match attr.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                let (major, minor) = tree::device_numbers(attr.rdev);
                format!("{major}, {minor}")
            }
            _ => attr.size.to_string(),
        };
        let arrow = target.as_ref().map(|t| format!(" -> {}", text::show(t))).unwrap_or_default();
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
        if let Some(target) = &target {
            text::put(&mut object, "target", target);
        }
        object.extend(tree::attr_json(attr));
        Value::Object(object)
    })
}
