//! `kvfs mount`: mounts a store's file system on a directory, and returns once it answers in the
//! background.
//!
//! A daemon cannot fork once it has threads, so the background process is a new run of this program
//! (`--serving`). It reports through its standard output, a pipe, that the mount answers or why it
//! failed. The process in the foreground prints this and ends.
//!
//! Calls by mount(8) and through `/etc/fstab` are handled by `mount8`: as `mount.fuse.kvfs` or
//! `mount.kvfs`, or through `mount.fuse3`, which calls `kvfs STORE DIR -o OPTIONS`. `served` mounts
//! a snapshot or a transaction of a store that `kvfs serve` serves, or a directory of one
//! (`shown_directory`).

mod credentials;
mod local_file;
mod mount8;
mod secrets;
mod served;
mod shown_directory;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kvdb_wire::TransactionKey;
use kvfs_fuse::{Unmount, mounts, unmount};
pub use mount8::run_as_mount_helper;
use places::{Address, local_copies};
pub use served::{MountsOfProcess, address};

use self::credentials::Credentials;
use self::local_file::{file_to_mount, may_lie_on};
use self::secrets::Secrets;
use crate::commands::push;
use crate::support::machine::destination::{self, Judge};
use crate::support::machine::paths;
use crate::support::mounting::mount_config::Config;
use crate::support::mounting::mount_options::{self, Options};
use crate::support::mounting::mount_words;
use crate::support::mounts::daemons::Record;
use crate::support::mounts::{place, waiting};
use crate::support::serving::daemon::{self, Begin};
use crate::support::serving::handover::{self, Resumed};
use crate::support::serving::keeper::{self, Held};
use crate::support::serving::{guest, upgrade};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;
use crate::support::terminal::{failures, sizes, text};

