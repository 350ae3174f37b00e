//! The processes that this one has started, and those that they have, however far they have gone:
//! into the background, a session of their own, or a name space.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};

use crate::output::{Failure, Outcome};

/// A process that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    pub process: i32,
    /// Of its program, as the kernel has it: any bytes.
    pub name: Vec<u8>,
}

/// Keeps what is left behind by those between a descendant of this process.
pub fn keep_together() -> Outcome {
    let itself = Pid::from_raw(std::process::id() as i32);
    rustix::process::set_child_subreaper(itself)
        .map_err(|e| Failure::io("cannot keep together what the program starts", &e.into()))
}

/// All that run now.
pub fn all() -> Vec<Running> {
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
            if seen.insert(child.process) {
                todo.push(child.process);
                found.push(child);
            }
        }
    }
    found.sort_by_key(|running| running.process);
    found
}

/// Parent and name of a process that has not ended.
fn stat(process: i32) -> Option<(i32, Vec<u8>)> {
    let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
    let begin = stat.iter().position(|byte| *byte == b'(')?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let name = stat.get(begin + 1..end)?.to_vec();
    let mut fields = std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then_some(())?;
    Some((fields.next()?.parse().ok()?, name))
}

/// How long is waited for what was killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends them all, whatever they start meanwhile. What is left after that cannot be killed.
pub fn end_all() -> Vec<Running> {
    let until = Instant::now() + PATIENCE;
    loop {
        let running = all();
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

/// Takes notice of those that have ended. The caller waits for none of its children any more.
fn reap() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}

/// "4711 (sleep), 4712 (sh)", a few of them.
pub fn told(running: &[Running]) -> String {
    const SHOWN: usize = 5;
    let one = |one: &Running| format!("{} ({})", one.process, crate::text::show(&one.name));
    let mut all: Vec<String> = running.iter().take(SHOWN).map(one).collect();
    if running.len() > SHOWN {
        all.push(format!("and {} more", running.len() - SHOWN));
    }
    all.join(", ")
}
