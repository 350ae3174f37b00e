//! The descendants of this process, even those that have moved to the background, to another
//! session or to another name space.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};

use crate::support::terminal::output::{Failure, Outcome};

/// A running process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    pub process: i32,
    /// The name of its program as the kernel reports it, which may be any bytes.
    pub name: Vec<u8>,
}

/// Makes this process the subreaper of its descendants, so that orphans among them stay its
/// descendants.
pub fn keep_together() -> Outcome {
    let itself = Pid::from_raw(std::process::id() as i32);
    rustix::process::set_child_subreaper(itself)
        .map_err(|e| Failure::io("cannot keep together what the program starts", &e.into()))
}

/// Returns all running descendants except one process and its descendants.
pub fn all_but(one: Option<i32>) -> Vec<Running> {
    all_without(one.as_slice())
}

/// Returns all descendants that run now, without some processes and what those have started.
pub fn all_without(some: &[i32]) -> Vec<Running> {
    let mut of: HashMap<i32, Vec<Running>> = HashMap::new();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = std::str::from_utf8(name.as_bytes()).ok().and_then(|name| name.parse().ok());
        let Some((process, (parent, name))) =
            process.and_then(|process| Some((process, stat(process)?)))
        else {
            continue;
        };
        of.entry(parent).or_default().push(Running { process, name });
    }
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    let mut todo = vec![std::process::id() as i32];
    while let Some(parent) = todo.pop() {
        for child in of.remove(&parent).unwrap_or_default() {
            if !some.contains(&child.process) && seen.insert(child.process) {
                todo.push(child.process);
                found.push(child);
            }
        }
    }
    found.sort_by_key(|running| running.process);
    found
}

/// The fields of `/proc/PID/stat` between the parent and the number of threads.
const THREADS_AFTER_PARENT: usize = 15;

/// Returns the parent and the name of a process that has not ended.
fn stat(process: i32) -> Option<(i32, Vec<u8>)> {
    let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
    let begin = stat.iter().position(|byte| *byte == b'(')?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let name = stat.get(begin + 1..end)?.to_vec();
    let mut fields = std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // The first thread of a process may have ended, which makes it a zombie, while others run.
    let threads: u64 = fields.nth(THREADS_AFTER_PARENT)?.parse().ok()?;
    (!matches!(state, "Z" | "X") || threads > 1).then_some((parent, name))
}

/// The time limit of waiting for killed processes to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Kills all descendants, including those that they start during the loop. Returns the ones that
/// could not be killed.
pub fn end_all() -> Vec<Running> {
    end_all_but(None)
}

/// Does the same, except for one process and its descendants.
pub fn end_all_but(one: Option<i32>) -> Vec<Running> {
    end_all_without(one.as_slice())
}

/// Does the same, but for some processes and what those have started.
pub fn end_all_without(some: &[i32]) -> Vec<Running> {
    let until = Instant::now() + PATIENCE;
    loop {
        let running = all_without(some);
        for one in running.iter().filter_map(|one| Pid::from_raw(one.process)) {
            let _ = rustix::process::kill_process(one, Signal::KILL);
        }
        reap();
        if running.is_empty() || Instant::now() >= until {
            return running;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reaps children that have ended. The caller must not wait for any child itself afterwards.
fn reap() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}

/// Lists a few of the processes, like "4711 (sleep), 4712 (sh)".
pub fn told(running: &[Running]) -> String {
    const SHOWN: usize = 5;
    let one = |one: &Running| {
        format!("{} ({})", one.process, crate::support::terminal::text::show(&one.name))
    };
    let mut all: Vec<String> = running.iter().take(SHOWN).map(one).collect();
    if running.len() > SHOWN {
        all.push(format!("and {} more", running.len() - SHOWN));
    }
    all.join(", ")
}
