//! A connection in memory with the faults of a network: it delays bytes, delivers them in pieces,
//! is cut after any of them, or swallows all that follow. Frames may be repeated and overtake each
//! other, as if the path consisted of several connections.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use env::schedule;
use env::sync::{Condvar, Mutex};
use kvdb_wire::{Socket, Transport};

/// Returns a number below `n`, from the seed of the run.
pub fn below(n: u64) -> u64 {
    let number = schedule::random().expect("it is a thread of a run");
    ((u128::from(number) * u128::from(n)) >> 64) as u64
}

pub fn one_in(n: u64) -> bool {
    n > 0 && below(n) == 0
}

/// The faults of a connection. Each occurs once in this number of connections, frames or calls; 0
/// means never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Troubles {
    /// Connections that are cut after some bytes.
    pub cut: u64,
    /// Connections that swallow everything after some bytes, without notifying either side.
    pub swallow: u64,
    /// Frames that are delayed.
    pub delay: u64,
    /// Limit of the delay in milliseconds.
    pub delay_ms: u64,
    /// Frames that arrive twice.
    pub twice: u64,
    /// Frames that others may overtake.
    pub overtaken: u64,
    /// Reads and writes that transfer only part of the bytes.
    pub pieces: u64,
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    /// The frame that is being written.
    partial: Vec<u8>,
    /// Frames that were written, with the times at which they arrive.
    coming: Vec<(Duration, Vec<u8>)>,
    /// The time at which the last frame in order arrives.
    last: Duration,
    /// The frame that is being read.
    current: VecDeque<u8>,
    frames: u64,
    /// Set once the writer has ended the connection.
    ended: bool,
    read: usize,
    /// The number of bytes after which this direction is cut or swallows the rest.
    stops_after: Option<(usize, Stop)>,
    limit: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    Cut,
    Swallow,
}

struct Ways {
    /// The directions of requests and of answers.
    ways: [Way; 2],
    /// Set once the connection is cut.
    is_cut: bool,
}

/// Both ends of a connection.
pub struct Link {
    ways: Mutex<Ways>,
    changed: Condvar,
    troubles: Troubles,
}

/// The end of the client (0) or of the server (1): the index is that of the direction to which it
/// writes.
struct End(Arc<Link>, usize);

impl Link {
    /// Creates a connection. Returns it with the end of the client and the end of the server.
    pub fn new(troubles: Troubles) -> (Arc<Link>, Socket, Socket) {
        let mut ways = [Way::default(), Way::default()];
        let stop = match (one_in(troubles.cut), one_in(troubles.swallow)) {
            (true, _) => Some(Stop::Cut),
            (_, true) => Some(Stop::Swallow),
            _ => None,
        };
        if let Some(stop) = stop {
            // A few connections are cut within the greeting, most of them later.
            let after = 1 + below(1 << (3 + below(9)));
            ways[below(2) as usize].stops_after = Some((after as usize, stop));
        }
        let link = Arc::new(Link {
            ways: Mutex::new(Ways { ways, is_cut: false }),
            changed: Condvar::new(),
            troubles,
        });
        let end = |side| Socket::over(End(link.clone(), side));
        let (client, server) = (end(0), end(1));
        (link, client, server)
    }

    /// Cuts the connection. Bytes that have arrived may or may not still be read.
    pub fn cut(&self) {
        let mut ways = self.ways.lock();
        ways.is_cut = true;
        for way in &mut ways.ways {
            way.coming.clear();
            if one_in(2) {
                way.current.clear();
            }
        }
        drop(ways);
        self.changed.notify_all();
    }
}

impl Way {
    /// Takes the whole frames of the written bytes, and schedules their arrival.
    fn send(&mut self, troubles: &Troubles) {
        loop {
            let Some(head) = self.partial.first_chunk::<4>() else { return };
            let length = 8 + u32::from_le_bytes(*head) as usize;
            if self.partial.len() < length {
                return;
            }
            let rest = self.partial.split_off(length);
            let frame = std::mem::replace(&mut self.partial, rest);
            let now = schedule::now();
            let late = |troubles: &Troubles| match one_in(troubles.delay) {
                true => Duration::from_millis(below(1 + below(troubles.delay_ms))),
                false => Duration::ZERO,
            };
            // The greeting arrives first, and only once.
            self.frames += 1;
            let is_greeting = self.frames == 1;
            let at = now + late(troubles);
            if is_greeting || !one_in(troubles.overtaken) {
                self.last = self.last.max(at);
                self.coming.push((self.last, frame.clone()));
            } else {
                self.coming.push((at, frame.clone()));
            }
            if !is_greeting && one_in(troubles.twice) {
                let later = Duration::from_millis(below(1 + below(troubles.delay_ms)));
                self.coming.push((at + later, frame));
            }
        }
    }

