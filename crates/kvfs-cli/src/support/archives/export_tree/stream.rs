//! The tar stream of an export that one thread writes and another receives piece by piece. The
//! daemon of a mounted store exports with it.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::*;

/// The approximate size of a piece, in bytes.
const PIECE: usize = 256 << 10;
/// The number of pieces that may wait to be received.
const WAITING: usize = 4;

type Piece = Outcome<Vec<u8>>;

/// An export in progress, which ends when this is dropped.
pub struct Stream {
    pieces: Option<Receiver<Piece>>,
    maker: Option<JoinHandle<()>>,
}

impl Stream {
    /// Begins to export `path` of a file system, or of a view of one. `end` is called, on success
    /// and on failure, when nothing reads the view any more.
    pub fn begin(fs: Fs, path: &[u8], end: impl FnOnce() + Send + 'static) -> io::Result<Stream> {
        let (to, pieces) = sync_channel(WAITING);
        let path = path.to_vec();
        let maker = std::thread::Builder::new().name("export".into()).spawn(move || {
            let made = make(fs, &path, &to);
            end();
            if let Err(failure) = made {
                // If the receiver has ended, nothing can receive the report.
                let _ = to.send(Err(failure));
            }
        })?;
        Ok(Stream { pieces: Some(pieces), maker: Some(maker) })
    }

    /// Returns the next piece, or an empty one at the end.
    pub fn next(&mut self) -> Piece {
        self.pieces.as_ref().and_then(|pieces| pieces.recv().ok()).unwrap_or_else(|| Ok(Vec::new()))
    }
}

impl Drop for Stream {
    /// Waits until the export no longer reads the store.
    fn drop(&mut self) {
        self.pieces = None;
        if let Some(maker) = self.maker.take() {
            // A panic was reported where it happened.
            let _ = maker.join();
        }
    }
}

fn make(fs: Fs, path: &[u8], to: &SyncSender<Piece>) -> Outcome {
    let root = tree::find(&fs, path)?;
    let name = tree::names(path).last().unwrap_or(b"file").to_vec();
    let output = Output::silent();
    let out: Box<dyn Write + '_> = Box::new(Pieces { to, piece: Vec::new() });
    let mut tar = Tar::new(out, false, &output);
    let bar = ProgressBar::hidden();
    Walk { fs: &fs, bar: &bar, keep_going: false, counts: Counts::default(), output: &output }
        .run(&mut tar, root, &name)?;
    let gone = |e: io::Error| Failure::io("the stream was not taken to its end", &e);
    tar.builder.into_inner().and_then(|mut out| out.flush()).map_err(gone)
}

/// Collects the output into pieces.
struct Pieces<'a> {
    to: &'a SyncSender<Piece>,
    piece: Vec<u8>,
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // An empty piece would signal the end.
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE + 4096));
        self.to.send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
