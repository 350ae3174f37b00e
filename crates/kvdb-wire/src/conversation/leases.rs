//! The requests of a connection under the lease of the main branch. They are those of a
//! transaction, with the number of the lease on the connection in its place.

use super::{Conversation, MAX_VIEWS, OpenView, failure};
use crate::body::TransactionKey;
use crate::failure::{Failure, FailureCode};
use crate::lending::{AskedLease, HeldLease, UnderWay};
use crate::reply::Reply;
use crate::request::Request;
use crate::transactions::Transactions;

type Answer = std::result::Result<Reply, Failure>;

impl Conversation {
    /// Gives the lease to the client, or continues with the one that it has.
    pub(super) fn hold(&self, all: &Transactions, asked: AskedLease) -> Answer {
        self.may(|role| role.leases)?;
        let key = asked.key;
        {
            let views = self.views.lock();
            if views.number_of(&key).is_none() && views.open.len() >= MAX_VIEWS {
                return Err(failure(FailureCode::Limit, "too many views are open: drop some"));
            }
        }
        let held = all.lending().hold(asked)?;
        let number = {
            let mut views = self.views.lock();
            let number = match views.number_of(&key) {
                Some(number) => number,
                None => {
                    views.last += 1;
                    views.last
                }
            };
            views.open.insert(number, OpenView::Lease(held.clone()));
            number
        };
        all.lending().begun(&held, number)
    }

    /// Returns the lease under which a request is made, if its number on this connection is that of
    /// one.
    pub(super) fn leased(&self, request: &Request) -> Option<HeldLease> {
        let number = match request {
            Request::Apply { transaction: number, .. }
            | Request::ApplyPart { transaction: number, .. }
            | Request::Sync { transaction: number }
            | Request::Lease { transaction: number }
            | Request::Savepoint { transaction: number, .. }
            | Request::RollBack { transaction: number, .. }
            | Request::Reserve { transaction: number, .. }
            | Request::GetMany { view: number, .. }
            | Request::GetPart { view: number, .. }
            | Request::Iterate { view: number, .. } => number,
            _ => return None,
        };
        match self.views.lock().open.get(number) {
            Some(OpenView::Lease(held)) => Some(held.clone()),
            _ => None,
        }
    }

    /// Counts a request under the lease as one that is in progress, until the result is dropped.
    pub(super) fn under_way(&self, request: &Request) -> Option<UnderWay<'_>> {
        let all = self.transactions.as_ref()?;
        self.leased(request).map(|held| all.lending().under_way(&held))
    }

    /// Answers a request under the lease, unless it reads.
    pub(super) fn answer_of_lease(
        &self,
        all: &Transactions,
        held: &HeldLease,
        request: Request,
    ) -> Answer {
        let lending = all.lending();
        let done = match request {
            Request::Apply { batch, changes, .. } => lending.apply(held, batch, changes),
            Request::ApplyPart { transaction, batch, part, last, changes } => {
                if lending.has(held, batch)? {
                    return Ok(Reply::Done);
                }
                let (of, unfinished) = ((transaction, batch), all.unfinished());
                match last {
                    false => {
                        let added = unfinished.add(self.number, of, part, changes);
                        added.or_else(|why| lending.refuse(held, batch, why))
                    }
                    true => {
                        let applied = match unfinished.finish(self.number, of, part, changes) {
                            Ok(whole) => lending.apply(held, batch, whole),
                            Err(why) => lending.refuse(held, batch, why),
                        };
                        unfinished.forget(self.number);
                        applied
                    }
                }
            }
            Request::Sync { .. } => lending.sync(held),
            Request::Lease { .. } => lending.renew(held),
            Request::Reserve { count, .. } => {
                let range = lending.reserve(held, count)?;
                let count = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
                return Ok(Reply::Reserved { first: range.start, count });
            }
            _ => Err(failure(FailureCode::Invalid, "a lease has no savepoints")),
        };
        done.map(|()| Reply::Done)
    }

    /// Gives the lease back if the key is that of one.
    pub(super) fn give_back(
        &self,
        all: &Transactions,
        key: &TransactionKey,
        batches: Option<u64>,
        synced: bool,
    ) -> Option<Answer> {
        let held = {
            let views = self.views.lock();
            match views.number_of(key).and_then(|number| views.open.get(&number)) {
                Some(OpenView::Lease(held)) => Some(held.clone()),
                _ => None,
            }
        };
        let done = all.lending().give_back(key, batches, synced, held.as_ref())?;
        Some(done.map(|()| Reply::Done))
    }
}
