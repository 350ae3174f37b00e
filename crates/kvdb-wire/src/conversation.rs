//! The server's side of one connection: the role of the client, its open views, and the answers to
//! its requests (`reads`: to those that read; `leases`: to those under the lease).
//!
//! A few threads take turns to read: the thread that has read a request answers it while the next
//! thread reads. So requests of one connection are answered concurrently, and no request is handed
//! from one thread to another.
//!
//! The memory that a connection can make the server hold is bounded: one frame and one answer for
//! each of its threads, and a limited number of views. The frames of a client that may only read
//! are shorter than those of others, so that a server can have thousands of them. A client that
//! does not read its answers in time is disconnected. The answers of all connections share the
//! budget in the server's options, of which those of one token have a share (`tenants`).
//!
//! A connection for which the server has no place is greeted all the same, and its greeting is
//! refused with a sentence: its end alone would not tell the client the reason.

use std::collections::HashMap;
use std::io::BufReader;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use env::Instant;
use env::sync::Mutex;
use env::sync::atomic::{AtomicBool, Ordering};
use kvdb::{Kvdb, ServedChange, View};

use crate::body::{ANSWER_BYTES, MAX_TUPLES, TransactionKey};
use crate::budget::Budget;
use crate::counts::ByRequest;
use crate::deadline::Until;
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureCode};
use crate::frame::{
    FRAME_OVERHEAD, Frame, MAX_FRAME, MAX_FRAME_OF_READER, VERSION, read_frame_of, write_frame,
};
use crate::lending::{AskedLease, HeldLease};
use crate::naming::{self, listed, not_allowed};
use crate::reply::Reply;
use crate::request::Request;
use crate::roles::{Line, Role, Tokens};
use crate::socket::Socket;
use crate::tenants::{Connected, Tenant, Tenants};
use crate::transactions::{Asked, Held, Transactions};

mod leases;
mod reads;

use reads::{Page, Reads, get_many, get_part};

/// Limit of the pending requests of one connection; further ones wait in the socket.
const UNDER_WAY: u32 = 64;
/// Limit of the bytes of the first frame of a connection.
const MAX_GREETING: usize = 4 << 10;
/// Limit of the open views of one connection.
pub(crate) const MAX_VIEWS: usize = 256;
/// Limit of the transactions that one connection uses.
pub(crate) const MAX_TRANSACTIONS: usize = 16;
/// Size of the read buffer.
const READ_BYTES: usize = 64 << 10;

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The token that clients must send. If it is empty, they must send an empty one.
    pub token: Bytes,
    /// Limit of the open connections. The greetings of further ones are refused; if many of them
    /// arrive at the same time, they are closed at once.
    pub connections: usize,
    /// A client that has not sent its greeting within this time is disconnected.
    pub greeting: Duration,
    /// A client that has not read an answer completely within this time is disconnected.
    pub patience: Duration,
    /// Limit of the bytes of all pending answers; further requests wait.
    pub answers: usize,
    /// Limit of the open transactions of clients.
    pub transactions: usize,
    /// Limit of the bytes of the changes of one transaction. `None` means half of the size of the
    /// store.
    pub transaction_bytes: Option<u64>,
    /// Limit of the bytes of the changes of all transactions together. `None` means half of the
    /// size of the store.
    pub all_transactions_bytes: Option<u64>,
    /// Limit of the snapshots of the store, and of its clones, beyond which only clients that
    /// administer it make more.
    pub snapshots: usize,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            token: Bytes::new(),
            connections: 128,
            greeting: Duration::from_secs(10),
            patience: Duration::from_secs(30),
            answers: 64 << 20,
            transactions: 256,
            transaction_bytes: None,
            all_transactions_bytes: None,
            snapshots: 4096,
        }
    }
}