/// Mount a store's file system on a directory.
#[derive(clap::Args)]
#[command(after_help = mount_options::help())]
pub struct Args {
    /// Store to mount: a file or a block device made by `kvfs create`; or dir:FOLDER/NAME or
    /// s3://BUCKET/NAME in object storage, which is mounted read-only and shows the published state
    /// (@SNAPSHOT after it selects a snapshot), or can be written to by --write; or
    /// kvfs+unix:SOCKET, kvfs+vsock://CID:PORT or kvfs://HOST:PORT, served by `kvfs serve`,
    /// together with --snapshot, --txn or --lease. A path after the port, or after SOCKET and a
    /// colon, mounts a directory of the store: kvfs://HOST:PORT/PATH, kvfs+unix:SOCKET:/PATH.
    #[arg(required_unless_present_any = ["config", "upgrade"])]
    store: Option<PathBuf>,
    /// Directory to mount the store on.
    #[arg(required_unless_present_any = ["config", "upgrade"])]
    dir: Option<PathBuf>,
    /// Read the store, the mount point and the options from a file with lines such as `store =
    /// /srv/my.kvfs`, `directory = /mnt/my`, `allow_other` and `memory = 1G`, named as for -o; `#`
    /// begins a comment. Options on the command line take precedence.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Replace the daemon of the mount at DIR by this version of the program, while programs use
    /// the mount: they wait for a moment and notice nothing else. The options of the mount stay.
    #[arg(long, value_name = "DIR", exclusive = true)]
    upgrade: Option<PathBuf>,
    /// Mount only this snapshot, read-only, like -o snapshot=NAME.
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
    /// Mount only this clone, like -o clone=NAME. For kvfs+unix:SOCKET, add --txn.
    #[arg(long = "clone", value_name = "NAME", conflicts_with_all = ["snapshot", "lease"])]
    of_clone: Option<String>,
    /// For kvfs+unix:SOCKET: mount a new transaction. `kvfs commit DIR` makes it part of the store
    /// on the server; `kvfs abort DIR` and an unmount discard it. For a transaction of a clone, add
    /// --clone NAME.
    #[arg(long)]
    txn: bool,
    /// For kvfs+unix:SOCKET: mount the main files themselves. Only this mount changes them until it
    /// ends; what a program has synced is on the disk of the server. If another mount takes them
    /// (--take), this one fails (EIO).
    #[arg(long, conflicts_with_all = ["txn", "snapshot"])]
    lease: bool,
    /// Keep the transaction when the mount or the server ends, up to its last sync; `kvfs umount`
    /// prints its key.
    #[arg(long, requires = "txn")]
    durable: bool,
    /// Continue the durable transaction that has this key. Other users can read it in lists of
    /// processes while the command runs; with --key-file they cannot.
    #[arg(long, requires = "txn", value_name = "KEY", value_parser = guest::parse_key)]
    key: Option<TransactionKey>,
    /// Like --key, with the key in the first line of this file, which others must not be able to
    /// read.
    #[arg(long, requires = "txn", value_name = "FILE", conflicts_with = "key")]
    key_file: Option<PathBuf>,
    /// For kvfs+unix:SOCKET: wait at most this long for a server that does not answer; after that,
    /// calls fail (EIO) until it answers again. 0 waits without a limit.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u32>,
    #[command(flatten)]
    credentials: Credentials,
    /// Mount options, separated by commas; may be repeated.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<OsString>,
    /// Stay in the foreground until unmounted, and log to standard error. Ctrl-C unmounts.
    #[arg(long, short = 'f')]
    foreground: bool,
    /// Memory limit of the store for buffers, caches and indexes, in bytes or with a unit (64M,
    /// 2G); default 320M.
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_size)]
    memory: Option<u64>,
    /// Mount a store in object storage writable: all commits are published there as well, some
    /// seconds later. Only one machine can write it at a time. Commits that are not yet published
    /// are in a local file, from which the next mount on this machine continues.
    #[arg(long, short = 'w')]
    write: bool,
    /// Like --write, even if another machine has the store open. Unpublished changes of that
    /// machine stay in its local file, and it accepts no more writes. If it publishes at the same
    /// moment, the store is claimed again, up to 16 times. With --lease: take the main files from
    /// the mount that has them.
    #[arg(long)]
    take: bool,
    /// For a store in object storage: send no requests, and use only data that was fetched before.
    /// Changes (--write) are published after the next mount without this option.
    #[arg(long)]
    offline: bool,
    /// For a store in object storage: keep fetched data in this directory (default: ~/.cache/kvfs,
    /// or with --write, which keeps more than a cache there, ~/.local/share/kvfs).
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// For a store in object storage: limit the disk space of fetched data (default: all available
    /// space).
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_size)]
    cache_size: Option<u64>,
    /// Append the daemon's log to this file.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Serve metrics to Prometheus at http://ADDRESS/metrics, such as 127.0.0.1:9100. There is no
    /// password, so only addresses of this machine are accepted. Port 0 selects any free port.
    #[arg(long, value_name = "ADDRESS", value_parser = mount_options::parse_address)]
    metrics: Option<std::net::SocketAddr>,
    /// End the mount when the process that started it, which has this number, has ended.
    #[arg(long, hide = true)]
    attached: Option<i32>,
    /// Let only that process end the transaction, as long as it runs.
    #[arg(long, hide = true, requires = "attached")]
    sealed: bool,
    /// Run as the background process.
    #[arg(long, hide = true)]
    serving: bool,
    /// Receive the secrets of the background process from standard input.
    #[arg(long, hide = true, requires = "serving")]
    secrets: bool,
    /// Continue a mount from the state at this descriptor.
    #[arg(long, hide = true)]
    resume: Option<i32>,
    /// Serve with the descriptors that a keeper holds, at these numbers.
    #[arg(long, hide = true)]
    kept: Option<String>,
    /// Print whether this program could continue the mount that standard input describes.
    #[arg(long, hide = true)]
    fits: bool,
}

