//! Answers the requests of the page of `kvfs web`: each is a path, with a JSON answer that is read
//! from the store's daemon at the time of the request.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::review;
use crate::support::mounts::live::{Sample, list};
use crate::support::mounts::mounted::Mounted;
use crate::support::serving::http::{Request, Response};
use crate::support::terminal::output::{Exit, Failure, Outcome};

/// The limit of cells in the map of zones.
const CELLS: usize = 2048;

/// Answers requests about one mount.
pub struct Answers {
    pub mount: PathBuf,
    pub read_only: bool,
}

impl Answers {
    /// Returns the answer to a request, which may be an error.
    pub fn to(&self, request: &Request) -> Response {
        let way: Vec<&str> = request.path.split('/').skip(2).collect();
        let answer = match (&request.method[..], &way[..]) {
            ("GET", ["state"]) => self.state(),
            ("GET", ["snapshots"]) => self.snapshots(),
            ("GET", ["transactions", id]) => self.of(id, review::of),
            ("GET", ["transactions", id, "patch"]) => self.of(id, review::patch),
            ("POST", ["transactions", id, "commit"]) => {
                self.ends(id, |mounted, id| review::commit(mounted, id, &request.body))
            }
            ("POST", ["transactions", id, "abort"]) => self.ends(id, review::abort),
            ("GET" | "POST", _) => Err(Failure::new(Exit::NotFound, "there is no such question")),
            _ => return Response::text(405, "ask with GET or POST"),
        };
        match answer {
            Ok(value) => answered(200, &value),
            Err(failure) => refused(&failure),
        }
    }

    fn mounted(&self) -> Outcome<Mounted> {
        Mounted::find(&self.mount)
    }

    /// Answers a request about a transaction.
    fn of(
        &self,
        id: &str,
        ask: impl FnOnce(&mut Mounted, u64) -> Outcome<Value>,
    ) -> Outcome<Value> {
        let wrong = || Failure::new(Exit::Usage, "a transaction has a number");
        let id = if id.bytes().all(|c| c.is_ascii_digit()) { id.parse().ok() } else { None };
        ask(&mut self.mounted()?, id.ok_or_else(wrong)?)
    }

    /// Answers a request that ends a transaction.
    fn ends(
        &self,
        id: &str,
        end: impl FnOnce(&mut Mounted, u64) -> Outcome<Value>,
    ) -> Outcome<Value> {
        if self.read_only {
            let what = "kvfs web was started with --read-only: transactions are not ended here";
            return Err(Failure::new(Exit::NotPermitted, what));
        }
        self.of(id, end)
    }

    /// Returns the parts that change all the time.
    fn state(&self) -> Outcome<Value> {
        let now = Sample::take(&self.mount, CELLS)?;
        Ok(json!({
            "mount_point": now.mount_point.to_string_lossy(), "read_only": self.read_only,
            "store": now.store, "server": now.server, "zones": now.zones,
            "transactions": now.transactions,
        }))
    }

    /// Returns snapshots and clones. Computing what each of them keeps takes a while if there are
    /// many.
    fn snapshots(&self) -> Outcome<Value> {
        let mut mounted = self.mounted()?;
        let snapshots = list(mounted.call(&[b"SNAPSHOT", b"LIST"])?)?;
        let clones = list(mounted.call(&[b"CLONE", b"LIST"])?)?;
        Ok(json!({"snapshots": snapshots, "clones": clones}))
    }
}

fn answered(status: u16, value: &Value) -> Response {
    Response::new(status, "application/json", value.to_string())
}

fn refused(failure: &Failure) -> Response {
    let status = match failure.exit {
        Exit::Usage => 400,
        Exit::NotPermitted => 403,
        Exit::NotFound => 404,
        Exit::Conflict => 409,
        _ => 500,
    };
    let error = json!({"error": {
        "code": failure.exit.name(), "message": failure.message, "hint": failure.hint,
    }});
    answered(status, &error)
}
