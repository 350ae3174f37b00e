//! Shared libraries with a C interface, opened at run time: the benchmark builds where they are not
//! installed, and two versions of one library live in one program.

use std::ffi::{CStr, CString, c_char, c_void};

use anyhow::{Result, bail};

/// A shared library. It is never closed: its functions are used until the process ends.
pub struct Library(*mut c_void);

impl Library {
    /// The first of `names` that the loader finds.
    pub fn open(names: &[&str], package: &str) -> Result<Library> {
        for name in names {
            let name = CString::new(*name)?;
            // SAFETY: the name ends in a zero; the library's initializers are those of a plain C++
            // library.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Library(handle));
            }
        }
        bail!("{} is not installed: apt-get install {package}", names[0])
    }

    /// The address of a function.
    pub fn symbol(&self, name: &CStr) -> Result<*mut c_void> {
        // SAFETY: the handle is open and the name ends in a zero.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            bail!("the library lacks {name:?}: another version than this was written for");
        }
        Ok(address)
    }
}

/// The error string that a C function left behind, freed with `free`.
///
/// # Safety
/// `error` is null or a string that ends in a zero and may be given to `free`.
pub unsafe fn fail_on(error: *mut c_char, free: unsafe extern "C" fn(*mut c_void)) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: the caller's promise; the text was copied.
    unsafe { free(error.cast()) };
    bail!("{text}")
}

/// A table of C functions that `load` fills from a shared library.
macro_rules! functions {
    ($table:ident { $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)* }) => {
        pub struct $table { $(pub $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)* }
        impl $table {
            pub fn load(library: &$crate::engines::library::Library) -> anyhow::Result<Self> {
                Ok($table { $($name: {
                    let name = concat!(stringify!($name), "\0");
                    let name = std::ffi::CStr::from_bytes_with_nul(name.as_bytes())?;
                    // SAFETY: the declaration repeats the library's header.
                    unsafe {
                        std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($type),*) $(-> $result)?>(
                            library.symbol(name)?,
                        )
                    }
                },)* })
            }
        }
    };
}
pub(crate) use functions;
