//! The right to publish a store, until another one claims it. What is published is written in this
//! order: what the zones have that is not there yet, then the state, then the head that names it.
//! A publication that is cut off leaves the state before as it was, and the next one does not write
//! its objects again.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::Env;
use objects::Tag;
use zones::remote::{FirstReads, Known, Marks, Progress, Publication, Published, ZoneObject};
use zones::{ZoneUse, Zones};

use super::changes::{StateMark, StateName, StateObject};
use super::contents::check_secret_of_others;
use super::head::Head;
use super::state::PublishedState;
use super::{Claimant, Error, JournalPlace, Owner, RemoteStore, Result, random_id};
use crate::manifest::{Edit, ManifestState};

/// A publication notes what it has written after so long and so many bytes: what a later one does
/// not write again if this one is cut off.
const NOTE_AFTER: Duration = Duration::from_secs(10);
const NOTE_BYTES: u64 = 64 << 20;

/// How far a publication is.
pub type PushProgress = Progress;

/// The right to publish, until another one claims it. After an error it is not known what is there,
/// and it is dropped.
pub(crate) struct Claim {
    env: Arc<dyn Env>,
    to: RemoteStore,
    head: Head,
    /// `None`: another publisher has claimed the store.
    tag: Option<Tag>,
    begun: Duration,
    /// Numbers the next note, state and object with zones of this epoch.
    notes: u32,
    states: u32,
    objects: u32,
    /// What the journal of the file before has after the newest state: from one place up to
    /// another one.
    tail: Option<(JournalPlace, JournalPlace)>,
}

/// The right to claim a store again: the epoch of the last claim, the nonce of an attempt whose
/// outcome is unknown, and the newest state. Empty: it may be claimed from any other publisher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Right {
    pub epoch: Option<u32>,
    pub attempt: Option<[u8; 16]>,
    /// The states one of which is the newest as long as no copy of the file has published: the one
    /// that was it at the claim, or was published last, and the one that is being published.
    pub states: [Option<StateMark>; 2],
}

fn mark_of(state: &Option<StateName>) -> Option<StateMark> {
    state.as_ref().map(StateName::mark)
}

/// Keeps a right, so that it is known after a crash.
pub(crate) type KeepRight<'k> = dyn FnMut(&Right) -> Result<()> + 'k;

impl Right {
    pub fn holds(&self, head: &Head) -> bool {
        let is_claimed =
            self.epoch.is_none_or(|epoch| epoch == head.epoch) || self.attempt == Some(head.nonce);
        let newest = mark_of(&head.state);
        is_claimed && (self.epoch.is_none() || self.states.contains(&newest))
    }
}

/// The state and the zones to publish.
pub(crate) struct ToPublish<'a> {
    pub zones: &'a Zones,
    pub state: &'a ManifestState,
    /// Its zones, which the caller keeps as they are.
    pub uses: &'a ZoneUse,
    /// The bytes of these zones that a store reads first.
    pub first: &'a FirstReads,
    /// Zones that came from there are referred to, and not written again.
    pub shares: bool,
    /// Zones on their way take so much memory, bytes.
    pub memory: usize,
    /// Where the journal goes on after the state, if there is one.
    pub journal: Option<JournalPlace>,
}

