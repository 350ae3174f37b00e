//! An open file that is read and written at offsets. Python has the buffers and the positions.

use std::sync::Arc;

use kvfs::{Fs, Ino, SetAttr, TransactionId, WriteHints};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::failure::{Failure, Outcome};
use crate::files::{Stat, caller, stat_of};
use crate::home::Home;
use crate::octets::Octets;
use crate::slot::Slot;

/// An inode with a reference, which is released when this value is dropped. A file whose name has
/// been removed exists until then.
struct Held {
    fs: Fs,
    ino: Ino,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.fs.forget(self.ino, 1);
    }
}

/// An open file.
#[pyclass(frozen, module = "kvfs._kvfs")]
pub struct OpenFile {
    home: Home,
    held: Arc<Slot<Held>>,
    write: bool,
    path: Vec<u8>,
    transaction: Option<TransactionId>,
}

impl OpenFile {
    /// Makes an open file of an inode, which has a reference for it.
    pub fn new(
        home: Home,
        (fs, ino): (Fs, Ino),
        write: bool,
        path: Vec<u8>,
        transaction: Option<TransactionId>,
    ) -> OpenFile {
        let held = home.slot("the file", Held { fs, ino });
        OpenFile { home, held, write, path, transaction }
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Fs, Ino) -> Outcome<T> + Send,
    ) -> PyResult<T> {
        Ok(py
            .detach(|| {
                self.home.call(self.transaction, || {
                    let (fs, ino) = match &*self.held.lock()? {
                        Some(held) => (held.fs.clone(), held.ino),
                        None => return Err(Failure::Closed("the file")),
                    };
                    call(&fs, ino)
                })
            })
            .map_err(|failure: Failure| failure.at(&self.path))?)
    }

    fn writing(&self) -> Outcome<()> {
        if self.write { Ok(()) } else { Err(Failure::Invalid("the file is open to read".into())) }
    }
}

#[pymethods]
impl OpenFile {
    /// Returns up to this many bytes, and fewer only at the end of the file.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: u32,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let data = self.call(py, |fs, ino| Ok(fs.read(ino, offset, length)?))?;
        Ok(PyBytes::new(py, &data))
    }

    /// Writes all of the data, at the end of the file with `append`.
    fn write(&self, py: Python<'_>, offset: u64, data: Octets, append: bool) -> PyResult<()> {
        self.call(py, |fs, ino| {
            self.writing()?;
            let hints = WriteHints { append, ..WriteHints::default() };
            fs.write(ino, offset, &data, hints)?;
            Ok(())
        })
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.call(py, |fs, ino| {
            self.writing()?;
            fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }, caller())?;
            Ok(())
        })
    }

    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        self.call(py, |fs, ino| Ok(stat_of(&fs.getattr(ino)?)))
    }

    /// Makes the data, size and name of the file durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |fs, ino| Ok(fs.fsync(ino, false)?))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.held.take().map(drop))?)
    }
}
