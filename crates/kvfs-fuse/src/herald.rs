//! The herald: tells the kernel what it must not believe any more when a view ends.
//!
//! Such a message makes the kernel take the lock of an inode, which a program may hold that waits for an answer of ours. So no thread that
//! answers requests sends one, and nobody who does holds a lock that an answer needs. Whoever ends a view sends them himself, as waking
//! another thread would take longer than they do: programs which have these directories and files open see the change from
//! then on. (A daemon that is killed while it sends one: see `watch`.)
//!
//! - Names that were made, replaced or removed are looked up anew. They are not torn out (`INVAL_ENTRY_EXPIRE`), for that would take away
//!   the working directories of programs and mounts that lie below.
//! - Of inodes that changed, attributes and pages are dropped. Only what the kernel refers to is worth a message.
//! - **Size and times of files.** With write-back caching the kernel believes its own, whatever it is told. But it takes what an
//!   answer to a change of the size says. So the herald opens the file through the mount, by its handle, which succeeds for just those that
//!   the kernel has in memory, and sets size and time to what they are; the door knows its thread and answers without changing anything. That
//!   takes the right to open by handle (CAP_DAC_READ_SEARCH). Without it files that have grown are shown at their new length, and those
//!   that have become shorter keep the old one, with zeros at the end, until the kernel forgets them.
//! - The view's own inodes are dropped, too: whoever still has one open gets ESTALE. A thread does it afterwards when they are many. The
//!   view's name is torn out with all below it, so that the kernel forgets it and the view's number becomes free (`kvfs::Views`).
//!
//! **Before a transaction begins or ends** the kernel must hand over what it holds back. A close hands over; for files that are still
//! open the herald calls syncfs(2) on the mount, which makes the kernel send all its dirty pages (of every view); it does not reach us as a
//! request of its own. Since Linux 6.16 nobody waits there for the answers of a FUSE daemon, so the herald meets all our threads
//! afterwards (`rendezvous`): then the pages have been taken. Several who want it at a time get
//! it together.
//!
//! What is done through the mount is done by guests (`guest`): otherwise a daemon that is killed amid it would never end.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use kvfs::{Fs, Touched, View, Views, Watcher};
use parking_lot::Mutex;
use rustix::fs::{OFlags, Timespec, Timestamps};

use crate::crew::Crew;
use crate::door::Door;
use crate::guest::Guest;
use crate::handler::{Attr, FileKind, Ino, Invalidator};
use crate::mount::Mounted;
use crate::together::Together;
use crate::{hidden, wire_ino};

/// What is to be told.
#[derive(Default)]
struct News {
    names: Vec<(Ino, Box<[u8]>)>,
    inodes: Vec<Ino>,
    /// Of those that are files, what they are now.
    files: Vec<Attr>,
}

/// Inodes of a view that has ended which are dropped by who ends it; more are left to a thread.
const DROPPED_AT_ONCE: usize = 64;

/// The watcher of a mounted file system's views. Stops with the mount.
pub struct Herald {
    cache: Arc<dyn Invalidator>,
    door: Arc<Door>,
    mainline: Fs,
    place: Place,
    crew: Arc<Crew>,
    /// Waits for what the kernel holds back.
    writer_back: Guest,
    together: Together,
    /// Shows files through the mount.
    shower: Guest,
    /// Files can be opened by their handles here.
    by_handle: AtomicBool,
    /// To the thread that drops inodes; `None`: the herald has stopped.
    dropper: Mutex<Option<Sender<Vec<Ino>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Where the mount is.
#[derive(Clone)]
struct Place {
    mount_point: PathBuf,
    device: u64,
}

impl Place {
    /// The root, opened. Not kept open, as that would keep the mount busy.
    fn open(&self) -> io::Result<File> {
        let root = File::open(&self.mount_point)?;
        // Something else may be mounted there meanwhile.
        if root.metadata()?.dev() == self.device { Ok(root) } else { Err(io::ErrorKind::NotFound.into()) }
    }
}

impl Herald {
    /// Starts to watch the views behind `door`, which is mounted as `mounted`.
    pub fn start(views: &Views, door: &Arc<Door>, mounted: &Mounted) -> io::Result<Arc<Herald>> {
        let cache = mounted.invalidator().ok_or(io::ErrorKind::NotConnected)?;
        let crew = mounted.crew().ok_or(io::ErrorKind::NotConnected)?;
        let mount_point = mounted.mount_point().to_path_buf();
        let device = mount_point.metadata()?.dev();
        let place = Place { mount_point, device };
        let (dropper, dropped) = channel::<Vec<Ino>>();
        let shower = Guest::start("fuse-show")?;
        door.heed(shower.ask(|| rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())?);
        let drop_all = {
            let cache = cache.clone();
            move || dropped.iter().flatten().for_each(|ino| drop(cache.inode(ino)))
        };
        let thread = std::thread::Builder::new().name("fuse-herald".into()).spawn(drop_all)?;
        let herald = Arc::new(Herald {
            cache,
            door: door.clone(),
            mainline: views.mainline().clone(),
            place,
            crew,
            writer_back: Guest::start("fuse-write-back")?,
            together: Together::default(),
            shower,
            by_handle: AtomicBool::new(true),
            dropper: Mutex::new(Some(dropper)),
            thread: Mutex::new(Some(thread)),
        });
        let watcher: Arc<dyn Watcher> = herald.clone();
        views.watch(&watcher);
        Ok(herald)
    }