pub fn run(mut args: Args, output: &Output) -> Outcome {
    if let Some(target) = &args.upgrade {
        return upgrade::run(target, output);
    }
    if let Some(path) = &args.config {
        let config = Config::read(path)?;
        // Later options take precedence.
        args.options = [config.options, args.options].concat();
        args.store = args.store.or(config.store);
        args.dir = args.dir.or(config.directory);
    }
    let missing = |what: &str| {
        Failure::new(Exit::Usage, format!("which {what}?"))
            .hint(format!("give it, or write `{what} = PATH` into the file of --config"))
    };
    let store = args.store.take().ok_or_else(|| missing("store"))?;
    let dir = args.dir.take().ok_or_else(|| missing("directory"))?;
    args.options.extend(args.of_clone.take().map(|name| format!("clone={name}").into()));
    if let Some(server) = served::address(&store) {
        return served::run(&server?, &dir, &args, output);
    }
    without_server(&args, &store)?;
    args.options.extend(args.snapshot.take().map(|name| format!("snapshot={name}").into()));
    let address = Address::parse(&store)?;
    let mut options = options_of(&mut args, &store, address.as_ref())?;
    if args.fits {
        return handover::fits(&options.policy, options.keeper).map_err(tell);
    }
    let background = arguments("--serving", &store, &dir, &args.options, &options);
    if let Some(kept) = &args.kept {
        let mut held = Box::new(Held::from_descriptors(kept)?);
        let keeper = held.live()?;
        let begin = Begin::Kept(&store, &dir, held, keeper);
        return serve_kept(begin, &options, &background, args.foreground, output);
    }
    if args.serving {
        if options.keeper {
            return keep(&store, &options, &background);
        }
        return serve(&store, &dir, options, &background, args.resume);
    }
    if let Some(left) = args.resume {
        let front = arguments("--foreground", &store, &dir, &args.options, &options);
        let begin = Begin::Resume(&store, Box::new(Resumed::from_descriptor(left)?));
        return daemon::serve(begin, &options, &front, &mut |_| Ok(()));
    }
    if let Some(publish) = options.publish.iter().find(|_| options.writing.is_none()) {
        may_publish(&publish.to, output)?;
    }
    let store = file_to_mount(&store, address.as_ref(), args.cache.as_deref(), &options, output)?;
    let dir = mount_point(&dir, output)?;
    may_lie_on(&store, &dir)?;
    options.log = options.log.map(|log| log_path(&log)).transpose()?;
    // Claim the store after all options were checked: from here on no other machine may write it.
    if let (Some(address), Some(writing), false) = (&address, options.writing, options.offline) {
        let copy = local_copies::claim(address, &store, writing.take)?.copy;
        let (name, file) = (text::show(address.to_string().as_bytes()), store.shown());
        output.note(format!("{name} from generation {}, written in {file}", copy.generation));
    }
    if args.foreground {
        let front = arguments("--foreground", &store, &dir, &args.options, &options);
        return serve_in_front(&store, &dir, &options, &front, output);
    }
    let serving =
        |store: &Path| start(&arguments("--serving", store, &dir, &args.options, &options));
    let is_reader = options.writing.is_none() && !options.offline;
    let record = match (serving(&store), address.filter(|_| is_reader)) {
        // Another mount has taken the chosen local file; the next one is free.
        (Err(failure), Some(address)) if failure.exit == Exit::Busy => {
            serving(&local_copies::of(&address, args.cache.as_deref())?.path)?
        }
        (started, _) => started?,
    };
    if let Some(warning) = options.network.warning() {
        output.note(warning);
    }
    announce(output, &record)
}

/// Returns the absolute path of a log. It is checked here, where a failure can still be reported.
fn log_path(log: &Path) -> Outcome<PathBuf> {
    let path = std::path::absolute(log)
        .map_err(|e| Failure::io(format!("cannot use {}", log.shown()), &e))?;
    Judge::strict().judge_path(&path)?;
    Ok(path)
}

/// Serves the mount in this process, until it ends.
fn serve_in_front(
    store: &Path,
    dir: &Path,
    options: &Options,
    front: &[OsString],
    output: &Output,
) -> Outcome {
    if options.keeper {
        return keeper::run(store, options, front, || ()).map(drop);
    }
    let warning = options.network.warning();
    let mut say = |record: &Record| {
        if let Some(warning) = &warning {
            output.note(warning);
        }
        announce(output, record)
    };
    daemon::serve(Begin::Mount(store, dir), options, front, &mut say)
}

