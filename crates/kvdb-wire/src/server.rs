//! The server: accepts connections, and answers each one on threads of its own.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Weak};
use std::time::Duration;

use env::sync::atomic::{AtomicBool, Ordering};
use env::sync::{Condvar, Mutex};
use env::thread::JoinHandle;
use kvdb::Kvdb;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};

use crate::budget::Budget;
use crate::conversation::{Conversation, ServerOptions};
use crate::counts::{ByRequest, RequestCounts};
use crate::error::Result;
use crate::host::Host;
use crate::roles::Tokens;
use crate::socket::Socket;
use crate::tenants::Tenants;
use crate::transactions::Transactions;

/// Number of threads for each connection.
const THREADS: usize = 2;
/// Limit of the connections whose greetings are refused at the same time. Each of them takes one
/// thread, at most for the time of a greeting.
const REFUSALS: usize = 16;

/// A server. It answers until it is dropped.
pub struct Server {
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
}

struct Shared {
    db: Kvdb,
    options: ServerOptions,
    answers: Arc<Budget>,
    tenants: Arc<Tenants>,
    /// `None` if clients may only read.
    transactions: Option<Arc<Transactions>>,
    counts: Arc<ByRequest>,
    /// Written to when the server stops.
    stop: OwnedFd,
    stopping: AtomicBool,
    open: Mutex<Open>,
    /// Number of threads that answer.
    threads: Mutex<usize>,
    /// Notified when one of these threads has ended.
    ended: Condvar,
}

/// The connections that have not ended.
#[derive(Default)]
struct Open {
    /// The connections that have places.
    served: Vec<Weak<Conversation>>,
    /// The connections whose greetings are refused, since there is no place for them.
    refused: Vec<Weak<Conversation>>,
}

impl Open {
    /// Returns the list for one more connection, or `None` if it is closed at once. The second
    /// result is set if the connection has no place.
    fn list(&mut self, most: usize) -> Option<(&mut Vec<Weak<Conversation>>, bool)> {
        self.served.retain(|open| open.strong_count() > 0);
        if self.served.len() < most {
            return Some((&mut self.served, false));
        }
        self.refused.retain(|open| open.strong_count() > 0);
        (self.refused.len() < REFUSALS).then_some((&mut self.refused, true))
    }
}

/// Counts a thread that answers, until it is dropped.
struct Answering(Arc<Shared>);

impl Drop for Answering {
    fn drop(&mut self) {
        *self.0.threads.lock() -= 1;
        self.0.ended.notify_all();
    }
}

impl Server {
    /// Serves this store on the socket. Clients can read its snapshots, but change nothing.
    pub fn begin(db: Kvdb, listener: UnixListener, options: ServerOptions) -> Result<Server> {
        Server::begin_with(db, None, Some(listener), options)
    }

    /// Like [`Server::begin`], but clients can also begin transactions, on this host.
    pub fn with_transactions(
        db: Kvdb,
        host: Arc<dyn Host>,
        listener: UnixListener,
        options: ServerOptions,
    ) -> Result<Server> {
        let transactions = transactions(&db, host, &options)?;
        Server::begin_with(db, Some(transactions), Some(listener), options)
    }

    /// Serves only the connections that are passed to it ([`Server::serve_with`]). If there is a
    /// host, clients can begin transactions.
    pub fn without_socket(
        db: Kvdb,
        host: Option<Arc<dyn Host>>,
        options: ServerOptions,
    ) -> Result<Server> {
        let transactions = host.map(|host| transactions(&db, host, &options)).transpose()?;
        Server::begin_with(db, transactions, None, options)
    }

    fn begin_with(
        db: Kvdb,
        transactions: Option<Arc<Transactions>>,
        listener: Option<UnixListener>,
        options: ServerOptions,
    ) -> Result<Server> {
        let shared = Shared::new(db, transactions, options)?;
        let Some(listener) = listener else { return Ok(Server { shared, listening: None }) };
        listener.set_nonblocking(true)?;
        let listens = shared.clone();
        let listening = env::thread::Builder::new()
            .name("wire-accept".into())
            .spawn(move || listens.listen(&listener))?;
        Ok(Server { shared, listening: Some(listening) })
    }

    /// Returns the counts of the requests so far, by kind.
    pub fn counts_by_request(&self) -> Vec<(&'static str, RequestCounts)> {
        self.shared.counts.counts()
    }

