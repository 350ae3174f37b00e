//! A mount survives the replacement of the process that serves it. Programs that have files open,
//! work in the mount and wait for answers do not notice it.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::real::{BOTH, Mapping, may_mount};
use env::Machine;
use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions, TransactionOptions};
use kvfs::{Fs, FsOptions, InUse, TransactionId, ViewId, Views};
use kvfs_fuse::{
    FuseAdapter, Handover, KernelNotifier, MountOptions, Mounted, Policy, Served, mount, take_over,
};
use zones::MemoryDevice;

/// A mount that is handed over repeatedly.
struct Lasting {
    device: Arc<MemoryDevice>,
    policy: Policy,
    // Fields drop in order.
    served: Option<Service>,
    dir: tempfile::TempDir,
}

/// An instance that serves the mount.
struct Service {
    mounted: Mounted,
    notifier: Arc<KernelNotifier>,
    views: Views,
    db: Kvdb,
}

fn options() -> OpenOptions {
    OpenOptions { memory: 16 << 20, zero_journal: false, ..Default::default() }
}

impl Service {
    fn begin(db: Kvdb, views: Views, mounted: Mounted, adapter: &Arc<FuseAdapter>) -> Service {
        let notifier = KernelNotifier::start(&views, adapter, &mounted).expect("a notifier");
        Service { mounted, notifier, views, db }
    }
}

