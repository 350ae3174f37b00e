//! Python's file objects as readers and writers. They are called while the interpreter's lock is
//! held, which the store's own work does not need. An exception that a file object raises ends
//! the stream, and is the exception that the caller sees.

use std::io::{self, Read, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::failure::{Failure, Outcome};

/// The exception that a file object has raised, which is passed to the caller.
#[derive(Clone, Default)]
pub struct Failed(Arc<Mutex<Option<PyErr>>>);

impl Failed {
    fn note(&self, error: PyErr) -> io::Error {
        let text = error.to_string();
        *self.0.lock() = Some(error);
        io::Error::other(text)
    }

    /// Returns the outcome, with the exception in place of the error that it caused.
    pub fn or<T>(&self, outcome: kvdb::Result<T>) -> Outcome<T> {
        match (outcome, self.0.lock().take()) {
            (Ok(done), None) => Ok(done),
            (_, Some(raised)) => Err(Failure::Raised(raised)),
            (Err(error), None) => Err(error.into()),
        }
    }
}

/// Writes to the `write` of a Python object.
pub struct PythonWriter {
    file: Py<PyAny>,
    failed: Failed,
}

impl PythonWriter {
    pub fn new(file: Py<PyAny>, failed: Failed) -> PythonWriter {
        PythonWriter { file, failed }
    }
}

impl Write for PythonWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = Python::attach(|py| -> PyResult<usize> {
            py.check_signals()?;
            let done = self.file.bind(py).call_method1("write", (PyBytes::new(py, bytes),))?;
            // Some file-like objects return nothing, although they have written everything.
            let written = if done.is_none() { bytes.len() } else { done.extract()? };
            if written > bytes.len() {
                return Err(PyValueError::new_err(format!(
                    "the file's write() took {written} of {} bytes",
                    bytes.len()
                )));
            }
            Ok(written)
        });
        written.map_err(|error| self.failed.note(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Number of bytes that are requested at once.
const AT_ONCE: usize = 1 << 20;

/// Reads from the `read` of a Python object, never more than the stream needs for its next frame,
/// because another stream may follow.
pub struct PythonReader {
    file: Py<PyAny>,
    failed: Failed,
}

impl PythonReader {
    pub fn new(file: Py<PyAny>, failed: Failed) -> PythonReader {
        PythonReader { file, failed }
    }
}

impl Read for PythonReader {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let wanted = room.len().min(AT_ONCE);
        let read = Python::attach(|py| -> PyResult<usize> {
            py.check_signals()?;
            let done = self.file.bind(py).call_method1("read", (wanted,))?;
            let bytes: PyBackedBytes = done.extract().map_err(|_| {
                PyTypeError::new_err("the file's read() gave no bytes: open it in binary mode")
            })?;
            if bytes.len() > wanted {
                return Err(PyValueError::new_err(format!(
                    "the file's read({wanted}) gave {} bytes",
                    bytes.len()
                )));
            }
            room[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        });
        read.map_err(|error| self.failed.note(error))
    }
}
