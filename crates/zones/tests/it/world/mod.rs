//! Helpers of the tests of zones.

use std::sync::Arc;

use env::Random;
use zones::{ExtentWriter, FormatOptions, MemoryDevice, Profile, ZONE_SIZE, Zones};

pub const SMALL: FormatOptions =
    FormatOptions { capacity: Some(64 * ZONE_SIZE), reserve_zones: 4, profile: Profile::Unknown };

pub fn memory_store(options: FormatOptions) -> Arc<Zones> {
    Zones::format(Arc::new(MemoryDevice::new()), options).unwrap()
}

/// Returns `count` objects of noise with up to `longest` bytes, never empty.
pub fn objects(seed: u64, count: usize, longest: u64) -> impl Iterator<Item = Vec<u8>> {
    let mut random = Random::new(seed);
    (0..count).map(move |_| {
        let mut object = vec![0; 1 + random.below(longest) as usize];
        random.fill(&mut object);
        object
    })
}

pub fn place(writer: &mut ExtentWriter, align: u32, object: &[u8]) -> u64 {
    writer.place(align, object.len(), |_, to| to.copy_from_slice(object)).unwrap()
}
