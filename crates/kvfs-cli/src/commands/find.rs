//! `kvfs find`: finds entries below a directory by their properties, read from the dictionaries.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kvfs::{Attr, FileKind, Timestamp};
use serde_json::Value;

use crate::support::stores::tree;
use crate::support::stores::walks::{Walk, joined};
use crate::support::terminal::list::List;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::parse_size;
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

/// Find files and directories by name, kind, size and age.
#[derive(clap::Args)]
#[command(after_help = "\
The path lies in a mounted store, or in any of its views (.kvfs/txn/ID, .kvfs/snapshot/NAME); \
everything is read from one consistent state, without a system call for each file. An entry must \
meet all conditions. Conditions may be written with one dash, as in find(1).

  kvfs find /mnt/project -name '*.o' -size +1M
  kvfs find /mnt/.kvfs/snapshot/monday -type f -newer 1700000000 -print0 | xargs -0 ...
  kvfs find --store my.kvfs / -type l       a store that is not mounted")]
pub struct Args {
    /// Directory to search; it is itself the first candidate.
    path: OsString,
    /// File of a store that is not mounted; the path starts at its root.
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Match the last component of the path: `*` any text, `?` one byte, `[a-z]`, `[!a]`; `\\`
    /// quotes a special character.
    #[arg(long, value_name = "GLOB")]
    name: Option<OsString>,
    /// Find only entries of these kinds: files (`f`), directories (`d`), symbolic links (`l`),
    /// fifos (`p`), sockets (`s`), character (`c`) or block devices (`b`); several as in `f,l`.
    #[arg(long = "type", value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<char>,
    /// Match the size in bytes, or in units of 1024 with K, M, G or T: more than (`+1M`), less than
    /// (`-4K`), or exactly.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    size: Option<String>,
    /// Find entries modified after this time (seconds since 1970, optionally with a fraction), or
    /// after the file of this name.
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    newer: Option<OsString>,
    /// Print a zero byte after each path instead of a newline.
    #[arg(short = '0', long)]
    print0: bool,
}

/// Options that are accepted with one dash.
const ONE_DASH: [&str; 5] = ["-name", "-type", "-size", "-newer", "-print0"];

/// Returns the command line with two dashes in place of find(1)'s one.
pub fn as_options(arguments: Vec<OsString>) -> Vec<OsString> {
    let command = arguments.iter().skip(1).find(|word| !word.as_bytes().starts_with(b"-"));
    if command.is_none_or(|word| word != "find") {
        return arguments;
    }
    let long = |word: OsString| match word.to_str() {
        Some(text) if ONE_DASH.contains(&text) => OsString::from(format!("-{text}")),
        _ => word,
    };
    arguments.into_iter().map(long).collect()
}

enum Size {
    More(u64),
    Less(u64),
    Just(u64),
}

struct Wanted {
    name: Option<Vec<u8>>,
    kinds: Vec<FileKind>,
    size: Option<Size>,
    newer: Option<Timestamp>,
}

impl Wanted {
    fn of(args: &Args) -> Outcome<Wanted> {
        let kinds = args.kinds.iter().map(|kind| match kind {
            'f' => Ok(FileKind::File),
            'd' => Ok(FileKind::Dir),
            'l' => Ok(FileKind::Symlink),
            'p' => Ok(FileKind::Fifo),
            's' => Ok(FileKind::Socket),
            'c' => Ok(FileKind::CharDevice),
            'b' => Ok(FileKind::BlockDevice),
            other => Err(Failure::new(
                Exit::Usage,
                format!("no kind of file is called {other}: f, d, l, p, s, c or b"),
            )),
        });
        let size = args.size.as_deref().map(|text| {
            let number = |text: &str| {
                parse_size(text)
                    .map_err(|e| Failure::new(Exit::Usage, format!("the size {text}: {e}")))
            };
            match text.split_at_checked(1) {
                Some(("+", rest)) => number(rest).map(Size::More),
                Some(("-", rest)) => number(rest).map(Size::Less),
                _ => number(text).map(Size::Just),
            }
        });
        // Negation is `!` in fnmatch(3), and `^` in Redis.
        let name = args.name.as_ref().map(|glob| {
            let mut glob = glob.as_bytes().to_vec();
            let places: Vec<usize> = (1..glob.len())
                .filter(|&i| glob[i] == b'!' && glob[i - 1] == b'[' && !escaped(&glob, i - 1))
                .collect();
            places.into_iter().for_each(|i| glob[i] = b'^');
            glob
        });
        let newer = args.newer.as_ref().map(moment).transpose()?;
        Ok(Wanted { name, kinds: kinds.collect::<Outcome<_>>()?, size: size.transpose()?, newer })
    }

