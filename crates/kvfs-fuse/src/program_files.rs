//! Finds the files that programs run from.
//!
//! The kernel refuses to open a file for writing while it is executed, and to execute a file that
//! is open for writing. So the files in question are opened for writing through the mount, by their
//! handles, which succeeds only for files that the kernel has in memory. They stay open until the
//! caller has made the change that must not affect a running program. This method does not work for
//! libraries, which are searched in the tables of mappings of all processes that this process may
//! read.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvfs::{Ino, Running};

use crate::handler::NodeId;
use crate::mount_root::{MountRoot, open_by_handle};
use crate::unshared_thread::UnsharedThread;

/// The three numbers of an inode: the number in its view, the kernel's number, and the number that
/// programs see.
pub(crate) type Asked = (Ino, NodeId, u64);

pub(crate) struct ProgramFiles {
    thread: Arc<UnsharedThread>,
    last: AtomicU64,
}

thread_local! {
    /// The open files of the thread, whose descriptors are valid only in this thread.
    static HELD: RefCell<HashMap<u64, Vec<File>>> = RefCell::default();
}

/// When dropped, makes the thread close the files that it holds open.
struct Held {
    thread: Arc<UnsharedThread>,
    key: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        let key = self.key;
        // An error means that the thread has stopped and has closed all its files.
        let _ = self.thread.ask(move || HELD.with_borrow_mut(|held| drop(held.remove(&key))));
    }
}

impl ProgramFiles {
    pub fn start() -> io::Result<ProgramFiles> {
        let thread = Arc::new(UnsharedThread::start("fuse-programs")?);
        Ok(ProgramFiles { thread, last: AtomicU64::new(0) })
    }

    /// Returns the files among `files` from which programs run, or no files if this is unknown.
    pub fn running(&self, mount_root: &MountRoot, files: Vec<Asked>) -> Running {
        let key = self.last.fetch_add(1, Ordering::Relaxed);
        let held: Box<dyn Any + Send> = Box::new(Held { thread: self.thread.clone(), key });
        let (root, device) = (mount_root.clone(), mount_root.device());
        let work = move || {
            let mut running = executed(&root, key, &files).unwrap_or_default();
            let others = files.iter().filter(|(ino, ..)| !running.contains(ino));
            let others: HashMap<u64, Ino> = others.map(|&(ino, _, shown)| (shown, ino)).collect();
            running.extend(mapped(device, &others));
            running
        };
        Running::new(self.thread.ask(work).unwrap_or_default(), held)
    }

    pub fn stop(&self) {
        self.thread.stop();
    }
}

/// Returns the files that are executed. The other files stay open.
fn executed(root: &MountRoot, key: u64, files: &[Asked]) -> io::Result<Vec<Ino>> {
    let root = root.open()?;
    let (mut running, mut open) = (Vec::new(), Vec::new());
    for &(ino, node, _) in files {
        match open_by_handle(&root, node, libc::O_WRONLY) {
            Ok(file) => open.push(file),
            Err(e) if e.raw_os_error() == Some(libc::ETXTBSY) => running.push(ino),
            // The file is not in the kernel's memory, or it may not be opened in this way.
            Err(_) => {}
        }
    }
    HELD.with_borrow_mut(|held| held.insert(key, open));
    Ok(running)
}

/// Returns the files of which a process has mapped an executable part.
fn mapped(device: u64, files: &HashMap<u64, Ino>) -> Vec<Ino> {
    let mut found = Vec::new();
    if files.is_empty() {
        return found;
    }
    let device = format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        if !process.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
            continue;
        }
        let Ok(maps) = fs::read(process.path().join("maps")) else { continue };
        for line in maps.split(|&byte| byte == b'\n') {
            let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
            let (_, rights, _) = (fields.next(), fields.next(), fields.next());
            let (on, number) = (fields.next(), fields.next());
            let executable = rights.is_some_and(|rights| rights.contains(&b'x'));
            if !executable || on != Some(device.as_bytes()) {
                continue;
            }
            let number = number.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
            if let Some(&ino) = number.and_then(|number: u64| files.get(&number))
                && !found.contains(&ino)
            {
                found.push(ino);
            }
        }
    }
    found
}
