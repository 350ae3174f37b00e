//! Arguments that consist of bytes.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};

/// The bytes of a `bytes`, or a copy of a `bytearray` or of the content of a `memoryview`. Other
/// types are refused: a `str` has no bytes before it is encoded, and `bytes(7)` would be seven
/// zeros.
#[derive(Debug)]
pub struct Octets(PyBackedBytes);

impl<'a, 'py> FromPyObject<'a, 'py> for Octets {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Octets> {
        let object = &*object;
        if object.is_instance_of::<PyBytes>() || object.is_instance_of::<PyByteArray>() {
            return Ok(Octets(object.extract().map_err(PyErr::from)?));
        }
        if object.is_instance_of::<PyMemoryView>() {
            let copy = object.py().get_type::<PyBytes>().call1((object,))?;
            return Ok(Octets(copy.extract().map_err(PyErr::from)?));
        }
        let hint = if object.is_instance_of::<pyo3::types::PyString>() {
            ": encode it, as in key.encode()"
        } else {
            ""
        };
        Err(PyTypeError::new_err(format!(
            "keys and values are bytes, not {}{hint}",
            object.get_type().name()?
        )))
    }
}

impl std::ops::Deref for Octets {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
