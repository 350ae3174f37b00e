//! A device on which a store is opened to record its reads. The device shows the zones of another,
//! open store, and keeps its own writes in memory.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use env::sync::Mutex;

use super::Zones;
use crate::remote::{FirstReads, MOST_FIRST};
use crate::{Device, Error, Purpose, ZONE_SIZE, ZoneId, ZoneUse};

/// The unit in which the device keeps its own bytes.
const PAGE: u64 = 64 << 10;
/// The largest number of units of own bytes.
const MOST_OWN: usize = 256;
/// The time after which reads fail, because a publication waits for the rehearsal.
const LONGEST: Duration = Duration::from_secs(2);

/// The zones of an open store as another device. See [`Zones::rehearse`].
pub struct Rehearsal {
    of: Arc<Zones>,
    /// The zones of the other store that are shown. The caller of [`Zones::rehearse`] keeps them
    /// unchanged.
    shown: ZoneUse,
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    len: u64,
    own: HashMap<u64, Box<[u8]>>,
    /// The bytes of shown zones that were read, with their addresses.
    read: Vec<(u64, Vec<u8>)>,
    /// The number of bytes in `read`.
    bytes: u64,
}

impl Rehearsal {
    pub(crate) fn new(of: Arc<Zones>, shown: ZoneUse) -> Rehearsal {
        let last = shown.iter().last().map_or(ZoneId(0), |(zone, _)| zone);
        let state = State { len: last.end().max(ZONE_SIZE), ..State::default() };
        Rehearsal { of, shown, begun: Instant::now(), state: Mutex::new(state) }
    }

    /// Returns the bytes of the zones of the other store that were read on this device.
    pub fn first_reads(&self) -> FirstReads {
        FirstReads::of(std::mem::take(&mut self.state.lock().read))
    }

    /// Reads from a shown zone. Returns an error if the limit of bytes or of time is reached, or if
    /// the bytes would have to be fetched.
    fn read_shown(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let len = buf.len() as u64;
        if self.state.lock().bytes + len > MOST_FIRST || self.begun.elapsed() > LONGEST {
            return Err(io::Error::other("enough was read for the first reads"));
        }
        if !self.of.is_here(offset, len) {
            return Err(io::Error::other("it would have to be fetched"));
        }
        self.of.read(purpose, offset, buf).map_err(io::Error::other)?;
        let mut state = self.state.lock();
        state.bytes += len;
        state.read.push((offset, buf.to_vec()));
        Ok(())
    }

    fn is_shown(&self, zone: ZoneId) -> bool {
        self.shown.contains(zone)
    }

    /// Calls `each` for every page that overlaps a range, with the page, the range in the page, and
    /// the range in the buffer.
    fn pages(
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let from = (at % PAGE) as usize;
            let here = (PAGE as usize - from).min(len - done);
            each(at / PAGE, from..from + here, done..done + here);
            done += here;
        }
    }
}

impl Device for Rehearsal {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.is_shown(ZoneId::of(offset)) {
            return self.read_shown(purpose, offset, buf);
        }
        let state = self.state.lock();
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > state.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::pages(offset, buf.len(), |page, within, to| match state.own.get(&page) {
            Some(page) => buf[to].copy_from_slice(&page[within]),
            None => buf[to].fill(0),
        });
        Ok(())
    }

    fn write_at(&self, _: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        if self.is_shown(ZoneId::of(offset)) {
            return Err(io::Error::other(Error::Invalid("a zone that is only shown".into())));
        }
        let mut state = self.state.lock();
        if state.own.len() > MOST_OWN {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Self::pages(offset, buf.len(), |page, within, from| {
            let page = state.own.entry(page).or_insert_with(|| vec![0; PAGE as usize].into());
            page[within].copy_from_slice(&buf[from]);
        });
        state.len = state.len.max(offset + buf.len() as u64);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().len)
    }

    fn grow(&self, new_len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.len = state.len.max(new_len);
        Ok(())
    }
}
