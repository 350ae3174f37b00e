//! `KVFS.ZONES`: the map of the store's zones, for programs that display it.
//!
//! In a large store one cell represents several adjacent zones, so that the size of the map does
//! not grow with the store.

use std::fmt::Write;

use kvdb::{ZoneInfo, ZoneState};

use super::wrong_arity;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

/// Default limit on the number of cells.
const CELLS: usize = 2048;
/// Upper bound of the limit that a client may request.
const MOST_CELLS: i64 = 65_536;
/// Size of a zone, in bytes.
const ZONE: u64 = 8 << 20;

/// `KVFS.ZONES [cells]`: replies with a JSON object.
pub fn zones(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if args.len() > 2 {
        return Err(wrong_arity("kvfs.zones"));
    }
    let cells = match args.get(1) {
        None => CELLS,
        Some(arg) => {
            let wanted = integer(arg).filter(|n| (1..=MOST_CELLS).contains(n));
            let wrong = || Failure::request(format!("write a number of cells, 1 to {MOST_CELLS}"));
            wanted.ok_or_else(wrong)? as usize
        }
    };
    out.bulk(json(&s.shared.db.zone_map(), cells).as_bytes());
    Ok(())
}

/// Returns the map as JSON. Each cell is an array: zones in use, zones among these that are being
/// written, zones released to the host, live bytes, the most frequent purpose of its zones (or
/// null), age of the youngest zone (or null).
fn json(map: &[ZoneInfo], cells: usize) -> String {
    let per_cell = map.len().div_ceil(cells).max(1);
    let mut json = format!(
        "{{\"zone_bytes\":{ZONE},\"zones\":{},\"zones_per_cell\":{per_cell},\"fields\":\
         [\"used\",\"open\",\"given_back\",\"live_bytes\",\"purpose\",\"age\"],\"cells\":[",
        map.len()
    );
    for (number, cell) in map.chunks(per_cell).enumerate() {
        let count =
            |states: &[ZoneState]| cell.iter().filter(|z| states.contains(&z.state)).count();
        let used = count(&[ZoneState::Superblock, ZoneState::Open, ZoneState::Held]);
        let (open, given_back) = (count(&[ZoneState::Open]), count(&[ZoneState::GivenBack]));
        let live: u64 = cell.iter().map(|zone| zone.live).sum();
        let purpose = most(cell).map_or("null".into(), |name| format!("\"{name}\""));
        let age = cell.iter().filter_map(|zone| zone.age).min();
        let age = age.map_or("null".into(), |age| age.to_string());
        let comma = if number > 0 { "," } else { "" };
        let _ = write!(json, "{comma}[{used},{open},{given_back},{live},{purpose},{age}]");
    }
    json.push_str("]}");
    json
}

/// Returns the most frequent known purpose of the zones of a cell. In a tie it is the first one.
fn most(cell: &[ZoneInfo]) -> Option<&'static str> {
    let mut counts: Vec<(&'static str, usize)> = Vec::new();
    let names = cell.iter().filter_map(|zone| match zone.state {
        ZoneState::Superblock => Some("superblock"),
        _ => zone.purpose.map(|purpose| purpose.name()),
    });
    for name in names {
        match counts.iter_mut().find(|(other, _)| *other == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    counts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: ZoneInfo = ZoneInfo { state: ZoneState::Free, live: 0, purpose: None, age: None };

    #[test]
    fn zones_that_lie_together_are_one_cell() {
        let map = [
            ZoneInfo { state: ZoneState::Superblock, ..FREE },
            ZoneInfo { state: ZoneState::Held, live: 5, age: Some(3), ..FREE },
            ZoneInfo { state: ZoneState::Open, live: 7, age: Some(0), ..FREE },
            FREE,
            ZoneInfo { state: ZoneState::GivenBack, ..FREE },
        ];
        let cells = |json: String| json.split_once("\"cells\":").expect("cells").1.to_string();
        assert_eq!(
            cells(json(&map, 100)),
            "[[1,0,0,0,\"superblock\",null],[1,0,0,5,null,3],[1,1,0,7,null,0],[0,0,0,0,null,null],\
             [0,0,1,0,null,null]]}"
        );
        assert_eq!(cells(json(&map, 2)), "[[3,1,0,12,\"superblock\",0],[0,0,1,0,null,null]]}");
        assert!(json(&map, 2).contains("\"zones\":5,\"zones_per_cell\":3,"));
        assert_eq!(cells(json(&[], 2)), "[]}");
    }
}
