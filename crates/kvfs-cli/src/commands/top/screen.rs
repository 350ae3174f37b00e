//! The screen of `kvfs top`: draws the last samples of a store into a frame of any size.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};
use serde_json::Value;

use crate::support::mounts::live::{Rates, Sample, count};
use crate::support::serving::figures;
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text;

/// The number of rates kept for the curves: as many as a wide screen has columns.
const KEPT: usize = 512;
/// The lines of the map of zones.
const MAP_LINES: u16 = 3;

/// Returns the number of cells that the map of zones has on a screen of this many columns.
pub fn cells(width: u16) -> usize {
    usize::from(width.saturating_sub(2).max(1)) * usize::from(MAP_LINES)
}

pub struct Screen {
    now: Sample,
    before: Option<Sample>,
    rates: VecDeque<Rates>,
    pub paused: bool,
    /// The reason why there is no newer sample.
    pub problem: Option<String>,
}

const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);
const SOFT: Style = Style::new().fg(Color::DarkGray);

impl Screen {
    pub fn new(first: Sample) -> Screen {
        Screen { now: first, before: None, rates: VecDeque::new(), paused: false, problem: None }
    }

    /// Adds a sample.
    pub fn next(&mut self, sample: Sample) {
        self.rates.push_back(sample.rates(&self.now));
        if self.rates.len() > KEPT {
            self.rates.pop_front();
        }
        self.before = Some(std::mem::replace(&mut self.now, sample));
        self.problem = None;
    }