/// Returns the options of the mount, and completes the words of them that a process in the
/// background is started with.
fn options_of(args: &mut Args, store: &Path, address: Option<&Address>) -> Outcome<Options> {
    let is_started = args.serving || args.kept.is_some() || args.resume.is_some() || args.fits;
    args.options.extend(args.write.then(|| "write".into()));
    args.options.extend(args.take.then(|| "take".into()));
    args.options.extend(args.offline.then(|| "offline".into()));
    let asked = mount_options::parse(&args.options)?;
    match address {
        Some(address) => args.options.extend(words_for(address, &asked)?),
        // A process that serves the mount is started with the path of the local file.
        None if asked.writing.is_some() && !is_started => {
            let refused = format!("{} is a local store, which is written as it is", store.shown());
            return Err(Failure::new(Exit::Usage, refused).hint("leave out --write and --take"));
        }
        None => {}
    }
    let mut options = mount_options::parse(&args.options)?;
    options.memory = args.memory.or(options.memory);
    options.cache_size = args.cache_size.or(options.cache_size);
    options.log = args.log.take().or(options.log);
    options.metrics = args.metrics.take().or(options.metrics);
    options.check()?;
    if let Some(publish) = &options.publish {
        // A process that continues the mount works in another directory.
        let word = mount_words::escaped(format!("publish={}", publish.to).as_bytes());
        args.options.push(word);
    }
    Ok(options)
}

/// Fails if options are given that only an address of a server takes.
fn without_server(args: &Args, store: &Path) -> Outcome {
    let what = || format!("{} is no address of a server", store.shown());
    if args.txn || args.lease {
        return Err(Failure::new(Exit::Usage, what())
            .hint("in a store that is mounted here, kvfs txn begins transactions"));
    }
    if args.timeout.is_some() || args.credentials.is_given() {
        let hint = "leave out --timeout, --token-file, --ca, --cert and --cert-key";
        return Err(Failure::new(Exit::Usage, what()).hint(hint));
    }
    Ok(())
}

/// Returns the options that follow from the address of the store.
fn words_for(address: &Address, asked: &Options) -> Outcome<Vec<OsString>> {
    let wrong = |what: String| Err(Failure::new(Exit::Usage, what));
    let snapshot = address.snapshot.as_ref();
    if asked.writing.is_none() {
        let word = match snapshot {
            Some(name) => Some(format!("snapshot={name}").into()),
            None if asked.offline => None,
            None => Some(mount_words::escaped(format!("follow={address}").as_bytes())),
        };
        return Ok(["ro".into()].into_iter().chain(word).collect());
    }
    if let Some(snapshot) = snapshot {
        return wrong(format!("{snapshot} is a snapshot, which stays as it is: leave it out"));
    }
    match &asked.publish {
        None if asked.offline => Ok(vec![]),
        Some(_) if asked.offline => wrong("nothing is published without the place".into()),
        None => Ok(vec![mount_words::escaped(format!("publish={address}").as_bytes())]),
        Some(publish) if publish.to.is_same(address) => Ok(vec![]),
        Some(_) => wrong(format!("{address} is published there, where it is written")),
    }
}

/// Fails if a store cannot be published to the address. An address that cannot be reached now is
/// not an error: the mount comes first, and publishing is retried.
fn may_publish(to: &Address, output: &Output) -> Outcome {
    let later = |why: &dyn std::fmt::Display| {
        output.note(format!("nothing can be published now, which is tried again: {why}"));
        Ok(())
    };
    // Do not create the folder: the file system that should contain it may not be mounted yet.
    let store = match to.store(false) {
        Err(e @ places::Error::Name(_)) => return Err(e.into()),
        Err(e) => return later(&e),
        Ok(store) => store,
    };
    match store.head() {
        Err(kvdb::Error::Objects(e)) if e.may_be_retried() => later(&e),
        _ => push::check(to, &store, output),
    }
}

