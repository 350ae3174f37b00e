//! A tar stream on its way to the `tar` crate. The crate reads the description of an entry into
//! memory, whatever length it claims, and returns the holes of GNU's sparse files as zeros, however
//! large they are. So the bytes between the contents of two entries are limited here, and kept,
//! since they contain the maps of such files; and the contents of files are read past the crate,
//! which believes that it skips them.

use std::cell::RefCell;
use std::io::{self, BufRead, Read};
use std::rc::Rc;

/// The limit for the description of an entry: names, records, maps. The attributes of a file take
/// at most a few megabytes.
const LONGEST: u64 = 8 << 20;

/// The extents of a sparse file's data: offsets and lengths.
type Parts = Vec<(u64, u64)>;

struct Stream<R> {
    inner: R,
    /// Bytes read from `inner`.
    at: u64,
    /// The bytes among them that the crate believes are still to come.
    ahead: u64,
    /// While headers are read, the end of the content that precedes them.
    passing: Option<u64>,
    /// The bytes read beyond `passing`.
    heard: Vec<u8>,
}

pub struct TarStream<R>(Rc<RefCell<Stream<R>>>);

impl<R> Clone for TarStream<R> {
    fn clone(&self) -> Self {
        TarStream(self.0.clone())
    }
}

impl<R: Read> Read for TarStream<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.0.borrow_mut();
        if stream.ahead > 0 {
            let len = buf.len().min(usize::try_from(stream.ahead).unwrap_or(usize::MAX));
            // The crate does not look at bytes that it skips, so the buffer stays unchanged.
            stream.ahead -= len as u64;
            return Ok(len);
        }
        let got = stream.inner.read(buf)?;
        let before = stream.at;
        stream.at += got as u64;
        if let Some(end) = stream.passing
            && stream.at > end
        {
            let new = usize::try_from(end.saturating_sub(before)).unwrap_or(usize::MAX);
            stream.heard.extend_from_slice(buf[..got].get(new..).unwrap_or_default());
            if stream.heard.len() as u64 > LONGEST {
                let what = format!("what describes an entry is longer than {} MiB", LONGEST >> 20);
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        Ok(got)
    }
}

impl<R: Read> TarStream<R> {
    pub fn new(inner: R) -> Self {
        TarStream(Rc::new(RefCell::new(Stream {
            inner,
            at: 0,
            ahead: 0,
            passing: None,
            heard: Vec::new(),
        })))
    }

    /// Must be called before the crate reads the next entry. The content of the previous one ends
    /// at `end`.
    pub fn pass(&self, end: u64) {
        let mut stream = self.0.borrow_mut();
        stream.passing = Some(end);
        stream.heard.clear();
    }

    /// Must be called after the crate has read an entry. Returns the end of its content, and, for a
    /// sparse file in GNU's own format, the extents of its data.
    pub fn found<E: Read>(&self, entry: &tar::Entry<'_, E>) -> io::Result<(u64, Option<Parts>)> {
        let mut stream = self.0.borrow_mut();
        let heard_from = stream.at - stream.heard.len() as u64;
        stream.passing = None;
        let begin = entry.raw_file_position();
        let Some(gnu) =
            entry.header().as_gnu().filter(|_| entry.header().entry_type().is_gnu_sparse())
        else {
            return Ok((begin.saturating_add(entry.size()), None));
        };
        let mut map = Vec::new();
        let mut add = |part: &tar::GnuSparseHeader| {
            if !part.is_empty() {
                map.push((part.offset()?, part.length()?));
            }
            Ok::<_, io::Error>(())
        };
        gnu.sparse.iter().try_for_each(&mut add)?;
        let mut more = gnu.is_extended();
        let behind = usize::try_from(begin.saturating_sub(heard_from)).unwrap_or(usize::MAX);
        for block in stream.heard.get(behind..).unwrap_or_default().chunks_exact(512) {
            if !more {
                break;
            }
            let mut part = tar::GnuExtSparseHeader::new();
            part.as_mut_bytes().copy_from_slice(block);
            part.sparse().iter().try_for_each(&mut add)?;
            more = part.is_extended();
        }
        let end = map.iter().fold(stream.at, |end, (_, len)| end.saturating_add(*len));
        Ok((end, Some(map)))
    }
}

impl<R: BufRead> TarStream<R> {
    /// Appends the next `len` bytes to `into`, or as many as there are, past the crate. This is
    /// only for bytes that the crate will skip. The crate itself would zero each byte before it is
    /// read, and copy it once more.
    pub fn read_content(&self, len: usize, into: &mut Vec<u8>) -> io::Result<()> {
        let mut stream = self.0.borrow_mut();
        let mut left = len;
        while left > 0 {
            let there = match stream.inner.fill_buf() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                there => there?,
            };
            let got = there.len().min(left);
            if got == 0 {
                break;
            }
            into.extend_from_slice(&there[..got]);
            stream.inner.consume(got);
            stream.at += got as u64;
            stream.ahead += got as u64;
            left -= got;
        }
        Ok(())
    }
}
