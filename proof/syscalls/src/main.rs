//! `kvfs-syscalls`: the tester as a command.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use kvfs_syscalls::{Bench, Mode, Mounted, Outcome, Step, Taste, history, read_history, shrink};

/// Makes the same random system calls on two file systems and compares every result.
#[derive(Parser)]
struct Args {
    /// A directory of the file system under test. Without it a KVFS store is made and mounted
    /// (--kvfs).
    subject: Option<PathBuf>,
    /// A directory of the file system that is trusted; without it one of --directory's.
    #[arg(long)]
    reference: Option<PathBuf>,
    /// The `kvfs` program that makes and mounts a store for the test.
    #[arg(long, default_value = "target/release/kvfs")]
    kvfs: PathBuf,
    /// Where the store, its mount and the reference are made.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    directory: PathBuf,
    /// What surrounds the calls: plain, commit, abort (a transaction, with --kvfs), kill, remount
    /// (of the daemon), upgrade, restart (of the daemon, under the calls).
    #[arg(long, default_value = "plain")]
    mode: String,
    /// Of transactions: si or ser.
    #[arg(long, default_value = "si")]
    isolation: String,
    /// Mount options.
    #[arg(short, long, default_value = "")]
    options: String,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many calls in all.
    #[arg(long, default_value_t = 100_000)]
    calls: u64,
    /// How many calls to one history.
    #[arg(long, default_value_t = 2000)]
    round: usize,
    /// The first history, so that a run can continue where another ended.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Processes; all are root's.
    #[arg(long, default_value_t = 3)]
    workers: u8,
    /// Let every second process be a user without privileges.
    #[arg(long)]
    users: bool,
    /// No programs (cp, tar, rsync) in the histories.
    #[arg(long)]
    no_programs: bool,
    /// No SEEK_DATA and SEEK_HOLE.
    #[arg(long)]
    no_seeks: bool,
    /// Replay this history instead of random ones.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Go on behind a difference, up to so many.
    #[arg(long, default_value_t = 1)]
    differences: usize,
    /// How many seconds shrinking a history may take.
    #[arg(long, default_value_t = 60)]
    shrink: u64,
    /// Put shrunk histories into this directory as well.
    #[arg(long)]
    found: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(why) => {
            eprintln!("kvfs-syscalls: {why}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Outcome<usize> {
    let mode = match args.mode.as_str() {
        "plain" => Mode::Plain,
        "commit" => Mode::Commit,
        "abort" => Mode::Abort,
        "kill" => Mode::Kill,
        "remount" => Mode::Remount,
        "upgrade" => Mode::Upgrade,
        "restart" => Mode::Restart,
        other => return Err(format!("'{other}' is no mode")),
    };
    let users: Vec<u32> = (0..u32::from(args.workers))
        .map(|n| if args.users && n % 2 == 1 { 999 + n.div_ceil(2) } else { 0 })
        .collect();
    let directory = args.directory.join(format!("kvfs-syscalls-{}", std::process::id()));
    std::fs::create_dir_all(&directory)
        .map_err(|e| format!("cannot make {}: {e}", directory.display()))?;
    let reference = args.reference.clone().unwrap_or_else(|| directory.join("reference"));
    let mounted = match &args.subject {
        Some(_) => None,
        None => {
            let kvfs =
                args.kvfs.canonicalize().map_err(|e| format!("no {}: {e}", args.kvfs.display()))?;
            let options = match (mode, args.options.as_str()) {
                (Mode::Restart, "") => "keeper".to_owned(),
                (Mode::Restart, options) => format!("{options},keeper"),
                (_, options) => options.to_owned(),
            };
            Some(Mounted::new(&kvfs, &directory, &options)?)
        }
    };
    let subject = args
        .subject
        .clone()
        .or(mounted.as_ref().map(|mounted| mounted.root().to_owned()))
        .unwrap_or_default();
    let mut bench = Bench::new(subject, reference, users, mode, mounted)?;
    bench.isolation = args.isolation.clone();
    let taste = Taste {
        workers: args.workers,
        programs: !args.no_programs,
        timed: true,
        kills: matches!(mode, Mode::Kill | Mode::Remount),
        seeks: !args.no_seeks,
        zero_range: bench.reference_can_zero()?,
    };
    let differences = match &args.replay {
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .map_err(|e| format!("cannot read {}: {e}", file.display()))?;
            let steps = read_history(&text)?;
            match bench.run(&steps)? {
                Some(difference) => {
                    println!("{difference}");
                    let (steps, difference) =
                        shrink(&mut bench, &steps, difference, Duration::from_secs(args.shrink))?;
                    report(args, 0, &steps, &difference.to_string())?;
                    1
                }
                None => {
                    println!("no difference in {} calls", steps.len());
                    0
                }
            }
        }
        None => histories(args, &mut bench, &taste)?,
    };
    if let Some(mounted) = bench.mounted.take() {
        println!("{}", mounted.finish()?);
    }
    if differences == 0 {
        let _ = std::fs::remove_dir_all(&directory);
    }
    Ok(differences)
}

fn histories(args: &Args, bench: &mut Bench, taste: &Taste) -> Outcome<usize> {
    let start = Instant::now();
    let mut said = start;
    let (mut calls, mut differences) = (0u64, 0);
    for stream in args.from.. {
        if calls >= args.calls || differences >= args.differences {
            break;
        }
        let steps = history(args.seed, stream, args.round, taste);
        if let Some(difference) = bench.run(&steps)? {
            differences += 1;
            println!("seed {} history {stream}: {difference}", args.seed);
            let (steps, difference) =
                shrink(bench, &steps, difference, Duration::from_secs(args.shrink))?;
            report(args, stream, &steps, &difference.to_string())?;
        }
        calls += steps.len() as u64;
        if said.elapsed() > Duration::from_secs(30) {
            said = Instant::now();
            let rate = calls as f64 / start.elapsed().as_secs_f64();
            println!(
                "history {stream}: {calls} calls, {rate:.0} calls/s, {differences} differences"
            );
        }
    }
    let rate = calls as f64 / start.elapsed().as_secs_f64();
    println!(
        "{calls} calls of seed {} in mode {}, {rate:.0} calls/s, {differences} differences",
        args.seed, args.mode
    );
    if bench.cut_off.get() > 0 {
        println!(
            "{} histories ended early, where a program ran into its time limit or the reference had no room",
            bench.cut_off.get()
        );
    }
    Ok(differences)
}

fn report(args: &Args, stream: u64, steps: &[Step], difference: &str) -> Outcome<()> {
    let mut text: String = steps.iter().map(|step| format!("{step}\n")).collect();
    for line in difference.lines() {
        text.push_str(&format!("# {}\n", line.replace('#', " ")));
    }
    println!(
        "--- seed {} history {stream}, shrunk to {} calls (replay with --replay FILE --mode {}) ---\n{text}---",
        args.seed,
        steps.len(),
        args.mode
    );
    if let Some(found) = &args.found {
        let file = found.join(format!("{}-{}-{stream}.txt", args.mode, args.seed));
        std::fs::create_dir_all(found)
            .and_then(|()| std::fs::write(&file, &text))
            .map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}
