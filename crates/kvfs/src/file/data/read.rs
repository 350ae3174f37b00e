//! Reads files; `pages` reads their bytes.

use env::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use crate::attr::{FileKind, Ino, ReadHints};
use crate::error::{Error, Result};
use crate::fs::{Atime, Fs};
use crate::inode::InodeState;
use crate::layout::{Body, PAGE};

impl Fs {
    /// Reads up to `len` bytes at `offset`. Fewer bytes are read only at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes> {
        self.read_for(ino, offset, len, ReadHints::default())
    }

    /// Like `read`, with hints about the caller.
    pub fn read_for(&self, ino: Ino, offset: u64, len: u32, hints: ReadHints) -> Result<Bytes> {
        let data = self.reading(ino, (offset, u64::from(len)), hints, |state| {
            self.core.pages.read(ino, state, offset, u64::from(len))
        })?;
        self.core.counters.bytes_read.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(data)
    }

    /// Fills `room` with bytes of a file, and returns the number of bytes read.
    pub fn read_into(&self, ino: Ino, offset: u64, room: &mut [u8]) -> Result<usize> {
        self.read_into_for(ino, offset, room, ReadHints::default())
    }

    /// Like `read_into`, with hints about the caller.
    pub fn read_into_for(
        &self,
        ino: Ino,
        offset: u64,
        room: &mut [u8],
        hints: ReadHints,
    ) -> Result<usize> {
        let length = self.reading(ino, (offset, room.len() as u64), hints, |state| {
            let end = offset.saturating_add(room.len() as u64).min(state.attr.size);
            let is_inline = matches!(state.attr.body, Body::Inline(_));
            if offset >= end || is_inline || offset / PAGE == (end - 1) / PAGE {
                let data = self.core.pages.read(ino, state, offset, room.len() as u64)?;
                room[..data.len()].copy_from_slice(&data);
                return Ok(data.len());
            }
            let length = (end - offset) as usize;
            self.core.pages.read_into(ino, state, offset, &mut room[..length])?;
            Ok(length)
        })?;
        self.core.counters.bytes_read.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }

    /// Runs `read`, which reads a number of bytes at an offset, on the state of a file, and updates
    /// the access time if it is stale.
    fn reading<T>(
        &self,
        ino: Ino,
        (offset, len): (u64, u64),
        hints: ReadHints,
        read: impl FnOnce(&InodeState) -> Result<T>,
    ) -> Result<T> {
        let _call = self.enter()?;
        let in_order = self.core.reading_ahead.will_read(ino, offset);
        let inode = self.inode(ino)?;
        let state = inode.state.read();
        if state.gone {
            return Err(Error::Stale(ino));
        }
        match state.attr.kind {
            FileKind::File => {}
            FileKind::Dir => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("reading something that is not a file")),
        }
        let data = match in_order {
            Some(dir) => {
                self.core.reading_ahead.timed(dir, len.min(state.attr.size), || read(&state))?
            }
            None => read(&state)?,
        };
        let stale = !hints.keep_atime && self.atime_is_stale(&state);
        drop(state);
        if stale {
            let mut state = inode.state.write();
            state.attr.atime = self.now();
        }
        Ok(data)
    }

    /// Returns the target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let _call = self.enter()?;
        let inode = self.inode(ino)?;
        let state = inode.state.read();
        match state.attr.kind {
            _ if state.gone => Err(Error::Stale(ino)),
            FileKind::Symlink => Ok(self.core.pages.content(ino, &state)?.into()),
            _ => Err(Error::Invalid("not a symbolic link")),
        }
    }

    fn atime_is_stale(&self, state: &InodeState) -> bool {
        let (a, m, c) = (state.attr.atime, state.attr.mtime, state.attr.ctime);
        match self.core.options.atime {
            Atime::Never => false,
            _ if self.core.options.read_only => false,
            Atime::Relative => {
                a <= m
                    || a <= c
                    || self.core.env.wall()
                        > Duration::from_secs((a.secs.max(0) as u64).saturating_add(86_400))
            }
        }
    }
}
