//! The state of the keys for one command: the keys that exist at the time of the command, their
//! types, and the changes that a batch needs to modify a key. Reads are announced, so that the
//! commit of a transaction depends on them.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use bytes::Bytes;
use kvdb::{Batch, Cursor, DictionaryId, NestedBatch, Reads, Transaction, Update, View};

use super::Session;
use crate::effects::Effect;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{
    Head, Keyspace, Kind, Live, WRONGTYPE, count_key, deadline_key, head_key, owner_key,
};
use crate::notifications::{Classes, Event};

mod collection;
mod fields;
mod members;
mod pages;
pub use collection::Collection;
pub use fields::Field;
pub use pages::Text;

fn corrupt(what: &str, key: &[u8]) -> Failure {
    Failure::Corrupt(format!("{what} of the key '{}' does not decode", key.escape_ascii()))
}

/// The way in which reads are announced, so that the commit of a transaction depends on them.
enum Source<'a> {
    /// There is no transaction, so reads are not announced.
    View,
    /// The command works in a transaction of the session.
    Session(&'a Session),
    /// The command has its own transaction.
    Own(&'a Transaction),
    /// The command commits only if these reads are still valid.
    Condition(RefCell<Reads>),
}

/// The state of the keys for one command.
pub struct Seen<'a> {
    pub strings: Option<DictionaryId>,
    pub types: Option<DictionaryId>,
    /// The time of the command, in milliseconds since 1970. Keys with an earlier deadline do not
    /// exist.
    pub now: u64,
    view: View,
    source: Source<'a>,
    session: &'a Session,
    /// Effects that are carried out when the batch has been committed.
    effects: RefCell<Vec<Effect>>,
    /// The changes that `relieve` has already taken from the batch, in a transaction that other
    /// connections also use.
    relieved: RefCell<Option<NestedBatch>>,
    /// The number of bytes of changes since the batch was last relieved.
    unrelieved: Cell<usize>,
    /// The ids of the collections whose first long name is in the batch.
    long: RefCell<BTreeSet<u64>>,
}

/// Approximate limit on the bytes of changes in a batch.
const GATHERED: usize = 1 << 20;
/// Approximate memory of a change in addition to its key and its value, in bytes.
const CHANGE: usize = 96;

impl<'a> Seen<'a> {
    /// Returns the state for a session, whether it works in a transaction or not.
    pub fn by(session: &'a Session, space: Option<Keyspace>) -> Result<Self, Failure> {
        let source = match session.inside() {
            Some(_) => Source::Session(session),
            None => Source::View,
        };
        Ok(Seen::new(session, space, session.view()?, source))
    }
    /// Returns the state of a transaction that was begun for this command.
    pub fn of(
        transaction: &'a Transaction,
        session: &'a Session,
        space: Keyspace,
    ) -> Result<Self, Failure> {
        Ok(Seen::new(session, Some(space), transaction.view()?, Source::Own(transaction)))
    }
    /// Returns a state whose reads are recorded, for a command that commits if they are still
    /// valid; see [`Seen::into_condition`].
    pub fn noted(session: &'a Session, space: Keyspace) -> Self {
        let (view, source) = (session.db().view(), Source::Condition(RefCell::default()));
        Seen::new(session, Some(space), view, source)
    }
    fn new(session: &'a Session, space: Option<Keyspace>, view: View, source: Source<'a>) -> Self {
        let (strings, types) = (space.map(|space| space.strings), space.and_then(|s| s.types));
        let (now, effects) = (session.now(), RefCell::default());
        let (relieved, unrelieved, long) = (RefCell::default(), Cell::new(0), RefCell::default());
        Seen { strings, types, now, view, source, session, effects, relieved, unrelieved, long }
    }

