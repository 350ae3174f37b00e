//! Decides which automatic snapshots are kept. The decision depends on their times only, so that it
//! is easy to read and to test with a table.
//!
//! A rule such as `7d` covers the last seven days, today included, and keeps the newest snapshot of
//! each. Snapshots that no rule keeps are dropped. Days are those of UTC, weeks begin on Mondays.

use std::str::FromStr;

/// The number and the length of the most recent periods, with one snapshot each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    count: u64,
    period: Period,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    Hour,
    Day,
    Week,
}

/// Seconds since 1970.
pub type Time = u64;

impl Period {
    /// Returns the number of the period that contains a time.
    fn of(self, time: Time) -> u64 {
        match self {
            Period::Hour => time / 3600,
            Period::Day => time / 86_400,
            // 1970 began on a Thursday.
            Period::Week => (time / 86_400 + 3) / 7,
        }
    }
}

/// Rules, like `24h,7d,4w`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

impl FromStr for Rules {
    type Err = String;

    fn from_str(text: &str) -> Result<Rules, String> {
        let rule = |part: &str| {
            let bad =
                || format!("'{part}' is no rule: write a number and h, d or w, such as 24h,7d,4w");
            let unit = part.chars().last().ok_or_else(bad)?;
            let period = match unit {
                'h' => Period::Hour,
                'd' => Period::Day,
                'w' => Period::Week,
                _ => return Err(bad()),
            };
            let count: u64 = part[..part.len() - 1].parse().map_err(|_| bad())?;
            // A rule that keeps nothing is most likely a mistake.
            if count == 0 || count > 100_000 { Err(bad()) } else { Ok(Rule { count, period }) }
        };
        text.split(',').map(|part| rule(part.trim())).collect::<Result<_, _>>().map(Rules)
    }
}

impl Rules {
    /// Returns, for each of `times`, whether the snapshot is kept. The newest always is, and so are
    /// times in the future: a clock that is set back must not cost snapshots.
    pub fn keep(&self, times: &[Time], now: Time) -> Vec<bool> {
        let newest = times.iter().max();
        let kept = |time: &Time| {
            let by_rule = |rule: &Rule| {
                let (period, current) = (rule.period.of(*time), rule.period.of(now));
                current.saturating_sub(period) < rule.count
                    && !times.iter().any(|t| t > time && rule.period.of(*t) == period)
            };
            *time > now || Some(time) == newest || self.0.iter().any(by_rule)
        };
        times.iter().map(kept).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        text.parse().expect("rules")
    }

    /// Wednesday, 2026-11-25 12:30:00 UTC.
    const NOW: Time = 1_795_609_800;
    const HOUR: u64 = 3600;
    const DAY: u64 = 86_400;

    #[test]
    fn a_table_of_times() {
        for (rule, ages, want) in [
            // (rule, ages, which are kept)
            ("3h", &[0, HOUR, 2 * HOUR, 3 * HOUR][..], &[true, true, true, false][..]),
            // The newest of each hour: 12:30, 12:05 and 12:00 are in the same one.
            ("2h", &[0, HOUR / 2 - 300, HOUR / 2], &[true, false, false]),
            ("2h", &[300, 31 * 60, 89 * 60], &[true, true, false]),
            // 12:30 and 00:10 today, 23:50 and 01:00 yesterday.
            (
                "2d",
                &[0, 12 * HOUR + 1200, 12 * HOUR + 2400, 35 * HOUR],
                &[true, false, true, false],
            ),
            // Monday of this week, Sunday and Monday of the last one, and the one before.
            ("2w", &[0, 2 * DAY, 3 * DAY, 9 * DAY, 10 * DAY], &[true, false, true, false, false]),
            // One rule keeps a snapshot that the other does not.
            ("1h,3d", &[0, DAY, 2 * DAY, 3 * DAY], &[true, true, true, false]),
            // The newest is kept at any age, and so is the future.
            ("1h", &[40 * DAY, 50 * DAY], &[true, false]),
            ("1h", &[], &[]),
        ] {
            let times: Vec<Time> = ages.iter().map(|age| NOW - age).collect();
            assert_eq!(rules(rule).keep(&times, NOW), want, "{rule} {ages:?}");
        }
        assert_eq!(rules("1h").keep(&[NOW + DAY, NOW, NOW + 2 * DAY], NOW), [true, true, true]);
    }

    #[test]
    fn what_is_made_every_hour_comes_down_to_what_the_rules_say() {
        let (rules, mut kept) = (rules("24h,7d,4w"), Vec::<Time>::new());
        for hour in 0..24 * 7 * 8 {
            let now = NOW + hour * HOUR;
            kept.push(now);
            let keep = rules.keep(&kept, now);
            let mut keep = keep.iter();
            kept.retain(|_| *keep.next().expect("one for each"));
        }
        let now = *kept.last().expect("the newest");
        let last = |age: u64| kept.iter().filter(|time| now - **time < age).count();
        assert_eq!(last(24 * HOUR), 24);
        // Now is a Wednesday, 11:30. Yesterday evening is among the hours; five more days precede
        // it; of the Sundays, one is among these days and two are not.
        assert_eq!(kept.len(), 24 + 5 + 2, "{kept:?}");
        assert_eq!(now - kept[0], 16 * DAY + 12 * HOUR);
    }

    #[test]
    fn slips_are_no_rules() {
        for wrong in
            ["", "h", "24", "24m", "0d", "-1d", "1.5h", "24h,", "24h;7d", "999999h", "7 d", "ä"]
        {
            assert!(wrong.parse::<Rules>().is_err(), "{wrong}");
        }
        assert_eq!(rules("24h, 7d"), rules("24h,7d"));
    }
}
