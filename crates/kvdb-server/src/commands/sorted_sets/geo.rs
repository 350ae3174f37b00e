//! Places on the earth. They are the scores of sorted sets (`cells`), in which commands search.

use bytes::Bytes;

use super::{Adding, add_pairs, in_order, number, score, store};
use crate::commands::collections::{Room, check_element, visit};
use crate::commands::is;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Kind, order_key};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

mod cells;

use cells::{Place, Searched, Shape};

/// Parses a longitude and a latitude, which are two arguments from `at` on.
fn place(args: Arguments<'_>, at: usize) -> Result<Place, Failure> {
    let coordinate = |at: usize| number(args.at(at)).ok_or(Failure::NOT_A_FLOAT);
    let place = Place { longitude: coordinate(at)?, latitude: coordinate(at + 1)? };
    if !place.is_on_map() {
        return Err(Failure::request(format!(
            "invalid longitude,latitude pair {:.6},{:.6}",
            place.longitude, place.latitude
        )));
    }
    Ok(place)
}

/// Returns the length of a unit in meters.
fn unit(name: &[u8]) -> Result<f64, Failure> {
    match name {
        o if is(o, "m") => Ok(1.0),
        o if is(o, "km") => Ok(1000.0),
        o if is(o, "ft") => Ok(0.3048),
        o if is(o, "mi") => Ok(1609.34),
        _ => Err(Failure::request("unsupported unit provided. please use M, KM, FT, MI")),
    }
}

/// Executes `GEOADD key [NX|XX] [CH] longitude latitude member ...`.
pub fn geoadd(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (mut adding, mut at) = (Adding::default(), 2);
    while let Some(option) = args.get(at) {
        match option {
            o if is(o, "nx") => adding.only_new = true,
            o if is(o, "xx") => adding.only_old = true,
            o if is(o, "ch") => adding.changed = true,
            _ => break,
        }
        at += 1;
    }
    let words = args.len() - at;
    if words == 0 || !words.is_multiple_of(3) || adding.only_new && adding.only_old {
        return Err(Failure::SYNTAX);
    }
    s.check_key(args.at(1))?;
    let mut pairs = Vec::with_capacity(words / 3);
    for at in (at..args.len()).step_by(3) {
        let member = args.at(at + 2);
        check_element(s, member)?;
        pairs.push((place(args, at)?.score(), member));
    }
    add_pairs(s, args.at(1), &pairs, &adding, out)
}

/// Returns the places of the members named by the arguments from the third on.
fn places(s: &Session, args: Arguments<'_>) -> Result<Vec<Option<Place>>, Failure> {
    let seen = s.see()?;
    let of = seen.collection(args.at(1), Kind::SortedSet)?;
    let mut found = Vec::with_capacity(args.len() - 2);
    for member in args.from(2) {
        let score = match &of {
            None => None,
            Some(of) => score(&seen, of, member)?,
        };
        found.push(score.map(Place::of_score));
    }
    Ok(found)
}

fn send_place(place: Place, out: &mut Output) {
    out.array(2);
    out.decimals(place.longitude);
    out.decimals(place.latitude);
}

/// Executes `GEOPOS key [member ...]`.
pub fn geopos(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let found = places(s, args)?;
    out.array(found.len());
    for place in found {
        match place {
            Some(place) => send_place(place, out),
            None => out.null_array(),
        }
    }
    Ok(())
}

/// Executes `GEOHASH key [member ...]`.
pub fn geohash(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let found = places(s, args)?;
    out.array(found.len());
    for place in found {
        match place {
            Some(place) => out.bulk(&place.text()),
            None => out.null(),
        }
    }
    Ok(())
}

fn send_distance(distance: f64, out: &mut Output) {
    out.bulk(format!("{distance:.4}").as_bytes());
}

/// Executes `GEODIST key member1 member2 [M|KM|FT|MI]`.
pub fn geodist(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let unit = match args.len() {
        4 => 1.0,
        5 => unit(args.at(4))?,
        _ => return Err(Failure::SYNTAX),
    };
    match places(s, args)?[..] {
        [Some(a), Some(b), ..] => send_distance(a.distance(b) / unit, out),
        _ => out.null(),
    }
    Ok(())
}

/// The command that requests a search.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// The command `GEORADIUS`.
    AroundPlace,
    /// The command `GEORADIUSBYMEMBER`.
    AroundMember,
    /// The command `GEOSEARCH`.
    Search,
    /// The command `GEOSEARCHSTORE`.
    SearchStore,
}

