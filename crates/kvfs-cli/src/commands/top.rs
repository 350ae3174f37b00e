//! `kvfs top`: shows the current activity of a mounted store on a terminal.
//!
//! Takes samples from the store's daemon repeatedly (`live`) and draws them (`screen`).

mod screen;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::support::mounts::live::Sample;
use crate::support::mounts::waiting;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text;
use screen::Screen;

/// Watch the activity of a mounted store: operations and their times, levels, zones, transactions.
#[derive(clap::Args)]
#[command(after_help = "\
Keys: q quits, the space bar pauses and continues.

Operations are the requests of the kernel (in small letters) and the commands of clients of the \
socket (in capitals). The time is the average in which the daemon answered those of the last \
interval. In the map of zones, each sign is one zone, or several if there are many: its height is \
the share of live data (from \u{2581} to \u{2588}), its colour the age: yellow is the newest, \
then green, cyan and blue; grey is older than the mount. A dot is a free zone, a blank a zone \
whose space was returned to the host.

  kvfs top /mnt
  kvfs top /mnt --once               # one screen, as text
  kvfs top /mnt --json | jq .per_second

If standard output is not a terminal, --once is implied. For longer periods see kvfs mount \
--metrics, for more detail kvfs web and kvfs stat.")]
pub struct Args {
    /// Directory a store is mounted on.
    mount: PathBuf,
    /// Interval between updates, in seconds.
    #[arg(long, short = 'i', value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// Print one screen as text and exit; with --json, this is always the case.
    #[arg(long)]
    once: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "write seconds, from 0.1 to 3600".into())
}

/// The polling interval for an answer.
const LOOK: Duration = Duration::from_millis(100);

/// Columns and lines of a screen without a terminal.
const SIZE: (u16, u16) = (100, 40);

pub fn run(args: Args, output: &Output) -> Outcome {
    let first = Sample::take(&args.mount, screen::cells(SIZE.0))?;
    if output.is_json() {
        std::thread::sleep(args.interval);
        let now = Sample::take(&args.mount, screen::cells(SIZE.0))?;
        return output.print("", now.json(&first));
    }
    if args.once || !std::io::stdout().is_terminal() {
        std::thread::sleep(args.interval);
        let now = Sample::take(&args.mount, screen::cells(SIZE.0))?;
        let mut screen = Screen::new(first);
        screen.next(now);
        return output.print(as_text(&screen, SIZE), "");
    }
    let mut terminal = ratatui::init();
    let outcome = watch(&args, Screen::new(first), &mut terminal);
    ratatui::restore();
    outcome
}

/// Returns the screen as lines.
fn as_text(screen: &Screen, (width, height): (u16, u16)) -> String {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| screen.draw(frame));
    let buffer = terminal.backend().buffer();
    let line = |y| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
    let lines: Vec<String> = (0..height).map(|y| line(y).trim_end().to_string()).collect();
    lines.join("\n").trim_end().to_string()
}

/// Returns whether a key ends the program.
fn ends(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
        || control && key.code == KeyCode::Char('c')
}

fn watch(args: &Args, mut screen: Screen, terminal: &mut ratatui::DefaultTerminal) -> Outcome {
    let cannot = |e| Failure::io("cannot use the terminal", &e);
    waiting::be_silent();
    // Take samples on a thread, so that keys are handled even if the daemon does not answer.
    let (want, wanted) = mpsc::channel();
    let (take, taken) = mpsc::channel();
    let mount = args.mount.clone();
    std::thread::spawn(move || {
        for cells in wanted {
            if take.send(Sample::take(&mount, cells)).is_err() {
                return;
            }
        }
    });
    let mut asked = None;
    let mut due = Instant::now() + args.interval;
    loop {
        terminal.draw(|frame| screen.draw(frame)).map_err(cannot)?;
        let left = due.saturating_duration_since(Instant::now());
        if event::poll(left.min(LOOK)).map_err(cannot)? {
            match event::read().map_err(cannot)? {
                Event::Key(key) if key.kind == KeyEventKind::Release => {}
                Event::Key(key) if ends(key) => return Ok(()),
                Event::Key(key) if key.code == KeyCode::Char(' ') => screen.paused ^= true,
                _ => {}
            }
            continue;
        }
        match taken.try_recv() {
            Ok(Ok(sample)) => screen.next(sample),
            // The store may be mounted again.
            Ok(Err(failure)) if failure.exit != Exit::Usage => {
                screen.problem = Some(text::show_line(&failure.message));
            }
            Ok(Err(failure)) => return Err(failure),
            Err(_) => {
                if asked.is_some_and(|asked: Instant| asked.elapsed() > waiting::PATIENCE)
                    && let Some(record) = waiting::of_target(&args.mount)
                {
                    screen.problem = Some(text::show_line(&waiting::unanswered(&record)));
                }
                let now = Instant::now();
                if asked.is_none() && now >= due && !screen.paused {
                    let width = terminal.size().map_err(cannot)?.width;
                    let _ = want.send(screen::cells(width));
                    (asked, due) = (Some(now), now + args.interval);
                } else if now >= due {
                    due = now + LOOK;
                }
                continue;
            }
        }
        asked = None;
    }
}
