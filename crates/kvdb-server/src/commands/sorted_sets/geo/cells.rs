//! Places on the earth as scores. A score interleaves 26 bits of the longitude and 26 bits of the
//! latitude, so that nearby places mostly have close scores, and a cell of the map is a range of
//! scores. All numbers are computed in the same order as in Redis, so that they round in the same
//! way.

use std::f64::consts::PI;

/// Number of bits of each coordinate in a score.
const STEPS: u32 = 26;
/// Bounds of the longitude.
const LONGITUDE: (f64, f64) = (-180.0, 180.0);
/// Bounds of the latitude in the projection of maps.
const LATITUDE: (f64, f64) = (-85.05112878, 85.05112878);
/// Bounds of the latitude in the text form (geohash) that other programs use.
const TEXT_LATITUDE: (f64, f64) = (-90.0, 90.0);

const EARTH_RADIUS: f64 = 6_372_797.560856;
const MERCATOR_MAX: f64 = 20_037_726.37;
const RADIANS: f64 = PI / 180.0;

/// The bits of the longitude in a hash.
const X_BITS: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// The bits of the latitude in a hash.
const Y_BITS: u64 = 0x5555_5555_5555_5555;

/// A longitude and a latitude, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub longitude: f64,
    pub latitude: f64,
}

impl Place {
    /// Returns whether the place lies within the bounds of the map.
    pub fn is_on_map(self) -> bool {
        (LONGITUDE.0..=LONGITUDE.1).contains(&self.longitude)
            && (LATITUDE.0..=LATITUDE.1).contains(&self.latitude)
    }

    /// Returns the score of a place on the map.
    pub fn score(self) -> f64 {
        Cell::around(self, STEPS, LATITUDE).bits as f64
    }

    /// Returns the center of the cell of a score. Every score is the score of some place.
    pub fn of_score(score: f64) -> Place {
        let area = Cell { bits: unsigned(score), steps: STEPS }.area();
        let middle = |(low, high): (f64, f64), (least, most): (f64, f64)| {
            ((low + high) / 2.0).clamp(least, most)
        };
        Place {
            longitude: middle(area.longitude, LONGITUDE),
            latitude: middle(area.latitude, LATITUDE),
        }
    }

    /// Returns the standard geohash of a place, which has 11 characters. Only 52 bits are
    /// computed, so the last character is always the character of zero.
    pub fn text(self) -> [u8; 11] {
        const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
        let bits = Cell::around(self, STEPS, TEXT_LATITUDE).bits;
        let mut text = [ALPHABET[0]; 11];
        for (i, letter) in text.iter_mut().take(10).enumerate() {
            *letter = ALPHABET[(bits >> (52 - (i + 1) * 5)) as usize & 0x1f];
        }
        text
    }

    /// Returns the distance between two places on a sphere, in meters.
    pub fn distance(self, other: Place) -> f64 {
        let (from, to) = (radians(self.longitude), radians(other.longitude));
        let v = ((to - from) / 2.0).sin();
        if v == 0.0 {
            return distance_of_latitudes(self.latitude, other.latitude);
        }
        let (from, to) = (radians(self.latitude), radians(other.latitude));
        let u = ((to - from) / 2.0).sin();
        let a = u * u + from.cos() * to.cos() * v * v;
        2.0 * EARTH_RADIUS * a.sqrt().asin()
    }
}

fn distance_of_latitudes(a: f64, b: f64) -> f64 {
    EARTH_RADIUS * (radians(b) - radians(a)).abs()
}

fn radians(degrees: f64) -> f64 {
    degrees * RADIANS
}
fn degrees(radians: f64) -> f64 {
    radians / RADIANS
}

/// Converts a score like a C program on x86-64; a negative number wraps around.
fn unsigned(score: f64) -> u64 {
    const HALF: f64 = 9_223_372_036_854_775_808.0;
    match score {
        s if s < HALF => s as i64 as u64,
        s if s < 2.0 * HALF => ((s - HALF) as i64 as u64) ^ (1 << 63),
        _ => 0,
    }
}

/// Spreads the bits of a number, so that there is room for another bit after each.
fn spread(number: u32) -> u64 {
    let mut bits = u64::from(number);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, Y_BITS),
    ] {
        bits = (bits | (bits << shift)) & mask;
    }
    bits
}

