//! Opens the views of snapshots and clones; `views/snapshots` makes and drops these.

use std::sync::Arc;

use kvdb::{Kvdb, Scope};

use super::Opener;
use crate::error::{Error, Result};
use crate::fs::{Fs, FsOptions};
use crate::inode::inode_allocator::InodeAllocator;
use crate::layout::{self, Layout, Super};
use crate::opening::in_use::ViewInUse;
use crate::views::{Join, OpenView, VIEW_SHARE, ViewId};

impl Opener {
    /// Opens a snapshot.
    pub fn open_snapshot(&self, name: &str) -> Result<Arc<OpenView>> {
        let db = &self.db;
        let found = db.snapshot_label(name).ok_or(Error::NotFound)?;
        let state = db.open_snapshot(name)?;
        let mainline = &self.mainline;
        let options = FsOptions {
            read_only: true,
            inode_memory: mainline.core.options.inode_memory / VIEW_SHARE,
            ..mainline.core.options.clone()
        };
        let fs = Fs::frozen(db, mainline.core.env.clone(), state, options)?;
        let exists = || db.snapshot_label(name).is_some_and(|now| now.id == found.id);
        self.open.add(ViewId::Snapshot(name.into()), fs, None, exists)
    }

    /// Opens a clone. `in_use`: the state in use that it continues with.
    pub fn open_clone(&self, name: &str, in_use: &ViewInUse) -> Result<Arc<OpenView>> {
        let db = &self.db;
        if name.is_empty() || !db.has_branch(name) {
            return Err(Error::NotFound);
        }
        let mainline = &self.mainline.core;
        let options = FsOptions {
            write_buffer: (mainline.options.write_buffer / VIEW_SHARE).max(1 << 20),
            inode_memory: mainline.options.inode_memory / VIEW_SHARE,
            ..mainline.options.clone()
        };
        // Two views of one branch would not know of each other's changes.
        let _one = self.opening.lock();
        if let Some(entry) = self.open.find(&ViewId::Clone(name.into())) {
            return Ok(entry);
        }
        let layout = Layout::find_in(db, name).ok_or(Error::NotFound)?;
        db.warm_view(&db.view(), &[layout.nmap, layout.imap], &[layout.dmap]);
        db.set_merge(layout.imap, Arc::new(Join));
        let counter = Some(mainline.inode_allocator.counter().clone());
        let env = mainline.env.clone();
        let fs = Fs::open_layout(db.clone(), counter, layout, env, options, in_use)?;
        let exists = || Layout::find_in(db, name).is_some_and(|now| now.imap == layout.imap);
        self.open.add(ViewId::Clone(name.into()), fs, None, exists)
    }
}

impl Fs {
    /// Returns the file system of an immutable state.
    fn frozen(
        db: &Kvdb,
        env: Arc<dyn env::Env>,
        state: kvdb::View,
        options: FsOptions,
    ) -> Result<Fs> {
        let layout = Layout::of_state(&state).ok_or(Error::NotFound)?;
        db.warm_view(&state, &[layout.nmap, layout.imap], &[layout.dmap]);
        Fs::frozen_with(layout, db, env, state, options)
    }

    /// Returns the file system of an immutable state that has it in the dictionaries of `layout`.
    pub(in crate::views) fn frozen_with(
        layout: Layout,
        db: &Kvdb,
        env: Arc<dyn env::Env>,
        state: kvdb::View,
        options: FsOptions,
    ) -> Result<Fs> {
        let value = state.get(layout.imap, &layout::SUPER_KEY)?.ok_or(Error::NotFound)?;
        let hash_key = Super::decode(&value)?.hash_key;
        Ok(Fs::without_parent(
            db.clone().into(),
            Scope::Frozen(state),
            env,
            layout,
            hash_key,
            InodeAllocator::of_frozen(),
            options,
        ))
    }
}
