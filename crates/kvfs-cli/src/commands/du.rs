//! `kvfs du`: sums up the contents of directories, read from the dictionaries.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvfs::FileKind;
use serde_json::{Map, Value};

use crate::support::stores::walks::{Walk, joined};
use crate::support::terminal::list::List;
use crate::support::terminal::output::{Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text;

/// Show the contents of directories: bytes, files and directories.
#[derive(clap::Args)]
#[command(after_help = "\
The path lies in a mounted store, or in any of its views (.kvfs/txn/ID, .kvfs/snapshot/NAME); \
everything is read from one consistent state, without a system call for each file. A file counts \
once, even if it has several names. The stored size is that of the contents as they are stored: \
holes do not count, compressed pages of files with a way of compression (kvfs set) count with what \
is left of them, small files that share a block count with their own bytes, and data that files \
share by reference counts for each of them.

  kvfs du /mnt/project --depth 1
  kvfs du --store my.kvfs /                 a store that is not mounted")]
pub struct Args {
    /// Directory or file to measure.
    path: OsString,
    /// File of a store that is not mounted; the path starts at its root.
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Show directories down to this depth.
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    depth: usize,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    bytes: u64,
    stored: u64,
    files: u64,
    directories: u64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.stored = self.stored.saturating_add(other.stored);
        self.files += other.files;
        self.directories += other.directories;
    }
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let top = args.path.as_bytes();
    let mut walk = match &args.store {
        Some(store) => Walk::of_store(store, top)?,
        None => Walk::mounted(Path::new(&args.path))?,
    };
    let bar = output.progress("looked at", None, false);
    let mut list = List::begin(output)?;
    let mut open = Open::default();
    let mut seen = HashSet::new();
    while let Some(found) = walk.next()? {
        bar.inc(1);
        while !open.leads_to(&found.path) {
            open.close(&args, &mut list)?;
        }
        let attr = &found.attr;
        let again = attr.kind != FileKind::Dir && attr.nlink > 1 && !seen.insert(attr.ino);
        let sum = match attr.kind {
            FileKind::Dir => Sum { directories: 1, ..Sum::default() },
            _ if again => Sum { files: 1, ..Sum::default() },
            _ => Sum {
                files: 1,
                bytes: attr.size,
                stored: stored(attr.size, attr.blocks.saturating_mul(512)),
                directories: 0,
            },
        };
        match open.directories.last_mut() {
            Some((_, of)) if attr.kind != FileKind::Dir => of.add(sum),
            _ => open.enter(found.path, sum),
        }
    }
    while !open.directories.is_empty() {
        open.close(&args, &mut list)?;
    }
    bar.finish_and_clear();
    list.end()?;
    walk.close()
}

/// Values of at least this length are stored separately, in units of 512 bytes; shorter ones are
/// packed among their neighbours.
const BY_ITSELF: u64 = 2048;

/// Returns the space of a file's content, from its size and its `st_blocks` in bytes. The latter is
/// in units of 512 bytes, to which a packed end of a file is rounded up.
fn stored(size: u64, blocks: u64) -> u64 {
    let end = size % 4096;
    if blocks >= size && blocks - size < 512 && end < BY_ITSELF { size } else { blocks }
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    directory.is_empty()
        || path.strip_prefix(directory).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// The directories on the way to the current position of the walk, with the counts below each. They
/// share one path: a path for each would take space quadratic in the depth.
#[derive(Default)]
struct Open {
    /// The path of the innermost directory, or of one that was in it.
    path: Vec<u8>,
    /// For each directory, the length of its prefix of `path`, and the counts.
    directories: Vec<(usize, Sum)>,
}

impl Open {
    /// Returns whether a path lies in the innermost directory; true if there is none.
    fn leads_to(&self, path: &[u8]) -> bool {
        self.directories.last().is_none_or(|(len, _)| is_below(path, &self.path[..*len]))
    }

    fn enter(&mut self, path: Vec<u8>, sum: Sum) {
        self.directories.push((path.len(), sum));
        self.path = path;
    }

    /// Ends the innermost directory: shows it, and adds its counts to its parent.
    fn close(&mut self, args: &Args, list: &mut List<'_>) -> Outcome {
        let Some((len, sum)) = self.directories.pop() else { return Ok(()) };
        if let Some((_, above)) = self.directories.last_mut() {
            above.add(sum);
        }
        // A directory inside it had a longer path.
        self.path.truncate(len);
        if self.directories.len() > args.depth {
            return Ok(());
        }
        let path = joined(args.path.as_bytes(), &self.path);
        let Sum { bytes, stored, files, directories } = sum;
        let (size, held) = (human_size(bytes), human_size(stored));
        let line = format!(
            "{size:>10} {held:>10} stored {files:>9} files {directories:>7} directories  {}",
            text::show(&path)
        );
        list.item(&line, || {
            let mut object = Map::new();
            text::put(&mut object, "path", &path);
            let counts = [
                ("bytes", bytes),
                ("stored", stored),
                ("files", files),
                ("directories", directories),
            ];
            counts.into_iter().for_each(|(name, n)| drop(object.insert(name.into(), n.into())));
            Value::Object(object)
        })
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::stored;

    #[test]
    fn the_end_of_a_file_counts_with_its_bytes_where_it_lies_among_others() {
        assert_eq!(stored(550, 1024), 550);
        assert_eq!(stored(2100, 2560), 2560);
        assert_eq!(stored(8192, 8192), 8192);
        assert_eq!(stored(8192 + 100, 8192 + 512), 8192 + 100);
        // Files with holes.
        assert_eq!(stored(1 << 30, 4096), 4096);
        assert_eq!(stored(0, 0), 0);
    }
}
