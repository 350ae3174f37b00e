//! The processes of one side. They are forked for a part of a history, and get their turns one
//! after the other.
//!
//! Each has the whole part in its memory, so a turn is two numbers through a pipe, and its
//! results come back as lines.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::call::Step;
use crate::kernel::{Answer, Errno, sys};
use crate::marks::Marks;
use crate::worker::{Pattern, Worker};

/// The time after which a call counts as hung.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// A worker, seen from the controller.
struct Process {
    pid: i32,
    /// The pipe on which the worker receives its next steps.
    turns: i32,
    results: i32,
}

pub struct Side {
    processes: Vec<Process>,
    /// The step that is being done, in memory which the processes share.
    now: *const AtomicUsize,
}

// SAFETY: the counter is an atomic that lives as long as the side; everything else is plain
// numbers.
unsafe impl Sync for Side {}

/// The reason why a part stopped early.
#[derive(Clone, Debug)]
pub struct Stopped {
    pub at: usize,
    pub why: String,
}

impl Side {
    /// Forks the workers of one side into the directory `home`. The calling process must have no
    /// other thread that holds a lock.
    pub fn start(home: &str, users: &[u32], steps: &[Step], marks: &'static Marks) -> Answer<Side> {
        let (both, shared) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let now = sys!(libc::mmap(std::ptr::null_mut(), 4096, both, shared, -1, 0))?
            as *const AtomicUsize;
        Pattern::shared();
        let mut side = Side { processes: Vec::new(), now };
        for &user in users {
            let (mut turns, mut results) = ([0; 2], [0; 2]);
            sys!(libc::pipe2(turns.as_mut_ptr(), libc::O_CLOEXEC))?;
            sys!(libc::pipe2(results.as_mut_ptr(), libc::O_CLOEXEC))?;
            let pid = sys!(libc::fork())? as i32;
            if pid == 0 {
                // The pipe ends of the others must not stay open here, or their closing would not
                // be noticed.
                for other in &side.processes {
                    let _ = sys!(libc::close(other.turns));
                }
                let _ = sys!(libc::close(turns[1]));
                let _ = sys!(libc::close(results[0]));
                // SAFETY: the page is mapped for as long as the process lives.
                let now = unsafe { &*now };
                let worker = Worker::new(home, user, Pattern::shared(), marks);
                let ended = serve(worker, steps, turns[0], results[1], now);
                // SAFETY: ends the process without running what belongs to its parent.
                unsafe { libc::_exit(i32::from(ended.is_err())) };
            }
            let _ = sys!(libc::close(turns[0]));
            let _ = sys!(libc::close(results[1]));
            side.processes.push(Process { pid, turns: turns[1], results: results[0] });
        }
        Ok(side)
    }

    /// Gives the workers their turns until the part is done. Returns the results, and the reason if
    /// the part stopped early.
    pub fn run(&self, steps: &[Step]) -> (Vec<String>, Option<Stopped>) {
        let mut results = Vec::with_capacity(steps.len());
        let mut text = Vec::new();
        while results.len() < steps.len() {
            let from = results.len();
            let worker = usize::from(steps[from].worker) % self.processes.len();
            let same = |step: &&Step| usize::from(step.worker) % self.processes.len() == worker;
            let until = from + steps[from..].iter().take_while(same).count();
            let process = &self.processes[worker];
            if let Err(why) = self.turn(process, from, until, &mut text) {
                results.extend(lines(&text));
                // SAFETY: the page is mapped until the side is dropped.
                let at = unsafe { &*self.now }.load(Ordering::Relaxed);
                return (results, Some(Stopped { at, why }));
            }
            results.extend(lines(&text));
        }
        (results, None)
    }

    fn turn(
        &self,
        process: &Process,
        from: usize,
        until: usize,
        text: &mut Vec<u8>,
    ) -> Result<(), String> {
        text.clear();
        let words = [from as u64, until as u64];
        if sys!(libc::write(process.turns, words.as_ptr().cast(), 16)) != Ok(16) {
            return Err("its process has ended".to_owned());
        }
        let mut buffer = [0u8; 16 << 10];
        let start = Instant::now();
        while text.iter().filter(|&&b| b == b'\n').count() < until - from {
            let mut waited = libc::pollfd { fd: process.results, events: libc::POLLIN, revents: 0 };
            match sys!(libc::poll(&mut waited, 1, 1000)) {
                Ok(0) if start.elapsed() > PATIENCE * (1 + (until - from) as u32 / 100) => {
                    return Err(format!(
                        "it does not come back within {} s",
                        start.elapsed().as_secs()
                    ));
                }
                Ok(0) | Err(Errno(libc::EINTR)) => continue,
                Err(e) => return Err(format!("poll: {}", e.name())),
                Ok(_) => {}
            }
            match sys!(libc::read(process.results, buffer.as_mut_ptr().cast(), buffer.len())) {
                Ok(0) => {
                    return Err(format!("its process has ended: {}", how_it_ended(process.pid)));
                }
                Ok(got) => text.extend_from_slice(&buffer[..got as usize]),
                Err(e) => return Err(format!("read: {}", e.name())),
            }
        }
        Ok(())
    }

    /// Ends all processes at once, as a crash would.
    pub fn kill(&self) {
        for process in &self.processes {
            let _ = sys!(libc::kill(process.pid, libc::SIGKILL));
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.kill();
        for process in &self.processes {
            let _ = sys!(libc::close(process.turns));
            let _ = sys!(libc::close(process.results));
            // A process that hangs in the kernel is abandoned.
            let end = Instant::now() + Duration::from_secs(10);
            while sys!(libc::waitpid(process.pid, std::ptr::null_mut(), libc::WNOHANG)) == Ok(0)
                && Instant::now() < end
            {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        let _ = sys!(libc::munmap(self.now.cast_mut().cast(), 4096));
    }
}

fn lines(text: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(text).lines().map(str::to_owned).collect()
}

fn how_it_ended(pid: i32) -> String {
    let mut status = 0;
    match sys!(libc::waitpid(pid, &mut status, 0)) {
        Ok(_) if libc::WIFSIGNALED(status) => format!("signal {}", libc::WTERMSIG(status)),
        Ok(_) => format!("exit code {}", libc::WEXITSTATUS(status)),
        Err(e) => e.name(),
    }
}

/// The life of a worker's process.
fn serve(
    worker: Answer<Worker>,
    steps: &[Step],
    turns: i32,
    results: i32,
    now: &AtomicUsize,
) -> io::Result<()> {
    let broken = |e: Errno| io::Error::from_raw_os_error(e.0);
    let mut worker = worker.map_err(broken)?;
    loop {
        let mut words = [0u64; 2];
        if sys!(libc::read(turns, words.as_mut_ptr().cast(), 16)).map_err(broken)? != 16 {
            return Ok(());
        }
        let mut text = String::new();
        for (index, step) in
            steps.iter().enumerate().take(words[1] as usize).skip(words[0] as usize)
        {
            now.store(index, Ordering::Relaxed);
            text.push_str(&worker.step(step).replace('\n', " "));
            text.push('\n');
        }
        let mut left = text.as_bytes();
        while !left.is_empty() {
            let put =
                sys!(libc::write(results, left.as_ptr().cast(), left.len())).map_err(broken)?;
            left = &left[put as usize..];
        }
    }
}
