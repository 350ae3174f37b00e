//! Opens, makes and shuts down a file system: on a store (here), on a view that a server holds
//! (`served`), after another process (`in_use`), and while the mainline is lent (`lent`).

pub(crate) mod in_use;
mod lent;
mod served;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use env::Env;
use kvdb::{Batch, Durability, Kvdb, Scope};

use self::in_use::ViewInUse;
use self::lent::end_lending;
use crate::attr::{FileKind, ROOT, Timestamp};
use crate::commit::orphans::empty_orphans;
use crate::error::{Error, Result};
use crate::fs::counter::{allocator_of, check_possible, open_counter, shown_below};
use crate::fs::{Core, Fs, FsOptions, ZONE_SIZE};
use crate::inode::inode_allocator::Counter;
use crate::layout::{self, Attributes, Body, Layout, Super};
use crate::pages::compress::receive_by_ways;
use crate::pages::name_order::lay_by_name;

/// The longest pause between two ticks over a wire. A tick is also the sign that this process is
/// alive: without it the server ends the transaction, or lends the main branch to another client,
/// after the time of the lease, which is a minute.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

impl Fs {
    /// Opens the file system in `db`, or makes one with an empty root directory if there is none.
    pub fn open(db: Kvdb, env: Arc<dyn Env>, options: FsOptions) -> Result<Fs> {
        Fs::open_with(db, env, options, &ViewInUse::default())
    }

    /// Like [`Fs::open`], and continues with the state of the mainline that is in use.
    pub(crate) fn open_with(
        db: Kvdb,
        env: Arc<dyn Env>,
        options: FsOptions,
        in_use: &ViewInUse,
    ) -> Result<Fs> {
        let layout = match Layout::find(&db) {
            Some(layout) => layout,
            None if options.read_only => return Err(Error::ReadOnly),
            None => Layout::create(&db)?,
        };
        db.warm(&[layout.nmap, layout.imap], &[layout.dmap]);
        lay_by_name(&db);
        receive_by_ways(&db);
        let fs = Fs::open_layout(db, None, layout, env, options, in_use)?;
        fs.start_ticker();
        Ok(fs)
    }

    /// Opens the file system in these dictionaries of a branch, of which `in_use` is in use. If
    /// `counter` is given, it is a clone, whose numbers are counted by the store's counter;
    /// otherwise it is the main branch. Nothing is committed in the background.
    pub(crate) fn open_layout(
        db: Kvdb,
        counter: Option<Arc<Counter>>,
        layout: Layout,
        env: Arc<dyn Env>,
        options: FsOptions,
        in_use: &ViewInUse,
    ) -> Result<Fs> {
        let is_main = counter.is_none();
        let (record, is_current) = record_of(&db, &layout, &*env, &options)?;
        let counter = match counter {
            Some(counter) => {
                check_possible(shown_below(&db.view(), &layout)?)?;
                counter
            }
            None => Arc::new(open_counter(&db, &layout, is_current, options.read_only)?),
        };
        // An older program must not open a store whose numbers are counted here.
        if !is_current && !options.read_only {
            write_record(&db, &layout, &record)?;
        }
        let Super { hash_key, zone_size } = record;
        if is_main && !options.read_only && !options.lent {
            end_lending(&db)?;
        }
        let orphans = match options.read_only || options.lent {
            true => 0,
            false => empty_orphans(&db, &layout, |ino| in_use.has_nameless(ino))?,
        };
        let zone_size = options.zone_size.or(zone_size).unwrap_or(ZONE_SIZE);
        let options = FsOptions { zone_size: Some(zone_size), ..options };
        let inode_allocator = allocator_of(&db, &layout, counter, zone_size)?;
        let fs = Fs::without_parent(
            db.clone().into(),
            Scope::Mainline(db),
            env,
            layout,
            hash_key,
            inode_allocator,
            options,
        );
        fs.take_up(in_use)?;
        if is_main {
            fs.keep_all_promises()?;
        }
        // Asks for the free space at the start, so that it is known whether the store is nearly
        // full.
        fs.core.free_space.refill(0);
        let root = fs.inode(ROOT)?;
        if !root.state.read().is_dir() {
            return Err(Error::Corrupt { ino: ROOT, what: "the root is not a directory".into() });
        }
        tracing::info!(
            next_ino = fs.core.inode_allocator.next(),
            orphans_removed = orphans,
            read_only = fs.core.options.read_only,
            "file system open"
        );
        Ok(fs)
    }

    /// Commits and syncs everything, and stops the background thread. Calls after it still work,
    /// but nothing is committed in the background.
    pub fn shutdown(&self) -> Result<()> {
        self.core.ticker.stop();
        if self.core.options.read_only {
            return Ok(());
        }
        self.sync_all()
    }

    fn start_ticker(&self) {
        if self.core.env.inline() || self.core.options.read_only {
            return;
        }
        // Commits every half interval the changes older than half the interval: no change gets
        // older than the interval.
        let pause = pause_of(self.core.options.flush_interval, self.core.scope.is_served());
        let tick = |core: Arc<Core>| {
            let db = core.db.clone();
            let Err(e) = (Fs { core }).tick() else { return ControlFlow::Continue(()) };
            if e.is_locked() {
                tracing::debug!("dirty data waits for a transaction: {e}");
            } else if db.takes_writes().is_err() {
                // The failure is permanent: data waiting in memory can be read until the store is
                // opened again.
                tracing::error!("what was written last is not on disk: {e}");
                return ControlFlow::Break(());
            } else {
                tracing::warn!("committing dirty data failed, will be tried again: {e}");
            }
            ControlFlow::Continue(())
        };
        let ticker = &self.core.ticker;
        if let Err(e) = ticker.start("kvfs-flush", pause, Arc::downgrade(&self.core), tick) {
            tracing::warn!(
                "no thread for the flush interval, data is committed by fsync and when the buffer is full: {e}"
            );
        }
    }
}

