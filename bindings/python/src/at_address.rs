//! Stores in object storage, by their addresses. They are opened for reading or writing, forked
//! and published.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use env::Machine;
use kvdb::{ForkId, ForkOptions, Kvdb, LocalCopy, PushStats};
use kvfs::{Fs, FsOptions};
use places::following::{Following, FollowingThread};
use places::local_copies::{self, LocalFile};
use places::publishing::{self, Publication, Publishing};
use places::{Address, Error};
use pyo3::prelude::*;

use crate::failure::{Failure, Outcome};
use crate::shared::{Open, Opening, Shared, There, patiently};

/// The number of a fork, its label, the generation with which it began, the time of its
/// registration, and the time from which the registration no longer counts (seconds since 1970).
type ListedFork = (String, String, u64, f64, Option<f64>);

/// The options with which a store at an address is written.
#[derive(Clone, Copy, Debug)]
pub struct Writing {
    /// Set to take the store even if another machine has it open.
    pub take: bool,
    /// Set to create the store if it does not exist.
    pub make: bool,
    /// Set if syncs return only when the commits are also in object storage.
    pub syncs_there: bool,
    /// The interval at which commits are published.
    pub every: Duration,
}

/// Returns the address that a word denotes, which must not name a snapshot.
fn newest(word: &Path) -> Outcome<Address> {
    let address = Address::required(word)?;
    match &address.snapshot {
        None => Ok(address),
        Some(snapshot) => Err(Failure::Invalid(format!(
            "{address} is a snapshot, which stays as it is: leave out @{snapshot}"
        ))),
    }
}

/// Opens a store for reading, in its newest state or as one of its snapshots. `follow` is the
/// interval at which new published states are looked for and shown.
pub fn read(
    word: &Path,
    directory: Option<&Path>,
    follow: Option<Duration>,
    opening: Opening,
) -> Outcome<Shared> {
    let of = Address::required(word)?;
    if let (Some(snapshot), Some(_)) = (&of.snapshot, follow) {
        let what = format!("{of} is a snapshot, which stays as it is: leave out follow");
        return Err(Failure::Invalid(format!("{what}, or @{snapshot}")));
    }
    let opening = Opening { read_only: true, ..opening };
    let LocalFile { device, .. } = local_copies::of(&of, directory)?;
    opening.store(opening.database(device)?, |open| {
        if let Some(name) = &of.snapshot {
            // A missing snapshot is reported now.
            open.db.open_snapshot(name)?;
        }
        let following = follow.map(|every| {
            let what = Following { of: of.clone(), every };
            FollowingThread::start(open.views()?, &open.db, what).map_err(Failure::from)
        });
        let (snapshot, following) = (of.snapshot.clone(), following.transpose()?);
        Ok(There { snapshot, following, ..There::default() })
    })
}

/// Opens a store for writing. This process owns the store until it is closed.
pub fn write(
    word: &Path,
    directory: Option<&Path>,
    writing: Writing,
    opening: Opening,
) -> Outcome<Shared> {
    let to = newest(word)?;
    if writing.make {
        make(&to, directory)?;
    }
    let path = local_copies::path_of_writer(&to, directory)?;
    let claim = || Ok(local_copies::claim(&to, &path, writing.take)?);
    let LocalFile { device, .. } = patiently(claim)?;
    opening.store(opening.database(device)?, |open| {
        let Writing { every, syncs_there, .. } = writing;
        let what = Publication { to: to.clone(), every, syncs_there };
        let publishing = Publishing::start(&open.db, open.views()?, what)?;
        let written = Some((to.to_string(), path.clone()));
        Ok(There { publishing: Some(publishing), written, ..There::default() })
    })
}

/// Creates an empty store at the address, unless one exists there.
fn make(to: &Address, directory: Option<&Path>) -> Outcome<()> {
    let there = to.store(true)?;
    let cannot = |source| Error::Store { doing: "create", address: to.to_string(), source };
    if there.head().map_err(cannot)?.is_some_and(|head| head.state.is_some()) {
        return Ok(());
    }
    if places::needs_trial(to, &there)? {
        places::trial(to)?;
    }
    let directory = local_copies::directory_of_writers(directory)?;
    let used = |source| Error::Path { path: directory.clone(), source };
    let empty = tempfile::tempdir_in(&directory).map_err(used)?;
    let db = Kvdb::create_path(empty.path().join("empty.kvfs"), Default::default())?;
    let options = FsOptions {
        root_uid: rustix::process::geteuid().as_raw(),
        root_gid: rustix::process::getegid().as_raw(),
        ..FsOptions::default()
    };
    Fs::open(db.clone(), Arc::new(Machine::default()), options)?.shutdown()?;
    db.push(&there, &mut |_| Ok(())).map_err(cannot)?;
    Ok(db.close()?)
}

