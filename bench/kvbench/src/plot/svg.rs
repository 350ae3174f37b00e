//! A small SVG writer: a frame with axes and a grid, lines, bars, dots, a legend.

use std::fmt::Write as _;

pub const WIDTH: f64 = 760.0;
pub const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 50.0;
const RIGHT: f64 = 190.0;
const BOTTOM: f64 = 55.0;

/// The colour of an engine, the same in every picture.
pub fn colour(label: &str) -> &'static str {
    let engine = label.split(' ').next().unwrap_or(label);
    match engine {
        "kvdb" => "#c1121f",
        "rocksdb" => "#1d3557",
        "rocksdb-universal" => "#457b9d",
        "rocksdb-blob" => "#8ab6d6",
        "rocksdb-new" => "#3d348b",
        "rocksdb-new-universal" => "#7678ed",
        "rocksdb-new-blob" => "#b8b8ff",
        "leveldb" => "#2a9d8f",
        "fjall" => "#e9a23b",
        "fjall-kv" => "#f4c95d",
        "redb" => "#6d6875",
        _ => "#9a8c98",
    }
}

/// Colours for the lines of one engine, from the first to the last.
pub fn shade(n: usize) -> &'static str {
    ["#c1121f", "#e36414", "#e9a23b", "#6a994e", "#2a9d8f", "#457b9d", "#6d597a", "#1d1d1d"][n % 8]
}

/// A step of 1, 2 or 5 times a power of ten, so that `max` has about `n` of them.
fn step(max: f64, n: f64) -> f64 {
    let raw = (max / n).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= raw).unwrap_or(power)
}

/// A number on an axis.
pub fn short(v: f64) -> String {
    let text = |v: f64| {
        if v.fract().abs() < 1e-9 {
            format!("{v:.0}")
        } else {
            format!("{}", (v * 1e4).round() / 1e4)
        }
    };
    match v.abs() {
        a if a >= 1e6 => format!("{}M", text(v / 1e6)),
        a if a >= 1e4 => format!("{}k", text(v / 1e3)),
        _ => text(v),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A picture with one pair of axes that begin at zero.
pub struct Chart {
    body: String,
    x_max: f64,
    y_max: f64,
    legend: usize,
}

impl Chart {
    /// Axes up to `x_max` and `y_max` (rounded up); without a name the x axis has no numbers.
    pub fn new(title: &str, x_name: &str, y_name: &str, x_max: f64, y_max: f64) -> Chart {
        let (x_step, y_step) = (step(x_max, 8.0), step(y_max, 6.0));
        let up = |max: f64, step: f64| ((max / step).ceil() * step).max(step);
        let (x_max, y_max) =
            (if x_name.is_empty() { x_max } else { up(x_max, x_step) }, up(y_max, y_step));
        let mut chart = Chart { body: String::new(), x_max, y_max, legend: 0 };
        chart.text(LEFT, 24.0, title, "start", "font-size=\"15\" font-weight=\"bold\"");
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let mut y = 0.0;
        while y <= y_max * 1.0001 {
            let at = chart.y(y);
            chart.raw(&format!(
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"
            ));
            chart.text(LEFT - 8.0, at + 4.0, &short(y), "end", "");
            y += y_step;
        }
        if !x_name.is_empty() {
            let mut x = 0.0;
            while x <= x_max * 1.0001 {
                let at = chart.x(x);
                chart
                    .raw(&format!("<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom}\" y2=\"{}\" stroke=\"#888\"/>", bottom + 4.0));
                chart.text(at, bottom + 18.0, &short(x), "middle", "");
                x += x_step;
            }
            chart.text((LEFT + right) / 2.0, HEIGHT - 14.0, x_name, "middle", "");
        }
        chart.raw(&format!(
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\" stroke=\"#888\"/>"
        ));
        chart.text(LEFT - 54.0, TOP - 8.0, y_name, "start", "");
        chart
    }

    pub fn x(&self, v: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * v / self.x_max
    }
    pub fn y(&self, v: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * v / self.y_max
    }

    pub fn raw(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }
    pub fn text(&mut self, x: f64, y: f64, text: &str, anchor: &str, more: &str) {
        let text = escaped(text);
        self.raw(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {more}>{text}</text>"
        ));
    }

    pub fn line(&mut self, points: &[(f64, f64)], colour: &str, width: f64) {
        let mut path = String::new();
        for (x, y) in points {
            let _ = write!(path, "{:.1},{:.1} ", self.x(*x), self.y(*y));
        }
        let path = path.trim_end();
        self.raw(&format!("<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"));
    }
    pub fn dot(&mut self, x: f64, y: f64, colour: &str) {
        let (x, y) = (self.x(x), self.y(y));
        self.raw(&format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{colour}\"/>"));
    }
    /// A bar from zero to `v`, between `left` and `right` on the x axis.
    pub fn bar(&mut self, left: f64, right: f64, v: f64, colour: &str) {
        let (x, y, width) = (self.x(left), self.y(v), self.x(right) - self.x(left));
        let height = (self.y(0.0) - y).max(0.0);
        self.raw(&format!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"));
    }
    /// The next line of the legend.
    pub fn key(&mut self, label: &str, colour: &str) {
        let (x, y) = (WIDTH - RIGHT + 16.0, TOP + 18.0 * self.legend as f64);
        self.legend += 1;
        self.raw(&format!(
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>",
            y - 10.0
        ));
        self.text(x + 18.0, y, label, "start", "");
    }

    pub fn finish(self) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_numbers_are_round() {
        assert_eq!([step(100.0, 8.0), step(1.3, 6.0), step(7e5, 6.0)], [20.0, 0.5, 2e5]);
        assert_eq!(
            [short(0.5), short(250_000.0), short(1.2e6), short(3.0)],
            ["0.5", "250k", "1.2M", "3"]
        );
    }

    #[test]
    fn text_cannot_break_the_picture() {
        let mut chart = Chart::new("a < b & c", "x", "y", 1.0, 1.0);
        chart.key("<kvdb>", colour("kvdb"));
        let svg = chart.finish();
        assert!(
            svg.contains("a &lt; b &amp; c")
                && svg.contains("&lt;kvdb&gt;")
                && !svg.contains("<kvdb>")
        );
    }
}
