//! The file system of a view that a server holds: read-only, and all of it here but for the store.

use std::sync::Arc;

use env::Env;
use kvdb::{Scope, ServedView};

use super::{Fs, FsOptions};
use crate::attr::ROOT;
use crate::error::{Error, Result};
use crate::inode_allocator::InodeAllocator;
use crate::layout::{self, Layout, Super};
use crate::store::Store;

impl Fs {
    /// The file system of a snapshot that a server holds ([`kvdb::ServedView`]). It is read-only,
    /// whatever the options say. NotFound where the view has no file system.
    ///
    /// Calls that work on whole trees and whole states (walks, differences, checks) fail here: they
    /// are made where the store is.
    pub fn served(view: Arc<dyn ServedView>, env: Arc<dyn Env>, options: FsOptions) -> Result<Fs> {
        let layout = Layout::of_names(|name| view.dictionary(name)).ok_or(Error::NotFound)?;
        let scope = Scope::Served(view.clone());
        // All that the first calls ask for, at once.
        let (record, root) = (layout::SUPER_KEY, layout::node_key(ROOT));
        scope.announce(layout.imap, &[&record, &root]);
        let value = scope.get(layout.imap, &record)?.ok_or(Error::NotFound)?;
        let hash_key = Super::decode(&value)?.hash_key;
        let fs = Fs::without_parent(
            Store::Served(view),
            scope,
            env,
            layout,
            hash_key,
            InodeAllocator::of_frozen(),
            FsOptions { read_only: true, ..options },
        );
        let root = fs.inode(ROOT)?;
        if !root.state.read().is_dir() {
            return Err(Error::Corrupt { ino: ROOT, what: "the root is not a directory".into() });
        }
        Ok(fs)
    }
}