/// Publishes an open store, including everything that its files have in memory.
pub fn push(open: &Open, word: &Path, take: bool) -> Outcome<PushStats> {
    let to = newest(word)?;
    if let Some(views) = &open.views {
        views.sync_all()?;
    }
    let cannot = |source| Error::Store { doing: "publish to", address: to.to_string(), source };
    let own = open.there.publishing.as_ref().and_then(|own| own.shared().upgrade());
    if let Some(own) = own.filter(|own| own.is_to(&to)) {
        return Ok(own.publish_by_hand().map_err(cannot)?);
    }
    let store = to.store(true)?;
    if places::needs_trial(&to, &store)? {
        places::trial(&to)?;
    }
    let (mut publisher, stats) =
        publishing::push(&open.db, &store, take, &mut |_| Ok(())).map_err(cannot)?;
    publisher.close().map_err(cannot)?;
    Ok(stats)
}

/// Opens a fork for reading, from the place where it is published or from its file. Also returns
/// the name of the fork for messages.
pub fn forked(word: &Path, directory: Option<&Path>, opening: Opening) -> Outcome<(String, Kvdb)> {
    let opening = Opening { read_only: true, ..opening };
    let (name, device) = if Address::parse(word)?.is_some() {
        let address = newest(word)?;
        (address.name.clone(), local_copies::of(&address, directory)?.device)
    } else {
        let name = word.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        (name, crate::shared::device(word, true)?)
    };
    Ok((name, opening.database(device)?))
}

fn seconds(what: &str, number: f64) -> Outcome<Duration> {
    Duration::try_from_secs_f64(number).map_err(|_| {
        Failure::Invalid(format!("{what} is a number of seconds that is not negative: {number}"))
    })
}

/// Parses a span of time that is waited for repeatedly.
pub fn interval(what: &str, number: f64) -> Outcome<Duration> {
    match seconds(what, number)? {
        Duration::ZERO => Err(Failure::Invalid(format!("{what} is more than 0 seconds"))),
        every => Ok(every),
    }
}

/// Returns the full address that a word denotes, or `None` if the word is a path.
#[pyfunction]
pub fn address(word: PathBuf) -> PyResult<Option<String>> {
    Ok(Address::parse(&word).map_err(Failure::from)?.map(|address| address.to_string()))
}

/// Creates a file that is a fork of the store at an address. Returns the number of the fork, the
/// generation with which it began, and the time at which that generation was published (seconds
/// since 1970).
#[pyfunction]
#[pyo3(signature = (word, file, *, expires, label))]
pub fn fork(
    py: Python<'_>,
    word: PathBuf,
    file: PathBuf,
    expires: Option<f64>,
    label: Option<String>,
) -> PyResult<(String, u64, f64)> {
    let made = py.detach(|| -> Outcome<LocalCopy> {
        let source = Address::required(&word)?;
        let lifetime = expires.map(|time| interval("expires", time)).transpose()?;
        let label = label.unwrap_or_else(places::host_name);
        let options = ForkOptions { lifetime, label, snapshot: None };
        if std::fs::symlink_metadata(&file).is_ok() {
            return Err(kvdb::Error::Exists(file.display().to_string()).into());
        }
        // A registration that is left over is listed by `forks`.
        places::fork(&source, &file, &options, || Ok(()), drop)
    })?;
    let id = made.fork.map(|id| id.to_string()).unwrap_or_default();
    Ok((id, made.generation, made.published as f64 / 1e9))
}

/// Returns the registered forks of a store.
#[pyfunction]
pub fn forks(py: Python<'_>, word: PathBuf) -> PyResult<Vec<ListedFork>> {
    let all = py.detach(|| -> Outcome<_> {
        let of = newest(&word)?;
        let cannot =
            |source| Error::Store { doing: "list the forks of", address: of.to_string(), source };
        Ok(of.store(false)?.forks().map_err(cannot)?)
    })?;
    let listed = all.into_iter().map(|fork| {
        let expires = fork.expires.map(|at| at.as_secs_f64());
        (fork.id.to_string(), fork.label, fork.generation, fork.made.as_secs_f64(), expires)
    });
    Ok(listed.collect())
}

/// Ends the registration of a fork. Returns whether it was registered.
#[pyfunction]
pub fn drop_fork(py: Python<'_>, word: PathBuf, number: &str) -> PyResult<bool> {
    let dropped = py.detach(|| -> Outcome<bool> {
        let of = newest(&word)?;
        let number: ForkId = number.parse()?;
        let cannot =
            |source| Error::Store { doing: "drop a fork of", address: of.to_string(), source };
        Ok(of.store(false)?.drop_fork(number).map_err(cannot)?)
    })?;
    Ok(dropped)
}
