//! `DEFRAG`: moves live data out of zones that are mostly holes, while clients continue.

use kvdb::DefragOptions;

use super::{is, work};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

/// `DEFRAG START [RATE bytes-a-second] [FULLEST percent] [OBJECTS 0|1]`, `DEFRAG STATUS`, `DEFRAG
/// STOP`. The status is a sequence of names and numbers in alternation.
pub fn defrag(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match (args.at(1), args.len()) {
        (c, n) if is(c, "start") && n.is_multiple_of(2) => {
            let mut options = DefragOptions::default();
            for option in work::options(args) {
                let (option, number) = option?;
                match option {
                    o if is(o, "rate") => options.bytes_per_second = work::rate(number),
                    o if is(o, "fullest") && number <= 99 => options.fullest_percent = number as u8,
                    o if is(o, "objects") && number <= 1 => options.objects = number == 1,
                    _ => return Err(Failure::SYNTAX),
                }
            }
            match s.db().defragment(options)? {
                true => out.ok(),
                false => return Err(Failure::request("the store is being defragmented already")),
            }
        }
        (c, 2) if is(c, "status") => {
            let p = s.db().defrag_progress();
            out.counted(&[
                ("running", u64::from(p.running)),
                ("automatic", u64::from(p.automatic)),
                ("zones_reclaimable", p.zones_reclaimable),
                ("zones_reclaimed", p.zones_reclaimed),
                ("bytes_moved", p.bytes_moved),
                ("rounds", p.rounds),
            ]);
        }
        (c, 2) if is(c, "stop") => {
            s.db().stop_defragment();
            out.ok();
        }
        _ => return Err(Failure::SYNTAX),
    }
    Ok(())
}
