//! The interface of a helper of mount(8), with other arguments and exit codes than `kvfs mount`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::credentials::Credentials;
use super::{Args, run};
use crate::support::mounting::mount_options;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;

/// Exit codes of mount(8).
const WRONG_USAGE: u8 = 1;
const MOUNT_FAILED: u8 = 32;

/// Handles a call by mount(8) as one of its helpers, and returns the exit code. Returns `None` if
/// it is no such call. `commands` are those of `kvfs` itself.
pub fn run_as_mount_helper(
    arguments: &[OsString],
    commands: fn() -> clap::Command,
) -> Option<ExitCode> {
    let name = Path::new(arguments.first()?).file_name()?.to_str()?;
    let words = &arguments[1..];
    let outcome = match name {
        "mount.kvfs" | "mount.fuse.kvfs" | "mount.fuse3.kvfs" => helper_mount(words),
        "umount.kvfs" | "umount.fuse.kvfs" => crate::commands::umount::run_as_umount_helper(words),
        // `mount.fuse3 STORE DIR -t fuse.kvfs -o ...` calls "kvfs STORE DIR -o ...".
        _ if words.len() >= 2
            && !is_command(&words[0], commands)
            && !starts_with_dash(&words[0])
            && !starts_with_dash(&words[1]) =>
        {
            helper_mount(words)
        }
        _ => return None,
    };
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            Output::new(false).print_error(&failure);
            ExitCode::from(if failure.exit == Exit::Usage { WRONG_USAGE } else { MOUNT_FAILED })
        }
    })
}

fn is_command(word: &OsString, commands: fn() -> clap::Command) -> bool {
    word == "help" || word.to_str().is_some_and(|w| commands().find_subcommand(w).is_some())
}

fn starts_with_dash(word: &OsString) -> bool {
    word.as_encoded_bytes().starts_with(b"-")
}

/// Parses and runs `STORE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`, in any order.
fn helper_mount(words: &[OsString]) -> Outcome {
    let mut places = Vec::new();
    let mut options = Vec::new();
    let mut fake = false;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let needs = || Failure::new(Exit::Usage, format!("{} needs a value", word.shown()));
        match word.to_str() {
            Some("-o") => options.push(words.next().ok_or_else(needs)?.clone()),
            Some("-t" | "-N") => drop(words.next().ok_or_else(needs)?),
            Some(flags)
                if flags.len() > 1
                    && flags.starts_with('-')
                    && flags[1..].chars().all(|c| "sfnvrw".contains(c)) =>
            {
                fake |= flags.contains('f');
                options.extend(flags.contains('r').then(|| "ro".into()));
            }
            Some(flag) if flag.starts_with('-') => {
                return Err(Failure::new(Exit::Usage, format!("unknown flag {flag}")));
            }
            _ => places.push(PathBuf::from(word)),
        }
    }
    let Ok([store, dir]) = <[PathBuf; 2]>::try_from(places) else {
        return Err(Failure::new(
            Exit::Usage,
            "a mount helper is called with a store, a directory, and -o with options",
        ));
    };
    if fake {
        return mount_options::parse(&options)?.check();
    }
    // mount(8) itself prints nothing on success.
    let quiet = Output::quiet();
    run(
        Args {
            store: Some(store),
            dir: Some(dir),
            config: None,
            upgrade: None,
            snapshot: None,
            of_clone: None,
            txn: false,
            lease: false,
            durable: false,
            key: None,
            attached: None,
            key_file: None,
            credentials: Credentials::default(),
            timeout: None,
            sealed: false,
            options,
            foreground: false,
            memory: None,
            write: false,
            take: false,
            offline: false,
            cache: None,
            cache_size: None,
            log: None,
            metrics: None,
            serving: false,
            secrets: false,
            resume: None,
            kept: None,
            fits: false,
        },
        &quiet,
    )
}
