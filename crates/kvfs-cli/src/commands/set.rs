//! `kvfs set`: sets how files are stored.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvfs::{COMPRESS_ATTRIBUTE, Compress, FileKind, Fs};
use rustix::fs::XattrFlags;
use serde_json::{Map, Value, json};

use crate::support::machine::paths;
use crate::support::mounts::daemons::Record;
use crate::support::mounts::place;
use crate::support::stores::store::{self, Access, Store};
use crate::support::stores::tree;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text;

/// Set how files are stored: their compression.
#[derive(clap::Args)]
#[command(after_help = "\
The way of a directory is inherited by the files and directories that are made in it from now on; \
that of a file holds for what is written to it from now on. Data that is stored already stays as \
it is, and is read the same in any way: copy a file to store all of it again.

  none   as it is
  lz4    LZ4: fast; text shrinks to about a half
  zstd   Zstandard: smaller, for several times the work
  auto   LZ4 where it saves something; files that do not compress are tried seldom

The way is the extended attribute user.kvfs.compress of the file or directory. It can be set in \
any view of a mounted store that is written, and setfattr(1) does the same.

  kvfs set /mnt/logs --compress zstd
  kvfs set --store my.kvfs /logs --compress zstd    a store that is not mounted")]
pub struct Args {
    /// Directories and files to set it for.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// The way in which pages are compressed.
    #[arg(long, value_name = "WAY", value_parser = ["none", "lz4", "zstd", "auto"])]
    compress: String,
    /// File of a store that is not mounted; the paths start at its root.
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let Some(way) = Compress::named(args.compress.as_bytes()) else {
        let what = format!("{} is not a way of compression", args.compress);
        return Err(Failure::new(Exit::Usage, what).hint("write none, lz4, zstd or auto"));
    };
    match &args.store {
        Some(path) => {
            let store = store::open_waiting(path, Access::ReadWrite, None)?;
            let set = set_in_store(&store, &args.paths, way);
            let closed = store.close();
            set?;
            closed?;
        }
        None => args.paths.iter().try_for_each(|path| set_in_mount(path, way))?,
    }
    let mut lines = String::new();
    let mut all = Vec::new();
    for path in &args.paths {
        let path = path.as_os_str().as_bytes();
        lines.push_str(&format!("{}: {}\n", text::show(path), way.name()));
        let mut object = Map::new();
        text::put(&mut object, "path", path);
        all.push(Value::Object(object));
    }
    output.print(lines, json!({"compress": way.name(), "set": all}))
}

fn doing(path: &Path) -> String {
    format!("cannot set the compression of {}", text::show(path.as_os_str().as_bytes()))
}

/// Sets the way of a path in a mounted store.
fn set_in_mount(path: &Path, way: Compress) -> Outcome {
    let cannot = |e: std::io::Error| Failure::io(doing(path), &e);
    place::must_let_us_in(path)?;
    let full = paths::full_path(path).map_err(cannot)?;
    let found = place::of(&full).map_err(cannot)?;
    if found.is_none_or(|place| Record::read(&place.mount.device).is_none()) {
        let shown = text::show(path.as_os_str().as_bytes());
        return Err(Failure::new(Exit::NotFound, format!("{shown} is in no mounted store"))
            .hint("of a store that is not mounted: kvfs set --store FILE PATH --compress WAY"));
    }
    let value = way.name().as_bytes();
    rustix::fs::setxattr(&full, COMPRESS_ATTRIBUTE, value, XattrFlags::empty())
        .map_err(|e| cannot(e.into()))
}

/// Sets the way of paths in a store that this process has opened.
fn set_in_store(store: &Store, paths: &[PathBuf], way: Compress) -> Outcome {
    let fs = store.file_system()?;
    let set = paths
        .iter()
        .try_for_each(|path| set_by(&fs, path, way).map_err(|e| tree::failure(doing(path), e)));
    let saved =
        fs.shutdown().map_err(|e| tree::failure("the last changes could not be written", e));
    set.and(saved)
}

fn set_by(fs: &Fs, path: &Path, way: Compress) -> kvfs::Result<()> {
    let found = fs.resolve(path.as_os_str().as_bytes())?;
    if !matches!(found.kind, FileKind::File | FileKind::Dir) {
        return Err(kvfs::Error::NotPermitted("it is neither a file nor a directory"));
    }
    let (name, value) = (COMPRESS_ATTRIBUTE.as_bytes(), way.name().as_bytes());
    fs.setxattr(found.ino, name, value, kvfs::XattrFlags::Any)
}
