//! `TXN REVERT KEY`: restores a key in the transaction to its state beneath the transaction,
//! whatever its types before and after. Its elements or pages and its deadline are restored by
//! reference.

use std::sync::Arc;

use bytes::Bytes;
use kvdb::{Batch, Changed, DictionaryId, Isolation, NestedBatch, Transaction, View};

use super::is;
use super::txn::{arity, joined};
use crate::effects::Effect;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{
    Head, Keyspace, Kind, deadline_key, fields_from, head_key, owner_key, parse_field_order,
};
use crate::notifications::{Classes, Event};
use crate::output::Output;
use crate::request::Arguments;
use crate::review::TypedState;
use crate::session::Session;

/// Number of tuples in one batch.
const STEP: usize = 1024;

pub fn revert(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 4, 4)?;
    if !is(args.at(2), "key") {
        return Err(Failure::SYNTAX);
    }
    revert_key(s, args.at(3))?;
    out.ok();
    Ok(())
}

/// Reverts a key of the selected dictionary in the joined transaction.
pub fn revert_key(s: &Session, key: &[u8]) -> Outcome {
    let transaction = joined(s)?.clone();
    let Some(space) = s.existing()? else { return Ok(()) };
    let _held = s.hold(space.strings, [key])?;
    let space = s.under_locks(space)?;
    lock(s, &transaction, space, key)?;
    let nested = transaction.nested_batch()?;
    let view = nested.view()?;
    let revert = Revert { s, transaction: &transaction, base: Arc::new(view.beneath()), view };
    revert.key(space, key, nested)?;
    let key = Bytes::copy_from_slice(key);
    let filled = |kind| Effect::Filled { kind, key: key.clone(), new: true };
    let mut effects = [Kind::List, Kind::SortedSet, Kind::Stream].map(filled).to_vec();
    // The commit may restore the key over changes by others, and the transaction's earlier
    // changes of the key have events as well. So the revert needs its own event.
    if s.notes(Classes::GENERIC) {
        let event = Event { class: Classes::GENERIC, name: "revert" };
        effects.push(Effect::Event { event, key });
    }
    s.settle(effects);
    Ok(())
}

/// In a serializable transaction, locks all tuples that are read and written before they are
/// read.
fn lock(s: &Session, transaction: &Transaction, space: Keyspace, key: &[u8]) -> Outcome {
    let Some(types) = space.types else { return Ok(()) };
    if transaction.isolation() == Isolation::Snapshot {
        return Ok(());
    }
    transaction.lock_key(types, &head_key(key), true)?;
    let view = s.view()?;
    for view in [&view.beneath(), &view] {
        let state = TypedState { view, strings: None, types: Some(types) };
        if let Some((start, end)) = state.head(key)?.and_then(|head| head.beneath()) {
            transaction.lock_range(types, &start, &end, true)?;
        }
    }
    Ok(())
}

struct Revert<'a> {
    s: &'a Session,
    transaction: &'a Transaction,
    base: Arc<View>,
    /// The state that the transaction sees.
    view: View,
}