/// Returns every second bit of a number. This is the inverse of `spread`.
fn gathered(bits: u64) -> u32 {
    let mut bits = bits & Y_BITS;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        bits = (bits | (bits >> shift)) & mask;
    }
    bits as u32
}

/// A cell of the map. The length of its sides is `1 / 2^steps` of the sides of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    bits: u64,
    steps: u32,
}

/// The lowest and the highest coordinates of a cell.
struct Area {
    longitude: (f64, f64),
    latitude: (f64, f64),
}

impl Cell {
    fn around(place: Place, steps: u32, latitudes: (f64, f64)) -> Cell {
        let fixed = |at: f64, (least, most): (f64, f64)| {
            let part = (at - least) / (most - least);
            (part * (1u64 << steps) as f64) as u32
        };
        let (x, y) = (fixed(place.longitude, LONGITUDE), fixed(place.latitude, latitudes));
        Cell { bits: spread(y) | (spread(x) << 1), steps }
    }

    fn area(self) -> Area {
        let (y, x) = (gathered(self.bits), gathered(self.bits >> 1));
        let at = |n: u32, (least, most): (f64, f64)| {
            least + (f64::from(n) / (1u64 << self.steps) as f64) * (most - least)
        };
        let both = |n: u32, bounds| (at(n, bounds), at(n.wrapping_add(1), bounds));
        Area { longitude: both(x, LONGITUDE), latitude: both(y, LATITUDE) }
    }

    /// Returns the cell that lies this many cells to the east and to the north. The map has no
    /// edges.
    fn moved(self, east: i32, north: i32) -> Cell {
        let width = 64 - self.steps * 2;
        let step = |bits: u64, own: u64, others: u64, by: i32| {
            let ones = others >> width;
            let bits = match by {
                0 => return bits,
                1.. => bits.wrapping_add(ones + 1),
                _ => (bits | ones).wrapping_sub(ones + 1),
            };
            bits & (own >> width)
        };
        let x = step(self.bits & X_BITS, X_BITS, Y_BITS, east);
        let y = step(self.bits & Y_BITS, Y_BITS, X_BITS, north);
        Cell { bits: x | y, ..self }
    }

    /// Returns the lowest score in the cell, and the lowest score after the cell.
    fn scores(self) -> (f64, f64) {
        let align = |bits: u64| (bits << (2 * (STEPS - self.steps))) as f64;
        (align(self.bits), align(self.bits + 1))
    }
}

/// The shape of an area around a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// A circle with this radius.
    Circle(f64),
    /// A box with this width and height, along the meridians and parallels.
    Box(f64, f64),
}

/// An area that is searched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Searched {
    pub center: Place,
    /// The shape, whose lengths are in units.
    pub shape: Shape,
    /// The length of the unit in meters.
    pub unit: f64,
}

impl Searched {
    /// Returns the distance of a place from the center in meters, or `None` if the place lies
    /// outside of the area.
    pub fn distance_within(&self, place: Place) -> Option<f64> {
        match self.shape {
            Shape::Circle(radius) => {
                let distance = self.center.distance(place);
                (distance <= radius * self.unit).then_some(distance)
            }
            Shape::Box(width, height) => {
                let (width, height) = (width * self.unit, height * self.unit);
                if distance_of_latitudes(place.latitude, self.center.latitude) > height / 2.0 {
                    return None;
                }
                let level = Place { longitude: self.center.longitude, ..place };
                if place.distance(level) > width / 2.0 {
                    return None;
                }
                Some(self.center.distance(place))
            }
        }
    }

    /// Returns the lowest longitude and latitude of the area, and then the highest ones.
    fn bounds(&self) -> [f64; 4] {
        let Place { longitude, latitude } = self.center;
        let (width, height) = match self.shape {
            Shape::Circle(radius) => (self.unit * radius, self.unit * radius),
            Shape::Box(width, height) => (self.unit * (width / 2.0), self.unit * (height / 2.0)),
        };
        let up = degrees(height / EARTH_RADIUS);
        let side = |at: f64| degrees(width / EARTH_RADIUS / radians(at).cos());
        let (top, bottom) = (side(latitude + up), side(latitude - up));
        let aside = if latitude < 0.0 { bottom } else { top };
        [longitude - aside, latitude - up, longitude + aside, latitude + up]
    }

