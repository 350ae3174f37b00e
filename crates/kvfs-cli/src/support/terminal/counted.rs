//! A stream that counts what passes through it on a progress bar.

use std::io::{self, Read, Write};

use indicatif::ProgressBar;

/// Counts the bytes passed through on a progress bar.
pub struct Counted<T>(pub T, pub ProgressBar);

impl<T: Write> Write for Counted<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.0.write(bytes)?;
        self.1.inc(n as u64);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<T: Read> Read for Counted<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(bytes)?;
        self.1.inc(n as u64);
        Ok(n)
    }
}
