//! `kvfs import` into a mounted store: sends the items to its daemon, which makes them in a
//! transaction.
//!
//! Several requests are in flight at a time, so that the daemon works while the next items are
//! read.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvdb_server::Imported;

use crate::support::archives::import_items::{BATCH, Item};
use crate::support::archives::importer::Counts;
use crate::support::machine::paths;
use crate::support::mounts::daemons::Record;
use crate::support::mounts::mounted::{Mounted, Naming};
use crate::support::mounts::place::{self, View};
use crate::support::mounts::sockets;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// The limit of requests without a reply.
const UNDER_WAY: usize = 4;

/// A directory of a mounted store.
pub struct Target {
    mounted: Mounted,
    /// The path from the root of its view.
    directory: PathBuf,
    /// The path on this machine.
    full: PathBuf,
    /// The transaction or the clone, or `None` for the store itself.
    view: Option<Naming>,
}

/// Returns the target of a path that is a directory of a mounted store, one to be made there, or
/// the file of a mounted store.
pub fn target(path: &Path) -> Outcome<Option<Target>> {
    place::must_let_us_in(path)?;
    let cannot = |e: std::io::Error| Failure::io(format!("cannot find {}", path.shown()), &e);
    if path.is_file() || !path.exists() && place::of(&directory_of(path)).map_err(cannot)?.is_none()
    {
        if !path.is_file() || sockets::socket_of(path)?.is_none() {
            return Ok(None);
        }
        let mounted = Mounted::find(path)?;
        let (view, full) = (mounted.naming(&View::Mainline), mounted.mount_point.clone());
        return Ok(Some(Target { mounted, directory: PathBuf::from("/"), full, view }));
    }
    let full =
        if path.exists() { paths::full_path(path).map_err(cannot)? } else { directory_of(path) };
    let Some(place) = place::of(&full).map_err(cannot)? else { return Ok(None) };
    let directory = if full.is_dir() {
        full.clone()
    } else {
        full.parent().unwrap_or(Path::new("/")).to_path_buf()
    };
    let mounted = Mounted::find_view(&directory)?;
    match &place.view {
        View::Mainline | View::Transaction(_) | View::Clone(_) => {}
        view => {
            let what = format!(
                "{} leads into {view}: files are imported into the store, its clones and transactions",
                path.shown()
            );
            return Err(Failure::new(Exit::Usage, what));
        }
    }
    let view = mounted.naming(&place.view);
    Ok(Some(Target { mounted, directory: place.rest, full, view }))
}

fn directory_of(path: &Path) -> PathBuf {
    paths::path_beside(path).unwrap_or_else(|_| path.to_path_buf())
}

impl Target {
    pub fn is_root(&self) -> bool {
        self.directory.as_os_str().is_empty() || self.directory == Path::new("/")
    }

    /// Returns the file of the store.
    pub fn store(&self) -> Option<PathBuf> {
        Record::all()
            .into_iter()
            .find(|record| record.mount_point == self.mounted.mount_point)
            .map(|record| record.store)
    }

    /// Fails if the target lies in the source, since copying a directory into itself would never
    /// end.
    pub fn is_apart_from(&self, source: &Path) -> Outcome {
        let source = paths::full_path(source)
            .map_err(|e| Failure::io(format!("cannot find {}", source.shown()), &e))?;
        match self.full.starts_with(&source) {
            true => Err(Failure::new(
                Exit::Usage,
                format!("{} lies in {}, which is to be copied", self.full.shown(), source.shown()),
            )),
            false => Ok(()),
        }
    }

    /// Imports into the directory `to` of the target.
    pub fn import(
        mut self,
        to: &[u8],
        read: impl FnOnce(&mut dyn FnMut(Item) -> Outcome) -> Outcome,
    ) -> Outcome<Counts> {
        let directory = [b"/", self.directory.as_os_str().as_bytes(), b"/", to].concat();
        import(&mut self.mounted, &directory, self.view.as_ref(), read)
    }
}

/// Sends the items that `read` passes on to the daemon, which makes them in a directory of a view:
/// of the store itself if `view` is `None`. The connection can be used afterwards, also after a
/// failure.
pub fn import(
    mounted: &mut Mounted,
    directory: &[u8],
    view: Option<&Naming>,
    read: impl FnOnce(&mut dyn FnMut(Item) -> Outcome) -> Outcome,
) -> Outcome<Counts> {
    let mut words = vec![&b"IMPORT"[..], b"BEGIN", directory];
    words.extend(view.into_iter().flat_map(Naming::words));
    mounted.call(&words)?;
    let mut requests = Requests { mounted, bytes: Vec::new(), under_way: 0, refused: None };
    let done = read(&mut |item| requests.add(&item));
    let done = done.and_then(|()| requests.send());
    while requests.under_way > 0 {
        requests.receive();
    }
    let Requests { mounted, refused, .. } = requests;
    if let Some(refused) = refused {
        // This error explains the failure better, and has ended the import.
        return Err(refused);
    }
    if let Err(failure) = done {
        // If this fails, the end of the connection ends the import.
        let _ = mounted.call(&[b"IMPORT", b"DROP"]);
        return Err(failure);
    }
    let reply = mounted.call(&[b"IMPORT", b"END"])?;
    let Some(made) = Imported::of_reply(&reply) else {
        return Err(Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply"));
    };
    Ok(Counts {
        files: made.files,
        directories: made.directories,
        symlinks: made.symlinks,
        hard_links: made.hard_links,
        special: made.special,
        bytes: made.bytes,
        skipped: made.skipped,
    })
}

/// The requests of an import.
struct Requests<'m> {
    mounted: &'m mut Mounted,
    /// Items that are not sent yet.
    bytes: Vec<u8>,
    /// Requests without a reply.
    under_way: usize,
    /// The first refusal of a request: those after it are refused because of it.
    refused: Option<Failure>,
}

impl Requests<'_> {
    fn add(&mut self, item: &Item) -> Outcome {
        if self.bytes.len() + item.size() > 2 * BATCH {
            self.send()?;
        }
        item.encode(&mut self.bytes);
        if self.bytes.len() >= BATCH { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Outcome {
        if self.bytes.is_empty() {
            return Ok(());
        }
        if self.under_way == UNDER_WAY {
            self.receive();
        }
        if self.refused.is_some() {
            return Err(Failure::new(Exit::Failed, "the import has ended"));
        }
        self.mounted.send(&[b"IMPORT", b"ADD", &self.bytes])?;
        self.under_way += 1;
        self.bytes.clear();
        Ok(())
    }

    fn receive(&mut self) {
        self.under_way -= 1;
        if let Err(failure) = self.mounted.receive() {
            self.refused.get_or_insert(failure);
        }
    }
}