    pub fn draw(&self, frame: &mut Frame<'_>) {
        let transactions = self.now.transactions.len().clamp(1, 6) as u16;
        let [head, curves, map, middle, bottom] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(4),
            Constraint::Length(MAP_LINES + 2),
            Constraint::Min(5),
            Constraint::Length(transactions + 3),
        ])
        .areas(frame.area());
        self.head(frame, head);
        self.curves(frame, curves);
        self.zones(frame, map);
        let [left, right] =
            Layout::horizontal([Constraint::Percentage(48), Constraint::Percentage(52)])
                .areas(middle);
        self.operations(frame, left);
        self.levels(frame, right);
        self.transactions(frame, bottom);
    }

    fn head(&self, frame: &mut Frame<'_>, area: Rect) {
        let store = &self.now.store;
        let (space, memory) = (&store["space"], &store["memory"]);
        let mount_point = text::show(self.now.mount_point.as_os_str().as_encoded_bytes());
        let state = match (&self.problem, store["failed"].as_str(), self.paused) {
            (Some(problem), _, _) => Span::styled(problem.clone(), Style::new().fg(Color::Red)),
            (None, Some(why), _) => Span::styled(
                format!("takes no more writes: {}", text::show_line(why)),
                Style::new().fg(Color::Red),
            ),
            (None, None, true) => Span::styled("stopped", Style::new().fg(Color::Yellow)),
            _ => Span::raw(""),
        };
        let (total, free) = (count(&space["total"]), count(&space["free"]));
        let written = figures::shown_amplification(store)
            .map_or(String::new(), |times| format!("; {times:.2} written for each byte"));
        let figures = format!(
            "{} of {} in use; memory {} of {}; {} clients{written}",
            human_size(total.saturating_sub(free)),
            human_size(total),
            human_size(count(&memory["memtables"]) + count(&memory["cache"])),
            human_size(count(&memory["budget"])),
            // One of the connections takes the samples.
            count(&self.now.server["connections"]).saturating_sub(1),
        );
        let lines = vec![
            Line::from(vec![Span::styled(format!("KVFS {mount_point}  "), TITLE), state]),
            Line::from(figures),
        ];
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn curves(&self, frame: &mut Frame<'_>, area: Rect) {
        type Read = fn(&Rates) -> f64;
        type Show = fn(f64) -> String;
        let all: [(&str, Read, Show); 5] = [
            ("requests/s", |r| r.requests, number),
            ("commands/s", |r| r.commands, number),
            ("commits/s", |r| r.commits, number),
            ("written/s", |r| r.written_bytes, |n| human_size(n as u64)),
            ("read/s", |r| r.read_bytes, |n| human_size(n as u64)),
        ];
        let areas = Layout::horizontal([Constraint::Fill(1); 5]).spacing(1).split(area);
        for ((name, read, show), area) in all.into_iter().zip(areas.iter()) {
            let newest = self.rates.back().map_or("…".into(), |rates| show(read(rates)));
            let title = Line::from(vec![
                Span::styled(newest, TITLE),
                Span::styled(format!(" {name}"), SOFT),
            ]);
            let [line, curve] =
                Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(*area);
            frame.render_widget(Paragraph::new(title), line);
            let skipped = self.rates.len().saturating_sub(usize::from(curve.width));
            let data: Vec<u64> = self.rates.iter().skip(skipped).map(|r| read(r) as u64).collect();
            let style = Style::new().fg(Color::Blue);
            frame.render_widget(Sparkline::default().data(&data).style(style), curve);
        }
    }

    fn zones(&self, frame: &mut Frame<'_>, area: Rect) {
        let zones = &self.now.zones;
        let cells: Vec<&Value> = zones["cells"].as_array().into_iter().flatten().collect();
        let used: u64 = cells.iter().map(|cell| count(&cell[0])).sum();
        let each = match count(&zones["zones_per_cell"]) {
            0 | 1 => String::new(),
            n => format!(", {n} a sign"),
        };
        let title = format!(
            " Zones: {used} of {} in use, {} each{each} ",
            count(&zones["zones"]),
            human_size(count(&zones["zone_bytes"]))
        );
        let all = count(&zones["zones"]).max(8);
        let room = count(&zones["zone_bytes"]);
        let width = usize::from(area.width.saturating_sub(2).max(1));
        let spans: Vec<Span<'_>> = cells.iter().map(|cell| sign(cell, room, all)).collect();
        let lines: Vec<Line<'_>> =
            spans.chunks(width).map(|chunk| Line::from(chunk.to_vec())).collect();
        frame.render_widget(Paragraph::new(lines).block(block(title)), area);
    }

    fn operations(&self, frame: &mut Frame<'_>, area: Rect) {
        let operations = self.now.operations(self.before.as_ref());
        let rows = operations.iter().map(|o| {
            let (rate, all) = (number(o.per_second), number(o.count as f64));
            let name = text::show(o.name.as_bytes());
            Row::new([Line::from(name), right(rate), right(all), right(micros(o.mean_micros))])
        });
        let widths = [
            Constraint::Min(10),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(9),
        ];
        let head = ["", "a second", "in all", "mean"];
        table(frame, area, " Operations ".into(), head, rows.collect(), &widths);
    }

    fn levels(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut rows = Vec::new();
        let dictionaries = self.now.store["dictionaries"].as_array().into_iter().flatten();
        for dictionary in dictionaries {
            let said = |what: &str| text::show(dictionary[what].as_str().unwrap_or("").as_bytes());
            let mut name = match said("branch") {
                branch if branch.is_empty() => said("name"),
                branch => format!("{} of {branch}", said("name")),
            };
            let memory = count(&dictionary["memtable_bytes"]);
            if memory > 0 {
                let size = right(human_size(memory));
                let name = std::mem::take(&mut name);
                rows.push(Row::new([name.into(), right("memory"), right(""), size, right("")]));
            }
            let levels = dictionary["levels"].as_array().into_iter().flatten();
            for (level, runs) in levels.enumerate() {
                let Some(runs) = runs.as_array().filter(|runs| !runs.is_empty()) else { continue };
                let sum = |key: &str| runs.iter().map(|run| count(&run[key])).sum::<u64>();
                rows.push(Row::new([
                    std::mem::take(&mut name).into(),
                    right(level.to_string()),
                    right(runs.len().to_string()),
                    right(human_size(sum("bytes"))),
                    right(number((sum("block_spans") + sum("value_spans")) as f64)),
                ]));
            }
        }
        let merges = &self.now.store["merges"];
        let title = format!(
            " Levels: {} written, {} stitched ",
            human_size(count(&merges["written_bytes"])),
            human_size(count(&merges["stitched_bytes"]))
        );
        let widths = [
            Constraint::Min(8),
            Constraint::Length(6),
            Constraint::Length(5),
            Constraint::Length(10),
            Constraint::Length(6),
        ];
        table(frame, area, title, ["", "level", "runs", "bytes", "spans"], rows, &widths);
    }

    fn transactions(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.now.transactions.iter().map(|info| {
            let size = count(&info["memory"]) + count(&info["run_bytes"]);
            let label = info["label"].as_str().unwrap_or("");
            let label = match info.get("within").and_then(Value::as_u64) {
                Some(around) => format!("within {around}: {label}"),
                None => label.to_string(),
            };
            Row::new([
                right(count(&info["id"]).to_string()),
                Line::from(info["isolation"].as_str().unwrap_or("").to_string()),
                right(duration(count(&info["age_ms"]))),
                right(duration(count(&info["idle_ms"]))),
                right(human_size(size)),
                Line::from(text::show(label.as_bytes())),
            ])
        });
        let widths = [
            Constraint::Length(6),
            Constraint::Length(4),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(9),
            Constraint::Min(8),
        ];
        let title = match self.now.transactions.len() {
            0 => " No transaction is open ".to_string(),
            n => format!(" Transactions: {n} "),
        };
        let head = ["", "", "age", "idle", "size", "label"];
        table(frame, area, title, head, rows.collect(), &widths);
    }
}