    /// Returns the number of bits of each coordinate for which nine cells cover the area, or
    /// nearly so.
    fn steps(&self) -> u32 {
        let radius = match self.shape {
            Shape::Circle(radius) => radius,
            Shape::Box(width, height) => {
                ((width / 2.0) * (width / 2.0) + (height / 2.0) * (height / 2.0)).sqrt()
            }
        };
        let mut range = radius * self.unit;
        if range == 0.0 {
            return STEPS;
        }
        let mut steps = 1;
        while range < MERCATOR_MAX {
            range *= 2.0;
            steps += 1;
        }
        steps -= 2;
        // Toward the poles a cell covers a smaller area.
        let latitude = self.center.latitude.abs();
        steps -= i32::from(latitude > 66.0) + i32::from(latitude > 80.0);
        steps.clamp(1, STEPS as i32) as u32
    }

    /// Returns the ranges of scores in which all places of the area lie, in the order in which
    /// Redis reads them.
    pub fn ranges(&self) -> Vec<(f64, f64)> {
        let [west, south, east, north] = self.bounds();
        let mut steps = self.steps();
        let mut cell = Cell::around(self.center, steps, LATITUDE);
        // If a neighbor ends within the area, the cells are too small.
        let ends_within = cell.moved(0, 1).area().latitude.1 < north
            || cell.moved(0, -1).area().latitude.0 > south
            || cell.moved(1, 0).area().longitude.1 < east
            || cell.moved(-1, 0).area().longitude.0 > west;
        if steps > 1 && ends_within {
            steps -= 1;
            cell = Cell::around(self.center, steps, LATITUDE);
        }
        let area = cell.area();
        // A neighbor on a side is not needed if the cell itself reaches beyond the area on this
        // side.
        let useful = |x: i32, y: i32| {
            steps < 2
                || !(y < 0 && area.latitude.0 < south
                    || y > 0 && area.latitude.1 > north
                    || x < 0 && area.longitude.0 < west
                    || x > 0 && area.longitude.1 > east)
        };
        const ORDER: [(i32, i32); 9] =
            [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let mut cells: Vec<Cell> = Vec::with_capacity(9);
        for (i, (x, y)) in ORDER.into_iter().enumerate().filter(|(_, (x, y))| useful(*x, *y)) {
            let next = cell.moved(x, y);
            // If the cells are as large as the map, neighbors may be equal. Like Redis, this
            // compares each neighbor with the previous cell, unless the previous cell is the
            // first one.
            if i > 0 && cells.len() > 1 && cells.last() == Some(&next) {
                continue;
            }
            cells.push(next);
        }
        cells.into_iter().map(Cell::scores).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_redis() {
        let palermo = Place { longitude: 13.361389, latitude: 38.115556 };
        let catania = Place { longitude: 15.087269, latitude: 37.502669 };
        assert_eq!(palermo.score(), 3_479_099_956_230_698.0);
        assert_eq!(catania.score(), 3_479_447_370_796_909.0);
        let (a, b) = (Place::of_score(palermo.score()), Place::of_score(catania.score()));
        assert_eq!(format!("{:.17}", a.longitude), "13.36138933897018433");
        assert_eq!(format!("{:.4}", a.distance(b)), "166274.1516");
        assert_eq!(&a.text(), b"sqc8b49rny0");
        assert_eq!(&b.text(), b"sqdtr74hyu0");
    }

    #[test]
    fn every_place_of_an_area_has_a_score_in_one_of_its_ranges() {
        let mut random = 1u64;
        let mut next = |least: f64, most: f64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            least + (most - least) * ((random >> 11) as f64 / (1u64 << 53) as f64)
        };
        let mut inside = 0;
        for _ in 0..20_000 {
            let center = Place { longitude: next(-170.0, 170.0), latitude: next(-60.0, 60.0) };
            let shape = match next(0.0, 2.0) < 1.0 {
                true => Shape::Circle(next(1.0, 500.0)),
                false => Shape::Box(next(1.0, 900.0), next(1.0, 900.0)),
            };
            let searched = Searched { center, shape, unit: 1000.0 };
            let place = Place {
                longitude: center.longitude + next(-3.0, 3.0),
                latitude: center.latitude + next(-3.0, 3.0),
            };
            let score = place.score();
            if searched.distance_within(Place::of_score(score)).is_some() {
                inside += 1;
                let ranges = searched.ranges();
                let found = ranges.iter().any(|(from, to)| (*from..*to).contains(&score));
                assert!(found, "{searched:?} {place:?}");
            }
        }
        assert!(inside > 1000, "{inside}");
    }
}
