//! The pool of workers. The number of workers is bounded. Each worker is used by one connection
//! at a time and then kept for the next one.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::worker::Worker;
use crate::error_code::ErrorCode;
use crate::failure::Failure;
use crate::request::Request;

pub struct Pool {
    command: Option<Vec<OsString>>,
    most: usize,
    state: Mutex<Workers>,
    /// Signalled when a slot is free.
    free: Condvar,
}

#[derive(Default)]
struct Workers {
    taken: usize,
    idle: Vec<Worker>,
    running: HashMap<u64, Arc<Running>>,
    next: u64,
    closed: bool,
}

/// A running script or function.
struct Running {
    socket: Arc<UnixStream>,
    killed: AtomicBool,
    call: Option<Call>,
}

/// A call of a function.
pub struct Call {
    pub name: String,
    pub command: Request,
    pub begun: Instant,
}

impl Running {
    fn kill(&self) {
        self.killed.store(true, Relaxed);
        // The thread that waits for the worker notices the shutdown.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

impl Pool {
    pub fn new(command: Option<Vec<OsString>>, most: usize) -> Self {
        Pool { command, most, state: Mutex::default(), free: Condvar::new() }
    }

    /// Returns a slot for a worker. Waits for a slot for at most `time`.
    pub fn slot(self: &Arc<Self>, time: Duration) -> Result<Slot, Failure> {
        if self.command.is_none() {
            return Err(Failure::request(
                "no scripts are run here: this server was started without a process for them",
            ));
        }
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while state.taken >= self.most && !state.closed {
            if self.free.wait_until(&mut state, until).timed_out() {
                return Err(Failure::Limit(format!(
                    "{} scripts are running; try again later",
                    self.most
                )));
            }
        }
        if state.closed {
            return Err(Failure::STOPPING);
        }
        state.taken += 1;
        Ok(Slot { pool: self.clone(), worker: state.idle.pop() })
    }

    /// Kills the running scripts, or the running functions. Returns an error if none is running.
    pub fn kill(&self, functions: bool) -> Result<(), Failure> {
        let state = self.state.lock();
        let of_kind = |running: &&Arc<Running>| running.call.is_some() == functions;
        let mut killed = false;
        for running in state.running.values().filter(of_kind) {
            running.kill();
            killed = true;
        }
        match (killed, state.running.is_empty(), functions) {
            (true, ..) => Ok(()),
            (_, true, _) => {
                Err(Failure::coded(ErrorCode::NotBusy, "No scripts in execution right now."))
            }
            (_, _, true) => Err(Failure::coded(
                ErrorCode::Busy,
                "Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            )),
            (_, _, false) => Err(Failure::coded(
                ErrorCode::Busy,
                "Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.",
            )),
        }
    }
    /// Calls `show` with the function that has been running for the longest time, if one is
    /// running.
    pub fn show_call<T>(&self, show: impl FnOnce(&Call) -> T) -> Option<T> {
        let state = self.state.lock();
        let calls = state.running.values().filter_map(|running| running.call.as_ref());
        calls.min_by_key(|call| call.begun).map(show)
    }
    /// Kills all running scripts and functions, and prevents others from starting.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.free.notify_all();
        state.running.values().for_each(|running| running.kill());
    }
}

/// A slot for a worker, and the worker once it has been started.
pub struct Slot {
    pool: Arc<Pool>,
    worker: Option<Worker>,
}

impl Slot {
    /// Returns the worker, which must be idle. A worker that has ended is replaced, and so is a
    /// worker that has sent an unsolicited message. Otherwise its next message would be taken for
    /// the answer to the next script, and a call of the previous script for a call of the next
    /// one.
    fn worker(&mut self) -> Result<&mut Worker, Failure> {
        if !self.worker.as_ref().is_some_and(Worker::is_at_rest) {
            self.worker = None;
            let command = self.pool.command.as_deref().unwrap_or_default();
            let worker = Worker::start(command).map_err(|error| {
                Failure::request(format!("the process for scripts does not start: {error}"))
            })?;
            self.worker = Some(worker);
        }
        self.worker.as_mut().ok_or(Failure::STOPPING)
    }

    /// Runs `work` with the worker registered, so that it can be killed. `call` is the function
    /// that the worker runs, or `None` for a script. `work` returns whether the worker is idle
    /// afterwards; if it is not, the worker is ended.
    pub fn with<T>(
        &mut self,
        call: Option<Call>,
        work: impl FnOnce(&mut Worker) -> (T, bool),
    ) -> Result<(T, bool), Failure> {
        let pool = self.pool.clone();
        let worker = self.worker()?;
        let (socket, killed) = (worker.socket(), AtomicBool::new(false));
        let running = Arc::new(Running { socket, killed, call });
        let id = {
            let mut state = pool.state.lock();
            if state.closed {
                return Err(Failure::STOPPING);
            }
            state.next += 1;
            let id = state.next;
            state.running.insert(id, running.clone());
            id
        };
        let (done, at_rest) = work(worker);
        pool.state.lock().running.remove(&id);
        let killed = running.killed.load(Relaxed);
        if !at_rest || killed {
            self.worker = None;
        }
        Ok((done, killed))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.taken -= 1;
        state.idle.extend(self.worker.take());
        drop(state);
        self.pool.free.notify_one();
    }
}