    /// Tells nothing any more. To be called when the mount has ended.
    pub fn stop(&self) {
        drop(self.dropper.lock().take());
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        self.writer_back.stop();
        self.shower.stop();
    }
}

impl Watcher for Herald {
    fn write_back(&self) {
        self.together.run(|| self.hand_over());
    }

    fn appeared(&self, view: &View) {
        // It takes no inode's lock to drop a listing.
        if let Some((dir, _)) = hidden::place(view)
            && let Err(e) = self.cache.inode(wire_ino::of(wire_ino::HIDDEN, dir))
        {
            tracing::debug!("cannot tell the kernel of {view:?}: {e}");
        }
    }

    fn ended(&self, view: &View, number: u16, fs: &Fs, touched: Option<&Touched>) {
        let mut news = News::default();
        if let Some(touched) = touched {
            news.of(0, &self.mainline, touched);
        }
        let place = hidden::place(view).map(|(dir, name)| (wire_ino::of(wire_ino::HIDDEN, dir), name));
        news.inodes.extend(place.as_ref().map(|(dir, _)| *dir));
        self.spread(&news);
        let left: Vec<Ino> = fs.referenced().into_iter().map(|ino| wire_ino::of(number, ino)).collect();
        if left.len() > DROPPED_AT_ONCE {
            if let Some(dropper) = &*self.dropper.lock() {
                // An error means that the thread is gone, and the mount with it.
                let _ = dropper.send(left);
            }
        } else {
            // What it has forgotten is no error, and the rest is of nobody's concern.
            left.into_iter().for_each(|ino| drop(self.cache.inode(ino)));
        }
        // What no program has open there is forgotten now, or the view's number would be taken for as long as memory is plenty.
        if let Some((dir, name)) = place
            && let Err(e) = self.cache.gone(dir, name.as_bytes())
        {
            tracing::debug!("the kernel goes on remembering {view:?}: {e}");
        }
    }

    fn changed(&self, number: u16, fs: &Fs, touched: &Touched) {
        let mut news = News::default();
        news.of(number, fs, touched);
        self.spread(&news);
    }
}

impl News {
    /// What of a view has changed that the kernel knows.
    fn of(&mut self, number: u16, fs: &Fs, touched: &Touched) {
        let known = |ino: &Ino| fs.is_referenced(*ino);
        let wire = |ino| wire_ino::of(number, ino);
        self.names.extend(touched.names.iter().filter(|(dir, ..)| known(dir)).map(|(dir, name, _)| (wire(*dir), name.clone())));
        for &(ino, _) in touched.inodes.iter().filter(|(ino, _)| known(ino)) {
            self.inodes.push(wire(ino));
            if let Ok(attr) = fs.getattr(ino)
                && attr.kind == FileKind::File
            {
                self.files.push(wire_ino::attr(number, attr));
            }
        }
    }
}

impl Herald {
    /// What the kernel holds back has come when this returns.
    fn hand_over(&self) {
        match self.send_back() {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!("a thread is busy for too long: a file that is still open may lack what was written last");
            }
            Err(e) if e.kind() == io::ErrorKind::NotConnected => {
                tracing::debug!("nothing is handed over any more, the mount has ended: {e}");
            }
            Err(e) => tracing::warn!("the kernel could not hand over what it holds: {e}"),
        }
    }

    /// Has the kernel send its dirty pages, and all our threads meet; `false`: one of them did not come in time.
    fn send_back(&self) -> io::Result<bool> {
        let (place, door, crew) = (self.place.clone(), self.door.clone(), self.crew.clone());
        self.writer_back.ask(move || {
            // Without a mount nothing is held back.
            let Ok(root) = place.open() else { return Ok(true) };
            rustix::fs::syncfs(&root)?;
            meet(&root, &door, &crew)
        })?
    }

