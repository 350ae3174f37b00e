//! A store of files and keys on which a script of steps is played.
//!
//! A word like `x` is a file of the root directory, `#x` a key of a user's dictionary; what
//! predicates select are the names in the directory, and the keys. The store begins with x=10 and
//! y=20, as Hermitage's table does. A script that `play` plays is played three times: with both as
//! files, with a file and a key, and with a key and a file. How scripts are read is told in
//! `script`; the steps are
//!
//! - `T1 write x v` (an existing file, and given to the transaction as by fsync)
//! - `T1 hold x v`: written, but it stays in the view's memory until the commit
//! - `T1 read x -> v`, or `nothing`
//! - `T1 make z v`, `T1 remove z`, `T1 rename x z`: names
//! - `T1 list -> x y`: the names of all files; `T1 scan -> x=v #y=v`: all files with their content,
//!   and all keys
//! - `T1 clear`: all files and keys go
//! - `T1 commit`, or `-> conflict file #y`: a file or name and a key have been changed by others;
//!   `T1 abort`
//! - `-> locked`: refused for another's lock, because that one is older and took this one's,
//!   or held it for too long; a commit finds that there is no such transaction any more: `-> over`
//! - `plain write x v` and so on: in no transaction; it does not wait here, but is refused

use std::collections::{BTreeMap, BTreeSet};

use kvdb::{
    Batch, DictionaryId, Durability, Isolation, Kvdb, TransactionId, TransactionOptions,
    without_lock_waits,
};
use kvfs::{Error, FileKind, Fs, ROOT, RenameFlags, Result, SetAttr, ViewId, Views};

use crate::script::{self, LONG, Stage, Step};
use crate::world::{USER, World};

struct Store {
    w: World,
    views: Views,
    rows: DictionaryId,
    isolation: Isolation,
    /// The files outlive their transactions.
    places: BTreeMap<String, Place>,
}

/// The place in which a step runs.
#[derive(Clone)]
struct Place {
    views: Views,
    db: Kvdb,
    fs: Fs,
    rows: DictionaryId,
    transaction: Option<kvdb::Transaction>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn some(words: Vec<String>) -> String {
    if words.is_empty() { "nothing".into() } else { words.join(" ") }
}

impl Place {
    fn outcome(&self, result: Result<String>) -> String {
        match result {
            Ok(text) => text,
            Err(Error::Store(kvdb::Error::Conflict { keys })) => {
                let what = |(dict, key): &(DictionaryId, bytes::Bytes)| match *dict == self.rows {
                    true => format!("#{}", text(key)),
                    false => "file".into(),
                };
                let (keys, files): (BTreeSet<String>, BTreeSet<_>) =
                    keys.iter().map(what).partition(|w| w.starts_with('#'));
                files
                    .into_iter()
                    .chain(keys)
                    .fold("conflict".into(), |all, one| format!("{all} {one}"))
            }
            Err(Error::Store(kvdb::Error::Locked(_))) => "locked".into(),
            Err(Error::Store(kvdb::Error::NoTransaction(_))) => "over".into(),
            Err(e) => format!("error: {e}"),
        }
    }

    /// Takes a step: in the transaction, or at once.
    fn step(&self, verb: &str, args: &[String]) -> Result<String> {
        let done = String::new();
        match (verb, args) {
            ("write" | "hold" | "make", [key, value]) if key.starts_with('#') => {
                let mut batch = Batch::new();
                batch.put(self.rows, key[1..].to_owned(), value.to_owned());
                self.apply(batch).map(|()| done)
            }
            ("remove", [key]) if key.starts_with('#') => {
                let mut batch = Batch::new();
                batch.delete(self.rows, key[1..].to_owned());
                self.apply(batch).map(|()| done)
            }
            ("read", [key]) if key.starts_with('#') => {
                let value = match &self.transaction {
                    Some(t) => t.get(self.rows, &key.as_bytes()[1..])?,
                    None => self.db.get(self.rows, &key.as_bytes()[1..])?,
                };
                Ok(value.map_or("nothing".into(), |v| text(&v)))
            }
            ("write" | "hold", [name, value]) => {
                let attr = self.fs.resolve(name.as_bytes())?;
                if attr.size != value.len() as u64 {
                    self.fs.setattr(
                        attr.ino,
                        &SetAttr { size: Some(0), ..Default::default() },
                        USER,
                    )?;
                }
                self.fs.write(attr.ino, 0, value.as_bytes(), Default::default())?;
                if verb == "write" {
                    self.fs.fsync(attr.ino, false)?;
                }
                Ok(done)
            }
            ("read", [name]) => self.content(name),
            ("make", [name, value]) => {
                let ino = self.fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, USER)?.ino;
                self.fs.write(ino, 0, value.as_bytes(), Default::default())?;
                self.fs.fsync(ino, false).map(|()| done)
            }
            ("remove", [name]) => self.fs.unlink(ROOT, name.as_bytes()).map(|()| done),
            ("rename", [from, to]) => self
                .fs
                .rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), RenameFlags::default())
                .map(|_| done),
            ("list", []) => Ok(some(self.names()?.into_iter().collect())),
            ("scan", []) => {
                let mut all = Vec::new();
                for name in self.names()? {
                    all.push(format!("{name}={}", self.content(&name)?));
                }
                for (key, value) in self.keys()? {
                    all.push(format!("#{}={}", text(&key), text(&value)));
                }
                // The words are sorted by name; of one name the file comes first.
                all.sort_by_key(|word| {
                    word.trim_start_matches('#').split('=').next().map(str::to_owned)
                });
                Ok(some(all))
            }
            ("clear", []) => {
                for name in self.names()? {
                    self.fs.unlink(ROOT, name.as_bytes())?;
                }
                let mut batch = Batch::new();
                batch.delete_range(self.rows, "", "zz");
                self.apply(batch).map(|()| done)
            }
            ("commit", []) => self.views.commit(self.id(), Durability::Buffered).map(|()| done),
            ("abort", []) => self.views.abort(self.id()).map(|()| done),
            _ => panic!("no step: {verb} {args:?}"),
        }
    }

    fn id(&self) -> TransactionId {
        self.transaction.as_ref().expect("not plain").id()
    }

    fn apply(&self, batch: Batch) -> Result<()> {
        match &self.transaction {
            Some(t) => Ok(t.apply(batch)?),
            None => Ok(without_lock_waits(|| self.db.commit(batch, Durability::Buffered))?),
        }
    }

    fn content(&self, name: &str) -> Result<String> {
        match self.fs.resolve(name.as_bytes()) {
            Err(Error::NotFound) => Ok("nothing".into()),
            attr => {
                let attr = attr?;
                Ok(text(&self.fs.read(attr.ino, 0, attr.size as u32)?))
            }
        }
    }

    fn names(&self) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        self.fs.readdir(ROOT, 0, false, &mut |e| {
            names.insert(text(e.name));
            true
        })?;
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }

    fn keys(&self) -> Result<Vec<(bytes::Bytes, bytes::Bytes)>> {
        Ok(match &self.transaction {
            Some(t) => t.scan(self.rows, b"", b"", usize::MAX)?,
            None => self.db.view().scan(self.rows, b"", b"", usize::MAX)?,
        })
    }
}