impl Claim {
    /// Raises the epoch of the head, or makes the first one. A claimant that had a claim before
    /// fails if another one has made one since. `keep` is told of each change of the right before
    /// it counts, so that it is known after a crash.
    pub(crate) fn begin(
        env: Arc<dyn Env>,
        to: RemoteStore,
        claimant: &Claimant,
        right: &mut Right,
        keep: &mut KeepRight<'_>,
    ) -> Result<Claim> {
        // Changes are made to an object that was read or written under this claim: one that was
        // damaged there since is replaced by the next claim.
        to.forget_object();
        let (before, mut head) = match to.tagged_head()? {
            Some((head, tag)) => (Some(tag), head),
            None => {
                check_secret_of_others(&**to.objects())?;
                (None, Head::first(random_id(&*env)))
            }
        };
        if head.is_free() {
            (head.store, head.owner) = (claimant.store, claimant.owner.clone());
        }
        if !right.holds(&head) {
            return Err(Error::Overtaken(to.place()));
        }
        claimant.check(&head, &to)?;
        // Then nothing can have come to the journal that this file does not have, unless it is an
        // older copy of itself.
        let goes_on = right.epoch.is_some();
        if let (true, Some(from), Some((last, own))) = (goes_on, head.journal, claimant.has)
            && own != Some(from.chain)
            && to.journal_reaches(from)?.is_some_and(|there| there > last)
        {
            return Err(Error::WrittenElsewhere(to.place()));
        }
        let before_it = std::mem::replace(&mut head.owner, claimant.owner.clone());
        head.epoch = head
            .epoch
            .checked_add(1)
            .ok_or_else(|| Error::Corrupt(format!("{} has no more epochs", to.place())))?;
        head.nonce = random_id(&*env);
        right.attempt = Some(head.nonce);
        keep(right)?;
        let tag = Some(to.replace_head(before.as_ref(), &head)?);
        *right =
            Right { epoch: Some(head.epoch), attempt: None, states: [mark_of(&head.state), None] };
        keep(right)?;
        let begun = env.monotonic();
        let (notes, states, objects, tail) = (0, 0, 0, None);
        let mut claim = Claim { env, to, head, tag, begun, notes, states, objects, tail };
        if let Some(from) = claim.head.journal.filter(|_| !goes_on) {
            // The epoch is raised: what is there by now is all that the file before can have told
            // anybody to be there.
            match claim.to.seal_journal(from, &*claim.env) {
                Ok(end) => claim.tail = Some((from, end)),
                Err(e) => {
                    if let Err(e) = claim.give_back(before_it) {
                        tracing::warn!("{} stays open for writing: {e}", claim.to.place());
                    }
                    return Err(e);
                }
            }
        }
        Ok(claim)
    }

    /// What the journal of the file before has after the newest state, if there is anything.
    pub(crate) fn tail(&self) -> Option<(JournalPlace, JournalPlace)> {
        self.tail.filter(|(from, to)| from != to)
    }

    /// The newest head, unless another publisher has claimed the store.
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// How long ago it was made; `None`: another publisher has claimed the store since.
    pub(crate) fn age(&self) -> Option<Duration> {
        let age = self.env.monotonic().saturating_sub(self.begun);
        self.tag.is_some().then_some(age)
    }