    fn is_met(&self, name: &[u8], attr: &Attr) -> bool {
        let size = match self.size {
            None => true,
            Some(Size::More(n)) => attr.size > n,
            Some(Size::Less(n)) => attr.size < n,
            Some(Size::Just(n)) => attr.size == n,
        };
        size && (self.kinds.is_empty() || self.kinds.contains(&attr.kind))
            && self
                .newer
                .is_none_or(|than| (attr.mtime.secs, attr.mtime.nanos) > (than.secs, than.nanos))
            && self.name.as_ref().is_none_or(|glob| kvdb_server::matches_glob(glob, name))
    }
}

fn escaped(glob: &[u8], at: usize) -> bool {
    glob[..at].iter().rev().take_while(|b| **b == b'\\').count() % 2 == 1
}

/// Parses seconds since 1970, or returns the modification time of a file.
fn moment(text: &OsString) -> Outcome<Timestamp> {
    let said = text.to_str().and_then(|text| {
        let (secs, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| {
            !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit())
        };
        let nanos = digits(fraction).then(|| format!("{fraction:0<9}").parse().ok()).flatten()?;
        Some(Timestamp { secs: secs.parse().ok()?, nanos })
    });
    match said {
        Some(time) => Ok(time),
        None => {
            let path = Path::new(text);
            let meta = path.metadata().map_err(|e| {
                Failure::io(format!("neither seconds nor a file: {}", path.shown()), &e)
            })?;
            Ok(Timestamp { secs: meta.mtime(), nanos: meta.mtime_nsec() as u32 })
        }
    }
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let wanted = Wanted::of(&args)?;
    let top = args.path.as_bytes();
    let mut walk = match &args.store {
        Some(store) => Walk::of_store(store, top)?,
        None => Walk::mounted(Path::new(&args.path))?,
    };
    let own_name =
        Path::new(&args.path).file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
    let bar = output.progress("looked at", None, false);
    // Escape names for a terminal, which they could control; a program gets them unchanged.
    let raw = args.print0 || !std::io::stdout().is_terminal();
    let mut list = List::begin(output)?;
    let mut reads = true;
    while reads && let Some(found) = walk.next()? {
        bar.inc(1);
        let name = match found.path.is_empty() {
            true => &own_name[..],
            false => found.path.rsplit(|&b| b == b'/').next().unwrap_or_default(),
        };
        if !wanted.is_met(name, &found.attr) {
            continue;
        }
        let path = joined(top, &found.path);
        reads = match output.is_json() || !raw {
            true => list.item(&text::show(&path), || {
                let mut object = serde_json::Map::new();
                text::put(&mut object, "path", &path);
                object.extend(tree::attr_json(&found.attr));
                Value::Object(object)
            })?,
            false => list.raw(&path, if args.print0 { 0 } else { b'\n' })?,
        };
    }
    bar.finish_and_clear();
    list.end()?;
    walk.close()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let words = as_options(text.split(' ').map(OsString::from).collect());
        words.into_iter().map(|word| word.into_string().expect("text")).collect()
    }

    #[test]
    fn options_may_have_one_dash_where_find_has_them() {
        assert_eq!(
            words("kvfs --json find /a -name x -print0"),
            words("kvfs --json find /a --name x --print0")
        );
        assert_eq!(words("kvfs find /a -size -4K")[3..], ["--size", "-4K"]);
        assert_eq!(words("kvfs ls -name x"), ["kvfs", "ls", "-name", "x"]);
    }

    #[test]
    fn moments() {
        let of = |text: &str| moment(&text.into()).map(|t| (t.secs, t.nanos));
        assert_eq!(of("1700000000").expect("seconds"), (1_700_000_000, 0));
        assert_eq!(of("5.25").expect("seconds"), (5, 250_000_000));
        assert!(of("/no/such/file").is_err() && of("5.").is_err());
    }
}
