//! The right to publish a store, which lasts until another publisher claims it. A publication first
//! writes the zone data that object storage lacks, then the state, then the head that names the
//! state. If a publication is interrupted, the previous state stays the newest, and the next
//! publication need not write the noted objects again.

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
use crate::manifest::ManifestState;

/// After this time and this many bytes, a publication notes in the head which objects it has
/// written. If it is interrupted, the next publication need not write these objects again.
const NOTE_AFTER: Duration = Duration::from_secs(10);
const NOTE_BYTES: u64 = 64 << 20;

/// Maximum number of attempts to claim a store while other publishers replace its head.
const ATTEMPTS: u32 = 16;

/// The progress of a publication.
pub type PushProgress = Progress;

/// The right to publish, until another publisher claims it. After an error the content of the place
/// is unknown, and the claim is dropped.
pub(crate) struct Claim {
    env: Arc<dyn Env>,
    to: RemoteStore,
    head: Head,
    /// The tag of the head. `None` if another publisher has claimed the store.
    tag: Option<Tag>,
    begun: Duration,
    /// The numbers of the next note, state and object with zones in this epoch.
    notes: u32,
    states: u32,
    objects: u32,
    /// The part of the previous file's journal after the newest state: its begin and end.
    tail: Option<(JournalPlace, JournalPlace)>,
}

/// The right to claim a store again: the epoch of the last claim, the nonce of an attempt whose
/// outcome is unknown, and the newest state. An empty right may claim the store from any other
/// publisher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Right {
    pub epoch: Option<u32>,
    pub attempt: Option<[u8; 16]>,
    /// The newest state is one of these unless a copy of the file has published: the state that was
    /// the newest at the claim or was last published, and the state that is being published.
    pub states: [Option<StateMark>; 2],
}

fn mark_of(state: &Option<StateName>) -> Option<StateMark> {
    state.as_ref().map(StateName::mark)
}

/// A callback that persists a right, so that it is known after a crash.
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
    /// The zones of the state. The caller pins them.
    pub uses: &'a ZoneUse,
    /// The parts of these zones that a store reads first when it is opened.
    pub first: &'a FirstReads,
    /// Refer to zones that came from the place, instead of writing them again.
    pub shares: bool,
    /// Maximum bytes of memory for zones that are being uploaded.
    pub memory: usize,
    /// The place where the journal continues after the state, if there is a journal.
    pub journal: Option<JournalPlace>,
}

impl Claim {
    /// Raises the epoch of the head, or makes the first head. Fails if the claimant had a claim
    /// before and another publisher has claimed the store since. Calls `keep` with each change of
    /// the right before the change takes effect, so that the right is known after a crash.
    pub(crate) fn begin(
        env: Arc<dyn Env>,
        to: RemoteStore,
        claimant: &Claimant,
        right: &mut Right,
        keep: &mut KeepRight<'_>,
    ) -> Result<Claim> {
        // An empty right may claim the store from any other publisher, so it does not matter if
        // that publisher replaces the head between our read and our write: try again.
        let from_any = right.epoch.is_none();
        for _ in 0..ATTEMPTS {
            match Claim::attempt(env.clone(), to.clone(), claimant, right, keep) {
                Err(Error::Overtaken(place)) if from_any => {
                    tracing::info!("{place} was published while it was claimed: once more");
                }
                done => return done,
            }
        }
        let place = to.place();
        let what =
            format!("{place} was published {ATTEMPTS} times while it was claimed: try again");
        Err(Error::Limit(what))
    }

    fn attempt(
        env: Arc<dyn Env>,
        to: RemoteStore,
        claimant: &Claimant,
        right: &mut Right,
        keep: &mut KeepRight<'_>,
    ) -> Result<Claim> {
        // Forget the cached state: changes must refer only to an object that was read or written
        // under this claim, so that an object damaged in the place is replaced after the next
        // claim.
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
        // A file with a previous right has all commits of the journal, unless it is an older copy
        // of itself. Commits in the journal after its last one reveal such a copy.
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
            claim.seal_previous(from, before_it)?;
        }
        Ok(claim)
    }

    /// Seals the journal of the previous file, which belongs to `owner`, from the newest state on.
    /// The epoch is already raised, so the existing objects contain all commits that the previous
    /// file can have acknowledged. On error, restores the previous owner in the head.
    fn seal_previous(&mut self, from: JournalPlace, owner: Owner) -> Result<()> {
        match self.to.seal_journal(from, &*self.env) {
            Ok(end) => {
                self.tail = Some((from, end));
                Ok(())
            }
            Err(error) => {
                if let Err(e) = self.give_back(owner) {
                    tracing::warn!("{} stays open for writing: {e}", self.to.place());
                }
                Err(error)
            }
        }
    }

    /// Returns the part of the previous file's journal after the newest state, unless it is empty.
    pub(crate) fn tail(&self) -> Option<(JournalPlace, JournalPlace)> {
        self.tail.filter(|(from, to)| from != to)
    }

    /// Returns the head as this claim last read or replaced it.
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the age of the claim, or `None` if another publisher has claimed the store since.
    pub(crate) fn age(&self) -> Option<Duration> {
        let age = self.env.monotonic().saturating_sub(self.begun);
        self.tag.is_some().then_some(age)
    }

    /// Returns the pieces of zones that exist in the place, according to the newest state and to
    /// the note of an interrupted publication. `newest` has the pieces of the newest state if the
    /// caller knows them.
    pub(crate) fn known<'k>(&self, newest: Option<&'k Known>) -> Result<Cow<'k, Known>> {
        let known_in = |read: Result<PublishedState>| match read {
            Ok(state) => Ok(state.known),
            // Treat an unreadable state as empty: its pieces are written again.
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

    /// Publishes a state. Writes only data that is not in `known`; `marks` belong to `known`. Calls
    /// `keep` with the right before the state can become the newest one. Calls `progress` from time
    /// to time, and fails if it fails.
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
            edits: what.state.checkpoint_record().into(),
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

    /// Marks the owner in the head as closed, so that another file may begin with the newest state.
    pub(crate) fn close(&mut self) -> Result<()> {
        // All commits are in the newest state, and none follow: no journal is needed.
        self.head.journal = None;
        self.give_back(self.head.owner.clone())
    }

    /// Restores another owner in the head, marked as closed.
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

    /// Notes in the head which objects were written so far.
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
        // The state used the object name only if it was stored in an object as a whole.
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

    /// Deletes a note that no head names any more. Errors are ignored, since a collector would
    /// delete the note later.
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