    /// Returns the pieces that lie there already, as the newest state and a publication that has
    /// not ended say. `newest`: those of the newest state, where they are known here.
    pub(crate) fn known<'k>(&self, newest: Option<&'k Known>) -> Result<Cow<'k, Known>> {
        let known_in = |read: Result<PublishedState>| match read {
            Ok(state) => Ok(state.known),
            // Then it is written again.
            Err(Error::Corrupt(why)) => {
                tracing::warn!("what lies there is not known: {why}");
                Ok(Known::default())
            }
            Err(e) => Err(e),
        };
        let newest = match (newest, &self.head.state) {
            (Some(newest), _) => Cow::Borrowed(newest),
            (None, Some(state)) => Cow::Owned(known_in(self.to.get_state(state))?),
            (None, None) => Cow::Owned(Known::default()),
        };
        match &self.head.pending {
            None => Ok(newest),
            Some(note) => Ok(Cow::Owned(known_in(self.to.get_note(note))?.over(&newest)?)),
        }
    }

    /// Publishes a state. Only what is not `known` to be there is written; `marks` are as of that.
    /// `keep` is told of the state before it can be the newest one.
    /// `progress` is called now and then; an error of it ends the call.
    pub(crate) fn publish(
        &mut self,
        what: &ToPublish<'_>,
        (known, marks): (&Known, &Marks),
        (right, keep): (&mut Right, &mut KeepRight<'_>),
        progress: &mut dyn FnMut(PushProgress) -> Result<()>,
    ) -> Result<Published> {
        let Head { origin, epoch, .. } = self.head;
        let first = ZoneObject { origin, epoch, number: self.objects };
        let mut noted = (self.env.monotonic(), 0);
        let mut failure = None;
        let objects = self.to.objects().clone();
        let ToPublish { shares, memory, .. } = *what;
        let how = Publication { objects: &objects, known, marks, shares, first, memory };
        let mut step = |now: Progress, so_far: &dyn Fn() -> zones::Result<Known>| {
            progress(now)?;
            let (at, bytes) = noted;
            let time = self.env.monotonic();
            if time >= at + NOTE_AFTER && now.bytes >= bytes + NOTE_BYTES {
                self.note(so_far()?)?;
                noted = (time, now.bytes);
            }
            Ok(())
        };
        let published = what.zones.publish(what.uses, &how, &mut |now, so_far| {
            step(now, so_far).map_err(|e: Error| {
                let ended = zones::Error::Invalid(e.to_string());
                failure = Some(e);
                ended
            })
        });
        let mut published = match failure {
            Some(e) => return Err(e),
            None => published?,
        };
        self.objects = u32::try_from(published.progress.objects)
            .ok()
            .and_then(|written| self.objects.checked_add(written))
            .ok_or_else(|| Error::Invalid("an epoch has no more names for objects".into()))?;
        let superblock = what.zones.superblock();
        let state = PublishedState {
            capacity: superblock.capacity,
            reserve_zones: superblock.reserve_zones,
            profile: superblock.profile,
            edits: Edit::encode_record(&what.state.checkpoint()).into(),
            known: published.known,
            first: what.first.clone(),
        };
        let (key, before) = (self.name('c', self.states)?, self.head.state.as_ref());
        let name = self.to.put_state(key, &state, before)?;
        right.states = [mark_of(&self.head.state), Some(name.mark())];
        keep(right)?;
        self.make_newest(name, what.journal)?;
        published.known = state.known;
        Ok(published)
    }

    /// Says in the head that the owner is closed: the next file may begin with the newest state.
    pub(crate) fn close(&mut self) -> Result<()> {
        // All of it is in the newest state, and nothing comes after it.
        self.head.journal = None;
        self.give_back(self.head.owner.clone())
    }

    /// Names another owner in the head, which is closed.
    pub(crate) fn give_back(&mut self, owner: Owner) -> Result<()> {
        let owner = Owner { open: false, ..owner };
        self.replace(Head { owner, ..self.head.clone() })
    }

    fn replace(&mut self, head: Head) -> Result<()> {
        let head = Head { nonce: random_id(&*self.env), ..head };
        self.tag = Some(self.to.replace_head(Some(self.tag()?), &head)?);
        self.head = head;
        Ok(())
    }

    fn tag(&self) -> Result<&Tag> {
        self.tag.as_ref().ok_or_else(|| Error::Overtaken(self.to.place()))
    }

    /// Notes what was written so far.
    fn note(&mut self, known: Known) -> Result<()> {
        let note = PublishedState {
            capacity: None,
            reserve_zones: 0,
            profile: zones::Profile::Unknown,
            edits: Bytes::new(),
            known,
            first: FirstReads::default(),
        };
        let name = self.name('p', self.notes)?;
        self.notes += 1;
        let name = self.to.put_note(name, &note)?;
        let before = self.head.pending.clone();
        self.replace(Head { pending: Some(name), ..self.head.clone() })?;
        self.drop_note(before);
        Ok(())
    }

    fn make_newest(&mut self, name: StateName, journal: Option<JournalPlace>) -> Result<()> {
        // The name of an object is used once.
        self.states += u32::from(name.changes.is_none());
        let generation = self.head.generation.checked_add(1).ok_or_else(|| {
            Error::Corrupt(format!("{} has no more generations", self.to.place()))
        })?;
        let published = self.env.exact_wall().as_nanos() as u64;
        let before = self.head.pending.clone();
        let (state, pending, nonce) = (Some(name), None, random_id(&*self.env));
        let head =
            Head { generation, published, state, pending, journal, nonce, ..self.head.clone() };
        self.tag = self.to.publish_head(self.tag()?, &head)?;
        self.head = head;
        self.drop_note(before);
        Ok(())
    }

    /// No head names it any more; if it stays, it is in nobody's way.
    fn drop_note(&self, note: Option<StateObject>) {
        if let Some(note) = note
            && let Err(e) = self.to.objects().delete(&note.key)
        {
            tracing::debug!("a note of a publication stays: {e}");
        }
    }

    fn name(&self, kind: char, number: u32) -> Result<objects::Key> {
        self.to.key(kind, format_args!("{}-{number}", self.head.epoch))
    }
}