    /// Records an event of a key, if notifications of its class are on.
    pub fn event(&self, class: Classes, name: &'static str, key: &[u8]) {
        if self.session.notes(class) {
            let key = Bytes::copy_from_slice(key);
            self.effects.borrow_mut().push(Effect::Event { event: Event { class, name }, key });
        }
    }
    /// Records the event of a result that replaces a key. It is `name`, or `del` if the result is
    /// empty.
    pub fn event_of_stored(
        &self,
        key: &[u8],
        live: &Live,
        (class, name): (Classes, &'static str),
        count: usize,
    ) {
        match count {
            0 if live.exists() => self.event(Classes::GENERIC, "del", key),
            0 => {}
            _ => {
                if !live.exists() {
                    self.event(Classes::NEW, "new", key);
                }
                self.event(class, name, key);
            }
        }
    }
    /// Records that a list, sorted set or stream has gained elements, for connections that wait
    /// for them. `new` means that the key did not exist.
    pub fn filled(&self, kind: Kind, key: &[u8], new: bool) {
        if matches!(kind, Kind::List | Kind::SortedSet | Kind::Stream) {
            let key = Bytes::copy_from_slice(key);
            self.effects.borrow_mut().push(Effect::Filled { kind, key, new });
        }
    }
    /// Relieves the batch of its changes if it is large: they are applied to the transaction, so
    /// that memory stays bounded. Changes of unlimited size call this function after they have
    /// added `added` bytes to the batch. The command still sees the state at its beginning, and
    /// must add to the batch at least once more.
    pub fn relieve(&self, batch: &mut Batch, added: usize) -> Result<(), Failure> {
        let gathered = self.unrelieved.get() + added + CHANGE;
        self.unrelieved.set(gathered);
        if gathered < GATHERED {
            return Ok(());
        }
        match &self.source {
            Source::View => return Ok(()),
            // The command starts again in its own transaction.
            Source::Condition(_) => return Err(Failure::TooLargeAtOnce),
            Source::Own(own) => own.apply(std::mem::take(batch))?,
            Source::Session(session) if session.exec.is_running() => {
                session.commit(std::mem::take(batch))?;
                session.exec.note_part();
            }
            Source::Session(session) => {
                let mut relieved = self.relieved.borrow_mut();
                if relieved.is_none() {
                    *relieved = session.inside().map(Transaction::nested_batch).transpose()?;
                }
                if let Some(nested) = &mut *relieved {
                    nested.apply(std::mem::take(batch))?;
                }
            }
        }
        self.unrelieved.set(0);
        self.session.check_stopping()
    }
    /// Applies the rest of a batch to the transaction in which commands work, together with the
    /// changes that `relieve` has taken.
    pub fn make(&self, batch: Batch) -> Result<(), Failure> {
        match self.relieved.take() {
            Some(mut nested) => {
                nested.apply(batch)?;
                Ok(nested.finish()?)
            }
            None => self.session.commit(batch),
        }
    }
    /// Returns the state that the command sees, for a reply that is read after its change.
    pub fn state(&self) -> Result<View, Failure> {
        Ok(self.view()?.into_owned())
    }
    /// Returns the number of elements in `[start, end)` before a place.
    pub fn rank(
        &self,
        of: &Collection,
        (start, end): (&[u8], &[u8]),
        place: &[u8],
    ) -> Result<u64, Failure> {
        let view = self.range(of.types, start, place.clamp(start, end))?;
        Ok(self.session.db().rank(&view, of.types, start..end, place)?)
    }
    /// Returns the place of the element in `[start, end)` that has `n` elements before it.
    pub fn select(
        &self,
        of: &Collection,
        (start, end): (&[u8], &[u8]),
        n: u64,
    ) -> Result<Option<Bytes>, Failure> {
        let view = self.range(of.types, start, end)?;
        Ok(self.session.db().select(&view, of.types, start..end, n)?)
    }
    /// Returns the number of strings in one tuple before a key. With `None`, counts all such
    /// strings.
    pub fn strings_before(&self, key: Option<&[u8]>) -> Result<u64, Failure> {
        let (Some(dict), db) = (self.strings, self.session.db()) else { return Ok(0) };
        let view = self.range(dict, b"", key.unwrap_or_default())?;
        Ok(match key {
            Some(key) => db.rank::<&[u8]>(&view, dict, .., key)?,
            None => db.count::<&[u8]>(&view, dict, ..)?,
        })
    }
    /// Returns the string in one tuple that has `n` such strings before it.
    pub fn nth_string(&self, n: u64) -> Result<Option<Bytes>, Failure> {
        let Some(dict) = self.strings else { return Ok(None) };
        let view = self.range(dict, b"", b"")?;
        Ok(self.session.db().select::<&[u8]>(&view, dict, .., n)?)
    }
    /// Returns the effects to carry out when the batch has been committed.
    pub fn into_effects(self) -> Vec<Effect> {
        self.effects.into_inner()
    }
    /// Returns the state that was read, the reads that must still be valid at the commit in
    /// addition to the keys that the batch changes, and the effects.
    pub fn into_condition(self) -> (View, Reads, Vec<Effect>) {
        let reads = match self.source {
            Source::Condition(reads) => reads.into_inner(),
            Source::View | Source::Session(_) | Source::Own(_) => Reads::default(),
        };
        (self.view, reads, self.effects.into_inner())
    }

    /// Returns the state to read from, after the read was announced. In a serializable
    /// transaction it has the newest commits to the locked keys. The transaction's own changes
    /// are taken from the beginning of the command, because other connections may add changes
    /// between two reads of this command, and a head must not be combined with the elements of
    /// another state.
    fn view(&self) -> Result<Cow<'_, View>, Failure> {
        Ok(match self.source {
            Source::Session(s) => Cow::Owned(s.renewed(&self.view)?),
            Source::View | Source::Own(_) | Source::Condition(_) => Cow::Borrowed(&self.view),
        })
    }
    fn announce(&self, dict: DictionaryId, key: &[u8]) -> Result<(), Failure> {
        match &self.source {
            Source::View => Ok(()),
            Source::Session(s) => s.reads(dict, [key]),
            // A change of the string is itself a conflict.
            Source::Own(_) | Source::Condition(_) if Some(dict) == self.strings => Ok(()),
            Source::Own(own) => Ok(own.read_conflict_key(dict, key)?),
            Source::Condition(reads) => {
                reads.borrow_mut().key(dict, key);
                Ok(())
            }
        }
    }
    /// Announces a read of `[start, end)`, and returns the state from which to read it.
    pub fn range(
        &self,
        dict: DictionaryId,
        start: &[u8],
        end: &[u8],
    ) -> Result<Cow<'_, View>, Failure> {
        match &self.source {
            Source::View => {}
            Source::Session(s) => s.reads_range(dict, start, end)?,
            Source::Own(own) => own.read_conflict_range(dict, start, end)?,
            Source::Condition(reads) => reads.borrow_mut().range(dict, start, end),
        }
        self.view()
    }
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>, Failure> {
        self.announce(dict, key)?;
        Ok(self.view()?.get(dict, key)?)
    }
    /// Returns a cursor over `[start, end)`. An empty `end` is the end of the dictionary. Returns
    /// `None` if the state does not have the dictionary.
    pub fn cursor(
        &self,
        dict: DictionaryId,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<Cursor>, Failure> {
        match self.range(dict, start, end)?.cursor(dict, start, end) {
            Err(kvdb::Error::NoDictionary(_)) => Ok(None),
            cursor => Ok(Some(cursor?)),
        }
    }

    fn head(&self, key: &[u8]) -> Result<Option<Head>, Failure> {
        let Some(types) = self.types else { return Ok(None) };
        self.get(types, &head_key(key))?
            .map(|bytes| Head::decode(&bytes).ok_or_else(|| corrupt("the head", key)))
            .transpose()
    }
    /// Returns the number of elements of a collection.
    pub fn count(&self, id: u64) -> Result<i64, Failure> {
        let Some(types) = self.types else { return Ok(0) };
        let count = self.get(types, &count_key(id))?;
        let Some(count) = count else { return Ok(0) };
        crate::request::integer(&count).ok_or_else(|| {
            Failure::Corrupt(format!("the length of collection {id:x} is no number"))
        })
    }
    /// Returns the properties of a key to the extent that its head determines them, or `None` if
    /// the strings determine them. Also returns whether the number of elements is exact; see
    /// [`Seen::living`].
    fn by_head(&self, head: Option<Head>) -> Result<(Option<Live>, bool), Failure> {
        let Some(found) = head else { return Ok((None, true)) };
        if found.is_expired(self.now) {
            return Ok((Some(Live { head, ..Live::default() }), true));
        }
        if found.kind == Kind::Pages {
            let count = i64::try_from(found.len).unwrap_or(i64::MAX);
            return Ok((Some(Live { kind: Some(found.kind), head, count }), true));
        }
        if found.kind != Kind::String {
            let stored = self.count(found.id)?;
            let (count, exact) = match self.types.filter(|_| found.expiring && stored > 0) {
                Some(types) => self.living(types, found.id, stored)?,
                None => (stored, true),
            };
            if count > 0 {
                return Ok((Some(Live { kind: Some(found.kind), head, count }), exact));
            }
        }
        Ok((None, true))
    }
    /// Returns the properties of a key whose head was found by a walk, or `None` if the strings
    /// determine them.
    pub fn judge(&self, head: Head) -> Result<Option<Live>, Failure> {
        Ok(self.by_head(Some(head))?.0)
    }

    /// Returns the properties of a key without reading a large value. A hash may have more fields
    /// than its `count` states; see [`Seen::roughly`].
    pub fn live(&self, key: &[u8]) -> Result<Live, Failure> {
        Ok(self.live_with(self.head(key)?, key)?.0)
    }
    fn live_with(&self, head: Option<Head>, key: &[u8]) -> Result<(Live, bool), Failure> {
        if let (Some(live), exact) = self.by_head(head)? {
            return Ok((live, exact));
        }
        let kind = self.string_len(key)?.map(|_| Kind::String);
        Ok((Live { kind, head, count: 0 }, true))
    }
    /// Returns the properties in the head only, for a command that replaces the key regardless of
    /// its type.
    pub fn live_head(&self, key: &[u8]) -> Result<Live, Failure> {
        Ok(Live { head: self.head(key)?, ..Live::default() })
    }
    /// Returns the length of the tuple in the strings, even if the key has expired.
    fn string_len(&self, key: &[u8]) -> Result<Option<usize>, Failure> {
        let Some(strings) = self.strings else { return Ok(None) };
        self.announce(strings, key)?;
        Ok(self.view()?.value_len(strings, key)?)
    }
    /// Returns the string of a key. Returns an error if the key is of another type, or longer than
    /// a command may buffer.
    pub fn string(&self, key: &[u8]) -> Result<(Live, Option<Bytes>), Failure> {
        let (live, value) = self.short_string(key)?;
        match live.pages() {
            Some(head) => Ok((live, Some(self.gathered(&head, 0..head.len)?))),
            None => Ok((live, value)),
        }
    }
    /// Returns the string of a key. If the string is in pages, returns only its properties.
    /// Returns an error if the key is of another type.
    pub fn short_string(&self, key: &[u8]) -> Result<(Live, Option<Bytes>), Failure> {
        let head = self.head(key)?;
        match self.by_head(head)?.0 {
            Some(live) if live.exists() && live.pages().is_none() => Err(WRONGTYPE),
            Some(live) => Ok((live, None)),
            None => {
                let value = match self.strings {
                    Some(strings) => self.get(strings, key)?,
                    None => None,
                };
                let kind = value.as_ref().map(|_| Kind::String);
                Ok((Live { kind, head, count: 0 }, value))
            }
        }
    }
    /// Returns the string of a key that should be a number. Returns `otherwise` if the string is
    /// too long for a number.
    pub fn number(&self, key: &[u8], otherwise: Failure) -> Result<(Live, Option<Bytes>), Failure> {
        let found = self.short_string(key)?;
        if found.0.pages().is_some() { Err(otherwise) } else { Ok(found) }
    }

    /// Removes everything under a key except its string: its head, its deadline, its elements.
    pub fn clear(&self, key: &[u8], live: &Live, batch: &mut Batch) {
        let (Some(types), Some(head)) = (self.types, live.head) else { return };
        if head.is_expired(self.now) {
            self.event(Classes::EXPIRED, "expired", key);
        }
        if head.kind == Kind::Stream {
            // Clients that wait for the stream in a group must be notified that it no longer
            // exists.
            self.filled(head.kind, key, false);
        }
        batch.delete(types, head_key(key));
        if let Some(deadline) = head.deadline {
            batch.delete(types, deadline_key(deadline, key));
        }
        self.forget_fields(&head, key, batch);
        if let Some((start, end)) = head.beneath() {
            batch.delete_range(types, start, end);
        }
    }
    /// Removes a key of any type.
    pub fn remove(&self, key: &[u8], live: &Live, batch: &mut Batch) {
        self.clear(key, live, batch);
        if let Some(strings) = self.strings {
            batch.delete(strings, Bytes::copy_from_slice(key));
        }
    }
    /// Returns whether a string of this length can be stored. A long string needs the types
    /// dictionary.
    pub fn has_room_for(&self, len: usize) -> bool {
        self.types.is_some() || len <= self.limits().tuple
    }
    /// Stores a string in place of any previous value, without a deadline.
    pub fn put_string(
        &self,
        key: &[u8],
        live: &Live,
        value: impl Into<Bytes>,
        batch: &mut Batch,
    ) -> Result<Live, Failure> {
        self.clear(key, live, batch);
        if !live.exists() {
            self.event(Classes::NEW, "new", key);
        }
        let (value, name) = (value.into(), Bytes::copy_from_slice(key));
        match (self.strings, self.types) {
            (Some(strings), Some(types)) if value.len() > self.limits().tuple => {
                // Because of the tombstone, two transactions conflict if one stores a short
                // string under the key and the other stores a long one.
                self.exclude_others(self.strings, key)?;
                batch.delete(strings, name);
                return self.put_pages(types, key, &value, batch);
            }
            (Some(strings), _) => {
                self.exclude_others(self.types, &head_key(key))?;
                batch.put(strings, name, value);
            }
            (None, _) => {}
        }
        Ok(Live { kind: Some(Kind::String), head: None, count: 0 })
    }
    /// Changes the value of a string that is one tuple and remains one, or creates it.
    pub fn change_string(
        &self,
        key: &[u8],
        live: &Live,
        value: impl Into<Bytes>,
        batch: &mut Batch,
    ) -> Outcome {
        if !live.exists() {
            self.clear(key, live, batch);
            self.event(Classes::NEW, "new", key);
        }
        if let Some(strings) = self.strings {
            self.exclude_others(self.types, &head_key(key))?;
            batch.put(strings, Bytes::copy_from_slice(key), value);
        }
        Ok(())
    }
    /// Makes the commit of the transaction a conflict if others change this tuple. A change of
    /// the tuple shows that the key gets another type: the tuple is the head for a string, and
    /// the string for another type. In most dictionaries this is not needed, because the deletion
    /// of the string conflicts with any change of it. A union of lines, however, joins the two,
    /// and would leave a string in addition to a collection. A durable transaction keeps no
    /// reads, and any other keeps a limited number; beyond it nothing is recorded.
    pub fn exclude_others(&self, dict: Option<DictionaryId>, tuple: &[u8]) -> Outcome {
        let transaction = match &self.source {
            Source::Session(session) => session.inside(),
            Source::Own(own) => Some(*own),
            Source::View | Source::Condition(_) => None,
        };
        let (Some(transaction), Some(dict), Some(strings)) = (transaction, dict, self.strings)
        else {
            return Ok(());
        };
        if !transaction.checks_conflicts() || !self.session.joins_deletions(strings) {
            return Ok(());
        }
        match transaction.read_conflict_key(dict, tuple) {
            Ok(()) | Err(kvdb::Error::Invalid(_) | kvdb::Error::Limit(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
    /// Sets or removes the deadline of an existing key.
    pub fn set_deadline(&self, key: &[u8], live: &Live, deadline: Option<u64>, batch: &mut Batch) {
        let (Some(types), Some(kind)) = (self.types, live.kind) else { return };
        let old = live.head.unwrap_or(Head::new(Kind::String, None, 0));
        let head = self.with_long(Head { kind, deadline, ..old });
        if let Some(at) = old.deadline.filter(|at| Some(*at) != deadline) {
            self.forget_deadline(&old, key, at, batch);
        }
        if let Some(deadline) = deadline {
            batch.put(types, deadline_key(deadline, key), Bytes::new());
        }
        match (kind, deadline) {
            (Kind::String, None) => batch.delete(types, head_key(key)),
            _ => batch.put(types, head_key(key), head.encode()),
        }
    }
    /// Reads a tuple like [`Seen::get`], in a range that has been announced.
    pub fn get_in_range(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>, Failure> {
        Ok(self.view()?.get(dict, key)?)
    }
    /// Returns whether the tuple exists, without reading a large value.
    pub fn has(&self, dict: DictionaryId, key: &[u8]) -> Result<bool, Failure> {
        self.announce(dict, key)?;
        Ok(self.view()?.value_len(dict, key)?.is_some())
    }
    /// Returns the collection of this kind under a key, if it exists. For a hash this visits all
    /// fields that have expired but have not been removed yet.
    pub fn collection(&self, key: &[u8], kind: Kind) -> Result<Option<Collection>, Failure> {
        match self.roughly(key, kind)? {
            Some(of) if !of.exact => {
                let count = self.living_of(&of)?;
                Ok(Some(Collection { live: Live { count, ..of.live }, exact: true, ..of }))
            }
            of => Ok(of),
        }
    }
    /// Returns the collection of this kind under a key, and creates it if necessary. The batch must
    /// then add an element.
    pub fn begin_collection(
        &self,
        key: &[u8],
        kind: Kind,
        random: impl Fn() -> u64,
        batch: &mut Batch,
    ) -> Result<Collection, Failure> {
        let (live, exact) = self.live_with(self.head(key)?, key)?;
        match live.collection(kind)?.zip(self.types) {
            Some((id, types)) => Ok(Collection { id, types, live, fresh: false, exact }),
            None => {
                // Because of the tombstone among the strings, two transactions conflict if one
                // stores a string under the key and the other stores a collection.
                self.remove(key, &live, batch);
                self.event(Classes::NEW, "new", key);
                self.replace_collection(key, kind, random, batch)
            }
        }
    }
    /// Returns a new collection under a key that the batch has removed. The batch must add an
    /// element.
    pub fn replace_collection(
        &self,
        key: &[u8],
        kind: Kind,
        random: impl Fn() -> u64,
        batch: &mut Batch,
    ) -> Result<Collection, Failure> {
        let types = self.types.ok_or(WRONGTYPE)?;
        self.exclude_others(self.strings, key)?;
        let mut id = random();
        while self.get(types, &count_key(id))?.is_some() {
            id = random();
        }
        let head = Head::new(kind, None, id);
        batch.put(types, head_key(key), head.encode());
        batch.put(types, owner_key(id), Bytes::copy_from_slice(key));
        let live = Live { kind: Some(kind), head: Some(head), count: 0 };
        Ok(Collection { id, types, live, fresh: true, exact: true })
    }
    /// Adds `more` to the length of a collection, and removes the collection if it is then empty.
    /// A collection that may have more elements than its `count` states is kept with its expired
    /// fields. If it has only expired fields, it does not exist for readers.
    pub fn counted(&self, key: &[u8], of: &Collection, more: i64, batch: &mut Batch) {
        let count = count_key(of.id);
        if let (1.., Some(kind)) = (more, of.live.kind) {
            self.filled(kind, key, of.fresh);
        }
        if of.fresh {
            // This is a put rather than an update, so that it is a conflict if another
            // transaction has chosen the same id.
            batch.put(of.types, count, more.to_string());
        } else if more < 0 && of.exact && of.live.count + more <= 0 {
            self.clear(key, &of.live, batch);
            self.event(Classes::GENERIC, "del", key);
        } else if more != 0 {
            batch.update(of.types, count, Update::add(more));
        }
    }
}