    /// Returns when the kernel has been told.
    fn spread(&self, news: &News) {
        if self.dropper.lock().is_none() {
            return;
        }
        match self.tell(news) {
            Ok(()) => {}
            // The mount has ended meanwhile.
            Err(_) if self.dropper.lock().is_none() => {}
            Err(e) => tracing::warn!("the kernel may show old content: it did not take what changed: {e}"),
        }
    }

    fn tell(&self, news: &News) -> io::Result<()> {
        let mut result = Ok(());
        for &ino in &news.inodes {
            result = result.and(self.cache.inode(ino));
        }
        for (dir, name) in &news.names {
            result = result.and(self.cache.entry(*dir, name));
        }
        if news.files.is_empty() {
            return result;
        }
        let (place, files, by_handle) = (self.place.clone(), news.files.clone(), self.by_handle.load(Ordering::Relaxed));
        let shown = self.shower.ask(move || {
            let root = place.open()?;
            let show = |attr| if by_handle { set_as_it_is(&root, attr) } else { Err(io::ErrorKind::Unsupported.into()) };
            Ok::<_, io::Error>(files.iter().map(show).collect::<Vec<_>>())
        })??;
        for (attr, shown) in news.files.iter().zip(shown) {
            result = result.and(self.shown(attr, shown));
        }
        result
    }

    /// Whether the kernel has taken over size and time of a file; if not, has it take what it takes without a handle.
    fn shown(&self, attr: &Attr, shown: io::Result<()>) -> io::Result<()> {
        match shown {
            Ok(()) => return Ok(()),
            // It is not in the kernel's memory.
            Err(e) if e.raw_os_error() == Some(libc::ESTALE) => return Ok(()),
            Err(e)
                if self.by_handle.load(Ordering::Relaxed)
                    && matches!(e.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS)) =>
            {
                tracing::info!("files that become shorter by a commit keep their length where they are cached: {e}");
                self.by_handle.store(false, Ordering::Relaxed);
            }
            Err(e) => tracing::debug!(ino = attr.ino, "cannot show the new size by its handle: {e}"),
        }
        self.cache.grown(attr.ino, attr.size)
    }
}

/// Waits until every thread has done what it took before this call; `false`: one of them did not come in time.
fn meet(root: &File, door: &Door, crew: &Crew) -> io::Result<bool> {
    let path = Path::new(OsStr::from_bytes(hidden::NAME)).join(hidden::BARRIER_NAME);
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let barrier = File::from(rustix::fs::openat(root, path, flags, rustix::fs::Mode::empty())?);
    let threads = crew.threads();
    let all = door.rendezvous().call(threads);
    for thread in 0..threads as u64 {
        // Pages that do not lie side by side go in requests of their own.
        barrier.write_all_at(&[0], thread * 2 * APART)?;
    }
    barrier.sync_data()?;
    Ok(all.have_come())
}

/// At least the size of a page of the kernel's.
const APART: u64 = 64 << 10;

/// Sets size and time of a file that the kernel has in memory to what they are.
fn set_as_it_is(root: &File, attr: &Attr) -> io::Result<()> {
    let file = open_by_handle(root, attr.ino, libc::O_RDONLY)?;
    let seen = file.metadata()?;
    if seen.size() != attr.size {
        open_by_handle(root, attr.ino, libc::O_WRONLY)?.set_len(attr.size)?;
    }
    let (mtime, seen) = (attr.mtime, file.metadata()?);
    if (seen.mtime(), seen.mtime_nsec()) != (mtime.secs, i64::from(mtime.nanos)) {
        let keep = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ };
        let times =
            Timestamps { last_access: keep, last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() } };
        rustix::fs::futimens(&file, &times)?;
    }
    Ok(())
}

/// `struct file_handle` with the handle of an inode in FUSE: high and low half of its number, and its generation, which is 0 here.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    ino: [u32; 2],
    generation: u32,
}

/// Opens an inode that the kernel has in memory; ESTALE when it has not.
fn open_by_handle(root: &File, ino: Ino, flags: i32) -> io::Result<File> {
    /// FILEID_INO64_GEN
    const KIND: i32 = 0x81;
    let mut handle = Handle { bytes: 12, kind: KIND, ino: [(ino >> 32) as u32, ino as u32], generation: 0 };
    // SAFETY: the handle is laid out as the call wants it, with as many bytes behind its head as it says, and lives until it returns;
    // the descriptor it gives is nobody else's.
    unsafe {
        let flags = flags | libc::O_CLOEXEC | libc::O_NOATIME | libc::O_NONBLOCK;
        match libc::open_by_handle_at(root.as_raw_fd(), (&raw mut handle).cast(), flags) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from(OwnedFd::from_raw_fd(fd))),
        }
    }
}
