//! Draws the cost of a byte as the store grows: bytes written, memory, processor time and merge
//! time per user byte against the size of the data set, and the extrapolation of a straight line
//! through the logarithm of the size to 1 TB.

use std::collections::BTreeMap;

use super::Picture;
use super::svg::{Chart, HEIGHT, colour, short};
use crate::medians::{Phases, Rounds, Setting};

/// A figure of the rounds at one size.
type Figure = fn(&Rounds) -> Option<f64>;

const FIGURES: &[(&str, &str, &str, Figure)] = &[
    ("written", "Written bytes per user byte, settled", "bytes per byte", |r| {
        r.median(|o| o.write_amp)
    }),
    ("memory", "Peak memory", "MiB", |r| r.median(|o| Some((o.peak_rss >> 20) as f64))),
    ("time", "Processor time, merges included", "CPU seconds per GB", |r| {
        r.median(|o| Some(o.cpu_s / (o.user_bytes? as f64 / 1e9)))
    }),
    ("merges", "Processor time of flushes and merges", "CPU seconds per GB", |r| {
        r.median(|o| Some(o.merge_cpu_s? / (o.user_bytes? as f64 / 1e9)))
    }),
];

pub fn draw(all: &BTreeMap<Setting, Phases>) -> Vec<Picture> {
    // The outcomes that differ only in the size, by size.
    let mut families: BTreeMap<String, Vec<(&Setting, &Phases)>> = BTreeMap::new();
    for (setting, phases) in all.iter().filter(|(_, p)| p.contains_key("load")) {
        let family = Setting { data_mib: 0, ..setting.clone() };
        families.entry(format!("{family:?}")).or_default().push((setting, phases));
    }
    let mut pictures = Vec::new();
    for sizes in families.values().filter(|s| s.len() >= 3) {
        for (name, title, unit, figure) in FIGURES {
            let first = sizes[0].0;
            let picture = picture(
                &format!("{title}: {} {}", first.load, first.value()),
                unit,
                sizes,
                *figure,
            );
            pictures.push((format!("growth-{name}-{}-{}", first.load, first.value_bytes), picture));
        }
    }
    pictures
}

/// The straight line through the points by least squares: value at x = 0, and slope.
pub fn fit(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let n = points.len() as f64;
    let (mx, my) =
        (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let xx: f64 = points.iter().map(|p| (p.0 - mx).powi(2)).sum();
    let xy: f64 = points.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum();
    (points.len() > 1 && xx > 0.0).then(|| (my - xy / xx * mx, xy / xx))
}

fn picture(title: &str, unit: &str, sizes: &[(&Setting, &Phases)], figure: Figure) -> String {
    let mut lines: BTreeMap<&String, Vec<(f64, f64)>> = BTreeMap::new();
    for (setting, phases) in sizes {
        for (label, r) in &phases["load"] {
            if let Some(v) = figure(r) {
                lines.entry(label).or_default().push((setting.data_mib as f64, v));
            }
        }
    }
    let smallest = sizes.iter().map(|s| s.0.data_mib as f64).fold(f64::MAX, f64::min).log2();
    let place = |mib: f64| mib.log2() - smallest;
    let terabyte = place(1024.0 * 1024.0);
    let mut lines: Vec<_> = lines.into_iter().collect();
    for (_, points) in &mut lines {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points.iter_mut().for_each(|p| p.0 = place(p.0));
    }
    let then = |points: &[(f64, f64)]| fit(points).map_or(0.0, |(at, slope)| at + slope * terabyte);
    let most = lines
        .iter()
        .map(|(_, points)| points.iter().map(|p| p.1).fold(then(points), f64::max))
        .fold(0.0, f64::max);
    let mut chart =
        Chart::new(&format!("{title}, by size of the data"), "", unit, terabyte + 0.3, most * 1.1);
    for (setting, _) in sizes {
        let x = chart.x(place(setting.data_mib as f64));
        let size = if setting.data_mib >= 1024 {
            format!("{} GiB", setting.data_mib >> 10)
        } else {
            format!("{} MiB", setting.data_mib)
        };
        chart.text(x, HEIGHT - 34.0, &size, "middle", "font-size=\"10\"");
    }
    let x = chart.x(terabyte);
    chart.text(x, HEIGHT - 34.0, "1T", "middle", "font-size=\"10\"");
    for (label, placed) in lines {
        chart.line(&placed, colour(label), 2.0);
        placed.iter().for_each(|p| chart.dot(p.0, p.1, colour(label)));
        let mut key = label.clone();
        if let (Some((at, slope)), Some(last)) = (fit(&placed), placed.last()) {
            let then = at + slope * terabyte;
            let (x1, y1) = (chart.x(last.0), chart.y(at + slope * last.0));
            let (x2, y2) = (chart.x(terabyte), chart.y(then));
            let dashes = "stroke-dasharray=\"4 4\"";
            chart.raw(&format!(
                "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{}\" {dashes}/>",
                colour(label)
            ));
            key += &format!(": {} at 1 TiB", short((then * 100.0).round() / 100.0));
        }
        chart.key(&key, colour(label));
    }
    chart.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_again() {
        let (at, slope) = fit(&[(0.0, 1.0), (1.0, 1.5), (2.0, 2.0)]).unwrap();
        assert!((at - 1.0).abs() < 1e-9 && (slope - 0.5).abs() < 1e-9);
        assert!(fit(&[(3.0, 1.0)]).is_none());
    }
}
