//! Reading from a socket whose other end is likely to answer at once.
//!
//! A script and the server take turns: each message is answered by the other process within some
//! microseconds. To sleep until then costs more than the answer does, most of all on a virtual
//! machine, where it takes tens of microseconds to wake a processor that sleeps. So both ends look
//! for a message for a while before they sleep.

use std::io;
use std::os::fd::AsFd;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;

/// How long an end looks for a message before it sleeps: a few times what a command takes.
const WATCH: Duration = Duration::from_micros(50);
/// The logarithm of how many messages at most are not looked for after one did not come in time.
const MOST_SKIPPED: u32 = 6;

/// Looks for messages as long as that pays. Where they do not come in time, because scripts take
/// long or the other end gets no processor, the time is the machine's.
#[derive(Debug)]
pub struct Watchful {
    /// On a machine with one processor the other end does nothing while this one looks.
    alone: bool,
    /// Messages that did not come in time, one after the other.
    missed: u32,
    /// Messages that are not looked for.
    skips: u32,
}

impl Watchful {
    /// Asks the system how many processors there are.
    pub fn new() -> Self {
        let alone = available_parallelism().is_ok_and(|processors| processors.get() == 1);
        Watchful { alone, missed: 0, skips: 0 }
    }

    /// Receives what has come, or comes within some microseconds; no bytes are the end. `None`:
    /// nothing has come, and it is time to sleep.
    pub fn receive(&mut self, socket: impl AsFd, into: &mut [u8]) -> io::Result<Option<usize>> {
        if self.alone {
            return Ok(None);
        }
        if self.skips > 0 {
            self.skips -= 1;
            return Ok(None);
        }
        let begun = Instant::now();
        loop {
            match rustix::net::recv(&socket, &mut *into, RecvFlags::DONTWAIT) {
                Ok((_, got)) => {
                    self.missed = 0;
                    return Ok(Some(got));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if begun.elapsed() < WATCH => std::hint::spin_loop(),
                Err(Errno::AGAIN) => {
                    self.missed = (self.missed + 1).min(MOST_SKIPPED);
                    self.skips = (1 << self.missed) - 1;
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Default for Watchful {
    fn default() -> Self {
        Watchful::new()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_has_come_is_received_and_then_the_end() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut watchful = Watchful { alone: false, missed: 0, skips: 0 };
        theirs.write_all(b"four").expect("room");
        let mut into = [0; 8];
        assert_eq!(watchful.receive(&ours, &mut into).expect("open"), Some(4));
        assert_eq!(&into[..4], b"four");
        drop(theirs);
        assert_eq!(watchful.receive(&ours, &mut into).expect("closed"), Some(0));
    }

    #[test]
    fn messages_that_do_not_come_are_looked_for_ever_more_seldom() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut watchful = Watchful { alone: false, missed: 0, skips: 0 };
        let mut looked = Vec::new();
        for message in 0..200 {
            looked.extend((watchful.skips == 0).then_some(message));
            assert_eq!(watchful.receive(&ours, &mut [0; 8]).expect("open"), None);
        }
        assert_eq!(looked, [0, 2, 6, 14, 30, 62, 126, 190]);
        watchful.skips = 0;
        theirs.write_all(b"four").expect("room");
        assert_eq!(watchful.receive(&ours, &mut [0; 8]).expect("open"), Some(4));
        assert_eq!(watchful.receive(&ours, &mut [0; 8]).expect("open"), None);
        assert_eq!(watchful.skips, 1, "one has come, so it counts from the beginning");
    }
}
