//! What one command sees of the keys: which there are at its time, of which type, and what a batch
//! must do to change one. What is read is announced, so that a transaction's commit depends on it.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};

use bytes::Bytes;
use kvdb::{Batch, Cursor, DictionaryId, NestedBatch, Reads, Transaction, Update, View};

use super::Session;
use crate::effects::Effect;
use crate::failure::Failure;
use crate::keyspace::{
    Head, Keyspace, Kind, Live, WRONGTYPE, count_key, deadline_key, head_key, owner_key,
};
use crate::notifications::{Classes, Event};

mod pages;
pub use pages::Text;

fn corrupt(what: &str, key: &[u8]) -> Failure {
    Failure::Corrupt(format!("{what} of the key '{}' does not decode", key.escape_ascii()))
}

/// How what is read is made known, so that a transaction's commit depends on it.
enum Source<'a> {
    /// There is no transaction.
    View,
    /// Commands work in a transaction.
    Session(&'a Session),
    /// The command has a transaction to itself.
    Own(&'a Transaction),
    /// The command commits if these are unchanged.
    Condition(RefCell<Reads>),
}

/// What one command sees of the keys.
pub struct Seen<'a> {
    pub strings: Option<DictionaryId>,
    pub types: Option<DictionaryId>,
    /// Milliseconds since 1970: what expires at or before this is gone.
    pub now: u64,
    view: View,
    source: Source<'a>,
    session: &'a Session,
    /// Effects that happen when the batch is committed.
    effects: RefCell<Vec<Effect>>,
    /// Bytes that the batch has had already, in a transaction that others use, too.
    relieved: RefCell<Option<NestedBatch>>,
    /// Bytes of changes since the batch was last relieved.
    unrelieved: Cell<usize>,
}

/// Bytes of changes that a batch gathers, about.
const GATHERED: usize = 1 << 20;
/// Memory of a change besides its key and its value, bytes, about.
const CHANGE: usize = 96;

impl<'a> Seen<'a> {
    /// What a session sees that has no transaction, or works in one.
    pub fn by(session: &'a Session, space: Option<Keyspace>) -> Result<Self, Failure> {
        let source = match session.inside() {
            Some(_) => Source::Session(session),
            None => Source::View,
        };
        Ok(Seen::new(session, space, session.view()?, source))
    }
    /// What a transaction sees that is made for this command.
    pub fn of(
        transaction: &'a Transaction,
        session: &'a Session,
        space: Keyspace,
    ) -> Result<Self, Failure> {
        Ok(Seen::new(session, Some(space), transaction.view()?, Source::Own(transaction)))
    }
    /// What a command sees that is going to commit if that is unchanged, see
    /// [`Seen::into_condition`].
    pub fn noted(session: &'a Session, space: Keyspace) -> Self {
        let (view, source) = (session.db().view(), Source::Condition(RefCell::default()));
        Seen::new(session, Some(space), view, source)
    }
    fn new(session: &'a Session, space: Option<Keyspace>, view: View, source: Source<'a>) -> Self {
        let (strings, types) = (space.map(|space| space.strings), space.and_then(|s| s.types));
        let (now, effects) = (session.now(), RefCell::default());
        let (relieved, unrelieved) = (RefCell::default(), Cell::new(0));
        Seen { strings, types, now, view, source, session, effects, relieved, unrelieved }
    }