impl Form {
    fn is_search(self) -> bool {
        matches!(self, Form::Search | Form::SearchStore)
    }
    /// Returns the index of the first option.
    fn options(self) -> usize {
        match self {
            Form::AroundPlace => 6,
            Form::AroundMember => 5,
            Form::Search => 2,
            Form::SearchStore => 3,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Sorted {
    No,
    Nearest,
    Farthest,
}

struct Query {
    /// The area of the search, or `None` if the set does not exist, so that nothing is found.
    area: Option<Searched>,
    with_distance: bool,
    with_hash: bool,
    with_place: bool,
    /// Set if the scores of the stored members are their distances.
    store_distances: bool,
    sorted: Sorted,
    /// The largest number of members; 0 means all.
    count: usize,
    any: bool,
}

/// A member that was found.
struct Found {
    member: Bytes,
    score: f64,
    place: Place,
    /// The distance from the center, in meters.
    distance: f64,
}

/// The area of a search, to the extent that the options parsed so far have specified it.
#[derive(Default)]
struct Sought {
    /// The center. It is `Some(None)` for a member of a set that does not exist.
    center: Option<Option<Place>>,
    /// The shape, and the length of its unit in meters.
    shape: Option<(Shape, f64)>,
    by_place: bool,
    by_radius: bool,
    by_box: bool,
}

/// Looks up the place of a member.
type PlaceOf<'a> = dyn Fn(&[u8]) -> Result<Option<Place>, Failure> + 'a;

impl Sought {
    /// Parses the option of a search at argument `at`. Returns the number of its arguments.
    fn take(
        &mut self,
        args: Arguments<'_>,
        at: usize,
        of_member: &PlaceOf<'_>,
    ) -> Result<usize, Failure> {
        let rest = args.len() - at - 1;
        match args.at(at) {
            o if rest > 0 && !self.by_place && is(o, "frommember") => {
                self.center = Some(of_member(args.at(at + 1))?);
                Ok(2)
            }
            o if rest > 1 && is(o, "fromlonlat") && (self.center.is_none() || self.by_place) => {
                self.center = Some(Some(place(args, at + 1)?));
                self.by_place = true;
                Ok(3)
            }
            o if rest > 1 && !self.by_box && is(o, "byradius") => {
                self.shape = Some(circle(args, at + 1)?);
                self.by_radius = true;
                Ok(3)
            }
            o if rest > 2 && !self.by_radius && is(o, "bybox") => {
                self.shape = Some(rectangle(args, at + 1)?);
                self.by_box = true;
                Ok(4)
            }
            _ => Err(Failure::SYNTAX),
        }
    }
}

impl Query {
    /// Parses a search in `of`; if `of` is `None`, the places of members are not known. Errors
    /// are found in the same order as in Redis.
    fn parse(
        args: Arguments<'_>,
        form: Form,
        stores: bool,
        (seen, of): (&Seen<'_>, Option<&Collection>),
    ) -> Result<Query, Failure> {
        let mut query = Query {
            area: None,
            with_distance: false,
            with_hash: false,
            with_place: false,
            store_distances: false,
            sorted: Sorted::No,
            count: 0,
            any: false,
        };
        let of_member = |member: &[u8]| match of {
            None => Ok(None),
            Some(of) => match score(seen, of, member)? {
                Some(score) => Ok(Some(Place::of_score(score))),
                None => Err(Failure::request("could not decode requested zset member")),
            },
        };
        let mut sought = Sought::default();
        match form {
            Form::AroundPlace => {
                sought.center = Some(Some(place(args, 2)?));
                sought.shape = Some(circle(args, 4)?);
            }
            Form::AroundMember => {
                sought.center = Some(of_member(args.at(2))?);
                sought.shape = of.map(|_| circle(args, 3)).transpose()?;
            }
            Form::Search | Form::SearchStore => {}
        }
        let mut at = form.options();
        while at < args.len() {
            at += match query.take(args, at, form, stores)? {
                Some(taken) => taken,
                None if form.is_search() => sought.take(args, at, &of_member)?,
                None => return Err(Failure::SYNTAX),
            };
        }
        query.check(args, form, stores, &sought)?;
        if query.count > 0 && query.sorted == Sorted::No && !query.any {
            query.sorted = Sorted::Nearest;
        }
        let center = sought.center.flatten().filter(|_| of.is_some());
        query.area = center.zip(sought.shape).map(|(center, (shape, unit))| Searched {
            center,
            shape,
            unit,
        });
        Ok(query)
    }

    /// Parses the option at argument `at`, unless it specifies the area of the search. Returns
    /// the number of its arguments, or `None` if the option specifies the area.
    fn take(
        &mut self,
        args: Arguments<'_>,
        at: usize,
        form: Form,
        stores: bool,
    ) -> Result<Option<usize>, Failure> {
        let has_value = at + 1 < args.len();
        let has_key = stores && !form.is_search() && has_value;
        match args.at(at) {
            o if is(o, "withdist") => self.with_distance = true,
            o if is(o, "withhash") => self.with_hash = true,
            o if is(o, "withcoord") => self.with_place = true,
            o if is(o, "any") => self.any = true,
            o if is(o, "asc") => self.sorted = Sorted::Nearest,
            o if is(o, "desc") => self.sorted = Sorted::Farthest,
            o if is(o, "count") && has_value => {
                let count = integer(args.at(at + 1)).ok_or(Failure::NOT_AN_INTEGER)?;
                let wrong = |_| Failure::request("COUNT must be > 0");
                self.count = usize::try_from(count).map_err(wrong)?;
                if count == 0 {
                    return Err(Failure::request("COUNT must be > 0"));
                }
                return Ok(Some(2));
            }
            o if has_key && is(o, "store") => {
                self.store_distances = false;
                return Ok(Some(2));
            }
            o if has_key && is(o, "storedist") => {
                self.store_distances = true;
                return Ok(Some(2));
            }
            o if form == Form::SearchStore && is(o, "storedist") => self.store_distances = true,
            _ => return Ok(None),
        }
        Ok(Some(1))
    }

    /// Checks that the options are compatible with each other and specify an area.
    fn check(&self, args: Arguments<'_>, form: Form, stores: bool, sought: &Sought) -> Outcome {
        if stores && (self.with_distance || self.with_hash || self.with_place) {
            let name = match form {
                Form::SearchStore => "GEOSEARCHSTORE",
                _ => "STORE option in GEORADIUS",
            };
            return Err(Failure::request(format!(
                "{name} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
            )));
        }
        let name = || String::from_utf8_lossy(args.at(0)).into_owned();
        if sought.center.is_none() {
            return Err(Failure::request(format!(
                "exactly one of FROMMEMBER or FROMLONLAT can be specified for {}",
                name()
            )));
        }
        if form.is_search() && sought.shape.is_none() {
            return Err(Failure::request(format!(
                "exactly one of BYRADIUS and BYBOX can be specified for {}",
                name()
            )));
        }
        if self.any && self.count == 0 {
            return Err(Failure::request("the ANY argument requires COUNT argument"));
        }
        Ok(())
    }

    /// Returns the members in the area, in the order of the reply.
    fn run(&self, s: &Session, seen: &Seen<'_>, of: &Collection) -> Result<Vec<Found>, Failure> {
        let Some(area) = &self.area else { return Ok(Vec::new()) };
        let (mut room, mut found) = (Room::of(s), Vec::new());
        let most = if self.any { self.count } else { usize::MAX };
        for (from, to) in area.ranges() {
            if found.len() >= most {
                break;
            }
            let (start, end) = (order_key(of.id, from, b""), order_key(of.id, to, b""));
            visit(s, seen, of, (&start, &end), false, |tuple| {
                let (member, score) = in_order(of, tuple)?;
                let place = Place::of_score(score);
                if let Some(distance) = area.distance_within(place) {
                    room.take(member.len())?;
                    found.push(Found { member, score, place, distance });
                }
                Ok(found.len() < most)
            })?;
        }
        match self.sorted {
            Sorted::No => {}
            Sorted::Nearest => found.sort_by(|a, b| a.distance.total_cmp(&b.distance)),
            Sorted::Farthest => found.sort_by(|a, b| b.distance.total_cmp(&a.distance)),
        }
        if self.count > 0 {
            found.truncate(self.count);
        }
        Ok(found)
    }

    fn unit(&self) -> f64 {
        self.area.map_or(1.0, |area| area.unit)
    }

    fn answer(&self, found: &[Found], out: &mut Output) {
        let parts = [self.with_distance, self.with_hash, self.with_place];
        let parts = parts.into_iter().filter(|part| *part).count();
        out.array(found.len());
        for one in found {
            if parts > 0 {
                out.array(parts + 1);
            }
            out.bulk(&one.member);
            if self.with_distance {
                send_distance(one.distance / self.unit(), out);
            }
            if self.with_hash {
                out.integer(one.score as i64);
            }
            if self.with_place {
                send_place(one.place, out);
            }
            out.send_if_large();
        }
    }
}

/// Parses the arguments `radius unit`.
fn circle(args: Arguments<'_>, at: usize) -> Result<(Shape, f64), Failure> {
    let radius = number(args.at(at)).ok_or(Failure::request("need numeric radius"))?;
    if radius < 0.0 {
        return Err(Failure::request("radius cannot be negative"));
    }
    Ok((Shape::Circle(radius), unit(args.at(at + 1))?))
}

/// Parses the arguments `width height unit`.
fn rectangle(args: Arguments<'_>, at: usize) -> Result<(Shape, f64), Failure> {
    let width = number(args.at(at)).ok_or(Failure::request("need numeric width"))?;
    let height = number(args.at(at + 1)).ok_or(Failure::request("need numeric height"))?;
    if width < 0.0 || height < 0.0 {
        return Err(Failure::request("height or width cannot be negative"));
    }
    Ok((Shape::Box(width, height), unit(args.at(at + 2))?))
}

/// Returns the key under which `GEORADIUS` or `GEORADIUSBYMEMBER` stores its result, or `None` if
/// the result is not stored. If there are several, the last one counts.
pub fn destination(args: Arguments<'_>) -> Option<&[u8]> {
    let form = match args.at(0) {
        name if is(name, "georadius") => Form::AroundPlace,
        _ => Form::AroundMember,
    };
    let (mut at, mut to) = (form.options(), None);
    while at + 1 < args.len() {
        let word = args.at(at);
        if is(word, "store") || is(word, "storedist") {
            to = args.get(at + 1);
        }
        // These options have an argument, which must not be parsed as an option.
        let has_word = ["store", "storedist", "count"].iter().any(|name| is(word, name));
        at += if has_word { 2 } else { 1 };
    }
    to
}

fn search(
    s: &Session,
    args: Arguments<'_>,
    form: Form,
    to: Option<&[u8]>,
    out: &mut Output,
) -> Outcome {
    let from = args.at(if form == Form::SearchStore { 2 } else { 1 });
    let Some(to) = to else {
        let seen = s.see()?;
        let of = seen.collection(from, Kind::SortedSet)?;
        let query = Query::parse(args, form, false, (&seen, of.as_ref()))?;
        let found = of.map(|of| query.run(s, &seen, &of)).transpose()?.unwrap_or_default();
        query.answer(&found, out);
        return Ok(());
    };
    s.check_key(to)?;
    let event = if form.is_search() { "geosearchstore" } else { "georadiusstore" };
    let stored = s.change(s.typed()?, [to, from], |seen, batch| {
        let of = seen.collection(from, Kind::SortedSet)?;
        let query = Query::parse(args, form, true, (seen, of.as_ref()))?;
        let found = of.map(|of| query.run(s, seen, &of)).transpose()?.unwrap_or_default();
        store(s, seen, to, event, batch, |put| {
            found.into_iter().try_for_each(|one| {
                let score = match query.store_distances {
                    true => one.distance / query.unit(),
                    false => one.score,
                };
                put(one.member, score)
            })
        })
    })?;
    out.integer(stored);
    Ok(())
}

/// Executes `GEOSEARCH key FROMMEMBER member|FROMLONLAT longitude latitude BYRADIUS radius
/// unit|BYBOX width height unit [ASC|DESC] [COUNT count [ANY]] [WITHCOORD] [WITHDIST]
/// [WITHHASH]`.
pub fn geosearch(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    search(s, args, Form::Search, None, out)
}

/// Executes `GEOSEARCHSTORE destination source …`.
pub fn geosearchstore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    search(s, args, Form::SearchStore, Some(args.at(1)), out)
}

pub fn georadius(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    search(s, args, Form::AroundPlace, destination(args), out)
}
pub fn georadius_ro(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    search(s, args, Form::AroundPlace, None, out)
}
pub fn georadiusbymember(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    search(s, args, Form::AroundMember, destination(args), out)
}
pub fn georadiusbymember_ro(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    search(s, args, Form::AroundMember, None, out)
}
