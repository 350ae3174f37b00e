//! A mounted store for the commands on transactions: its location, and a connection to its daemon.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvdb_server::{Client, ErrorCode, Reply};
use kvfs_fuse::mounts::{self, MountEntry};
use places::ServedDirectory;
use serde_json::{Map, Value, json};

use crate::support::machine::{descendants, paths};
use crate::support::mounts::daemons::Record;
use crate::support::mounts::place::{self, View};
use crate::support::mounts::{sockets, waiting};
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// The environment variables with the transaction that a program was started in, and with the
/// socket of its store: set by `kvfs run`.
pub const TRANSACTION: &str = "KVFS_TXN";
pub const SOCKET: &str = "KVFS_SOCKET";
/// The environment variable with the mount point of the store.
pub const MOUNT: &str = "KVFS_MOUNT";

/// The time that another daemon may take to continue a mount, and the pause between attempts to
/// connect.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);

/// The reason why a transaction was not committed.
pub enum NotCommitted {
    /// The transaction was in another state than expected, and stays open.
    Changed(Failure),
    /// Others have changed the same data.
    Conflict(Failure),
    /// Nested transactions are open within it.
    Nested(Failure),
    Failed(Failure),
}

impl From<NotCommitted> for Failure {
    fn from(why: NotCommitted) -> Failure {
        match why {
            NotCommitted::Changed(failure) => failure.hint("look at it again"),
            NotCommitted::Conflict(failure)
            | NotCommitted::Nested(failure)
            | NotCommitted::Failed(failure) => failure,
        }
    }
}

/// Options of a commit.
#[derive(Clone, Copy, Default)]
pub struct Commit<'a> {
    /// Wait until the commit is on disk.
    pub sync: bool,
    /// Commit only if the transaction is in this state.
    pub state: Option<&'a str>,
    /// Keep the transaction open after a conflict.
    pub stay: bool,
    /// Abort open nested transactions.
    pub abort_nested: bool,
}