fn block(title: String) -> Block<'static> {
    Block::bordered().border_style(SOFT).title(Span::styled(title, TITLE))
}

fn right(text: impl Into<String>) -> Line<'static> {
    Line::from(text.into()).right_aligned()
}

/// Draws a table in a frame. The heads of numeric columns are right-aligned, like the numbers.
fn table<const N: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    title: String,
    head: [&str; N],
    rows: Vec<Row<'_>>,
    widths: &[Constraint; N],
) {
    let head =
        head.map(
            |name| {
                if name == "label" { Line::from(name) } else { Line::from(name).right_aligned() }
            },
        );
    let table = Table::new(rows, widths).header(Row::new(head).style(SOFT)).block(block(title));
    frame.render_widget(table, area);
}

/// Returns a cell of the map, which shows the share of live data, and its age by colour.
fn sign(cell: &Value, zone_bytes: u64, zones: u64) -> Span<'static> {
    const PARTS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
    let (used, open) = (count(&cell[0]), count(&cell[1]));
    if used == 0 {
        return Span::styled(if count(&cell[2]) > 0 { " " } else { "·" }, SOFT);
    }
    let room = used.saturating_mul(zone_bytes).max(1);
    let part = match cell[4].as_str() {
        Some("superblock") => 7,
        _ => (count(&cell[3]).saturating_mul(8) / room).min(7) as usize,
    };
    let colour = match cell[5].as_u64() {
        None => Color::Gray,
        Some(age) => {
            // A step is a quarter of the logarithm, so that recent ages are distinguished finely.
            let share = (age as f64).ln_1p() / (zones as f64).ln_1p();
            [Color::Yellow, Color::Green, Color::Cyan, Color::Blue][(share * 4.0).min(3.0) as usize]
        }
    };
    let style = Style::new().fg(colour);
    let style = if open > 0 { style.add_modifier(Modifier::BOLD) } else { style };
    Span::styled(PARTS[part], style)
}