impl Lasting {
    fn new(write_back: bool) -> Option<Lasting> {
        if !may_mount() {
            return None;
        }
        // Over io_uring a mount is not handed over.
        let policy = Policy { write_back, ..Policy::default() };
        let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Machine::default()));
        let create = CreateOptions { open: options(), ..Default::default() };
        let db = Kvdb::create(device.clone(), env.clone(), create).expect("a store");
        let fs = Fs::open(db.clone(), env, FsOptions::default()).expect("a file system");
        let views = Views::new(db.clone(), fs);
        let adapter = Arc::new(FuseAdapter::new(views.clone()));
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mounted = mount(adapter.clone(), dir.path(), &MountOptions::default(), &policy)
            .expect("root can mount");
        let served = Some(Service::begin(db, views, mounted, &adapter));
        Some(Lasting { device, policy, served, dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn views(&self) -> &Views {
        &self.served.as_ref().expect("it is served").views
    }

    /// Stops serving. Returns the state for the next process.
    fn stop(&mut self) -> (Handover, Vec<u8>) {
        let Service { mut mounted, notifier, views, db } =
            self.served.take().expect("it is served");
        let paused = views.pause();
        notifier.finish();
        mounted.stopper().expect("not over io_uring").stop();
        let Ok(Served::Stopped(handover)) = mounted.wait() else { panic!("the mount has ended") };
        notifier.stop();
        let in_use = views.in_use().expect("all is committed").encode();
        drop(paused);
        views.mainline().shutdown().expect("shut down");
        db.close().expect("closed");
        (*handover, in_use)
    }

    /// Another instance serves, which gets only the connection and bytes from the one before.
    fn resume(&mut self, (handover, in_use): (Handover, Vec<u8>)) {
        let connection = rustix::io::dup(&handover).expect("a descriptor");
        let handover = Handover::decode(&handover.encode(), connection).expect("it is whole");
        let in_use = InUse::decode(&in_use).expect("it is whole");
        let env = Arc::new(Machine::default());
        let (db, _) = Kvdb::open(self.device.clone(), env.clone(), options()).expect("it opens");
        let fs = Fs::take_over(db.clone(), env, FsOptions::default(), &in_use)
            .expect("the file system opens");
        let views = Views::take_over(db.clone(), fs, &in_use);
        let adapter = FuseAdapter::new(views.clone()).of_mount_in_use(self.policy.write_back);
        let adapter = Arc::new(adapter);
        handover.fits(&self.policy).expect("it is the same version");
        let mounted = take_over(adapter.clone(), &handover, &self.policy).expect("it goes on");
        self.served = Some(Service::begin(db, views, mounted, &adapter));
    }

    fn hand_over(&mut self) {
        let left = self.stop();
        self.resume(left);
    }

    /// Ends the mount and checks the store.
    #[track_caller]
    fn end(mut self) {
        let Service { mut mounted, notifier, views, db } =
            self.served.take().expect("it is served");
        // The kernel reports a forgotten inode some time after the last program has closed it.
        let until = Instant::now() + Duration::from_secs(20);
        while views.mainline().verify().expect("it can be read").orphans > 0
            && Instant::now() < until
        {
            std::thread::yield_now();
        }
        mounted.unmount().expect("unmounted");
        notifier.stop();
        views.shutdown().expect("shut down");
        views.mainline().shutdown().expect("shut down");
        let report = views.mainline().verify().expect("it can be read");
        assert_eq!(report.findings, []);
        assert_eq!(report.orphans, 0, "nothing without a name is left");
        db.close().expect("closed");
    }
}

#[test]
fn open_files_go_on_with_and_without_a_name() {
    for write_back in BOTH {
        let Some(mut lasting) = Lasting::new(write_back) else { return };
        let open = |name: &str| {
            let mut options = File::options();
            options.read(true).write(true).create(true);
            options.open(lasting.path(name)).expect("opened")
        };
        let (named, small, large, empty) = (open("named"), open("small"), open("large"), open("e"));
        let mut appended = File::options().append(true).open(lasting.path("named")).expect("open");
        named.write_all_at(b"named", 0).expect("written");
        small.write_all_at(b"small", 0).expect("written");
        large.write_all_at(&[7; 100_000], 0).expect("written");
        // Committed and not committed when they lose their names.
        large.sync_all().expect("synced");
        large.write_all_at(&[8; 5000], 50_000).expect("written");
        for name in ["small", "large", "e"] {
            fs::remove_file(lasting.path(name)).expect("removed");
        }
        let number = named.metadata().expect("attributes").ino();
        for round in 0..3u8 {
            lasting.hand_over();
            appended.write_all(&[round]).expect("written");
            small.write_all_at(&[round], 5 + u64::from(round)).expect("written");
            large.write_all_at(&[round], 200_000 + u64::from(round)).expect("written");
            empty.write_all_at(b"x", u64::from(round)).expect("written");
        }
        assert_eq!(fs::read(lasting.path("named")).expect("read"), b"named\0\x01\x02");
        assert_eq!(named.metadata().expect("attributes").ino(), number);
        let content = |mut file: &File| {
            let mut all = Vec::new();
            file.seek(SeekFrom::Start(0)).expect("a file");
            file.read_to_end(&mut all).map(|_| all).expect("read")
        };
        assert_eq!(content(&small), b"small\0\x01\x02");
        assert_eq!(content(&empty), b"xxx");
        let all = content(&large);
        assert_eq!((all.len(), &all[49_999..50_001]), (200_003, &[7, 8][..]));
        assert_eq!((&all[54_999..55_001], &all[200_000..]), (&[8, 7][..], &[0, 1, 2][..]));
        assert_eq!(small.metadata().expect("attributes").nlink(), 0);
        drop((named, small, large, empty, appended));
        lasting.end();
    }
}

#[test]
fn a_file_without_a_name_gets_one_afterwards() {
    let Some(mut lasting) = Lasting::new(false) else { return };
    let nameless = rustix::fs::open(
        lasting.dir.path(),
        rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR,
        rustix::fs::Mode::from_raw_mode(0o600),
    );
    let nameless = File::from(nameless.expect("O_TMPFILE"));
    nameless.write_all_at(&[5; 20_000], 0).expect("written");
    lasting.hand_over();
    use std::os::fd::AsRawFd;
    let from = format!("/proc/self/fd/{}", nameless.as_raw_fd());
    let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    let cwd = rustix::fs::CWD;
    rustix::fs::linkat(cwd, from.as_str(), cwd, lasting.path("named"), follow).expect("linked");
    lasting.hand_over();
    assert_eq!(fs::read(lasting.path("named")).expect("read"), [5; 20_000]);
    drop(nameless);
    lasting.end();
}

#[test]
fn a_removed_directory_in_which_a_program_works_stays_what_it_was() {
    let Some(mut lasting) = Lasting::new(false) else { return };
    fs::create_dir(lasting.path("d")).expect("made");
    let dir = File::open(lasting.path("d")).expect("opened");
    fs::remove_dir(lasting.path("d")).expect("removed");
    lasting.hand_over();
    assert_eq!(dir.metadata().expect("attributes").nlink(), 0);
    let made = rustix::fs::mkdirat(&dir, "x", rustix::fs::Mode::empty());
    assert_eq!(made, Err(rustix::io::Errno::NOENT));
    drop(dir);
    lasting.end();
}

#[test]
fn a_listing_goes_on_where_it_was() {
    let Some(mut lasting) = Lasting::new(false) else { return };
    let names: Vec<String> = (0..3000).map(|n| format!("entry {n:05}")).collect();
    names.iter().for_each(|name| fs::write(lasting.path(name), b"").expect("written"));
    let mut seen = Vec::new();
    let mut listing = fs::read_dir(lasting.dir.path()).expect("listed");
    for n in 0..names.len() {
        let entry = listing.next().expect("there are more").expect("an entry");
        seen.push(entry.file_name().into_string().expect("UTF-8"));
        if n % 1000 == 500 {
            lasting.hand_over();
        }
    }
    assert!(listing.next().is_none());
    seen.sort();
    assert_eq!(seen, names);
    drop(listing);
    lasting.end();
}

#[test]
fn what_a_program_has_mapped_is_written_back_to_the_next_one() {
    for write_back in BOTH {
        let Some(mut lasting) = Lasting::new(write_back) else { return };
        fs::write(lasting.path("f"), [1; 8192]).expect("written");
        let file = File::options().read(true).write(true).open(lasting.path("f")).expect("opened");
        let mapping = Mapping::of(&file, 8192);
        // Both pages are in memory, since loading one requires an answer.
        mapping.put(0, &[2]);
        mapping.put(8191, &[2]);
        std::thread::scope(|scope| {
            let left = lasting.stop();
            // The call may have to wait for a page that is being written back.
            let writes = scope.spawn(|| mapping.put(5000, &[3]));
            lasting.resume(left);
            writes.join().expect("written");
        });
        mapping.put(1, &[4]);
        file.sync_all().expect("synced");
        drop((mapping, file));
        lasting.hand_over();
        let f = fs::read(lasting.path("f")).expect("read");
        assert_eq!((&f[..3], f[4999], f[5000]), (&[2, 4, 1][..], 1, 3));
        lasting.end();
    }
}

#[test]
fn a_durable_transaction_goes_on_under_its_number_with_what_is_open_in_it() {
    let Some(mut lasting) = Lasting::new(false) else { return };
    fs::write(lasting.path("f"), b"before").expect("written");
    // The numbers of the views must differ from those that would be assigned first.
    let begin = |lasting: &Lasting| {
        let options = TransactionOptions { durable: true, ..Default::default() };
        lasting.views().begin(options).expect("begun")
    };
    let ended = begin(&lasting);
    let id: TransactionId = begin(&lasting);
    lasting.views().snapshot(&ViewId::Mainline, "then", Durability::Synced).expect("made");
    let (inside, then) = (lasting.path(&format!(".kvfs/txn/{id}")), ".kvfs/snapshot/then/f");
    let mut old = File::open(lasting.path(then)).expect("opened");
    let of_ended = File::open(lasting.path(&format!(".kvfs/txn/{ended}/f"))).expect("opened");
    lasting.views().abort(ended).expect("ended");
    let file = File::options().read(true).write(true).open(inside.join("f")).expect("opened");
    file.write_all_at(b"inside", 0).expect("written");
    let gone = File::create_new(inside.join("gone")).expect("made");
    gone.write_all_at(&[9; 20_000], 0).expect("written");
    fs::remove_file(inside.join("gone")).expect("removed");
    let number = file.metadata().expect("attributes").ino();

    lasting.hand_over();
    assert_eq!(file.metadata().expect("attributes").ino(), number);
    file.write_all_at(b"I", 0).expect("written");
    assert_eq!(fs::read(inside.join("f")).expect("read"), b"Inside");
    gone.write_all_at(b"!", 30_000).expect("written");
    let mut content = String::new();
    old.read_to_string(&mut content).expect("read");
    assert_eq!(content, "before");
    assert_eq!(fs::read(lasting.path("f")).expect("read"), b"before");
    let stale = of_ended.read_at(&mut [0], 0).or_else(|_| of_ended.metadata().map(|_| 0));
    assert_eq!(stale.map_err(|e| e.raw_os_error()), Err(Some(libc::ESTALE)), "it is over");
    let later = begin(&lasting);
    lasting.views().commit(id, Durability::Synced).expect("committed");
    assert_eq!(fs::read(lasting.path("f")).expect("read"), b"Inside");
    lasting.views().abort(later).expect("ended");
    drop((file, gone, old, of_ended));
    lasting.hand_over();
    assert_eq!(fs::read(lasting.path("f")).expect("read"), b"Inside");
    lasting.end();
}

#[test]
fn programs_under_way_see_no_error() {
    for write_back in BOTH {
        let Some(mut lasting) = Lasting::new(write_back) else { return };
        let over = AtomicBool::new(false);
        let root = lasting.dir.path().to_path_buf();
        let done = std::thread::scope(|scope| {
            let works = [works_with_names, works_with_content, syncs, lists];
            let workers: Vec<_> = works
                .into_iter()
                .enumerate()
                .map(|(n, work)| {
                    let dir = root.join(format!("worker {n}"));
                    fs::create_dir(&dir).expect("made");
                    let over = &over;
                    scope.spawn(move || {
                        let mut rounds = 0;
                        while !over.load(Ordering::Relaxed) {
                            work(&dir, rounds);
                            rounds += 1;
                        }
                        rounds
                    })
                })
                .collect();
            for _ in 0..20 {
                lasting.hand_over();
                // Some of them answer something.
                fs::metadata(&root).expect("it answers");
            }
            over.store(true, Ordering::Relaxed);
            workers.into_iter().map(|w| w.join().expect("no error")).collect::<Vec<usize>>()
        });
        assert!(done.iter().all(|rounds| *rounds > 0), "{done:?}");
        lasting.end();
    }
}

fn works_with_names(dir: &Path, round: usize) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    fs::write(&a, round.to_string()).expect("written");
    fs::rename(&a, &b).expect("renamed");
    fs::hard_link(&b, &a).expect("linked");
    symlink("b", dir.join("s")).expect("made");
    assert_eq!(fs::read_to_string(dir.join("s")).expect("read"), round.to_string());
    assert_eq!(fs::metadata(&b).expect("attributes").nlink(), 2);
    fs::set_permissions(&b, fs::Permissions::from_mode(0o640)).expect("set");
    for name in ["a", "b", "s"] {
        fs::remove_file(dir.join(name)).expect("removed");
    }
}

fn works_with_content(dir: &Path, round: usize) {
    let data: Vec<u8> = (0..300_000).map(|n| (n + round) as u8).collect();
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(dir.join("content"))
        .expect("opened");
    file.write_all_at(&data, 0).expect("written");
    file.set_len(250_000).expect("cut");
    let mut back = vec![0; 250_000];
    file.read_exact_at(&mut back, 0).expect("read");
    assert_eq!(back, data[..250_000]);
}

fn syncs(dir: &Path, round: usize) {
    let mut file = File::create(dir.join(format!("{}", round % 10))).expect("made");
    file.write_all(b"synced").expect("written");
    file.sync_all().expect("synced");
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).expect("there is data");
}

fn lists(dir: &Path, round: usize) {
    fs::write(dir.join(format!("{round}")), b"").expect("written");
    let listed: Vec<_> =
        fs::read_dir(dir).expect("listed").map(|entry| entry.expect("an entry")).collect();
    assert_eq!(listed.len(), round % 50 + 1);
    if round % 50 == 49 {
        for entry in fs::read_dir(dir).expect("listed") {
            fs::remove_file(entry.expect("an entry").path()).expect("removed");
        }
    }
}
