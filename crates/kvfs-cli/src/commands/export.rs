//! `kvfs export`: writes the files of a store as a tar stream, or, if the store is not mounted,
//! into a directory.

mod mounted;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::ProgressBar;

use crate::support::archives::export_tree::archive::Tar;
use crate::support::archives::export_tree::directory::Directory;
use crate::support::archives::export_tree::{Counts, Walk};
use crate::support::machine::destination::{self, Judge, Making};
use crate::support::mounts::mounted::Mounted;
use crate::support::stores::store::{self, Access};
use crate::support::stores::{tree, walks};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text::Shown;

/// Copy files of a store into a tar stream or a directory.
#[derive(clap::Args)]
#[command(after_help = "\
The daemon of a mounted store writes the tar stream itself, without a system call for each file, \
and from one consistent state: changes made during the export are not included. To export a \
mounted store into a directory: kvfs export /mnt/work - | tar x -C DIRECTORY.

  kvfs export my.kvfs project/ --from /project     a store that is not mounted, into a directory
  kvfs export /mnt/work/project project.tar        a directory of a mounted store
  kvfs export /mnt/work/.kvfs/snapshot/monday -    a snapshot

Preserves owners (as numbers; in a directory only as root), modes, times, hard links, symbolic \
links, devices, extended attributes and holes. Files are added to a directory that exists; a path \
that ends in a slash is created as a directory.")]
pub struct Args {
    /// The store's file, or a directory in a mounted store or in any of its views.
    store: PathBuf,
    /// Tar file to create, `-` for a tar stream on standard output, or a directory.
    to: PathBuf,
    /// Directory whose contents are copied, or a single file.
    #[arg(long, value_name = "PATH", default_value = "/")]
    from: OsString,
    /// Skip damaged data, list it, and exit with 5. Without this option, the first damage ends the
    /// export.
    #[arg(long)]
    keep_going: bool,
    #[command(flatten)]
    making: Making,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let begun = Instant::now();
    if let Some(directory) = mounted::source(&args.store)? {
        return of_mounted(&args, directory, output);
    }
    let store = store::open_waiting(&args.store, Access::ReadOnly, None)?;
    let fs = store.file_system()?;
    let root = tree::find(&fs, args.from.as_bytes())?;
    let stdout = args.to.as_os_str() == "-";
    let judge = Judge::reading(&args.store, args.making);
    let bar = output.progress("exporting", None, true);
    let cannot = |e: io::Error| Failure::io(format!("cannot write {}", args.to.shown()), &e);
    let name = tree::names(args.from.as_bytes()).last().unwrap_or(b"file").to_vec();
    let walk = || Walk {
        fs: &fs,
        bar: &bar,
        keep_going: args.keep_going,
        counts: Counts::default(),
        output,
    };
    let tar = |file: File, what: &str| -> Outcome<Counts> {
        let cannot = |e: io::Error| Failure::io(format!("cannot write {what}"), &e);
        let out: Box<dyn Write> = Box::new(io::BufWriter::with_capacity(1 << 20, file));
        let mut tar = Tar::new(out, args.keep_going, output);
        let counts = walk().run(&mut tar, root, &name)?;
        tar.builder.into_inner().and_then(|mut out| out.flush()).map_err(cannot)?;
        Ok(counts)
    };
    let counts = if args.to.is_dir() || args.to.as_os_str().as_bytes().ends_with(b"/") {
        let mut directory = directory_at(&args.to, judge, output)?;
        walk().run(&mut directory, root, &name)?
    } else if stdout {
        tar(standard_output()?, "standard output")?
    } else {
        let file = destination::create(&args.to, args.making, judge)?;
        let writer = file.try_clone().map_err(cannot)?;
        tar(writer, &args.to.display().to_string())
            .inspect_err(|_| destination::discard(&file, &args.to))?
    };
    bar.finish_and_clear();
    drop(fs);
    store.close()?;
    let whole = match counts.damaged {
        0 => Ok(()),
        n => Err(Failure::new(
            Exit::Damaged,
            format!("{n} entries of {} are damaged and were left out", args.store.shown()),
        )),
    };
    if stdout {
        return whole;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let skipped =
        if counts.skipped > 0 { format!(", {} skipped", counts.skipped) } else { String::new() };
    let text = format!(
        "exported {} entries, {} in {seconds:.1} s{skipped}",
        counts.entries,
        human_size(counts.bytes)
    );
    output.print(text, counts)?;
    whole
}

/// Returns the directory to export into, which is made if it does not exist.
fn directory_at<'a>(to: &Path, judge: Judge, output: &'a Output) -> Outcome<Directory<'a>> {
    let cannot = |e: io::Error| Failure::io(format!("cannot write {}", to.shown()), &e);
    // Keep other users out until the directory is complete and has its own permissions.
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(to).map_err(cannot)?;
    Directory::open(to, judge, output).map_err(cannot)
}

/// Returns standard output, unless it is a terminal.
fn standard_output() -> Outcome<File> {
    if std::io::IsTerminal::is_terminal(&io::stdout()) {
        return Err(Failure::new(Exit::Usage, "a tar stream is not for a terminal")
            .hint("give a file's name instead of -, or use a pipe"));
    }
    let out = io::stdout().as_fd().try_clone_to_owned();
    out.map(File::from).map_err(|e| Failure::io("cannot write standard output", &e))
}

/// Exports a directory on a mount.
fn of_mounted(args: &Args, directory: PathBuf, output: &Output) -> Outcome {
    let begun = Instant::now();
    if args.to.is_dir() || args.to.as_os_str().as_bytes().ends_with(b"/") {
        let what = "a mounted store is exported as a tar stream";
        return Err(Failure::new(Exit::Usage, what).hint("kvfs export PATH - | tar x -C DIRECTORY"));
    }
    if args.keep_going {
        let what = "what is damaged can be left out where the store is not mounted";
        return Err(Failure::new(Exit::Usage, what).hint("unmount it: kvfs umount STORE"));
    }
    let from = tree::names(args.from.as_bytes()).map(std::ffi::OsStr::from_bytes);
    let path = from.fold(directory, |path, name| path.join(name));
    let judge = Judge::reading(&args.store, args.making);
    let stdout = args.to.as_os_str() == "-";
    // Find the source before an existing output file is truncated.
    let mounted = walks::begin(&path, "EXPORT")?;
    let (file, shown) = match stdout {
        true => (standard_output()?, "standard output".to_string()),
        false => {
            (destination::create(&args.to, args.making, judge)?, args.to.display().to_string())
        }
    };
    let bar = output.progress("exporting", None, true);
    let written = mounted::write(
        mounted,
        &mut &file,
        |e| Failure::io(format!("cannot write {shown}"), &e),
        &bar,
    );
    bar.finish_and_clear();
    if written.is_err() && !stdout {
        destination::discard(&file, &args.to);
    }
    let written = written?;
    if stdout {
        return Ok(());
    }
    let seconds = begun.elapsed().as_secs_f64();
    output.print(
        format!("exported {} in {seconds:.1} s", human_size(written)),
        serde_json::json!({ "archive": written }),
    )
}
