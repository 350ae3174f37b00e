//! The large values of a commit: many are written to their places before it, a few are copied into
//! memory until they are placed.

use vt_tree::{Compression, ExtentRef, Packer, Value};
use zones::{Purpose, ZonePin};

use super::log::Coming;
use super::{CommitEnv, CommitSize, Committer, SpaceClaim, Valid};
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::journal::record::{Op, Ops};
use crate::version::Version;

impl Committer {
    /// Returns the indexes of the changes that have large values, and the sum of their bytes.
    pub(super) fn large(&self, version: &Version, changes: &Ops) -> (Vec<usize>, u64) {
        let mut large: Vec<usize> = Vec::new();
        let mut total = 0;
        for (i, (dict, op)) in changes.iter().enumerate() {
            let Op::Put(_, Value::Inline(v)) = op else { continue };
            let Some(tree) = version.get(*dict) else { continue };
            tree.short.committed(v.len());
            if v.len() >= tree.separate_at().max(1) as usize {
                large.push(i);
                total += v.len() as u64;
            }
        }
        if self.engine.options.late_bind_at == u64::MAX { (Vec::new(), 0) } else { (large, total) }
    }

    /// Lets a commit hold its large values, of `total` bytes together, until the next sync. Returns
    /// `None` if it must place them.
    pub(super) fn may_hold(
        &self,
        large: &[usize],
        changes: &Ops,
        total: u64,
    ) -> Option<Coming<'_>> {
        let longest = large.iter().map(|&i| changes[i].1.bytes()).max().unwrap_or(0);
        self.log.may_hold(total, longest)
    }

    /// Copies large values into the buffers of deferred values.
    pub(super) fn copy_values(&self, large: &[usize], changes: &mut Ops) {
        let version = self.engine.versions.load();
        for &i in large {
            if let (dict, Op::Put(key, Value::Inline(value))) = &changes[i] {
                let codec = self.codec(&version, *dict, key);
                changes[i].1 = Op::PutDeferred(key.clone(), self.log.copy_value(value), codec);
            }
        }
    }

    /// Places the large values of a commit as [`Committer::bind`] does, unless one of this size was
    /// refused and nothing has changed since: a program that retries in a full store would write
    /// its values again each time.
    pub(super) fn bind_unless_refused(
        &self,
        services: &impl CommitEnv,
        large: Vec<usize>,
        changes: &mut Ops,
        (size, claim): (CommitSize, SpaceClaim),
    ) -> Result<ZonePin> {
        if services.was_refused(size, claim) {
            return Err(Error::NoSpace);
        }
        let bound = self.bind(services, large, changes, claim);
        if matches!(bound, Err(Error::NoSpace)) {
            services.note_refused(size, claim);
        }
        bound
    }

    /// Places large values, and puts their places into the changes. The caller must hold no
    /// version, since this may have to wait for space that a version pins.
    pub(super) fn bind(
        &self,
        services: &impl CommitEnv,
        mut large: Vec<usize>,
        changes: &mut Ops,
        claim: SpaceClaim,
    ) -> Result<ZonePin> {
        // Sort by key, so that a scan reads the values sequentially.
        large.sort_by(|&a, &b| {
            (changes[a].0, changes[a].1.key()).cmp(&(changes[b].0, changes[b].1.key()))
        });
        let (extents, pin) = match self.place(changes, &large, claim) {
            // A reclaim may free the space of deleted data, and a flush may free promised space
            // that the journal has taken.
            Err(Error::NoSpace)
                if services.want_space()
                    || services.place_held() | (claim.promised && services.flush_all().is_ok()) =>
            {
                self.place(changes, &large, claim)?
            }
            placed => placed?,
        };
        for (&i, extent) in large.iter().zip(extents) {
            if let Op::Put(_, value) = &mut changes[i].1 {
                *value = Value::Extent(extent);
            }
        }
        self.engine.counters.bound_bytes.add(pin.uses().total_bytes());
        Ok(pin)
    }

    /// Places the values of a commit for which no zones could be reserved, so that they cannot be
    /// held.
    pub(super) fn bind_held(&self, services: &impl CommitEnv, valid: &mut Valid) -> Result<()> {
        let mut large = Vec::new();
        for (i, (_, op)) in valid.changes.iter_mut().enumerate() {
            if let Op::PutDeferred(key, value, _) = op {
                let (key, value) = (std::mem::take(key), std::mem::take(value));
                *op = Op::Put(key, Value::Inline(value));
                large.push(i);
            }
        }
        let pin = self.bind(services, large, &mut valid.changes, valid.claim)?;
        valid.pin.merge(pin);
        Ok(())
    }

    pub(super) fn place(
        &self,
        changes: &Ops,
        large: &[usize],
        claim: SpaceClaim,
    ) -> Result<(Vec<ExtentRef>, ZonePin)> {
        let mut writer = self.engine.zones.extent_writer(Purpose::Pages, claim.reserve());
        writer.write_behind();
        let mut packer = Packer::default();
        let mut extents = Vec::with_capacity(large.len());
        for &i in large {
            if let (dict, Op::Put(key, Value::Inline(bytes))) = &changes[i] {
                let codec = self.codec(&self.engine.versions.load(), *dict, key);
                let series = &self.engine.series;
                let of = (*dict, &key[..]);
                extents.push(series.place(of, &mut writer, &mut packer, codec, bytes)?);
            }
        }
        Ok((extents, writer.finish()?))
    }

    /// Returns the compression of the large value of a key: that of its series, or of its
    /// dictionary.
    fn codec(&self, version: &Version, dict: DictionaryId, key: &[u8]) -> Compression {
        let of_dictionary =
            version.get(dict).map_or(Compression::None, |t| t.info().options.compress_values);
        self.engine.series.codec(dict, key, of_dictionary)
    }
}
