//! A process that aborts the connection to the kernel when the daemon is killed and cannot end.
//!
//! When a process is killed, the kernel closes its descriptors once its last thread has ended. When
//! the last descriptor of the connection is closed, the connection is closed, and every program
//! that waits for an answer gets an error. A thread that notifies the kernel of changes at that
//! moment (`kernel_notifier`) waits in the kernel for the lock of a directory or a page, which one
//! of those programs may hold. Then the thread and the program wait for each other, and no signal
//! ends the wait: the store stays locked, and the programs hang.
//!
//! Therefore a small process (a shell, the smallest program that every system has) keeps open the
//! kernel's file that aborts this connection, and waits for the end of a pipe. The other end of the
//! pipe belongs to a thread with its own descriptor table. That thread never waits in the kernel
//! for a lock, so it ends as soon as the daemon is killed. A daemon that ends in order writes a
//! word to the pipe first.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::fs::OFlags;

use crate::control;
use crate::unshared_thread::{highest_descriptor, leave_descriptors, occupy};

/// The script of the shell: a pipe that ends without a word means that the daemon was killed.
const SCRIPT: &str = "trap '' INT TERM HUP; read -r word || echo 1";

/// Guards one connection until it is dropped.
pub(crate) struct AbortWatchdog {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl AbortWatchdog {
    /// Guards the connection of the mount with this device number.
    pub fn start(device: &str) -> io::Result<AbortWatchdog> {
        let (end, ended) = channel();
        let (say, said) = channel();
        let device = device.to_owned();
        let work = move || {
            let highest = highest_descriptor();
            let left = leave_descriptors().and_then(|()| occupy(highest));
            let child = left.and_then(|_taken| begin(&device));
            match child {
                Ok(child) => {
                    let _ = say.send(Ok(()));
                    until(&ended, child);
                }
                Err(e) => drop(say.send(Err(e))),
            }
        };
        let thread = std::thread::Builder::new().name("fuse-watchdog".into()).spawn(work)?;
        let watchdog = AbortWatchdog { end: Some(end), thread: Some(thread) };
        said.recv().map_err(|_| io::Error::other("its thread has ended"))??;
        Ok(watchdog)
    }
}

/// Starts the process. Only this thread has the pipe of the process and the file that aborts the
/// connection. A single byte written to that file ends the mount, so its descriptor gets a number
/// that no other descriptor of the daemon has.
fn begin(device: &str) -> io::Result<Child> {
    let abort = control::open(device, "abort", OFlags::WRONLY)?;
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", SCRIPT]).env_clear().current_dir("/").process_group(0);
    shell.stdin(Stdio::piped()).stdout(abort).stderr(Stdio::null()).spawn()
}

fn until(ended: &Receiver<()>, mut child: Child) {
    // The call returns when the sender is dropped.
    let _ = ended.recv();
    if let Some(mut pipe) = child.stdin.take() {
        let _ = pipe.write_all(b"end\n");
    }
    let _ = child.wait();
}

impl Drop for AbortWatchdog {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
