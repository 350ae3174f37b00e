//! The CPUs of the machine. The kernel has one queue for every possible CPU, that is, every CPU
//! that could ever be present.

use std::fs;
use std::io;

use rustix::thread::CpuSet;

/// The numbers of the possible CPUs, and of those that are online.
pub(crate) struct Cpus {
    pub possible: Vec<usize>,
    pub online: Vec<usize>,
}

impl Cpus {
    pub fn of_machine() -> io::Result<Cpus> {
        let list = |name: &str| {
            let path = format!("/sys/devices/system/cpu/{name}");
            let text = fs::read_to_string(&path)?;
            parse(&text).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{path} reads '{}'", text.trim()),
                )
            })
        };
        Ok(Cpus { possible: list("possible")?, online: list("online")? })
    }
}

/// Parses a list of the kernel, such as `0-3,8`.
fn parse(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CpuSet::MAX_CPU {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Keeps the calling thread on one CPU.
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &only)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(parse("0-1\n"), Some(vec![0, 1]));
        assert_eq!(parse("0"), Some(vec![0]));
        assert_eq!(parse("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        for wrong in ["", "a", "1-", "3-1", "0-99999999999", "0-4294967295"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_thread_stays_where_it_is_told_to() {
        let cpus = Cpus::of_machine().expect("sysfs");
        assert!(
            !cpus.online.is_empty() && cpus.online.iter().all(|cpu| cpus.possible.contains(cpu))
        );
        let allowed = rustix::thread::sched_getaffinity(None).expect("this thread's CPUs");
        let last = *cpus.online.iter().rfind(|cpu| allowed.is_set(**cpu)).expect("a CPU to run on");
        let pinned =
            std::thread::spawn(move || pin(last).map(|()| rustix::thread::sched_getaffinity(None)));
        let pinned = pinned.join().expect("no panic").expect("pinned").expect("its CPUs");
        assert!(pinned.is_set(last) && pinned.count() == 1);
    }
}