    /// Notes an event of a key, if notifications of its class are on.
    pub fn event(&self, class: Classes, name: &'static str, key: &[u8]) {
        if self.session.notes(class) {
            let key = Bytes::copy_from_slice(key);
            self.effects.borrow_mut().push(Effect::Event { event: Event { class, name }, key });
        }
    }
    /// Notes the event of a result that replaces a key: `name`, or `del` if it is empty.
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
    /// Notes that a list, sorted set or stream has got elements, for connections that wait for
    /// them. `new`: there was none under the key.
    pub fn filled(&self, kind: Kind, key: &[u8], new: bool) {
        if matches!(kind, Kind::List | Kind::SortedSet | Kind::Stream) {
            let key = Bytes::copy_from_slice(key);
            self.effects.borrow_mut().push(Effect::Filled { kind, key, new });
        }
    }
    /// Called by changes of any length, with the bytes that were added to the batch: what it has is
    /// made in the transaction where it gets much, so that memory stays bounded. The command goes
    /// on to see what it saw when it began, and must add to the batch once more.
    pub fn relieve(&self, batch: &mut Batch, added: usize) -> Result<(), Failure> {
        let gathered = self.unrelieved.get() + added + CHANGE;
        self.unrelieved.set(gathered);
        if gathered < GATHERED {
            return Ok(());
        }
        match &self.source {
            Source::View => return Ok(()),
            // It is begun anew, in a transaction of its own.
            Source::Condition(_) => return Err(Failure::TooLargeAtOnce),
            Source::Own(own) => own.apply(std::mem::take(batch))?,
            Source::Session(session) if session.executing.is_some() => {
                session.commit(std::mem::take(batch))?;
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
    /// Makes what is left of a batch in the transaction that commands work in; together with what
    /// it has had before.
    pub fn make(&self, batch: Batch) -> Result<(), Failure> {
        match self.relieved.take() {
            Some(mut nested) => {
                nested.apply(batch)?;
                Ok(nested.finish()?)
            }
            None => self.session.commit(batch),
        }
    }
    /// The state that the command sees, for what it replies when its change is made.
    pub fn state(&self) -> Result<View, Failure> {
        Ok(self.view()?.into_owned())
    }
    /// How many elements of `[start, end)` come before a place.
    pub fn rank(
        &self,
        of: &Collection,
        (start, end): (&[u8], &[u8]),
        place: &[u8],
    ) -> Result<u64, Failure> {
        let view = self.range(of.types, start, place.clamp(start, end))?;
        Ok(self.session.db().rank(&view, of.types, start..end, place)?)
    }
    /// The place of the element of `[start, end)` that `n` others come before.
    pub fn select(
        &self,
        of: &Collection,
        (start, end): (&[u8], &[u8]),
        n: u64,
    ) -> Result<Option<Bytes>, Failure> {
        let view = self.range(of.types, start, end)?;
        Ok(self.session.db().select(&view, of.types, start..end, n)?)
    }
    /// How many of the strings that are one tuple come before a key; `None`: how many there are.
    pub fn strings_before(&self, key: Option<&[u8]>) -> Result<u64, Failure> {
        let (Some(dict), db) = (self.strings, self.session.db()) else { return Ok(0) };
        let view = self.range(dict, b"", key.unwrap_or_default())?;
        Ok(match key {
            Some(key) => db.rank::<&[u8]>(&view, dict, .., key)?,
            None => db.count::<&[u8]>(&view, dict, ..)?,
        })
    }
    /// The string that is one tuple and that `n` others come before.
    pub fn nth_string(&self, n: u64) -> Result<Option<Bytes>, Failure> {
        let Some(dict) = self.strings else { return Ok(None) };
        let view = self.range(dict, b"", b"")?;
        Ok(self.session.db().select::<&[u8]>(&view, dict, .., n)?)
    }
    /// The effects that happen when the batch is committed.
    pub fn into_effects(self) -> Vec<Effect> {
        self.effects.into_inner()
    }
    /// The state that was read, what of it must be unchanged at the commit besides what the batch
    /// changes, and the effects of that.
    pub fn into_condition(self) -> (View, Reads, Vec<Effect>) {
        let reads = match self.source {
            Source::Condition(reads) => reads.into_inner(),
            Source::View | Source::Session(_) | Source::Own(_) => Reads::default(),
        };
        (self.view, reads, self.effects.into_inner())
    }

    /// The state to read, what is read having been announced. A serializable transaction reads what
    /// is committed when it has the lock. What it has changed itself is that of the beginning of
    /// the command: other connections may change it between two reads of this one, and a head must
    /// not meet the elements of another state.
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
            // A change of a string is a conflict by itself.
            Source::Own(_) | Source::Condition(_) if Some(dict) == self.strings => Ok(()),
            Source::Own(own) => Ok(own.read_conflict_key(dict, key)?),
            Source::Condition(reads) => {
                reads.borrow_mut().key(dict, key);
                Ok(())
            }
        }
    }
    /// Announces that `[start, end)` is read, and gives the state to read it from.
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
    /// A cursor over `[start, end)`; `end` empty: to the end. `None`: the state has no such
    /// dictionary.
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
    /// The number of elements of a collection.
    pub fn count(&self, id: u64) -> Result<i64, Failure> {
        let Some(types) = self.types else { return Ok(0) };
        let count = self.get(types, &count_key(id))?;
        let Some(count) = count else { return Ok(0) };
        crate::request::integer(&count).ok_or_else(|| {
            Failure::Corrupt(format!("the length of collection {id:x} is no number"))
        })
    }
    /// What is known of a key from its head: `None` where the strings decide.
    fn by_head(&self, head: Option<Head>) -> Result<Option<Live>, Failure> {
        let Some(found) = head else { return Ok(None) };
        if found.is_expired(self.now) {
            return Ok(Some(Live { head, ..Live::default() }));
        }
        if found.kind == Kind::Pages {
            let count = i64::try_from(found.len).unwrap_or(i64::MAX);
            return Ok(Some(Live { kind: Some(found.kind), head, count }));
        }
        if found.kind != Kind::String {
            let count = self.count(found.id)?;
            if count > 0 {
                return Ok(Some(Live { kind: Some(found.kind), head, count }));
            }
        }
        Ok(None)
    }
    /// What a head that was met in its order stands for: `None`, where the strings decide.
    pub fn judge(&self, head: Head) -> Result<Option<Live>, Failure> {
        self.by_head(Some(head))
    }

    /// What the key is; a large value is not read for it.
    pub fn live(&self, key: &[u8]) -> Result<Live, Failure> {
        let head = self.head(key)?;
        if let Some(live) = self.by_head(head)? {
            return Ok(live);
        }
        Ok(Live { kind: self.string_len(key)?.map(|_| Kind::String), head, count: 0 })
    }
    /// The head alone, for what replaces the key whatever it is.
    pub fn live_head(&self, key: &[u8]) -> Result<Live, Failure> {
        Ok(Live { head: self.head(key)?, ..Live::default() })
    }
    /// The length of the tuple among the strings, expired or not.
    fn string_len(&self, key: &[u8]) -> Result<Option<usize>, Failure> {
        let Some(strings) = self.strings else { return Ok(None) };
        self.announce(strings, key)?;
        Ok(self.view()?.value_len(strings, key)?)
    }
    /// The string of a key; an error, when it is something else, or more than a command may gather.
    pub fn string(&self, key: &[u8]) -> Result<(Live, Option<Bytes>), Failure> {
        let (live, value) = self.short_string(key)?;
        match live.pages() {
            Some(head) => Ok((live, Some(self.gathered(&head, 0..head.len)?))),
            None => Ok((live, value)),
        }
    }
    /// The string of a key, unless it is in pages: then what is known of it. An error, when it is
    /// something else.
    pub fn short_string(&self, key: &[u8]) -> Result<(Live, Option<Bytes>), Failure> {
        let head = self.head(key)?;
        match self.by_head(head)? {
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
    /// The string of a key that is to be a number; `otherwise`, when it is too long to be one.
    pub fn number(&self, key: &[u8], otherwise: Failure) -> Result<(Live, Option<Bytes>), Failure> {
        let found = self.short_string(key)?;
        if found.0.pages().is_some() { Err(otherwise) } else { Ok(found) }
    }

    /// Takes away what stands under the key besides a string: its head, its deadline, its elements.
    pub fn clear(&self, key: &[u8], live: &Live, batch: &mut Batch) {
        let (Some(types), Some(head)) = (self.types, live.head) else { return };
        if head.is_expired(self.now) {
            self.event(Classes::EXPIRED, "expired", key);
        }
        if head.kind == Kind::Stream {
            // Clients that wait in a group of it are told that it is gone.
            self.filled(head.kind, key, false);
        }
        batch.delete(types, head_key(key));
        if let Some(deadline) = head.deadline {
            batch.delete(types, deadline_key(deadline, key));
        }
        if let Some((start, end)) = head.beneath() {
            batch.delete_range(types, start, end);
        }
    }
    /// Takes away the key, whatever it is.
    pub fn remove(&self, key: &[u8], live: &Live, batch: &mut Batch) {
        self.clear(key, live, batch);
        if let Some(strings) = self.strings {
            batch.delete(strings, Bytes::copy_from_slice(key));
        }
    }
    /// Whether a string of this length can be put: a long one needs the dictionary of types.
    pub fn has_room_for(&self, len: usize) -> bool {
        self.types.is_some() || len <= self.limits().tuple
    }
    /// Puts a string in the place of whatever there was, without a deadline.
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
                // Also a tombstone: of two transactions, one of which makes a short string of the
                // key and the other a long one, the second has a conflict.
                batch.delete(strings, name);
                return self.put_pages(types, key, &value, batch);
            }
            (Some(strings), _) => batch.put(strings, name, value),
            (None, _) => {}
        }
        Ok(Live { kind: Some(Kind::String), head: None, count: 0 })
    }
    /// Changes the value of a string that is one tuple and stays it, or begins one.
    pub fn change_string(
        &self,
        key: &[u8],
        live: &Live,
        value: impl Into<Bytes>,
        batch: &mut Batch,
    ) {
        if !live.exists() {
            self.clear(key, live, batch);
            self.event(Classes::NEW, "new", key);
        }
        if let Some(strings) = self.strings {
            batch.put(strings, Bytes::copy_from_slice(key), value);
        }
    }
    /// Gives a key that exists another deadline, or none.
    pub fn set_deadline(&self, key: &[u8], live: &Live, deadline: Option<u64>, batch: &mut Batch) {
        let (Some(types), Some(kind)) = (self.types, live.kind) else { return };
        let old = live.head.unwrap_or(Head::new(Kind::String, None, 0));
        let head = Head { kind, deadline, ..old };
        if let Some(old) = old.deadline.filter(|old| Some(*old) != deadline) {
            batch.delete(types, deadline_key(old, key));
        }
        if let Some(deadline) = deadline {
            batch.put(types, deadline_key(deadline, key), Bytes::new());
        }
        match (kind, deadline) {
            (Kind::String, None) => batch.delete(types, head_key(key)),
            _ => batch.put(types, head_key(key), head.encode()),
        }
    }
    /// As [`Seen::get`], of a key in a range that is announced.
    pub fn get_in_range(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>, Failure> {
        Ok(self.view()?.get(dict, key)?)
    }
    /// Whether the tuple is there; a large value is not read for it.
    pub fn has(&self, dict: DictionaryId, key: &[u8]) -> Result<bool, Failure> {
        self.announce(dict, key)?;
        Ok(self.view()?.value_len(dict, key)?.is_some())
    }
    /// The collection of this kind under a key, if there is one.
    pub fn collection(&self, key: &[u8], kind: Kind) -> Result<Option<Collection>, Failure> {
        let live = self.live(key)?;
        let id = live.collection(kind)?;
        Ok(id.zip(self.types).map(|(id, types)| Collection { id, types, live, fresh: false }))
    }
    /// The collection of this kind under the key, begun where there is none. It must get an element
    /// with this batch.
    pub fn begin_collection(
        &self,
        key: &[u8],
        kind: Kind,
        random: impl Fn() -> u64,
        batch: &mut Batch,
    ) -> Result<Collection, Failure> {
        let live = self.live(key)?;
        match live.collection(kind)?.zip(self.types) {
            Some((id, types)) => Ok(Collection { id, types, live, fresh: false }),
            None => {
                // Also a tombstone among the strings: of two transactions that make a string and
                // a collection of one key the second has a conflict.
                self.remove(key, &live, batch);
                self.event(Classes::NEW, "new", key);
                self.replace_collection(key, kind, random, batch)
            }
        }
    }
    /// A new collection under a key that the batch has removed. It must get an element with it.
    pub fn replace_collection(
        &self,
        key: &[u8],
        kind: Kind,
        random: impl Fn() -> u64,
        batch: &mut Batch,
    ) -> Result<Collection, Failure> {
        let types = self.types.ok_or(WRONGTYPE)?;
        let mut id = random();
        while self.get(types, &count_key(id))?.is_some() {
            id = random();
        }
        let head = Head::new(kind, None, id);
        batch.put(types, head_key(key), head.encode());
        batch.put(types, owner_key(id), Bytes::copy_from_slice(key));
        let live = Live { kind: Some(kind), head: Some(head), count: 0 };
        Ok(Collection { id, types, live, fresh: true })
    }
    /// Notes that a collection has got `more` elements; without elements it is gone.
    pub fn counted(&self, key: &[u8], of: &Collection, more: i64, batch: &mut Batch) {
        let count = count_key(of.id);
        if let (1.., Some(kind)) = (more, of.live.kind) {
            self.filled(kind, key, of.fresh);
        }
        if of.fresh {
            // A put, not an update: should another transaction choose the same id, that is a
            // conflict.
            batch.put(of.types, count, more.to_string());
        } else if more < 0 && of.live.count + more <= 0 {
            self.clear(key, &of.live, batch);
            self.event(Classes::GENERIC, "del", key);
        } else if more != 0 {
            batch.update(of.types, count, Update::add(more));
        }
    }
}

/// A collection that a command works on.
#[derive(Clone, Copy, Debug)]
pub struct Collection {
    pub id: u64,
    pub types: DictionaryId,
    pub live: Live,
    /// It is begun with the batch of this command.
    fresh: bool,
}

impl Collection {
    /// One that was there before this command, whatever its kind.
    pub fn found(id: u64, types: DictionaryId, live: Live) -> Collection {
        Collection { id, types, live, fresh: false }
    }
}
