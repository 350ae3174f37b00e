//! Seals. A process may run programs in transactions and promise a person that no effect of the
//! programs is visible outside before that person agrees. Its connection then seals the
//! transactions by `TXN SEAL`. From then on the connections of all descendants of the process are
//! confined: they write only in the transactions that the sealing connection has begun, and
//! cannot end them.
//!
//! The ancestors of a client are determined when it connects, from the process at the other end
//! of its socket. The sealing process should be a subreaper (prctl(2)), so that processes that a
//! program leaves running stay its descendants. A process of the same user that another process
//! starts on behalf of such a program (a debugger, a job scheduler, a login) is not recognized;
//! only a different user or a container protects against such processes.

use std::collections::{BTreeMap, BTreeSet};

use env::sync::Mutex;
use env::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use kvdb::TransactionId;

/// Longest chain of ancestors that is followed.
const MOST_ANCESTORS: usize = 4096;
/// Limit on the number of retries of the walk up the ancestors. The walk fails if a process on
/// the way ends.
const TRIES: usize = 8;

/// The seals that are in force.
#[derive(Default)]
pub struct Seals {
    /// The seals, by the connections that made them.
    all: Mutex<BTreeMap<u64, Seal>>,
    count: AtomicUsize,
}

struct Seal {
    process: i32,
    transactions: BTreeSet<TransactionId>,
}

/// The connection that has sealed the transactions to which a client is confined. It is `None` if
/// the connection could not be determined; the client then cannot write in any transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confined(Option<u64>);

impl Seals {
    /// Confines descendants of `process` to the transactions that `connection` begins from now
    /// on.
    pub fn seal(&self, connection: u64, process: i32) {
        let mut all = self.all.lock();
        all.entry(connection).or_insert(Seal { process, transactions: BTreeSet::new() });
        self.count.store(all.len(), SeqCst);
    }

    /// Returns whether a connection has sealed transactions.
    pub fn is_sealing(&self, connection: u64) -> bool {
        self.count.load(SeqCst) > 0 && self.all.lock().contains_key(&connection)
    }

    /// Records that a connection has begun a transaction.
    pub fn begun(&self, connection: u64, id: TransactionId) {
        if self.count.load(SeqCst) > 0
            && let Some(seal) = self.all.lock().get_mut(&connection)
        {
            seal.transactions.insert(id);
        }
    }

    /// Records that a confined client has begun a transaction within a transaction in which it
    /// may write.
    pub fn begun_within(&self, confined: Confined, id: TransactionId) {
        if let Some(connection) = confined.0 {
            self.begun(connection, id);
        }
    }

    /// Records that a connection has ended. Descendants of its process can no longer write.
    pub fn end(&self, connection: u64) {
        if self.count.load(SeqCst) > 0 {
            let mut all = self.all.lock();
            all.remove(&connection);
            self.count.store(all.len(), SeqCst);
        }
    }

    /// Returns the confinement of a client that connects from `process`.
    pub fn confine(&self, process: Option<i32>) -> Option<Confined> {
        if self.count.load(SeqCst) == 0 {
            return None;
        }
        let process = process?;
        for _ in 0..TRIES {
            if let Ok(found) = self.above(process) {
                return found;
            }
        }
        // The process has already ended, so the process that now uses its connection cannot be
        // determined.
        Some(Confined(None))
    }

    /// Returns the seal of an ancestor of this process, or an error if a process on the way has
    /// ended.
    fn above(&self, process: i32) -> std::io::Result<Option<Confined>> {
        let mut at = process;
        for _ in 0..MOST_ANCESTORS {
            at = parent(at)?;
            if at <= 0 {
                return Ok(None);
            }
            let all = self.all.lock();
            let seal = all.iter().find(|(_, seal)| seal.process == at);
            if let Some((&connection, _)) = seal {
                return Ok(Some(Confined(Some(connection))));
            }
        }
        Ok(Some(Confined(None)))
    }

    /// Returns whether a client may write in this transaction.
    pub fn allow(&self, confined: Confined, id: TransactionId) -> bool {
        let all = self.all.lock();
        let seal = confined.0.and_then(|connection| all.get(&connection));
        seal.is_some_and(|seal| seal.transactions.contains(&id))
    }
}

/// Returns the parent of a process, or 0 if it has none in this PID namespace.
fn parent(process: i32) -> std::io::Result<i32> {
    let stat = std::fs::read(format!("/proc/{process}/stat"))?;
    let gone = || std::io::Error::from(std::io::ErrorKind::NotFound);
    // The name of the program, in parentheses, may contain any bytes.
    let behind = stat.iter().rposition(|byte| *byte == b')').ok_or_else(gone)?;
    let mut fields =
        std::str::from_utf8(&stat[behind + 1..]).unwrap_or("").split_ascii_whitespace();
    let (state, parent) = (fields.next().ok_or_else(gone)?, fields.next().ok_or_else(gone)?);
    if matches!(state, "Z" | "X") {
        return Err(gone());
    }
    parent.parse().map_err(|_| gone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_of_a_process_are_confined_to_what_its_connection_has_begun() {
        let (seals, own) = (Seals::default(), std::process::id() as i32);
        let mut child = std::process::Command::new("sh");
        // The test starts a grandchild, which prints its number and runs until its input ends.
        child.args(["-c", "exec 3<&0; sh -c 'echo $$; read line' <&3 & wait"]);
        let mut child = child
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        let out = child.stdout.take().expect("a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("read");
        let below: i32 = line.trim().parse().expect("a number");
        let (ours, theirs) = (TransactionId(1), TransactionId(2));
        assert_eq!(seals.confine(Some(below)), None, "there is no seal");
        seals.seal(7, own);
        seals.begun(7, ours);
        seals.begun(8, theirs);
        let confined = seals.confine(Some(below)).expect("confined");
        assert_eq!(confined, Confined(Some(7)));
        assert!(seals.allow(confined, ours) && !seals.allow(confined, theirs));
        assert_eq!(seals.confine(Some(own)), None, "the process itself");
        assert_eq!(seals.confine(Some(1)), None, "one above it");
        assert_eq!(seals.confine(None), None, "not of this machine");
        seals.end(7);
        assert!(!seals.allow(confined, ours), "the seal has ended, not what it confines");
        assert_eq!(seals.confine(Some(below)), None);
        let _ = child.kill();
        let _ = child.wait();
        seals.seal(7, own);
        assert_eq!(seals.confine(Some(child.id() as i32)), Some(Confined(None)), "it is gone");
    }
}