fn announce(output: &Output, record: &Record) -> Outcome {
    let mut said = format!("mounted {} on {}", record.store.shown(), record.mount_point.shown());
    if let Some(recovery) = &record.recovery {
        said.push('\n');
        said.push_str(recovery);
    }
    if let Some(metrics) = &record.metrics {
        said.push_str(&format!("\nmetrics at http://{metrics}/metrics"));
    }
    if let Some(address) = &record.listen {
        said.push_str(&format!("\nkeys at {address}"));
    }
    if let Some(key) = &record.key {
        said.push_str(&format!("\nits transaction is durable: --txn --key {key} goes on with it"));
    }
    let value = serde_json::json!({
        "pid": record.pid, "device": record.device, "metrics": record.metrics,
        "listen": record.listen, "key": record.key,
        "recovery": record.recovery,
    });
    let paths = [
        ("store", Some(&*record.store)),
        ("mount_point", Some(&*record.mount_point)),
        ("socket", record.socket.as_deref()),
    ];
    output.print(said, text::with_paths(value, &paths))
}

/// Returns the absolute path, which is valid in any directory.
fn absolute(path: &Path) -> Outcome<PathBuf> {
    let cannot = |e| Failure::io(format!("cannot use {}", path.shown()), &e);
    std::path::absolute(path).map_err(cannot)
}

/// Returns the full path of the directory, after removing dead mounts from it.
fn mount_point(path: &Path, output: &Output) -> Outcome<PathBuf> {
    let _waiting = waiting::on(path);
    let cannot = |e: std::io::Error| Failure::io(format!("cannot mount on {}", path.shown()), &e);
    let mut dead = 0;
    while mounts::is_dead(path) {
        // The daemon of a dead mount has ended, so its unmount loses nothing more. Left in place,
        // the dead mount would block the directory permanently.
        let dir = paths::full_path(path).map_err(cannot)?;
        let gone = mounts::mount_at(&dir).map_err(cannot)?.filter(|m| m.is_fuse());
        let Some(gone) = gone else {
            return Err(Failure::new(Exit::Busy, format!("{} lies in a dead mount", path.shown())));
        };
        dead += 1;
        if dead > 64 {
            return Err(Failure::new(
                Exit::Busy,
                format!("{} is a dead mount that cannot be removed", path.shown()),
            ));
        }
        unmount(&dir, Unmount::Lazy).map_err(failures::of_mount)?;
        if let Some(record) = Record::read(&gone.device).filter(|r| !r.is_alive()) {
            record.remove();
        }
        output.note(format!(
            "removed the dead mount of {} from {}: its daemon was killed",
            gone.source.shown(),
            dir.shown()
        ));
    }
    place::must_let_us_in(path)?;
    let dir = path.canonicalize().map_err(cannot)?;
    if !dir.is_dir() {
        return Err(Failure::new(
            Exit::Usage,
            format!("cannot mount on {}: it is not a directory", dir.shown()),
        )
        .hint("make one, and mount on it"));
    }
    Ok(dir)
}

/// Returns the arguments of a process that serves a mount. `how` selects the background or the
/// foreground.
fn arguments(
    how: &str,
    store: &Path,
    dir: &Path,
    words: &[OsString],
    options: &Options,
) -> Vec<OsString> {
    let mut all: Vec<OsString> = vec!["mount".into(), how.into(), store.into(), dir.into()];
    words.iter().for_each(|word| all.extend(["-o".into(), word.clone()]));
    let mut add = |name: &str, value: Option<OsString>| {
        all.extend(value.into_iter().flat_map(|value| [name.into(), value]));
    };
    add("--memory", options.memory.map(|memory| memory.to_string().into()));
    add("--cache-size", options.cache_size.map(|size| size.to_string().into()));
    add("--log", options.log.clone().map(Into::into));
    add("--metrics", options.metrics.map(|address| address.to_string().into()));
    all
}

/// Starts the background process, and waits until it answers.
fn start(arguments: &[OsString]) -> Outcome<Record> {
    start_with(arguments, &Secrets::default())
}