    /// Makes the next frame readable if it has arrived. Otherwise returns the time at which it
    /// does.
    fn arrive(&mut self) -> Option<Duration> {
        let next = self.coming.iter().enumerate().min_by_key(|(_, (at, _))| *at);
        let (place, at) = next.map(|(place, (at, _))| (place, *at))?;
        if at > schedule::now() {
            return Some(at);
        }
        let (_, frame) = self.coming.remove(place);
        self.current.extend(frame);
        None
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.end();
    }
}

impl Transport for End {
    fn read(&self, room: &mut [u8]) -> io::Result<usize> {
        let End(link, side) = self;
        let from = 1 - side;
        let mut all = link.ways.lock();
        let deadline = all.ways[from].limit.map(|limit| schedule::now() + limit);
        loop {
            if all.ways[from].stops_after.is_some_and(|(after, _)| all.ways[from].read >= after) {
                match all.ways[from].stops_after {
                    Some((_, Stop::Cut)) => all.is_cut = true,
                    _ => {
                        all.ways[from].current.clear();
                        all.ways[from].coming.clear();
                    }
                }
                link.changed.notify_all();
            }
            let is_cut = all.is_cut;
            let way = &mut all.ways[from];
            let mut arrives = None;
            if way.current.is_empty() && !is_cut {
                arrives = way.arrive();
            }
            if !way.current.is_empty() {
                let mut most = room.len().min(way.current.len());
                if one_in(link.troubles.pieces) {
                    most = 1 + below(most as u64) as usize;
                }
                if let Some((after, _)) = way.stops_after {
                    most = most.min(after.saturating_sub(way.read)).max(1);
                }
                for (place, byte) in room.iter_mut().zip(way.current.drain(..most)) {
                    *place = byte;
                }
                way.read += most;
                return Ok(most);
            }
            if is_cut {
                return match one_in(2) {
                    true => Ok(0),
                    false => Err(io::ErrorKind::ConnectionReset.into()),
                };
            }
            if arrives.is_none() && way.ended {
                return Ok(0);
            }
            // An end that was closed reads nothing more.
            if all.ways[*side].ended {
                return Ok(0);
            }
            let now = schedule::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let until = [arrives, deadline].into_iter().flatten().min();
            match until {
                Some(until) => {
                    link.changed.wait_for(&mut all, until.saturating_sub(now));
                }
                None => link.changed.wait(&mut all),
            }
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let End(link, side) = self;
        let mut all = link.ways.lock();
        let is_over = all.is_cut || all.ways[*side].ended || all.ways[1 - side].ended;
        if is_over {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut most = bytes.len();
        if one_in(link.troubles.pieces) {
            most = 1 + below(most as u64) as usize;
        }
        let way = &mut all.ways[*side];
        way.partial.extend_from_slice(&bytes[..most]);
        way.send(&link.troubles);
        drop(all);
        link.changed.notify_all();
        Ok(most)
    }

    fn end(&self) {
        let End(link, side) = self;
        let mut all = link.ways.lock();
        let way = &mut all.ways[*side];
        way.ended = true;
        // The written part of an incomplete frame arrives, too.
        if !way.partial.is_empty() {
            let part = (way.last, std::mem::take(&mut way.partial));
            way.coming.push(part);
        }
        drop(all);
        link.changed.notify_all();
    }

    fn limit_reads(&self, time: Option<Duration>) -> io::Result<()> {
        self.0.ways.lock().ways[1 - self.1].limit = time;
        Ok(())
    }

    fn limit_writes(&self, _: Option<Duration>) -> io::Result<()> {
        // Writes never wait in this transport.
        Ok(())
    }
}