impl Store {
    fn new(isolation: Isolation, start: &str) -> Store {
        let w = World::new();
        let views = Views::new(w.db.clone(), w.fs.clone());
        let rows = w.db.open_dictionary("rows").unwrap().id();
        let store = Store { w, views, rows, isolation, places: BTreeMap::new() };
        for (what, value) in start.split(' ').map(|word| word.split_once('=').unwrap()) {
            let verb = if what.starts_with('#') { "write" } else { "make" };
            store.place("plain").step(verb, &[what.into(), value.into()]).unwrap();
        }
        store
    }

    fn place(&self, who: &str) -> Place {
        match self.places.get(who) {
            Some(place) => place.clone(),
            None => {
                assert_eq!(who, "plain");
                Place {
                    views: self.views.clone(),
                    db: self.w.db.clone(),
                    fs: self.w.fs.clone(),
                    rows: self.rows,
                    transaction: None,
                }
            }
        }
    }
}

impl Stage for Store {
    fn begin(&mut self, who: &str) {
        let options = TransactionOptions {
            isolation: self.isolation,
            lock_timeout: LONG,
            ..TransactionOptions::default()
        };
        let id = self.views.begin(options).unwrap();
        let fs = self.views.fs(&ViewId::Transaction(id)).unwrap();
        let transaction = Some(self.views.transaction(id).unwrap());
        self.places.insert(who.into(), Place { fs, transaction, ..self.place("plain") });
    }

    fn step(&self, who: &str, verb: &str, args: &[String]) -> Step {
        let (place, verb, args) = (self.place(who), verb.to_owned(), args.to_vec());
        Box::new(move || place.outcome(place.step(&verb, &args)))
    }

    fn waits(&self, who: &str) -> bool {
        let id = self.places[who].id();
        self.w.db.transactions().iter().any(|info| info.id == id && info.waits_for.is_some())
    }

    fn now(&self) -> String {
        self.place("plain").step("scan", &[]).unwrap()
    }
}

/// Plays a script as written. The script itself says which words are keys.
pub fn play_as_written(isolation: Isolation, start: &str, script: &str) {
    script::play(&mut Store::new(isolation, start), &format!("{isolation:?}, {start}"), script);
}

/// Plays a script three times: with `x` and `y` as files, and with either of them as a key.
pub fn play(isolation: Isolation, script: &str) {
    for keys in ["", "y", "x"] {
        let lines: Vec<_> = script.lines().map(|line| with_keys(line, keys)).collect();
        play_as_written(isolation, &with_keys("x=10 y=20", keys), &lines.join("\n"));
    }
}

/// The line with all of `keys` as keys. A conflict over others is over files.
fn with_keys(line: &str, keys: &str) -> String {
    let conflict = line.contains("-> conflict");
    let is_key = |word: &str| {
        word.split('=').next().is_some_and(|name| !name.is_empty() && keys.contains(name))
    };
    let word = |word: &str| match word {
        word if is_key(word) => format!("#{word}"),
        "x" | "y" if conflict => "file".into(),
        word => word.into(),
    };
    let mut words: Vec<String> = line.split_whitespace().map(word).collect();
    if conflict {
        let list = words.iter().position(|word| word == "conflict").unwrap() + 1;
        words[list..].sort_by_key(|word| word.starts_with('#'));
        words.dedup();
    }
    words.join(" ")
}