/// A connection.
pub(crate) struct Conversation {
    db: Kvdb,
    options: ServerOptions,
    /// The tokens and certificates that are accepted. `None` means the token in the options.
    tokens: Option<Arc<Tokens>>,
    /// The role of the client, set by its greeting.
    role: OnceLock<Role>,
    /// The client's tenant, if it has one, set by its greeting.
    tenant: OnceLock<Connected>,
    tenants: Arc<Tenants>,
    /// The budget of answers, shared by all connections.
    answers: Arc<Budget>,
    /// The transactions of all connections. `None` if clients may only read.
    transactions: Option<Arc<Transactions>>,
    /// The counts of requests of all connections.
    counts: Arc<ByRequest>,
    /// The number of this connection among those of a server that accepts writes, or 0.
    number: u64,
    socket: Socket,
    reading: Mutex<BufReader<Until>>,
    writing: Mutex<Until>,
    greeted: AtomicBool,
    /// Set if the server has no place for this connection.
    is_refused: AtomicBool,
    views: Mutex<Views>,
}

#[derive(Default)]
struct Views {
    last: u64,
    open: HashMap<u64, OpenView>,
}

/// The view, transaction or lease that a number denotes.
#[derive(Clone)]
enum OpenView {
    Snapshot(View),
    Transaction(Held),
    Lease(HeldLease),
}

impl Conversation {
    pub fn new(
        db: Kvdb,
        (options, tokens): (ServerOptions, Option<Arc<Tokens>>),
        (answers, tenants): (Arc<Budget>, Arc<Tenants>),
        transactions: Option<Arc<Transactions>>,
        counts: Arc<ByRequest>,
        socket: Socket,
    ) -> Conversation {
        // An unknown client may only send a small frame, and has little time for it.
        let greeted_by = Some(Instant::now() + options.greeting);
        let until = |deadline| Until { socket: socket.clone(), deadline };
        Conversation {
            db,
            options,
            tokens,
            role: OnceLock::new(),
            tenant: OnceLock::new(),
            tenants,
            answers,
            number: transactions.as_ref().map_or(0, |all| all.unfinished().connection()),
            transactions,
            counts,
            reading: Mutex::new(BufReader::with_capacity(READ_BYTES, until(greeted_by))),
            writing: Mutex::new(until(None)),
            socket,
            greeted: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            views: Mutex::default(),
        }
    }

    /// Makes the greeting fail, because the server has no place for this connection.
    pub fn refuse(&self) {
        self.is_refused.store(true, Ordering::Relaxed);
    }