/// Names a view in a command of the socket.
#[derive(PartialEq, Eq)]
pub struct Naming(&'static str, String);

impl Naming {
    pub fn words(&self) -> [&[u8]; 2] {
        [self.0.as_bytes(), self.1.as_bytes()]
    }
}

pub struct Mounted {
    pub mount_point: PathBuf,
    /// The device number of the mount, if it is in the table of mounts.
    device: Option<String>,
    pub socket: PathBuf,
    /// The view of the path by which the store was found.
    pub view: View,
    /// True if the mount itself shows the view, as opposed to the path naming it.
    pub bound: bool,
    /// The view that is mounted at the mount point, which may be a single clone.
    shown: View,
    /// The mount point of the mount that contains the path.
    pub mounted_at: PathBuf,
    client: Client,
}

impl Mounted {
    /// Finds the store that is mounted at `target`, that contains `target`, or whose file is
    /// `target`. Refuses a path that names a view.
    pub fn find(target: &Path) -> Outcome<Mounted> {
        place::must_be_the_store(target)?;
        Mounted::find_view(target)
    }

    /// Finds the store or clone that is, or contains, `target`, for commands that work in both.
    /// Refuses a path that names another view.
    pub fn find_branch(target: &Path) -> Outcome<Mounted> {
        place::must_be_a_branch(target)?;
        Mounted::find_view(target)
    }

    /// Finds the store that contains `target`, for commands that work in views, too.
    pub fn find_view(target: &Path) -> Outcome<Mounted> {
        place::must_let_us_in(target)?;
        let full = paths::full_path(target).map_err(|e| place::not_found(target, &e))?;
        let none = || without_socket(target, &full);
        let socket = sockets::socket_of(target)?.ok_or_else(none)?;
        let place = place::of_target(&full)?;
        let mounted_here = |dir: &Path| mounts::mount_at(dir).ok().flatten();
        let (mount_point, mount) = match &place {
            Some(place) => {
                let mount = place.root_mount();
                (Some(mount.mount_point.clone()), Some(mount))
            }
            None => {
                let record = Record::all().into_iter().find(|r| r.store == full);
                let mount_point = record.map(|record| record.mount_point);
                let mount = mount_point.as_deref().and_then(mounted_here);
                (mount_point, mount)
            }
        };
        let device = mount.as_ref().map(|mount| mount.device.clone());
        let shown = mount.map_or(View::Mainline, |mount| place::view_at(&mount.root));
        let mounted_at = place.as_ref().map(|place| place.mount.mount_point.clone());
        let client = sockets::connect(&socket).map_err(|e| {
            Failure::io(format!("cannot reach the store's daemon at {}", socket.shown()), &e)
        })?;
        let (view, bound) =
            place.map_or((View::Mainline, false), |place| (place.view, place.bound));
        let mount_point = mount_point.ok_or_else(none)?;
        let mounted_at = mounted_at.unwrap_or_else(|| mount_point.clone());
        Ok(Mounted { mount_point, device, socket, view, bound, shown, mounted_at, client })
    }

    /// Returns the directory with a transaction's view of the files.
    pub fn view(&self, id: u64) -> PathBuf {
        View::Transaction(id).path(&self.mount_point)
    }

    /// Selects the clone that the path leads to, if any, for commands that name no branch.
    pub fn use_branch(&mut self) -> Outcome {
        let Some(name) = self.view.clone_name().map(String::from) else { return Ok(()) };
        self.call(&[b"CLONE", b"USE", name.as_bytes()]).map(drop)
    }

    /// Returns the words by which a command of the socket names a view: none for the store, unless
    /// this process was started in a transaction of it. A list of views has no name.
    pub fn naming(&self, view: &View) -> Option<Naming> {
        match view {
            View::Mainline => self.entered().map(|id| Naming("TXN", id.to_string())),
            View::Transaction(id) => Some(Naming("TXN", id.to_string())),
            View::Snapshot(name) => Some(Naming("SNAPSHOT", name.clone())),
            View::Clone(name) => Some(Naming("CLONE", name.clone())),
            View::Listing => None,
        }
    }

    /// Returns the directory with the files of a branch or a snapshot.
    pub fn path_of(&self, view: &View) -> PathBuf {
        match *view == self.shown {
            true => self.mount_point.clone(),
            false => view.path(&self.mount_point),
        }
    }

    /// Returns whether the path leads to a mount on which a transaction replaces the store.
    pub fn shows(&self, id: u64) -> bool {
        self.bound && self.view == View::Transaction(id)
    }

    /// Returns whether the mount shows only the view of the path, not the whole store.
    pub fn shows_alone(&self) -> bool {
        self.bound && self.shown == self.view
    }

    /// Returns the clone, or the store, that a transaction belongs to.
    pub fn view_beneath(&mut self, id: u64) -> Outcome<View> {
        let info = fields(self.txn(&["STATUS", &id.to_string()])?)?;
        Ok(View::of_branch(info["clone"].as_str().unwrap_or_default()))
    }

    /// Fails if the mount shows only a snapshot, or a clone to which this branch does not belong:
    /// the files of a transaction are not accessible there.
    pub fn must_have_views(&self) -> Outcome {
        // A clone that is mounted alone has the directories of its own clones.
        let is_there = |branch: &str| {
            let view = View::of_branch(branch);
            view == self.shown || !branch.is_empty() && view.path(&self.mount_point).is_dir()
        };
        let is_another = matches!(self.shown, View::Clone(_))
            && self.view.branch().is_some_and(|branch| !is_there(branch));
        if self.mount_point.join(".kvfs").is_dir() && !is_another {
            return Ok(());
        }
        let what = format!(
            "{} shows {} alone, and no views of transactions of {}",
            self.mount_point.shown(),
            self.shown,
            if is_another { &self.view } else { &View::Mainline },
        );
        Err(Failure::new(Exit::Usage, what)
            .hint("a program runs in a transaction where the whole store is mounted"))
    }

    /// Runs a command; an error reply is a failure.
    pub fn call(&mut self, words: &[&[u8]]) -> Outcome<Reply> {
        let _waiting = waiting::on(&self.socket);
        judged(self.client.call(words))
    }

    /// Runs a command. Returns `None` if the reply is an error with one of these codes; any other
    /// error is a failure.
    pub fn call_unless(&mut self, words: &[&[u8]], codes: &[ErrorCode]) -> Outcome<Option<Reply>> {
        let _waiting = waiting::on(&self.socket);
        let reply = self.client.call(words);
        match reply.map_err(|e| Failure::io("cannot talk to the store's daemon", &e))? {
            Reply::Error(text)
                if ErrorCode::of(&text).is_some_and(|code| codes.contains(&code)) =>
            {
                Ok(None)
            }
            Reply::Error(text) => Err(refused(&text)),
            reply => Ok(Some(reply)),
        }
    }

    /// Sends a command without waiting for its reply. Replies arrive in the order of the commands.
    pub fn send(&mut self, words: &[&[u8]]) -> Outcome {
        self.client.send(words).map_err(|e| Failure::io("cannot talk to the store's daemon", &e))
    }

    pub fn receive(&mut self) -> Outcome<Reply> {
        let _waiting = waiting::on(&self.socket);
        judged(self.client.receive())
    }

    /// Connects again if the daemon has ended, since another one may continue the mount. Returns
    /// `true` if the connection was alive.
    pub fn connect_again(&mut self) -> Outcome<bool> {
        if self.client.call(&[b"PING"]).is_ok() {
            return Ok(true);
        }
        let begun = Instant::now();
        loop {
            let refused = match sockets::connect(&self.socket) {
                Ok(client) => {
                    self.client = client;
                    return Ok(false);
                }
                Err(e) => e,
            };
            if self.is_gone() {
                let what = format!(
                    "the daemon of the mount on {} has ended, and no other one follows",
                    self.mount_point.shown()
                );
                return Err(Failure::new(Exit::Failed, what).hint(
                    "unmount it and mount the store again: what was committed is there, and so are \
                     durable transactions",
                ));
            }
            if begun.elapsed() > PATIENCE {
                let socket = self.socket.shown();
                let what = format!("cannot reach the store's daemon at {socket}");
                return Err(Failure::io(what, &refused));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns whether no daemon can continue the mount: the last one has died without a keeper,
    /// and no process has the connection to the kernel any more, or the mount has ended.
    fn is_gone(&self) -> bool {
        let Some(device) = &self.device else { return false };
        let has_ended = |all: Vec<MountEntry>| all.iter().all(|mount| mount.device != *device);
        Record::has_ended(device)
            && (mounts::is_dead(&self.mount_point) || mounts::mounts().is_ok_and(has_ended))
    }

    pub fn txn(&mut self, words: &[&str]) -> Outcome<Reply> {
        let words: Vec<&[u8]> =
            std::iter::once("TXN").chain(words.iter().copied()).map(str::as_bytes).collect();
        self.call(&words)
    }

    /// Returns a token for the transaction's changes so far, files included.
    pub fn state(&mut self, id: u64) -> Outcome<String> {
        match self.txn(&["STATE", &id.to_string()])? {
            Reply::Bulk(state) => Ok(String::from_utf8_lossy(&state).into_owned()),
            _ => Err(odd_reply()),
        }
    }

    /// Commits a transaction.
    pub fn commit(&mut self, id: u64, how: Commit<'_>) -> Result<(), NotCommitted> {
        let Commit { sync, state, stay, abort_nested } = how;
        let number = id.to_string();
        let mut words: Vec<&[u8]> = vec![b"TXN", b"COMMIT", number.as_bytes()];
        words.extend(sync.then_some(&b"SYNC"[..]));
        words.extend(stay.then_some(&b"STAY"[..]));
        words.extend(abort_nested.then_some(&b"ABORTNESTED"[..]));
        words.extend(state.iter().flat_map(|state| [&b"IF"[..], state.as_bytes()]));
        let _waiting = waiting::on(&self.socket);
        let reply = self.client.call(&words);
        let cannot = |e| NotCommitted::Failed(Failure::io("cannot talk to the store's daemon", &e));
        match reply.map_err(cannot)? {
            Reply::Error(text) => Err(match ErrorCode::of(&text) {
                Some(ErrorCode::Changed) => NotCommitted::Changed(refused(&text)),
                Some(ErrorCode::Nested) => NotCommitted::Nested(refused(&text)),
                Some(ErrorCode::Conflict) => NotCommitted::Conflict(refused(&text)),
                _ => NotCommitted::Failed(refused(&text)),
            }),
            _ => Ok(()),
        }
    }

    /// Restricts the programs that this process starts, as long as it runs: they may only write in
    /// transactions that it begins from now on, and may not end any of them.
    pub fn seal(&mut self) -> Outcome {
        descendants::keep_together()?;
        self.txn(&["SEAL"]).map(drop)
    }

    /// Returns the transaction that this process was started in, if it belongs to this store: one
    /// that begins at `target` lies within it. Fails if the path does not show it.
    pub fn around(&self, target: &Path) -> Outcome<Option<u64>> {
        let around = self.entered();
        let Some(id) = around.filter(|id| !self.shows(*id)) else { return Ok(around) };
        let what = format!(
            "this already runs in transaction {id}, and {} does not show that one",
            target.shown()
        );
        Err(Failure::new(Exit::Usage, what).hint(format!(
            "give the directory that shows it ({}), or run the program as it is",
            std::env::var(MOUNT).unwrap_or_default()
        )))
    }

    /// Returns the transaction that this process was started in, if it belongs to this store.
    pub fn entered(&self) -> Option<u64> {
        entered(&self.socket)
    }
}

/// Returns the failure for a path at which no store with a socket is mounted.
fn without_socket(target: &Path, full: &Path) -> Failure {
    let mount = mounts::mount_of(full).ok().flatten().filter(MountEntry::is_fuse);
    let record = mount.and_then(|mount| Record::read(&mount.device));
    if let Some(Ok(Some(server))) = record.map(|record| ServedDirectory::parse(&record.store)) {
        let what =
            format!("{} is mounted from {server}: this is done where the store is", target.shown());
        return Failure::new(Exit::Usage, what).hint(
            "run the program as it is, or in a transaction of its own by the address of the server",
        );
    }
    let what = format!("no store with a socket is mounted at {}", target.shown());
    Failure::new(Exit::NotFound, what)
        .hint("transactions are a mounted store's: kvfs mount STORE DIRECTORY")
}

fn judged(reply: std::io::Result<Reply>) -> Outcome<Reply> {
    match reply.map_err(|e| Failure::io("cannot talk to the store's daemon", &e))? {
        Reply::Error(text) => Err(refused(&text)),
        reply => Ok(reply),
    }
}

/// Returns the failure for an unexpected reply.
fn odd_reply() -> Failure {
    Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply")
}

/// Parses a map of names and values in a reply of the daemon.
pub fn fields(reply: Reply) -> Outcome<Map<String, Value>> {
    let Reply::Array(items) = reply else { return Err(odd_reply()) };
    let mut object = Map::new();
    let mut items = items.into_iter();
    while let (Some(Reply::Bulk(name)), Some(value)) = (items.next(), items.next()) {
        let value = match value {
            Reply::Integer(n) => json!(n),
            Reply::Bulk(text) => json!(String::from_utf8_lossy(&text)),
            _ => Value::Null,
        };
        object.insert(String::from_utf8_lossy(&name).into_owned(), value);
    }
    Ok(object)
}

/// Returns the transaction that this process was started in, if it belongs to the store with this
/// socket.
pub fn entered(socket: &Path) -> Option<u64> {
    let id = std::env::var(TRANSACTION).ok()?.parse().ok()?;
    let of = std::env::var_os(SOCKET)?;
    let same = |a: &Path, b: &Path| {
        a == b || a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b)
    };
    same(Path::new(&of), socket).then_some(id)
}

/// Converts an error reply into a failure, with an exit code chosen by the code of the reply.
pub fn refused(text: &str) -> Failure {
    use ErrorCode::{
        Changed, Conflict, Corrupt, Locked, NoAuth, NoCommit, NoDictionary, NoSnapshot, NoSpace,
        NoTransaction, Reserved, Sealed, WrongPassword,
    };
    let (code, rest) = ErrorCode::split(text);
    let exit = match code {
        Some(NoSpace) => Exit::NoSpace,
        Some(Corrupt) => Exit::Damaged,
        Some(NoAuth | WrongPassword | Sealed | Reserved) => Exit::NotPermitted,
        Some(Conflict | Locked | Changed) => Exit::Conflict,
        Some(NoTransaction | NoDictionary | NoSnapshot | NoCommit) => Exit::NotFound,
        _ => Exit::Failed,
    };
    Failure::new(exit, rest)
}
