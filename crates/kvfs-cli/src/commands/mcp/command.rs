//! Runs a command in a transaction, with limits on its time and its output.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use super::arguments::{Arguments, Told, cut};
use super::session::{MOST_WAITING, Session};
use super::wire::Line;
use crate::support::machine::descendants;
use crate::support::terminal::output::{Failure, Outcome};

/// The polling interval for the end of the command.
const LOOK: Duration = Duration::from_millis(20);
/// The time limit of waiting for output that is still in the pipes of a command that has ended.
const PIPES: Duration = Duration::from_secs(2);

/// The output of a pipe: its beginning is kept, the rest is only counted.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    total: u64,
}

struct Collector {
    kept: Arc<Mutex<Kept>>,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    fn of(pipe: Option<impl Read + Send + 'static>, most: usize) -> Collector {
        let kept = Arc::new(Mutex::new(Kept::default()));
        let thread = pipe.map(|mut pipe| {
            let kept = kept.clone();
            std::thread::spawn(move || {
                let mut piece = vec![0; 64 << 10];
                while let Ok(read) = pipe.read(&mut piece) {
                    if read == 0 {
                        break;
                    }
                    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    let room = most.saturating_sub(kept.bytes.len()).min(read);
                    kept.bytes.extend_from_slice(&piece[..room]);
                    kept.total += read as u64;
                }
            })
        });
        Collector { kept, thread }
    }

    /// Returns the output received until the end of the pipe or the deadline `until`.
    fn text(mut self, name: &str, until: Instant) -> String {
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.total == 0 {
            return String::new();
        }
        let text = String::from_utf8_lossy(&kept.bytes);
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let cut = match kept.total - kept.bytes.len() as u64 {
            0 => String::new(),
            left => format!("[truncated: {left} of {} bytes are left out]\n", kept.total),
        };
        format!("--- {name}\n{text}{end}{cut}")
    }
}

/// The reasons for killing a command.
enum Ended {
    TimeOut,
    Cancelled,
    ClientGone,
}

/// Kills the command's process group at once; its other descendants are killed when the command has
/// ended.
fn kill(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

fn has_ended(child: &Child) -> std::io::Result<bool> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(std::io::ErrorKind::NotFound)?;
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(rustix::process::waitid(WaitId::Pid(pid), how)?.is_some())
}

/// Starts the command in the transaction, with its input.
fn start(session: &Session, given: &Arguments<'_>, id: u64) -> Outcome<Child> {
    let directory = given.text("directory").unwrap_or("").trim_start_matches('/');
    let own = |e: std::io::Error| Failure::io("cannot find the kvfs program", &e);
    let mut command = Command::new(std::env::current_exe().map_err(own)?);
    command
        .args(["txn", "exec"])
        .arg(&session.mounted.mount_point)
        .arg(id.to_string())
        // End the command even if this process is killed.
        .args(["--ends-with", &std::process::id().to_string()])
        // Start the shell where the transaction's branch is visible: in any other directory it
        // would write outside of the transaction.
        .args(["--", "sh", "-c", "cd -- \"$KVFS_MOUNT/$1\" && exec sh -c \"$2\"", "sh"])
        .arg(directory)
        .arg(given.needed("command")?)
        .stdin(if given.text("input").is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = command.spawn().map_err(|e| Failure::io("cannot start the command", &e))?;
    if let (Some(mut pipe), Some(input)) = (child.stdin.take(), given.text("input")) {
        let input = input.as_bytes().to_vec();
        // The command may not read all of it.
        std::thread::spawn(move || drop(pipe.write_all(&input)));
    }
    Ok(child)
}

pub fn run(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let id = given.transaction()?;
    // Check that the transaction exists before a program is started in it.
    session.mounted.txn(&["STATUS", &id.to_string()])?;
    if !session.begun.contains(&id) {
        // Another process has begun the transaction: seal it as well, so that the command may write
        // in it but not end it.
        session.mounted.txn(&["SEAL", &id.to_string()])?;
    }
    let mut child = start(session, given, id)?;
    let most = given.number("output_limit").and_then(|n| usize::try_from(n).ok());
    let most = most.unwrap_or(session.limits.output).min(session.limits.output);
    let out = Collector::of(child.stdout.take(), most);
    let err = Collector::of(child.stderr.take(), most);
    let seconds = given.number("timeout_seconds").unwrap_or(session.limits.timeout);
    let seconds = seconds.clamp(1, session.limits.timeout);
    let begun = Instant::now();
    // The deadline may be too far in the future to compute; there is none then.
    let until = begun.checked_add(Duration::from_secs(seconds));
    let mut ended = None;
    let wait = |e: std::io::Error| Failure::io("cannot wait for the command", &e);
    while !has_ended(&child).map_err(wait)? {
        if ended.is_none() {
            ended = until
                .is_some_and(|until| Instant::now() >= until)
                .then_some(Ended::TimeOut)
                .or_else(|| listen(session));
            if ended.is_some() {
                kill(&child);
            }
        } else {
            std::thread::sleep(LOOK);
        }
    }
    let status = child.wait().map_err(wait)?;
    // Kill the command's descendants, even those in other sessions, which could continue in the
    // transaction.
    let left = descendants::end_all();
    let until = Instant::now() + PIPES;
    let mut text = match ended {
        Some(Ended::TimeOut) => {
            format!(
                "timed out: ended after {seconds} s. What it has written is in the transaction\n"
            )
        }
        Some(Ended::Cancelled) => "cancelled\n".into(),
        Some(Ended::ClientGone) => "the client is gone\n".into(),
        None => format!(
            "exit code {}, after {:.1} s\n",
            status.code().unwrap_or(-1),
            begun.elapsed().as_secs_f64()
        ),
    };
    if !left.is_empty() {
        text.push_str(&format!("these cannot be ended: {}\n", descendants::told(&left)));
    }
    text.push_str(&out.text("standard output", until));
    text.push_str(&err.text("standard error", until));
    Ok(Told { text: cut(&text, 2 * most + 512), failed: ended.is_some() || !status.success() })
}

/// Receives a message of the client for a moment, while a command runs. Messages other than a
/// cancellation are queued.
fn listen(session: &mut Session) -> Option<Ended> {
    match session.lines.within(Some(LOOK)) {
        Line::End => Some(Ended::ClientGone),
        Line::Nothing => None,
        _ if session.waiting.len() >= MOST_WAITING => Some(Ended::Cancelled),
        line => session.put_off(line).then_some(Ended::Cancelled),
    }
}