    /// Serves one more connection, which may be of any origin.
    pub fn serve(&self, socket: Socket) -> Result<()> {
        self.shared.serve(socket, None)
    }

    /// Like [`Server::serve`], but the client must show one of these tokens, and has its role and
    /// its share of the places.
    pub fn serve_with(&self, socket: Socket, tokens: &Arc<Tokens>) -> Result<()> {
        self.shared.serve(socket, Some(tokens.clone()))
    }
}

fn transactions(
    db: &Kvdb,
    host: Arc<dyn Host>,
    options: &ServerOptions,
) -> Result<Arc<Transactions>> {
    let limits = (options.transactions, options.transaction_bytes, options.all_transactions_bytes);
    let transactions = Transactions::new(db, host, limits).map_err(io::Error::other)?;
    Ok(Arc::new(transactions))
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        let _ = self.listening.take().map(JoinHandle::join);
        // None is added to these lists any more.
        let open = std::mem::take(&mut *self.shared.open.lock());
        for conversation in open.served.iter().chain(&open.refused).filter_map(Weak::upgrade) {
            conversation.end();
        }
        // The store is closed after this, so no thread may still use it.
        let mut threads = self.shared.threads.lock();
        while *threads > 0 {
            self.shared.ended.wait(&mut threads);
        }
    }
}

impl Shared {
    fn new(
        db: Kvdb,
        transactions: Option<Arc<Transactions>>,
        options: ServerOptions,
    ) -> Result<Arc<Shared>> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?;
        Ok(Arc::new(Shared {
            db,
            answers: Budget::new(options.answers),
            tenants: Tenants::new(options.answers),
            options,
            transactions,
            counts: Arc::default(),
            stop,
            stopping: AtomicBool::new(false),
            open: Mutex::default(),
            threads: Mutex::new(0),
            ended: Condvar::new(),
        }))
    }

    fn listen(self: &Arc<Shared>, listener: &UnixListener) {
        while !self.stopping.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    if let Err(e) = self.serve(stream.into(), None) {
                        tracing::warn!("a connection is not served: {e}");
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(listener, None),
                Err(e) => {
                    tracing::warn!("no connection is accepted: {e}");
                    // For example, the process has no more file descriptors. Wait, since some may
                    // be closed.
                    self.wait(&self.stop, Some(Duration::from_millis(100)));
                }
            }
        }
    }

    /// Waits until `on` is readable, the server stops, or `time` has passed.
    fn wait(&self, on: &impl AsFd, time: Option<Duration>) {
        let mut on = [PollFd::new(on, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        // A signal ends the wait early, and the caller checks again.
        let _ = rustix::event::poll(&mut on, time.as_ref());
    }

    fn serve(self: &Arc<Shared>, socket: Socket, tokens: Option<Arc<Tokens>>) -> Result<()> {
        let (db, options) = (self.db.clone(), self.options.clone());
        let budgets = (self.answers.clone(), self.tenants.clone());
        let (transactions, counts) = (self.transactions.clone(), self.counts.clone());
        let conversation =
            Conversation::new(db, (options, tokens), budgets, transactions, counts, socket);
        let conversation = Arc::new(conversation);
        {
            let mut open = self.open.lock();
            // A stopping server ends the connections in these lists, so none may be added after
            // that.
            let is_stopping = self.stopping.load(Ordering::Relaxed);
            let list = open.list(self.options.connections).filter(|_| !is_stopping);
            let Some((list, is_refused)) = list else {
                conversation.end();
                return Err(io::Error::other("there are too many, or the server stops").into());
            };
            if is_refused {
                conversation.refuse();
            }
            list.push(Arc::downgrade(&conversation));
        }
        let shared = self.clone();
        self.spawn(move || {
            if let Err(e) = conversation.greet() {
                tracing::debug!("a connection was not greeted: {e}");
                return conversation.end();
            }
            for _ in 1..THREADS {
                let another = conversation.clone();
                if let Err(e) = shared.spawn(move || another.serve()) {
                    tracing::warn!("a connection has one thread less: {e}");
                }
            }
            conversation.serve();
        })
    }

    fn spawn(self: &Arc<Shared>, serve: impl FnOnce() + Send + 'static) -> Result<()> {
        *self.threads.lock() += 1;
        let answering = Answering(self.clone());
        let answer = move || {
            // `serve` drops its references to the store before the thread counts as ended.
            let _answering = answering;
            serve();
        };
        env::thread::Builder::new().name("wire-serve".into()).spawn(answer)?;
        Ok(())
    }
}
