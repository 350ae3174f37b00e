//! Further names of lower files during a fold. A file that was renamed keeps its inode: it gets a
//! name here before its old name is removed, and its new name is made from the one here.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::support::layers::layer::Layer;
use crate::support::machine::beneath;
use crate::support::terminal::output::{Failure, Outcome};

/// A directory in the root of the lower layer, which exists while it is needed.
#[derive(Default)]
pub struct Held {
    /// The directory and its name.
    directory: Option<(OwnedFd, Vec<u8>)>,
    count: usize,
}

impl Held {
    /// Gives a file of the lower layer another name. Returns its path.
    pub fn hold(&mut self, lower: &Layer, file: &OwnedFd) -> Outcome<Vec<u8>> {
        let (directory, name) = match &mut self.directory {
            Some(made) => made,
            none => none.insert(make(lower)?),
        };
        let number = self.count.to_string();
        self.count += 1;
        rustix::fs::linkat(file, "", &*directory, number.as_str(), AtFlags::EMPTY_PATH)
            .map_err(|e| lower.failure("cannot keep a renamed file in", name, &e.into()))?;
        Ok([&name[..], b"/", number.as_bytes()].concat())
    }

    /// Returns the name of the directory, if there is one.
    pub fn name(&self) -> Option<&[u8]> {
        self.directory.as_ref().map(|(_, name)| name.as_slice())
    }
}

/// Makes a directory of a name that no file has.
fn make(lower: &Layer) -> Outcome<(OwnedFd, Vec<u8>)> {
    let (process, mut number) = (std::process::id(), 0_u64);
    loop {
        let name = format!(".kvfs-held-{process}-{number}").into_bytes();
        let cannot = |e: Errno| -> Failure { lower.failure("cannot make", &name, &e.into()) };
        match rustix::fs::mkdirat(lower.as_fd(), name.as_slice(), Mode::RWXU) {
            Ok(()) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                let opened = beneath::open(lower.as_fd(), &name, flags, Mode::empty());
                return Ok((opened.map_err(cannot)?, name));
            }
            Err(Errno::EXIST) => number += 1,
            Err(e) => return Err(cannot(e)),
        }
    }
}