/// Formats a number, like "17", "1234", "56k", "7.8M".
fn number(n: f64) -> String {
    match n {
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e4 => format!("{:.0}k", n / 1e3),
        n if n >= 100.0 || n.fract() == 0.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

fn micros(micros: f64) -> String {
    match micros {
        us if us >= 1000.0 => format!("{:.1} ms", us / 1000.0),
        us if us >= 10.0 => format!("{us:.0} µs"),
        us => format!("{us:.1} µs"),
    }
}

fn duration(millis: u64) -> String {
    match millis {
        ms if ms < 1000 => format!("{ms} ms"),
        ms if ms < 120_000 => format!("{} s", ms / 1000),
        ms if ms < 7_200_000 => format!("{} min", ms / 60_000),
        ms => format!("{} h", ms / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::support::mounts::live::tests::samples;

    fn screen() -> Screen {
        let (before, now) = samples();
        let mut screen = Screen::new(before);
        screen.next(now);
        screen
    }

    /// Returns the lines of a screen, and the terminal that has drawn them.
    fn drawn(screen: &Screen, width: u16, height: u16) -> (String, Terminal<TestBackend>) {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
        terminal.draw(|frame| screen.draw(frame)).expect("memory");
        let buffer = terminal.backend().buffer();
        let line = |y| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
        ((0..height).map(|y| line(y) + "\n").collect(), terminal)
    }

    #[track_caller]
    fn has(text: &str, words: &[&str]) {
        let line = text.lines().find(|line| words.iter().all(|word| line.contains(word)));
        assert!(line.is_some(), "no line with {words:?} in\n{text}");
    }

    #[test]
    fn everything_is_on_the_screen() {
        let (text, _) = drawn(&screen(), 100, 40);
        has(&text, &["KVFS /mnt/work"]);
        has(
            &text,
            &["4.0 GiB of 10.0 GiB in use", "76.0 MiB of 320 MiB", "3 clients", "1.25 written"],
        );
        has(
            &text,
            &["10 requests/s", "5 commands/s", "20 commits/s", "3.0 KiB written/s", "0 B read/s"],
        );
        has(&text, &["Zones: 4 of 6 in use, 8.0 MiB each"]);
        has(&text, &["██▅· █"]);
        has(&text, &["write", "10", "30", "30 µs"]);
        has(&text, &["GET", "5", "50", "5.0 µs"]);
        has(&text, &["nmap", "memory", "4.0 KiB"]);
        has(&text, &["2", "1", "5.0 MiB", "42"]);
        has(&text, &["17", "si", "65 s", "900 ms", "8.0 KiB"]);
        assert!(!text.contains("KVFS.STAT"), "what it asks itself is left out");
    }

    #[test]
    fn what_acts_on_a_terminal_is_shown_as_text() {
        let (text, _) = drawn(&screen(), 100, 40);
        has(&text, &["spring\\x1b[2J prices"]);
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn a_zone_has_the_colour_of_its_age() {
        let (text, terminal) = drawn(&screen(), 100, 40);
        let y = text.lines().position(|line| line.contains("██▅· █")).expect("the map") as u16;
        let colour = |x: u16| terminal.backend().buffer()[(x, y)].fg;
        assert_eq!((colour(2), colour(3)), (Color::Cyan, Color::Yellow));
        assert_eq!((colour(1), colour(6)), (Color::Gray, Color::Gray));
    }

    #[test]
    fn it_says_when_it_is_stopped_and_what_went_wrong() {
        let mut screen = screen();
        screen.paused = true;
        has(&drawn(&screen, 100, 40).0, &["KVFS /mnt/work", "stopped"]);
        screen.problem = Some("the store is gone".into());
        has(&drawn(&screen, 100, 40).0, &["KVFS /mnt/work", "the store is gone"]);
        screen.next(samples().1);
        assert!(!drawn(&screen, 100, 40).0.contains("gone"));
    }

    #[test]
    fn a_screen_of_any_size_is_drawn() {
        for (width, height) in [(1, 1), (3, 2), (20, 5), (80, 24), (300, 3), (5, 200)] {
            drawn(&screen(), width, height);
            drawn(&Screen::new(samples().0), width, height);
        }
    }
}
