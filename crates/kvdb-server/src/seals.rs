//! Seals: a process that has programs run in transactions, and promises a person that nothing they
//! do is seen outside before that person agrees, has its connection seal them (`TXN SEAL`). The
//! connections of all its descendants are confined then: they write in the transactions that the
//! sealing connection has begun, and end none of them.
//!
//! Whose descendant a client is follows from the process at the other end of its socket, when it
//! connects. The sealing process is to be a subreaper (prctl(2)): then what a program leaves behind
//! stays its descendant. A process that another one of the same user runs for such a program (by a
//! debugger, a job scheduler, a login) is not known by this: against that only another user or a
//! container helps.

use std::collections::{BTreeMap, BTreeSet};

use env::sync::Mutex;
use env::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use kvdb::TransactionId;

/// Processes on the way up to the first one, at most.
const MOST_ANCESTORS: usize = 4096;
/// How often the way is begun again, because a process on it has ended meanwhile.
const TRIES: usize = 8;

/// The seals that are in force.
#[derive(Default)]
pub struct Seals {
    /// By the connections that have made them.
    all: Mutex<BTreeMap<u64, Seal>>,
    count: AtomicUsize,
}

struct Seal {
    process: i32,
    transactions: BTreeSet<TransactionId>,
}

/// The connection that has sealed the transactions which a client is confined to. `None`: it was
/// not to be found, and the client may write nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confined(Option<u64>);

impl Seals {
    /// From here on descendants of `process` are confined to what `connection` begins.
    pub fn seal(&self, connection: u64, process: i32) {
        let mut all = self.all.lock();
        all.entry(connection).or_insert(Seal { process, transactions: BTreeSet::new() });
        self.count.store(all.len(), SeqCst);
    }

    /// A connection has begun a transaction.
    pub fn begun(&self, connection: u64, id: TransactionId) {
        if self.count.load(SeqCst) > 0
            && let Some(seal) = self.all.lock().get_mut(&connection)
        {
            seal.transactions.insert(id);
        }
    }

    /// A client that is confined has begun a transaction within one that it may write in.
    pub fn begun_within(&self, confined: Confined, id: TransactionId) {
        if let Some(connection) = confined.0 {
            self.begun(connection, id);
        }
    }

    /// A connection has ended: no descendant writes any more.
    pub fn end(&self, connection: u64) {
        if self.count.load(SeqCst) > 0 {
            let mut all = self.all.lock();
            all.remove(&connection);
            self.count.store(all.len(), SeqCst);
        }
    }

    /// What a client that connects is confined to. `process`: the one at the other end.
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
        // It has ended already: whoever goes on with its connection is not to be known.
        Some(Confined(None))
    }

    /// The seal of a process above this one; `Err`: a process on the way is gone.
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

/// The process that another one is a child of; 0: of none here.
fn parent(process: i32) -> std::io::Result<i32> {
    let stat = std::fs::read(format!("/proc/{process}/stat"))?;
    let gone = || std::io::Error::from(std::io::ErrorKind::NotFound);
    // The name, in parentheses, may have anything in it.
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
        // A child of a child; it tells its number, and goes on until its input ends.
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
