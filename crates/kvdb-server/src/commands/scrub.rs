//! `SCRUB`: reads all data again and verifies its checksums, while clients continue.

use kvdb::ScrubOptions;

use super::{is, work};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

/// `SCRUB START [RATE bytes-a-second]`, `SCRUB STATUS`, `SCRUB STOP`, `SCRUB FAULTS`. The status
/// is a list of names and numbers in alternation. Each fault is an array: place, fault,
/// dictionary, first key, end of the keys (these three are empty if the fault does not concern
/// keys), and the owner's description of the keys, or an empty string.
pub fn scrub(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match (args.at(1), args.len()) {
        (c, n) if is(c, "start") && n.is_multiple_of(2) => {
            let mut options = ScrubOptions::default();
            for option in work::options(args) {
                let (option, number) = option?;
                match option {
                    o if is(o, "rate") => options.bytes_per_second = work::rate(number),
                    _ => return Err(Failure::SYNTAX),
                }
            }
            match s.db().scrub(options)? {
                true => out.ok(),
                false => return Err(Failure::request("the store is being scrubbed already")),
            }
        }
        (c, 2) if is(c, "status") => {
            let p = s.db().scrub_progress();
            out.counted(&[
                ("running", u64::from(p.running)),
                ("complete", u64::from(p.complete)),
                ("bytes", p.bytes),
                ("bytes_total", p.bytes_total),
                ("faults", p.faults),
                ("completed", p.completed),
            ]);
        }
        (c, 2) if is(c, "faults") => {
            let faults = s.db().scrub_faults();
            out.array(faults.len());
            for fault in faults {
                let keys = fault.keys.as_ref();
                let described =
                    keys.and_then(|k| s.shared.owner.describe(&k.dictionary, &k.start, &k.end));
                out.array(6);
                out.bulk(fault.place.as_bytes());
                out.bulk(fault.what.as_bytes());
                out.bulk(keys.map_or(b"", |k| k.dictionary.as_bytes()));
                out.bulk(keys.map_or(b"", |k| &k.start));
                out.bulk(keys.map_or(b"", |k| &k.end));
                out.bulk(described.unwrap_or_default().as_bytes());
            }
        }
        (c, 2) if is(c, "stop") => {
            s.db().stop_scrub();
            out.ok();
        }
        _ => return Err(Failure::SYNTAX),
    }
    Ok(())
}
