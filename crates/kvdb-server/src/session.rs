//! One client's state, and the way of a command from its name to its handler.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use kvdb::{Batch, DictionaryId, Durability, Kvdb};

use crate::commands::{self, COMMANDS, Command};
use crate::cursors::Cursors;
use crate::dictionaries::Selected;
use crate::failure::{Failure, Outcome};
use crate::limits::Limits;
use crate::locks::KeyLocks;
use crate::metrics::Metrics;
use crate::output::Output;
use crate::request::Arguments;

/// Gives what the owner of the store knows about it, as JSON.
pub type InfoSource = Arc<dyn Fn() -> String + Send + Sync>;

/// What all connections of a server share.
pub struct Shared {
    pub db: Kvdb,
    pub limits: Limits,
    pub password: Option<String>,
    pub durable: bool,
    pub info: Option<InfoSource>,
    pub socket: String,
    pub tcp: Option<SocketAddr>,
    pub locks: KeyLocks,
    pub cursors: Cursors,
    pub metrics: Metrics,
    pub next_client: AtomicU64,
    /// Bytes that large requests on their way in have taken, of all connections (`Limits::requests`).
    pub request_bytes: AtomicUsize,
    /// Set when the server stops, so that long commands end.
    pub stopping: AtomicBool,
}

impl Shared {
    pub fn new(db: Kvdb, limits: Limits, password: Option<String>, durable: bool, info: Option<InfoSource>) -> Self {
        Shared {
            db,
            cursors: Cursors::new(limits.cursors),
            limits,
            password,
            durable,
            info,
            socket: String::new(),
            tcp: None,
            locks: KeyLocks::default(),
            metrics: Metrics::default(),
            next_client: AtomicU64::new(1),
            request_bytes: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
        }
    }
}

/// One client.
pub struct Session {
    pub shared: Arc<Shared>,
    pub id: u64,
    pub address: String,
    pub name: String,
    pub library: (String, String),
    pub dictionary: Selected,
    /// Each write of this connection is durable before its reply leaves.
    pub durable: bool,
    /// The client must show the password before anything else.
    pub needs_password: bool,
    pub authenticated: bool,
    /// The connection ends when the reply is out.
    pub closing: bool,
}

impl Session {
    pub fn new(shared: Arc<Shared>, address: String, needs_password: bool) -> Self {
        Session {
            id: shared.next_client.fetch_add(1, Relaxed),
            address,
            name: String::new(),
            library: Default::default(),
            dictionary: Selected::default(),
            durable: shared.durable,
            needs_password,
            authenticated: !needs_password,
            closing: false,
            shared,
        }
    }

    pub fn db(&self) -> &Kvdb {
        &self.shared.db
    }

    /// The selected dictionary if it exists.
    pub fn existing(&mut self) -> Result<Option<DictionaryId>, Failure> {
        self.dictionary.existing(&self.shared.db)
    }
    /// The selected dictionary, made if need be.
    pub fn writable(&mut self) -> Result<DictionaryId, Failure> {
        self.dictionary.writable(&self.shared.db)
    }
    /// Commits; durability, where asked for, is the output's business (see there).
    pub fn commit(&self, batch: Batch) -> Result<(), Failure> {
        Ok(self.shared.db.commit(batch, Durability::Buffered)?)
    }
    /// A key that may be written.
    pub fn check_key(&self, key: &[u8]) -> Outcome {
        let max = self.shared.limits.key;
        if key.len() > max {
            return Err(Failure::request(format!("key of {} bytes is longer than the limit of {max}", key.len())));
        }
        Ok(())
    }
    /// Called now and then by whatever takes long.
    pub fn check_stopping(&self) -> Outcome {
        if self.shared.stopping.load(Relaxed) { Err(Failure::STOPPING) } else { Ok(()) }
    }

    /// Runs one request and writes its one reply.
    pub fn run(&mut self, args: Arguments<'_>, out: &mut Output) {
        let Some(index) = commands::find(args.at(0)) else {
            self.shared.metrics.unknown.fetch_add(1, Relaxed);
            self.shared.metrics.commands.fetch_add(1, Relaxed);
            let failure = if self.authenticated { unknown(args) } else { NOAUTH };
            return out.error(&failure.to_string());
        };
        let started = Instant::now();
        let position = out.position();
        let command = &COMMANDS[index];
        let outcome = self.admit(command, args).and_then(|()| (command.run)(self, args, out));
        match &outcome {
            Ok(()) if command.writes && self.durable => out.hold(position),
            Ok(()) => {}
            Err(failure) => out.error(&failure.to_string()),
        }
        self.shared.metrics.count(index, started.elapsed(), outcome.is_ok());
    }

    fn admit(&self, command: &Command, args: Arguments<'_>) -> Outcome {
        if !self.authenticated && !command.open {
            return Err(NOAUTH);
        }
        let wanted = command.arity.unsigned_abs() as usize;
        let fits = if command.arity < 0 { args.len() >= wanted } else { args.len() == wanted };
        if fits { Ok(()) } else { Err(wrong_arity(command.name)) }
    }
}

pub const NOAUTH: Failure = Failure::Coded(std::borrow::Cow::Borrowed("NOAUTH Authentication required."));

pub fn wrong_arity(name: &str) -> Failure {
    Failure::request(format!("wrong number of arguments for '{name}' command"))
}

fn unknown(args: Arguments<'_>) -> Failure {
    let mut shown = String::new();
    for arg in args.from(1) {
        if shown.len() >= 128 {
            break;
        }
        let arg = &arg[..arg.len().min(128 - shown.len())];
        shown.push_str(&format!("'{}' ", String::from_utf8_lossy(arg)));
    }
    let name = args.at(0);
    let name = String::from_utf8_lossy(&name[..name.len().min(128)]).into_owned();
    Failure::request(format!("unknown command '{name}', with args beginning with: {shown}"))
}