/// Returns the pause between the ticks of a file system.
fn pause_of(flush_interval: Duration, is_served: bool) -> Duration {
    let half = flush_interval / 2;
    if is_served { half.min(HEARD_WITHIN) } else { half }
}

/// Returns the record of the file system in these dictionaries, which is made if there is none, and
/// whether this version wrote it.
fn record_of(
    db: &Kvdb,
    layout: &Layout,
    env: &dyn Env,
    options: &FsOptions,
) -> Result<(Super, bool)> {
    match db.get(layout.imap, &layout::SUPER_KEY)? {
        Some(value) => Ok((Super::decode(&value)?, Super::is_current(&value))),
        None if options.read_only => Err(Error::ReadOnly),
        None => Ok((make(db, layout, env, options)?, true)),
    }
}

/// Writes the record as this version does.
fn write_record(db: &Kvdb, layout: &Layout, record: &Super) -> Result<()> {
    let mut batch = Batch::new();
    batch.put(layout.imap, layout::SUPER_KEY.to_vec(), record.encode());
    // A full store must open, too.
    batch.releases_space();
    Ok(db.commit(batch, Durability::Buffered)?)
}

/// Writes the file system's own record and the root directory, and returns the record. Fails if a
/// root directory exists: then there was a file system whose record is lost.
fn make(db: &Kvdb, layout: &Layout, env: &dyn Env, options: &FsOptions) -> Result<Super> {
    if db.get(layout.imap, &layout::node_key(ROOT))?.is_some() {
        let what = "the file system's own record is missing".into();
        return Err(Error::Corrupt { ino: 0, what });
    }
    let mut hash_key = [0; 16];
    hash_key[..8].copy_from_slice(&env.random().to_le_bytes());
    hash_key[8..].copy_from_slice(&env.random().to_le_bytes());
    let record = Super { hash_key, zone_size: options.zone_size };
    let now = Timestamp::from(env.wall());
    let root = Attributes {
        kind: FileKind::Dir,
        perm: options.root_perm & 0o7777,
        nlink: 2,
        uid: options.root_uid,
        gid: options.root_gid,
        rdev: 0,
        size: 0,
        body: Body::Inline(0),
        parent: ROOT,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        reserved: Default::default(),
    };
    let mut batch = Batch::new();
    batch.put(layout.imap, layout::SUPER_KEY.to_vec(), record.encode());
    batch.put(layout.imap, layout::node_key(ROOT), layout::encode_node(&root, None, b""));
    db.commit(batch, Durability::Synced)?;
    Ok(record)
}

#[cfg(test)]
mod tests {
    use env::Simulated;

    use super::*;
    use crate::Caller;
    use crate::layout::reservation::INO_LIMIT;

    /// Reopens a store with one file after `change` has changed keys of its `imap`.
    fn reopened(change: impl FnOnce(&Layout, &mut Batch)) -> (Kvdb, Result<Fs>) {
        let (db, env) = (Kvdb::in_memory(), Arc::new(Simulated::new(1)));
        let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap();
        fs.mknod(ROOT, b"f", FileKind::File, 0o644, 0, Caller::default()).unwrap();
        fs.shutdown().unwrap();
        let mut batch = Batch::new();
        change(&fs.core.layout, &mut batch);
        db.commit(batch, Durability::Buffered).unwrap();
        let again = Fs::open(db.clone(), env, FsOptions::default());
        (db, again)
    }

    fn root_and_record(db: &Kvdb) -> (Option<u64>, bool) {
        let imap = Layout::find(db).unwrap().imap;
        let root = db.get(imap, &layout::node_key(ROOT)).unwrap();
        let entries = root.map(|root| layout::decode_node(ROOT, &root).unwrap().0.size);
        (entries, db.get(imap, &layout::SUPER_KEY).unwrap().is_some())
    }

    #[test]
    fn an_orphan_that_no_file_can_be_removes_nothing() {
        for ino in [0, ROOT, INO_LIMIT, u64::MAX] {
            let (db, again) = reopened(|layout, batch| {
                batch.put(layout.imap, layout::orphan_key(ino), b"".as_slice());
            });
            assert!(matches!(again, Err(Error::Corrupt { .. })), "{ino}");
            assert_eq!(root_and_record(&db), (Some(1), true), "{ino}");
        }
    }

    #[test]
    fn a_server_hears_of_a_mount_with_a_long_flush_interval_within_the_time_of_a_lease() {
        let (usual, long) = (Duration::from_secs(1), Duration::from_secs(300));
        assert_eq!(pause_of(usual, true), usual / 2);
        assert_eq!(pause_of(long, false), long / 2);
        // A lease is renewed by the first tick after a quarter of its minute.
        assert!(pause_of(long, true) < Duration::from_secs(15));
    }

    #[test]
    fn no_file_system_is_made_over_one_that_has_lost_its_record() {
        let (db, again) =
            reopened(|layout, batch| batch.delete(layout.imap, layout::SUPER_KEY.to_vec()));
        assert!(matches!(again, Err(Error::Corrupt { .. })));
        assert_eq!(root_and_record(&db), (Some(1), false));
    }
}