impl Revert<'_> {
    /// Reverts the whole key, or nothing if an error occurs.
    fn key(&self, space: Keyspace, key: &[u8], mut nested: NestedBatch) -> Outcome {
        let name = Bytes::copy_from_slice(key);
        let mut batch = Batch::new();
        self.tuple(space.strings, &name, &mut batch)?;
        if let Some(types) = space.types {
            let side = |view| TypedState { view, strings: None, types: Some(types) };
            let (old, new) = (side(&self.base).head(key)?, side(&self.view).head(key)?);
            for deadline in [old, new].into_iter().flatten().filter_map(|head| head.deadline) {
                self.tuple(types, &deadline_key(deadline, key).into(), &mut batch)?;
            }
            self.tuple(types, &head_key(key).into(), &mut batch)?;
            if let Some(head) = old {
                self.name_fields(types, &head, key, &mut batch)?;
            }
            let beneath = |head: Option<Head>| head.and_then(|head| head.beneath());
            match (beneath(old), beneath(new)) {
                (Some(was), Some(now)) if was == now => {
                    nested.apply(std::mem::take(&mut batch))?;
                    self.touched(types, was, &mut nested)?;
                }
                (_, now) => {
                    if let Some((start, end)) = now {
                        batch.delete_range(types, start, end);
                    }
                    nested.apply(std::mem::take(&mut batch))?;
                    if let Some(head) = old {
                        self.again(types, head, key, &mut nested)?;
                    }
                }
            }
        }
        if !batch.is_empty() {
            nested.apply(batch)?;
        }
        Ok(nested.finish()?)
    }

    /// Lets the sweeper visit the fields of a hash at their first deadline beneath the
    /// transaction, because the transaction may have removed the deadlines that named the hash.
    fn name_fields(
        &self,
        types: DictionaryId,
        head: &Head,
        key: &[u8],
        batch: &mut Batch,
    ) -> Outcome {
        if !head.expiring {
            return Ok(());
        }
        let (start, end) = fields_from(head.id, 0);
        let first = self.base.cursor(types, &start, &end)?.next()?;
        if let Some((first, _)) = first.as_ref().and_then(|tuple| parse_field_order(&tuple.key)) {
            batch.put(types, deadline_key(first, key), Bytes::new());
        }
        Ok(())
    }

    /// Restores a tuple to its state beneath the transaction. A tuple that exists on neither side
    /// is not written, so that `TXN CHANGES` does not list its deletion.
    fn tuple(&self, dict: DictionaryId, key: &Bytes, batch: &mut Batch) -> Outcome {
        match self.base.stored(dict, key)? {
            Some(value) => batch.put_stored(dict, key.clone(), value),
            None if self.view.value_len(dict, key)?.is_some() => batch.delete(dict, key.clone()),
            None => {}
        }
        Ok(())
    }

    /// Reverts the transaction's changes to elements or pages that have the same place on both
    /// sides.
    fn touched(
        &self,
        types: DictionaryId,
        (start, end): (Vec<u8>, Vec<u8>),
        nested: &mut NestedBatch,
    ) -> Outcome {
        let within = |key: &Bytes| (&start[..]..&end[..]).contains(&&key[..]);
        for change in self.transaction.changes_of(&[types])? {
            let mut batch = Batch::new();
            match change?.1 {
                Changed::Put { key, .. }
                | Changed::Update { key, .. }
                | Changed::Delete { key } => {
                    if within(&key) {
                        self.tuple(types, &key, &mut batch)?;
                    }
                }
                Changed::DeleteRange { start: from, end: to } => {
                    let (from, to) = ((&from[..]).max(&start[..]), (&to[..]).min(&end[..]));
                    if from < to {
                        self.range(types, from, to, <[u8]>::to_vec, nested)?;
                    }
                }
            }
            if !batch.is_empty() {
                nested.apply(batch)?;
            }
        }
        Ok(())
    }

    /// Restores a collection or a long string that this key no longer has. It is restored under
    /// its old id, or under a new one if another key has taken over the old one (`RENAME`).
    fn again(
        &self,
        types: DictionaryId,
        head: Head,
        key: &[u8],
        nested: &mut NestedBatch,
    ) -> Outcome {
        let Some((start, end)) = head.beneath() else { return Ok(()) };
        let free = |id: u64| {
            let Some((start, end)) = (Head { id, ..head }).beneath() else { return Ok(true) };
            let first = nested.view()?.cursor(types, &start, &end)?.next()?;
            Ok::<bool, Failure>(first.is_none())
        };
        let mut new = head.id;
        while !free(new)? {
            new = self.s.random();
        }
        let place = |tuple: &[u8]| {
            let mut tuple = tuple.to_vec();
            tuple[1..9].copy_from_slice(&new.to_be_bytes());
            tuple
        };
        self.range(types, &start, &end, place, nested)?;
        let mut batch = Batch::new();
        batch.put(types, head_key(key), Head { id: new, ..head }.encode());
        if head.kind != Kind::Pages {
            batch.put(types, owner_key(new), Bytes::copy_from_slice(key));
        }
        Ok(nested.apply(batch)?)
    }

    /// Copies the tuples in `[start, end)` beneath the transaction. Each is copied to the tuple
    /// key that `place` returns.
    fn range(
        &self,
        types: DictionaryId,
        start: &[u8],
        end: &[u8],
        place: impl Fn(&[u8]) -> Vec<u8>,
        nested: &mut NestedBatch,
    ) -> Outcome {
        let mut from = start.to_vec();
        loop {
            self.s.check_stopping()?;
            let some = self.base.scan_stored(types, &from, end, STEP)?;
            let Some((last, _)) = some.last() else { return Ok(()) };
            from = [&last[..], b"\0"].concat();
            let mut batch = Batch::new();
            for (key, value) in some {
                batch.put_stored(types, place(&key), value);
            }
            nested.apply(batch)?;
        }
    }
}