    /// Answers the greeting, which must be the first request and is answered before any other is
    /// read.
    pub fn greet(&self) -> Result<()> {
        self.answer_next(MAX_GREETING)?;
        self.reading.lock().get_mut().deadline = None;
        match self.greeted.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(Error::Closed),
        }
    }

    /// Answers requests until the connection ends. Several threads may call this.
    pub fn serve(&self) {
        let may_change =
            self.transactions.is_some() && self.role.get().is_some_and(Role::may_change);
        let most = if may_change { MAX_FRAME } else { MAX_FRAME_OF_READER };
        loop {
            match self.answer_next(most) {
                Ok(()) => {}
                Err(Error::Closed) => break,
                Err(e) => {
                    tracing::debug!("a connection ends: {e}");
                    break;
                }
            }
        }
        self.end();
    }

    /// Ends the connection, and releases its place. Other threads may still work on its requests.
    pub fn end(&self) {
        self.socket.end();
        if let Some(connected) = self.tenant.get() {
            connected.end();
        }
    }

    fn answer_next(&self, most: usize) -> Result<()> {
        let Frame { number, kind, body } = read_frame_of(&mut *self.reading.lock(), most)?;
        let asked = kind;
        self.counts.asked(asked, FRAME_OVERHEAD + body.len());
        // Bytes that are not a request may belong to a newer version or be garbage. Give up:
        // nothing that follows could be understood.
        let request = Request::decode(kind, &body)?;
        drop(body);
        // The client counts as present even while the request waits.
        let under_way = self.under_way(&request);
        // The share of the tenant comes first: a client that waits for it holds nothing of others.
        let most = most_of_answer(&request);
        let mut own = self.tenant.get().map(|connected| connected.tenant.answers.take(most));
        let mut share = self.answers.take(most);
        let reply = match self.answer(request) {
            Ok(reply) => reply,
            Err(failure) => Reply::Failed(failure),
        };
        drop(under_way);
        let (kind, body) = reply.encode();
        drop(reply);
        // A slow reader holds the memory of its answer, and no more.
        share.shrink(body.len());
        if let Some(own) = &mut own {
            own.shrink(body.len());
        }
        let mut to = self.writing.lock();
        to.deadline = Some(Instant::now() + self.options.patience);
        self.counts.answered(asked, write_frame(&mut *to, number, kind, &body)?);
        Ok(())
    }

    fn answer(&self, request: Request) -> std::result::Result<Reply, Failure> {
        let is_hello = matches!(request, Request::Hello { .. });
        if is_hello == self.greeted.load(Ordering::Relaxed) {
            return Err(failure(FailureCode::NotAllowed, "a connection begins with one greeting"));
        }
        match request {
            Request::Hello { version, token } => self.hello(version, &token),
            Request::View { snapshot } => self.view(snapshot),
            Request::GetMany { view, dict, keys } => {
                get_many(&self.find(view, dict, Reads::Keys(&keys))?, dict, &keys)
            }
            Request::GetPart { view, dict, key, offset, length } => {
                let read = Reads::Keys(std::slice::from_ref(&key));
                get_part(&self.find(view, dict, read)?, dict, &key, (offset, length))
            }
            Request::Iterate { view, dict, backward, keys_only, tuples, bytes, start, end } => {
                let page = Page {
                    backward,
                    keys_only,
                    tuples: tuples.min(MAX_TUPLES) as usize,
                    bytes: (bytes as usize).min(ANSWER_BYTES),
                };
                let view = self.find(view, dict, Reads::Range(&start, &end))?;
                page.of(&view, dict, &start, &end)
            }
            Request::Drop { view } => match self.views.lock().open.remove(&view) {
                Some(_) => Ok(Reply::Done),
                None => Err(no_view()),
            },
            Request::List { clones: false, from } => {
                Ok(listed(naming::snapshots(&self.db, self.role()?), &from))
            }
            Request::List { clones: true, from } => {
                Ok(listed(naming::clones(&self.db, self.role()?), &from))
            }
            request => self.answer_of_transactions(request),
        }
    }

    fn answer_of_transactions(&self, request: Request) -> std::result::Result<Reply, Failure> {
        let Some(all) = &self.transactions else {
            return Err(failure(FailureCode::NotAllowed, "this server lets clients read only"));
        };
        self.may(Role::may_change)?;
        if let Some(held) = self.leased(&request) {
            return self.answer_of_lease(all, &held, request);
        }
        match request {
            Request::Hold { key, joins, takes, lease, label } => {
                let connection = self.number;
                self.hold(all, AskedLease { key, joins, takes, lease, label, connection })
            }
            Request::Begin {
                key,
                serializable,
                durable,
                joins,
                takes,
                holder,
                lease,
                branch,
                label,
            } => self.begin(
                all,
                Asked {
                    key,
                    serializable,
                    durable,
                    joins,
                    takes,
                    holder,
                    connection: self.number,
                    tenant: self.tenant.get().map(|connected| connected.tenant.clone()),
                    lease,
                    branch,
                    label,
                },
            ),
            Request::Apply { transaction, batch, changes } => {
                all.apply(&self.held(transaction)?, batch, changes).map(|()| Reply::Done)
            }
            Request::ApplyPart { transaction, batch, part, last, changes } => {
                let of = (transaction, batch);
                self.apply_part(all, of, (part, last), changes).map(|()| Reply::Done)
            }
            // Commit and abort end only a transaction that was begun on this connection: `begin`
            // has checked the client's right to its branch.
            Request::Commit { key, synced, batches } => {
                match self.give_back(all, &key, Some(batches), synced) {
                    Some(answer) => answer,
                    None => all.commit(&key, batches, synced, self.held_of(&key).as_ref()),
                }
            }
            Request::Abort { key } => match self.give_back(all, &key, None, false) {
                Some(answer) => answer,
                None => all.abort(&key, self.held_of(&key).as_ref()).map(|()| Reply::Done),
            },
            Request::Sync { transaction } => {
                all.sync(&self.held(transaction)?).map(|()| Reply::Done)
            }
            Request::Lease { transaction } => {
                all.renew(&self.held(transaction)?).map(|()| Reply::Done)
            }
            Request::Savepoint { transaction, batch } => {
                all.savepoint(&self.held(transaction)?, batch).map(|()| Reply::Done)
            }
            Request::RollBack { transaction, batch, to } => {
                all.roll_back(&self.held(transaction)?, batch, to).map(|()| Reply::Done)
            }
            Request::Reserve { transaction, count } => {
                let range = all.reserve(&self.held(transaction)?, count)?;
                let count = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
                Ok(Reply::Reserved { first: range.start, count })
            }
            Request::Review { transaction, offset, words } => {
                all.review(&self.held(transaction)?, &words, offset)
            }
            request => self.answer_of_naming(all, request),
        }
    }

    /// Takes a part of a batch, and applies the batch with its last part.
    fn apply_part(
        &self,
        all: &Transactions,
        (transaction, batch): (u64, u64),
        (part, last): (u32, bool),
        changes: Vec<ServedChange>,
    ) -> std::result::Result<(), Failure> {
        let held = self.held(transaction)?;
        if all.has(&held, batch)? {
            return Ok(());
        }
        let (of, unfinished) = ((transaction, batch), all.unfinished());
        if !last {
            let added = unfinished.add(self.number, of, part, changes);
            return added.or_else(|why| all.refuse(&held, batch, why));
        }
        let applied = match unfinished.finish(self.number, of, part, changes) {
            Ok(whole) => all.apply(&held, batch, whole),
            Err(why) => all.refuse(&held, batch, why),
        };
        unfinished.forget(self.number);
        applied
    }

    /// Answers a request that makes or removes a snapshot or a clone.
    fn answer_of_naming(
        &self,
        all: &Transactions,
        request: Request,
    ) -> std::result::Result<Reply, Failure> {
        match request {
            Request::Snapshot { key, branch, name, synced } => {
                let (of, most) = ((&*branch, &*name), self.options.snapshots);
                let made = all.naming().make_snapshot(self.role()?, &key, of, synced, most);
                made.map(|()| Reply::Done)
            }
            Request::Clone { key, snapshot, name } => {
                let (of, most) = ((&*snapshot, &*name), self.options.snapshots);
                all.naming().make_clone(self.role()?, &key, of, most).map(|()| Reply::Done)
            }
            Request::Remove { clone: false, key, name } => {
                all.naming().remove_snapshot(self.role()?, &key, &name).map(|()| Reply::Done)
            }
            Request::Remove { clone: true, key, name } => {
                all.naming().remove_clone(self.role()?, &key, &name).map(|()| Reply::Done)
            }
            _ => Err(failure(FailureCode::NotAllowed, "this server has no such request")),
        }
    }

    fn begin(&self, all: &Transactions, asked: Asked) -> std::result::Result<Reply, Failure> {
        let (key, limit) = (asked.key, || {
            failure(FailureCode::Limit, "too many views and transactions are open: drop some")
        });
        // Check the limits before anything is begun for this connection.
        let is_full = |views: &Views| {
            let is_one = |view: &&OpenView| matches!(view, OpenView::Transaction(_));
            let transactions = views.open.values().filter(is_one).count();
            transactions >= MAX_TRANSACTIONS || views.open.len() >= MAX_VIEWS
        };
        {
            let mut views = self.views.lock();
            views.open.retain(|_, view| match view {
                OpenView::Transaction(held) => self.db.transaction(held.transaction.id()).is_ok(),
                OpenView::Snapshot(_) | OpenView::Lease(_) => true,
            });
            if views.number_of(&key).is_none() && is_full(&views) {
                return Err(limit());
            }
        }
        let may = |branch: &str| self.may(|role| role.may_write(branch));
        let held = all.begin(asked, &may)?;
        let number = {
            let mut views = self.views.lock();
            match views.number_of(&key) {
                Some(number) => {
                    views.open.insert(number, OpenView::Transaction(held.clone()));
                    number
                }
                None if is_full(&views) => return Err(limit()),
                None => {
                    views.last += 1;
                    let number = views.last;
                    views.open.insert(number, OpenView::Transaction(held.clone()));
                    number
                }
            }
        };
        all.begun(&held, number)
    }

    fn held(&self, transaction: u64) -> std::result::Result<Held, Failure> {
        match self.views.lock().open.get(&transaction) {
            Some(OpenView::Transaction(held)) => Ok(held.clone()),
            _ => Err(no_view()),
        }
    }

    /// Returns the transaction with this key if it is open on this connection.
    fn held_of(&self, key: &TransactionKey) -> Option<Held> {
        let views = self.views.lock();
        match views.number_of(key).and_then(|number| views.open.get(&number)) {
            Some(OpenView::Transaction(held)) => Some(held.clone()),
            _ => None,
        }
    }

    fn hello(&self, version: u16, token: &Bytes) -> std::result::Result<Reply, Failure> {
        let Some((role, line)) = self.role_of(token) else {
            return Err(failure(FailureCode::NotAllowed, "the token is none of this server"));
        };
        // A client of another version gets the version of the server, and decides what to do.
        if version == VERSION {
            if self.is_refused.load(Ordering::Relaxed) {
                let most = self.options.connections;
                let what = format!(
                    "the server has {most} connections, and may not have more: end some of them, \
                     or let it have more"
                );
                return Err(failure(FailureCode::Limit, &what));
            }
            if let Some(line) = line {
                self.join(&self.tenants.of(line))?;
            }
            let _ = self.role.set(role);
            self.greeted.store(true, Ordering::Relaxed);
        }
        Ok(Reply::Welcome { version: VERSION, under_way: UNDER_WAY, views: MAX_VIEWS as u32 })
    }

    /// Counts this connection as one of the tenant.
    fn join(&self, tenant: &Arc<Tenant>) -> std::result::Result<(), Failure> {
        let connected = tenant.connect(self.options.connections, &self.socket).map_err(|open| {
            let what = format!(
                "the clients of this token or certificate have {open} connections, and may not \
                 have more: end some of them"
            );
            failure(FailureCode::Limit, &what)
        })?;
        if let Some(all) = &self.transactions {
            all.unfinished().join(self.number, tenant);
        }
        let _ = self.tenant.set(connected);
        Ok(())
    }

    /// Returns the role of the client with a token, and its line if the server has a list.
    fn role_of(&self, token: &Bytes) -> Option<(Role, Option<&Line>)> {
        if let Some(tokens) = &self.tokens {
            return tokens.line(token).map(|line| (line.role.clone(), Some(line)));
        }
        // Compare in constant time, so that the time does not reveal how much of a wrong token is
        // right.
        let differs = token.iter().zip(&self.options.token).fold(0, |all, (a, b)| all | (a ^ b));
        let is_right = differs == 0 && token.len() == self.options.token.len();
        is_right.then(|| (Role::all(), None))
    }

    fn may(&self, what: impl Fn(&Role) -> bool) -> std::result::Result<(), Failure> {
        match what(self.role()?) {
            true => Ok(()),
            false => Err(not_allowed()),
        }
    }

    fn role(&self) -> std::result::Result<&Role, Failure> {
        self.role.get().ok_or_else(not_allowed)
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if let Some(all) = &self.transactions {
            all.unfinished().leave(self.number);
        }
    }
}

impl Views {
    /// Returns the number of the transaction or the lease with this key.
    fn number_of(&self, key: &TransactionKey) -> Option<u64> {
        let of = |view: &OpenView| match view {
            OpenView::Transaction(held) => held.key == *key,
            OpenView::Lease(held) => held.key == *key,
            OpenView::Snapshot(_) => false,
        };
        self.open.iter().find(|(_, view)| of(view)).map(|(number, _)| *number)
    }
}

/// Returns an estimate of the largest answer to a request, in bytes. A single value may be longer.
fn most_of_answer(request: &Request) -> usize {
    match request {
        Request::Iterate { bytes, .. } => (*bytes as usize).min(ANSWER_BYTES),
        Request::GetMany { .. }
        | Request::GetPart { .. }
        | Request::List { .. }
        | Request::Review { .. } => ANSWER_BYTES,
        _ => 0,
    }
}

fn failure(code: FailureCode, what: &str) -> Failure {
    Failure { code, what: what.into() }
}

fn no_view() -> Failure {
    failure(FailureCode::NoView, "there is no such view on this connection")
}