/// Like `start`, but passes secrets to it.
fn start_with(arguments: &[OsString], secrets: &Secrets) -> Outcome<Record> {
    let program = std::env::current_exe()
        .map_err(|e| Failure::io("cannot find this program's own file", &e))?;
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped());
    secrets.prepare(&mut command);
    let mut child =
        command.spawn().map_err(|e| Failure::io("cannot start the background process", &e))?;
    secrets.send(&mut child);
    let mut answer = String::new();
    if let Some(pipe) = child.stdout.take() {
        BufReader::new(pipe)
            .read_line(&mut answer)
            .map_err(|e| Failure::io("cannot hear from the background process", &e))?;
    }
    if let Some(record) = Record::from_line(&answer) {
        return Ok(record);
    }
    let status =
        child.wait().map_err(|e| Failure::io("cannot wait for the background process", &e))?;
    Err(Failure::from_line(&answer).unwrap_or_else(|| {
        Failure::new(
            Exit::Failed,
            format!("the background process ended before the mount was ready: {status}"),
        )
    }))
}

/// Reports a failure to the process that started this one, which prints it. Printing it again on
/// standard error would only confuse.
fn tell(failure: Failure) -> Failure {
    println!("{}", failure.to_line());
    std::process::exit(failure.exit as i32)
}

/// Reports to the foreground process that the mount is ready, and closes the connection to it.
fn say_ready(record: &Record) {
    let mut out = std::io::stdout().lock();
    // If the foreground process has ended, the mount stays nevertheless.
    let _ = writeln!(out, "{}", record.to_line()).and_then(|()| out.flush());
    daemon::close_standard_streams();
}

/// Runs the background process.
fn serve(
    store: &Path,
    dir: &Path,
    mut options: Options,
    arguments: &[OsString],
    left: Option<i32>,
) -> Outcome {
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    if options.log.is_none() {
        options.log = daemon::default_log();
    }
    let mut is_ready = false;
    let begin = match left {
        None => Begin::Mount(store, dir),
        Some(left) => Begin::Resume(store, Box::new(Resumed::from_descriptor(left)?)),
    };
    let outcome = daemon::serve(begin, &options, arguments, &mut |record| {
        is_ready = true;
        say_ready(record);
        Ok(())
    });
    if is_ready || left.is_some() { outcome } else { outcome.map_err(tell) }
}

/// Runs the background process if it is a keeper.
fn keep(store: &Path, options: &Options, arguments: &[OsString]) -> Outcome {
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    let log = options.log.clone().or_else(daemon::default_log);
    let mut arguments = arguments.to_vec();
    if options.log.is_none() {
        arguments.extend(log.iter().flat_map(|log| ["--log".into(), log.clone().into()]));
    }
    // A daemon that the keeper starts gets a copy of the stream on which it reports to the
    // foreground process.
    let outcome = keeper::run(store, options, &arguments, daemon::close_terminal);
    let Err(failure) = outcome.map(drop) else { return Ok(()) };
    if let Some(mut log) = log.and_then(|log| destination::append(&log).ok()) {
        let _ = writeln!(log, "{}", failure.message);
    }
    Err(tell(failure))
}

/// Runs the daemon of a keeper. The first daemon whose mount is ready reports to the foreground
/// process.
fn serve_kept(
    begin: Begin<'_>,
    options: &Options,
    arguments: &[OsString],
    foreground: bool,
    output: &Output,
) -> Outcome {
    let Begin::Kept(_, _, held, _) = &begin else {
        return Err(Failure::new(Exit::Failed, "there is nothing that a keeper holds"));
    };
    let (first, lock) = (held.mount()?.is_none(), held.lock()?);
    let mut is_ready = false;
    let mut ready = |record: &Record| {
        is_ready = true;
        if !foreground {
            say_ready(record);
        } else if first {
            options.network.warning().iter().for_each(|warning| output.note(warning));
            announce(output, record)?;
        }
        Ok(())
    };
    let outcome = daemon::serve(begin, options, arguments, &mut ready);
    lock.let_go();
    if first && !is_ready && !foreground { outcome.map_err(tell) } else { outcome }
}
