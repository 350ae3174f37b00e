//! The tar stream of an export as its maker's thread writes it and another one takes it, piece by
//! piece: how the daemon of a mounted store exports.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::*;

/// Bytes that are taken together, about.
const PIECE: usize = 256 << 10;
/// Pieces that wait to be taken at most.
const WAITING: usize = 4;

type Piece = Outcome<Vec<u8>>;

/// An export under way; dropped, it ends.
pub(crate) struct Stream {
    pieces: Option<Receiver<Piece>>,
    maker: Option<JoinHandle<()>>,
}

impl Stream {
    /// Of what lies at `path` in a file system, or in a view of one. `end` is called when nothing
    /// reads it any more, whatever came of it.
    pub(crate) fn begin(
        fs: Fs,
        path: &[u8],
        end: impl FnOnce() + Send + 'static,
    ) -> io::Result<Stream> {
        let (to, pieces) = sync_channel(WAITING);
        let path = path.to_vec();
        let maker = std::thread::Builder::new().name("export".into()).spawn(move || {
            let made = make(fs, &path, &to);
            end();
            if let Err(failure) = made {
                // If the receiver is gone, there is no one to report it to.
                let _ = to.send(Err(failure));
            }
        })?;
        Ok(Stream { pieces: Some(pieces), maker: Some(maker) })
    }

    /// What comes next; nothing: that was all.
    pub(crate) fn next(&mut self) -> Piece {
        self.pieces.as_ref().and_then(|pieces| pieces.recv().ok()).unwrap_or_else(|| Ok(Vec::new()))
    }
}

impl Drop for Stream {
    /// When it returns, nothing of it reads the store.
    fn drop(&mut self) {
        self.pieces = None;
        if let Some(maker) = self.maker.take() {
            // A panic has been told where it happened.
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

/// Gathers what is written into pieces.
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
        // An empty one would be the end.
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE + 4096));
        self.to.send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
